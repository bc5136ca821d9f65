package router

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// TestBurden: what is asked of the budgets by hand. The first token's share is
// (P95 + toll)/left with what of P95 is past the end counted three times.
func TestBurden(t *testing.T) {
	type candidate = backends.Candidate
	for name, row := range map[string]struct {
		c         candidate
		objective time.Duration // between tokens
		want      float64       // with 1 s left
	}{
		"nothing to compute":             {candidate{P95: 250 * ms}, 0, 0.25},
		"its own prompt, for who comes":  {candidate{P95: 250 * ms, Own: 200 * ms}, 0, 0.45},
		"and for three that decode":      {candidate{P95: 250 * ms, Own: 200 * ms, Decoding: 3}, 0, 1.05},
		"up to the end":                  {candidate{P95: 1000 * ms, Own: 100 * ms}, 0, 1.1},
		"past the end":                   {candidate{P95: 1500 * ms}, 0, 2.5},                // 1 + 3·0.5
		"past the end, with a toll":      {candidate{P95: 1500 * ms, Own: 100 * ms}, 0, 2.6}, // a toll past it counts once
		"a toll past the end":            {candidate{P95: 500 * ms, Own: 400 * ms, Decoding: 4}, 0, 2.5},
		"the time between tokens":        {candidate{P95: 250 * ms, Own: 200 * ms, TPOT: 60 * ms}, 80 * ms, 0.75},
		"less than the first token's":    {candidate{P95: 250 * ms, Own: 200 * ms, TPOT: 20 * ms}, 80 * ms, 0.45},
		"between tokens, past its end":   {candidate{P95: 250 * ms, TPOT: 200 * ms}, 80 * ms, 2.5},
		"between tokens, not promised":   {candidate{P95: 250 * ms, TPOT: 200 * ms}, 0, 0.25},
		"of unknown speed":               {candidate{P95: 250 * ms, Own: 200 * ms, Decoding: 3, Young: true}, 0, 0.25},
		"of unknown speed, past the end": {candidate{P95: 1500 * ms, Own: 200 * ms, Decoding: 3, Young: true}, 0, 2.5},
		"it failed once":                 {candidate{P95: 250 * ms, Load: backends.Load{Penalty: 1}}, 0, 5.25 + 2*4.25}, // 5 s more
		"not predicted":                  {candidate{Load: backends.Load{TTFT: 300 * ms}}, 0, 0.3},
	} {
		if got := burden(&Request{TPOT: row.objective}, &row.c, time.Second); math.Abs(got-row.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// TestHeadroomCost: burden / score × handicap, by hand.
func TestHeadroomCost(t *testing.T) {
	for name, row := range map[string]struct {
		c    backends.Candidate
		best time.Duration
		want float64 // with 500 ms left
	}{
		"the best":              {backends.Candidate{Weight: 1, Compliance: 1, P95: 200 * ms}, 200 * ms, 0.4},
		"half as quick":         {backends.Candidate{Weight: 1, Compliance: 1, P95: 200 * ms}, 100 * ms, 0.5},                            // 0.4 / 0.8
		"half as compliant":     {backends.Candidate{Weight: 1, Compliance: 0.5, P95: 200 * ms}, 100 * ms, 0.8},                          // 0.4 / 0.5
		"of half the weight":    {backends.Candidate{Weight: 0.5, Compliance: 1, P95: 200 * ms}, 200 * ms, 0.8},                          // 0.4 · 2
		"with old numbers":      {backends.Candidate{Weight: 1, Compliance: 1, P95: 200 * ms, Stale: true}, 200 * ms, 0.44},              // 0.4 · 1.1
		"with others held up":   {backends.Candidate{Weight: 1, Compliance: 1, P95: 200 * ms, Own: 50 * ms, Decoding: 1}, 200 * ms, 0.6}, // (200 + 100) / 500
		"all of it, and late":   {backends.Candidate{Weight: 0.5, Compliance: 0.5, P95: 1000 * ms, Own: 50 * ms, Decoding: 1, Stale: true}, 500 * ms, (4 + 0.2) / 0.5 * 2 * 1.1},
		"of unknown speed":      {backends.Candidate{Weight: 1, Compliance: 1, P95: 200 * ms, Own: 50 * ms, Decoding: 9, Young: true}, 200 * ms, 0.4},
		"better than it counts": {backends.Candidate{Weight: 1, Compliance: 1, P95: 5 * ms}, 2 * ms, 0.01},
	} {
		if got := headroomCost(&Request{}, &row.c, row.best, 500*ms); math.Abs(got-row.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// steady never explores: its every draw is the highest.
type steady struct{}

func (steady) Uint64() uint64 { return math.MaxUint64 }

// alikeScored are candidates with all that a policy looks at, and equal scores
// above 0.4 whatever their predictions.
func alikeScored(rng *rand.Rand, n int) []backends.Candidate {
	c := drawn(rng, n)
	for i := range c {
		c[i].P50, c[i].P95 = 0, time.Duration(400+rng.IntN(500))*ms+time.Duration(i)
		c[i].Own, c[i].Decoding = time.Duration(rng.IntN(400))*ms, rng.IntN(6)
		c[i].Load.InFlight = 1
	}
	best := bestP95(c)
	for i := range c {
		l := float64(best) / float64(c[i].P95)
		c[i].Compliance = (0.9 - latencyWeight*l) / complianceWeight
	}
	return c
}

// TestStaysWhileWorth: between two with equal scores and within the budget, the
// lower P95 + toll decides, which is how long a conversation stays at its past.
func TestStaysWhileWorth(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 1))
	p, req := headroom(rand.New(steady{})), &Request{TTFT: 30 * time.Second}
	moved := 0
	for range 5000 {
		c := alikeScored(rng, 2)
		c[0].Own /= 10 // most of the prompt is cached there
		here := c[0].P95 + c[0].Own*time.Duration(1+c[0].Decoding)
		there := c[1].P95 + c[1].Own*time.Duration(1+c[1].Decoding)
		if (here - there).Abs() < time.Microsecond {
			continue
		}
		pick := p.Pick(req.Accepted, req, c)
		if want := here <= there; (pick == 0) != want {
			t.Fatalf("stays %v at P95 + toll of %v, there %v", pick == 0, here, there)
		}
		moved += pick
	}
	if moved < 500 || moved > 4500 {
		t.Errorf("%d of 5000 moved: the draw tests one side only", moved)
	}
}

// TestNewGoWhereFewAreHeldUp: what is new goes where the fewest answers decode,
// other things equal.
func TestNewGoWhereFewAreHeldUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(22, 1))
	p, req := headroom(rand.New(steady{})), &Request{TTFT: time.Second, TPOT: 80 * ms}
	for range 1000 {
		c := drawn(rng, 2+rng.IntN(6))
		fewest := 0
		for i, n := range rng.Perm(len(c)) {
			c[i].P95, c[i].Compliance, c[i].TPOT = c[0].P95, c[0].Compliance, 20*ms // far from its end
			c[i].Own, c[i].Decoding = 300*ms, n
			if n == 0 {
				fewest = i
			}
		}
		if got := p.Pick(req.Accepted, req, c); got != fewest {
			t.Fatalf("it goes where %d decode", c[got].Decoding)
		}
	}
}

// costly are candidates that differ in everything headroom looks at.
func costly(rng *rand.Rand, n int) []backends.Candidate {
	c := drawn(rng, n)
	for i := range c {
		c[i].Own, c[i].Decoding = time.Duration(rng.IntN(500))*ms, rng.IntN(40)
		c[i].Weight, c[i].Stale, c[i].Young = 0.1+rng.Float64(), rng.IntN(4) == 0, rng.IntN(4) == 0
		c[i].Load = backends.Load{InFlight: 1 + rng.IntN(9), Penalty: float64(rng.IntN(2)) * rng.Float64()}
	}
	return c
}

// TestHeadroomOrderChangesNothing: apart from what it explores, it takes the same
// candidate however they are listed.
func TestHeadroomOrderChangesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 1))
	p, req := headroom(rand.New(steady{})), &Request{TTFT: time.Second, TPOT: 80 * ms}
	for range 3000 {
		c := costly(rng, 2+rng.IntN(9))
		want := c[p.Pick(req.Accepted, req, c)].Index
		rng.Shuffle(len(c), func(i, j int) { c[i], c[j] = c[j], c[i] })
		if got := c[p.Pick(req.Accepted, req, c)].Index; got != want {
			t.Fatalf("%d, in another order %d", want, got)
		}
	}
}

