package predictor

import (
	"math"
	"time"
)

// Lately is how the predictions that counted compare with the truth on one
// instance, as means over its last 100 first tokens of the last 5 minutes.
type Lately struct {
	Rows             int
	P50, P95, Actual time.Duration
	MAPE             float64 // of P50, as Score's
	Coverage         float64 // of P95, as Score's
}

// lately keeps the last predictions of one instance with their truths.
type lately struct {
	rows [100]told
	n    int // seen so far
}

// told is one prediction and what came of it, in seconds.
type told struct {
	at             time.Time
	p50, p95, ttft float64
}

func (l *lately) add(t told) {
	l.rows[l.n%len(l.rows)] = t
	l.n++
}

// sum is over what is not too old at now.
func (l *lately) sum(now time.Time) (s Lately) {
	var p50, p95, ttft, ape, within float64
	for _, t := range l.rows[:min(l.n, len(l.rows))] {
		if now.Sub(t.at) > scoreWindow {
			continue
		}
		s.Rows++
		p50, p95, ttft = p50+t.p50, p95+t.p95, ttft+t.ttft
		ape += math.Abs(t.p50-t.ttft) / t.ttft
		if t.ttft <= t.p95 {
			within++
		}
	}
	if s.Rows == 0 {
		return s
	}
	n := float64(s.Rows)
	s.P50, s.P95, s.Actual = duration(p50/n), duration(p95/n), duration(ttft/n)
	s.MAPE, s.Coverage = ape/n, within/n
	return s
}

// Lately sums up how good the pool's predictions for an instance were.
func (p *Pool) Lately(now time.Time, i *Instance) Lately {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lately[i]; l != nil {
		return l.sum(now)
	}
	return Lately{}
}

// remember notes what was said of an attempt beside the truth. Called with mu held.
func (p *Pool) remember(now time.Time, a *Attempt, truth float64) {
	l := p.lately[a.on]
	if l == nil {
		l = &lately{}
		p.lately[a.on] = l
	}
	said, _ := a.Said()
	l.add(told{at: now, p50: said.P50.Seconds(), p95: said.P95.Seconds(), ttft: truth})
}
