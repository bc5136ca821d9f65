package samples

import (
	"errors"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// Stats sums samples up.
type Stats struct {
	Schema     string         `json:"schema"` // hash of the features
	Rows       int            `json:"rows"`
	From       time.Time      `json:"from"`
	To         time.Time      `json:"to"`
	Censored   float64        `json:"censored"` // share whose time is only a lower bound
	TTFT       Quantiles      `json:"ttft"`     // of the others
	Models     map[string]int `json:"models"`   // rows
	Backends   map[string]int `json:"backends"`
	Regimes    map[string]int `json:"regimes"`
	Estimators []Judged       `json:"estimators"`
}

// Quantiles of a time, in seconds.
type Quantiles struct {
	P50 trees.Number `json:"p50"`
	P90 trees.Number `json:"p90"`
	P95 trees.Number `json:"p95"`
	P99 trees.Number `json:"p99"`
	Max trees.Number `json:"max"`
}

// Judged is how good an estimator was, in one regime or in all.
type Judged struct {
	Estimator string `json:"estimator"` // served is whichever counted
	Regime    string `json:"regime"`
	trees.Metrics
}

// ErrNone is that there is not one sample.
var ErrNone = errors.New("there are no samples; the gateway writes a file of them once an hour, or when it stops")

// Summarise reads samples to their end.
func Summarise(samples Sequence) (*Stats, error) {
	st := &Stats{Schema: predictor.SchemaHash(), Models: map[string]int{}, Backends: map[string]int{}, Regimes: map[string]int{}}
	var times []float64
	var scores [predictor.Kinds + 1][predictor.Regimes + 1]scorer // last: the served one, and all regimes
	for s, err := range samples {
		if err != nil {
			return nil, err
		}
		st.count(&s)
		if !s.Censored {
			times = append(times, s.TTFT.Seconds())
		}
		for k := range scores {
			for _, r := range []predictor.Regime{s.Regime, predictor.Regimes} {
				scores[k][r].addSaid(&s, predictor.Kind(k))
			}
		}
	}
	if st.Rows == 0 {
		return nil, ErrNone
	}
	st.Censored = 1 - float64(len(times))/float64(st.Rows)
	st.TTFT = quantiles(times)
	for k := range scores {
		for r := range scores[k] {
			if sc := &scores[k][r]; sc.p50.rows > 0 {
				st.Estimators = append(st.Estimators, Judged{estimator(predictor.Kind(k)), predictor.Regime(r).String(), sc.metrics()})
			}
		}
	}
	return st, nil
}

func (st *Stats) count(s *predictor.Sample) {
	if st.Rows == 0 {
		st.From = s.At
	}
	st.To = s.At
	st.Rows++
	st.Models[s.Model]++
	st.Backends[s.Backend]++
	st.Regimes[s.Regime.String()]++
}

// addSaid takes in what the estimator said; Kinds is the one that counted.
func (sc *scorer) addSaid(s *predictor.Sample, k predictor.Kind) {
	if k == predictor.Kinds {
		k = s.Served
	}
	if k < predictor.Kinds {
		sc.add(s, s.Said[k].P50.Seconds(), s.Said[k].P95.Seconds())
	}
}

func estimator(k predictor.Kind) string {
	if k == predictor.Kinds {
		return "served"
	}
	return k.String()
}

func quantiles(times []float64) Quantiles {
	slices.Sort(times)
	at := func(q float64) trees.Number { return trees.Number(quantile(times, q)) }
	return Quantiles{P50: at(0.5), P90: at(0.9), P95: at(0.95), P99: at(0.99), Max: at(1)}
}

// driftRows is how many samples drift is judged by.
const driftRows = 500

// Drift is how well the P95 that counted still covers the last 500 samples.
type Drift struct {
	Coverage float64   // NaN of none
	To       time.Time // of the last sample
	Drifted  bool      // outside of what is healthy; fewer samples have not drifted
}

// FindDrift judges the last of the samples that were sent after a time.
func FindDrift(all Sequence, after time.Time) (Drift, error) {
	var last []predictor.Sample
	for s, err := range all {
		if err != nil {
			return Drift{}, err
		}
		if !s.At.After(after) {
			continue
		}
		if last = append(last, s); len(last) >= 2*driftRows {
			last = slices.Delete(last, 0, driftRows)
		}
	}
	last = last[max(len(last)-driftRows, 0):]
	var sc scorer
	d := Drift{}
	for _, s := range last {
		sc.addSaid(&s, predictor.Kinds)
		d.To = s.At
	}
	d.Coverage = float64(sc.metrics().Coverage)
	d.Drifted = len(last) == driftRows && (d.Coverage < predictor.DriftLow || d.Coverage > predictor.DriftHigh)
	return d, nil
}
