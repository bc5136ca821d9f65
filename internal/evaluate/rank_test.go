package evaluate

import (
	"math"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

func TestKendallByHand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b []float64
		want float64
	}{
		{[]float64{1, 2, 3, 4}, []float64{10, 20, 30, 40}, 1},
		{[]float64{1, 2, 3, 4}, []float64{4, 3, 2, 1}, -1},
		{[]float64{1, 2, 3, 4}, []float64{1, 2, 4, 3}, 4.0 / 6},
		{[]float64{1, 2, 3}, []float64{1, 1, 2}, 2 / math.Sqrt(3*2)}, // a tie in one
		{[]float64{1, 2, 3}, []float64{5, 5, 5}, math.NaN()},
	} {
		near(t, "tau", kendall(c.a, c.b), c.want)
	}
}

func TestRankingByHand(t *testing.T) {
	t.Parallel()
	prospect := func(said, truth float64) replay.Prospect {
		return replay.Prospect{Foreseen: predictor.Forecast{Prediction: predictor.Prediction{P50: seconds(said)}}, Oracle: seconds(truth)}
	}
	var r ranking
	r.add([]replay.Prospect{prospect(1, 2), prospect(2, 3), prospect(.1, 1e6)})      // one can't serve it: right
	r.add([]replay.Prospect{prospect(1, 3), prospect(2, 1)})                         // 2 s too many
	r.add([]replay.Prospect{prospect(1, 3), {Oracle: time.Duration(math.MaxInt64)}}) // no choice
	got := r.rank()
	if got.Decisions != 2 {
		t.Fatalf("%d decisions", got.Decisions)
	}
	near(t, "tau", float64(got.Tau), 0)
	near(t, "best", float64(got.Best), .5)
	near(t, "regret", float64(got.Regret), 5.0/3-1)
}
