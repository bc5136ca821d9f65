package router_test

import (
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// TestSampleAfterTheClockWentBack: a wall clock that is set back ends no sampling.
func TestSampleAfterTheClockWentBack(t *testing.T) {
	r := testRouter(t, router.LeastInFlight, specs(1)...)
	d := router.NewDecisions()
	r.Record(d)
	mustClaim(t, r, t0.Add(time.Hour), &router.Request{ID: "before"})
	for i := range 20 {
		mustClaim(t, r, t0.Add(time.Duration(i)*time.Second), &router.Request{ID: "after"})
	}
	if got := d.List(router.Filter{Request: "after"}); len(got) == 0 {
		t.Error("no decision is recorded until the clock is where it was")
	}
}

// TestLatelyIsOfTheLastMinute: the tightest budget of the last minute counts.
func TestLatelyIsOfTheLastMinute(t *testing.T) {
	r := gate(t, 1)
	tight := func(now time.Time, d time.Duration) *router.Ticket {
		return enter(r, now, &router.Request{PromptTokens: 900, Stream: true, Accepted: now, TTFT: d})
	}
	k := tight(t0, 999*time.Millisecond) // tightest
	k.Lease.FirstToken(t0.Add(time.Second))
	k.Lease.Done(t0.Add(time.Second), backends.Outcome{Class: backends.Served})
	now := t0.Add(59 * time.Second)
	k = tight(now, time.Second) // 2 s ago as of the end
	k.Lease.FirstToken(now.Add(time.Second))
	k.Lease.Done(now.Add(time.Second), backends.Outcome{Class: backends.Served})
	now = t0.Add(61 * time.Second)
	tight(now, time.Minute)
	tight(now, time.Minute)
	if k := tight(now, time.Minute); k.Decided() {
		t.Error("joins 1800 tokens although one with a budget of 1 s came 2 s ago")
	}
}

// TestLongPromptsAreNotPassedForever: what costs more than most comes later, not never.
func TestLongPromptsAreNotPassedForever(t *testing.T) {
	r := gate(t, 1)
	began := busy(t, r, 1)
	ask := func(now time.Time, tokens int) *router.Ticket {
		return enter(r, now, &router.Request{PromptTokens: tokens, Stream: true, Accepted: now})
	}
	long := ask(t0, 900)
	for range 20 { // a queue that never ends
		began = append(began, ask(t0, 600))
	}
	for now := t0; now.Before(t0.Add(5 * time.Minute)); now = now.Add(600 * time.Millisecond) {
		began = append(began, ask(now, 600))
		for i, k := range began { // the engine computes one of them
			if k.Lease != nil {
				k.Lease.FirstToken(now)
				k.Lease.Done(now, backends.Outcome{Class: backends.Served})
				began = append(began[:i], began[i+1:]...)
				break
			}
		}
		if long.Decided() {
			return
		}
	}
	t.Error("a long prompt still waits after 5 minutes in which 500 that came later were let in")
}
