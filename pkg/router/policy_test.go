package router_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// loads are candidates of equal weight with these requests in flight.
func loads(inFlight ...int) []backends.Candidate {
	var out []backends.Candidate
	for i, n := range inFlight {
		out = append(out, backends.Candidate{Index: i, Weight: 1, Load: backends.Load{InFlight: n}})
	}
	return out
}

func weights(ws ...float64) []backends.Candidate {
	out := loads(make([]int, len(ws))...)
	for i := range out {
		out[i].Weight = ws[i]
	}
	return out
}

// randomCandidates differ in everything that a policy looks at.
func randomCandidates(rng *rand.Rand, n int) []backends.Candidate {
	out := loads(make([]int, n)...)
	for i := range out {
		out[i].Weight = 0.1 + 5*rng.Float64()
		out[i].Load = backends.Load{
			InFlight: rng.IntN(50), Held: rng.IntN(3), Penalty: float64(rng.IntN(4)) * rng.Float64(),
			TTFT: time.Duration(rng.IntN(3000)) * time.Millisecond,
		}
	}
	return out
}

// draws counts what a policy picks out of the same candidates.
func draws(p router.Policy, c []backends.Candidate, n int) []float64 {
	counts := make([]float64, len(c))
	for range n {
		counts[p.Pick(t0, &router.Request{}, c)]++
	}
	return counts
}

func TestNewPolicy(t *testing.T) {
	names := router.PolicyNames()
	if names[0] != router.LeastInFlight {
		t.Errorf("default %q", names[0])
	}
	for _, name := range names {
		testPolicy(t, name, 1)
	}
	_, err := router.NewPolicy("fastest", rand.NewPCG(1, 1))
	if err == nil || !strings.Contains(err.Error(), "fastest") || !strings.Contains(err.Error(), router.P2C) {
		t.Errorf("error %v does not name what is wrong and what is right", err)
	}
}

// TestPolicyLaws holds for every policy: an index of the list, whatever it
// holds; the same source gives the same choices; the candidates stay as they are.
func TestPolicyLaws(t *testing.T) {
	for _, name := range router.PolicyNames() {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, 7))
			p, twin := testPolicy(t, name, 3), testPolicy(t, name, 3)
			for range 2000 {
				c := randomCandidates(rng, 1+rng.IntN(12))
				if len(c) > 1 && rng.IntN(2) == 0 { // somebody was tried
					i := rng.IntN(len(c))
					c = append(c[:i], c[i+1:]...)
				}
				before := slices.Clone(c)
				i := p.Pick(t0, &router.Request{}, c)
				if i < 0 || i >= len(c) {
					t.Fatalf("picked %d of %d", i, len(c))
				}
				if again := twin.Pick(t0, &router.Request{}, c); again != i {
					t.Fatalf("picked %d and, from the same source, %d", i, again)
				}
				if !slices.Equal(before, c) {
					t.Fatal("candidates changed")
				}
			}
		})
	}
}

// TestLowestCost: the policies that weigh everyone take the same candidate in
// whatever order they stand, and the cheapest one by their rule.
func TestLowestCost(t *testing.T) {
	for name, cost := range map[string]func(c *backends.Candidate) float64{
		router.LeastInFlight: func(c *backends.Candidate) float64 { return (c.Load.Pending() + 1) / c.Weight },
		router.PeakEWMA: func(c *backends.Candidate) float64 {
			ttft := max(c.Load.TTFT.Seconds(), 0.05) + 5*c.Load.Penalty
			return ttft * float64(c.Load.InFlight+c.Load.Held+1) / c.Weight
		},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(11, 0))
			p := testPolicy(t, name, 1)
			for range 500 {
				c := randomCandidates(rng, 2+rng.IntN(8))
				want := slices.MinFunc(c, func(a, b backends.Candidate) int {
					if cost(&a) < cost(&b) {
						return -1
					}
					return 1
				}).Index
				rng.Shuffle(len(c), func(i, j int) { c[i], c[j] = c[j], c[i] })
				if got := c[p.Pick(t0, &router.Request{}, c)].Index; got != want {
					t.Fatalf("picked %d, want %d of %+v", got, want, c)
				}
			}
		})
	}
}

func TestLeastInFlight(t *testing.T) {
	for _, tt := range []struct {
		inFlight []int
		want     []int // may be picked, and each is
	}{
		{[]int{5}, []int{0}},
		{[]int{1, 2, 3, 4}, []int{0}},
		{[]int{4, 3, 2, 1}, []int{3}},
		{[]int{3, 2, 0, 4}, []int{2}},
		{[]int{0, 1, 0, 1}, []int{0, 2}},
		{[]int{2, 2, 2}, []int{0, 1, 2}},
		{[]int{0, 0, 0, 0}, []int{0, 1, 2, 3}},
	} {
		counts := draws(testPolicy(t, router.LeastInFlight, 1), loads(tt.inFlight...), 1000)
		for i, n := range counts {
			fair := 1000. / float64(len(tt.want))
			if slices.Contains(tt.want, i) && math.Abs(n-fair) > fair/4 || !slices.Contains(tt.want, i) && n > 0 {
				t.Errorf("%v: picks %v, want each of %v as often as the others", tt.inFlight, counts, tt.want)
				break
			}
		}
	}
	t.Run("held prefill and failures count", func(t *testing.T) {
		c := loads(1, 0, 0)
		c[1].Load.Held = 2
		c[2].Load.Penalty = 1.5
		if got := testPolicy(t, router.LeastInFlight, 1).Pick(t0, &router.Request{}, c); got != 0 {
			t.Errorf("picked %d, want 0", got)
		}
	})
}

