package predictor

import (
	"math"
	"math/rand/v2"
	"testing"
)

// coverage is the share of truths that P50 and P95 cover, as estimated by
// somebody who always says 0 and p95, once the calibration has seen a thousand.
func coverage(n int, p95 float64, draw func(k int) (*Instance, Regime, float64)) (half, most float64) {
	c := newCalibration()
	counted := 0.0
	for k := range n {
		i, r, truth := draw(k)
		low, high := c.apply(i, r, 0, p95)
		if k >= 1000 {
			counted++
			if truth <= low {
				half++
			}
			if truth <= high {
				most++
			}
		}
		c.observe(i, r, 0, p95, truth)
	}
	return half / counted, most / counted
}

func TestCalibrationCovers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	one := NewInstance(genericSpeed)
	fleet := []*Instance{one, NewInstance(genericSpeed), NewInstance(genericSpeed)}
	some := func() *Instance { return fleet[rng.IntN(len(fleet))] }
	tests := map[string]func(k int) (*Instance, Regime, float64){
		"noise":        func(int) (*Instance, Regime, float64) { return one, Busy, 0.2 * rng.NormFloat64() },
		"little noise": func(int) (*Instance, Regime, float64) { return one, Busy, 0.005 * rng.NormFloat64() },
		"much noise":   func(int) (*Instance, Regime, float64) { return one, Busy, rng.NormFloat64() },
		"skewed":       func(int) (*Instance, Regime, float64) { return one, Busy, 0.3 * (rng.ExpFloat64() - 1) },
		"skewed down":  func(int) (*Instance, Regime, float64) { return one, Busy, 0.3 * (1 - rng.ExpFloat64()) },
		"heavy tail":   func(int) (*Instance, Regime, float64) { return one, Busy, 0.1 * math.Pow(rng.Float64(), -0.5) },
		"biased up":    func(int) (*Instance, Regime, float64) { return one, Busy, 0.9 + 0.1*rng.NormFloat64() },
		"biased down":  func(int) (*Instance, Regime, float64) { return one, Busy, -0.9 + 0.1*rng.NormFloat64() },
		"two modes": func(int) (*Instance, Regime, float64) {
			return one, Busy, float64(rng.IntN(2)) + 0.05*rng.NormFloat64()
		},
		"three engines": func(int) (*Instance, Regime, float64) { return some(), Busy, 0.2 * rng.NormFloat64() },
		"drifting":      func(k int) (*Instance, Regime, float64) { return one, Busy, float64(k)/20_000 + 0.1*rng.NormFloat64() },
		"day and night": func(k int) (*Instance, Regime, float64) {
			return one, Busy, 0.3*math.Sin(float64(k)/1000) + 0.2*rng.NormFloat64()
		},
		"engines differ": func(int) (*Instance, Regime, float64) {
			k := rng.IntN(3)
			return fleet[k], Busy, 0.4*float64(k) + 0.1*(1+float64(k))*rng.NormFloat64()
		},
		"noise by regime": func(int) (*Instance, Regime, float64) {
			r := Regime(rng.IntN(int(Regimes)))
			return some(), r, 0.1 * float64(r) * rng.NormFloat64()
		},
	}
	for name, draw := range tests {
		for _, p95 := range []float64{0, 0.3, 2} {
			half, most := coverage(12_000, p95, draw)
			if math.Abs(half-0.5) > 0.05 && name != "two modes" {
				t.Errorf("%s: P50 covers %.3f", name, half)
			}
			if math.Abs(most-0.95) > 0.02 {
				t.Errorf("%s, P95 raw at e^%v: covers %.3f", name, p95, most)
			}
		}
	}
}

