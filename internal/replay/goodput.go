package replay

import (
	"errors"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// ErrStopped says that Stop ended a search before its end.
var ErrStopped = errors.New("stopped")

// Search says how the highest rate is searched at which a policy does well. The
// zero value of a field means its default.
type Search struct {
	Target    float64 // share of the requests that is to meet its objectives, 0..1. 0.95
	Precision float64 // of the rate found. 0.01
	Near      float64 // rate multiplier to begin with. 1
	Known     bool    // Near is about right: steps of a tenth come before doubling
	Seed      uint64  // 1
}

func (s Search) withDefaults() Search {
	if s.Target == 0 {
		s.Target = 0.95
	}
	if s.Precision == 0 {
		s.Precision = 0.01
	}
	if s.Near == 0 {
		s.Near = 1
	}
	if s.Seed == 0 {
		s.Seed = 1
	}
	return s
}

// FindGoodput searches the highest rate multiplier, to 1 %, at which at least
// target (0..1) of the requests meet their objectives.
func (t Trial) FindGoodput(v Variant, target float64) (report.Goodput, error) {
	return t.Find(v, Search{Target: target})
}

// Find searches the highest rate multiplier at which enough of the requests
// meet their objectives. It steps up or down until it has a bracket and then
// bisects; the result has a multiplier of 0 when not even a 64th of the first
// rate will do.
func (t Trial) Find(v Variant, s Search) (report.Goodput, error) {
	s = s.withDefaults()
	best, low, high, step := report.Goodput{Name: v.Name}, 0.0, 0.0, s.step()
	for k := s.Near; (low == 0 || high == 0 || high > (1+s.Precision)*low) && k >= s.Near/64 && k <= 4096*s.Near; {
		g, err := t.Try(v, s, k)
		if err != nil {
			return best, err
		}
		if g.Met >= s.Target {
			best, low = g, k
		} else {
			high = k
		}
		switch {
		case high == 0:
			k = step * low
		case low == 0:
			k = high / step
		default:
			k = (low + high) / 2
		}
		step = min(step*step, 2)
	}
	return best, nil
}

func (s *Search) step() float64 {
	if s.Known {
		return 1.1
	}
	return 2
}

// Try runs a variant at a multiple of the trace's rate. It ends early once so
// many have missed that the search's target is out of reach: Met is below it
// then, and no figure of a whole run.
func (t Trial) Try(v Variant, s Search, multiplier float64) (report.Goodput, error) {
	s = s.withDefaults()
	source := t.Source
	t.Source = func(seed uint64) trace.Source { return source(seed).Rate(multiplier) }
	allowed, err := count(source(s.Seed), v.Stop)
	if err != nil {
		return report.Goodput{Name: v.Name, Multiplier: multiplier}, err
	}
	missed, limit := 0, int((1-s.Target)*float64(allowed))
	stop := v.Stop
	v.Stop = func() bool { return missed > limit || stop != nil && stop() }
	t.Seen = func(sample *report.Sample, _ *Outcome) {
		if sample.Reason != Unfinished && !sample.Objective.Met(sample) {
			missed++
		}
	}
	run, stopped, err := t.Run(v, s.Seed)
	g := report.Goodput{Name: v.Name, Multiplier: multiplier, Requests: run.Goodput, Met: run.All.Met}
	switch {
	case err != nil:
		return g, err
	case stopped && missed <= limit:
		return g, ErrStopped
	case stopped:
		g.Met = min(g.Met, 1-float64(missed)/float64(allowed))
	}
	return g, nil
}

// count reads a trace to its end, or until stop, which is asked every few
// thousand requests; it may be nil.
func count(src trace.Source, stop func() bool) (n int, err error) {
	for _, err := range src {
		if err != nil {
			return n, err
		}
		if n++; n%4096 == 0 && stop != nil && stop() {
			return n, ErrStopped
		}
	}
	return n, nil
}
