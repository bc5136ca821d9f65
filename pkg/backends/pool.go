package backends

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Pool is the backends that serve one model, as one revision sees them.
type Pool struct {
	Model    string
	Backends []*Backend // in configuration order; not to be changed

	claims *claims
}

// claims is the part of a pool that outlives revisions: the critical section
// in which backends are chosen, counted and ejected.
type claims struct {
	mu  sync.Mutex
	buf []Candidate
}

// Candidate is one backend that may be chosen, as it stands at the moment of
// the choice.
type Candidate struct {
	Backend *Backend
	Index   int // its place in Pool.Backends
	Load    Load
	Cached  int      // prompt tokens of this request that the engine's prefix cache should hold
	Weight  float64  // capacity, reduced during slow start; > 0
	Signals *Signals // never nil; not to be changed

	// What the router's predictor expects; 0 where nothing is predicted.
	P50, P95 time.Duration // of the time to first token
	TPOT     time.Duration // between tokens, with this request decoding as well
	Own      time.Duration // computing what is not cached of its prompt: what every answer there is held up by it
	Decoding int           // requests past their first token there, of this gateway and others
	Young    bool          // its speed is not known yet
	Stale    bool          // the engine's own numbers are older than they should be
	Harmed   int           // requests decoding there that would newly miss their TPOT objective
	Pending  int           // prompt tokens ahead of it, of this gateway and others
	Full     bool          // a running request must end there before another begins

	unready bool // cold or being warmed
	healthy bool // neither down, ejected nor in probation

	// Compliance is the share of requests of the same contract that met it there
	// lately, 0..1; 1 where nobody keeps count.
	Compliance float64
}

// ErrHeld says that there are backends, but that none is to be given the
// request now.
var ErrHeld = errors.New("no backend is to be given the request now")

// ErrNoBackend says that no backend of the pool may be given work.
var ErrNoBackend = errors.New("no backend available")

// Unavailable is the error of a claim that found nobody; it wraps ErrNoBackend.
type Unavailable struct {
	Model string
	// Saturated: there are backends in rotation, but their in-flight caps are reached.
	Saturated bool
	// RetryAfter is when trying again may help.
	RetryAfter time.Duration
}

func (u *Unavailable) Error() string {
	if u.Saturated {
		return fmt.Sprintf("every backend of model %q is at its max_in_flight", u.Model)
	}
	return fmt.Sprintf("no backend of model %q is available", u.Model)
}

// Unwrap makes errors.Is(err, ErrNoBackend) true.
func (u *Unavailable) Unwrap() error { return ErrNoBackend }

// Claim is one counted attempt on one backend. It must be ended by End. It is
// safe for concurrent use.
type Claim struct {
	Backend *Backend
	// Probe says the attempt is the one real request that decides on a
	// backend in probation.
	Probe bool

	pool    *Pool
	work    Work
	hold    hold // guarded by the backend's mu
	begun   time.Time
	epoch   int
	breaker func(error)

	sawToken, ended bool // guarded by the backend's mu
	decided         bool // a first token has ended the probation
}

// Claim chooses a backend and counts the work on it in one critical section,
// so that two requests never both see the same idle backend. choose gets at
// least one candidate and returns an index into it, or -1 for none of them
// (ErrHeld); it must be quick and must not keep the slice. Backends in tried are left out. A backend in probation
// takes the next first attempt without being weighed.
func (p *Pool) Claim(now time.Time, w Work, tried []*Backend, choose func([]Candidate) int) (*Claim, error) {
	p.claims.mu.Lock()
	defer p.claims.mu.Unlock()

	s := p.survey(now, w, tried, false)
	if s.due != nil && len(tried) == 0 {
		if c := p.take(now, w, s.due, true); c != nil {
			return c, nil
		}
	}
	if len(s.free) == 0 && s.rotating == 0 {
		s = p.survey(now, w, tried, true)
	}
	for len(s.free) > 0 {
		i := choose(s.free)
		if i < 0 {
			return nil, ErrHeld
		}
		if c := p.take(now, w, s.free[i].Backend, false); c != nil {
			return c, nil
		}
		s.free = append(s.free[:i], s.free[i+1:]...) // another model was quicker
	}
	return nil, s.unavailable(p.Model)
}

