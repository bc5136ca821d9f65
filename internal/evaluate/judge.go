package evaluate

import (
	"math"
	"slices"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// Score is how good an estimator was on the rows of a regime.
type Score struct {
	Estimator   string                  `json:"estimator"` // served is whichever counted
	Regime      string                  `json:"regime"`    // or all
	Rows        int                     `json:"rows"`
	MAPE        trees.Number            `json:"mape"`                    // mean of |P50 − truth| / truth
	MedianError trees.Number            `json:"median_error"`            // median of the same
	MAE         trees.Number            `json:"mae_s"`                   // mean of |P50 − truth|
	Bias        trees.Number            `json:"bias"`                    // mean of log(truth / P50): above 0 it says too little
	Below       trees.Number            `json:"below_p50"`               // share of rows up to P50; 0.5 is right
	Coverage    trees.Number            `json:"coverage"`                // share of rows up to P95; 0.95 is right
	Pinball     trees.Number            `json:"pinball_s"`               // mean pinball loss of P95
	Skill       map[string]trees.Number `json:"pinball_skill,omitempty"` // by baseline: 1 − loss / its loss on the same rows
	Oracle      trees.Number            `json:"oracle_mape"`             // of the oracle on the same rows
}

// Ratio is the error in relation to the oracle's.
func (s *Score) Ratio() float64 { return float64(s.MAPE / s.Oracle) }

// Names of what is scored beside predictor.Kind and the baselines.
const (
	Served = "served"
	Oracle = "oracle"
	All    = "all" // regimes
)

// Judge scores every estimator and every baseline, by regime and over all, on
// the rows after the first skip by time of sending. It sorts the rows.
// Attempts that ended before a first token are in no figure.
func Judge(rows []Row, skip int) []Score {
	inOrder(rows)
	simple := guesses(rows)
	var tallies [judges][predictor.Regimes + 1]tally
	for i := min(max(skip, 0), len(rows)); i < len(rows); i++ {
		r := &rows[i]
		if !r.judged() {
			continue
		}
		for j, g := range said(r, &simple[i]) {
			if g.P50 > 0 {
				tallies[j][r.Regime].add(r, g, &simple[i])
				tallies[j][predictor.Regimes].add(r, g, &simple[i])
			}
		}
	}
	var out []Score
	for j, name := range names() {
		for k := range tallies[j] {
			if t := &tallies[j][k]; len(t.errors) > 0 {
				out = append(out, t.score(name, predictor.Regime(k).String()))
			}
		}
	}
	return out
}

// judges is how many there are to be scored: the estimators, what was served,
// the baselines and the oracle.
const judges = int(predictor.Kinds) + 1 + baselines + 1

func names() (out [judges]string) {
	for k := range predictor.Kinds {
		out[k] = k.String()
	}
	out[predictor.Kinds] = Served
	simple := Baselines()
	copy(out[predictor.Kinds+1:], simple[:])
	out[judges-1] = Oracle
	return out
}

// said is what each of them said of a row, in the order of names.
func said(r *Row, simple *[baselines]Guess) (out [judges]Guess) {
	for k := range predictor.Kinds {
		out[k] = guessOf(r.Said[k])
	}
	if r.Served < predictor.Kinds {
		out[predictor.Kinds] = guessOf(r.Said[r.Served])
	}
	copy(out[predictor.Kinds+1:], simple[:])
	out[judges-1] = Guess{P50: r.Oracle.Seconds()}
	return out
}

// tally sums up one estimator's errors in one regime.
type tally struct {
	errors                  []float64 // |P50 − truth| / truth
	abs, bias, below        float64
	bounded                 int // rows with a P95
	covered, pinball        float64
	simple                  [baselines]float64 // pinball losses on these
	oracleRows, oracleError float64
}

func (t *tally) add(r *Row, g Guess, simple *[baselines]Guess) {
	truth := r.TTFT.Seconds()
	t.errors = append(t.errors, math.Abs(g.P50-truth)/truth)
	t.abs += math.Abs(g.P50 - truth)
	t.bias += math.Log(truth / g.P50)
	t.below += float64(one(truth <= g.P50))
	if r.Oracle > 0 {
		t.oracleRows++
		t.oracleError += math.Abs(r.Oracle.Seconds()-truth) / truth
	}
	if g.P95 == 0 {
		return
	}
	t.bounded++
	t.covered += float64(one(truth <= g.P95))
	t.pinball += pinball(truth, g.P95)
	for b := range simple {
		t.simple[b] += pinball(truth, simple[b].P95)
	}
}

// pinball is the loss of a 0.95 quantile: Koenker and Bassett 1978.
func pinball(truth, p95 float64) float64 { return max(0.95*(truth-p95), 0.05*(p95-truth)) }

func (t *tally) score(estimator, regime string) Score {
	rows, bounded := float64(len(t.errors)), float64(t.bounded)
	s := Score{
		Estimator: estimator, Regime: regime, Rows: len(t.errors),
		MAPE: trees.Number(mean(t.errors)), MedianError: trees.Number(median(t.errors)), MAE: trees.Number(t.abs / rows), Bias: trees.Number(t.bias / rows),
		Below:    trees.Number(t.below / rows),
		Coverage: trees.Number(t.covered / bounded), Pinball: trees.Number(t.pinball / bounded), Oracle: trees.Number(t.oracleError / t.oracleRows),
	}
	if t.bounded > 0 {
		s.Skill = map[string]trees.Number{}
		for b, name := range Baselines() {
			s.Skill[name] = trees.Number(1 - t.pinball/t.simple[b])
		}
	}
	return s
}

// median sorts the values.
func median(values []float64) float64 {
	slices.Sort(values)
	return sortedValues(values).quantile(0.5, math.NaN())
}

// Find is the score of an estimator in a regime; nil if there is none.
func Find(scores []Score, estimator, regime string) *Score {
	for i := range scores {
		if scores[i].Estimator == estimator && scores[i].Regime == regime {
			return &scores[i]
		}
	}
	return nil
}

// Best is the baseline with the lowest of a figure in a regime.
func Best(scores []Score, regime string, figure func(*Score) trees.Number) *Score {
	var best *Score
	for _, name := range Baselines() {
		if s := Find(scores, name, regime); s != nil && (best == nil || figure(s) < figure(best)) {
			best = s
		}
	}
	return best
}
