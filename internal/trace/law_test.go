package trace

import (
	"math"
	"testing"
	"time"
)

func TestLawsHaveTheirRateAndCV(t *testing.T) {
	const rate, n = 50.0, 100_000
	weibullCV := func(shape float64) float64 {
		m := math.Gamma(1 + 1/shape)
		return math.Sqrt(math.Gamma(1+2/shape)/(m*m) - 1)
	}
	for _, c := range []struct {
		name string
		law  Law
		cv   float64
	}{
		{"constant", Constant(rate), 0},
		{"poisson", Poisson(rate), 1},
		{"gamma 0.01", Gamma(rate, 0.01), 0.01},
		{"gamma 0.5", Gamma(rate, 0.5), 0.5},
		{"gamma 1", Gamma(rate, 1), 1},
		{"gamma 4", Gamma(rate, 4), 4},
		{"gamma 0", Gamma(rate, 0), 0},
		{"weibull 0.7", Weibull(rate, 0.7), weibullCV(0.7)},
		{"weibull 2", Weibull(rate, 2), weibullCV(2)},
	} {
		all := collect(t, every(0, n).Retimed(c.law, 1))
		mean, cv := meanAndCV(gapsOf(all))
		if !sorted(all) {
			t.Errorf("%s: not in order", c.name)
		}
		near(t, c.name+": mean gap", mean, 1/rate, 1e-6+3*c.cv/math.Sqrt(n))
		if math.Abs(cv-c.cv) > 0.05*c.cv+1e-6 {
			t.Errorf("%s: CV %.4f, want %.4f", c.name, cv, c.cv)
		}
	}
}

func TestLawsWithoutARateNeverArrive(t *testing.T) {
	for _, rate := range []float64{0, -1, math.NaN(), math.Inf(-1), 1e-300} {
		for _, law := range []Law{Poisson(rate), Gamma(rate, 2), Weibull(rate, 0.5), Constant(rate), Sine(0.5, time.Minute).Law(Poisson(rate))} {
			if n := len(collect(t, every(0, 5).Retimed(law, 1))); n != 0 {
				t.Errorf("rate %v: %d arrivals", rate, n)
			}
		}
	}
	for _, odd := range []float64{math.NaN(), math.Inf(1), -3, 1e30, 1e-30} {
		for _, law := range []Law{Gamma(1, odd), Weibull(1, odd)} {
			collect(t, every(0, 50).Retimed(law, 1))
		}
	}
}

// TestShapesSwingTheRate counts arrivals over phases of a cycle, once with the
// law shaped and once with its source.
func TestShapesSwingTheRate(t *testing.T) {
	const rate, n = 100.0, 30_000
	period := 20 * time.Second
	half := func(at time.Duration) bool { return at%period < period/2 }
	for _, c := range []struct {
		name  string
		shape Shape
		in    func(time.Duration) bool
		ratio float64 // of the rate within to the rate outside
		share float64 // of the time that is within
	}{
		{"burst ±30 %", Burst(0.3, period, 0.5), half, 1.3 / 0.7, 0.5},
		{"burst for a tenth", Burst(0.3, period, 0.1), func(at time.Duration) bool { return at%period < period/10 }, 1.3 / 0.7, 0.1},
		{"sine", Sine(0.5, period), half, (1 + 1/math.Pi) / (1 - 1/math.Pi), 0.5},
		{"step", Step(100*time.Second, 2), func(at time.Duration) bool { return at >= 100*time.Second }, 2, 0},
		{"none", Burst(0.3, 0, 0.5), half, 1, 0.5},
	} {
		for name, s := range map[string]Source{
			"law":    every(0, n).Retimed(c.shape.Law(Poisson(rate)), 1),
			"source": every(0, n).Retimed(Poisson(rate), 1).Shaped(c.shape),
		} {
			all := collect(t, s)
			if !sorted(all) {
				t.Fatalf("%s %s: not in order", c.name, name)
			}
			in := 0
			for _, r := range all {
				if c.in(r.At) {
					in++
				}
			}
			end := all[len(all)-1].At.Seconds()
			share := c.share
			if share == 0 {
				share = (end - 100) / end
			}
			ratio := float64(in) / share / (float64(n-in) / (1 - share))
			near(t, c.name+" "+name, ratio, c.ratio, 0.05)
		}
	}
}

func TestShapeTimesAreExact(t *testing.T) {
	for name, s := range map[string]Shape{
		"step":  Step(time.Minute, 0.1),
		"sine":  Sine(1, time.Minute),
		"burst": Burst(1, time.Minute, 0.3),
		"both":  Burst(0.3, time.Minute, 0.5),
	} {
		for x := 0.001; x < 20000; x *= 1.7 {
			at := s.when(0, x)
			if s(at) < x || s(at-1) >= x {
				t.Fatalf("%s: %g s of arrivals are reached at %v, where there are %g and %g just before", name, x, at, s(at), s(at-1))
			}
		}
	}
	if at := Step(time.Minute, 0).when(0, 61); at != Never {
		t.Errorf("a rate of 0 reaches more at %v", at)
	}
	if n := len(collect(t, every(time.Second, 100).Shaped(Step(30*time.Second, 0)))); n != 31 {
		t.Errorf("%d arrivals before the rate is 0, want those up to 30 s", n)
	}
}
