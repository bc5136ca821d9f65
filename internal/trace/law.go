package trace

import (
	"math"
	"math/rand/v2"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

// Never is the gap of a law that has no more arrivals.
const Never = time.Duration(math.MaxInt64)

// Law is a law of arrivals. It keeps no state, so one value may serve many
// sources at once.
type Law interface {
	// Gap gives the time from an arrival at t to the next one.
	Gap(t time.Duration, rng *rand.Rand) time.Duration
}

// Poisson has independent arrivals, so many a second. As with all laws, a rate
// that is not above 0 means none.
func Poisson(rate float64) Law { return renewal{rate, exponential} }

// Gamma has gaps whose standard deviation is cv times their mean: below 1 more
// regular than Poisson, above it burstier.
func Gamma(rate, cv float64) Law { return renewal{rate, gammaGaps(1 / (cv * cv))} }

// Weibull has gaps of that shape: 1 is Poisson, less is burstier.
func Weibull(rate, shape float64) Law { return renewal{rate, weibullGaps(shape)} }

// Constant has equal gaps.
func Constant(rate float64) Law { return renewal{rate, equal} }

// renewal has independent gaps.
type renewal struct {
	rate float64 // per second
	gaps gaps
}

func (l renewal) Gap(_ time.Duration, rng *rand.Rand) time.Duration {
	if !(l.rate > 0) {
		return Never
	}
	return seconds(l.gaps(rng) / l.rate)
}

// gaps draws gaps of mean 1.
type gaps func(*rand.Rand) float64

func exponential(rng *rand.Rand) float64 { return rng.ExpFloat64() }

func equal(*rand.Rand) float64 { return 1 }

func gammaGaps(shape float64) gaps {
	if !(shape < 1e9) { // no spread to speak of
		return equal
	}
	shape = max(shape, 1e-4)
	return func(rng *rand.Rand) float64 {
		return distuv.Gamma{Alpha: shape, Beta: shape, Src: rng}.Rand()
	}
}

func weibullGaps(shape float64) gaps {
	if !(shape < 1e9) {
		return equal
	}
	shape = max(shape, 0.05)
	mean := math.Gamma(1 + 1/shape)
	return func(rng *rand.Rand) float64 { return math.Pow(rng.ExpFloat64(), 1/shape) / mean }
}

// Retimed gives the requests the arrivals of a law instead of their own, in the
// same order. The source ends when the law does.
func (s Source) Retimed(law Law, seed uint64) Source {
	return func(yield func(Request, error) bool) {
		rng := newRand(seed, "arrivals")
		at := time.Duration(0)
		for r, err := range s {
			if err == nil {
				gap := law.Gap(at, rng)
				if gap >= Never-at {
					return
				}
				at += max(gap, 0)
				r.At = at
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// newRand gives the numbers of one seed for one use.
func newRand(seed uint64, use string) *rand.Rand {
	return rand.New(rand.NewPCG(seed, digest(use)))
}

// seconds is x as a Duration, Never if it is too long for one.
func seconds(x float64) time.Duration {
	ns := math.Round(x * 1e9)
	if !(ns < math.MaxInt64) {
		return Never
	}
	return time.Duration(ns)
}
