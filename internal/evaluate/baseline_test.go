package evaluate

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// Nobody knows a time before the first token has come.
func TestBaselinesKnowWhatHasCome(t *testing.T) {
	t.Parallel()
	rows := []Row{
		row("a", 0, 10), // known at 10 s
		row("a", 1, 1),  // known at 2 s
		row("a", 3, 1),
		row("a", 10, 1), // the instant at which the 10 s are known
	}
	inOrder(rows)
	got := guesses(rows)
	for b, name := range Baselines() {
		if got[0][b].P50 != 0 || got[1][b].P50 != 0 {
			t.Errorf("%s guesses before any first token", name)
		}
	}
	near(t, "constant at 3 s", got[2][Constant].P50, 1)
	near(t, "last-5 at 3 s", got[2][LastFive].P50, 1)
	near(t, "constant at 10 s", got[3][Constant].P50, 1)
	near(t, "last-5 at 10 s", got[3][LastFive].P50, (10+1+1)/3.0)
	near(t, "peak-ewma at 10 s", got[3][PeakEWMA].P50, 10)
}

func TestLastFiveForgetsAndKeepsInstancesApart(t *testing.T) {
	t.Parallel()
	var rows []Row
	for i := range 7 {
		rows = append(rows, row("a", float64(10*i), float64(i+1)))
	}
	rows = append(rows, row("b", 100, 1), row("a", 101, 1))
	got := guesses(rows)
	near(t, "of a", got[8][LastFive].P50, (3+4+5+6+7)/5.0)
	near(t, "of b, which falls back to the constant", got[7][LastFive].P50, 4)
}

func TestWaitingDividesByTheRate(t *testing.T) {
	t.Parallel()
	rows := []Row{row("a", 0, 2), row("a", 1, 3), row("a", 6, 1)} // first tokens at 2 and 4 s
	rows[2].Features[predictor.PendingRequests] = 3
	// Since the first of two first tokens 4 s have gone by: 2 s each, for 3 + 1.
	near(t, "waiting/rate", guesses(rows)[2][Waiting].P50, 8)
}

func TestPeakEWMARisesAtOnceAndFallsSlowly(t *testing.T) {
	t.Parallel()
	rows := []Row{row("a", 6, 4), row("a", 18, 2), row("a", 20, 1)} // known at 10 and 20 s
	near(t, "peak-ewma", guesses(rows)[2][PeakEWMA].P50, 4*math.Exp(-1)+2*(1-math.Exp(-1)))
}

// A baseline's P95 holds for 95 % of what it was wrong about so far.
func TestBaselinesWiden(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	var rows []Row
	for i := range 3000 {
		rows = append(rows, row("a", 10*float64(i), 20*math.Exp(rng.NormFloat64())))
	}
	for _, s := range Judge(rows, 500) {
		if s.Regime == All && math.Abs(float64(s.Coverage)-.95) > .015 {
			t.Errorf("%s covers %.3f", s.Estimator, s.Coverage)
		}
	}
	for i, all := range guesses(rows) {
		for b, g := range all {
			if g.P95 < g.P50 || math.IsNaN(g.P95) || math.IsInf(g.P95, 0) {
				t.Fatalf("row %d: %s says P50 %v, P95 %v", i, Baselines()[b], g.P50, g.P95)
			}
		}
	}
}
