package top

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/admin"
)

var update = flag.Bool("update", false, "rewrite testdata")

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func known(x float64) *float64 { return &x }

func name(s string) *string { return &s }

// busy is a fleet with a slowed instance, a promise that it breaks, and one
// instance that is out.
func busy() View {
	return View{Snapshot: Snapshot{
		State: admin.State{
			At: noon, Version: "v1.4.0", Revision: 3, UptimeS: 3725, Ready: true,
			Contracts: []admin.Contract{
				{Name: "code", Criticality: "standard", State: "ok", Objectives: []admin.Objective{objective("P95 TTFT ≤ 200ms", "ok", 0.972, 0.95, 0.44, 0.7, 0.6)},
					Backends: []admin.ContractBackend{{Name: "h100-1", Compliance: 0.981, Weight: 1}}},
				{Name: "customer-chat", Criticality: "critical", State: "breaching", Objectives: []admin.Objective{
					objective("P95 TTFT ≤ 320ms", "breaching", 0.871, 0.95, -1.58, 21.4, 15.2), objective("P95 TPOT ≤ 50ms", "at_risk", 0.949, 0.95, -0.02, 2.6, 1.3),
				}, Backends: []admin.ContractBackend{{Name: "h100-1", Compliance: 0.961, Weight: 1}, {Name: "h100-2", Compliance: 0.413, Weight: 0.25, ViolatedWindows: 4}}},
				{Name: "meetings", Criticality: "sheddable", State: "no_data", Objectives: []admin.Objective{{Text: "P99 E2E ≤ 5s", State: "no_data", Target: 0.999, BudgetLeft: 1, Burn: map[string]float64{"5m": 0, "1h": 0}}}},
			},
			Models: []admin.Model{
				{Name: "llama-3.1-8b", Policy: "headroom", Estimator: name("lightgbm"), ArrivalRate: known(23.41), ArrivalCV: known(1.2), P50MAPE: known(0.184), P95Coverage: known(0.948), InFlight: 31, Held: 2,
					Backends: []admin.Backend{
						instance("h100-1", 19, 181, 402, 193, 0.97),
						slowed(instance("h100-2", 8, 240, 610, 655, 0.61)),
						{Name: "h100-3", State: "ejected", Readiness: "ready", Breaker: "open", Weight: 1},
						{Name: "l40s-1", State: "up", Readiness: "warming", Breaker: "closed", InFlight: 4, Weight: 0.35, Requests: 4, PredictedP50MS: known(9.21), PredictedP95MS: known(44.4), ActualMS: known(31), P50Error: known(0.7), WithinP95: known(0.5)},
					}},
				{Name: "llama-3.3-70b", Policy: "weighted", Backends: []admin.Backend{{Name: "tp4-1", State: "up", Readiness: "ready", Breaker: "closed", Weight: 1}}},
			},
		},
		Events: []admin.Event{
			event(1, "info", "serving", map[string]string{"listen": "127.0.0.1:8080"}),
			event(2, "warn", "instance violates contract", map[string]string{"share": "0.41", "since": "2026-12-01T03:35:40Z", "backend": "h100-2", "contract": "customer-chat"}),
			event(3, "error", "backend ejected", map[string]string{"backend": "h100-3", "reason": "dial_failed"}),
		},
	}}
}

func objective(text, state string, share, target, left, short, long float64) admin.Objective {
	return admin.Objective{Text: text, State: state, Share: &share, Target: target, BudgetLeft: left, Burn: map[string]float64{"5m": short, "1h": long}}
}

func instance(name string, inFlight int, p50, p95, actual, within float64) admin.Backend {
	return admin.Backend{Name: name, State: "up", Readiness: "ready", Breaker: "closed", InFlight: inFlight, Weight: 1, Running: known(float64(inFlight)), Waiting: known(0), KVUse: known(0.41),
		Requests: 100, PredictedP50MS: &p50, PredictedP95MS: &p95, ActualMS: &actual, P50Error: known(math.Abs(p50-actual) / actual), WithinP95: &within}
}

