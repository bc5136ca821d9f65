package replay

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/trace"
)

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
	oracle  oracle
}

// node is one engine.
type node struct {
	Engine
	sim     *engine.Sim // nil while crashed
	lives   int
	past    engine.Stats // of former lives
	wakeAt  time.Duration
	slots   map[engine.ID]int
	prompts map[engine.ID]event               // of warm-ups: the gateway and the prompt; a crash loses them
	faults  map[engine.FaultKind]engine.Fault // that last
	told    engine.Stats                      // by its metrics
	steps   emissions
}

func (n *node) total() engine.Stats {
	if n.sim == nil {
		return n.past
	}
	return add(n.past, n.sim.Stats())
}

// up reports whether the engine answers.
func (n *node) up(now time.Duration) bool { return n.sim != nil && now >= n.sim.ReadyAt() }

func newWorld(c Config, sink func(*Outcome)) (*world, error) {
	w := &world{Config: c, sink: sink, rng: rand.New(rand.NewPCG(c.Seed, 0x5e9ee7))}
	w.oracle.w = w
	if len(c.Engines) == 0 || c.Gateways < 1 {
		return nil, errors.New("replay: the fleet has no engines, or no gateway")
	}
	for i, e := range c.Engines {
		sim, err := engine.New(e.Params, e.Seed)
		if err != nil {
			return nil, fmt.Errorf("replay: engine %d (%s): %w", i, e.Name, err)
		}
		w.engines = append(w.engines, &node{Engine: e, sim: sim, wakeAt: never, slots: map[engine.ID]int{}, prompts: map[engine.ID]event{}, faults: map[engine.FaultKind]engine.Fault{}})
	}
	for g := range c.Gateways {
		gate, err := newGateway(c, g)
		if err != nil {
			return nil, err
		}
		w.gates = append(w.gates, gate)
	}
	w.Faults = slices.Clone(c.Faults)
	for i := range w.Faults {
		var err error
		if w.Faults[i], err = w.Faults[i].checked(len(c.Engines)); err != nil {
			return nil, fmt.Errorf("replay: %w", err)
		}
	}
	return w, nil
}

const never = time.Duration(math.MaxInt64)

func (w *world) clock() time.Time { return origin.Add(w.now) }

func (w *world) run(src trace.Source) (Totals, error) {
	next, stop := iter.Pull2(iter.Seq2[trace.Request, error](src))
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
	case stepSeen:
		w.stepSeen(int(e.a), int(e.b))
	case endSeen:
		w.endSeen(int(e.a), e.b)
	case lostSeen:
		w.failureSeen(int(e.a), e.b, Lost)
	case admitted:
		w.admitted(int(e.a), e.b)
	case pumpDue:
		w.pump(w.gates[e.a])
	case rejectSeen:
		w.failureSeen(int(e.a), e.b, Refused)
	case refusalSeen:
		w.refusalSeen(int(e.a), e.b)
	case promptSent:
		w.promptSent(int(e.a), int(e.b))
	case promptSeen:
		w.promptSeen(int(e.a), int(e.b))
	case promptLost:
		w.promptLost(int(e.a), int(e.b))
	case scrapeSent:
		w.scrapeSent(int(e.a), int(e.b))
	case scrapeRead:
		w.scrapeRead(int(e.a), int(e.b))
	case scrapeSeen:
		w.scrapeSeen(int(e.a), int(e.b))
	case probeSent:
		w.probe(int(e.a), int(e.b))
	case faultBegins:
		w.begin(&w.Faults[e.a])
	case faultEnds:
		w.clear(&w.Faults[e.a])
	}
}

// leaveUnfinished accounts for what a stop cut off.
func (w *world) leaveUnfinished() {
	for slot := range w.flights {
		if w.flights[slot].live {
			w.finish(slot, Unfinished)
		}
	}
}
