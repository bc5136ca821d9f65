package predictor_test

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

func names(list ...string) map[string]bool {
	out := map[string]bool{}
	for _, name := range list {
		out[name] = true
	}
	return out
}

// TestFleetKeeps: what was learned of engines and models that are still named
// outlives a change of configuration.
func TestFleetKeeps(t *testing.T) {
	w := &watcher{}
	fleet := predictor.NewFleet(w)
	a, b := fleet.Instance("http://a", &plain), fleet.Instance("http://b", nil)
	m, n := fleet.Pool("m", predictor.Rules{}), fleet.Pool("n", predictor.Rules{})
	if a == b || m == n {
		t.Fatal("two of them are one")
	}
	fleet.Keep(names("http://a", "http://c"), names("m"))
	if fleet.Instance("http://a", nil) != a {
		t.Error("a named instance was forgotten")
	}
	if fleet.Instance("http://b", nil) == b {
		t.Error("an instance that is not named was kept")
	}
	if fleet.Pool("m", predictor.Rules{}) != m {
		t.Error("a named pool was forgotten")
	}
	if fleet.Pool("n", predictor.Rules{}) == n {
		t.Error("a pool that is not named was kept")
	}
	attempt := m.Begin(t0, a, prompt(100))
	attempt.Token(after(1))
	if len(w.samples) != 1 {
		t.Errorf("%d samples told to the fleet's watcher", len(w.samples))
	}
}

// TestFleetPrior: a new instance begins with its profile, or with an engine as
// most are; the profile of a known one changes nothing.
func TestFleetPrior(t *testing.T) {
	fleet := predictor.NewFleet(nil)
	pool := fleet.Pool("m", predictor.Rules{})
	base := func(url string, prior *predictor.Speed) float64 {
		a := pool.Begin(t0, fleet.Instance(url, prior), prompt(1000))
		a.Done(t0, predictor.Failed)
		return a.Sample().Features[predictor.Base]
	}
	if got := base("known", &plain); !near(got, 0.01+0.1+1, 0.001) {
		t.Errorf("base %v, want the profile's", got)
	}
	if got := base("unknown", nil); !near(got, 0.004+0.010+1000*40e-6, 0.001) {
		t.Errorf("base %v, want that of an engine as most are", got)
	}
	if got := base("known", nil); !near(got, 0.01+0.1+1, 0.001) {
		t.Errorf("base %v after a look without a profile", got)
	}
}

// TestFleetRules: a revision brings its rules to a pool that goes on.
func TestFleetRules(t *testing.T) {
	fleet := predictor.NewFleet(nil)
	pool, on := fleet.Pool("m", predictor.Rules{LowRate: 1e-9}), fleet.Instance("a", &plain)
	pool.SetModel(&oracle{p95: 0.1})
	now := 0.0
	burst := func() predictor.Kind {
		for range 20 {
			for range 2 {
				a := pool.Begin(after(now), on, prompt(100))
				a.Token(after(now + 0.21))
				a.Done(after(now+0.21), predictor.Completed)
			}
			now += 2
		}
		return pool.Report(after(now)).Serving
	}
	fleet.Pool("m", predictor.Rules{VolatileCV: 100, MaxMAPE: 100})
	if got := burst(); got != linear {
		t.Fatalf("%v serves by rules that allow it all", got)
	}
	fleet.Pool("m", predictor.Rules{VolatileCV: 0.5, MaxMAPE: 100, Dwell: time.Second})
	if got := burst(); got != trees {
		t.Errorf("%v serves by the new rules", got)
	}
}

// TestFleetForgets: nothing of an engine that is not named any more stays in
// memory, whatever the pools learned of it.
func TestFleetForgets(t *testing.T) {
	fleet := predictor.NewFleet(nil)
	pool := fleet.Pool("m", predictor.Rules{})
	gone := func() weak.Pointer[predictor.Instance] {
		i := fleet.Instance("http://a", nil)
		for k := 0.0; k < 40; k++ {
			a := pool.Begin(after(k), i, prompt(100))
			a.Token(after(k + 0.5))
			a.Done(after(k+0.6), predictor.Completed)
		}
		return weak.Make(i)
	}()
	fleet.Keep(nil, names("m"))
	for range 3 {
		runtime.GC()
	}
	if gone.Value() != nil {
		t.Error("the instance is still in memory")
	}
	runtime.KeepAlive(pool)
	runtime.KeepAlive(fleet)
}
