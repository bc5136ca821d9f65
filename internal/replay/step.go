package replay

import "github.com/firsttoken/firsttoken/internal/engine"

// emissions are the tokens on their way from one engine to its gateways. All
// take as long, so they arrive in their order.
type emissions struct {
	list []emission
	next int // the first that is still on its way
}

// emission is what a step gave to one attempt.
type emission struct {
	ref    int
	tokens int // so far
}

func (q *emissions) push(step []engine.Emission) {
	if q.next > len(q.list)/2 { // what is left moves less than once
		q.list = q.list[:copy(q.list, q.list[q.next:])]
		q.next = 0
	}
	for _, e := range step {
		q.list = append(q.list, emission{ref: e.Ref, tokens: e.Tokens})
	}
}

// pop gives the next n. They are valid until the next push.
func (q *emissions) pop(n int) []emission {
	q.next += n
	return q.list[q.next-n : q.next]
}

// passOn sends a step's tokens to the gateways.
func (w *world) passOn(i int, e engine.Event) {
	if !w.Tokens {
		return
	}
	n := w.engines[i]
	n.steps.push(n.sim.Emitted(e))
	w.queue.push(e.At+w.Network, stepSeen, i, e.Tokens)
}

// stepSeen is the tokens of one step of an engine, of those streams that still
// go on. It comes before the ends of the same step.
func (w *world) stepSeen(i, tokens int) {
	for _, e := range w.engines[i].steps.pop(tokens) {
		slot, attempt := attemptOf(e.ref)
		if f := w.current(slot, attempt); f != nil && f.ask.Stream {
			w.tokenOf(f, e.tokens)
		}
	}
}

// tokenOf is a gateway that sees a stream's tokens after the first; n have come
// so far.
func (w *world) tokenOf(f *flight, _ int) { f.lease.Token(w.clock()) }
