package samples

import (
	"math"
	"slices"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// scorer adds up how good predictions were. Losses are of the logarithm of the
// time, so that a second counts the same for short waits and long ones.
//
// A sample that is only a lower bound counts against a prediction below the
// bound, with the bound as truth. Of a prediction above it the bound shows
// nothing: the loss is 0, and the coverage leaves it out. That never makes a
// prediction look worse than it was.
type scorer struct {
	errors   []float64 // |P50 − truth| / truth
	p50, p95 head
}

type head struct {
	rows           int
	known, covered int     // rows of which it is known whether the prediction was exceeded; of these, not
	loss           float64 // sum of pinball losses
}

// add takes in one prediction, in seconds.
func (sc *scorer) add(s *predictor.Sample, p50, p95 float64) {
	truth := s.TTFT.Seconds()
	if truth <= 0 || !(p50 > 0) || !(p95 > 0) {
		return
	}
	if !s.Censored {
		sc.errors = append(sc.errors, math.Abs(p50-truth)/truth)
	}
	sc.p50.add(0.5, math.Log(truth/p50), s.Censored)
	sc.p95.add(0.95, math.Log(truth/p95), s.Censored)
}

// add takes in by how much the truth, or its lower bound, is above the prediction.
func (h *head) add(alpha, above float64, bound bool) {
	h.rows++
	if bound && above <= 0 {
		return
	}
	h.known++
	if above <= 0 {
		h.covered++
	}
	h.loss += max(alpha*above, (alpha-1)*above)
}

func (h *head) mean() float64 { return h.loss / float64(h.rows) }

// metrics are NaN where there is nothing to judge by.
func (sc *scorer) metrics() trees.Metrics {
	sum := 0.0
	for _, e := range sc.errors {
		sum += e
	}
	slices.Sort(sc.errors)
	return trees.Metrics{
		Rows:        sc.p95.rows,
		MAPE:        trees.Number(sum / float64(len(sc.errors))),
		MedianError: trees.Number(quantile(sc.errors, 0.5)),
		Coverage:    trees.Number(float64(sc.p95.covered) / float64(sc.p95.known)),
		Pinball:     trees.Number(sc.p95.mean()),
	}
}

// quantile is the smallest value that a share q (0..1) of the sorted ones does
// not exceed; NaN of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}
