package replay

import (
	"errors"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

// WarmUp is what gateways send to engines that are new or were restarted before
// these get requests: the engines all are at the start. Every gateway warms for
// itself.
type WarmUp struct {
	Lengths []int // of the prompts in tokens, in the order in which they are sent, one after the other
}

// DefaultWarmUp is what a gateway sends that is told nothing else.
func DefaultWarmUp() *WarmUp {
	return &WarmUp{Lengths: []int{64, 64, 128, 128, 256, 256, 512, 512, 1024, 1024, 2048, 2048, 4096, 4096}}
}

// warming is one gateway's warm-up of one engine.
type warming struct {
	*backends.WarmUp
	left []int // prompts
	sent int   // of all warm-ups: answers to former ones count for nothing
}

// warmUp begins one if it is due.
func (w *world) warmUp(g, i int) {
	if w.WarmUp == nil {
		return
	}
	if begun := w.gates[g].targets[i].BeginWarmUp(w.clock()); begun != nil {
		u := &w.gates[g].warming[i]
		u.WarmUp, u.left = begun, w.WarmUp.Lengths
		w.nextPrompt(g, i)
	}
}

// nextPrompt sends one, or ends the warm-up.
func (w *world) nextPrompt(g, i int) {
	u := &w.gates[g].warming[i]
	if len(u.left) == 0 || !u.Wanted() {
		u.End(w.clock(), backends.WarmedUp)
		u.WarmUp = nil
		return
	}
	u.sent++
	w.queue.push(w.now+w.Network, promptSent, g, w.prompt(i, u.sent))
}

// prompt names one of an engine's prompts in an event.
func (w *world) prompt(i, number int) int { return i + number*len(w.engines) }

// promptOf is the other way round; nil if another has been sent since.
func (w *world) promptOf(g, b int) (i int, u *warming) {
	i = b % len(w.engines)
	u = &w.gates[g].warming[i]
	if u.WarmUp == nil || b != w.prompt(i, u.sent) {
		return i, nil
	}
	return i, u
}

// promptSent reaches its engine.
func (w *world) promptSent(g, b int) {
	i, u := w.promptOf(g, b)
	if u == nil {
		return
	}
	n := w.engines[i]
	if n.sim == nil {
		w.queue.push(w.now+w.Network, promptLost, g, b)
		return
	}
	id, err := n.sim.Submit(w.now, engine.Request{PromptTokens: u.left[0], OutputTokens: 1, Quiet: true})
	switch {
	case errors.Is(err, engine.ErrTooLong): // and so are those to come
		u.left = u.left[:1]
		w.queue.push(w.now+w.Network, promptSeen, g, b)
	case err != nil:
		w.queue.push(w.now+w.Network, promptLost, g, b)
	default:
		n.prompts[id] = event{a: int32(g), b: int32(b)}
		w.collect(i)
	}
}

// answered tells a gateway that its prompt has been.
func (w *world) answered(n *node, e engine.Event) {
	p, ok := n.prompts[e.ID]
	if !ok || e.Kind != engine.Finished {
		return
	}
	delete(n.prompts, e.ID)
	w.queue.push(e.At+w.Network, promptSeen, int(p.a), int(p.b))
}

// promptSeen is the end of an answer.
func (w *world) promptSeen(g, b int) {
	if i, u := w.promptOf(g, b); u != nil {
		u.left = u.left[1:]
		w.nextPrompt(g, i)
	}
}

// promptLost is a prompt that the engine did not answer.
func (w *world) promptLost(g, b int) {
	if _, u := w.promptOf(g, b); u != nil {
		u.End(w.clock(), backends.WarmUpFailed)
		u.WarmUp = nil
	}
}
