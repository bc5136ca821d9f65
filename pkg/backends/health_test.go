package backends_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

func wantUnavailable(t *testing.T, err error, saturated bool, retry time.Duration) {
	t.Helper()
	var u *backends.Unavailable
	if !errors.Is(err, backends.ErrNoBackend) || !errors.As(err, &u) {
		t.Fatalf("error %v, want one that wraps ErrNoBackend", err)
	}
	if u.Saturated != saturated || u.RetryAfter != retry || u.Model != "m" {
		t.Errorf("got %+v, want saturated %v, retry after %v", u, saturated, retry)
	}
}

func down(b *backends.Backend, now time.Time) {
	for b.Status(now).Up {
		b.Probe(now, false)
	}
}

// TestOutlier is passive ejection.
func TestOutlier(t *testing.T) {
	t.Run("faults in a row", func(t *testing.T) {
		p := testPool(specs("ab")...)
		for range 4 {
			end(t, p, t0, "a", backends.Fault)
		}
		end(t, p, t0, "a", backends.Served) // breaks the row
		eject(t, p, t0, "a")
		wantState(t, backend(p, "a"), t0, backends.Ejected)
		if got := candidates(t, p, t0); got != "b" {
			t.Errorf("candidates %q", got)
		}
	})
	t.Run("failure rate", func(t *testing.T) {
		p := testPool(specs("ab")...)
		now := t0
		for i := range 20 {
			class := backends.Served
			if i%2 == 1 {
				class = backends.Fault
			}
			now = now.Add(time.Second)
			e := end(t, p, now, "a", class)
			if want := i == 19; e.Ejected != want || want && e.Reason != "failure_rate" {
				t.Fatalf("request %d: %+v", i+1, e)
			}
		}
	})
	t.Run("failures leave the window", func(t *testing.T) {
		for _, age := range []float64{31, 35, 44, 3000} {
			p := testPool(specs("ab", rules(backends.HealthRules{Consecutive: 100}))...)
			for range 19 {
				end(t, p, t0, "a", backends.Fault)
			}
			if e := end(t, p, after(age), "a", backends.Fault); e.Ejected {
				t.Errorf("ejected for failures of %v s ago: %+v", age, e)
			}
		}
	})
	t.Run("failures of before a return", func(t *testing.T) {
		p := testPool(specs("ab", rules(backends.HealthRules{Consecutive: 100}))...)
		for i := range 20 {
			if e := end(t, p, t0, "a", backends.Fault); e.Ejected != (i == 19) {
				t.Fatalf("fault %d: %+v", i+1, e)
			}
		}
		end(t, p, after(10), "a", backends.Served)
		for i := range 20 { // all within the window of half a minute
			if e := end(t, p, after(10), "a", backends.Fault); e.Ejected != (i == 19) {
				t.Fatalf("fault %d after the return: %+v", i+1, e)
			}
		}
	})
	t.Run("ceiling", func(t *testing.T) {
		for _, tt := range []struct {
			names string
			most  float64
			out   int
		}{
			{"ab", 0.5, 1}, {"abc", 0.5, 1}, {"abcd", 0.5, 2}, {"abcde", 0.5, 2}, {"abcdef", 0.1, 1},
			{"abc", 1, 3}, {"abc", -1, 0}, {"abcd", 0.75, 3},
		} {
			p := testPool(specs(tt.names, rules(backends.HealthRules{MaxEjected: tt.most}))...)
			out := 0
			for _, b := range p.Backends {
				ejected := false
				for i := 0; i < 10 && !ejected; i++ {
					ejected = end(t, p, t0, b.Name, backends.Fault).Ejected
				}
				if ejected {
					out++
				}
			}
			if out != tt.out {
				t.Errorf("%d of %q ejected at a ceiling of %v, want %d", out, tt.names, tt.most, tt.out)
			}
		}
	})
	t.Run("ceiling gives way", func(t *testing.T) {
		p := testPool(specs("ab")...)
		eject(t, p, t0, "a")
		for range 7 {
			if end(t, p, t0, "b", backends.Fault).Ejected {
				t.Fatal("both ejected")
			}
		}
		probe := claim(t, p, after(10), "a")
		probe.End(after(10), backends.Outcome{})
		if e := end(t, p, after(10), "b", backends.Fault); !e.Ejected {
			t.Error("b, which fails on, is not ejected although a is back")
		}
	})
	t.Run("minimum hosts", func(t *testing.T) {
		hosts := func(n int) option { return rules(backends.HealthRules{MinHosts: n}) }
		never := func(t *testing.T, p *backends.Pool) {
			for range 50 {
				if e := end(t, p, t0, "a", backends.Fault); e.Ejected {
					t.Fatalf("ejected: %+v", e)
				}
			}
		}
		never(t, testPool(specs("a")...))
		never(t, testPool(specs("abc", hosts(4))...))
		never(t, testPool(spec("a"), spec("b", draining))) // would leave nobody
		p := testPool(specs("ab")...)
		down(backend(p, "b"), t0)
		never(t, p)
		eject(t, testPool(specs("abc", hosts(3))...), t0, "a")
		eject(t, testPool(specs("a", hosts(1))...), t0, "a")
	})
	t.Run("growing back-off", func(t *testing.T) {
		p := testPool(specs("ab", rules(backends.HealthRules{MaxEjection: 25 * time.Second}))...)
		a := backend(p, "a")
		eject(t, p, t0, "a")
		now := t0
		for _, length := range []float64{10, 20, 25, 25} {
			last := now.Add(time.Duration(length*float64(time.Second)) - 1)
			wantState(t, a, last, backends.Ejected)
			now = last.Add(1)
			wantState(t, a, now, backends.Probation)
			if e := claim(t, p, now, "a").End(now, backends.Outcome{Class: backends.Fault}); !e.Ejected || e.Reason != "probation" {
				t.Fatalf("probe failed: %+v", e)
			}
		}
	})
	t.Run("back-off outlives a return and is forgiven", func(t *testing.T) {
		p := testPool(specs("ab", rules(backends.HealthRules{MaxEjection: 60 * time.Second}))...)
		a := backend(p, "a")
		eject(t, p, t0, "a")
		end(t, p, after(10), "a", backends.Served) // the probe
		eject(t, p, after(69), "a")
		wantState(t, a, after(69+19), backends.Ejected)
		end(t, p, after(100), "a", backends.Served)
		eject(t, p, after(160), "a") // a whole minute in rotation
		wantState(t, a, after(160+9), backends.Ejected)
		wantState(t, a, after(160+10), backends.Probation)
	})
	t.Run("requests that were still running", func(t *testing.T) {
		p := testPool(specs("ab")...)
		a := backend(p, "a")
		var running []*backends.Claim
		for range 60 {
			running = append(running, claim(t, p, t0, "a"))
		}
		eject(t, p, after(1), "a")
		penalty := a.Load(after(1)).Penalty
		fail := func(now time.Time, n int) {
			for _, c := range running[:n] {
				if e := c.End(now, backends.Outcome{Class: backends.Fault}); e.Ejected {
					t.Fatalf("ejected again by a request that was still running: %+v", e)
				}
			}
			running = running[n:]
		}
		fail(after(1), 20)
		if got := a.Load(after(1)).Penalty; got != penalty {
			t.Errorf("penalty went from %v to %v", penalty, got)
		}
		wantState(t, a, after(11), backends.Probation) // not extended
		fail(after(11), 20)                            // in probation
		end(t, p, after(11), "a", backends.Served)
		wantState(t, a, after(11), backends.Up)
		fail(after(12), 20) // back in rotation
		wantState(t, a, after(12), backends.Up)
		eject(t, p, after(12), "a") // and it takes as many new failures as ever
	})
	t.Run("one real probe request", func(t *testing.T) {
		p := testPool(specs("abc")...)
		a := backend(p, "a")
		eject(t, p, t0, "a")
		now := after(10)
		if c, err := p.Claim(now, backends.Work{}, []*backends.Backend{backend(p, "b")}, first); err != nil || c.Probe || c.Backend.Name != "c" {
			t.Errorf("a retry got %+v, %v, want c without a probe", c, err)
		}
		probe := claim(t, p, now, "a")
		if !probe.Probe {
			t.Fatal("the first request is no probe")
		}
		for range 10 {
			if c, _ := p.Claim(now, backends.Work{}, nil, first); c.Probe || c.Backend.Same(a) {
				t.Fatal("a second probe went out")
			}
		}
		probe.End(now, backends.Outcome{Class: backends.Dropped, ClientLeft: true}) // says nothing
		wantState(t, a, now, backends.Probation)
		probe = claim(t, p, now, "a")
		if !probe.Probe {
			t.Fatal("no new probe after one that said nothing")
		}
		if e := probe.End(now, backends.Outcome{Class: backends.Overloaded}); !e.Ejected || e.Reason != "probation" {
			t.Errorf("a refused probe: %+v", e)
		}
		wantState(t, a, after(29), backends.Ejected)
		end(t, p, after(30), "a", backends.Served)
		wantState(t, a, after(30), backends.Up)
		if c := claim(t, p, after(30), "a"); c.Probe {
			t.Error("a probe to a backend in rotation")
		}
	})
	t.Run("a first token ends the probation", func(t *testing.T) {
		p := testPool(specs("ab")...)
		a := backend(p, "a")
		eject(t, p, t0, "a")
		probe := claim(t, p, after(10), "a")
		probe.FirstToken(after(11))
		wantState(t, a, after(11), backends.Up)
		if e := probe.End(after(100), backends.Outcome{Class: backends.Fault}); e.Ejected {
			t.Errorf("a fault long after the first token: %+v, want it counted like any other", e)
		}
		wantState(t, a, after(100), backends.Up)
	})
	t.Run("a retry rather fails than goes to one that is out", func(t *testing.T) {
		p := testPool(specs("ab")...)
		eject(t, p, t0, "a")
		_, err := p.Claim(t0, backends.Work{}, []*backends.Backend{backend(p, "b")}, first)
		wantUnavailable(t, err, false, time.Second)
	})
	t.Run("one probe of two models at once", func(t *testing.T) {
		pools := backends.NewFleet().Pools([]backends.PoolSpec{
			{Model: "x", Backends: specs("ab")}, {Model: "y", Backends: specs("ab")},
		})
		now := t0
		for range 50 {
			eject(t, pools[0], now, "a")
			now = now.Add(10 * time.Minute)
			var probes atomic.Int32
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					c, err := pools[i%2].Claim(now, backends.Work{}, nil, first)
					if err != nil {
						t.Error(err)
					} else if c.Probe {
						probes.Add(1)
						defer c.End(now, backends.Outcome{})
					}
				})
			}
			wg.Wait()
			if n := probes.Load(); n != 1 {
				t.Fatalf("%d probes at once", n)
			}
			now = now.Add(10 * time.Minute)
		}
	})
	t.Run("one probe over two models", func(t *testing.T) {
		pools := backends.NewFleet().Pools([]backends.PoolSpec{
			{Model: "x", Backends: specs("ab")}, {Model: "y", Backends: specs("a")},
		})
		eject(t, pools[0], t0, "a")
		if got := candidates(t, pools[1], t0); got != "a" {
			t.Errorf("candidates of the model that has nobody else: %q", got)
		}
		if c := claim(t, pools[1], after(10), "a"); !c.Probe {
			t.Error("no probe")
		}
		if c, err := pools[0].Claim(after(10), backends.Work{}, nil, first); err != nil || c.Backend.Name != "b" {
			t.Errorf("got %+v, %v, want b", c, err)
		}
	})
	t.Run("use all when everyone is out", func(t *testing.T) {
		p := testPool(append(specs("abc", rules(backends.HealthRules{MaxEjected: 1})), spec("d", draining))...)
		eject(t, p, t0, "a")
		eject(t, p, t0, "b")
		if got := candidates(t, p, t0); got != "c" {
			t.Errorf("candidates %q while one is left", got)
		}
		down(backend(p, "c"), t0)
		if got := candidates(t, p, t0); got != "abc" {
			t.Errorf("candidates %q when everyone is out", got)
		}
		before := backend(p, "a").Load(t0).Penalty
		for range 10 {
			if e := end(t, p, t0, "a", backends.Fault); e.Ejected {
				t.Errorf("ejected twice: %+v", e)
			}
		}
		if got := backend(p, "a").Load(t0).Penalty; got != before+10 {
			t.Errorf("penalty %v, want %v: those out are still told apart", got, before+10)
		}
		wantState(t, backend(p, "a"), after(10), backends.Probation)
	})
	t.Run("an open breaker is out as well", func(t *testing.T) {
		p := testPool(spec("a", rules(backends.HealthRules{MaxEjected: 1})),
			spec("b", rules(backends.HealthRules{MaxEjected: -1, BreakerFailures: 1, BreakerOpen: time.Hour})))
		eject(t, p, t0, "a")
		end(t, p, t0, "b", backends.Fault)
		if got := candidates(t, p, t0); got != "a" {
			t.Errorf("candidates %q, want the ejected one rather than nobody", got)
		}
	})
}

