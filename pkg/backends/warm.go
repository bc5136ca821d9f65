package backends

import (
	"math"
	"time"
)

// Readiness says how far an engine is with what it builds on first use: tables,
// graphs, a prefix cache. It stands beside State, which is about health.
type Readiness string

// The states: of one that stands by, then in the order in which an engine goes through them.
const (
	StandingBy Readiness = "standby" // it waits to be called in

	Cold      Readiness = "cold"     // new, or started again
	Warming   Readiness = "warming"  // it is sent warm-up prompts
	Ready     Readiness = "ready"    // it takes requests
	Finishing Readiness = "draining" // it takes no new ones, warm or not
)

// Readinesses gives all states.
func Readinesses() []Readiness { return []Readiness{StandingBy, Cold, Warming, Ready, Finishing} }

// Why an engine is cold.
const (
	WhyNew       = "new"       // it came with a later configuration, or was not there when the gateway started
	WhyRestarted = "restarted" // its start time is another, or its counters began again
	WhyCalled    = "called"    // it stood by, and a further instance was wanted
	WhyReturned  = "returned"  // it was down, and what it says does not tell whether it was started again
)

const (
	// young is the age up to which an engine that is seen for the first time
	// counts as new. An older one has served before: a restart of the gateway
	// alone holds no engine up.
	young = time.Minute
	// maxWarmUps that fail in a row; then requests show what the engine is worth.
	maxWarmUps = 3
	// warmUpPause follows one that failed.
	warmUpPause = 5 * time.Second
)

// readiness is that of one engine. The zero value is ready.
type readiness struct {
	state   Readiness // "" until something was seen that makes it cold
	why     string
	life    int       // times it turned cold: a warm-up belongs to one life
	failed  int       // warm-ups of this life
	resting time.Time // until then none begins
	present bool      // a probe or a scrape found it
	start   float64   // last known, Unix seconds; 0: unknown
	back    time.Time // returned then, perhaps the same as before; zero: known
}

func (r *readiness) turnCold(why string) {
	*r = readiness{state: Cold, why: why, life: r.life + 1, present: r.present, start: r.start}
}

// found takes in that a probe found the engine. Missed tells that it had not
// been there before.
func (r *readiness) found(missed bool) {
	if !r.present && missed {
		r.turnCold(WhyNew)
	}
	r.present = true
}

// returned takes in that probes find an engine again that was down. One that was
// cold before is cold in any case.
func (r *readiness) returned(now time.Time) {
	wasReady := r.state == "" || r.state == Ready || !r.back.IsZero()
	if !wasReady {
		r.turnCold(r.why)
		return
	}
	r.turnCold(WhyReturned)
	r.back = now
}

// scraped takes in what an engine says of its own start, and reports whether it
// was started again. Counters speak where start times are not known.
func (r *readiness) scraped(before, s *Signals) (restarted bool) {
	r.present = true
	first := r.start == 0
	known := s.StartTime > 0
	switch {
	case !known:
		restarted = fell(before.prefixQueries, s.prefixQueries) || fell(before.cpuSeconds, s.cpuSeconds)
	case first && r.life == 0 && s.At.Sub(unix(s.StartTime)) <= young:
		r.turnCold(WhyNew)
	case !first:
		restarted = s.StartTime != r.start
	}
	switch {
	case restarted:
		r.turnCold(WhyRestarted)
	case known && !first && !r.back.IsZero() && s.Began.After(r.back):
		r.state, r.back = Ready, time.Time{} // it had only been out of reach
	}
	if known {
		r.start = s.StartTime
	}
	return restarted
}

func unix(seconds float64) time.Time {
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*1e9))
}

// fell reports whether a counter began again; what is unknown did not.
func fell(before, now float64) bool { return now < before }

// unready is called with mu held.
func (b *Backend) unready() bool {
	return b.WarmUp && (b.ready.state == Cold || b.ready.state == Warming)
}

// readiness is called with mu held.
func (b *Backend) readiness() Readiness {
	switch {
	case b.Draining:
		return Finishing
	case b.standsBy():
		return StandingBy
	case b.unready():
		return b.ready.state
	default:
		return Ready
	}
}

// Readiness is how far the engine is; always ready where it is not to be warmed.
func (b *Backend) Readiness() Readiness {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.readiness()
}

// WarmUp is the sending of warm-up prompts to one engine. What is sent is no
// request: it counts in no load, teaches nothing, and its failure ejects nobody.
type WarmUp struct {
	Backend *Backend
	Why     string // the engine is cold
	life    int
}

// BeginWarmUp returns a warm-up for the caller to go through with and to End;
// nil where none is due: the engine is not cold, not up, or one has failed just
// now. One engine has one at a time.
func (b *Backend) BeginWarmUp(now time.Time) *WarmUp {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &b.ready
	if !b.WarmUp || b.Draining || b.standsBy() || b.health.down || r.state != Cold || now.Before(r.resting) {
		return nil
	}
	r.state = Warming
	return &WarmUp{Backend: b, Why: r.why, life: r.life}
}

// Wanted reports whether the next prompt is still to be sent: not once the
// engine was started again, or proved to be the one it was.
func (w *WarmUp) Wanted() bool {
	w.Backend.mu.Lock()
	defer w.Backend.mu.Unlock()
	return w.wanted()
}

func (w *WarmUp) wanted() bool {
	r := &w.Backend.ready
	return r.life == w.life && r.state == Warming
}

// WarmUpEnd is how a warm-up ended.
type WarmUpEnd uint8

// The ends of a warm-up.
const (
	WarmedUp      WarmUpEnd = iota // the engine has answered what it can
	WarmUpFailed                   // it did not answer; the third in a row is the last
	WarmUpDropped                  // it was not gone through with, by no fault of the engine
)

// End says how the warm-up ended and returns the readiness that follows.
func (w *WarmUp) End(now time.Time, how WarmUpEnd) Readiness {
	w.Backend.mu.Lock()
	defer w.Backend.mu.Unlock()
	r := &w.Backend.ready
	if !w.wanted() {
		return w.Backend.readiness()
	}
	if how == WarmUpFailed {
		r.failed++
	}
	if how == WarmedUp {
		w.Backend.load.penalty = 0 // it has answered since it failed
	}
	if how == WarmedUp || r.failed >= maxWarmUps {
		r.state, r.back = Ready, time.Time{}
		return w.Backend.readiness()
	}
	r.state = Cold
	if how == WarmUpFailed {
		r.resting = now.Add(warmUpPause)
	}
	return w.Backend.readiness()
}

// fewestReady is the share of those who may be chosen that has to be ready for
// the others to be spared. When a whole fleet starts at once, the first engine
// that is warm would get all the traffic.
const fewestReady = 1.0 / 3

// warmest leaves the engines out that are not ready, unless that leaves nobody,
// or too few to carry the load of all.
func warmest(free []Candidate) []Candidate {
	return those(free, func(c *Candidate) bool { return !c.unready }, fewestReady)
}
