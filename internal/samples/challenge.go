package samples

import (
	"fmt"
	"math"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// Heads predicts two quantiles of log(TTFT / base) from a row of features, as
// *trees.Bundle does.
type Heads interface {
	Predict(row []float64) (p50, p95 float64, err error)
}

// Estimate gives P50 and P95 of a sample in seconds; not ok if it has nothing
// to say.
type Estimate func(s *predictor.Sample) (p50, p95 float64, ok bool)

// Trees estimates with a model, not calibrated.
func Trees(h Heads) Estimate {
	return func(s *predictor.Sample) (float64, float64, bool) {
		base := s.Features[predictor.Base]
		p50, p95, err := h.Predict(s.Features[:])
		if err != nil || !(base > 0) || math.IsInf(base, 1) {
			return 0, 0, false
		}
		return base * math.Exp(p50), base * math.Exp(max(p50, p95)), true
	}
}

// What a new model must show.
const (
	minContest = 200  // samples; and in a regime for it to be judged apart
	tolerated  = 1.05 // loss in a regime, relative to the champion's
)

// Result is how one side of a contest did.
type Result struct {
	Loss float64 // mean pinball loss of both heads together, of the logarithm of the time
	trees.Metrics
}

// Contest is a champion and its challenger on the same samples.
type Contest struct {
	Regime               predictor.Regime // Regimes is all of them
	Champion, Challenger Result
}

// Verdict is whether a challenger may serve, and the numbers that say so.
type Verdict struct {
	Contests []Contest // the last is over all regimes
	Against  []string  // why it may not
}

// Accepted says whether the challenger may serve.
func (v *Verdict) Accepted() bool { return len(v.Against) == 0 }

// Challenge lets both predict the samples that were sent after a time at which
// neither had been trained, and judges.
func Challenge(samples Sequence, after time.Time, champion, challenger Estimate) (*Verdict, error) {
	var old, young [predictor.Regimes + 1]scorer
	for s, err := range samples {
		if err != nil {
			return nil, err
		}
		if !s.At.After(after) {
			continue
		}
		a50, a95, ok := champion(&s)
		b50, b95, too := challenger(&s)
		if !ok || !too {
			continue
		}
		for _, r := range []predictor.Regime{s.Regime, predictor.Regimes} {
			old[r].add(&s, a50, a95)
			young[r].add(&s, b50, b95)
		}
	}
	v := &Verdict{}
	for r := range old {
		v.Contests = append(v.Contests, Contest{predictor.Regime(r), old[r].result(), young[r].result()})
	}
	v.Against = judge(v.Contests)
	return v, nil
}

func (sc *scorer) result() Result {
	return Result{Loss: sc.p50.mean() + sc.p95.mean(), Metrics: sc.metrics()}
}

// judge is the rule: a challenger serves if its loss is lower in total and not
// much higher in any regime, and if its P95 is one. It returns what speaks
// against it. Pure.
func judge(contests []Contest) (against []string) {
	all := contests[len(contests)-1]
	if all.Challenger.Rows < minContest {
		return []string{fmt.Sprintf("only %d samples are newer than what both were trained on, %d are needed", all.Challenger.Rows, minContest)}
	}
	if !(all.Challenger.Loss < all.Champion.Loss) {
		against = append(against, fmt.Sprintf("the loss is %.4g, the champion's %.4g", all.Challenger.Loss, all.Champion.Loss))
	}
	for _, c := range contests[:len(contests)-1] {
		if c.Challenger.Rows >= minContest && !(c.Challenger.Loss <= tolerated*c.Champion.Loss) {
			against = append(against, fmt.Sprintf("%s: the loss is %.4g, the champion's %.4g", c.Regime, c.Challenger.Loss, c.Champion.Loss))
		}
	}
	if c := float64(all.Challenger.Coverage); !(c >= predictor.DriftLow && c <= predictor.DriftHigh) {
		against = append(against, fmt.Sprintf("P95 covers %.1f %%; %.0f to %.1f are right", 100*c, 100*predictor.DriftLow, 100*predictor.DriftHigh))
	}
	return against
}