// TestProbe is the active side.
func TestProbe(t *testing.T) {
	p := testPool(specs("ab", rules(backends.HealthRules{Unhealthy: 2, Healthy: 3}))...)
	a := backend(p, "a")
	for i, step := range []struct {
		ok, changed bool
		up          bool
	}{
		{false, false, true}, {true, false, true}, {false, false, true}, {false, true, false}, {false, false, false},
		{true, false, false}, {true, false, false}, {false, false, false},
		{true, false, false}, {true, false, false}, {true, true, true}, {true, false, true},
	} {
		if changed := a.Probe(t0, step.ok); changed != step.changed || a.Status(t0).Up != step.up {
			t.Fatalf("step %d: changed %v, up %v, want %+v", i, changed, a.Status(t0).Up, step)
		}
		want := "ab"
		if !step.up {
			want = "b"
		}
		if got := candidates(t, p, t0); got != want {
			t.Fatalf("step %d: candidates %q, want %q", i, got, want)
		}
	}
	t.Run("what failed before the return is void", func(t *testing.T) {
		p := testPool(specs("ab")...)
		a := backend(p, "a")
		var running []*backends.Claim
		for range 10 {
			running = append(running, claim(t, p, t0, "a"))
		}
		down(a, after(1))
		for range 2 {
			a.Probe(after(2), true)
		}
		for _, c := range running {
			if e := c.End(after(3), backends.Outcome{Class: backends.Fault}); e.Ejected {
				t.Fatal("ejected for failures of an earlier life")
			}
		}
	})
	t.Run("an ejected engine that was gone is tried when it is back", func(t *testing.T) {
		p := testPool(specs("ab")...)
		a := backend(p, "a")
		eject(t, p, t0, "a")
		down(a, after(1))
		wantState(t, a, after(1), backends.Down)
		for range 2 {
			a.Probe(after(2), true)
		}
		wantState(t, a, after(2), backends.Probation)
		end(t, p, after(2), "a", backends.Served)
		wantState(t, a, after(2), backends.Up)
	})
	t.Run("good probes alone end no ejection", func(t *testing.T) {
		p := testPool(specs("ab")...)
		a := backend(p, "a")
		eject(t, p, t0, "a")
		for range 5 {
			a.Probe(after(2), true)
		}
		wantState(t, a, after(2), backends.Ejected)
	})
}

