package evaluate

import (
	"math"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

func TestChangeReadsTheCurve(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	for name, c := range map[string]struct {
		curve                              []moment
		before, highest, over, back, later float64
	}{
		"never over":   {[]moment{{-1, .05}, {1, .11}, {2, .12}}, .05, .12, nan, 0, 0},
		"back":         {[]moment{{-1, .2}, {1, .1}, {2, .3}, {5, .13}, {9, .12}, {10, .05}, {11, .2}, {12, .1}}, .2, .3, 2, 9, .25},
		"not back":     {[]moment{{1, .3}, {2, .2}}, nan, .3, 1, nan, 0},
		"nothing seen": {nil, nan, 0, nan, 0, 0},
	} {
		var got Change
		got.read(c.curve)
		near(t, name+": before", float64(got.Before), c.before)
		near(t, name+": highest", float64(got.Highest), c.highest)
		near(t, name+": over", float64(got.Over), c.over)
		near(t, name+": back", float64(got.Back), c.back)
		near(t, name+": later", float64(got.Later), c.later)
	}
}

func TestSlidingIsOverTheEnginesLastFifty(t *testing.T) {
	t.Parallel()
	var rows []Row
	for i := range 60 {
		p50 := 1.0
		if i >= 10 {
			p50 = 2
		}
		rows = append(rows, row("a", float64(i), 1).said(predictor.Analytic, p50, 3), row("b", float64(i), 1).said(predictor.Analytic, 9, 9))
	}
	curve := sliding(rows, "a", instant(31))
	if len(curve) != 60 {
		t.Fatalf("%d moments", len(curve))
	}
	near(t, "first", curve[0].error, 0)
	near(t, "time", curve[30].at, 0)
	near(t, "middle", curve[19].error, .5)
	near(t, "last", curve[59].error, 1)
}

// A slowed engine shows, and an unchanged load of one rate is left alone.
func TestSlowAndSteady(t *testing.T) {
	t.Parallel()
	f := smallFleet(800, 0.02)
	c, err := f.Slow(1, 0, 200*time.Second, 3)
	if err != nil {
		t.Fatal(err)
	}
	if !(c.Highest > c.Before) || c.Engine != "a" || c.At != 200 {
		t.Errorf("a change to a third of the speed does not show: %+v", c)
	}
	s, err := f.Steady(4, 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if s.Requests < 1100 || s.Requests > 1300 || math.Abs(s.Seconds-300) > 10 {
		t.Errorf("4 requests a second for 5 minutes: %+v", s)
	}
	rate, long, err := f.Pace()
	if err != nil || math.Abs(rate-2) > .2 || math.Abs(long.Seconds()-400) > 40 {
		t.Errorf("pace %v over %v, %v", rate, long, err)
	}
}
