package evaluate

import (
	"math"
	"time"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// Rank is how well predictions order the instances of a decision, against an
// oracle.
type Rank struct {
	Decisions int          `json:"decisions"`
	Tau       trees.Number `json:"kendall_tau"` // mean of Kendall's tau-b; 1 is the same order
	Best      trees.Number `json:"best"`        // share of decisions whose lowest P50 is the instance that is best, or as good
	Regret    trees.Number `json:"regret"`      // mean TTFT there / mean TTFT of the best − 1
}

// ranking sums decisions up.
type ranking struct {
	taus             []float64
	decisions, right int
	picked, best     float64 // seconds
}

// add takes one decision in. Instances that can't serve the request are left
// out; decisions between fewer than two say nothing.
func (r *ranking) add(all []replay.Prospect) {
	var said, truth []float64
	for _, p := range all {
		if p.Oracle < time.Hour {
			said = append(said, p.Foreseen.P50.Seconds())
			truth = append(truth, p.Oracle.Seconds())
		}
	}
	if len(said) < 2 {
		return
	}
	if tau := kendall(said, truth); !math.IsNaN(tau) {
		r.taus = append(r.taus, tau)
	}
	picked, best := truth[lowest(said)], truth[lowest(truth)]
	r.decisions++
	r.right += one(picked <= best)
	r.picked += picked
	r.best += best
}

func (r *ranking) rank() Rank {
	tau := math.NaN()
	if len(r.taus) > 0 {
		tau = mean(r.taus)
	}
	return Rank{
		Decisions: r.decisions, Tau: trees.Number(tau),
		Best: trees.Number(float64(r.right) / float64(r.decisions)), Regret: trees.Number(r.picked/r.best - 1),
	}
}

// lowest is the place of the lowest value, the first of equal ones.
func lowest(values []float64) int {
	best := 0
	for i, v := range values {
		if v < values[best] {
			best = i
		}
	}
	return best
}

// kendall is tau-b: pairs in the same order less pairs in the other one, by
// the pairs that either side orders at all (Kendall 1945). NaN if one side
// orders nothing.
func kendall(a, b []float64) float64 {
	var score, inA, inB float64
	for i := range a {
		for j := range i {
			x, y := sign(a[i]-a[j]), sign(b[i]-b[j])
			score += x * y
			inA += x * x
			inB += y * y
		}
	}
	return score / math.Sqrt(inA*inB)
}

func sign(v float64) float64 {
	switch {
	case v > 0:
		return 1
	case v < 0:
		return -1
	}
	return 0
}
