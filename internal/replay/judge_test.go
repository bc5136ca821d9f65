package replay_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.txt")

// trial is policies on four engines of two speeds, two of which break down,
// under chats of several turns.
func trial(policies ...string) replay.Trial {
	engines := fleet(plain, slow(), plain, slow())
	for i := range engines {
		p := &engines[i].Params
		p.Noise, p.KVBlocks, p.Step.Alpha = 0.1, 1200, 3*p.Step.Alpha
	}
	c := replay.Config{
		Engines: engines, Gateways: 2,
		Faults: []replay.Fault{
			{At: 5 * time.Second, Engine: 1, Fault: engine.Fault{Kind: engine.Crash}}, {At: 15 * time.Second, Engine: 1, Fault: engine.Fault{Kind: engine.Restart}},
			{At: 20 * time.Second, Engine: 2, Fault: engine.Fault{Kind: engine.Crash}},
		},
	}
	return replay.Trial{
		Variants:  variants(c, policies...),
		Objective: report.Objective{TTFT: 200 * ms, TTFTPerToken: 500 * time.Microsecond, TPOT: 60 * ms},
		Source: func(seed uint64) trace.Source {
			w := trace.CustomerService()
			w.Rate = 3
			return w.Source(seed).First(200).Each(func(r *trace.Request) { r.Model = "m" })
		},
	}
}

// peaceful is a trial in which nothing breaks, with one gateway.
func peaceful(policies ...string) replay.Trial {
	t := trial(policies...)
	for i := range t.Variants {
		t.Variants[i].Faults, t.Variants[i].Gateways = nil, 1
	}
	return t
}

func variants(c replay.Config, policies ...string) (out []replay.Variant) {
	for _, p := range policies {
		v := replay.Variant{Name: p, Config: c}
		v.Policy, v.Engines = p, slices.Clone(c.Engines)
		out = append(out, v)
	}
	return out
}

// judge gives all there is to say of a trial, as bytes.
func judge(t testing.TB, trial replay.Trial) string {
	t.Helper()
	runs, differences, partial, err := trial.Compare()
	if err != nil {
		t.Fatal(err)
	}
	r := report.Report{Title: "test", Partial: partial, Runs: runs, Differences: differences}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetIndent("", " ")
	if err := errors.Join(enc.Encode(r), r.WriteTable(&out), r.WriteHTML(&out)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The same seed gives the same bytes: on one processor or many, alone or beside
// others. It is not parallel, since it changes the number of processors.
func TestSameSeedSameBytes(t *testing.T) {
	one := trial(router.P2C, router.Random, router.PrefixAffinity)
	one.Seeds = 2
	want := judge(t, one)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, processors := range []int{2, 8} {
		runtime.GOMAXPROCS(processors)
		if got := judge(t, one); got != want {
			t.Fatalf("with %d processors it is another report:\n%s", processors, firstDifference(got, want))
		}
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			if got := judge(t, one); got != want {
				t.Errorf("beside others it is another report:\n%s", firstDifference(got, want))
			}
		})
	}
	all.Wait()
}

func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d: %s\nwant: %s", i+1, a[i], b[i])
		}
	}
	return "one is longer"
}

// What is drawn depends on the seed: the trace, the engines' noise, the
// policies' draws; and nothing else does.
func TestOtherSeedsOtherOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, policy      string
		oneTrace, noNoise bool
		different         int
	}{
		{"trace", router.RoundRobin, false, true, 3},
		{"noise", router.RoundRobin, true, false, 3},
		{"draws", router.Random, true, true, 3},
		{"nothing", router.RoundRobin, true, true, 1},
	} {
		one := peaceful(c.policy)
		source := one.Source
		if c.oneTrace {
			one.Source = func(uint64) trace.Source { return source(1) }
		}
		if c.noNoise {
			quiet(&one)
		}
		means := map[float64]bool{}
		for seed := range uint64(3) {
			config := one.Variants[0].Config
			config.Seed = seed
			for i := range config.Engines {
				config.Engines[i].Seed++
			}
			got, _ := run(t, config, one.Source(seed))
			sum := 0.0
			for _, o := range got {
				sum += o.TTFT.Seconds()
			}
			means[sum] = true
		}
		if len(means) != c.different {
			t.Errorf("%s: three seeds give %d outcomes, want %d", c.name, len(means), c.different)
		}
	}
}

