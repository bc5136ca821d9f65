package predictor

import (
	"math"
	"math/rand/v2"
	"testing"
)

// drawFeatures draws features as a busy engine has them.
func drawFeatures(rng *rand.Rand) Features {
	f := unknown()
	f[PromptTokens] = math.Exp(rng.Float64() * 9)
	f[UncachedTokens] = f[PromptTokens] * rng.Float64()
	f[PendingTokens] = rng.ExpFloat64() * 5000
	f[PendingRequests] = float64(rng.IntN(10))
	f[DecodeRequests] = float64(rng.IntN(64))
	f[DecodeContext] = f[DecodeRequests] * 1500 * rng.Float64()
	f[Base] = 0.02 + rng.ExpFloat64()
	f[KVUse], f[HitShare] = rng.Float64(), rng.Float64()
	f[ScrapeAge], f[Phase] = rng.Float64(), rng.Float64()
	f[OwnShare] = rng.Float64()
	f[QueueShare] = 1 - f[OwnShare]
	f[Steps] = float64(1 + rng.IntN(20))
	f[RecentError], f[RecentSpread] = rng.NormFloat64()*0.1, 0.1*rng.Float64()
	f[Blocked] = 0
	return f
}

// TestLinearBeginsWithBase: before it has seen anything it says what the base
// says, whatever the features.
func TestLinearBeginsWithBase(t *testing.T) {
	l := newLinear()
	rng := rand.New(rand.NewPCG(1, 1))
	for r := range Regimes {
		f := drawFeatures(rng)
		p50, p95 := l.predict(&f, r)
		if p50 != 0 || p95 < 0.1 || p95 > 1 {
			t.Errorf("%v: P50 is e^%v, P95 e^%v times the base", r, p50, p95)
		}
	}
}

// TestLinearLearns a law of its features, around noise.
func TestLinearLearns(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	law := func(f *Features) float64 {
		return 0.2 + 0.3*f[QueueShare] - 0.25*f[KVUse] + 0.1*math.Log1p(f[DecodeRequests])/3
	}
	l := newLinear()
	off := 0.0
	for k := range 3000 {
		f := drawFeatures(rng)
		p50, _ := l.predict(&f, Busy)
		if k >= 2000 {
			off += math.Abs(p50-law(&f)) / 1000
		}
		l.observe(&f, Busy, law(&f)+0.05*rng.NormFloat64())
	}
	if off > 0.02 {
		t.Errorf("off by %.1f %% from a law of its features", 100*off)
	}
}

// TestLinearOutliers: one request in twenty that took seven times as long
// doesn't move the rest.
func TestLinearOutliers(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	l := newLinear()
	off := 0.0
	for k := range 6000 {
		f := drawFeatures(rng)
		y := 0.3 * f[QueueShare]
		if k >= 5000 {
			p50, _ := l.predict(&f, Busy)
			off += math.Abs(p50-y) / 1000
		}
		if f[QueueShare] > 0.9 && rng.IntN(2) == 0 {
			y += 2
		}
		l.observe(&f, Busy, y+0.05*rng.NormFloat64())
	}
	if off > 0.1 {
		t.Errorf("off by %.1f %%", 100*off)
	}
}

// TestLinearForgets: a law that changes is learned again.
func TestLinearForgets(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	l := newLinear()
	slope := 0.4
	off := 0.0
	for k := range 12_000 {
		if k == 5000 {
			slope = -0.4
		}
		f := drawFeatures(rng)
		y := slope * f[QueueShare]
		p50, _ := l.predict(&f, Busy)
		if k >= 11_000 {
			off += math.Abs(p50-y) / 1000
		}
		l.observe(&f, Busy, y+0.05*rng.NormFloat64())
	}
	if off > 0.03 {
		t.Errorf("off by %.1f %% long after the law changed", 100*off)
	}
}

// TestLinearCovers: P95 is exceeded by one in twenty, by half of them P50, in
// every regime with noise of its own.
func TestLinearCovers(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	noise := [Regimes]func() float64{
		Idle:   func() float64 { return 0.03 * rng.NormFloat64() },
		Busy:   func() float64 { return 0.2 * rng.NormFloat64() },
		Queued: func() float64 { return 0.3*rng.ExpFloat64() - 0.1 },
		KVFull: func() float64 { return 0.5 * (rng.Float64() - 0.5) },
	}
	l := newLinear()
	var n, under50, under95 [Regimes]float64
	for k := range 20_000 {
		f := drawFeatures(rng)
		r := Regime(rng.IntN(int(Regimes)))
		y := 0.2*f[QueueShare] + noise[r]()
		if p50, p95 := l.predict(&f, r); k > 2000 {
			n[r]++
			if y <= p50 {
				under50[r]++
			}
			if y <= p95 {
				under95[r]++
			}
		}
		l.observe(&f, r, y)
	}
	for r := range Regimes {
		if half, most := under50[r]/n[r], under95[r]/n[r]; math.Abs(half-0.5) > 0.03 || math.Abs(most-0.95) > 0.015 {
			t.Errorf("%v: P50 covers %.3f, P95 %.3f", r, half, most)
		}
	}
}

// TestLinearOfHostileInput: never without a word, never far from the base, and
// sane again afterwards.
func TestLinearOfHostileInput(t *testing.T) {
	odd := []float64{0, -1, 1e-300, 1e9, -1e9, math.Inf(1), math.Inf(-1), math.NaN()}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		l := newLinear()
		for range 300 {
			f := drawFeatures(rng)
			for k := range f {
				if rng.IntN(3) == 0 {
					f[k] = odd[rng.IntN(len(odd))]
				}
			}
			y := odd[rng.IntN(len(odd)-1)] // the truth is a time over a base: any number but NaN
			l.observe(&f, Regime(rng.IntN(int(Regimes))), y)
			p50, p95 := l.predict(&f, Busy)
			if !(math.Abs(p50) <= 10) || !(p95 >= p50) || p95 > 10 {
				t.Fatalf("seed %d: e^%v and e^%v times the base", seed, p50, p95)
			}
		}
		off := 0.0
		for k := range 6000 {
			f := drawFeatures(rng)
			if k >= 5000 {
				p50, _ := l.predict(&f, Busy)
				off += math.Abs(p50-0.3*f[QueueShare]) / 1000
			}
			l.observe(&f, Busy, 0.3*f[QueueShare])
		}
		if off > 0.06 {
			t.Errorf("seed %d: off by %.1f %% long after hostile input", seed, 100*off)
		}
	}
}

// TestLinearIsQuietWithoutNews: the same row a hundred thousand times doesn't
// wind its memory up, so that another is no surprise.
func TestLinearIsQuietWithoutNews(t *testing.T) {
	l := newLinear()
	f := drawFeatures(rand.New(rand.NewPCG(6, 6)))
	for range 100_000 {
		l.observe(&f, Busy, 0.1)
	}
	if p50, _ := l.predict(&f, Busy); math.Abs(p50-0.1) > 0.005 {
		t.Errorf("P50 is e^%v times the base, always was e^0.1", p50)
	}
	other := drawFeatures(rand.New(rand.NewPCG(7, 7)))
	if p50, _ := l.predict(&other, Busy); math.Abs(p50) > 0.5 {
		t.Errorf("another row: e^%v times the base", p50)
	}
	l.observe(&other, Busy, 0.3)
	if p50, _ := l.predict(&f, Busy); math.Abs(p50-0.1) > 0.1 {
		t.Errorf("one other row moved it to e^%v times the base", p50)
	}
}
