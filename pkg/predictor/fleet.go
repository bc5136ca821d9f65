package predictor

import "sync"

// Fleet owns instances and pools, so that what was learned survives a change
// of configuration. It is safe for concurrent use.
type Fleet struct {
	watch Watch

	mu        sync.Mutex
	instances map[string]*Instance
	pools     map[string]*Pool
}

// NewFleet returns a fleet that knows nothing yet. watch may be nil.
func NewFleet(watch Watch) *Fleet {
	return &Fleet{watch: watch, instances: map[string]*Instance{}, pools: map[string]*Pool{}}
}

// Instance returns the instance of an engine, by its URL. A new one begins
// with the prior; nil is a GPU of which nothing is known.
func (f *Fleet) Instance(url string, prior *Speed) *Instance {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.instances[url]
	if i == nil {
		if prior == nil {
			prior = &genericSpeed
		}
		i = NewInstance(*prior)
		f.instances[url] = i
	}
	return i
}

// Pool returns the pool of a model. Rules of an existing one are replaced.
func (f *Fleet) Pool(model string, rules Rules) *Pool {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pools[model]
	if p == nil {
		p = NewPool(model, rules, f.watch)
		f.pools[model] = p
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = rules.withDefaults()
	return p
}

// Keep forgets every instance and pool that is not named.
func (f *Fleet) Keep(urls, models map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for u := range f.instances {
		if !urls[u] {
			delete(f.instances, u)
		}
	}
	alive := make(map[*Instance]bool, len(f.instances))
	for _, i := range f.instances {
		alive[i] = true
	}
	for m, p := range f.pools {
		if !models[m] {
			delete(f.pools, m)
			continue
		}
		p.keep(alive)
	}
}
