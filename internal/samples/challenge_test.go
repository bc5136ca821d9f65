package samples

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

func TestRuleOfChallenge(t *testing.T) {
	result := func(rows int, loss, coverage float64) Result {
		return Result{Loss: loss, Metrics: trees.Metrics{Rows: rows, Coverage: trees.Number(coverage)}}
	}
	contest := func(r predictor.Regime, rows int, champion, challenger float64) Contest {
		return Contest{r, result(rows, champion, 0.95), result(rows, challenger, 0.95)}
	}
	covers := func(share float64) Contest {
		return Contest{predictor.Regimes, result(1000, 0.2, 0.95), result(1000, 0.1, share)}
	}
	for name, row := range map[string]struct {
		contests []Contest
		against  []string // empty: accepted
	}{
		"better":                 {[]Contest{contest(predictor.Regimes, 1000, 0.2, 0.19)}, nil},
		"equal":                  {[]Contest{contest(predictor.Regimes, 1000, 0.2, 0.2)}, []string{"the loss is 0.2"}},
		"worse":                  {[]Contest{contest(predictor.Regimes, 1000, 0.2, 0.21)}, []string{"the loss is 0.21, the champion's 0.2"}},
		"unknown":                {[]Contest{contest(predictor.Regimes, 1000, math.NaN(), 0.1)}, []string{"the loss"}},
		"few samples":            {[]Contest{contest(predictor.Regimes, 199, 0.2, 0.1)}, []string{"only 199 samples"}},
		"a little worse in one":  {[]Contest{contest(predictor.KVFull, 200, 0.2, 0.209), contest(predictor.Regimes, 1000, 0.2, 0.1)}, nil},
		"worse in one regime":    {[]Contest{contest(predictor.KVFull, 200, 0.2, 0.211), contest(predictor.Regimes, 1000, 0.2, 0.1)}, []string{"kv_full: the loss"}},
		"worse in a rare regime": {[]Contest{contest(predictor.KVFull, 199, 0.2, 0.9), contest(predictor.Regimes, 1000, 0.2, 0.1)}, nil},
		"P95 too low":            {[]Contest{covers(0.899)}, []string{"P95 covers 89.9 %"}},
		"P95 just high enough":   {[]Contest{covers(0.90)}, nil},
		"P95 just low enough":    {[]Contest{covers(0.985)}, nil},
		"P95 too high":           {[]Contest{covers(0.99)}, []string{"P95 covers 99.0 %"}},
		"coverage unknown":       {[]Contest{covers(math.NaN())}, []string{"P95 covers"}},
	} {
		t.Run(name, func(t *testing.T) {
			v := Verdict{Contests: row.contests, Against: judge(row.contests)}
			if v.Accepted() != (len(row.against) == 0) {
				t.Errorf("accepted: %v; %q", v.Accepted(), v.Against)
			}
			for _, want := range row.against {
				if !strings.Contains(strings.Join(v.Against, "; "), want) {
					t.Errorf("%q does not say %q", v.Against, want)
				}
			}
		})
	}
}

// heads predicts with constants.
type heads struct{ p50, p95 float64 }

func (h heads) Predict([]float64) (p50, p95 float64, err error) { return h.p50, h.p95, nil }

func silent(*predictor.Sample) (p50, p95 float64, ok bool) { return 0, 0, false }

// noisy are samples of which log(TTFT/base) is normal around 0.2 with deviation 0.1.
func noisy(n int) []predictor.Sample {
	rng := rand.New(rand.NewPCG(1, 2))
	all := some(n)
	for i := range all {
		s := &all[i]
		s.Features[predictor.Base] = 0.1 * (1 + rng.Float64())
		s.TTFT = time.Duration(s.Features[predictor.Base] * math.Exp(0.2+0.1*rng.NormFloat64()) * float64(time.Second))
		s.Censored = false
	}
	return all
}

func TestChallenge(t *testing.T) {
	right, off := Trees(heads{0.2, 0.2 + 1.645*0.1}), Trees(heads{0, 0.1645})
	all := noisy(3000)
	for name, row := range map[string]struct {
		champion, challenger Estimate
		after                time.Time
		accepted             bool
	}{
		"the right one":             {off, right, time.Time{}, true},
		"the wrong one":             {right, off, time.Time{}, false},
		"itself":                    {right, right, time.Time{}, false},
		"one that says nothing":     {off, silent, time.Time{}, false},
		"after all samples":         {off, right, all[len(all)-1].At, false},
		"after all but 200 samples": {off, right, all[len(all)-201].At, true},
		"after all but 199 samples": {off, right, all[len(all)-200].At, false},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := Challenge(sequence(all...), row.after, row.champion, row.challenger)
			if err != nil {
				t.Fatal(err)
			}
			if v.Accepted() != row.accepted {
				t.Errorf("accepted: %v; %q; %+v", v.Accepted(), v.Against, v.Contests)
			}
		})
	}
}

// A sample that is a lower bound never speaks against a prediction above it.
func TestBoundsAboveThePredictionCount(t *testing.T) {
	all := noisy(1000)
	for i := range all { // the client left after a tenth of the wait
		all[i].Censored, all[i].TTFT = true, all[i].TTFT/10
	}
	v, err := Challenge(sequence(all...), time.Time{}, Trees(heads{-9, -9}), Trees(heads{0.2, 0.4}))
	if err != nil {
		t.Fatal(err)
	}
	last := v.Contests[len(v.Contests)-1]
	if last.Challenger.Loss != 0 || last.Champion.Loss < 1 {
		t.Errorf("loss %v of predictions above the bounds, %v of those below", last.Challenger.Loss, last.Champion.Loss)
	}
}
