package replay

import (
	"iter"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// watched runs a world and shows each event before it is handled.
func watched(t *testing.T, w *world, requests []trace.Request, look func(event)) {
	t.Helper()
	next, stop := iter.Pull2(iter.Seq2[trace.Request, error](trace.Of(requests...)))
	defer stop()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.fetch(next))
	for len(w.queue.heap) > 0 {
		e := w.queue.pop()
		w.now = e.at
		look(e)
		if e.kind == arrive {
			w.arrive()
			must(w.fetch(next))
			continue
		}
		w.handle(e)
	}
}

// Gateways see every token after the first, once, a network's way after its
// step, and the last one before the end, however many steps are on their way.
func TestStepsAreSeen(t *testing.T) {
	t.Parallel()
	p := engine.Params{Step: engine.StepModel{T0: 10 * time.Millisecond, Alpha: 50, Beta: 300}, KVBlocks: 60, MaxSeqs: 6}
	var asks []trace.Request
	for i := range 200 {
		asks = append(asks, stream(time.Duration(i)*20*time.Millisecond, 50+i, 1+i%30))
	}
	for name, c := range map[string]Config{
		"near":        {Tokens: true, Network: time.Millisecond},
		"far":         {Tokens: true, Network: 45 * time.Millisecond, Gateways: 2},
		"speculative": {Tokens: true},
		"off":         {},
	} {
		p := p
		if name == "speculative" {
			p.Speculative = engine.Speculative{DraftTokens: 3, Acceptance: 0.5}
		}
		c.Engines = []Engine{{Params: p}, {Params: p, Seed: 1}}
		c.Policy = router.RoundRobin
		sum := map[int]int{} // tokens seen by index of the request
		w, err := newWorld(c.withDefaults(), func(o *Outcome) {
			if got, want := sum[o.Index], o.Request.OutputTokens; c.Tokens && want > 1 && got != want {
				t.Fatalf("%s: request %d ends after %d tokens seen, of %d", name, o.Index, got, want)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		watched(t, w, asks, func(e event) {
			if e.kind != stepSeen {
				return
			}
			q := w.engines[e.a].steps
			for _, m := range q.list[q.next : q.next+int(e.b)] {
				f := w.current(attemptOf(m.ref))
				if f == nil || f.outcome.TTFT == 0 {
					t.Fatalf("%s: %v: a token of a request that has ended, or that has no first one", name, e.at)
				}
				if m.tokens <= sum[f.outcome.Index] {
					t.Fatalf("%s: request %d has %d tokens after %d", name, f.outcome.Index, m.tokens, sum[f.outcome.Index])
				}
				sum[f.outcome.Index] = m.tokens
			}
		})
		if c.Tokens != (len(sum) > 0) {
			t.Errorf("%s: tokens of %d requests are seen", name, len(sum))
		}
		for i, n := range w.engines {
			if n.steps.next != len(n.steps.list) || cap(n.steps.list) > 200 {
				t.Errorf("%s: engine %d keeps %d emissions in room for %d", name, i, len(n.steps.list)-n.steps.next, cap(n.steps.list))
			}
		}
	}
}

// Tokens on their way from an engine that then crashed are seen; those of an
// attempt that is over are not.
func TestStepsOfLostAttempts(t *testing.T) {
	t.Parallel()
	p := engine.Params{Step: engine.StepModel{T0: 10 * time.Millisecond}, KVBlocks: 60}
	c := Config{
		Engines: []Engine{{Params: p}, {Params: p}, {Params: p}}, Policy: router.RoundRobin, Tokens: true, Network: 25 * time.Millisecond,
		Faults: []Fault{{At: 100 * time.Millisecond, Fault: engine.Fault{Kind: engine.Crash}, For: 50 * time.Millisecond}},
	}
	w, totals := testWorld(t, c, stream(0, 20, 40), stream(0, 20, 40), stream(0, 20, 40), stream(200*time.Millisecond, 20, 40))
	if totals.Requests != 4 || w.under != 0 {
		t.Errorf("%d requests, %d under way", totals.Requests, w.under)
	}
	for i, n := range w.engines {
		if n.steps.next != len(n.steps.list) {
			t.Errorf("engine %d: %d emissions were never seen", i, len(n.steps.list)-n.steps.next)
		}
	}
}
