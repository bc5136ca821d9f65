package backends

import "time"

// HealthRules is when a backend is taken out of rotation and taken back.
// Zero fields mean the default named beside them.
type HealthRules struct {
	Unhealthy int // failed probes in a row that take a backend out; 3
	Healthy   int // good probes in a row that take it back; 2

	Consecutive int           // failures in a row that eject; 5
	FailureRate float64       // failure share over Window that ejects, 0..1; 0.5
	MinRequests int           // fewest requests in Window that FailureRate judges; 20
	Window      time.Duration // 30 s
	Ejection    time.Duration // length of the first ejection; each further one adds as much; 10 s
	MaxEjection time.Duration // longest ejection; 5 min
	MaxEjected  float64       // largest share of a pool ejected at once, 0..1; 0.5; below 0 nobody is ejected
	MinHosts    int           // smallest pool in which ejection works; 2
	SlowStart   time.Duration // ramp of a returning backend; 0 is none

	BreakerFailures int           // failures in a row that open the breaker; 0 is no breaker
	BreakerOpen     time.Duration // how long it stays open; 5 s
}

func (r HealthRules) withDefaults() HealthRules {
	setInt := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	setDur := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	setInt(&r.Unhealthy, 3)
	setInt(&r.Healthy, 2)
	setInt(&r.Consecutive, 5)
	setInt(&r.MinRequests, 20)
	setInt(&r.MinHosts, 2)
	setDur(&r.Window, 30*time.Second)
	setDur(&r.Ejection, 10*time.Second)
	setDur(&r.MaxEjection, 5*time.Minute)
	setDur(&r.BreakerOpen, 5*time.Second)
	if r.FailureRate == 0 {
		r.FailureRate = 0.5
	}
	if r.MaxEjected == 0 {
		r.MaxEjected = 0.5
	}
	return r
}

// Class says what an attempt's end means for its backend.
type Class int

const (
	// Served: the backend did its work, or refused a request that was the
	// client's fault. It proves the backend alive.
	Served Class = iota
	// Fault: the backend caused a failure: dial, reset, 5xx, timeout, abort.
	Fault
	// Overloaded: the backend refused for load (429). It weighs on the choice
	// but never ejects.
	Overloaded
	// Dropped: the end says nothing of the backend: the client left, or the
	// gateway ended it.
	Dropped
)

// Outcome is how an attempt ended, for load and health.
type Outcome struct {
	Class Class
	// ClientLeft says the client went away; if it did so before the first
	// token, the engine may go on with the prefill, which stays counted.
	ClientLeft bool
}

// State is a backend's place in the rotation.
type State string

// The states, in the order they are tested.
const (
	Draining  State = "draining"  // finishing only
	Down      State = "down"      // active probes fail
	Ejected   State = "ejected"   // taken out for bad outcomes
	Probation State = "probation" // ejection is over; one real request decides
	Up        State = "up"
)

const slowStartFloor = 0.1 // share of its weight a returning backend starts with

type health struct {
	// active probes
	fails, oks int
	down       bool

	// passive ejection
	consecutive  int
	window       outcomeWindow
	ejections    int       // how often ejected in a row: the back-off
	ejectedUntil time.Time // zero when in rotation
	probing      bool      // the one real probe request of a probation is out
	returned     time.Time // start of the slow start; zero for none
}

// state is called with mu held.
func (b *Backend) state(now time.Time) State {
	switch h := &b.health; {
	case b.Draining:
		return Draining
	case h.down:
		return Down
	case h.ejectedUntil.IsZero():
		return Up
	case now.Before(h.ejectedUntil):
		return Ejected
	default:
		return Probation
	}
}

// Probe records the verdict of one active probe and reports whether it took
// the backend out or back.
func (b *Backend) Probe(now time.Time, ok bool) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &b.health
	if ok {
		h.oks, h.fails = h.oks+1, 0
		if h.down && h.oks >= b.Health.Healthy {
			h.down, h.returned, changed = false, now, true
		}
		return changed
	}
	h.fails, h.oks = h.fails+1, 0
	if !h.down && h.fails >= b.Health.Unhealthy {
		h.down, changed = true, true
	}
	return changed
}

// rampedWeight is the configured weight, reduced while the backend ramps up.
// Called with mu held.
func (b *Backend) rampedWeight(now time.Time) float64 {
	h := &b.health
	if h.returned.IsZero() || b.Health.SlowStart <= 0 {
		return b.Weight
	}
	share := now.Sub(h.returned).Seconds() / b.Health.SlowStart.Seconds()
	return b.Weight * min(max(share, slowStartFloor), 1)
}

// record counts an outcome and says whether it calls for ejection and why.
// Called with mu held.
func (b *Backend) record(now time.Time, c Class) (eject bool, reason string) {
	h := &b.health
	switch c {
	case Served:
		h.consecutive = 0
		h.window.add(now, b.Health.Window, false)
		return false, ""
	case Fault:
		h.consecutive++
		h.window.add(now, b.Health.Window, true)
		b.load.penalise(now)
	case Overloaded:
		b.load.penalise(now)
		return false, ""
	default:
		return false, ""
	}
	if h.consecutive >= b.Health.Consecutive {
		return true, "consecutive"
	}
	total, failed := h.window.sum(now, b.Health.Window)
	if total >= b.Health.MinRequests && float64(failed) >= b.Health.FailureRate*float64(total) {
		return true, "failure_rate"
	}
	return false, ""
}

// eject takes the backend out for a growing time. Called with mu held.
func (b *Backend) eject(now time.Time) {
	h := &b.health
	h.ejections++
	length := min(time.Duration(h.ejections)*b.Health.Ejection, b.Health.MaxEjection)
	if until := now.Add(length); until.After(h.ejectedUntil) {
		h.ejectedUntil = until
	}
	h.consecutive = 0
	h.window = outcomeWindow{}
}

// settleProbation decides on the one real request sent in probation. Called with mu held.
func (b *Backend) settleProbation(now time.Time, c Class) (ejected bool) {
	h := &b.health
	h.probing = false
	switch c {
	case Served:
		h.ejectedUntil, h.returned = time.Time{}, now
	case Fault, Overloaded:
		b.eject(now)
		return true
	}
	return false
}

// forgive forgets the back-off once a backend has stayed in rotation for as
// long as its longest ejection. Called with mu held.
func (b *Backend) forgive(now time.Time) {
	h := &b.health
	if h.ejections > 0 && h.ejectedUntil.IsZero() && !h.returned.IsZero() &&
		now.Sub(h.returned) >= b.Health.MaxEjection {
		h.ejections = 0
	}
}

// outcomeWindow counts outcomes over a sliding window of ten slices.
type outcomeWindow struct {
	slices [10]struct {
		slot          int64
		total, failed int
	}
}

func (w *outcomeWindow) add(now time.Time, window time.Duration, failed bool) {
	slot := slotOf(now, window)
	s := &w.slices[(slot%10+10)%10]
	if s.slot != slot {
		s.slot, s.total, s.failed = slot, 0, 0
	}
	s.total++
	if failed {
		s.failed++
	}
}

func (w *outcomeWindow) sum(now time.Time, window time.Duration) (total, failed int) {
	slot := slotOf(now, window)
	for i := range w.slices {
		if s := &w.slices[i]; s.slot > slot-10 && s.slot <= slot {
			total += s.total
			failed += s.failed
		}
	}
	return total, failed
}

func slotOf(now time.Time, window time.Duration) int64 {
	return now.UnixNano() / max(int64(window)/10, 1)
}
