package backends

import "time"

// callPause is the shortest time between two calls of a pool: what an instance
// more is worth shows after a while.
const callPause = 30 * time.Second

// standby is of one engine that a configuration keeps back for when others can't
// carry the load. The zero value stands by.
type standby struct {
	called time.Time // in; zero: it stands by
	wanted time.Time // for the last time
}

// standsBy is called with mu held.
func (b *Backend) standsBy() bool { return b.Standby && b.standby.called.IsZero() }

// keptBack reports whether it stands by, or was called in and is not warm yet.
// Called with mu held.
func (b *Backend) keptBack() bool { return b.Standby && (b.standsBy() || b.unready()) }

// CallIn says that the pool could do with a further instance. It calls in one of
// those that stand by and returns it, or nil where none does, the last one is
// still being warmed up, or came less than half a minute ago. Those that were
// called in before stay the longer for it.
func (p *Pool) CallIn(now time.Time) *Backend {
	p.claims.mu.Lock()
	defer p.claims.mu.Unlock()
	next, pause := (*Backend)(nil), false
	for _, b := range p.Backends {
		canCome, isComing := b.want(now)
		if canCome && next == nil {
			next = b
		}
		pause = pause || isComing
	}
	if next == nil || pause {
		return nil
	}
	next.mu.Lock()
	defer next.mu.Unlock()
	next.standby = standby{called: now, wanted: now}
	next.ready.turnCold(WhyCalled)
	return next
}

// want notes that a further instance is wanted, and reports whether this one can
// be called in, or was just now.
func (b *Backend) want(now time.Time) (canCome, isComing bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.state(now); !b.Standby || s != Up && s != Probation {
		return false, false
	}
	if b.standsBy() {
		return true, false
	}
	b.standby.wanted = now
	return false, b.unready() || now.Sub(b.standby.called) < callPause
}

// Dismiss lets the engine stand by again if it was called in and nobody has
// wanted it for so long, and reports whether it does. What it runs it finishes.
func (b *Backend) Dismiss(now time.Time, after time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.Standby || b.standsBy() || now.Sub(b.standby.wanted) < after {
		return false
	}
	b.standby = standby{}
	return true
}