// quiet switches the noise off.
func quiet(t *replay.Trial) {
	for _, v := range t.Variants {
		for i := range v.Engines {
			v.Engines[i].Params.Noise = 0
		}
	}
}

// A change of behaviour shows here. If it is meant: go test -run Golden -update
func TestGolden(t *testing.T) {
	t.Parallel()
	src, err := trace.Open(filepath.Join("testdata", "chats.jsonl"), trace.Options{Seed: 1}) // made up for this
	if err != nil {
		t.Fatal(err)
	}
	chats := trial(router.PolicyNames()...)
	chats.Source = func(uint64) trace.Source { return src.Each(func(r *trace.Request) { r.Model = "m" }) }
	runs, _, _, err := chats.Compare()
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	r := report.Report{Title: "200 requests on four engines, of which one restarts and one dies", Runs: runs}
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	file, got := filepath.Join("testdata", "golden.txt"), table.String()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("not as in %s:\n%s", file, firstDifference(got, string(want)))
	}
}

func TestComparedOverSeeds(t *testing.T) {
	t.Parallel()
	two := peaceful(router.RoundRobin, router.LeastInFlight)
	two.Seeds = 4
	var told []string
	two.Progress = func(variant string, seed int) { told = append(told, fmt.Sprint(variant, seed)) }
	runs, differences, partial, err := two.Compare()
	if err != nil || partial || len(runs) != 2 {
		t.Fatalf("%d runs, partial %v, error %v", len(runs), partial, err)
	}
	if want := "[round-robin0 least-inflight0 round-robin1 least-inflight1 round-robin2 least-inflight2 round-robin3 least-inflight3]"; fmt.Sprint(told) != want {
		t.Errorf("progress told %v", told)
	}
	for _, d := range differences {
		if d.Name != router.LeastInFlight || d.Seeds != 4 || !(d.Low <= d.Ratio && d.Ratio <= d.High) {
			t.Errorf("%+v", d)
		}
		if d.Metric == "TTFT mean" && !(d.High < 1) {
			t.Errorf("least in flight is not surely quicker than round robin on engines of two speeds: %+v", d)
		}
	}
	if len(differences) != 5 {
		t.Errorf("%d differences", len(differences))
	}
	// A policy without draws is as good as itself.
	same := peaceful(router.RoundRobin, router.RoundRobin)
	same.Seeds = 3
	if _, differences, _, err = same.Compare(); err != nil || len(differences) != 5 {
		t.Fatalf("%d differences, error %v", len(differences), err)
	}
	for _, d := range differences {
		if d.Ratio != 1 || d.Sure() {
			t.Errorf("a policy differs from itself: %+v", d)
		}
	}
}

func TestComparisonThatIsStopped(t *testing.T) {
	t.Parallel()
	two := trial(router.Random, router.P2C)
	runs := 0
	two.Progress = func(string, int) { runs++ }
	for i := range two.Variants {
		two.Variants[i].Stop = func() bool { return runs == 2 }
	}
	got, _, partial, err := two.Compare()
	if err != nil || !partial || len(got) != 2 || got[0].All.Requests != 200 || got[1].All.Requests != 0 {
		t.Errorf("partial %v, %d runs, error %v", partial, len(got), err)
	}
	if _, err := two.FindGoodput(two.Variants[0], 0.95); !errors.Is(err, replay.ErrStopped) {
		t.Errorf("search of goodput: %v, want that it was stopped", err)
	}
}

// Whose objective a request is judged by: the trial's, its own, the default.
func TestObjectives(t *testing.T) {
	t.Parallel()
	a, b := ask(0, 100, 1), ask(time.Second, 100, 1) // 20 ms each
	b.TTFT = 25 * ms
	for _, c := range []struct {
		all, otherwise time.Duration
		met            float64
	}{
		{0, 0, 1}, {0, 10 * ms, 0.5}, {0, 30 * ms, 1}, {10 * ms, 0, 0}, {10 * ms, 30 * ms, 0}, {30 * ms, 10 * ms, 1},
	} {
		runs, _, _, err := replay.Trial{
			Variants:  variants(replay.Config{Engines: fleet(plain)}, router.Random),
			Objective: report.Objective{TTFT: c.all}, Default: report.Objective{TTFT: c.otherwise},
			Source: func(uint64) trace.Source { return trace.Of(a, b) },
		}.Compare()
		if err != nil || runs[0].All.Met != c.met {
			t.Errorf("objective %v, default %v: %v met, want %v (%v)", c.all, c.otherwise, runs[0].All.Met, c.met, err)
		}
	}
}

