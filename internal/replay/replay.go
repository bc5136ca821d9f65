package replay

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// Engine is one engine of the fleet.
type Engine struct {
	Name   string
	Model  string // requests of this model are served; all engines of a model form a pool
	Params engine.Params
	Seed   uint64 // of the noise
}

// Fault is something that happens to an engine.
type Fault struct {
	At     time.Duration
	Engine int // index into Config.Engines
	Kind   FaultKind
}

// FaultKind is what happens.
type FaultKind uint8

// The faults.
const (
	Crash   FaultKind = iota // running requests are lost, connections refused
	Restart                  // back with an empty cache
)

// Config is one replay. The zero value of a field means its default.
type Config struct {
	Engines  []Engine
	Policy   string        // of package router
	Gateways int           // replicas that don't see each other; requests are dealt in turn. 1
	Network  time.Duration // one way between gateway and engine. 200 µs
	Scrape   time.Duration // between scrapes, jittered by a fifth. 300 ms; below 0: none
	Probe    time.Duration // between health probes. 5 s; below 0: none
	Attempts int           // tries of a request at most, the first included. 3
	Health   backends.HealthRules
	Seed     uint64
	Faults   []Fault
	// Stop ends the replay when it returns true; asked every few thousand events.
	Stop func() bool
}

func (c Config) withDefaults() Config {
	if c.Gateways == 0 {
		c.Gateways = 1
	}
	if c.Network == 0 {
		c.Network = 200 * time.Microsecond
	}
	if c.Scrape == 0 {
		c.Scrape = 300 * time.Millisecond
	}
	if c.Probe == 0 {
		c.Probe = 5 * time.Second
	}
	if c.Attempts == 0 {
		c.Attempts = 3
	}
	c.Health.BreakerFailures = 0 // the breaker's library reads the wall clock
	return c
}

// Outcome is what became of one request.
type Outcome struct {
	Index    int // in the trace
	Request  trace.Request
	Engine   int           // that served it; -1: none
	Attempts int           // made
	Cached   int           // prompt tokens found in the engine's prefix cache
	TTFT     time.Duration // accepted to first token; 0 if there was none
	E2E      time.Duration // accepted to the end
	Reason   string        // ok, or why not: refused, too_long, lost, unfinished
	Busy     int           // requests in flight on the engine when this one was sent, itself left out
}

// OK reports whether the request was served.
func (o *Outcome) OK() bool { return o.Reason == "ok" }

// TPOT is the time per output token after the first; 0 with fewer than two.
func (o *Outcome) TPOT() time.Duration {
	if !o.OK() || o.Request.OutputTokens < 2 {
		return 0
	}
	return (o.E2E - o.TTFT) / time.Duration(o.Request.OutputTokens-1)
}

// Totals are what the replay as a whole came to.
type Totals struct {
	End      time.Duration  // of the last event
	Engines  []engine.Stats // as of the end; of a restarted engine, all its lives together
	Requests int
	Stopped  bool // Stop ended it
}

// origin is the instant of a trace's start, as the gateway's code sees it.
var origin = time.Unix(1_700_000_000, 0)

// Run replays the source and gives each request's outcome to sink, in the
// order in which they ended.
func Run(c Config, src trace.Source, sink func(*Outcome)) (Totals, error) {
	c = c.withDefaults()
	w, err := newWorld(c, sink)
	if err != nil {
		return Totals{}, err
	}
	return w.run(src)
}

// world is the state of a replay.
type world struct {
	Config
	sink    func(*Outcome)
	queue   queue
	now     time.Duration
	rng     *rand.Rand
	engines []*node
	gates   []*gateway
	flights []flight // requests under way, by slot
	free    []int
	pending trace.Request // the next arrival
	count   int           // requests arrived
	under   int           // requests under way
	ended   bool          // the trace is
	blocks  []uint64
}

// node is one engine.
type node struct {
	Engine
	sim    *engine.Sim // nil while crashed
	lives  int
	past   engine.Stats // of former lives
	wakeAt time.Duration
	slots  map[engine.ID]int
}

// gateway is one replica with its own view of the fleet.
type gateway struct {
	routers map[string]*router.Router // by model
	any     *router.Router            // for requests that name no model
	targets []*backends.Backend       // by engine
	scrapes []scrape                  // by engine
}

// scrape is one request for an engine's metrics under way.
type scrape struct {
	began time.Duration
	own   int
	text  engine.Stats
	ok    bool
}

// flight is one request under way.
type flight struct {
	outcome Outcome
	gate    int
	ask     router.Request
	lease   *router.Lease
	engine  int
	id      engine.ID
	tried   []*backends.Backend
	arrived time.Duration
	hashes  []uint64
	attempt int32 // distinguishes late events of a former attempt
	live    bool
}

