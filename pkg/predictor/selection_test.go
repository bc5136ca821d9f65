package predictor_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

const (
	analytic = predictor.Analytic
	linear   = predictor.Linear
	trees    = predictor.LightGBM
)

// standing is one where nothing needs to change: brisk, even traffic, every
// estimator ready and good, no switch for an hour. The incumbent is the analytic one.
func standing(changes ...func(*predictor.Standing)) predictor.Standing {
	s := predictor.Standing{Incumbent: analytic, Since: time.Hour, Rate: 100, CV: 0.3}
	for k := range predictor.Kinds {
		s.Scores[k] = predictor.Score{Rows: 500, MAPE: 0.05}
		s.Ready[k] = true
	}
	for _, change := range changes {
		change(&s)
	}
	return s
}

type standingOption = func(*predictor.Standing)

func incumbent(k predictor.Kind) standingOption {
	return func(s *predictor.Standing) { s.Incumbent = k }
}
func since(d time.Duration) standingOption { return func(s *predictor.Standing) { s.Since = d } }
func rate(v float64) standingOption        { return func(s *predictor.Standing) { s.Rate = v } }
func cv(v float64) standingOption          { return func(s *predictor.Standing) { s.CV = v } }
func notReady(k predictor.Kind) standingOption {
	return func(s *predictor.Standing) { s.Ready[k] = false }
}
func ousted(k predictor.Kind) standingOption {
	return func(s *predictor.Standing) { s.Ousted[k] = true }
}
func mape(k predictor.Kind, v float64) standingOption {
	return func(s *predictor.Standing) { s.Scores[k].MAPE = v }
}
func rows(k predictor.Kind, n int) standingOption {
	return func(s *predictor.Standing) { s.Scores[k].Rows = n }
}

func TestChoose(t *testing.T) {
	bad := mape(analytic, 0.2)
	tests := map[string]struct {
		standing predictor.Standing
		want     predictor.Kind
		why      string
	}{
		"all is well": {standing(), analytic, predictor.WhyKept},

		"low rate":                           {standing(rate(49.9)), linear, predictor.WhyLowRate},
		"at the low rate":                    {standing(rate(50)), analytic, predictor.WhyKept},
		"no request at all":                  {standing(rate(0), cv(nan)), linear, predictor.WhyLowRate},
		"rate not known":                     {standing(rate(nan), cv(nan)), analytic, predictor.WhyKept},
		"low rate, linear already":           {standing(rate(1), incumbent(linear)), linear, predictor.WhyKept},
		"low rate, linear was ousted":        {standing(rate(1), ousted(linear)), analytic, predictor.WhyKept},
		"low rate, linear not ready":         {standing(rate(1), notReady(linear)), analytic, predictor.WhyKept},
		"low rate takes from LightGBM too":   {standing(rate(1), incumbent(trees)), linear, predictor.WhyLowRate},
		"low rate after the dwell":           {standing(rate(1), since(30*time.Second)), linear, predictor.WhyLowRate},
		"low rate within the dwell":          {standing(rate(1), since(30*time.Second-1)), analytic, predictor.WhyKept},
		"low rate, linear not judged so far": {standing(rate(1), rows(linear, 0)), linear, predictor.WhyLowRate},

		"volatile":                        {standing(cv(0.81)), trees, predictor.WhyVolatile},
		"at the limit of volatile":        {standing(cv(0.8)), analytic, predictor.WhyKept},
		"CV not known":                    {standing(cv(nan)), analytic, predictor.WhyKept},
		"infinite CV":                     {standing(cv(math.Inf(1))), trees, predictor.WhyVolatile},
		"volatile, LightGBM not ready":    {standing(cv(2), notReady(trees)), analytic, predictor.WhyKept},
		"volatile, LightGBM was ousted":   {standing(cv(2), ousted(trees)), analytic, predictor.WhyKept},
		"volatile, LightGBM already":      {standing(cv(2), incumbent(trees)), trees, predictor.WhyKept},
		"volatile within the dwell":       {standing(cv(2), since(time.Second)), analytic, predictor.WhyKept},
		"volatile comes before low rate":  {standing(cv(2), rate(1)), trees, predictor.WhyVolatile},
		"volatile at a low rate, no tree": {standing(cv(2), rate(1), notReady(trees)), analytic, predictor.WhyKept},

		"error":                               {standing(bad, mape(linear, 0.1), mape(trees, 0.08)), trees, predictor.WhyError},
		"error at the limit":                  {standing(mape(analytic, 0.12)), analytic, predictor.WhyKept},
		"just over it":                        {standing(mape(analytic, 0.1201)), linear, predictor.WhyError},
		"error: the lowest successor":         {standing(bad, mape(linear, 0.09), mape(trees, 0.1)), linear, predictor.WhyError},
		"error: a tie goes to the first":      {standing(bad, mape(linear, 0.1), mape(trees, 0.1)), linear, predictor.WhyError},
		"error: nobody better":                {standing(bad, mape(linear, 0.3), mape(trees, 0.25)), analytic, predictor.WhyKept},
		"error: all alike":                    {standing(bad, mape(linear, 0.2), mape(trees, 0.2)), analytic, predictor.WhyKept},
		"error: better by the margin":         {standing(bad, mape(linear, 0.18), mape(trees, 0.3)), linear, predictor.WhyError},
		"error: better by less":               {standing(bad, mape(linear, 0.181), mape(trees, 0.3)), analytic, predictor.WhyKept},
		"error: better, but over the limit":   {standing(bad, mape(linear, 0.15), mape(trees, 0.16)), linear, predictor.WhyError},
		"error: the lowest not ready":         {standing(bad, notReady(trees), mape(trees, 0.01), mape(linear, 0.1)), linear, predictor.WhyError},
		"error: the lowest was ousted":        {standing(bad, ousted(trees), mape(trees, 0.01)), trees, predictor.WhyError},
		"error: too few of its own":           {standing(bad, rows(analytic, 49)), analytic, predictor.WhyKept},
		"error: just enough":                  {standing(bad, rows(analytic, 50)), linear, predictor.WhyError},
		"error: too few of the successor's":   {standing(bad, rows(linear, 49), mape(trees, 0.1)), trees, predictor.WhyError},
		"error: too few of everybody's":       {standing(bad, rows(linear, 49), rows(trees, 0)), analytic, predictor.WhyKept},
		"error within the dwell":              {standing(bad, since(29*time.Second)), analytic, predictor.WhyKept},
		"error comes before volatile":         {standing(incumbent(linear), mape(linear, 0.2), mape(analytic, 0.02), cv(2)), analytic, predictor.WhyError},
		"error comes before low rate":         {standing(bad, rate(1), mape(trees, 0.01)), trees, predictor.WhyError},
		"error: nobody better, nor the rates": {standing(bad, rate(1), mape(linear, 0.3), mape(trees, 0.3)), analytic, predictor.WhyKept},
		"volatile, but the trees are worse":   {standing(incumbent(linear), mape(linear, 0.05), mape(trees, 0.08), cv(2)), linear, predictor.WhyKept},
		"volatile, and the trees as good":     {standing(incumbent(linear), mape(linear, 0.05), mape(trees, 0.054), cv(2)), trees, predictor.WhyVolatile},
		"error not known":                     {standing(mape(analytic, nan)), analytic, predictor.WhyKept},
		"a successor's error not known":       {standing(bad, mape(linear, nan), mape(trees, nan)), analytic, predictor.WhyKept},
		"infinite error":                      {standing(mape(analytic, math.Inf(1))), linear, predictor.WhyError},
		"ousted, but nothing is better since": {standing(incumbent(linear), ousted(analytic), rate(1)), linear, predictor.WhyKept},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, why := predictor.Rules{}.Choose(test.standing)
			if got != test.want || why != test.why {
				t.Errorf("%v for %q, want %v for %q", got, why, test.want, test.why)
			}
			if again, _ := (predictor.Rules{}).Choose(test.standing); again != got {
				t.Errorf("the same standing: first %v, then %v", got, again)
			}
		})
	}
}