// survey is what one look at a pool's backends finds.
type survey struct {
	free     []Candidate   // in rotation and able to take one more
	due      *Backend      // its probation waits for the one real request
	rotating int           // in rotation: not draining, down, ejected, or behind an open breaker
	full     int           // of these, at their in-flight cap
	retry    time.Duration // shortest time a breaker stays open; 0: none is
}

// survey lists who may be chosen: the healthy that do not stand by, or everyone who
// is not draining, of these those that stand by and are healthy, if there are any;
// of all these the ready, if enough are. The list is valid until the next
// survey.
func (p *Pool) survey(now time.Time, w Work, tried []*Backend, everyone bool) survey {
	s := survey{free: p.claims.buf[:0]}
	for i, b := range p.Backends {
		b.mu.Lock()
		s.add(now, w, i, b, everyone, contains(tried, b))
		b.mu.Unlock()
	}
	p.claims.buf = s.free
	if everyone {
		s.free = healthiest(s.free)
	}
	s.free = warmest(s.free)
	return s
}

// add is called with b.mu held.
func (s *survey) add(now time.Time, w Work, i int, b *Backend, everyone, tried bool) {
	state, full := b.state(now), b.full()
	switch {
	case b.keptBack() && !everyone:
	case b.breaker.refuses():
		if s.retry == 0 || b.Health.BreakerOpen < s.retry {
			s.retry = b.Health.BreakerOpen
		}
	case state == Up || everyone && state != Draining:
		s.rotating++
		if full {
			s.full++
		} else if !tried {
			s.free = append(s.free, Candidate{
				Backend: b, Index: i, Load: b.load.snapshot(now), Cached: b.cache.tokens(w),
				Weight: b.rampedWeight(now), Signals: b.signals, unready: b.unready(), healthy: state == Up,
			})
		}
	case state == Probation && !b.health.probing && !full && s.due == nil && !b.unready():
		s.due = b
	}
}

// Look returns one of the pool's backends, by its place, as a candidate for the
// work; ok is false if it is not to be given any.
func (p *Pool) Look(now time.Time, w Work, place int, tried []*Backend) (c Candidate, ok bool) {
	b, s := p.Backends[place], survey{}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unready() {
		return c, false
	}
	s.add(now, w, place, b, false, contains(tried, b))
	if len(s.free) == 0 {
		return c, false
	}
	return s.free[0], true
}

// healthiest leaves the engines out that are down or ejected, unless that leaves
// nobody.
func healthiest(free []Candidate) []Candidate {
	return those(free, func(c *Candidate) bool { return c.healthy }, 0)
}

// those leaves the others out, unless that leaves nobody, or less than a share.
func those(free []Candidate, are func(*Candidate) bool, fewest float64) []Candidate {
	n := 0
	for i := range free {
		if are(&free[i]) {
			n++
		}
	}
	if n == 0 || n == len(free) || float64(n) < fewest*float64(len(free)) {
		return free
	}
	kept := free[:0]
	for i := range free {
		if are(&free[i]) {
			kept = append(kept, free[i])
		}
	}
	return kept
}

func (s *survey) unavailable(model string) *Unavailable {
	u := &Unavailable{Model: model, Saturated: s.full > 0, RetryAfter: time.Second}
	if s.rotating == 0 && s.retry > 0 {
		u.RetryAfter = s.retry
	}
	return u
}

// take counts the work on b. It returns nil when b has no place left for it:
// engines that models share are not held still by one pool's lock.
func (p *Pool) take(now time.Time, w Work, b *Backend, probe bool) *Claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full() || probe && (b.health.probing || b.state(now) != Probation) {
		return nil
	}
	done, ok := b.breaker.allow()
	if !ok {
		return nil
	}
	w.uncached = w.PromptTokens - b.cache.tokens(w)
	b.load.begin(w)
	b.health.probing = b.health.probing || probe
	return &Claim{
		Backend: b, Probe: probe, pool: p, work: w, hold: b.cache.begin(w), begun: now, epoch: b.health.epoch, breaker: done,
	}
}

func contains(list []*Backend, b *Backend) bool {
	for _, t := range list {
		if t.Same(b) {
			return true
		}
	}
	return false
}

// full is called with mu held.
func (b *Backend) full() bool {
	return b.MaxInFlight > 0 && b.load.inFlight >= b.MaxInFlight
}

