package trace

import (
	"math"
	"math/rand/v2"
	"time"
)

// Shape is how a rate swings about its level: the integral of the factor from 0
// to t, in seconds. A flat one is t.Seconds().
type Shape func(t time.Duration) float64

// Step multiplies the rate by a factor from a time on.
func Step(at time.Duration, factor float64) Shape {
	factor = atLeast0(factor)
	return func(t time.Duration) float64 {
		if t <= at {
			return t.Seconds()
		}
		return at.Seconds() + factor*(t-at).Seconds()
	}
}

// Sine swings the rate by ± depth (0 to 1) over each period, up first.
func Sine(depth float64, period time.Duration) Shape {
	if period <= 0 {
		return time.Duration.Seconds
	}
	depth, cycle := min(atLeast0(depth), 1), period.Seconds()/(2*math.Pi)
	return func(t time.Duration) float64 {
		x := t.Seconds()
		return x + depth*cycle*(1-math.Cos(x/cycle))
	}
}

// Burst raises the rate by depth (0 to 1) for the first share (0 to 1) of each
// period and lowers it by as much for the rest. With a share of one half the
// mean stays.
func Burst(depth float64, period time.Duration, share float64) Shape {
	if period <= 0 {
		return time.Duration.Seconds
	}
	depth, share = min(atLeast0(depth), 1), min(atLeast0(share), 1)
	high := share * period.Seconds()
	within := func(x float64) float64 { return x + depth*(2*min(x, high)-x) }
	whole := within(period.Seconds())
	return func(t time.Duration) float64 {
		return float64(t/period)*whole + within((t % period).Seconds())
	}
}

// Law is a law whose rate swings by the shape.
func (s Shape) Law(law Law) Law { return shaped{s, law} }

type shaped struct {
	shape Shape
	law   Law
}

func (l shaped) Gap(t time.Duration, rng *rand.Rand) time.Duration {
	gap := l.law.Gap(t, rng)
	if gap == Never {
		return Never
	}
	end := l.shape.when(t, l.shape(t)+gap.Seconds())
	if end == Never {
		return Never
	}
	return end - t
}

// Shaped makes the source's rate swing by the shape. It ends when the shape's
// rate has fallen to 0 for good.
func (s Source) Shaped(shape Shape) Source {
	return func(yield func(Request, error) bool) {
		at := time.Duration(0)
		for r, err := range s {
			if err == nil {
				if at = shape.when(at, r.At.Seconds()); at == Never {
					return
				}
				r.At = at
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// when is the first time from t on at which the integral reaches x.
func (s Shape) when(t time.Duration, x float64) time.Duration {
	step := time.Millisecond
	for s(t+step) < x {
		t, step = t+step, 2*step
		if step > Never/4 {
			return Never
		}
	}
	for low := time.Duration(0); ; { // reached within (t+low, t+step], or at t
		if step-low <= 1 {
			if low == 0 && s(t) >= x {
				return t
			}
			return t + step
		}
		if mid := low + (step-low)/2; s(t+mid) < x {
			low = mid
		} else {
			step = mid
		}
	}
}

// atLeast0 is x, or 0 for what is negative or no number.
func atLeast0(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return x
}
