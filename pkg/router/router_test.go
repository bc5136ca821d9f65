package router_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

func TestClaim(t *testing.T) {
	pool := backends.NewFleet().Pools([]backends.PoolSpec{{Model: "m", Backends: specs(3)}})[0]
	req := &router.Request{Model: "m", PromptTokens: 70, Session: "s"}
	last := router.PolicyFunc(func(now time.Time, got *router.Request, c []backends.Candidate) int {
		if now != t0 || got != req {
			t.Errorf("the policy got %v, %+v", now, got)
		}
		return len(c) - 1
	})
	r := router.New(pool, "last", last)
	if r.Pool() != pool {
		t.Errorf("pool %p, want %p", r.Pool(), pool)
	}
	var tried []*backends.Backend
	for _, want := range []string{"b2", "b1", "b0"} {
		l, err := r.Claim(t0, req, tried)
		if err != nil {
			t.Fatal(err)
		}
		if l.Backend().Name != want || l.Reason() != "last" {
			t.Errorf("got %s by %s, want %s by last", l.Backend().Name, l.Reason(), want)
		}
		if got := l.Backend().Load(t0); got.InFlight != 1 || got.PrefillTokens != 70 {
			t.Errorf("%s counts %+v", want, got)
		}
		tried = append(tried, l.Backend())
	}
	if l, err := r.Claim(t0, req, tried); l != nil || !errors.Is(err, backends.ErrNoBackend) {
		t.Errorf("after all were tried: %v, %v", l, err)
	}
}

// TestProbeReason: the request that decides on a probation is not the policy's.
func TestProbeReason(t *testing.T) {
	r := testRouter(t, router.RoundRobin, specs(2)...)
	ejected := ""
	for ejected == "" {
		l := mustClaim(t, r, t0, &router.Request{})
		class := backends.Served
		if l.Backend().Name == "b1" {
			class = backends.Fault
		}
		if e := l.Done(t0, backends.Outcome{Class: class}); e.Ejected {
			ejected = l.Backend().Name
		}
	}
	if l := mustClaim(t, r, t0.Add(time.Minute), &router.Request{}); l.Backend().Name != "b1" || l.Reason() != "probe" {
		t.Errorf("got %s by %q, want b1 by probe", l.Backend().Name, l.Reason())
	}
}

// TestLeaseEndsOnce: of any number of ends on any goroutines, one counts.
func TestLeaseEndsOnce(t *testing.T) {
	spec := specs(1, func(_ int, s *backends.Spec) {
		s.Health = backends.HealthRules{MinHosts: 1, MaxEjected: 1, Consecutive: 1}
	})
	for range 100 {
		r := testRouter(t, router.LeastInFlight, spec...)
		b := r.Pool().Backends[0]
		other := mustClaim(t, r, t0, &router.Request{PromptTokens: 5})
		l := mustClaim(t, r, t0, &router.Request{PromptTokens: 70})
		var ejected atomic.Int32
		var ends sync.WaitGroup
		for range 4 {
			ends.Go(func() { l.FirstToken(t0.Add(time.Second)) })
			ends.Go(func() {
				if l.Done(t0.Add(time.Second), backends.Outcome{Class: backends.Fault}).Ejected {
					ejected.Add(1)
				}
			})
		}
		ends.Wait()
		if n := ejected.Load(); n != 1 {
			t.Fatalf("%d ends report the ejection", n)
		}
		if got := b.Load(t0.Add(time.Second)); got.InFlight != 1 || got.Prefilling != 1 || got.PrefillTokens != 5 || got.Penalty != 1 {
			t.Fatalf("left with %+v", got)
		}
		other.Done(t0, backends.Outcome{})
	}
}

func TestFirstToken(t *testing.T) {
	r := testRouter(t, router.LeastInFlight, specs(1)...)
	b := r.Pool().Backends[0]
	l := mustClaim(t, r, t0, &router.Request{PromptTokens: 70})
	l.FirstToken(t0.Add(time.Second))
	l.FirstToken(t0.Add(9 * time.Second))
	if got := b.Load(t0.Add(time.Second)); got.InFlight != 1 || got.Prefilling != 0 || got.PrefillTokens != 0 || got.TTFT != time.Second {
		t.Errorf("after the first token: %+v", got)
	}
	l.Done(t0.Add(2*time.Second), backends.Outcome{})
	late := mustClaim(t, r, t0, &router.Request{PromptTokens: 70})
	late.Done(t0.Add(time.Second), backends.Outcome{})
	late.FirstToken(t0.Add(5 * time.Second))
	if got := b.Load(t0.Add(time.Second)); got.InFlight != 0 || got.Prefilling != 0 || got.PrefillTokens != 0 || got.TTFT != time.Second {
		t.Errorf("after a first token that came too late: %+v", got)
	}
}

func TestExpectedTTFT(t *testing.T) {
	r := testRouter(t, router.RoundRobin, specs(3)...)
	if got := r.ExpectedTTFT(t0); got != 0 {
		t.Errorf("%v before any sample", got)
	}
	for _, ttft := range []time.Duration{3 * time.Second, time.Second} { // b2 has none
		l := mustClaim(t, r, t0.Add(-ttft), &router.Request{})
		l.FirstToken(t0)
		l.Done(t0, backends.Outcome{})
	}
	if got := r.ExpectedTTFT(t0); got != time.Second {
		t.Errorf("%v, want that of the fastest", got)
	}
}

// TestClaimsConcurrently: nobody sees an idle backend twice, with every policy
// and while leases end.
func TestClaimsConcurrently(t *testing.T) {
	for _, name := range router.PolicyNames() {
		t.Run(name, func(t *testing.T) {
			r := testRouter(t, name, specs(4)...)
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 200 {
						l, err := r.Claim(t0, &router.Request{PromptTokens: 3}, nil)
						if err != nil {
							t.Error(err)
							return
						}
						l.FirstToken(t0)
						l.Done(t0, backends.Outcome{})
						r.ExpectedTTFT(t0)
					}
				})
			}
			wg.Wait()
			for _, b := range r.Pool().Backends {
				if got := b.Load(t0); got.InFlight != 0 || got.PrefillTokens != 0 {
					t.Errorf("%s is left with %+v", b.Name, got)
				}
			}
		})
	}
	t.Run("even spread", func(t *testing.T) {
		r := testRouter(t, router.LeastInFlight, specs(8)...)
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				if _, err := r.Claim(t0, &router.Request{}, nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, b := range r.Pool().Backends {
			if got := b.Load(t0).InFlight; got != 8 {
				t.Errorf("%s has %d of 64, want 8", b.Name, got)
			}
		}
	})
}
