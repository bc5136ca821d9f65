package backends_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// TestBreaker runs in virtual time, since the breaker's library reads the clock.
func TestBreaker(t *testing.T) {
	const open = 5 * time.Second
	breaking := rules(backends.HealthRules{BreakerFailures: 3, BreakerOpen: open})
	trip := func(t *testing.T, p *backends.Pool) {
		t.Helper()
		for range 3 {
			end(t, p, time.Now(), "a", backends.Fault)
		}
		_, err := p.Claim(time.Now(), backends.Work{}, nil, first)
		wantUnavailable(t, err, false, open)
		if got := p.Backends[0].Status(time.Now()).Breaker; got != "open" {
			t.Fatalf("breaker %s, want open", got)
		}
	}
	halfOpen := func(t *testing.T, p *backends.Pool) *backends.Claim {
		t.Helper()
		time.Sleep(open + 1)
		if got := p.Backends[0].Status(time.Now()).Breaker; got != "half-open" {
			t.Fatalf("breaker %s, want half-open", got)
		}
		c := claim(t, p, time.Now(), "a")
		for range 3 {
			if _, err := p.Claim(time.Now(), backends.Work{}, nil, first); err == nil {
				t.Fatal("a second request passed the half-open breaker")
			}
		}
		return c
	}
	cases := map[string]func(*testing.T, *backends.Pool){
		"opens after faults in a row": func(t *testing.T, p *backends.Pool) {
			for range 2 {
				end(t, p, time.Now(), "a", backends.Fault)
			}
			end(t, p, time.Now(), "a", backends.Served)
			trip(t, p)
			time.Sleep(open)
			if _, err := p.Claim(time.Now(), backends.Work{}, nil, first); err == nil {
				t.Error("passed before its time")
			}
		},
		"a good probe closes it": func(t *testing.T, p *backends.Pool) {
			trip(t, p)
			halfOpen(t, p).End(time.Now(), backends.Outcome{})
			claim(t, p, time.Now(), "a")
			claim(t, p, time.Now(), "a")
		},
		"a bad probe opens it again": func(t *testing.T, p *backends.Pool) {
			trip(t, p)
			halfOpen(t, p).End(time.Now(), backends.Outcome{Class: backends.Fault})
			_, err := p.Claim(time.Now(), backends.Work{}, nil, first)
			wantUnavailable(t, err, false, open)
			halfOpen(t, p)
		},
		"a probe that says nothing is repeated": func(t *testing.T, p *backends.Pool) {
			trip(t, p)
			c := halfOpen(t, p)
			for _, class := range []backends.Class{backends.Dropped, backends.Overloaded} {
				c.End(time.Now(), backends.Outcome{Class: class})
				c = claim(t, p, time.Now(), "a")
				if _, err := p.Claim(time.Now(), backends.Work{}, nil, first); err == nil {
					t.Fatal("two probes at once")
				}
			}
			c.End(time.Now(), backends.Outcome{})
			if got := p.Backends[0].Status(time.Now()).Breaker; got != "closed" {
				t.Errorf("breaker %s, want closed", got)
			}
		},
		"what is nobody's fault neither opens nor resets": func(t *testing.T, p *backends.Pool) {
			for range 2 {
				end(t, p, time.Now(), "a", backends.Fault)
				for range 5 {
					end(t, p, time.Now(), "a", backends.Dropped)
					end(t, p, time.Now(), "a", backends.Overloaded)
				}
			}
			end(t, p, time.Now(), "a", backends.Fault)
			if got := p.Backends[0].Status(time.Now()).Breaker; got != "open" {
				t.Errorf("breaker %s after three faults, want open", got)
			}
		},
		"requests that were still running do not count": func(t *testing.T, p *backends.Pool) {
			var running []*backends.Claim
			for range 5 {
				running = append(running, claim(t, p, time.Now(), "a"))
			}
			trip(t, p)
			probe := halfOpen(t, p)
			for _, c := range running {
				c.End(time.Now(), backends.Outcome{Class: backends.Fault})
			}
			probe.End(time.Now(), backends.Outcome{})
			if got := p.Backends[0].Status(time.Now()).Breaker; got != "closed" {
				t.Errorf("breaker %s, want closed", got)
			}
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, testPool(spec("a", breaking))) })
		})
	}
	t.Run("the soonest to close says when to come back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			opens := func(d time.Duration) option {
				return rules(backends.HealthRules{MaxEjected: -1, BreakerFailures: 1, BreakerOpen: d})
			}
			p := testPool(spec("a", opens(9*time.Second)), spec("b", opens(4*time.Second)), spec("c", opens(6*time.Second)))
			for _, b := range p.Backends {
				end(t, p, time.Now(), b.Name, backends.Fault)
			}
			_, err := p.Claim(time.Now(), backends.Work{}, nil, first)
			wantUnavailable(t, err, false, 4*time.Second)
		})
	})
	t.Run("off", func(t *testing.T) {
		p := testPool(spec("a"))
		for range 100 {
			end(t, p, t0, "a", backends.Fault)
		}
		if got := p.Backends[0].Status(t0).Breaker; got != "closed" {
			t.Errorf("breaker %s without one", got)
		}
	})
	t.Run("a probation waits for it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := testPool(specs("ab", rules(backends.HealthRules{Ejection: time.Second, BreakerFailures: 5, BreakerOpen: open}))...)
			eject(t, p, time.Now(), "a")
			time.Sleep(2 * time.Second)
			wantState(t, backend(p, "a"), time.Now(), backends.Probation)
			if c := claim(t, p, time.Now(), "b"); c.Probe {
				t.Error("a probe through an open breaker")
			}
			time.Sleep(open)
			if c := claim(t, p, time.Now(), "a"); !c.Probe {
				t.Error("no probe once the breaker is half-open")
			}
		})
	})
}