// TestSlowStart: whoever comes back starts with a tenth of its weight.
func TestSlowStart(t *testing.T) {
	weight := func(t *testing.T, p *backends.Pool, now time.Time) (w float64) {
		t.Helper()
		c, err := p.Claim(now, backends.Work{}, []*backends.Backend{stranger}, func(c []backends.Candidate) int {
			i := named(t, "a")(c)
			w = c[i].Weight
			return i
		})
		if err != nil {
			t.Fatal(err)
		}
		c.End(now, backends.Outcome{Class: backends.Dropped})
		return w
	}
	heavy := func(slow time.Duration) []backends.Spec {
		s := specs("ab", rules(backends.HealthRules{SlowStart: slow}))
		s[0].Weight = 4
		return s
	}
	returns := map[string]func(*testing.T, *backends.Pool){
		"from ejection": func(t *testing.T, p *backends.Pool) {
			eject(t, p, after(-10), "a")
			end(t, p, t0, "a", backends.Served)
		},
		"from down": func(_ *testing.T, p *backends.Pool) {
			down(backend(p, "a"), after(-10))
			for range 2 {
				backend(p, "a").Probe(t0, true)
			}
		},
	}
	for name, comeBack := range returns {
		t.Run(name, func(t *testing.T) {
			p := testPool(heavy(30 * time.Second)...)
			if got := weight(t, p, after(-20)); got != 4 {
				t.Errorf("weight %v before, want 4: who never left needs no ramp", got)
			}
			comeBack(t, p)
			for _, tt := range []struct{ seconds, want float64 }{{-1, .4}, {0, .4}, {3, .4}, {6, .8}, {15, 2}, {30, 4}, {1000, 4}} {
				if got := weight(t, p, after(tt.seconds)); got != tt.want {
					t.Errorf("weight %v after %v s, want %v", got, tt.seconds, tt.want)
				}
			}
		})
		t.Run(name+" without", func(t *testing.T) {
			p := testPool(heavy(0)...)
			comeBack(t, p)
			if got := weight(t, p, t0); got != 4 {
				t.Errorf("weight %v, want 4", got)
			}
		})
	}
}

