package router_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// gate is a router with admission over n engines of known speed: 1 ms a prompt
// token, 20 ms a step.
func gate(t *testing.T, n int) *router.Router {
	t.Helper()
	r := testRouter(t, router.Headroom, specs(n)...)
	fleet := predictor.NewFleet(nil)
	f := router.Foresight{Pool: fleet.Pool("m", predictor.Rules{})}
	for i := range n {
		f.Instances = append(f.Instances, fleet.Instance(fmt.Sprint(i), &predictor.Speed{
			Fixed: 0.001, Step: 0.02, Token: 0.001, Seq: 1e-5, Context: 1e-9, Square: 1e-12}))
	}
	r.Foresee(f)
	r.Admit(router.Admission{PendingTokens: 1000})
	return r
}

func ask(tokens int, ttft time.Duration) *router.Request {
	return &router.Request{PromptTokens: tokens, Stream: true, Accepted: t0, TTFT: ttft, TPOT: 10 * time.Second}
}

func enter(r *router.Router, now time.Time, q *router.Request) *router.Ticket {
	return r.Enter(now, q, nil, nil)
}

// busy fills every engine with a prompt of 2000 tokens.
func busy(t *testing.T, r *router.Router, n int) []*router.Ticket {
	t.Helper()
	var out []*router.Ticket
	for range n {
		k := enter(r, t0, ask(2000, 0))
		if !k.Decided() || k.Lease == nil {
			t.Fatal("an idle engine is not open")
		}
		out = append(out, k)
	}
	return out
}

// TestIdleIsOpen: the longest prompt gets an engine that has nothing to do.
func TestIdleIsOpen(t *testing.T) {
	r := gate(t, 2)
	busy(t, r, 2)
	if k := enter(r, t0, ask(600, time.Minute)); k.Decided() {
		t.Errorf("let in beside 2000 pending tokens: %+v", k)
	}
	if r.Waiting() != 1 {
		t.Errorf("%d wait, want 1", r.Waiting())
	}
}

// TestFirstTokenLetsIn: whoever is held goes on when prompts have been computed.
func TestFirstTokenLetsIn(t *testing.T) {
	r := gate(t, 1)
	first := busy(t, r, 1)[0]
	told := 0
	k := r.Enter(t0, ask(600, time.Minute), nil, func() { told++ })
	if k.Decided() {
		t.Fatal("let in at once")
	}
	first.Lease.FirstToken(t0.Add(2 * time.Second))
	if !k.Decided() || k.Lease == nil || told != 1 || k.Held != 2*time.Second {
		t.Errorf("decided %v, lease %v, told %d times, held %v", k.Decided(), k.Lease, told, k.Held)
	}
}

// TestEarliestDeadlineFirst: within a class the earliest deadline that can
// still be met, and the lost get nothing of what others need.
func TestEarliestDeadlineFirst(t *testing.T) {
	r := gate(t, 1)
	first := busy(t, r, 1)[0]
	late, early := enter(r, t0, ask(1500, 40*time.Second)), enter(r, t0, ask(1500, 20*time.Second))
	lost := enter(r, t0, ask(1500, 2100*time.Millisecond)) // its own prompt takes 1.5 s
	sheddable := ask(1500, 10*time.Second)
	sheddable.Class = 2
	low := enter(r, t0, sheddable)
	first.Lease.FirstToken(t0.Add(2 * time.Second))
	if !early.Decided() || late.Decided() || lost.Decided() || low.Decided() {
		t.Fatalf("early %v, late %v, lost %v, lower class %v", early.Decided(), late.Decided(), lost.Decided(), low.Decided())
	}
	early.Lease.FirstToken(t0.Add(3 * time.Second))
	if !late.Decided() && !low.Decided() {
		t.Error("nobody came after")
	}
	if low.Decided() {
		t.Error("the lower class came before the higher one")
	}
	if shed := (*router.Shed)(nil); !errors.As(lost.Err, &shed) || shed.Reason != router.ShedDeadline {
		t.Errorf("the lost one: %v", lost.Err)
	}
}

