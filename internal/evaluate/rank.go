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
	Regret    trees.Number `json:"regret"`      // mean of TTFT there / the best's − 1
}

// ranking sums decisions up.
type ranking struct {
	taus, regrets []float64
	best          float64
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
	regret := truth[lowest(said)]/truth[lowest(truth)] - 1
	r.regrets = append(r.regrets, regret)
	if regret < 1e-9 {
		r.best++
	}
}

func (r *ranking) rank() Rank {
	n := float64(len(r.regrets))
	return Rank{
		Decisions: len(r.regrets), Best: trees.Number(r.best / n),
		Tau: trees.Number(meanOrNaN(r.taus)), Regret: trees.Number(meanOrNaN(r.regrets)),
	}
}

func meanOrNaN(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	return mean(values)
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
