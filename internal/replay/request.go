package replay

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// flight is one request under way.
type flight struct {
	outcome Outcome
	gate    *gateway
	ask     *router.Request // the slot's; who is held keeps it
	ticket  *router.Ticket  // while it is held at the gateway
	lease   *router.Lease
	engine  int // of the present attempt
	tried   []*backends.Backend
	hashes  []uint64
	attempt int32 // distinguishes late events of a former attempt
	live    bool

	scheduled bool   // by the engine of the present attempt
	failure   string // of the last attempt; empty in the first
}

// arrive takes the pending request into a gateway.
func (w *world) arrive() {
	slot := w.slot()
	f := &w.flights[slot]
	r := w.pending
	r.At = w.now // a request out of order arrives at once
	hashes := salted(r.Tenant, r.AppendBlocks(f.hashes[:0]))
	ask := f.ask
	if ask == nil {
		ask = new(router.Request)
	}
	*ask = router.Request{
		Model: r.Model, PromptTokens: r.PromptTokens, MaxTokens: r.OutputTokens, Stream: r.Stream, Turn: r.Turn, Session: r.Session,
		Accepted: w.clock(), Tenant: r.Tenant,
		Blocks: gatewayBlocks(ask.Blocks[:0], hashes, r.PromptTokens),
	}
	contract := w.contractOf(&r)
	promise(ask, &r, w.Contracts, contract)
	*f = flight{
		outcome: Outcome{Index: w.count, Request: r, Engine: -1, Busy: -1, Contract: contract},
		gate:    w.gates[w.count%len(w.gates)],
		ask:     ask,
		live:    true,
		tried:   f.tried[:0],
		hashes:  hashes,
		attempt: f.attempt + 1,
	}
	w.count++
	w.under++
	w.inspect(slot)
	w.try(slot)
}

// salted keeps tenants' blocks apart, as a gateway makes engines do.
func salted(tenant string, ids []uint64) []uint64 {
	chain := engine.NewChain(tenant)
	for i, id := range ids {
		ids[i] = chain.Next(id)
	}
	return ids
}

// gatewayBlocks takes the prompt's blocks as the gateway hashes them: coarser
// than the engine's, and without the answer.
func gatewayBlocks(dst, hashes []uint64, prompt int) []uint64 {
	const step = backends.BlockTokens / engine.BlockTokens
	for i := step; i <= min(len(hashes), prompt/engine.BlockTokens); i += step {
		dst = append(dst, hashes[i-1])
	}
	return dst
}

// slot finds room for a flight. Slots are used again, so that their buffers are.
func (w *world) slot() int {
	if n := len(w.free); n > 0 {
		slot := w.free[n-1]
		w.free = w.free[:n-1]
		return slot
	}
	w.flights = append(w.flights, flight{})
	return len(w.flights) - 1
}

// try asks for a backend.
func (w *world) try(slot int) {
	f := &w.flights[slot]
	r := f.gate.routers[f.ask.Model]
	if r == nil {
		w.finish(slot, UnknownModel)
		return
	}
	attempt := f.attempt
	ticket := r.Enter(w.clock(), f.ask, f.tried, func() { w.queue.push(w.now, admitted, slot, int(attempt)) })
	if ticket.Decided() {
		w.launch(slot, ticket)
		return
	}
	f.ticket = ticket
	w.startPump(f.gate)
}

// admitted is a request that was held and now has its backend, or is turned
// away. One that was never held has been launched already.
func (w *world) admitted(slot int, attempt int32) {
	f := w.current(slot, attempt)
	if f == nil || f.ticket == nil {
		return
	}
	t := f.ticket
	f.ticket = nil
	w.launch(slot, t)
}

// launch sends the request to the backend it was given.
func (w *world) launch(slot int, t *router.Ticket) {
	f := &w.flights[slot]
	f.outcome.Held += t.Held
	if t.Err != nil { // of the attempts made the last one's failure is what the client is told
		w.finish(slot, cmp.Or(f.failure, reasonOf(t.Err)))
		return
	}
	b := t.Lease.Backend()
	f.lease = t.Lease
	f.tried = append(f.tried, b)
	f.engine = f.gate.engine[b]
	f.outcome.Attempts++
	f.outcome.Busy = b.Load(w.clock()).InFlight - 1
	f.outcome.Foreseen = f.lease.Sample()
	if w.Predict != nil && w.Predict.Oracle {
		f.outcome.Oracle = w.oracle.firstToken(w.engines[f.engine], w.now, f.request(slot))
	}
	w.queue.push(w.now+w.Network, dispatch, slot, int(f.attempt))
}

func reasonOf(err error) string {
	if shed := (*router.Shed)(nil); errors.As(err, &shed) {
		return Shed + "_" + shed.Reason
	}
	return Refused
}

// pumpEvery is how often gateways look again at the requests they hold.
const pumpEvery = 20 * time.Millisecond

func (w *world) startPump(g *gateway) {
	if !g.pumping {
		g.pumping = true
		w.queue.push(w.now+pumpEvery, pumpDue, slices.Index(w.gates, g), 0)
	}
}

// pump lets a gateway look again, and goes on while somebody is held.
func (w *world) pump(g *gateway) {
	g.pumping = false
	for _, model := range g.models {
		r := g.routers[model]
		r.Pump(w.clock())
		if r.Waiting() > 0 {
			w.startPump(g)
		}
	}
}

// current is the flight of an event, nil if the event belongs to a former attempt.
func (w *world) current(slot int, attempt int32) *flight {
	f := &w.flights[slot]
	if !f.live || f.attempt != attempt {
		return nil
	}
	return f
}

