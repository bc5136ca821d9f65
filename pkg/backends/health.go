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
	// Served means that the backend did its work, or refused a request that was the
	// client's fault. It proves the backend alive.
	Served Class = iota
	// Fault means that the backend caused a failure: dial, reset, 5xx, timeout, abort.
	Fault
	// Overloaded means that the backend refused for load (429). It weighs on the choice
	// but never ejects; it only fails to end an ejection.
	Overloaded
	// Dropped means that the end says nothing of the backend: the client left, or the
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

	// epoch rises when the backend is ejected and when it comes back. What
	// began in another epoch says nothing of this one.
	epoch int

	// passive ejection
	consecutive  int       // failures in a row in this epoch
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
		b.ready.found(h.fails > 0)
		h.oks, h.fails = h.oks+1, 0
		if h.down && h.oks >= b.Health.Healthy {
			h.down, changed = false, true
			b.ready.returned(now)
			b.comeBack(now)
			if !h.ejectedUntil.IsZero() {
				h.ejectedUntil = now // it was gone and is back: one real request decides at once
			}
		}
		return changed
	}
	h.fails, h.oks = h.fails+1, 0
	if !h.down && h.fails >= b.Health.Unhealthy {
		h.down, changed = true, true
	}
	return changed
}

// nextEpoch makes what began before count for nothing. Called with mu held.
func (b *Backend) nextEpoch() {
	b.health.epoch++
	b.health.consecutive = 0
}

// comeBack starts the slow start. Called with mu held.
func (b *Backend) comeBack(now time.Time) {
	b.nextEpoch()
	b.health.returned = now
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

// record counts an outcome and returns why it calls for ejection, if it does.
// Called with mu held.
func (b *Backend) record(now time.Time, c Class) (reason string) {
	h := &b.health
	if c != Served && c != Fault {
		return ""
	}
	b.window.add(now, b.Health.Window, h.epoch, c == Fault)
	if c == Served {
		h.consecutive = 0
		return ""
	}
	h.consecutive++
	if h.consecutive >= b.Health.Consecutive {
		return "consecutive"
	}
	total, failed := b.window.sum(now, b.Health.Window, h.epoch)
	if total >= b.Health.MinRequests && float64(failed) >= b.Health.FailureRate*float64(total) {
		return "failure_rate"
	}
	return ""
}

// eject takes the backend out for a time that grows with each ejection, until
// it has stayed in rotation for as long as its longest one. Called with mu
// held.
func (b *Backend) eject(now time.Time) {
	h := &b.health
	if b.state(now) == Up && now.Sub(h.returned) >= b.Health.MaxEjection {
		h.ejections = 0
	}
	h.ejections++
	length := min(time.Duration(h.ejections)*b.Health.Ejection, b.Health.MaxEjection)
	if until := now.Add(length); until.After(h.ejectedUntil) {
		h.ejectedUntil = until
	}
	b.nextEpoch()
}

// settleProbation decides on the one real request sent in probation. Called with mu held.
func (b *Backend) settleProbation(now time.Time, c Class) (ejected bool) {
	b.health.probing = false
	switch c {
	case Served:
		b.health.ejectedUntil = time.Time{}
		b.comeBack(now)
	case Fault, Overloaded:
		b.eject(now)
		return true
	}
	return false
}

// outcomeWindow counts the outcomes of one epoch over a sliding window of ten
// slices.
type outcomeWindow struct {
	epoch  int
	slices [10]struct {
		slot          int64
		total, failed int
	}
}

func (w *outcomeWindow) add(now time.Time, length time.Duration, epoch int, failed bool) {
	if w.epoch != epoch {
		*w = outcomeWindow{epoch: epoch}
	}
	slot := slotOf(now, length)
	s := &w.slices[(slot%10+10)%10]
	if s.slot != slot {
		s.slot, s.total, s.failed = slot, 0, 0
	}
	s.total++
	if failed {
		s.failed++
	}
}

func (w *outcomeWindow) sum(now time.Time, length time.Duration, epoch int) (total, failed int) {
	if w.epoch != epoch {
		return 0, 0
	}
	slot := slotOf(now, length)
	for i := range w.slices {
		if s := &w.slices[i]; s.slot > slot-10 && s.slot <= slot {
			total += s.total
			failed += s.failed
		}
	}
	return total, failed
}

func slotOf(now time.Time, length time.Duration) int64 {
	return now.UnixNano() / max(int64(length)/10, 1)
}
