package fleet

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/deploy/profiles"
	"github.com/firsttoken/firsttoken/internal/engine"
)

const h100 = "h100-llama-3.1-70b-fp8-tp4"

func parse(t *testing.T, text string) *Fleet {
	t.Helper()
	f, err := Parse("fleet.yaml", []byte(text), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestExpand(t *testing.T) {
	f := parse(t, `
engines:
  - {profile: `+h100+`}
  - name: small
    profile: rtx4090-llama-3.1-8b-bf16
    count: 2
    model: chat
    port: 9100
    price_per_hour: 0
    noise: 0.05
    seed: 40
    fp8_kv: true
    prefix_caching: false
    max_num_seqs: 8
    max_num_batched_tokens: 512
    max_model_len: 4096
    cold: {}
    start_up: 30s
    speculative: {draft_tokens: 3, acceptance: 0.7}
    step: {gamma: 0, h: 9ms}
network: {delay: 1ms}
`)
	if len(f.Engines) != 3 || f.Network != time.Millisecond {
		t.Fatalf("%+v", f)
	}
	plain, _ := engine.LookupProfile(h100)
	want := Engine{Name: h100, Model: "llama-3.1-70b", Profile: plain, Params: plain.Params, PricePerHour: plain.PricePerHour}
	if !reflect.DeepEqual(f.Engines[0], want) {
		t.Errorf("a bare profile: %+v, want %+v", f.Engines[0], want)
	}

	p, _ := engine.LookupProfile("rtx4090-llama-3.1-8b-bf16")
	params := p.Params
	params.Step.Gamma, params.Step.H = 0, 9*time.Millisecond
	params.KVBlocks *= 2
	params.MaxSeqs, params.MaxBatchedTokens, params.MaxModelLen = 8, 512, 4096
	params.NoPrefixCache, params.Noise = true, 0.05
	params.Cold = engine.Cold{Tables: 42 * time.Millisecond, Cache: 3500 * time.Microsecond, Requests: 3}
	params.StartUp = 30 * time.Second
	params.Speculative = engine.Speculative{DraftTokens: 3, Acceptance: 0.7}
	want = Engine{Name: "small-2", Model: "chat", Profile: p, Params: params, Seed: 41, Port: 9101}
	if !reflect.DeepEqual(f.Engines[2], want) {
		t.Errorf("got  %+v\nwant %+v", f.Engines[2], want)
	}
	if got := f.Models(); !reflect.DeepEqual(got, []string{"llama-3.1-70b", "chat"}) {
		t.Errorf("models %v", got)
	}
	if got := f.PricePerHour(); got != plain.PricePerHour {
		t.Errorf("price %v", got)
	}
}

func TestFaults(t *testing.T) {
	f := parse(t, `
engines: [{name: a, profile: `+h100+`, count: 2}, {name: b, profile: `+h100+`}]
faults:
  - {at: 20s, engine: 2, kind: slow, for: 5s}
  - {at: 10s, engine: a-2, kind: errors, rate: 0.5}
  - {engine: b, kind: restart}
`)
	want := []Fault{
		{Engine: 2, Fault: engine.Fault{Kind: engine.Restart}},
		{At: 10 * time.Second, Engine: 1, Fault: engine.Fault{Kind: engine.Errors, Rate: 0.5}},
		{At: 20 * time.Second, Engine: 2, Fault: engine.Fault{Kind: engine.Slow, Factor: 4}, For: 5 * time.Second},
	}
	if !reflect.DeepEqual(f.Faults, want) {
		t.Errorf("got  %+v\nwant %+v", f.Faults, want)
	}
}

func TestErrorsNameThePlaceAndTheFix(t *testing.T) {
	one := "engines:\n  - {name: h, profile: " + h100 + ", count: 2}\n"
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "fleet.yaml: is empty"},
		{"no engines", "engines: []", "fleet.yaml:1:10: engines: is empty; write at least one entry"},
		{"unknown key", "engines:\n  - {profil: x}", `fleet.yaml:2:6: engines[0].profil: unknown key; did you mean "profile"?`},
		{"unknown section", one + "fault: []", `fleet.yaml:3:1: fault: unknown key; did you mean "faults"?`},
		{"unknown profile", "engines:\n  - profile: h100-llama-3.1-70b-fp8-tp5", `fleet.yaml:2:14: engines[0].profile: "h100-llama-3.1-70b-fp8-tp5" is no built-in profile; did you mean "h100-llama-3.1-70b-fp8-tp`},
		{"profile file that is not there", "engines:\n  - profile: ./x.yaml", `fleet.yaml:2:14: engines[0].profile: open `},
		{"bad count", "engines:\n  - {profile: x, count: 0}", `fleet.yaml:2:25: engines[0].count: "0" is below 1; write a value of at least 1`},
		{"no unit", "engines:\n  - {profile: x, start_up: 30}", `fleet.yaml:2:28: engines[0].start_up: "30" has no unit; write 30s or 30ms`},
		{"no unit in the step", one + "  - {profile: " + h100 + ", step: {t0: 3}}", `fleet.yaml:3:54: engines[1].step.t0: "3" has no unit`},
		{"acceptance", "engines:\n  - {profile: x, speculative: {acceptance: 2}}", `fleet.yaml:2:44: engines[0].speculative.acceptance: "2" is above 1`},
		{"name twice", one + "  - {name: h-2, profile: " + h100 + "}", `fleet.yaml:3:12: engines[1].name: makes another engine "h-2", as engines[0] does; give each group its own name`},
		{"profile's name twice", "engines:\n  - profile: " + h100 + "\n  - profile: " + h100, `fleet.yaml:3:5: engines[1]: makes another engine`},
		{"port", "engines:\n  - {profile: " + h100 + ", port: 65535, count: 2}", `fleet.yaml:2:49: engines[0].port: leaves no room for 2 engines; write a lower one`},
		{"too many", "engines:\n" + "  - {name: a, profile: " + h100 + ", count: 1000}\n  - {name: b, profile: " + h100 + ", count: 1000}\n  - {name: c, profile: " + h100 + "}", `fleet.yaml:4:5: engines[2]: makes the fleet too large; write at most 2000 engines in all`},
		{"fault kind", one + "faults: [{engine: h-1, kind: crahs}]", `fleet.yaml:3:30: faults[0].kind: "crahs" is not valid here; did you mean "crash"?`},
		{"fault engine", one + "faults: [{engine: h-3, kind: crash}]", `fleet.yaml:3:19: faults[0].engine: there is no engine "h-3"; did you mean "h-`},
		{"fault engine number", one + "faults: [{engine: 2, kind: crash}]", `fleet.yaml:3:19: faults[0].engine: there is no engine 2; write a number from 0 to 1, or a name`},
		{"fault group", one + "faults: [{engine: h, kind: crash}]", `fleet.yaml:3:19: faults[0].engine: there is no engine "h"; it is a group: write one of its engines, such as "h-1"`},
		{"fault rate", one + "faults: [{engine: 0, kind: hang, rate: 0.5}]", `fleet.yaml:3:10: faults[0]: rate is 0.5, want a share up to 1, for cut, errors and reject alone`},
		{"fault for", one + "faults: [{engine: 0, kind: restart, for: 5s}]", `fleet.yaml:3:42: faults[0].for: has no meaning for a restart`},
	} {
		_, err := Parse("fleet.yaml", []byte(c.text), t.TempDir())
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s:\n  got  %v\n  want %s", c.name, err, c.want)
		}
	}
}

func TestProfileFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("mine.yaml", "model: m\ngpu: L40S\nparams: {step: {t0: 12ms, alpha: 60}, kv_blocks: 5000}\n")
	write("fleet.yaml", "engines: [{profile: mine.yaml}]\n")
	f, err := Load(filepath.Join(dir, "fleet.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	e := f.Engines[0]
	if e.Name != "mine" || e.Model != "m" || e.Params.Step.T0 != 12*time.Millisecond || e.Params.KVBlocks != 5000 || e.Profile.TP != 1 {
		t.Errorf("%+v", e)
	}

	for text, want := range map[string]string{
		"model: m\ngpu: L40S\nparams:\n  step: {t0: 12ms}\n  kv_block: 5": `mine.yaml:5:3: params.kv_block: unknown key; did you mean "kv_blocks"?`,
		"model: m\ngpu: L40S\nparams:\n  step: {t0: 12ms}":                `mine.yaml:4:3: params: make no engine: kv_blocks is 0, want at least 1`,
		"model: m\nparams:\n  kv_blocks: 5":                               `mine.yaml:1:1: gpu: is missing`,
	} {
		write("mine.yaml", text)
		_, err := Load(filepath.Join(dir, "fleet.yaml"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "fleet.yaml:1:21: engines[0].profile: ") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// The built-in profiles are files like any user's.
func TestBuiltInProfilesPassTheReader(t *testing.T) {
	for _, name := range engine.ProfileNames() {
		text, err := fs.ReadFile(profiles.Files(), name+".yaml")
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseProfile(name+".yaml", text)
		if err != nil {
			t.Error(err)
		}
		if want, _ := engine.LookupProfile(name); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: read as %+v here and %+v there", name, got, want)
		}
	}
}

func TestSavedProfileIsReadBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy.yaml")
	for _, name := range engine.ProfileNames() {
		want, _ := engine.LookupProfile(name)
		if err := SaveProfile(path, want); err != nil {
			t.Fatal(err)
		}
		got, err := LoadProfile(path)
		if err != nil {
			t.Fatal(err)
		}
		want.Name = "copy"
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: read back as %+v", name, got)
		}
	}
}

func TestShippedFleets(t *testing.T) {
	for name, want := range map[string]struct{ engines, kinds, models int }{
		"equal": {8, 1, 1}, "mixed": {8, 4, 1}, "wide": {6, 5, 1}, "quickstart": {10, 6, 2},
	} {
		f, err := Open(name)
		if err != nil {
			t.Error(err)
			continue
		}
		kinds := map[string]bool{}
		for _, e := range f.Engines {
			kinds[e.Profile.Name] = true
		}
		if len(f.Engines) != want.engines || len(kinds) != want.kinds || len(f.Models()) != want.models {
			t.Errorf("%s: %d engines of %d profiles, models %v", name, len(f.Engines), len(kinds), f.Models())
		}
	}
	if len(Names()) != 4 {
		t.Errorf("shipped fleets %v: the table above must name them all", Names())
	}
	if _, err := Open("mixd"); err == nil || !strings.Contains(err.Error(), `did you mean "mixed"?`) {
		t.Errorf("a name like a shipped one: %v", err)
	}
	if _, err := Open("./nowhere.yaml"); err == nil {
		t.Error("opened a file that is not there")
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		fleet, err := os.ReadFile("../../deploy/fleets/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(fleet)
	}
	f.Add([]byte("engines: [{profile: " + h100 + ", count: 1000}, {profile: x, port: 1}]\nfaults: [{engine: -1, kind: cut, at: 1s}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		fleet, err := Parse("f", data, "nowhere")
		if err != nil {
			return
		}
		for _, e := range fleet.Engines {
			if err := e.Params.Check(); err != nil {
				t.Errorf("an accepted fleet makes no engine: %v", err)
			}
		}
	})
}

// The documentation's example is a fleet.
func TestDocumentedFleet(t *testing.T) {
	page, err := os.ReadFile("../../docs/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(page), "```yaml fleet\n")
	example, _, _ = strings.Cut(example, "```")
	if f := parse(t, example); !found || len(f.Engines) != 2 || len(f.Faults) != 2 {
		t.Errorf("%+v", f)
	}
}