// TestShedAtDeadline: who was promised something is told when it can't be kept,
// with a time to come back; who was promised nothing waits.
func TestShedAtDeadline(t *testing.T) {
	r := gate(t, 1)
	busy(t, r, 1)
	promised, other := enter(r, t0, ask(500, time.Second)), enter(r, t0, ask(500, 0))
	r.Pump(t0.Add(1001 * time.Millisecond))
	shed := (*router.Shed)(nil)
	if !errors.As(promised.Err, &shed) || shed.RetryAfter < time.Second || shed.RetryAfter > 8*time.Second {
		t.Errorf("%v, want a shed request that may come back in 1 to 8 s", promised.Err)
	}
	if other.Decided() {
		t.Errorf("who was promised nothing: %v", other.Err)
	}
}

func TestQueueIsBounded(t *testing.T) {
	r := gate(t, 1)
	r.Admit(router.Admission{PendingTokens: 1000, MaxHeld: 2})
	busy(t, r, 1)
	var last *router.Ticket
	for range 3 {
		last = enter(r, t0, ask(600, time.Minute))
	}
	if shed := (*router.Shed)(nil); !errors.As(last.Err, &shed) || shed.Reason != router.ShedFull {
		t.Errorf("the third of two: %v", last.Err)
	}
}

// TestLeaveGivesBack: a ticket that nobody waits for any more takes no place,
// whether it was decided or not.
func TestLeaveGivesBack(t *testing.T) {
	r := gate(t, 1)
	first := busy(t, r, 1)[0]
	k := enter(r, t0, ask(600, time.Minute))
	r.Leave(t0, k)
	if r.Waiting() != 0 {
		t.Error("it still waits")
	}
	k = enter(r, t0, ask(10, time.Minute))
	first.Lease.FirstToken(t0.Add(2 * time.Second))
	if k.Lease == nil {
		t.Fatal("not let in")
	}
	r.Leave(t0.Add(2*time.Second), k)
	first.Lease.Done(t0.Add(2*time.Second), backends.Outcome{})
	if n := r.Pool().Backends[0].Load(t0.Add(2 * time.Second)).InFlight; n != 0 {
		t.Errorf("%d in flight at the end", n)
	}
}

// TestTenantsTakeTurns: one tenant with many requests does not push out another.
func TestTenantsTakeTurns(t *testing.T) {
	r := gate(t, 1)
	now := t0
	last := busy(t, r, 1)[0]
	tickets := map[*router.Ticket]string{}
	for i := range 40 {
		q := ask(1500, 2*time.Minute)
		q.Tenant = "many"
		if i%10 == 9 {
			q.Tenant, q.TTFT = "few", 3*time.Minute // and later deadlines at that
		}
		tickets[enter(r, t0, q)] = q.Tenant
	}
	served := map[string]int{}
	for range 12 {
		now = now.Add(1600 * time.Millisecond)
		last.Lease.FirstToken(now)
		for k, tenant := range tickets {
			if k.Lease != nil {
				served[tenant]++
				last = k
				delete(tickets, k)
			}
		}
	}
	if served["few"] < 4 || served["many"] < 4 {
		t.Errorf("served %v: want all four of the few among the first twelve", served)
	}
}

// TestHarmCloses: an engine whose running answers would miss the time between
// tokens is closed.
func TestHarmCloses(t *testing.T) {
	r := gate(t, 1)
	q := ask(10, time.Minute)
	q.TPOT = 21 * time.Millisecond // a step takes 20 ms
	k := enter(r, t0, q)
	k.Lease.FirstToken(t0.Add(30 * time.Millisecond))
	now := t0.Add(30 * time.Millisecond)
	for range 20 {
		now = now.Add(20 * time.Millisecond)
		k.Lease.Token(now)
	}
	if long := enter(r, now, ask(900, time.Minute)); long.Decided() { // 0.9 s of prompt in between
		t.Error("let in, to the harm of the running answer")
	}
	if short := enter(r, now, ask(1, time.Minute)); !short.Decided() {
		t.Error("one that does no harm is held")
	}
}
