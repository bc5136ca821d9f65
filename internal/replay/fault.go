package replay

import (
	"fmt"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// Fault is something that goes wrong with an engine: Crash, Restart, Slow,
// Errors, Reject or StallMetrics. The others need a client that runs out of
// patience, which a replay has not.
type Fault struct {
	At     time.Duration
	Engine int // index into Config.Engines
	engine.Fault
	For time.Duration // it lasts; 0 is to the end
}

// checked is the fault with its defaults, or what is wrong with it.
func (f Fault) checked(engines int) (Fault, error) {
	known := []engine.FaultKind{engine.Crash, engine.Restart, engine.Slow, engine.Errors, engine.Reject, engine.StallMetrics}
	if !slices.Contains(known, f.Kind) {
		return f, fmt.Errorf("a replay knows no fault %q, only %v", f.Kind, known)
	}
	if f.Engine < 0 || f.Engine >= engines {
		return f, fmt.Errorf("a fault names engine %d of %d", f.Engine, engines)
	}
	var err error
	f.Fault, err = f.Complete()
	return f, err
}

// begin lets a fault happen.
func (w *world) begin(f *Fault) {
	n := w.engines[f.Engine]
	switch f.Kind {
	case engine.Crash:
		w.crash(f.Engine)
	case engine.Restart:
		w.crash(f.Engine)
		w.restart(n)
	default:
		n.faults[f.Kind] = f.Fault
		n.applySlow(w.now)
	}
}

// clear ends a fault.
func (w *world) clear(f *Fault) {
	n := w.engines[f.Engine]
	if f.Kind == engine.Crash {
		w.restart(n)
		return
	}
	delete(n.faults, f.Kind)
	n.applySlow(w.now)
}

// crash ends an engine. What it was working on is lost.
func (w *world) crash(i int) {
	n := w.engines[i]
	if n.sim == nil {
		return
	}
	w.collect(i)
	n.past = add(n.past, n.sim.Stats())
	for _, slot := range sorted(n.slots) {
		w.queue.push(w.now+w.Network, lostSeen, slot, int(w.flights[slot].attempt))
	}
	clear(n.prompts)
	n.sim, n.wakeAt, n.slots = nil, never, map[engine.ID]int{}
}

// restart brings a crashed engine back with an empty cache. Other faults last.
func (w *world) restart(n *node) {
	if n.sim != nil {
		return
	}
	n.lives++
	sim, err := engine.New(n.Params, n.Seed+uint64(n.lives))
	if err != nil {
		return // the same parameters made the first one
	}
	sim.Start(w.now)
	n.sim = sim
	n.applySlow(w.now)
}

// applySlow sets the speed at which the engine plans its steps.
func (n *node) applySlow(now time.Duration) {
	if n.sim != nil {
		n.sim.Slow(now, n.faults[engine.Slow].Factor) // 0 is its own speed
	}
}

// strikes draws whether a request is hit by a fault.
func (w *world) strikes(n *node, kind engine.FaultKind) bool {
	f, ok := n.faults[kind]
	return ok && w.rng.Float64() < f.Rate
}
