package predictor

import (
	"math"
	"math/rand/v2"
	"testing"
)

// slowSpeed is an engine that differs from the generic one in everything.
var slowSpeed = Speed{Fixed: 0.009, Step: 0.028, Token: 110e-6, Seq: 150e-6, Context: 170e-9, Square: 2.5e-9}

// spans makes up what an engine of a speed does.
type spans struct {
	speed terms
	rng   *rand.Rand
	noise float64 // relative, of each span
}

func newSpans(s Speed, noise float64) *spans {
	return &spans{speed: s.vector(), rng: rand.New(rand.NewPCG(1, 1)), noise: noise}
}

func (s *spans) seconds(x *terms) float64 {
	return dot(&s.speed, x) * max(1+s.noise*s.rng.NormFloat64(), 0.3)
}

// decode is a step that decodes only.
func (s *spans) decode() terms {
	n := float64(1 + s.rng.IntN(64))
	return terms{steps: 1, seqs: n, context: n * (100 + 3000*s.rng.Float64())}
}

// mixed is a step with prompt tokens, at times the first after an idle time.
func (s *spans) mixed() terms {
	x := s.decode()
	x[tokens] = math.Exp(s.rng.Float64()*5 + 4)
	if s.rng.IntN(4) == 0 {
		from := s.rng.IntN(40_000)
		x[tokens] = 8192
		x[square] = squares(from, from+8192)
	}
	if s.rng.IntN(6) == 0 {
		x[seqs], x[context], x[fixed] = 0, 0, 1
	}
	return x
}

func (s *spans) any() terms {
	if s.rng.IntN(3) == 0 {
		return s.mixed()
	}
	return s.decode()
}

// feed lets a speedometer see n spans and returns how long they took.
func (s *spans) feed(m *speedometer, n int, make func() terms) (took float64) {
	for range n {
		x := make()
		seconds := s.seconds(&x)
		m.observe(&x, seconds)
		took += seconds
	}
	return took
}

// off is the mean relative error of what the speedometer expects of new spans.
func (s *spans) off(m *speedometer, make func() terms) float64 {
	sum := 0.0
	for range 300 {
		x := make()
		sum += math.Abs(m.expect(&x)/dot(&s.speed, &x) - 1)
	}
	return sum / 300
}

var priceNames = [...]string{fixed: "fixed", steps: "step", tokens: "token", seqs: "seq", context: "context", square: "square"}

func wantPrices(t *testing.T, m *speedometer, want Speed, tolerance map[int]float64) {
	t.Helper()
	now, w := m.speed(), want.vector()
	got := now.vector()
	for price, allowed := range tolerance {
		if off := math.Abs(got[price]/w[price] - 1); off > allowed {
			t.Errorf("price of a %s: %.4g, is %.4g", priceNames[price], got[price], w[price])
		}
	}
}

// wantBounded wants prices that are numbers, none negative.
func wantBounded(t *testing.T, m *speedometer) {
	t.Helper()
	now := m.speed()
	for price, v := range now.vector() {
		if !(v >= 0) || math.IsInf(v, 0) {
			t.Fatalf("price of a %s: %v", priceNames[price], v)
		}
	}
}

func TestSpeedometerRecoversPrices(t *testing.T) {
	tests := map[string]struct {
		prior, speed Speed
		noise        float64
		tolerance    map[int]float64
	}{
		"no noise":             {genericSpeed, slowSpeed, 0, map[int]float64{fixed: 0.03, steps: 0.02, tokens: 0.02, seqs: 0.05, context: 0.05, square: 0.03}},
		"5 % noise":            {genericSpeed, slowSpeed, 0.05, map[int]float64{fixed: 0.25, steps: 0.04, tokens: 0.04, seqs: 0.15, context: 0.12, square: 0.05}},
		"faster than thought":  {slowSpeed, genericSpeed, 0.05, map[int]float64{fixed: 0.5, steps: 0.05, tokens: 0.05, seqs: 0.15, context: 0.15, square: 0.05}},
		"as thought":           {slowSpeed, slowSpeed, 0.05, map[int]float64{fixed: 0.25, steps: 0.04, tokens: 0.04, seqs: 0.15, context: 0.12, square: 0.05}},
		"one price ten times":  {genericSpeed, Speed{0.004, 0.010, 400e-6, 60e-6, 60e-9, 1e-9}, 0.05, map[int]float64{steps: 0.06, tokens: 0.04}},
		"one price to a tenth": {genericSpeed, Speed{0.004, 0.010, 4e-6, 60e-6, 60e-9, 1e-9}, 0.05, map[int]float64{steps: 0.05, tokens: 0.3}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m, s := newSpeedometer(test.prior), newSpans(test.speed, test.noise)
			s.feed(&m, 3000, s.any)
			wantPrices(t, &m, test.speed, test.tolerance)
			if off := s.off(&m, s.any); off > 0.02 {
				t.Errorf("new spans are off by %.1f %%", 100*off)
			}
		})
	}
}