// dispatch hands the attempt to its engine.
func (w *world) dispatch(slot int, attempt int32) {
	f := w.current(slot, attempt)
	if f == nil {
		return
	}
	n := w.engines[f.engine]
	switch {
	case n.sim == nil, w.strikes(n, engine.Errors):
		w.queue.push(w.now+w.Network, lostSeen, slot, int(f.attempt))
		return
	case w.strikes(n, engine.Reject):
		w.queue.push(w.now+w.Network, rejectSeen, slot, int(f.attempt))
		return
	}
	id, err := n.sim.Submit(w.now, f.request(slot))
	switch {
	case errors.Is(err, engine.ErrStarting):
		w.queue.push(w.now+w.Network, lostSeen, slot, int(f.attempt))
		return
	case err != nil:
		w.queue.push(w.now+w.Network, refusalSeen, slot, int(f.attempt))
		return
	}
	n.slots[id] = slot
	w.collect(f.engine)
}

// request is what the flight in that slot asks an engine for.
func (f *flight) request(slot int) engine.Request {
	r := &f.outcome.Request
	return engine.Request{
		Ref: refOf(slot, f.attempt), PromptTokens: r.PromptTokens, OutputTokens: r.OutputTokens, Hashes: f.hashes, Quiet: true,
	}
}

// refOf names an attempt to its engine.
func refOf(slot int, attempt int32) int { return slot<<32 | int(attempt) }

// attemptOf is the other way round.
func attemptOf(ref int) (slot int, attempt int32) { return ref >> 32, int32(ref) }

// wake lets an engine go on to the present.
func (w *world) wake(i int) {
	n := w.engines[i]
	if n.sim == nil || n.wakeAt != w.now {
		return // what it was to be woken for has changed
	}
	n.wakeAt = never
	w.collect(i)
}

// collect takes what an engine has to tell and schedules its next wake.
func (w *world) collect(i int) {
	n := w.engines[i]
	for _, e := range n.sim.Advance(w.now) {
		if e.Kind == engine.Stepped {
			w.passOn(i, e)
			continue
		}
		slot, ok := n.slots[e.ID]
		if !ok {
			w.answered(n, e)
			continue
		}
		f := &w.flights[slot]
		switch e.Kind {
		case engine.Scheduled:
			if !f.scheduled { // else it was preempted
				f.scheduled, f.outcome.Cached = true, e.Cached
			}
		case engine.FirstToken:
			w.queue.push(e.At+w.Network, tokenSeen, slot, int(f.attempt))
		case engine.Finished:
			delete(n.slots, e.ID)
			w.queue.push(e.At+w.Network, endSeen, slot, int(f.attempt))
		}
	}
	at, ok := n.sim.NextEvent()
	if !ok {
		n.wakeAt = never
		return
	}
	if at = max(at, w.now); at != n.wakeAt {
		n.wakeAt = at
		w.queue.push(at, wake, i, 0)
	}
}

// tokenSeen is the first token of a stream. Of an answer in one piece the
// gateway sees nothing before its end.
func (w *world) tokenSeen(slot int, attempt int32) {
	f := w.current(slot, attempt)
	if f == nil || !f.ask.Stream {
		return
	}
	f.lease.FirstToken(w.clock())
	f.outcome.TTFT = w.now - f.outcome.Request.At
}

// refusalSeen is the engine's own 400: its context or its cache is too small,
// whatever the load.
func (w *world) refusalSeen(slot int, attempt int32) {
	f := w.current(slot, attempt)
	if f == nil {
		return
	}
	f.lease.Done(w.clock(), backends.Outcome{Class: backends.Served})
	w.finish(slot, TooLong)
}

func (w *world) endSeen(slot int, attempt int32) {
	f := w.current(slot, attempt)
	if f == nil {
		return
	}
	f.lease.Cached(f.outcome.Cached) // engines tell with the last chunk
	f.lease.Output(f.outcome.Request.OutputTokens)
	f.lease.Done(w.clock(), backends.Outcome{Class: backends.Served})
	f.outcome.Engine = f.engine
	w.finish(slot, OK)
}

// failureSeen is an engine that is down or broke down (Lost), or one that turns
// the request away for now (Refused): as long as the client has seen nothing
// the request is tried elsewhere, afterwards it has failed.
func (w *world) failureSeen(slot int, attempt int32, reason string) {
	f := w.current(slot, attempt)
	if f == nil {
		return
	}
	class := backends.Fault
	if reason == Refused {
		class = backends.Overloaded
	}
	f.lease.Done(w.clock(), backends.Outcome{Class: class})
	if f.outcome.TTFT > 0 || f.outcome.Attempts >= w.Attempts {
		w.finish(slot, reason)
		return
	}
	f.attempt++
	f.scheduled, f.outcome.Cached, f.failure = false, 0, reason
	w.try(slot)
}

// finish ends a request and gives its outcome away.
func (w *world) finish(slot int, reason string) {
	f := &w.flights[slot]
	f.outcome.E2E, f.outcome.Reason = w.now-f.outcome.Request.At, reason
	if f.ticket != nil {
		f.gate.routers[f.ask.Model].Leave(w.clock(), f.ticket)
		f.ticket = nil
	}
	if reason == Unfinished && f.lease != nil {
		f.lease.Done(w.clock(), backends.Outcome{Class: backends.Dropped})
	}
	w.book(f)
	w.sink(&f.outcome)
	f.live, f.lease = false, nil
	w.under--
	w.free = append(w.free, slot)
}
