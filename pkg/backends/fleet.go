package backends

import (
	"sync"
)

// Fleet owns the live state of every engine and pool, so that counters and
// health survive a change of configuration. It is safe for concurrent use.
type Fleet struct {
	mu      sync.Mutex
	engines map[string]*live   // by URL
	pools   map[string]*claims // by model
}

// NewFleet returns a fleet that knows no engine yet.
func NewFleet() *Fleet {
	return &Fleet{engines: map[string]*live{}, pools: map[string]*claims{}}
}

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
	engines, pools := map[string]*live{}, map[string]*claims{}
	out := make([]*Pool, 0, len(specs))
	for _, ps := range specs {
		pool := &Pool{Model: ps.Model, claims: keep(pools, f.pools, ps.Model)}
		for _, s := range ps.Backends {
			l := keep(engines, f.engines, s.URL.String())
			l.mu.Lock()
			b := newBackend(s, l)
			l.mu.Unlock()
			pool.Backends = append(pool.Backends, b)
		}
		out = append(out, pool)
	}
	f.engines, f.pools = engines, pools
	return out
}

// keep takes key's state from the new map, else from the old, else a new one.
func keep[T any](fresh, old map[string]*T, key string) *T {
	v := fresh[key]
	if v == nil {
		v = old[key]
	}
	if v == nil {
		v = new(T)
	}
	fresh[key] = v
	return v
}