// Uncached is how many of the prompt's tokens the engine has to compute, as
// far as known.
func (c *Claim) Uncached() int { return c.work.uncached }

// FirstToken gives the prefill share back and teaches the backend's TTFT
// (attempt sent to first token). Only the first call counts, and none after
// End.
func (c *Claim) FirstToken(now time.Time) {
	b := c.Backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.sawToken || c.ended {
		return
	}
	c.sawToken = true
	ttft := now.Sub(c.begun)
	b.load.firstToken(c.work)
	b.load.ttft.observe(now, ttft)
	b.load.prefillRate.observe(ttft, c.work.uncached)
	b.cache.answering(&c.hold)
	c.decide(now)
}

// Cached tells how many of the prompt's tokens, by the count of
// Work.PromptTokens, the engine says it found in its cache. It counts before
// End, and once.
func (c *Claim) Cached(tokens int) {
	b := c.Backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if !c.ended {
		b.cache.correct(&c.hold, tokens)
	}
}

// Output tells how many tokens the answer has by now, as often as is known. It
// counts before End.
func (c *Claim) Output(tokens int) {
	b := c.Backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if !c.ended {
		b.cache.answer(&c.hold, tokens)
	}
}

// decide lets a first token answer for the whole attempt where one attempt is
// waited for, in probation and behind a half-open breaker: a stream may go on
// for minutes. Called with the backend's mu held.
func (c *Claim) decide(now time.Time) {
	if c.breaker != nil && c.Backend.breaker.halfOpen() {
		c.breaker(nil)
		c.breaker = nil
	}
	if c.Probe {
		c.decided = true
		c.Backend.settleProbation(now, Served)
		c.epoch = c.Backend.health.epoch
	}
}

// Ejection tells what an outcome did to its backend.
type Ejection struct {
	Ejected bool
	Reason  string // consecutive, failure_rate, probation
}

// End gives back what the claim still counts and records the outcome. Only
// the first call counts.
func (c *Claim) End(now time.Time, o Outcome) Ejection {
	reason, wanted := c.settle(now, o)
	if wanted && !c.pool.eject(now, c.Backend) {
		reason = ""
	}
	return Ejection{Ejected: reason != "", Reason: reason}
}

// settle does what concerns the backend alone and returns why it is ejected;
// if only wanted, the pool has to agree.
func (c *Claim) settle(now time.Time, o Outcome) (reason string, wanted bool) {
	b := c.Backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.ended {
		return "", false
	}
	c.ended = true
	b.load.end(now, c.work, c.sawToken, o.ClientLeft, c.begun)
	b.cache.end(&c.hold, !c.sawToken && o.Class != Served && !o.ClientLeft)
	if c.breaker != nil {
		c.breaker(verdict(o.Class))
	}
	current := c.epoch == b.health.epoch
	if (current || c.Probe) && (o.Class == Fault || o.Class == Overloaded) {
		b.load.penalise(now)
	}
	switch {
	case c.Probe && !c.decided:
		if b.settleProbation(now, o.Class) {
			reason = "probation"
		}
	case current:
		reason = b.record(now, o.Class)
		wanted = reason != ""
	}
	return reason, wanted
}

// eject takes b out if that keeps the ceiling: the ejected backends, counting
// this one, stay within MaxEjected of the pool (but one may always go), and
// small pools eject nobody. Backends that are draining, down or stand by are no
// part of the pool here. One backend is locked at a time, since pools share engines.
func (p *Pool) eject(now time.Time, b *Backend) bool {
	p.claims.mu.Lock()
	defer p.claims.mu.Unlock()
	hosts, out := 1, 1
	for _, other := range p.Backends {
		if other.Same(b) {
			continue
		}
		other.mu.Lock()
		state := other.state(now)
		if other.keptBack() {
			state = Draining
		}
		other.mu.Unlock()
		switch state {
		case Ejected, Probation:
			hosts, out = hosts+1, out+1
		case Up:
			hosts++
		}
	}
	allowed := max(1, int(b.Health.MaxEjected*float64(hosts)))
	if hosts < b.Health.MinHosts || b.Health.MaxEjected < 0 || out > allowed {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state(now) != Up { // another model of the engine was quicker
		return false
	}
	b.eject(now)
	return true
}