func newWorld(c Config, sink func(*Outcome)) (*world, error) {
	w := &world{Config: c, sink: sink, rng: rand.New(rand.NewPCG(c.Seed, 0x5e9ee7))}
	if len(c.Engines) == 0 {
		return nil, errors.New("replay: the fleet has no engines")
	}
	for i, e := range c.Engines {
		sim, err := engine.New(e.Params, e.Seed)
		if err != nil {
			return nil, fmt.Errorf("replay: engine %d (%s): %w", i, e.Name, err)
		}
		w.engines = append(w.engines, &node{Engine: e, sim: sim, wakeAt: never, slots: map[engine.ID]int{}})
	}
	for g := range c.Gateways {
		gate, err := newGateway(c, g)
		if err != nil {
			return nil, err
		}
		w.gates = append(w.gates, gate)
	}
	for _, f := range c.Faults {
		if f.Engine < 0 || f.Engine >= len(c.Engines) {
			return nil, fmt.Errorf("replay: a fault names engine %d of %d", f.Engine, len(c.Engines))
		}
	}
	return w, nil
}

const never = time.Duration(math.MaxInt64)

func newGateway(c Config, g int) (*gateway, error) {
	gate := &gateway{
		routers: map[string]*router.Router{},
		targets: make([]*backends.Backend, len(c.Engines)),
		scrapes: make([]scrape, len(c.Engines)),
	}
	var models []string
	members := map[string][]int{}
	for i, e := range c.Engines {
		if members[e.Model] == nil {
			models = append(models, e.Model)
		}
		members[e.Model] = append(members[e.Model], i)
	}
	var specs []backends.PoolSpec
	for _, m := range models {
		ps := backends.PoolSpec{Model: m}
		for _, i := range members[m] {
			ps.Backends = append(ps.Backends, backends.Spec{
				Name:   c.Engines[i].Name,
				URL:    &url.URL{Scheme: "http", Host: fmt.Sprintf("engine-%d", i)},
				Kind:   backends.VLLM,
				Health: c.Health,
			})
		}
		specs = append(specs, ps)
	}
	for k, pool := range backends.NewFleet().Pools(specs) {
		policy, err := router.NewPolicy(c.Policy, rand.NewPCG(c.Seed+uint64(g), uint64(k)))
		if err != nil {
			return nil, err
		}
		r := router.New(pool, c.Policy, policy)
		gate.routers[models[k]] = r
		if gate.any == nil {
			gate.any = r
		}
		for j, i := range members[models[k]] {
			gate.targets[i] = pool.Backends[j]
		}
	}
	return gate, nil
}

func (w *world) clock() time.Time { return origin.Add(w.now) }

func (w *world) run(src trace.Source) (Totals, error) {
	next, stop := pull(src)
	defer stop()
	w.startTimers()
	if err := w.fetch(next); err != nil {
		return Totals{}, err
	}
	totals := Totals{}
	for n := 0; len(w.queue.heap) > 0; n++ {
		if w.ended && w.under == 0 {
			break
		}
		if n%4096 == 0 && w.Stop != nil && w.Stop() {
			totals.Stopped = true
			break
		}
		e := w.queue.pop()
		w.now = e.at
		if e.kind == arrive {
			w.arrive()
			if err := w.fetch(next); err != nil {
				return totals, err
			}
			continue
		}
		w.handle(e)
	}
	w.leaveUnfinished()
	totals.End, totals.Requests = w.now, w.count
	for _, n := range w.engines {
		totals.Engines = append(totals.Engines, n.total())
	}
	return totals, nil
}

// fetch schedules the next arrival of the trace.
func (w *world) fetch(next func() (trace.Request, error, bool)) error {
	r, err, ok := next()
	switch {
	case !ok:
		w.ended = true
		return nil
	case err != nil:
		return err
	}
	w.pending = r
	w.queue.push(max(r.At, w.now), arrive, 0, 0)
	return nil
}

func (w *world) handle(e event) {
	switch e.kind {
	case dispatch:
		w.dispatch(int(e.a), e.b)
	case wake:
		w.wake(int(e.a))
	case tokenSeen:
		w.tokenSeen(int(e.a), e.b)
	case endSeen:
		w.endSeen(int(e.a), e.b)
	case lostSeen:
		w.lostSeen(int(e.a), e.b)
	case scrapeSent:
		w.scrapeSent(int(e.a), int(e.b))
	case scrapeRead:
		w.scrapeRead(int(e.a), int(e.b))
	case scrapeSeen:
		w.scrapeSeen(int(e.a), int(e.b))
	case probeSent:
		w.probe(int(e.a), int(e.b))
	case fault:
		w.fault(int(e.a), FaultKind(e.b))
	}
}

// leaveUnfinished accounts for what a stop cut off.
func (w *world) leaveUnfinished() {
	for slot := range w.flights {
		if w.flights[slot].live {
			w.finish(slot, "unfinished")
		}
	}
}