func TestRulesAreTaken(t *testing.T) {
	own := predictor.Rules{LowRate: 10, VolatileCV: 2, MaxMAPE: 0.3, MinSamples: 10, Margin: 0.5, Dwell: time.Minute}
	tests := map[string]struct {
		standing predictor.Standing
		want     predictor.Kind
	}{
		"above the low rate":  {standing(rate(11)), analytic},
		"below the low rate":  {standing(rate(9)), linear},
		"not volatile":        {standing(cv(1.9)), analytic},
		"volatile":            {standing(cv(2.1)), trees},
		"error allowed":       {standing(mape(analytic, 0.29)), analytic},
		"error not allowed":   {standing(mape(analytic, 0.31)), linear},
		"enough samples":      {standing(mape(analytic, 0.31), rows(analytic, 10), rows(linear, 10)), linear},
		"too few samples":     {standing(mape(analytic, 0.31), rows(analytic, 9)), analytic},
		"not half the error":  {standing(mape(analytic, 0.4), mape(linear, 0.21), mape(trees, 0.3)), analytic},
		"within the dwell":    {standing(cv(2.1), since(59*time.Second)), analytic},
		"as soon as it ended": {standing(cv(2.1), since(time.Minute)), trees},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got, _ := own.Choose(test.standing); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

// TestChoiceDwells: however the standing walks, switches are never closer than
// the dwell, go to somebody ready, and have a reason.
func TestChoiceDwells(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 5))
		rules := predictor.Rules{Dwell: time.Duration(1+rng.IntN(90)) * time.Second}
		s := standing(incumbent(predictor.Kind(rng.IntN(int(predictor.Kinds)))))
		last := -1
		for second := range 3000 {
			walk(rng, &s)
			before := s
			next, why := rules.Choose(s)
			if s != before {
				t.Fatal("the standing was changed")
			}
			if next == s.Incumbent {
				if why != predictor.WhyKept {
					t.Fatalf("kept for %q", why)
				}
				s.Since += time.Second
				continue
			}
			if gap := time.Duration(second-last) * time.Second; last >= 0 && gap < rules.Dwell {
				t.Fatalf("seed %d: switched after %v, dwell %v", seed, gap, rules.Dwell)
			}
			if !s.Ready[next] || why == predictor.WhyKept {
				t.Fatalf("seed %d: %v, ready %v, for %q", seed, next, s.Ready[next], why)
			}
			last, s.Incumbent, s.Since = second, next, time.Second
		}
		if last < 0 {
			t.Fatalf("seed %d: no switch in 3000 s of walking", seed)
		}
	}
}

// walk moves everything in a standing a little, or a lot.
func walk(rng *rand.Rand, s *predictor.Standing) {
	s.Rate = max(s.Rate*math.Exp(rng.NormFloat64()*0.3), 1)
	s.CV = max(s.CV*math.Exp(rng.NormFloat64()*0.3), 0.05)
	if rng.IntN(20) == 0 {
		s.Rate, s.CV = 100*rng.Float64(), 2*rng.Float64()
	}
	for k := range predictor.Kinds {
		s.Scores[k] = predictor.Score{Rows: rng.IntN(500), MAPE: rng.ExpFloat64() * 0.15}
		s.Ready[k] = rng.IntN(10) > 0
		s.Ousted[k] = rng.IntN(4) == 0
	}
}
