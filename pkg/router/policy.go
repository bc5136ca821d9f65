package router

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// Policy picks one of the candidates (at least one) and returns its index. It
// runs inside the claim's critical section: it needs no locks of its own, must
// take microseconds, and must not keep the slice.
type Policy interface {
	Pick(now time.Time, req *Request, c []backends.Candidate) int
}

// PolicyFunc makes a function a Policy.
type PolicyFunc func(now time.Time, req *Request, c []backends.Candidate) int

// Pick calls f.
func (f PolicyFunc) Pick(now time.Time, req *Request, c []backends.Candidate) int {
	return f(now, req, c)
}

// Names of the policies, default first.
const (
	LeastInFlight = "least-inflight"
	RoundRobin    = "round-robin"
	Random        = "random"
	P2C           = "p2c"
	PeakEWMA      = "peak-ewma"

	TokenLoad      = "token-load"
	LMetric        = "lmetric"
	PrefixAffinity = "prefix-affinity"

	Headroom = "headroom"
	Weighted = "weighted"
	Argmin   = "argmin"
)

// PolicyNames lists every policy, default first.
func PolicyNames() []string {
	return []string{LeastInFlight, RoundRobin, Random, P2C, PeakEWMA, TokenLoad, LMetric, PrefixAffinity, Headroom, Weighted, Argmin}
}

// NewPolicy returns a fresh policy by name. src decides ties and draws; the
// same source gives the same choices.
func NewPolicy(name string, src rand.Source) (Policy, error) {
	rng := rand.New(src)
	switch name {
	case LeastInFlight:
		return lowest(rng, inFlightCost), nil
	case PeakEWMA:
		return lowest(rng, ewmaCost), nil
	case P2C:
		return twoChoices(rng, inFlightCost), nil
	case Random:
		return weightedRandom(rng), nil
	case TokenLoad:
		return lowest(rng, tokenCost), nil
	case LMetric:
		return lowest(rng, lmetricCost), nil
	case PrefixAffinity:
		return prefixAffinity(lowest(rng, tokenCost)), nil
	case RoundRobin:
		return &roundRobin{}, nil
	case Headroom:
		return foreseeing{headroom(rng)}, nil
	case Argmin:
		return foreseeing{lowest(rng, argminCost)}, nil
	case Weighted:
		return foreseeing{weightedByScore(rng)}, nil
	}
	return nil, fmt.Errorf("unknown policy %q; one of %v", name, PolicyNames())
}

// Foresees reports whether a policy needs predictions.
func Foresees(name string) bool {
	switch name {
	case Headroom, Weighted, Argmin:
		return true
	}
	return false
}

// cost of giving a candidate one more request; lower is better.
type cost func(req *Request, c *backends.Candidate) float64

// inFlightCost is the load a candidate would carry with one request more,
// in relation to its weight.
func inFlightCost(_ *Request, c *backends.Candidate) float64 {
	return (c.Load.Pending() + 1) / c.Weight
}

const (
	// ewmaFloor is the TTFT assumed of a backend without samples, so that an
	// unknown one looks neither free nor dead.
	ewmaFloor = 50 * time.Millisecond
	// failurePenalty is added to the TTFT for each recent failure (Linkerd's
	// base penalty): failing fast must not look fast.
	failurePenalty = 5 * time.Second
)

// ewmaCost is Finagle's peak-EWMA cost, TTFT × (in flight + 1), over the
// weight, with recent failures as latency.
func ewmaCost(_ *Request, c *backends.Candidate) float64 {
	ttft := max(c.Load.TTFT, ewmaFloor).Seconds() + c.Load.Penalty*failurePenalty.Seconds()
	return ttft * (float64(c.Load.InFlight+c.Load.Held) + 1) / c.Weight
}

// pendingTokens are the prompt tokens that a candidate would have to compute
// before the request's first token: those ahead and its own, less what its
// prefix cache should hold. Each request in flight weighs as one token, which
// decides between engines that have none pending.
func pendingTokens(req *Request, c *backends.Candidate) float64 {
	own := max(req.PromptTokens-c.Cached, 1)
	return float64(c.Load.PrefillTokens+c.Load.HeldTokens+own) + c.Load.Pending()
}

// tokenCost is pending uncached prompt tokens, in relation to the weight.
func tokenCost(req *Request, c *backends.Candidate) float64 {
	return pendingTokens(req, c) * (1 + c.Load.Penalty) / c.Weight
}

