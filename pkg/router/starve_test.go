package router_test

import (
	"sync"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// joiners keeps an engine as busy as those who may join others keep it, and reports
// whether the ticket was let in within the time. A prompt of 500 tokens is computed
// in 0.5 s.
func joiners(r *router.Router, began []*router.Ticket, k *router.Ticket, long time.Duration) bool {
	for now := t0; now.Before(t0.Add(long)); now = now.Add(500 * time.Millisecond) {
		q := &router.Request{PromptTokens: 500, Stream: true, Accepted: now, TTFT: 20 * time.Second}
		began = append(began, enter(r, now, q))
		if began[0].Lease != nil {
			began[0].Lease.FirstToken(now)
			began[0].Lease.Done(now, backends.Outcome{Class: backends.Served})
			began = began[1:]
		}
		r.Pump(now)
		if k.Decided() {
			return k.Lease != nil
		}
	}
	return false
}

// TestJoinersStarveNobody: who may not join others waits for them, but not for ever.
func TestJoinersStarveNobody(t *testing.T) {
	for name, q := range map[string]*router.Request{
		"without a contract":     {PromptTokens: 500, Stream: true, Accepted: t0},
		"promised TPOT":          {PromptTokens: 800, Stream: true, Accepted: t0, TPOT: time.Second},
		"promised TTFT and TPOT": {PromptTokens: 800, Stream: true, Accepted: t0, TTFT: 30 * time.Second, TPOT: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := gate(t, 1)
			var began []*router.Ticket
			for range 10 { // the crowd that is there already
				q := &router.Request{PromptTokens: 500, Stream: true, Accepted: t0, TTFT: 20 * time.Second}
				began = append(began, enter(r, t0, q))
				if !began[len(began)-1].Decided() {
					t.Fatal("not let in to join")
				}
			}
			k := enter(r, t0, q)
			if k.Decided() {
				t.Fatal("let in at once", k.Err)
			}
			if !joiners(r, began, k, 5*time.Minute) {
				t.Errorf("still held, or shed, after 5 minutes in which 600 that came later were let in: %v", k.Err)
			}
		})
	}
}

// TestHopelessBudgetsCloseNothing: one that asks for what no engine can do says
// nothing about whom others must leave room for.
func TestHopelessBudgetsCloseNothing(t *testing.T) {
	r := gate(t, 1)
	fill := func() *router.Ticket {
		return enter(r, t0, &router.Request{PromptTokens: 900, Stream: true, Accepted: t0, TTFT: 20 * time.Second})
	}
	fill()
	fill()
	if k := fill(); !k.Decided() {
		t.Fatal("not let in to join")
	}
	enter(r, t0, &router.Request{PromptTokens: 900, Stream: true, Accepted: t0, TTFT: time.Millisecond}) // x-slo-ttft-ms: 1
	if k := fill(); !k.Decided() {
		t.Error("a hopeless budget of 1 ms keeps all others from joining for a minute")
	}
}

// TestRefusedBesideEnter: for -race.
func TestRefusedBesideEnter(t *testing.T) {
	r := gate(t, 1)
	r.Record(router.NewDecisions())
	busy(t, r, 1)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 50 {
				k := enter(r, t0, ask(600, time.Minute))
				r.Leave(t0, k)
			}
		})
		all.Go(func() {
			for range 50 {
				q := ask(600, time.Minute)
				q.Explain = true
				r.Refused(t0, q, nil, time.Second, "shed_deadline")
			}
		})
	}
	all.Wait()
}
