package replay

import (
	"cmp"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// oracle knows what engines hold and tries out what they would do. It sees all
// that was sent so far, and nothing of what comes later.
type oracle struct {
	w    *world
	sim  engine.Sim // room for a copy of the engine asked about
	wire []event
}

// firstToken is the time from now until the first token would be seen of a
// request sent to the engine now, if nothing else were sent and no step took
// longer or shorter than its load says; of a request without output, its end.
// It is never where the engine is down or can't run the request.
func (o *oracle) firstToken(n *node, now time.Duration, r engine.Request) time.Duration {
	if n.sim == nil {
		return never
	}
	n.sim.CloneInto(&o.sim)
	o.sim.Quieten(now)
	o.deliver(n, now)
	id, err := o.sim.Submit(now+o.w.Network, r)
	if err != nil {
		return never
	}
	for at, ok := o.sim.NextEvent(); ok; at, ok = o.sim.NextEvent() {
		for _, e := range o.sim.Advance(at) {
			if e.Kind != engine.Stepped && e.ID == id && (e.Kind == engine.FirstToken || e.Kind == engine.Finished) {
				return e.At + o.w.Network - now
			}
		}
	}
	return never
}

// deliver hands over what is on its way to the engine.
func (o *oracle) deliver(n *node, now time.Duration) {
	w := o.w
	o.wire = o.wire[:0]
	for _, e := range w.queue.heap {
		if e.kind != dispatch || e.at > now+w.Network {
			continue
		}
		if f := w.current(int(e.a), e.b); f != nil && w.engines[f.engine] == n {
			o.wire = append(o.wire, e)
		}
	}
	slices.SortFunc(o.wire, func(a, b event) int { return cmp.Compare(a.seq, b.seq) })
	for _, e := range o.wire {
		// One that the engine refuses takes none of its time.
		_, _ = o.sim.Submit(e.at, w.flights[e.a].request(int(e.a)))
	}
}