// lmetricCost is pending uncached prompt tokens × requests in the batch: long
// queues count by their tokens, full batches by what they slow down.
func lmetricCost(req *Request, c *backends.Candidate) float64 {
	return pendingTokens(req, c) * (c.Load.Pending() + 1) / c.Weight
}

const (
	// affinityBound is how much more than the pool's mean a backend may carry
	// and still be chosen for what it has cached (consistent hashing with
	// bounded loads: Mirrokni, Thorup, Zadimoghaddam 2018).
	affinityBound = 1.25
	// affinityShare is how much of the prompt has to be cached for that: the
	// beginning that all prompts share, such as a system prompt, is no reason
	// to go where it is.
	affinityShare = 0.5
)

// prefixAffinity takes the candidate that has most of the prompt cached, at
// least half of it, among those whose load is within the bound; where there is
// none, otherwise decides.
func prefixAffinity(otherwise Policy) Policy {
	return PolicyFunc(func(now time.Time, req *Request, c []backends.Candidate) int {
		limit := 0.0
		for i := range c {
			limit += inFlightCost(req, &c[i])
		}
		limit *= affinityBound / float64(len(c))
		best := -1
		for i := range c {
			if !cachesEnough(req, &c[i]) || inFlightCost(req, &c[i]) > max(limit, 2) {
				continue
			}
			if best < 0 || c[i].Cached > c[best].Cached ||
				c[i].Cached == c[best].Cached && tokenCost(req, &c[i]) < tokenCost(req, &c[best]) {
				best = i
			}
		}
		if best >= 0 {
			return best
		}
		return otherwise.Pick(now, req, c)
	})
}

func cachesEnough(req *Request, c *backends.Candidate) bool {
	return c.Cached > 0 && float64(c.Cached) >= affinityShare*float64(req.PromptTokens)
}

// lowest takes the candidate of lowest cost; ties are drawn.
func lowest(rng *rand.Rand, of cost) Policy {
	return PolicyFunc(func(_ time.Time, req *Request, c []backends.Candidate) int {
		best, bestCost, ties := 0, of(req, &c[0]), 1
		for i := 1; i < len(c); i++ {
			switch k := of(req, &c[i]); {
			case k < bestCost:
				best, bestCost, ties = i, k, 1
			case k == bestCost:
				ties++
				if rng.IntN(ties) == 0 {
					best = i
				}
			}
		}
		return best
	})
}

// twoChoices draws two distinct candidates by weight and takes the cheaper.
func twoChoices(rng *rand.Rand, of cost) Policy {
	return PolicyFunc(func(_ time.Time, req *Request, c []backends.Candidate) int {
		if len(c) == 1 {
			return 0
		}
		a := draw(rng, c, -1)
		b := draw(rng, c, a)
		if of(req, &c[b]) < of(req, &c[a]) {
			return b
		}
		return a
	})
}

func weightedRandom(rng *rand.Rand) Policy {
	return PolicyFunc(func(_ time.Time, _ *Request, c []backends.Candidate) int {
		return draw(rng, c, -1)
	})
}

// share is the weight a candidate is drawn by: recent failures shrink it.
func share(c *backends.Candidate) float64 { return c.Weight / (1 + c.Load.Penalty) }

// draw returns a candidate with probability proportional to its share,
// leaving out the index except.
func draw(rng *rand.Rand, c []backends.Candidate, except int) int {
	total := 0.0
	for i := range c {
		if i != except {
			total += share(&c[i])
		}
	}
	x, last := rng.Float64()*total, 0
	for i := range c {
		if i == except {
			continue
		}
		last = i
		if x -= share(&c[i]); x < 0 {
			break
		}
	}
	return last
}

// roundRobin is the smooth weighted round-robin known from nginx: each turn
// every candidate gains its share, and the richest pays the total.
type roundRobin struct {
	credit []float64 // by index in the pool
}

func (r *roundRobin) Pick(_ time.Time, _ *Request, c []backends.Candidate) int {
	best, total := 0, 0.0
	for i := range c {
		s := share(&c[i])
		total += s
		*r.of(&c[i]) += s
		if *r.of(&c[i]) > *r.of(&c[best]) {
			best = i
		}
	}
	*r.of(&c[best]) -= total
	return best
}

func (r *roundRobin) of(c *backends.Candidate) *float64 {
	for len(r.credit) <= c.Index {
		r.credit = append(r.credit, 0)
	}
	return &r.credit[c.Index]
}