// One request each second that takes a tenth of it: ten times the rate is all
// that can be served without a queue.
func TestFindGoodput(t *testing.T) {
	t.Parallel()
	p := plain
	p.MaxSeqs = 1
	one := replay.Trial{
		Objective: report.Objective{TTFT: 110 * ms},
		Source:    func(uint64) trace.Source { return trace.Of(many(400, time.Second, 900, 1)...) },
	}
	v := replay.Variant{Name: "v", Config: replay.Config{Engines: fleet(p), Policy: router.Random, Network: -1, Scrape: -1, Probe: -1}}
	g, err := one.FindGoodput(v, 0.95)
	if err != nil || g.Multiplier < 9.9 || g.Multiplier > 10.2 || g.Met < 0.95 || g.Requests < 9.5 {
		t.Errorf("%+v, %v; want a multiplier of about 10", g, err)
	}
	one.Objective.TTFT = 99 * ms // never
	if g, err := one.FindGoodput(v, 0.95); err != nil || g.Multiplier != 0 {
		t.Errorf("an objective nothing meets: %+v, %v", g, err)
	}
	one.Objective = report.Objective{TTFT: time.Hour} // always
	if g, err := one.FindGoodput(v, 0.95); err != nil || g.Multiplier < 1000 || g.Met != 1 {
		t.Errorf("an objective everything meets: %+v, %v", g, err)
	}
}

// Turns of a conversation share their beginning: who sends them to the same
// engine finds it cached.
func TestPrefixesAreFound(t *testing.T) {
	t.Parallel()
	one := peaceful(router.Random, router.PrefixAffinity)
	hits := map[string]float64{}
	for _, v := range one.Variants {
		for i := range v.Engines {
			v.Engines[i].Params.KVBlocks = 1 << 14
		}
		cached, prompt := 0, 0
		got, _ := run(t, v.Config, one.Source(1))
		for _, o := range got {
			cached, prompt = cached+o.Cached, prompt+o.Request.PromptTokens
		}
		hits[v.Name] = float64(cached) / float64(prompt)
	}
	if hits[router.PrefixAffinity] < hits[router.Random]+0.1 || hits[router.Random] <= 0 {
		t.Errorf("share of the prompt tokens found: %v", hits)
	}
	// Tenants share nothing.
	apart, _ := run(t, one.Variants[0].Config, one.Source(1).Each(func(r *trace.Request) {
		r.Tenant = fmt.Sprint(r.Session, r.Turn)
	}))
	for i, o := range apart {
		if o.Cached > 0 {
			t.Fatalf("request %d finds %d tokens of another tenant", i, o.Cached)
		}
	}
}

// On conversations as they were, those who know what is cached find more of it
// and are quicker by a good part than who counts requests.
func TestPoliciesThatKnowTheCache(t *testing.T) {
	t.Parallel()
	src, err := trace.Open(data(t, "mooncake_conversation_00-30min.jsonl"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	judged := func(policy string) (ttft, hits float64) {
		got, _ := run(t, replay.Config{Engines: h100s(t, 8), Policy: policy}, src.First(500).Each(func(r *trace.Request) { r.Model = "m" }))
		cached, prompt := 0, 0
		for _, o := range got {
			ttft += o.TTFT.Seconds() / float64(len(got))
			cached, prompt = cached+o.Cached, prompt+o.Request.PromptTokens
		}
		return ttft, float64(cached) / float64(prompt)
	}
	baseTTFT, baseHits := judged(router.LeastInFlight)
	for _, policy := range []string{router.TokenLoad, router.LMetric, router.PrefixAffinity} {
		ttft, hits := judged(policy)
		t.Logf("%s: TTFT %.0f ms, %.1f %% cached; least-inflight %.0f ms, %.1f %%", policy, 1e3*ttft, 100*hits, 1e3*baseTTFT, 100*baseHits)
		if ttft > 0.85*baseTTFT || hits < 1.5*baseHits {
			t.Errorf("%s: TTFT %.0f ms, %.1f %% cached; least-inflight %.0f ms, %.1f %%", policy, 1e3*ttft, 100*hits, 1e3*baseTTFT, 100*baseHits)
		}
	}
}