func slowed(b admin.Backend) admin.Backend {
	b.Waiting, b.KVUse, b.TTFTMS = known(3), known(0.93), known(1912)
	return b
}

func event(seq uint64, level, message string, fields map[string]string) admin.Event {
	return admin.Event{Seq: seq, At: noon.Add(time.Duration(seq) * time.Second), Level: level, Message: message, Fields: fields}
}

// many is a model with n instances, the 33rd of which is down.
func many(n int) View {
	v := View{Snapshot: Snapshot{State: admin.State{At: noon, Version: "v1.4.0", Revision: 1, UptimeS: 59, Ready: true, Models: []admin.Model{{Name: "llama", Policy: "headroom"}}}}}
	m := &v.State.Models[0]
	for i := range n {
		m.Backends = append(m.Backends, instance(fmt.Sprintf("engine-%02d", i+1), 3, 100, 200, 110, 0.95))
	}
	m.Backends[32].State = "down"
	return v
}

func empty() View {
	return View{Snapshot: Snapshot{State: admin.State{At: noon, Version: "dev", Revision: 1}}}
}

func lost() View {
	v := busy()
	v.Lost, v.Silent = fmt.Errorf("no gateway answers at http://127.0.0.1:8081/state (connection refused)"), 7*time.Second
	return v
}

func hostile() View {
	v := busy()
	evil := "\x1b[2Jevil\r\n\x07\u202e会話\u0301\u009b31m"
	v.State.Version, v.State.Models[0].Name, v.State.Models[0].Backends[0].Name = evil, evil, evil
	v.State.Contracts[0].Name, v.State.Contracts[0].Objectives[0].Text, v.State.Models[0].Backends[1].State = evil, evil, evil
	v.Events = append(v.Events, event(4, evil, evil, map[string]string{evil: evil + "\xff"}))
	v.Lost = fmt.Errorf("%s", evil)
	return v
}

func TestFrames(t *testing.T) {
	oneModel := busy()
	oneModel.Model = "llama-3.3-70b"
	gone := busy()
	gone.Model = "gone"
	for _, c := range []struct {
		name  string
		view  View
		size  Size
		style Style
	}{
		{"busy-80x24", busy(), Size{80, 24}, Style{}},
		{"busy-120x40", busy(), Size{120, 40}, Style{}},
		{"busy-200x60", busy(), Size{200, 60}, Style{}},
		{"busy-120x40-colour", busy(), Size{120, 40}, Style{Colour: true}},
		{"busy-endless", busy(), Size{}, Style{Zone: time.FixedZone("", 3600)}},
		{"busy-40x12", busy(), Size{40, 12}, Style{}},
		{"one-model-120x40", oneModel, Size{120, 40}, Style{}},
		{"gone-80x24", gone, Size{80, 24}, Style{}},
		{"empty-80x24", empty(), Size{80, 24}, Style{}},
		{"many-80x24", many(40), Size{80, 24}, Style{}},
		{"hostile-120x40", hostile(), Size{120, 40}, Style{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := []byte(Draw(c.view, c.size, c.style) + "\n")
			file := filepath.Join("testdata", c.name+".txt")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v: write it with -update", err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the frame is not %s (see -update):\n%s", file, got)
			}
		})
	}
}

// TestFramesFit holds every frame of every size to its rectangle, and to text
// that no terminal obeys.
func TestFramesFit(t *testing.T) {
	for _, v := range []View{busy(), empty(), many(40), lost(), hostile()} {
		for width := 1; width < 220; width += 11 {
			for _, height := range []int{1, 2, 5, 13, 24, 70} {
				checkFrame(t, Draw(v, Size{width, height}, Style{}), Size{width, height})
			}
		}
	}
}

