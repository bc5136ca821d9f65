package backends_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

func pools(f *backends.Fleet, models map[string][]backends.Spec) map[string]*backends.Pool {
	var ps []backends.PoolSpec
	for model, specs := range models {
		ps = append(ps, backends.PoolSpec{Model: model, Backends: specs})
	}
	out := map[string]*backends.Pool{}
	for _, p := range f.Pools(ps) {
		out[p.Model] = p
	}
	return out
}

// TestRevisions: counters, health and signals belong to the engine, not to
// the revision that named it.
func TestRevisions(t *testing.T) {
	f := backends.NewFleet()
	old := pools(f, map[string][]backends.Spec{"m": specs("abc")})["m"]
	running := claim(t, old, t0, "a")
	eject(t, old, t0, "b")
	end(t, old, t0, "c", backends.Overloaded)
	s := backends.UnknownSignals()
	s.Running, s.At = 7, t0
	backend(old, "c").SetSignals(s)
	for range 4 {
		end(t, old, t0, "c", backends.Fault)
	}

	next := pools(f, map[string][]backends.Spec{"m": append(specs("cb"), spec("a", capped(1)))})["m"]
	a, b, c := backend(next, "a"), backend(next, "b"), backend(next, "c")
	if !a.Same(backend(old, "a")) || a.Same(b) {
		t.Error("engines are not told apart")
	}
	if got := a.Load(t0).InFlight; got != 1 {
		t.Errorf("in flight %d, want 1", got)
	}
	if got := candidates(t, next, t0); got != "c" {
		t.Errorf("candidates %q, want c: a is at its new cap, b is ejected", got)
	}
	if got := c.Signals(); got.Running != 7 {
		t.Errorf("running %v, want 7", got.Running)
	}
	if got := c.Load(t0).Penalty; got != 5 {
		t.Errorf("penalty %v, want 5", got)
	}
	if e := end(t, next, t0, "c", backends.Fault); e.Ejected {
		t.Error("c ejected past the ceiling")
	}
	running.End(t0, backends.Outcome{}) // on the revision it began with
	if got := a.Load(t0).InFlight; got != 0 {
		t.Errorf("in flight %d after the end, want 0", got)
	}
}

// TestWindowOutlivesRevisions: the failure rate is counted over a reload.
func TestWindowOutlivesRevisions(t *testing.T) {
	f := backends.NewFleet()
	rate := rules(backends.HealthRules{Consecutive: 1000})
	for i := range 20 {
		p := pools(f, map[string][]backends.Spec{"m": specs("ab", rate)})["m"]
		if e := end(t, p, t0, "a", backends.Fault); e.Ejected != (i == 19) {
			t.Fatalf("fault %d: %+v", i+1, e)
		}
	}
}

// TestTwoWindows: models may judge one engine over different times.
func TestTwoWindows(t *testing.T) {
	ps := pools(backends.NewFleet(), map[string][]backends.Spec{
		"x": specs("ab", rules(backends.HealthRules{Consecutive: 1000, Window: time.Minute})),
		"y": specs("ab", rules(backends.HealthRules{Consecutive: 1000, Window: time.Second})),
	})
	for i := range 20 {
		if e := end(t, ps["y"], t0, "a", backends.Served); e.Ejected {
			t.Fatalf("%+v", e)
		}
		if e := end(t, ps["x"], t0, "a", backends.Fault); e.Ejected != (i == 19) {
			t.Fatalf("fault %d: %+v", i+1, e)
		}
	}
}

func TestRemovedEnginesAreForgotten(t *testing.T) {
	f := backends.NewFleet()
	with, without := map[string][]backends.Spec{"m": specs("ab")}, map[string][]backends.Spec{"m": specs("b")}
	old := pools(f, with)["m"]
	running := claim(t, old, t0, "a")
	end(t, old, t0, "a", backends.Fault)
	pools(f, without)
	again := pools(f, with)["m"]
	if l := backend(again, "a").Load(t0); l != (backends.Load{}) {
		t.Errorf("a came back with %+v", l)
	}
	if backend(again, "a").Same(backend(old, "a")) || !backend(again, "b").Same(backend(old, "b")) {
		t.Error("what stayed and what went are mixed up")
	}
	running.End(t0, backends.Outcome{})
	if l := backend(again, "a").Load(t0); l.InFlight != 0 {
		t.Errorf("in flight %d: the old request ended on the new state", l.InFlight)
	}

	gone := weak.Make(backend(old, "a"))
	pools(f, without)
	claim(t, again, t0, "b").End(t0, backends.Outcome{})
	runtime.GC()
	if gone.Value() != nil {
		t.Error("the engine that went is still referred to")
	}
}

// TestBreakerOutlivesRevisions, also when two models give one engine
// different rules.
func TestBreakerOutlivesRevisions(t *testing.T) {
	breaker := func(failures int, open time.Duration) option {
		return rules(backends.HealthRules{BreakerFailures: failures, BreakerOpen: open})
	}
	trip := func(t *testing.T, p *backends.Pool, failures int) {
		t.Helper()
		for range failures {
			end(t, p, time.Now(), "a", backends.Fault)
		}
	}
	want := func(t *testing.T, ps map[string]*backends.Pool, states map[string]string) {
		t.Helper()
		for model, want := range states {
			if got := ps[model].Backends[0].Status(time.Now()).Breaker; got != want {
				t.Errorf("model %s: breaker %s, want %s", model, got, want)
			}
		}
	}
	run := func(name string, test func(*testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
	run("different rules", func(t *testing.T) {
		f := backends.NewFleet()
		models := map[string][]backends.Spec{
			"x": specs("a", breaker(3, time.Minute)), "y": specs("a", breaker(5, time.Second)), "z": specs("a"),
		}
		ps := pools(f, models)
		trip(t, ps["x"], 3)
		trip(t, ps["y"], 4)
		for range 3 {
			ps = pools(f, models)
			want(t, ps, map[string]string{"x": "open", "y": "closed", "z": "closed"})
		}
		trip(t, ps["y"], 1)
		want(t, ps, map[string]string{"x": "open", "y": "open", "z": "closed"})
	})
	run("same rules", func(t *testing.T) {
		f := backends.NewFleet()
		models := map[string][]backends.Spec{"x": specs("a", breaker(3, time.Minute)), "y": specs("a", breaker(3, time.Minute))}
		ps := pools(f, models)
		trip(t, ps["x"], 2)
		ps = pools(f, models)
		trip(t, ps["y"], 1)
		want(t, ps, map[string]string{"x": "open", "y": "open"})
		delete(models, "x")
		want(t, pools(f, models), map[string]string{"y": "open"})
	})
	run("changed rules", func(t *testing.T) {
		f := backends.NewFleet()
		ps := pools(f, map[string][]backends.Spec{"x": specs("a", breaker(3, time.Minute))})
		trip(t, ps["x"], 3)
		ps = pools(f, map[string][]backends.Spec{"x": specs("a", breaker(4, time.Minute))})
		want(t, ps, map[string]string{"x": "closed"})
		trip(t, ps["x"], 4)
		want(t, ps, map[string]string{"x": "open"})
	})
	run("a probe that began on an older revision", func(t *testing.T) {
		f := backends.NewFleet()
		models := map[string][]backends.Spec{"x": specs("a", breaker(3, time.Minute))}
		ps := pools(f, models)
		trip(t, ps["x"], 3)
		time.Sleep(time.Minute + 1)
		probe := claim(t, ps["x"], time.Now(), "a")
		ps = pools(f, models)
		probe.End(time.Now(), backends.Outcome{})
		want(t, ps, map[string]string{"x": "closed"})
	})
}
