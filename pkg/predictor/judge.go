package predictor

import (
	"math"
	"time"
)

// Score is how good an estimator's predictions were over its window.
type Score struct {
	Rows     int
	MAPE     float64 // mean of |P50 − truth| / truth
	Coverage float64 // share of requests that took no longer than P95; 0.95 is right
	Pinball  float64 // mean pinball loss of P95, in seconds
	Bias     float64 // mean of log(truth/P50)
}

// scoreWindow is how many requests a score looks back over at most, and for how long.
const (
	scoreRows   = 500
	scoreWindow = 5 * time.Minute
)

// judge keeps the last errors of one estimator in one regime.
type judge struct {
	ring  [scoreRows]verdict
	first int
	n     int
	sum   verdict
}

type verdict struct {
	at                          int64 // Unix nanoseconds
	ape, covered, pinball, bias float64
}

// judged compares a prediction with the truth, in seconds.
func judged(now time.Time, p Prediction, truth float64) verdict {
	p50, p95 := p.P50.Seconds(), p.P95.Seconds()
	v := verdict{at: now.UnixNano(), ape: math.Abs(p50-truth) / truth, bias: math.Log(truth / p50)}
	if truth <= p95 {
		v.covered = 1
	}
	v.pinball = max(0.95*(truth-p95), 0.05*(p95-truth))
	return v
}

func (j *judge) add(v verdict) {
	if j.n == scoreRows {
		j.drop()
	}
	j.ring[(j.first+j.n)%scoreRows] = v
	j.n++
	j.count(&v, 1)
}

func (j *judge) drop() {
	j.count(&j.ring[j.first], -1)
	j.first = (j.first + 1) % scoreRows
	j.n--
	if j.n == 0 {
		j.sum = verdict{} // and the rounding with it
	}
}

func (j *judge) count(v *verdict, sign float64) {
	j.sum.ape += sign * v.ape
	j.sum.covered += sign * v.covered
	j.sum.pinball += sign * v.pinball
	j.sum.bias += sign * v.bias
}

// score is over what is not too old at now.
func (j *judge) score(now time.Time) Score {
	oldest := now.Add(-scoreWindow).UnixNano()
	for j.n > 0 && j.ring[j.first].at < oldest {
		j.drop()
	}
	if j.n == 0 {
		return Score{}
	}
	n := float64(j.n)
	return Score{Rows: j.n, MAPE: max(j.sum.ape, 0) / n, Coverage: j.sum.covered / n, Pinball: max(j.sum.pinball, 0) / n, Bias: j.sum.bias / n}
}
