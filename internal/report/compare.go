package report

import (
	"math/rand/v2"
	"slices"
)

// Difference is how one run compares with a base run over several seeds.
type Difference struct {
	Name   string  `json:"name"`
	Metric string  `json:"metric"`
	Ratio  float64 `json:"ratio"` // mean of name over mean of base; at most a million
	Low    float64 `json:"low"`   // 95 % bootstrap interval of the ratio
	High   float64 `json:"high"`
	Seeds  int     `json:"seeds"`
}

// Sure reports whether the interval leaves no doubt which run is larger.
func (d Difference) Sure() bool { return d.Seeds >= EnoughSeeds && (d.Low > 1 || d.High < 1) }

// EnoughSeeds is the fewest that can make sure of a difference: that so many
// agree by chance happens in less than one of twenty cases.
const EnoughSeeds = 6

const (
	resamples = 2000
	// farthest is the largest ratio there is, as when the base has nothing.
	farthest = 1e6
)

// Compare gives the ratio of a figure between two policies, each run with the
// same seeds in the same order, with a percentile bootstrap interval over the
// seeds (Efron and Tibshirani 1993, chapter 13). Pairs are drawn whole, so
// that what a seed does to both cancels out.
func Compare(name, metric string, policy, base []float64) Difference {
	n := min(len(policy), len(base))
	d := Difference{Name: name, Metric: metric, Seeds: n}
	if n == 0 {
		return d
	}
	ratio := func(pick func(int) int) float64 {
		p, b := 0.0, 0.0
		for i := range n {
			k := pick(i)
			p, b = p+policy[k], b+base[k]
		}
		if p == b {
			return 1 // also of nothing and nothing
		}
		return min(p/b, farthest)
	}
	d.Ratio = ratio(func(i int) int { return i })
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	draws := make([]float64, resamples)
	for i := range draws {
		draws[i] = ratio(func(int) int { return rng.IntN(n) })
	}
	slices.Sort(draws)
	d.Low, d.High = Quantile(draws, .025), Quantile(draws, .975)
	return d
}
