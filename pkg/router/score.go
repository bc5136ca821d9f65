package router

import (
	"math/rand/v2"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// foreseeing marks a policy that wants every candidate's prediction.
type foreseeing struct{ Policy }

func (foreseeing) foresees() {}

const (
	complianceWeight = 0.6
	latencyWeight    = 0.4
	// floorTTFT is the least prediction that counts: below it, faster is no better.
	floorTTFT = 10 * time.Millisecond
)

// score is 0.6·C + 0.4·L: C the share of the contract's requests the instance
// met, L the normalised reciprocal of its predicted P95 TTFT, with best the
// lowest prediction of all candidates. It lies in (0, 1].
func score(c *backends.Candidate, best time.Duration) float64 {
	l := float64(max(best, floorTTFT)) / float64(max(expected(c.P95, c), floorTTFT))
	return complianceWeight*c.Compliance + latencyWeight*l
}

// bestP95 is the lowest prediction of all candidates.
func bestP95(c []backends.Candidate) time.Duration {
	best := expected(c[0].P95, &c[0])
	for i := range c[1:] {
		best = min(best, expected(c[i+1].P95, &c[i+1]))
	}
	return best
}

// weightedByScore is the literal rule: one draw, with the scores as weights.
func weightedByScore(rng *rand.Rand) Policy {
	return PolicyFunc(func(_ time.Time, _ *Request, c []backends.Candidate) int {
		best, total := bestP95(c), 0.0
		for i := range c {
			total += score(&c[i], best) / handicap(&c[i])
		}
		x := rng.Float64() * total
		for i := range c {
			if x -= score(&c[i], best) / handicap(&c[i]); x < 0 {
				return i
			}
		}
		return len(c) - 1
	})
}

// argminCost is the predicted time to first token.
func argminCost(_ *Request, c *backends.Candidate) float64 {
	return expected(c.P50, c).Seconds() * handicap(c)
}

// expected is a prediction, or the recent TTFT where nothing predicts, with
// recent failures as latency.
func expected(predicted time.Duration, c *backends.Candidate) time.Duration {
	if predicted == 0 {
		predicted = max(c.Load.TTFT, ewmaFloor)
	}
	return predicted + time.Duration(c.Load.Penalty*float64(failurePenalty))
}

// unbounded stands in for a budget that no contract states, so that instances
// compare by their predictions.
const unbounded = time.Second

// explore is the share of choices that go to any instance the request fits on,
// so that what is known of the others does not grow old.
const explore = 0.01

// headroom takes the candidate of lowest burden/score.
func headroom(rng *rand.Rand) Policy {
	return PolicyFunc(func(now time.Time, req *Request, c []backends.Candidate) int {
		if i := unknown(rng, c); i >= 0 {
			return i
		}
		best, left := bestP95(c), req.left(now)
		pick, lowest := 0, 0.0
		for i := range c {
			cost := headroomCost(req, &c[i], best, left)
			if i == 0 || cost < lowest {
				pick, lowest = i, cost
			}
		}
		if rng.Float64() < explore {
			if i := rng.IntN(len(c)); fit(req, &c[i], left) < 0.5 && c[i].Load.Penalty == 0 {
				return i
			}
		}
		return pick
	})
}

// getToKnow is the share of choices that go to an idle engine whose speed is
// not known yet, if there is one.
const getToKnow = 0.1

// unknown now and then returns an idle engine of unknown speed, so that one
// that is new, or was long out, is not left out for its guessed one; else -1.
func unknown(rng *rand.Rand, c []backends.Candidate) int {
	for i := range c {
		if c[i].Young && isIdle(&c[i]) && c[i].Load.Penalty == 0 {
			if rng.Float64() < getToKnow {
				return i
			}
			return -1
		}
	}
	return -1
}

// left is what remains of the budget for the first token; at least 10 ms.
func (q *Request) left(now time.Time) time.Duration {
	if q.TTFT == 0 {
		return unbounded
	}
	return max(q.TTFT-now.Sub(q.Accepted), 10*time.Millisecond)
}

// headroomCost is what headroom takes the lowest of.
func headroomCost(req *Request, c *backends.Candidate, best, left time.Duration) float64 {
	return burden(req, c, left) / score(c, best) * handicap(c)
}

// fit is the largest share of a budget that the request would use on the
// candidate: max(P95 TTFT / time left, TPOT / its objective). Above 1 it misses.
func fit(req *Request, c *backends.Candidate, left time.Duration) float64 {
	return max(float64(expected(c.P95, c))/float64(left), gapShare(req, c))
}

// gapShare is the share of the time between tokens; 0 where none was promised.
func gapShare(req *Request, c *backends.Candidate) float64 {
	if req.TPOT == 0 {
		return 0
	}
	return float64(c.TPOT) / float64(req.TPOT)
}

// burden is the fit with what the request costs others: the first token's share
// holds the toll as well, and counts three times as far as it is past its end.
func burden(req *Request, c *backends.Candidate, left time.Duration) float64 {
	first := float64(expected(c.P95, c)) / float64(left)
	first += 2*max(first-1, 0) + float64(req.spread(c)+req.tollFor(c))/float64(left)
	return max(first, gapShare(req, c))
}

// spread is what counts on top for a request that wants an even delay: how much
// later than usual its first token may be.
func (q *Request) spread(c *backends.Candidate) time.Duration {
	if !q.Even {
		return 0
	}
	return max(c.P95-c.P50, 0)
}

// tollFor is the toll, twice where less of the prompt is cached than its
// contract asks for.
func (q *Request) tollFor(c *backends.Candidate) time.Duration {
	if float64(c.Cached) < q.Reuse*float64(q.PromptTokens) {
		return 2 * toll(c)
	}
	return toll(c)
}

// toll is what others lose: computing the prompt holds up every answer that
// decodes there, and one to come. What is cached costs nobody anything, so a
// conversation stays where its past is until another place is better by more
// than that is worth, and one with a new prompt goes where few are held up.
// The prices of an engine whose speed is not known yet mean nothing.
func toll(c *backends.Candidate) time.Duration {
	if c.Young {
		return 0
	}
	return c.Own * time.Duration(1+c.Decoding)
}

// handicap makes a candidate dearer that failed lately, has a lower weight or
// ramps up, or whose own numbers are old.
func handicap(c *backends.Candidate) float64 {
	h := (1 + c.Load.Penalty) / c.Weight
	if c.Stale {
		h *= staleHandicap
	}
	return h
}

// staleHandicap weighs against an engine that has not told its numbers lately.
const staleHandicap = 1.1