// TestWeights: over many draws each backend gets its share.
func TestWeights(t *testing.T) {
	const n = 60000
	c := weights(1, 2, 3)
	for _, name := range []string{router.Random, router.RoundRobin} {
		for i, got := range draws(testPolicy(t, name, 5), c, n) {
			if want := c[i].Weight / 6 * n; math.Abs(got-want) > 0.03*want {
				t.Errorf("%s: backend %d picked %v times, want about %v", name, i, got, want)
			}
		}
	}
	// The policies that follow the load share it by weight in time: here
	// requests take as long everywhere, so that requests in flight are shares.
	for _, name := range []string{router.LeastInFlight, router.PeakEWMA, router.P2C} {
		r := testRouter(t, name, specs(3, func(i int, s *backends.Spec) { s.Weight = float64(i + 1) })...)
		var open []*router.Lease
		for range 600 {
			open = append(open, mustClaim(t, r, t0, &router.Request{}))
		}
		for i, b := range r.Pool().Backends {
			if got, want := float64(b.Load(t0).InFlight), 100*b.Weight; math.Abs(got-want) > 0.1*want {
				t.Errorf("%s: backend %d has %v of %d, want about %v", name, i, got, len(open), want)
			}
		}
	}
}

// TestTwoChoices: two different candidates are compared, whoever they are.
func TestTwoChoices(t *testing.T) {
	p := testPolicy(t, router.P2C, 9)
	if got := draws(p, loads(0, 1), 1000); got[1] != 0 {
		t.Errorf("of two, the busier one was picked %v times: two draws were not distinct", got[1])
	}
	// Of five, the busiest one loses every comparison, the next wins only
	// against it, and so on: chances are 0, 1, 2, 3 and 4 of ten pairs.
	const n = 50000
	for i, got := range draws(p, loads(4, 3, 2, 1, 0), n) {
		if want := float64(i) / 10 * n; math.Abs(got-want) > 0.02*n {
			t.Errorf("candidate %d picked %v times of %d, want about %v", i, got, n, want)
		}
	}
	if got := draws(p, loads(3), 10); got[0] != 10 {
		t.Errorf("alone: %v", got)
	}
}