// TestAttribution: what is not the backend's fault never takes it out.
func TestAttribution(t *testing.T) {
	for name, o := range map[string]backends.Outcome{
		"4xx":                    {Class: backends.Served},
		"499":                    {Class: backends.Dropped, ClientLeft: true},
		"ended by the gateway":   {Class: backends.Dropped},
		"429":                    {Class: backends.Overloaded},
		"429, and a client left": {Class: backends.Overloaded, ClientLeft: true},
	} {
		for _, token := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				p := testPool(specs("ab", rules(backends.HealthRules{BreakerFailures: 3}))...)
				a := backend(p, "a")
				now := t0
				for range 500 {
					now = now.Add(10 * time.Millisecond)
					c := claim(t, p, now, "a")
					if token {
						c.FirstToken(now)
					}
					if e := c.End(now, o); e.Ejected {
						t.Fatalf("ejected: %+v", e)
					}
				}
				if s := a.Status(now); s.State != backends.Up || s.Breaker != "closed" {
					t.Errorf("state %s, breaker %s", s.State, s.Breaker)
				}
			})
		}
	}
	t.Run("between faults", func(t *testing.T) {
		p := testPool(specs("ab")...)
		for i := range 5 {
			end(t, p, t0, "a", backends.Dropped)
			end(t, p, t0, "a", backends.Overloaded)
			if e := end(t, p, t0, "a", backends.Fault); e.Ejected != (i == 4) {
				t.Fatalf("fault %d: %+v", i+1, e)
			}
		}
	})
}

func TestDraining(t *testing.T) {
	p := testPool(spec("a", draining), spec("b"))
	if got := candidates(t, p, t0); got != "b" {
		t.Errorf("candidates %q", got)
	}
	down(backend(p, "b"), t0)
	if got := candidates(t, p, t0); got != "b" {
		t.Errorf("candidates %q when the rest is down", got)
	}
	alone := testPool(spec("a", draining))
	_, err := alone.Claim(t0, backends.Work{}, nil, first)
	wantUnavailable(t, err, false, time.Second)
	_, err = testPool().Claim(t0, backends.Work{}, nil, first)
	wantUnavailable(t, err, false, time.Second)
	wantState(t, alone.Backends[0], t0, backends.Draining)
}
