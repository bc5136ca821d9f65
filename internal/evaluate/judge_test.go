package evaluate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

func TestJudgeByHand(t *testing.T) {
	t.Parallel()
	censored := row("a", 5, 9).said(predictor.Analytic, 1, 2)
	censored.Censored = true
	rows := []Row{
		row("a", 0, 1).said(predictor.Analytic, 9, 9), // warm-up
		row("a", 10, 1.0).said(predictor.Analytic, 1.1, 1.5),
		row("a", 20, 2.0).said(predictor.Analytic, 1.0, 1.8),
		row("a", 30, 4.0).said(predictor.Analytic, 4.0, 4.0).said(predictor.Linear, 8, 12),
		censored,
	}
	rows[2].Regime, rows[3].Regime = predictor.Busy, predictor.Busy
	rows[1].Oracle, rows[2].Oracle, rows[3].Oracle = seconds(1), seconds(2.2), seconds(3)
	scores := Judge(rows, 1)
	for _, want := range []struct {
		estimator, regime                                             string
		rows                                                          int
		mape, median, mae, bias, below, coverage, pinball, oracleMAPE float64
	}{
		{"analytic", "idle", 1, .1, .1, .1, math.Log(1 / 1.1), 1, 1, .05 * .5, 0},
		{"analytic", "busy", 2, .25, 0, .5, math.Log(2) / 2, .5, .5, .95 * .2 / 2, (.1 + .25) / 2},
		{"linear", "busy", 1, 1, 1, 4, -math.Log(2), 1, 1, .05 * 8, .25},
		{"oracle", "all", 3, (.1 + .25) / 3, .1, 1.2 / 3, (math.Log(2/2.2) + math.Log(4.0/3)) / 3, 2.0 / 3, math.NaN(), math.NaN(), (.1 + .25) / 3},
	} {
		s := Find(scores, want.estimator, want.regime)
		if s == nil || s.Rows != want.rows {
			t.Errorf("%s, %s: got %+v, want %d rows", want.estimator, want.regime, s, want.rows)
			continue
		}
		name := want.estimator + " " + want.regime + " "
		near(t, name+"MAPE", float64(s.MAPE), want.mape)
		near(t, name+"median", float64(s.MedianError), want.median)
		near(t, name+"MAE", float64(s.MAE), want.mae)
		near(t, name+"bias", float64(s.Bias), want.bias)
		near(t, name+"below", float64(s.Below), want.below)
		near(t, name+"coverage", float64(s.Coverage), want.coverage)
		near(t, name+"pinball", float64(s.Pinball), want.pinball)
		near(t, name+"oracle", float64(s.Oracle), want.oracleMAPE)
	}
	// The constant knows the 1 s of the warm-up, then also the 1 s, then the 2 s.
	constant := Find(scores, "constant", "busy")
	near(t, "constant MAPE", float64(constant.MAPE), (.5+.75)/2)
	if served := Find(scores, Served, All); served.Rows != 3 {
		t.Errorf("what served has %d rows, want 3: the first is skipped and the censored one has no truth", served.Rows)
	}
}

func TestSkillIsRelative(t *testing.T) {
	t.Parallel()
	var rows []Row
	for i := range 100 {
		rows = append(rows, row("a", float64(i), 0.5).said(predictor.Analytic, .5, .6))
	}
	rows[99].TTFT = seconds(2)
	// On the last row the constant says 0.5 s for P95, the estimator 0.6 s.
	s := Find(Judge(rows, 99), "analytic", All)
	near(t, "skill", float64(s.Skill["constant"]), 1-(2-.6)/(2-.5))
}

// What is judged does not depend on the order in which rows are kept.
func TestJudgeDoesNotDependOnOrder(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	var rows []Row
	for i := range 400 {
		r := row(string(rune('a'+i%3)), float64(i)*.1, rng.ExpFloat64()).said(predictor.Analytic, 1, 3)
		r.Features[predictor.PendingRequests] = float64(rng.IntN(4))
		rows = append(rows, r)
	}
	want := Judge(rows, 50)
	rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	if got := Judge(rows, 50); fmt.Sprint(got) != fmt.Sprint(want) { // NaN is not equal to itself
		t.Errorf("shuffled rows are judged otherwise:\n%v\n%v", got, want)
	}
}

func TestTargets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s                         Score
		truth, oracle, calibrated bool
	}{
		{Score{MAPE: .12, Oracle: .10, Coverage: .93}, true, true, true},
		{Score{MAPE: .121, Oracle: .10, Coverage: .929}, false, true, false},
		{Score{MAPE: .049, Oracle: .03, Coverage: .97}, true, true, true},
		{Score{MAPE: .051, Oracle: .039, Coverage: .971}, true, false, false},
		{Score{MAPE: .051, Oracle: .041, Coverage: .95}, true, true, true},
	} {
		if c.s.NearTruth() != c.truth || c.s.NearOracle() != c.oracle || c.s.Calibrated() != c.calibrated {
			t.Errorf("%+v: got %v, %v, %v", c, c.s.NearTruth(), c.s.NearOracle(), c.s.Calibrated())
		}
	}
}
