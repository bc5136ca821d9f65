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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.txt")

// trial is every policy on four engines of two speeds, two of which break down,
// under chats of several turns.
func trial() replay.Trial {
	engines := fleet(plain, slow(), plain, slow())
	for i := range engines {
		p := &engines[i].Params
		p.Noise, p.KVBlocks, p.Step.Alpha = 0.1, 1200, 3*p.Step.Alpha
	}
	return replay.Trial{
		Config: replay.Config{
			Engines: engines, Gateways: 2,
			Faults: []replay.Fault{
				{At: 5 * time.Second, Engine: 1, Kind: replay.Crash}, {At: 15 * time.Second, Engine: 1, Kind: replay.Restart},
				{At: 20 * time.Second, Engine: 2, Kind: replay.Crash},
			},
		},
		Policies: router.PolicyNames(),
		Objective: report.Objective{
			TTFT: 200 * ms, TTFTPerToken: 500 * time.Microsecond, TPOT: 60 * ms,
		},
		Source: func(seed uint64) trace.Source {
			w := trace.CustomerService()
			w.Rate = 3
			return w.Source(seed).First(200).Each(func(r *trace.Request) { r.Model = "m" })
		},
	}
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
	one := trial()
	one.Seeds, one.Policies = 2, []string{router.P2C, router.Random, router.PrefixAffinity}
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

// What is drawn depends on the seed: the trace, the engines' noise, the policies' draws.
func TestOtherSeedsOtherOutcomes(t *testing.T) {
	t.Parallel()
	base := trial()
	base.Config.Faults = nil
	for _, c := range []struct {
		name   string
		change func(*replay.Trial)
		differ bool
	}{
		{"trace", func(t *replay.Trial) { t.Policies = []string{router.RoundRobin}; quiet(t) }, true},
		{"noise", func(t *replay.Trial) { t.Policies = []string{router.RoundRobin}; still(t) }, true},
		{"draws", func(t *replay.Trial) { t.Policies = []string{router.Random}; quiet(t); still(t) }, true},
		{"none", func(t *replay.Trial) { t.Policies = []string{router.RoundRobin}; quiet(t); still(t) }, false},
	} {
		one := base
		one.Config.Engines = append([]replay.Engine(nil), base.Config.Engines...)
		c.change(&one)
		figures := map[float64]bool{}
		for seed := range uint64(3) {
			other, source := one, one.Source
			other.Source = func(s uint64) trace.Source { return source(s + seed) }
			other.Config.Engines = append([]replay.Engine(nil), one.Config.Engines...)
			for i := range other.Config.Engines {
				other.Config.Engines[i].Seed += seed
			}
			if c.name == "draws" {
				figures[meanOf(t, one, seed+1)] = true
				continue
			}
			runs, _, _, err := other.Compare()
			if err != nil {
				t.Fatal(err)
			}
			figures[runs[0].All.TTFT.Mean] = true
		}
		if (len(figures) == 3) != c.differ || !c.differ && len(figures) != 1 {
			t.Errorf("%s: three seeds give the means %v", c.name, figures)
		}
	}
}

// quiet switches the noise off, still fixes the trace.
func quiet(t *replay.Trial) {
	for i := range t.Config.Engines {
		t.Config.Engines[i].Params.Noise = 0
	}
}

func still(t *replay.Trial) {
	source := t.Source
	t.Source = func(uint64) trace.Source { return source(1) }
}

// meanOf is the mean TTFT of the trial's first policy under a seed of the draws.
func meanOf(t *testing.T, trial replay.Trial, seed uint64) (mean float64) {
	t.Helper()
	c := trial.Config
	c.Policy, c.Seed = trial.Policies[0], seed
	got, _ := run(t, c, trial.Source(1))
	for _, o := range got {
		mean += o.TTFT.Seconds() / float64(len(got))
	}
	return mean
}

// A change of behaviour shows here. If it is meant: go test -run Golden -update
func TestGolden(t *testing.T) {
	t.Parallel()
	src, err := trace.Open(filepath.Join("testdata", "chats.jsonl"), trace.Options{Seed: 1}) // made up for this
	if err != nil {
		t.Fatal(err)
	}
	chats := trial()
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
	three := trial()
	three.Config.Faults, three.Config.Gateways = nil, 1
	three.Policies, three.Seeds = []string{router.RoundRobin, router.LeastInFlight}, 4
	var told []string
	three.Progress = func(policy string, seed int) { told = append(told, fmt.Sprint(policy, seed)) }
	runs, differences, partial, err := three.Compare()
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
	// A recording on engines without noise under a policy without draws: no difference.
	same := three
	quiet(&same)
	same.Policies = []string{router.RoundRobin, router.RoundRobin}
	if _, differences, _, _ = same.Compare(); len(differences) != 5 {
		t.Fatalf("%d differences", len(differences))
	}
	for _, d := range differences {
		if d.Ratio != 1 || d.Sure() {
			t.Errorf("a policy differs from itself: %+v", d)
		}
	}
}

func TestComparisonThatIsStopped(t *testing.T) {
	t.Parallel()
	two := trial()
	two.Policies = two.Policies[:2]
	runs := 0
	two.Progress = func(string, int) { runs++ }
	two.Config.Stop = func() bool { return runs == 2 }
	got, _, partial, err := two.Compare()
	if err != nil || !partial || len(got) != 2 || got[0].All.Requests != 200 || got[1].All.Requests != 0 {
		t.Errorf("partial %v, %d runs, error %v", partial, len(got), err)
	}
	if _, err := two.FindGoodput(router.Random, 0.95); !errors.Is(err, replay.ErrStopped) {
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
			Config: replay.Config{Engines: fleet(plain)}, Policies: []string{router.Random},
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
		Config:    replay.Config{Engines: fleet(p), Network: -1, Scrape: -1, Probe: -1},
		Objective: report.Objective{TTFT: 110 * ms},
		Source:    func(uint64) trace.Source { return trace.Of(many(400, time.Second, 900, 1)...) },
	}
	g, err := one.FindGoodput(router.Random, 0.95)
	if err != nil || g.Multiplier < 9.9 || g.Multiplier > 10.2 || g.Met < 0.95 || g.Requests < 9.5 {
		t.Errorf("%+v, %v; want a multiplier of about 10", g, err)
	}
	one.Objective.TTFT = 99 * ms // never
	if g, err := one.FindGoodput(router.Random, 0.95); err != nil || g.Multiplier != 0 {
		t.Errorf("an objective nothing meets: %+v, %v", g, err)
	}
	one.Objective = report.Objective{TTFT: time.Hour} // always
	if g, err := one.FindGoodput(router.Random, 0.95); err != nil || g.Multiplier < 1000 || g.Met != 1 {
		t.Errorf("an objective everything meets: %+v, %v", g, err)
	}
}

// Turns of a conversation share their beginning: who sends them to the same
// engine finds it cached.
func TestPrefixesAreFound(t *testing.T) {
	t.Parallel()
	one := trial()
	one.Config.Faults, one.Config.Gateways = nil, 1
	for i := range one.Config.Engines {
		one.Config.Engines[i].Params.KVBlocks = 1 << 14
	}
	hits := map[string]float64{}
	for _, policy := range []string{router.Random, router.PrefixAffinity} {
		c := one.Config
		c.Policy = policy
		cached, prompt := 0, 0
		got, _ := run(t, c, one.Source(1))
		for _, o := range got {
			cached, prompt = cached+o.Cached, prompt+o.Request.PromptTokens
		}
		hits[policy] = float64(cached) / float64(prompt)
	}
	if hits[router.PrefixAffinity] < hits[router.Random]+0.1 || hits[router.Random] <= 0 {
		t.Errorf("share of the prompt tokens found: %v", hits)
	}
	// Tenants share nothing.
	apart, _ := run(t, one.Config, one.Source(1).First(200).Each(func(r *trace.Request) {
		r.Tenant = fmt.Sprint(r.Session, r.Turn)
	}))
	for i, o := range apart {
		if o.Cached > 0 {
			t.Fatalf("request %d finds %d tokens of another tenant", i, o.Cached)
		}
	}
}