// TestMoreNeverCostsLess: a candidate with a later prediction, more to compute,
// more that decode, slower tokens or less compliance never costs less than itself
// without that.
func TestMoreNeverCostsLess(t *testing.T) {
	rng := rand.New(rand.NewPCG(24, 1))
	worse := map[string]func(c *backends.Candidate){
		"later":            func(c *backends.Candidate) { c.P95 += time.Duration(rng.IntN(2000)) * ms },
		"more to compute":  func(c *backends.Candidate) { c.Own += time.Duration(rng.IntN(500)) * ms },
		"more that decode": func(c *backends.Candidate) { c.Decoding += rng.IntN(9) },
		"slower tokens":    func(c *backends.Candidate) { c.TPOT += time.Duration(rng.IntN(90)) * ms },
		"less compliant":   func(c *backends.Candidate) { c.Compliance *= rng.Float64() },
		"less weight":      func(c *backends.Candidate) { c.Weight *= 0.01 + 0.99*rng.Float64() },
		"failed":           func(c *backends.Candidate) { c.Load.Penalty += rng.Float64() },
		"stale":            func(c *backends.Candidate) { c.Stale = true },
	}
	for name, change := range worse {
		for range 1000 {
			c := costly(rng, 3)
			req := &Request{TTFT: time.Duration(rng.IntN(3000)) * ms, TPOT: time.Duration(rng.IntN(100)) * ms}
			left, best := req.left(req.Accepted), bestP95(c)
			before := headroomCost(req, &c[0], best, left)
			change(&c[0])
			if after := headroomCost(req, &c[0], best, left); after < before*(1-1e-12) || math.IsNaN(after) || math.IsInf(after, 0) {
				t.Fatalf("%s: costs %v, before %v", name, after, before)
			}
		}
	}
}