// TestRoundRobin knows the exact turn of smooth weighted round-robin.
func TestRoundRobin(t *testing.T) {
	turn := func(p router.Policy, c []backends.Candidate, n int) string {
		s := ""
		for range n {
			s += string(rune('a' + c[p.Pick(t0, &router.Request{}, c)].Index))
		}
		return s
	}
	for _, tt := range []struct {
		weights []float64
		want    string
	}{
		{[]float64{1, 1, 1}, "abcabc"},
		{[]float64{5, 1, 1}, "aabacaaaabacaa"},
		{[]float64{1, 2}, "babbab"},
		{[]float64{1}, "aaa"},
	} {
		if got := turn(testPolicy(t, router.RoundRobin, 1), weights(tt.weights...), len(tt.want)); got != tt.want {
			t.Errorf("weights %v: %s, want %s", tt.weights, got, tt.want)
		}
	}
	t.Run("while one is left out", func(t *testing.T) {
		p, c := testPolicy(t, router.RoundRobin, 1), weights(1, 1, 1)
		got := turn(p, c, 1) + turn(p, []backends.Candidate{c[0], c[2]}, 2) + turn(p, c, 3)
		if want := "a" + "cc" + "bac"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
	t.Run("each model has its own turn", func(t *testing.T) {
		r := testRouter(t, router.RoundRobin, specs(3)...)
		got := ""
		for range 6 {
			l := mustClaim(t, r, t0, &router.Request{})
			got += l.Backend().Name
			l.Done(t0, backends.Outcome{})
		}
		if want := "b0b1b2b0b1b2"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// TestPeakEWMAForgets: a backend that was slow once is tried again although
// nothing new is known of it.
func TestPeakEWMAForgets(t *testing.T) {
	r := testRouter(t, router.PeakEWMA, specs(2)...)
	serve := func(now time.Time, ttft map[string]time.Duration) string {
		l := mustClaim(t, r, now, &router.Request{})
		l.FirstToken(now.Add(ttft[l.Backend().Name]))
		l.Done(now.Add(ttft[l.Backend().Name]), backends.Outcome{})
		return l.Backend().Name
	}
	slow := map[string]time.Duration{"b0": 2 * time.Second, "b1": 200 * time.Millisecond}
	for !strings.Contains(serve(t0, slow), "b0") { // until b0 has shown itself slow
	}
	healed := map[string]time.Duration{"b0": 100 * time.Millisecond, "b1": 200 * time.Millisecond}
	now, tried := t0.Add(2*time.Second), time.Time{}
	for tried.IsZero() && now.Before(t0.Add(time.Minute)) {
		now = now.Add(500 * time.Millisecond)
		if serve(now, healed) == "b0" {
			tried = now
		}
	}
	// 2 s decay to below 200 ms in ln(10) times the decay time of 10 s.
	if d := tried.Sub(t0); tried.IsZero() || d < 20*time.Second || d > 30*time.Second {
		t.Errorf("tried again after %v, want about 25 s", d)
	}
}

// TestNoBlackHole simulates a fleet in which one backend refuses or fails
// within a millisecond, so that it always looks idle.
func TestNoBlackHole(t *testing.T) {
	for _, name := range router.PolicyNames() {
		for fault, class := range map[string]backends.Class{"429": backends.Overloaded, "500": backends.Fault} {
			for _, n := range []int{2, 4} {
				for _, rate := range []float64{2, 20} {
					t.Run(fmt.Sprintf("%s/%s/%d backends/%v a second", name, fault, n, rate), func(t *testing.T) {
						// Nobody is ejected: the choice alone has to do it.
						r := testRouter(t, name, specs(n, func(_ int, s *backends.Spec) { s.Health.MaxEjected = -1 })...)
						bad, all := simulate(t, r, rate, class)
						if fair := all / n; bad > fair*3/4 {
							t.Errorf("the failing backend got %d of %d requests, too much of a fair share of %d", bad, all, fair)
						}
					})
				}
			}
		}
	}
}

// simulate sends requests for a minute; b0 fails each after 1 ms, others
// serve in half a second. It returns how many b0 got.
func simulate(t *testing.T, r *router.Router, rate float64, class backends.Class) (bad, all int) {
	type event struct {
		at    time.Time
		lease *router.Lease
	}
	var running []event
	gap := time.Duration(float64(time.Second) / rate)
	for now := t0; now.Before(t0.Add(time.Minute)); now = now.Add(gap) {
		slices.SortStableFunc(running, func(a, b event) int { return a.at.Compare(b.at) })
		for len(running) > 0 && !running[0].at.After(now) {
			e := running[0]
			running = running[1:]
			o := backends.Outcome{}
			if e.lease.Backend().Name == "b0" {
				o.Class = class
			} else {
				e.lease.FirstToken(e.at)
			}
			e.lease.Done(e.at, o)
		}
		l := mustClaim(t, r, now, &router.Request{PromptTokens: 100})
		all++
		if l.Backend().Name == "b0" {
			bad++
			running = append(running, event{now.Add(time.Millisecond), l})
			continue
		}
		running = append(running, event{now.Add(500 * time.Millisecond), l})
	}
	return bad, all
}

// TestWorkPolicies checks the policies that weigh prompt tokens on cases where
// the best choice is plain.
func TestWorkPolicies(t *testing.T) {
	cand := func(pending, inFlight, cached int) backends.Candidate {
		return backends.Candidate{Weight: 1, Cached: cached, Load: backends.Load{PrefillTokens: pending, InFlight: inFlight}}
	}
	for _, tt := range []struct {
		name, policy string
		c            []backends.Candidate
		want         int
	}{
		{"fewest pending tokens", router.TokenLoad, []backends.Candidate{cand(5000, 1, 0), cand(100, 9, 0)}, 1},
		{"the cache counts", router.TokenLoad, []backends.Candidate{cand(0, 1, 0), cand(500, 1, 900)}, 1},
		{"batch size counts", router.LMetric, []backends.Candidate{cand(1000, 2, 0), cand(800, 9, 0)}, 0},
		{"cached prefix first", router.PrefixAffinity, []backends.Candidate{cand(0, 1, 0), cand(900, 1, 512), cand(0, 1, 256)}, 1},
		{"what all have cached draws nobody", router.PrefixAffinity, []backends.Candidate{cand(0, 1, 0), cand(3000, 1, 400)}, 0},
		{"equal caches by their cost", router.PrefixAffinity, []backends.Candidate{cand(900, 1, 512), cand(0, 1, 512)}, 1},
		{"unless it is overloaded", router.PrefixAffinity, []backends.Candidate{cand(0, 1, 0), cand(900, 9, 512), cand(0, 1, 256)}, 2},
		{"nobody has it", router.PrefixAffinity, []backends.Candidate{cand(700, 1, 0), cand(10, 1, 0)}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := router.NewPolicy(tt.policy, rand.NewPCG(1, 2))
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Pick(time.Time{}, &router.Request{PromptTokens: 1000}, tt.c); got != tt.want {
				t.Errorf("%s picked %d, want %d", tt.policy, got, tt.want)
			}
		})
	}
}