// TestSpeedometerBeginsWithPrior: it expects the prior's at first, and a single
// span moves it some of the way.
func TestSpeedometerBeginsWithPrior(t *testing.T) {
	m := newSpeedometer(genericSpeed)
	x := terms{steps: 1, seqs: 10, context: 5000}
	prior := m.expect(&x)
	if got := 0.010 + 10*60e-6 + 5000*60e-9; math.Abs(prior-got) > 1e-12 {
		t.Fatalf("expects %v, want %v", prior, got)
	}
	m.observe(&x, 2*prior)
	if got := m.expect(&x); got < 1.3*prior || got > 2.05*prior {
		t.Errorf("after one span of twice the time: %v times the prior's", got/prior)
	}
}

// TestSpeedometerStaysBounded on spans that tell little: the prices can't be
// told apart, and yet what was seen is expected.
func TestSpeedometerStaysBounded(t *testing.T) {
	one := terms{steps: 1, seqs: 8, context: 9000}
	k := 0.0
	tests := map[string]func() terms{
		"always the same": func() terms { return one },
		"all in one ratio": func() terms {
			k = math.Mod(k+1, 50)
			return terms{steps: 1 + k, seqs: 8 * (1 + k), context: 9000 * (1 + k), tokens: 100 * (1 + k)}
		},
		"context follows sequences": func() terms {
			k = math.Mod(k+1, 50)
			return terms{steps: 1, seqs: 1 + k, context: 1000 * (1 + k)}
		},
		"prompts of one length": func() terms { return terms{fixed: 1, steps: 1, tokens: 500} },
	}
	for name, make := range tests {
		t.Run(name, func(t *testing.T) {
			m, s := newSpeedometer(genericSpeed), newSpans(slowSpeed, 0.05)
			for range 20 {
				s.feed(&m, 1000, make)
				wantBounded(t, &m)
				now, prior := m.speed(), genericSpeed.vector()
				for price, v := range now.vector() {
					if v > 100*prior[price] || v < prior[price]/200 {
						t.Fatalf("price of a %s went to %v, prior %v", priceNames[price], v, prior[price])
					}
				}
			}
			if off := s.off(&m, make); off > 0.02 {
				t.Errorf("off by %.1f %% on what it has seen 20,000 times", 100*off)
			}
		})
	}
}

// TestSpeedometerOfHostileSpans: whatever it is told, prices are numbers, and
// sane spans bring it back.
func TestSpeedometerOfHostileSpans(t *testing.T) {
	odd := []float64{0, -1, 1e-9, 1e-3, 1e9, 1e300, math.Inf(1), math.Inf(-1), math.NaN()}
	for _, seen := range []int{0, 500} {
		for seed := range uint64(30) {
			rng := rand.New(rand.NewPCG(seed, 2))
			m, s := newSpeedometer(genericSpeed), newSpans(slowSpeed, 0.05)
			s.feed(&m, seen, s.any)
			for range 10 {
				x := s.any()
				if rng.IntN(2) == 0 {
					x[rng.IntN(len(x))] = odd[rng.IntN(len(odd))]
				}
				m.observe(&x, odd[rng.IntN(len(odd))])
				wantBounded(t, &m)
			}
			s.feed(&m, 3000, s.any)
			wantBounded(t, &m)
			if off := s.off(&m, s.any); off > 0.15 {
				t.Errorf("seed %d, after %d spans and 10 hostile ones: off by %.1f %%", seed, seen, 100*off)
			}
		}
	}
}

