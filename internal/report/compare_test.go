package report_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/firsttoken/firsttoken/internal/report"
)

// Of many experiments with a known ratio, about 95 % have it in their interval.
func TestCompareCoversTheRatio(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	const ratio, seeds, experiments = 0.8, 20, 300
	covered, sure := 0, 0
	for range experiments {
		base, policy := make([]float64, seeds), make([]float64, seeds)
		for i := range base {
			load := math.Exp(0.5 * rng.NormFloat64()) // what the seed does to both
			base[i] = load * math.Exp(0.1*rng.NormFloat64())
			policy[i] = ratio * load * math.Exp(0.1*rng.NormFloat64())
		}
		d := report.Compare("p", "f", policy, base)
		if d.Low <= ratio && ratio <= d.High {
			covered++
		}
		if d.Sure() && d.High < 1 {
			sure++
		}
	}
	if share := float64(covered) / experiments; share < 0.86 || share > 0.99 {
		t.Errorf("%.0f %% of the intervals hold the ratio", 100*share)
	}
	if sure < experiments*9/10 {
		t.Errorf("only %d of %d saw that it is lower, although loads are the same for both", sure, experiments)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	some, zeros := []float64{3, 5, 4, 9, 2, 7}, make([]float64, 6)
	for _, c := range []struct {
		name         string
		policy, base []float64
		ratio        float64
		sure         bool
	}{
		{"itself", some, some, 1, false},
		{"half", []float64{1.5, 2.5, 2, 4.5, 1, 3.5}, some, 0.5, true},
		{"one seed shows nothing", []float64{1}, []float64{2}, 0.5, false},
		{"nor do five", []float64{1.5, 2.5, 2, 4.5, 1}, some[:5], 0.5, false},
		{"nothing and nothing", zeros, zeros, 1, false},
		{"something and nothing", some, zeros, 1e6, true},
		{"nothing and something", zeros, some, 0, true},
		{"now and then nothing", []float64{1, 1, 1}, []float64{0, 0, 3}, 1, false},
		{"no seeds", nil, nil, 0, false},
		{"the shorter counts", []float64{1, 2, 3}, []float64{1, 2}, 1, false},
	} {
		d := report.Compare("p", "f", c.policy, c.base)
		if d.Ratio != c.ratio || d.Sure() != c.sure || d.Low > d.Ratio || d.High < d.Ratio || math.IsNaN(d.Low) || math.IsInf(d.High, 0) {
			t.Errorf("%s: %+v, sure %v", c.name, d, d.Sure())
		}
		if again := report.Compare("p", "f", c.policy, c.base); again != d {
			t.Errorf("%s: once more it is %+v after %+v", c.name, again, d)
		}
	}
}
