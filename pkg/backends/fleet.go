package backends

import (
	"sync"
	"time"
)

// Fleet owns the live state of every engine and pool, so that counters and
// health survive a change of configuration. It is safe for concurrent use.
type Fleet struct {
	mu    sync.Mutex
	known registry
}

// registry is what the models of one revision refer to. Models that name one
// engine share its state; what is counted by a model's own rules is shared by
// those whose rules are the same.
type registry struct {
	engines  map[string]*live   // by URL
	pools    map[string]*claims // by model
	breakers map[breakerKey]*breaker
	windows  map[windowKey]*outcomeWindow
}

type breakerKey struct {
	url string
	breakerRules
}

type windowKey struct {
	url    string
	length time.Duration
}

func newRegistry() registry {
	return registry{
		engines: map[string]*live{}, pools: map[string]*claims{},
		breakers: map[breakerKey]*breaker{}, windows: map[windowKey]*outcomeWindow{},
	}
}

// NewFleet returns a fleet that knows no engine yet.
func NewFleet() *Fleet { return &Fleet{known: newRegistry()} }

// PoolSpec is one model and the engines that serve it.
type PoolSpec struct {
	Model    string
	Backends []Spec
}

// Pools builds the pools of a new revision. Engines and models that stay keep
// their live state; the state of those that are gone is forgotten once the
// last request on an older revision has let go of it.
func (f *Fleet) Pools(specs []PoolSpec) []*Pool {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := newRegistry()
	out := make([]*Pool, 0, len(specs))
	for _, ps := range specs {
		pool := &Pool{Model: ps.Model, claims: keep(next.pools, f.known.pools, ps.Model, func() *claims { return &claims{} })}
		for _, s := range ps.Backends {
			pool.Backends = append(pool.Backends, f.backend(next, s))
		}
		out = append(out, pool)
	}
	f.known = next
	return out
}

// backend joins a spec with the state that its engine has.
func (f *Fleet) backend(next registry, s Spec) *Backend {
	if s.Weight == 0 {
		s.Weight = 1
	}
	s.Health = s.Health.withDefaults()
	url, rules := s.URL.String(), breakerRules{failures: s.Health.BreakerFailures, open: s.Health.BreakerOpen}
	return &Backend{
		Spec:    s,
		live:    keep(next.engines, f.known.engines, url, f.newLive),
		breaker: keep(next.breakers, f.known.breakers, breakerKey{url, rules}, func() *breaker { return newBreaker(rules) }),
		window:  keep(next.windows, f.known.windows, windowKey{url, s.Health.Window}, func() *outcomeWindow { return &outcomeWindow{} }),
	}
}

// newLive is the state of an engine that is seen for the first time. One that
// comes with a later revision is new; those of the first may have served before.
func (f *Fleet) newLive() *live {
	l := newLive()
	if len(f.known.engines) > 0 {
		l.ready.turnCold(WhyNew)
	}
	return l
}

// keep takes key's state from the next registry, else from the old, else makes it.
func keep[K comparable, T any](next, old map[K]*T, key K, make func() *T) *T {
	v := next[key]
	if v == nil {
		v = old[key]
	}
	if v == nil {
		v = make()
	}
	next[key] = v
	return v
}
