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
	Load    Load
	Weight  float64 // capacity, reduced during slow start; > 0
	Signals Signals
}

// ErrNoBackend says that no backend of the pool may be given work.
var ErrNoBackend = errors.New("no backend available")

// Unavailable is the error of a claim that found nobody; it wraps ErrNoBackend.
type Unavailable struct {
	Model string
	// Saturated: backends are in rotation, but each is at its in-flight cap.
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

// Claim is one counted attempt on one backend. It must be ended exactly once
// by End. It is not safe for concurrent use; Router leases make it so.
type Claim struct {
	Backend *Backend
	// Probe says the attempt is the one real request that decides on a
	// backend in probation.
	Probe bool

	pool     *Pool
	work     Work
	begun    time.Time
	sawToken bool
	breaker  func(error)
}

// Claim chooses a backend and counts the work on it in one critical section,
// so that two requests never both see the same idle backend. choose gets at
// least one candidate and returns an index into it; it must be quick and must
// not keep the slice. Backends in tried are left out. A backend in probation
// takes the next first attempt without being weighed.
func (p *Pool) Claim(now time.Time, w Work, tried []*Backend, choose func([]Candidate) int) (*Claim, error) {
	p.claims.mu.Lock()
	defer p.claims.mu.Unlock()

	if len(tried) == 0 {
		if c := p.claimProbation(now, w); c != nil {
			return c, nil
		}
	}
	cands := p.candidates(now, tried)
	for len(cands) > 0 {
		i := choose(cands)
		if c := p.count(now, w, cands[i].Backend); c != nil {
			return c, nil
		}
		cands = append(cands[:i], cands[i+1:]...) // its breaker's one probe is out
	}
	return nil, p.unavailable(now, tried)
}

// candidates lists who may be chosen: the healthy, or, when nobody is left in
// rotation, everyone who is not draining.
func (p *Pool) candidates(now time.Time, tried []*Backend) []Candidate {
	cands := p.filter(now, tried, func(b *Backend) bool { return b.state(now) == Up })
	if len(cands) == 0 && !p.anyUp(now) {
		cands = p.filter(now, tried, func(b *Backend) bool { return !b.Draining })
	}
	return cands
}

func (p *Pool) filter(now time.Time, tried []*Backend, in func(*Backend) bool) []Candidate {
	out := p.claims.buf[:0]
	for _, b := range p.Backends {
		if contains(tried, b) {
			continue
		}
		b.mu.Lock()
		b.forgive(now)
		if in(b) && !b.full() && !b.breaker.isOpen() {
			out = append(out, Candidate{
				Backend: b,
				Load:    b.load.snapshot(now),
				Weight:  b.rampedWeight(now),
				Signals: b.signals,
			})
		}
		b.mu.Unlock()
	}
	p.claims.buf = out
	return out
}

func (p *Pool) anyUp(now time.Time) bool {
	for _, b := range p.Backends {
		b.mu.Lock()
		up := b.state(now) == Up
		b.mu.Unlock()
		if up {
			return true
		}
	}
	return false
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

// claimProbation gives a backend whose ejection is over its one real request.
func (p *Pool) claimProbation(now time.Time, w Work) *Claim {
	for _, b := range p.Backends {
		b.mu.Lock()
		due := b.state(now) == Probation && !b.health.probing && !b.full()
		b.mu.Unlock()
		if !due {
			continue
		}
		if c := p.count(now, w, b); c != nil {
			b.mu.Lock()
			b.health.probing = true
			b.mu.Unlock()
			c.Probe = true
			return c
		}
	}
	return nil
}

// count passes the breaker and counts the work; nil when the breaker refuses.
func (p *Pool) count(now time.Time, w Work, b *Backend) *Claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	done, ok := b.breaker.allow()
	if !ok {
		return nil
	}
	b.load.begin(w)
	return &Claim{Backend: b, pool: p, work: w, begun: now, breaker: done}
}

func (p *Pool) unavailable(now time.Time, tried []*Backend) error {
	u := &Unavailable{Model: p.Model, RetryAfter: time.Second}
	open := false
	for _, b := range p.Backends {
		b.mu.Lock()
		if !b.Draining && b.full() {
			u.Saturated = true
		}
		open = open || b.breaker.isOpen()
		b.mu.Unlock()
	}
	if open && !u.Saturated {
		u.RetryAfter = p.Backends[0].Health.BreakerOpen
	}
	return u
}

// FirstToken gives the prefill share back and teaches the backend's TTFT
// (attempt sent to first token). Further calls do nothing.
func (c *Claim) FirstToken(now time.Time) {
	if c.sawToken {
		return
	}
	c.sawToken = true
	ttft := now.Sub(c.begun)
	b := c.Backend
	b.mu.Lock()
	defer b.mu.Unlock()
	b.load.firstToken(c.work)
	b.load.ttft.observe(now, ttft)
	b.load.prefillRate.observe(ttft, c.work.PromptTokens)
}

// Ejection tells what an outcome did to its backend.
type Ejection struct {
	Ejected bool
	Reason  string // consecutive, failure_rate, probation
}

// End gives back what the claim still counts and records the outcome.
func (c *Claim) End(now time.Time, o Outcome) Ejection {
	c.pool.claims.mu.Lock() // the ceiling on ejections is judged over the pool
	defer c.pool.claims.mu.Unlock()
	eject, reason := c.settle(now, o)
	if !eject || !c.pool.mayEject(now, c.Backend) {
		return Ejection{Ejected: reason == probationFailed, Reason: reason}
	}
	b := c.Backend
	b.mu.Lock()
	defer b.mu.Unlock()
	b.eject(now)
	return Ejection{Ejected: true, Reason: reason}
}

const probationFailed = "probation"

// settle does what concerns the backend alone, and says whether the pool
// should eject it. A backend out of rotation is not ejected again by requests
// that were still running there.
func (c *Claim) settle(now time.Time, o Outcome) (eject bool, reason string) {
	b := c.Backend
	b.mu.Lock()
	defer b.mu.Unlock()
	b.load.end(now, c.work, c.sawToken, o.ClientLeft, c.begun)
	if c.breaker != nil {
		c.breaker(verdict(o.Class))
	}
	eject, reason = b.record(now, o.Class)
	if c.Probe {
		if b.settleProbation(now, o.Class) {
			return false, probationFailed
		}
		return false, ""
	}
	if b.state(now) != Up {
		return false, ""
	}
	return eject, reason
}

// mayEject holds the ceiling: the ejected backends, counting this one, stay
// within MaxEjected of the pool (but one may always go), and small pools
// eject nobody. One backend is locked at a time, since pools share engines.
func (p *Pool) mayEject(now time.Time, b *Backend) bool {
	if len(p.Backends) < b.Health.MinHosts || b.Health.MaxEjected < 0 {
		return false
	}
	out := 1
	for _, other := range p.Backends {
		if other.Same(b) {
			continue
		}
		other.mu.Lock()
		if s := other.state(now); s == Ejected || s == Probation {
			out++
		}
		other.mu.Unlock()
	}
	return out <= max(1, int(b.Health.MaxEjected*float64(len(p.Backends))))
}
