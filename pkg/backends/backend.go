package backends

import (
	"net/url"
	"sync"
	"time"
)

// Kind names an engine family; it decides probe paths and metric names.
type Kind string

// The engine kinds the gateway knows. Generic is any OpenAI-compatible server.
const (
	VLLM     Kind = "vllm"
	SGLang   Kind = "sglang"
	TGI      Kind = "tgi"
	TRTLLM   Kind = "trtllm"
	LlamaCpp Kind = "llamacpp"
	Generic  Kind = "generic"
)

// Spec is what the configuration says of one engine. It is immutable.
type Spec struct {
	Name     string            // unique in the fleet; used in metrics and logs
	URL      *url.URL          // base, without a trailing /v1
	Model    string            // name the engine knows the model by; empty: as the client sent it
	Kind     Kind              // engine family
	Weight   float64           // relative capacity; 0 means 1
	Draining bool              // gets no new work
	WarmUp   bool              // gets warm-up prompts before requests when it is new or was restarted
	Standby  bool              // gets no requests until Pool.CallIn, and warm-up prompts then
	Labels   map[string]string // gpu, cuda, quantization, topology, ...

	AuthHeader string // header that carries the gateway's credential; empty for none
	AuthValue  string // its value; never logged

	MaxInFlight int // requests in flight at most; 0 is no cap

	Health HealthRules
}

// Backend is one engine as one configuration revision sees it: an immutable
// Spec over live state (load, health, signals) that outlives revisions. All
// methods are safe for concurrent use.
type Backend struct {
	Spec
	*live
	breaker *breaker       // guarded by mu
	window  *outcomeWindow // guarded by mu
}

// live is the state of one engine, shared by every revision and every model
// that names the engine's URL. mu guards all fields.
type live struct {
	mu      sync.Mutex
	load    load
	health  health
	signals *Signals // replaced, never changed
	prefix  ratioOf
	cpu     rateOf
	cache   prefixCache
	ready   readiness
	standby standby
}

func newLive() *live {
	unknown := UnknownSignals()
	return &live{signals: &unknown}
}

// Same reports whether a and b are the same engine, whatever their revisions.
func (b *Backend) Same(other *Backend) bool { return b.live == other.live }

// Load is a snapshot of the work the gateway has on the engine at now.
func (b *Backend) Load(now time.Time) Load {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.load.snapshot(now)
}

// Status is a snapshot for metrics, logs and the operator's pages.
type Status struct {
	Load    Load
	State   State
	Ready   Readiness
	Up      bool    // what active probes say; true until the first verdict
	Breaker string  // closed, half-open or open
	Weight  float64 // capacity, reduced during slow start
	Signals Signals
}

// Status returns a snapshot of everything known at now.
func (b *Backend) Status(now time.Time) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Status{
		Load:    b.load.snapshot(now),
		State:   b.state(now),
		Ready:   b.readiness(),
		Up:      !b.health.down,
		Breaker: b.breaker.state().String(),
		Weight:  b.rampedWeight(now),
		Signals: *b.signals,
	}
}

// SetSignals stores what the engine's metrics said. Cumulative counters are
// turned into ratios and rates here, and prefill held for clients that left
// is released when the engine's own numbers show it gone. What the engine's
// prefix cache should hold follows its size and its hits.
func (b *Backend) SetSignals(s Signals) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready.scraped(b.signals, &s) {
		b.cache.reset()
	}
	b.cache.learn(&s)
	s.PrefixHitRatio = b.prefix.update(s.PrefixHitRatio, s.prefixHits, s.prefixQueries)
	s.CPU = b.cpu.update(s.At, s.cpuSeconds)
	b.signals = &s
	b.load.reconcile(s)
}

// Signals returns the last signals; their At is zero before the first scrape.
func (b *Backend) Signals() Signals {
	b.mu.Lock()
	defer b.mu.Unlock()
	return *b.signals
}
