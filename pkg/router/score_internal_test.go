package router

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

const ms = time.Millisecond

// TestScore: 0.6·C + 0.4·L by hand.
func TestScore(t *testing.T) {
	tests := []struct {
		compliance float64
		p95, best  time.Duration
		want       float64
	}{
		{1, 100 * ms, 100 * ms, 1},
		{1, 200 * ms, 100 * ms, 0.8},    // 0.6 + 0.4·0.5
		{0.5, 200 * ms, 100 * ms, 0.5},  // 0.3 + 0.2
		{0, 100 * ms, 100 * ms, 0.4},    // as fast as the best, and never met
		{0.95, 400 * ms, 80 * ms, 0.65}, // 0.57 + 0.4·0.2
		{1, 5 * ms, 2 * ms, 1},          // both below 10 ms: no faster counts
		{1, 20 * ms, 2 * ms, 0.8},       // 0.6 + 0.4·10/20
	}
	for _, test := range tests {
		c := backends.Candidate{P95: test.p95, Compliance: test.compliance}
		if got := score(&c, test.best); math.Abs(got-test.want) > 1e-12 {
			t.Errorf("C %v, P95 %v, best %v: %v, want %v", test.compliance, test.p95, test.best, got, test.want)
		}
	}
}

func TestFit(t *testing.T) {
	tests := []struct {
		p95, tpot, left, objective time.Duration
		want                       float64
	}{
		{100 * ms, 20 * ms, 400 * ms, 80 * ms, 0.25},
		{100 * ms, 60 * ms, 400 * ms, 80 * ms, 0.75},
		{800 * ms, 60 * ms, 400 * ms, 80 * ms, 2},
		{100 * ms, 600 * ms, 400 * ms, 0, 0.25}, // no objective for the time between tokens
	}
	for _, test := range tests {
		c := backends.Candidate{P95: test.p95, TPOT: test.tpot}
		if got := fit(&Request{TPOT: test.objective}, &c, test.left); math.Abs(got-test.want) > 1e-12 {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// drawn are random candidates, all healthy.
func drawn(rng *rand.Rand, n int) []backends.Candidate {
	c := make([]backends.Candidate, n)
	for i := range c {
		p50 := time.Duration(1+rng.IntN(2000))*ms + time.Duration(i) // no ties
		c[i] = backends.Candidate{
			Index: i, Weight: 1, Signals: &backends.Signals{}, Compliance: rng.Float64(),
			P50: p50, P95: p50 + time.Duration(rng.IntN(2000))*ms, TPOT: time.Duration(1+rng.IntN(150)) * ms,
		}
	}
	return c
}

// TestOrderChangesNothing: the pick is the same candidate however they are listed.
func TestOrderChangesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	req := &Request{TTFT: time.Second, TPOT: 80 * ms}
	for _, name := range []string{Headroom, Argmin} {
		for range 300 {
			c := drawn(rng, 2+rng.IntN(8))
			pick := func() int {
				p, err := NewPolicy(name, rand.NewPCG(7, 7)) // its first draw does not explore
				if err != nil {
					t.Fatal(err)
				}
				return c[p.Pick(req.Accepted, req, c)].Index
			}
			want := pick()
			rng.Shuffle(len(c), func(i, j int) { c[i], c[j] = c[j], c[i] })
			if got := pick(); got != want {
				t.Fatalf("%s: %d, in another order %d", name, want, got)
			}
		}
	}
}

// TestLaterIsNeverWorthMore: of two with equal compliance the one with the later
// prediction never scores higher, nor costs less.
func TestLaterIsNeverWorthMore(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	req := &Request{TTFT: time.Second, TPOT: 80 * ms}
	for range 2000 {
		c := drawn(rng, 2)
		c[1].Compliance, c[1].TPOT = c[0].Compliance, c[0].TPOT
		best := bestP95(c)
		early, late := &c[0], &c[1]
		if early.P95 > late.P95 {
			early, late = late, early
		}
		if score(late, best) > score(early, best) {
			t.Fatalf("P95 %v scores %v, %v scores %v", late.P95, score(late, best), early.P95, score(early, best))
		}
		if left := req.left(req.Accepted); fit(req, late, left)/score(late, best) < fit(req, early, left)/score(early, best) {
			t.Fatalf("P95 %v costs less than %v", late.P95, early.P95)
		}
	}
}

// TestWeightedDrawsByScore: shares of the draw are shares of the scores.
func TestWeightedDrawsByScore(t *testing.T) {
	c := []backends.Candidate{
		{Index: 0, Weight: 1, Compliance: 1, P95: 100 * ms},   // 1.0
		{Index: 1, Weight: 1, Compliance: 0.5, P95: 200 * ms}, // 0.5
	}
	p := weightedByScore(rand.New(rand.NewPCG(5, 6)))
	first := 0
	const draws = 20_000
	for range draws {
		if p.Pick(time.Time{}, &Request{}, c) == 0 {
			first++
		}
	}
	if got := float64(first) / draws; math.Abs(got-2.0/3) > 0.02 {
		t.Errorf("the better one was drawn %v of the time, want two thirds", got)
	}
}

// TestHeadroomPrefersTheCompliant: at the same prediction the one that met its
// promises is taken, and one whose weight violations have cut is avoided.
func TestHeadroomPrefersTheCompliant(t *testing.T) {
	req := &Request{TTFT: time.Second}
	tests := map[string][2]backends.Candidate{
		"compliance": {{Compliance: 0.6, Weight: 1}, {Compliance: 0.99, Weight: 1}},
		"weight":     {{Compliance: 0.9, Weight: 0.25}, {Compliance: 0.9, Weight: 1}},
		"failures":   {{Compliance: 0.9, Weight: 1, Load: backends.Load{Penalty: 1}}, {Compliance: 0.9, Weight: 1}},
		"stale":      {{Compliance: 0.9, Weight: 1, Stale: true}, {Compliance: 0.9, Weight: 1}},
	}
	for name, c := range tests {
		for i := range c {
			c[i].P95 = 200 * ms
		}
		p := headroom(rand.New(rand.NewPCG(7, 7)))
		if p.Pick(req.Accepted, req, c[:]) != 1 {
			t.Errorf("%s: the worse one was taken", name)
		}
	}
}

// What a contract says of reuse and evenness makes an engine dearer by the toll
// once more, and by the spread of its first token.
func TestBurdenOfReuseAndEvenness(t *testing.T) {
	c := backends.Candidate{P50: 100 * time.Millisecond, P95: 300 * time.Millisecond, Own: 50 * time.Millisecond, Decoding: 1, Cached: 600}
	for name, row := range map[string]struct {
		req  Request
		want float64 // of a second
	}{
		"neither":           {Request{PromptTokens: 1000}, 0.3 + 0.1},
		"enough is cached":  {Request{PromptTokens: 1000, Reuse: 0.6}, 0.3 + 0.1},
		"too little cached": {Request{PromptTokens: 1000, Reuse: 0.7}, 0.3 + 0.2},
		"even":              {Request{PromptTokens: 1000, Even: true}, 0.3 + 0.2 + 0.1},
		"both":              {Request{PromptTokens: 1000, Reuse: 0.7, Even: true}, 0.3 + 0.2 + 0.2},
	} {
		if got := burden(&row.req, &c, time.Second); math.Abs(got-row.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// The record of a choice says so when another engine that was open was cheaper.
func TestExplored(t *testing.T) {
	open := func(cost float64) Considered { return Considered{Open: true, Cost: cost} }
	for name, row := range map[string]struct {
		all  []Considered
		want bool
	}{
		"the cheapest":                 {[]Considered{open(1), open(2)}, false},
		"not the cheapest":             {[]Considered{open(2), open(1)}, true},
		"the cheaper one was closed":   {[]Considered{open(2), {Cost: 1}}, false},
		"nobody else":                  {[]Considered{open(2)}, false},
		"refused, and nobody was open": {[]Considered{{Cost: 2}, {Cost: 1}}, false},
	} {
		if got := explored(row.all); got != row.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