// TestSpeedometerFollows: an engine that slows down or speeds up by half is
// known again within a minute of its steps.
func TestSpeedometerFollows(t *testing.T) {
	for name, factor := range map[string]float64{"slower": 1.5, "faster": 1 / 1.5} {
		for load, decodeOnly := range map[string]bool{"mixed": false, "decoding only": true} {
			t.Run(name+"/"+load, func(t *testing.T) {
				m, s := newSpeedometer(genericSpeed), newSpans(slowSpeed, 0.05)
				make := s.any
				if decodeOnly {
					make = s.decode
				}
				s.feed(&m, 5000, make)
				for price := range s.speed {
					s.speed[price] *= factor
				}
				for took := 0.0; took < 60; {
					took += s.feed(&m, 1, make)
				}
				if off := s.off(&m, make); off > 0.06 {
					t.Errorf("off by %.1f %% a minute after the change", 100*off)
				}
				s.feed(&m, 10_000, make)
				if off := s.off(&m, make); off > 0.03 {
					t.Errorf("off by %.1f %% long after the change", 100*off)
				}
			})
		}
	}
}

// TestSpeedometerOutliers: a garbage collection, a lost scrape, a paused
// process: once, or in one span of fifty.
func TestSpeedometerOutliers(t *testing.T) {
	for _, factor := range []float64{1000, 20, 5, 0.2, 0.05} {
		m, s := newSpeedometer(genericSpeed), newSpans(slowSpeed, 0.05)
		outlier := func() {
			x := s.any()
			m.observe(&x, factor*s.seconds(&x))
		}
		s.feed(&m, 2000, s.any)
		outlier()
		if off := s.off(&m, s.any); off > 0.12 {
			t.Errorf("off by %.1f %% right after one span of %v times its length", 100*off, factor)
		}
		s.feed(&m, 100, s.any)
		if off := s.off(&m, s.any); off > 0.03 {
			t.Errorf("off by %.1f %% 100 spans after one of %v times its length", 100*off, factor)
		}
		for range 100 {
			s.feed(&m, 49, s.any)
			outlier()
		}
		s.feed(&m, 50, s.any)
		if off := s.off(&m, s.any); off > 0.05 {
			t.Errorf("off by %.1f %% with one span of fifty of %v times its length", 100*off, factor)
		}
	}
	t.Run("among the first", func(t *testing.T) {
		for _, factor := range []float64{20, 0.05} {
			m, s := newSpeedometer(genericSpeed), newSpans(slowSpeed, 0.05)
			s.feed(&m, 10, s.any)
			x := s.any()
			m.observe(&x, factor*s.seconds(&x))
			s.feed(&m, 500, s.any)
			if off := s.off(&m, s.any); off > 0.10 {
				t.Errorf("off by %.1f %% 500 spans after one of %v times its length", 100*off, factor)
			}
		}
	})
}

// TestSpeedometerRemembersPrompts: an hour of decoding doesn't wash out what a
// prompt token costs.
func TestSpeedometerRemembersPrompts(t *testing.T) {
	m, s := newSpeedometer(genericSpeed), newSpans(slowSpeed, 0.05)
	s.feed(&m, 3000, s.any)
	before := m.speed()
	s.feed(&m, 100_000, s.decode)
	wantPrices(t, &m, slowSpeed, map[int]float64{tokens: 0.08, square: 0.08})
	if now := m.speed(); math.Abs(now.Token/before.Token-1) > 0.08 {
		t.Errorf("price of a token %v, before the hour of decoding %v", now.Token, before.Token)
	}
}

func TestSquares(t *testing.T) {
	tests := []struct {
		from, to int
		want     float64
	}{
		{0, 100, 0}, {0, squareFrom, 0}, {0, 10_000, 1e8 - squareFrom*squareFrom}, {8000, 10_000, 1e8 - 64e6}, {5000, 5000, 0},
		{2000, 5000, 25e6 - squareFrom*squareFrom},
	}
	for _, test := range tests {
		if got := squares(test.from, test.to); got != test.want {
			t.Errorf("from %d to %d: %v, want %v", test.from, test.to, got, test.want)
		}
	}
	whole := squares(0, 50_000)
	parts := 0.0
	for from := 0; from < 50_000; from += 1000 {
		parts += squares(from, from+1000)
	}
	if whole != parts {
		t.Errorf("in parts %v, in one piece %v", parts, whole)
	}
}
