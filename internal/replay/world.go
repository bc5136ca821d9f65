package replay

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
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

// up reports whether the engine answers.
func (n *node) up(now time.Duration) bool { return n.sim != nil && now >= n.sim.ReadyAt() }

func newWorld(c Config, sink func(*Outcome)) (*world, error) {
	w := &world{Config: c, sink: sink, rng: rand.New(rand.NewPCG(c.Seed, 0x5e9ee7))}
	if len(c.Engines) == 0 || c.Gateways < 1 {
		return nil, errors.New("replay: the fleet has no engines, or no gateway")
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
	case endSeen:
		w.endSeen(int(e.a), e.b)
	case lostSeen:
		w.lostSeen(int(e.a), e.b)
	case refusalSeen:
		w.refusalSeen(int(e.a), e.b)
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
			w.finish(slot, Unfinished)
		}
	}
}