func checkFrame(t *testing.T, frame string, size Size) {
	t.Helper()
	if n := strings.Count(frame, "\n") + 1; n > size.Height {
		t.Fatalf("%v: %d lines:\n%s", size, n, frame)
	}
	for l := range strings.SplitSeq(frame, "\n") {
		if cells(l) > size.Width || l != clean(l) {
			t.Fatalf("%v: bad line %q of %d cells", size, l, cells(l))
		}
	}
}

// TestColourChangesNothingElse takes the colours off again.
func TestColourChangesNothingElse(t *testing.T) {
	for _, v := range []View{busy(), lost(), hostile(), many(40)} {
		frame := Draw(v, Size{120, 40}, Style{Colour: true})
		if !strings.Contains(frame, "\x1b[1;31m") {
			t.Errorf("nothing is red:\n%s", frame)
		}
		for _, code := range codes {
			frame = strings.ReplaceAll(frame, "\x1b["+code+"m", "")
		}
		frame = strings.ReplaceAll(frame, "\x1b[0m", "")
		if trimmed := trimLines(frame); trimmed != Draw(v, Size{120, 40}, Style{}) {
			t.Errorf("the frame in colours differs by more than colours:\n%s", trimmed)
		}
	}
}

func trimLines(s string) string {
	var out []string
	for l := range strings.SplitSeq(s, "\n") {
		out = append(out, strings.TrimRight(l, " "))
	}
	return strings.Join(out, "\n")
}

// TestTroubleStays: where not all instances fit, those that are shown include
// every one that needs a look.
func TestTroubleStays(t *testing.T) {
	v := many(40)
	for height := 10; height < 60; height++ {
		if frame := Draw(v, Size{120, height}, Style{}); !strings.Contains(frame, "engine-33") {
			t.Fatalf("height %d: the instance that is down is not shown:\n%s", height, frame)
		}
	}
	if frame := Draw(v, Size{120, 34}, Style{}); !strings.Contains(frame, "… 12 more") {
		t.Errorf("it is not said how many are missing:\n%s", frame)
	}
}

// TestOddNumbers: figures that are missing, infinite or huge leave the frame whole.
func TestOddNumbers(t *testing.T) {
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, -1, 0} {
		v := busy()
		b := &v.State.Models[0].Backends[0]
		b.ActualMS, b.PredictedP50MS, b.WithinP95, b.KVUse, b.Weight = &x, &x, &x, &x, x
		v.State.UptimeS, v.State.Models[0].ArrivalRate = x, &x
		o := &v.State.Contracts[0].Objectives[0]
		o.Share, o.Target, o.BudgetLeft, o.Burn["5m"] = &x, x, x, x
		frame := Draw(v, Size{120, 40}, Style{})
		checkFrame(t, frame, Size{120, 40})
		if !strings.Contains(frame, "EVENTS") || strings.Contains(frame, "NaN") && !math.IsNaN(x) {
			t.Errorf("%v:\n%s", x, frame)
		}
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"abcd", 1, "…"}, {"abcd", 0, ""}, {"", 0, ""},
		{"会話", 4, "会話"}, {"会話室", 5, "会話…"}, {"会話室", 4, "会…"}, {"会", 1, "…"}, {"ab", -1, ""},
	} {
		if got := clip(c.in, c.n); got != c.want {
			t.Errorf("clip(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("h100-1", 5)
	f.Add("\x1b[2J会\u202e話\u0301", 3)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = min(max(n, 0), 1000)
		got := line{in(bad, "%s", s)}.render(n, Style{})
		if cells(got) > n || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || (r >= 0x7f && r < 0xa0) }) {
			t.Errorf("%q in %d cells is %q", s, n, got)
		}
	})
}

// TestStandby: one that stands by is no instance that serves.
func TestStandby(t *testing.T) {
	b := instance("spare", 0, 1, 2, 1, 1)
	for readiness, want := range map[string]string{"standby": "standby", "cold": "cold", "ready": "up"} {
		b.Readiness = readiness
		if got := stateOf(&b).text; got != want {
			t.Errorf("%s is shown as %q, want %q", readiness, got, want)
		}
	}
}