// TestCalibrationTellsInstancesApart: a slow engine and a fast one, one estimator.
func TestCalibrationTellsInstancesApart(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	c, slow, fast := newCalibration(), NewInstance(genericSpeed), NewInstance(genericSpeed)
	for range 3000 {
		c.observe(slow, Busy, 0, 0.2, 0.3+0.05*rng.NormFloat64())
		c.observe(fast, Busy, 0, 0.2, -0.3+0.05*rng.NormFloat64())
	}
	for name, test := range map[string]struct {
		on   *Instance
		want float64
	}{"slow": {slow, 0.3}, "fast": {fast, -0.3}} {
		p50, p95 := c.apply(test.on, Busy, 0, 0.2)
		if math.Abs(p50-test.want) > 0.05 || math.Abs(p95-test.want-0.082) > 0.06 {
			t.Errorf("%s: P50 %.3f, P95 %.3f, want %.3f and %.3f", name, p50, p95, test.want, test.want+0.082)
		}
	}
}

// TestCalibrationShrinks: an engine with few samples takes its pool's
// correction, and another regime's samples are none of its business.
func TestCalibrationShrinks(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	c, old, young := newCalibration(), NewInstance(genericSpeed), NewInstance(genericSpeed)
	for range 2000 {
		c.observe(old, Busy, 0, 0, 0.3+0.05*rng.NormFloat64())
	}
	p50, p95 := c.apply(young, Busy, 0, 0)
	if math.Abs(p50-0.3) > 0.03 || math.Abs(p95-0.38) > 0.04 {
		t.Errorf("an engine never seen: %.3f and %.3f, want its pool's 0.3 and 0.38", p50, p95)
	}
	c.observe(young, Busy, 0, 0, -1)
	if now, _ := c.apply(young, Busy, 0, 0); math.Abs(now-p50) > 0.02 {
		t.Errorf("one sample moved P50 from %.3f to %.3f", p50, now)
	}
	if p50, p95 := c.apply(old, Idle, 0, 0.1); p50 != 0 || p95 != 0.1 {
		t.Errorf("a regime never seen is corrected to %v and %v", p50, p95)
	}
}

// TestCalibrationClamps: no factor of an engine goes beyond its bound, P95 is
// never below P50, and nothing is ever not a number.
func TestCalibrationClamps(t *testing.T) {
	for _, truth := range []float64{30, -30, 1e6, -1e6, 0} {
		c, on := newCalibration(), NewInstance(genericSpeed)
		for range 2000 {
			c.observe(on, Busy, 0, 0, truth)
			if p50, p95 := c.apply(on, Busy, 0, 0); math.IsNaN(p50) || !(p95 >= p50) {
				t.Fatalf("truth %v: %v and %v", truth, p50, p95)
			}
		}
		f := &factor{}
		for range 2000 {
			f.move(truth, truth)
		}
		if math.Abs(f.p50) > maxFactor || math.Abs(f.p95) > maxFactor {
			t.Errorf("truth %v: factors %v and %v", truth, f.p50, f.p95)
		}
	}
	rng := rand.New(rand.NewPCG(4, 4))
	c, on := newCalibration(), NewInstance(genericSpeed)
	for range 1000 {
		low := rng.NormFloat64()
		c.observe(on, Busy, low, low+0.1*rng.NormFloat64(), rng.NormFloat64())
		if p50, p95 := c.apply(on, Busy, low, low-1); p95 < p50 {
			t.Fatalf("P95 %v below P50 %v", p95, p50)
		}
	}
}

// TestMarginFades: what an alarm adds is bounded, and gone after a while.
func TestMarginFades(t *testing.T) {
	c, on := newCalibration(), NewInstance(genericSpeed)
	_, before := c.apply(on, Busy, 0, 0.1)
	c.widen()
	_, wide := c.apply(on, Busy, 0, 0.1)
	if wide < before+0.05 {
		t.Errorf("P95 went from %v to %v only", before, wide)
	}
	for range 100 {
		c.widen()
	}
	if _, widest := c.apply(on, Busy, 0, 0.1); widest > before+0.5+1e-9 {
		t.Errorf("P95 went from %v to %v", before, widest)
	}
	c.narrow()
	if _, now := c.apply(on, Busy, 0, 0.1); now != before {
		t.Errorf("P95 is %v once narrowed, was %v", now, before)
	}
	c.widen()
	for range 5000 {
		c.observe(on, Idle, 0, 0, 0)
	}
	if _, now := c.apply(on, Busy, 0, 0.1); math.Abs(now-before) > 0.001 {
		t.Errorf("P95 is %v long after, was %v", now, before)
	}
}
