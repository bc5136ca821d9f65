package router_test

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// recording is a router of n backends that records, and where.
func recording(t testing.TB, policy string, n int) (*router.Router, *router.Decisions) {
	t.Helper()
	r, d := testRouter(t, policy, specs(n)...), router.NewDecisions()
	r.Record(d)
	return r, d
}

// foreseeing is a recording router that predicts for n engines of one speed, but
// for some that take seconds a step.
func foreseeing(t testing.TB, n int, slow ...int) (*router.Router, *router.Decisions) {
	t.Helper()
	r, d := recording(t, router.Headroom, n)
	f := router.Foresight{Pool: predictor.NewPool("m", predictor.Rules{}, nil)}
	for i := range n {
		speed := predictor.Speed{Fixed: 0.004, Step: 0.02, Token: 100e-6, Seq: 60e-6, Context: 60e-9, Square: 1e-9}
		if slices.Contains(slow, i) {
			speed.Step = 5
		}
		f.Instances = append(f.Instances, predictor.NewInstance(speed))
	}
	r.Foresee(f)
	return r, d
}

func TestDecisionRecord(t *testing.T) {
	r, d := recording(t, router.LeastInFlight, 3)
	s := backends.UnknownSignals()
	s.At, s.Running, s.KVUse = t0, 3, 0.25
	r.Pool().Backends[1].SetSignals(s)
	busy := mustClaim(t, r, t0, &router.Request{ID: "first", PromptTokens: 90})
	req := &router.Request{ID: "second", Model: "m", PromptTokens: 70, Accepted: t0, TTFT: time.Second, TPOT: 50 * time.Millisecond,
		Contract: "chat", Label: "shop", Tenant: "shop", Class: 2}
	tried := []*backends.Backend{busy.Backend()}
	l, err := r.Claim(t0.Add(300*time.Millisecond), req, tried)
	if err != nil {
		t.Fatal(err)
	}
	l.Held(200 * time.Millisecond)
	got := l.Decision()
	left := 700.0
	if len(got.Candidates) != 2 {
		t.Fatalf("%+v", got)
	}
	three, quarter := 3.0, 0.25
	for _, c := range got.Candidates {
		want := router.Considered{Backend: c.Backend, State: "up", Readiness: "ready", Open: true, Weight: 1}
		if c.Backend == "b1" {
			want.Running, want.KVUse = &three, &quarter
		}
		if c.Backend == busy.Backend().Name || !reflect.DeepEqual(c, want) {
			t.Errorf("candidate %+v", c)
		}
	}
	want := router.Decision{
		At: t0.Add(300 * time.Millisecond), Request: "second", Model: "m", Policy: "least-inflight", Contract: "chat", Tenant: "shop", Class: 2,
		PromptTokens: 70, Attempt: 2, WaitedMS: 300, HeldMS: 200, LeftMS: &left, TPOTMS: 50,
		Pick: l.Backend().Name, Reason: "least-inflight", Of: 2,
	}
	if got.Candidates[0].Backend != got.Pick {
		t.Errorf("the pick is not first: %+v", got)
	}
	same(t, got, want)

	l.FirstToken(t0.Add(500 * time.Millisecond))
	l.FirstToken(t0.Add(time.Hour))
	l.Done(t0.Add(900*time.Millisecond), backends.Outcome{})
	l.Done(t0.Add(time.Hour), backends.Outcome{Class: backends.Fault})
	ttft, took := 200.0, 600.0
	want.TTFTMS, want.DurationMS, want.Outcome = &ttft, &took, "served"
	same(t, l.Decision(), want)
	if got.Outcome != "" {
		t.Error("the copy from before changed")
	}
	all := d.List(router.Filter{})
	if len(all) != 2 || all[0].Request != "second" || all[1].Request != "first" {
		t.Errorf("listed %+v", all)
	}
}

// same compares all but the candidates.
func same(t *testing.T, got *router.Decision, want router.Decision) {
	t.Helper()
	a, errA := json.Marshal(without(*got))
	b, errB := json.Marshal(without(want))
	if errA != nil || errB != nil || string(a) != string(b) {
		t.Errorf("got\n%s, want\n%s (%v, %v)", a, b, errA, errB)
	}
}

func without(d router.Decision) router.Decision {
	d.Candidates = nil
	return d
}

// The figures of a record are those of the rule: score = 0.6·C + 0.4·L, and
// fit = max(P95 / time left, TPOT / its budget).
func TestDecisionScores(t *testing.T) {
	r, _ := foreseeing(t, 3)
	for range 40 { // whatever engine it goes to
		mustClaim(t, r, t0, &router.Request{PromptTokens: 3000, Stream: true})
	}
	req := &router.Request{ID: "x", PromptTokens: 500, Stream: true, Accepted: t0, TTFT: 4 * time.Second, TPOT: 100 * time.Millisecond, Explain: true}
	l := mustClaim(t, r, t0.Add(time.Second), req)
	d := l.Decision()
	best := math.Inf(1)
	for _, c := range d.Candidates {
		best = min(best, c.P95)
	}
	for i, c := range d.Candidates {
		score := 0.6*1 + 0.4*best/c.P95
		fit := max(c.P95/3000, c.TPOT/100)
		if !(c.P50 > 0 && c.P95 >= c.P50 && c.TPOT > 0) || math.Abs(c.Score-score) > 1e-3 || math.Abs(c.Fit-fit) > 1e-3 || c.Compliance != 1 || !(c.Cost >= fit/score-1e-2) {
			t.Errorf("%+v, want score %v and fit %v", c, score, fit)
		}
		if i > 1 && d.Candidates[i].Fit/d.Candidates[i].Score < d.Candidates[i-1].Fit/d.Candidates[i-1].Score-1e-3 {
			t.Errorf("candidate %d is more attractive than the one before: %+v", i, d.Candidates)
		}
		if !c.Open || c.Closed != "" {
			t.Errorf("closed without admission: %+v", c)
		}
	}
	p, _, _ := l.Prediction()
	if got := d.Candidates[0]; got.Backend != l.Backend().Name || math.Abs(got.P95-float64(p.P95.Microseconds())/1e3) > 1e-3 {
		t.Errorf("the first is %+v, the pick %s with P95 %v", got, l.Backend().Name, p.P95)
	}
}

// With admission, the record tells who was not offered to the policy, and why.
func TestDecisionClosed(t *testing.T) {
	r, d := foreseeing(t, 3, 2)
	r.Admit(router.Admission{PendingTokens: 100})
	enter := func(id string, tokens int) *router.Ticket {
		return r.Enter(t0, &router.Request{ID: id, PromptTokens: tokens, Stream: true, Explain: true, Accepted: t0, TTFT: time.Minute, TPOT: 10 * time.Second}, nil, nil)
	}
	enter("a", 5000)
	enter("b", 5000)
	c := enter("c", 90)
	got := d.List(router.Filter{Request: "c"})
	if len(got) != 1 || len(got[0].Candidates) != 3 || c.Lease == nil || got[0].Pick != c.Lease.Backend().Name {
		t.Fatalf("%+v", got)
	}
	for i, x := range got[0].Candidates {
		if open := i == 0; x.Open != open || !open && (x.Closed != router.ClosedPending || x.Pending < 4000) {
			t.Errorf("candidate %d: %+v", i, x)
		}
	}
	if score := got[0].Candidates[0].Score; score != 1 {
		t.Errorf("the only one open has score %v, want 1: those that are closed don't count", score)
	}
	if held := enter("held", 5000); held.Lease != nil && len(d.List(router.Filter{Request: "held"})) != 1 {
		t.Error("a request that was let in has no record")
	}
}

func TestDecisionOutcomes(t *testing.T) {
	for name, row := range map[string]struct {
		first, end time.Duration // after acceptance; 0: no first token
		outcome    backends.Outcome
		want       string
		missed     bool
	}{
		"in time":               {first: 999 * time.Millisecond, end: 5 * time.Second, want: "served"},
		"late":                  {first: 1001 * time.Millisecond, end: 5 * time.Second, want: "served", missed: true},
		"whole and in time":     {end: 900 * time.Millisecond, want: "served"},
		"whole and late":        {end: 1001 * time.Millisecond, want: "served", missed: true},
		"failed":                {end: time.Millisecond, outcome: backends.Outcome{Class: backends.Fault}, want: "failed", missed: true},
		"overloaded":            {end: time.Millisecond, outcome: backends.Outcome{Class: backends.Overloaded}, want: "overloaded", missed: true},
		"the client left":       {end: time.Millisecond, outcome: backends.Outcome{Class: backends.Dropped, ClientLeft: true}, want: "left"},
		"given back":            {end: time.Millisecond, outcome: backends.Outcome{Class: backends.Dropped}, want: "dropped"},
		"failed after a token":  {first: 10 * time.Millisecond, end: time.Second, outcome: backends.Outcome{Class: backends.Fault}, want: "failed", missed: true},
		"left when it was late": {end: 2 * time.Second, outcome: backends.Outcome{Class: backends.Dropped, ClientLeft: true}, want: "left", missed: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := recording(t, router.RoundRobin, 1)
			l := mustClaim(t, r, t0, &router.Request{Accepted: t0, TTFT: time.Second})
			if row.first > 0 {
				l.FirstToken(t0.Add(row.first))
			}
			l.Done(t0.Add(row.end), row.outcome)
			got := l.Decision()
			if got.Outcome != row.want || got.Missed != row.missed || (got.TTFTMS != nil) != (row.first > 0) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	r, d := foreseeing(t, 2)
	r.Admit(router.Admission{PendingTokens: 100})
	for range 2 {
		mustClaim(t, r, t0, &router.Request{PromptTokens: 5000, Stream: true})
	}
	before := r.Pool().Backends[0].Load(t0)
	got := r.Refused(t0.Add(time.Second), &router.Request{ID: "no", Explain: true, PromptTokens: 10, Accepted: t0, TTFT: time.Second}, nil, 900*time.Millisecond, "shed_deadline")
	if got == nil || got.Pick != "" || got.Reason != "shed_deadline" || got.Outcome != "refused" || !got.Missed || got.HeldMS != 900 || *got.LeftMS != 0 ||
		len(got.Candidates) != 2 || got.Candidates[0].Open || got.Candidates[0].Closed != router.ClosedPending || !(got.Candidates[0].P95 > 0) {
		t.Errorf("%+v", got)
	}
	if after := r.Pool().Backends[0].Load(t0); after != before {
		t.Errorf("the load is %+v, was %+v", after, before)
	}
	if list := d.List(router.Filter{Request: "no"}); len(list) != 1 {
		t.Errorf("listed %+v", list)
	}
	empty, _ := recording(t, router.Random, 1)
	empty.Pool().Backends[0].Draining = true
	if got := empty.Refused(t0, &router.Request{Explain: true}, nil, 0, "no_backend"); got == nil || got.Candidates == nil || len(got.Candidates) != 0 {
		t.Errorf("nobody to choose from: %+v", got)
	}
}

// A probe takes a backend without a choice: it is recorded with no candidates.
func TestDecisionOfProbe(t *testing.T) {
	r, d := recording(t, router.RoundRobin, 2)
	for ejected := false; !ejected; {
		l := mustClaim(t, r, t0, &router.Request{})
		ejected = l.Done(t0, backends.Outcome{Class: backends.Fault}).Ejected
	}
	l := mustClaim(t, r, t0.Add(time.Minute), &router.Request{ID: "probe"})
	if got := d.List(router.Filter{Request: "probe"}); len(got) != 1 || got[0].Reason != "probe" || got[0].Pick != l.Backend().Name || len(got[0].Candidates) != 0 {
		t.Errorf("%+v", got)
	}
}

// In the time given: 10 at once, then 10 a second, and those that are odd apart.
func TestDecisionsAreSampled(t *testing.T) {
	r, d := recording(t, router.Random, 2)
	claim := func(now time.Time, n int, req router.Request, tried ...*backends.Backend) {
		for range n {
			l, err := r.Claim(now, &req, tried)
			if err != nil {
				t.Fatal(err)
			}
			l.Done(now, backends.Outcome{})
		}
	}
	want := func(n int) {
		t.Helper()
		if got := len(d.List(router.Filter{})); got != n {
			t.Errorf("%d records, want %d", got, n)
		}
	}
	claim(t0, 1000, router.Request{})
	want(10)
	claim(t0.Add(99*time.Millisecond), 1000, router.Request{})
	want(10)
	claim(t0.Add(100*time.Millisecond), 1000, router.Request{})
	want(11)
	for i := range 500 {
		claim(t0.Add(time.Duration(100+i)*time.Millisecond), 1, router.Request{})
	}
	want(15)
	claim(t0.Add(time.Hour), 1000, router.Request{})
	want(25)
	claim(t0.Add(time.Hour), 1000, router.Request{}, r.Pool().Backends[0]) // retries
	want(35)
	claim(t0.Add(time.Hour), 100, router.Request{Explain: true})
	want(135)
}

func TestDecisionsAreBounded(t *testing.T) {
	r, d := recording(t, router.Random, 2)
	for i := range 5000 {
		l := mustClaim(t, r, t0, &router.Request{ID: fmt.Sprint(i), Explain: true})
		o := backends.Outcome{}
		if i == 5 || i == 1000 || i == 4999 {
			o.Class = backends.Overloaded
		}
		l.Done(t0, o)
	}
	all := d.List(router.Filter{})
	if len(all) != 802 {
		t.Fatalf("%d records", len(all))
	}
	for i, x := range all[:800] {
		if want := fmt.Sprint(4999 - i); x.Request != want {
			t.Fatalf("record %d is of request %s, want %s", i, x.Request, want)
		}
	}
	if all[800].Request != "1000" || all[801].Request != "5" {
		t.Errorf("of the old ones that were missed, there are %s and %s", all[800].Request, all[801].Request)
	}
	for i := range 5000 {
		mustClaim(t, r, t0, &router.Request{ID: fmt.Sprint(i), Explain: true}).Done(t0, backends.Outcome{Class: backends.Overloaded})
	}
	if n := len(d.List(router.Filter{})); n != 1000 {
		t.Errorf("%d records, want 1000", n)
	}
	if n := len(d.List(router.Filter{Limit: 7})); n != 7 {
		t.Errorf("limited to %d", n)
	}
	big, _ := recording(t, router.Random, 200)
	if got := mustClaim(t, big, t0, &router.Request{}).Decision(); len(got.Candidates) != 32 || got.Of != 200 || got.Candidates[0].Backend != got.Pick {
		t.Errorf("%d candidates of %d, the first %s", len(got.Candidates), got.Of, got.Candidates[0].Backend)
	}
}

func TestDecisionsFilter(t *testing.T) {
	r, d := recording(t, router.RoundRobin, 2)
	for i := range 8 {
		mustClaim(t, r, t0, &router.Request{ID: fmt.Sprint(i), Model: []string{"m", "n"}[i%2], Contract: []string{"", "chat"}[i/4]})
	}
	for _, row := range []struct {
		filter router.Filter
		want   int
	}{
		{router.Filter{}, 8}, {router.Filter{Model: "m"}, 4}, {router.Filter{Contract: "chat"}, 4}, {router.Filter{Backend: "b0"}, 4},
		{router.Filter{Request: "3"}, 1}, {router.Filter{Model: "n", Request: "2"}, 0}, {router.Filter{Model: "m", Limit: 3}, 3}, {router.Filter{Model: "other"}, 0},
	} {
		if got := d.List(row.filter); len(got) != row.want || got == nil {
			t.Errorf("%+v lets %d through, want %d", row.filter, len(got), row.want)
		}
	}
}

// Readers see whole records while they are made and change.
func TestDecisionsConcurrently(t *testing.T) {
	r, d := foreseeing(t, 4)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 300 {
				l, err := r.Claim(t0, &router.Request{Explain: i%2 == 0, PromptTokens: 10, Stream: true, Accepted: t0, TTFT: time.Second}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				l.Held(time.Millisecond)
				l.FirstToken(t0.Add(time.Millisecond))
				l.Decision()
				l.Done(t0.Add(2*time.Millisecond), backends.Outcome{Class: backends.Class(i % 3)})
			}
		})
		all.Go(func() {
			for range 50 {
				if _, err := json.Marshal(d.List(router.Filter{Limit: 50})); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// A decision that is not recorded costs no allocation.
func TestUnrecordedDecisionAllocatesNothingMore(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Skip("coverage changes what escapes")
	}
	for _, policy := range []string{router.LeastInFlight, router.Headroom} {
		count := func(d *router.Decisions) float64 {
			r, _ := foreseeing(t, 4)
			if policy != router.Headroom {
				r = testRouter(t, policy, specs(4)...)
			}
			r.Record(d)
			req := &router.Request{PromptTokens: 100, Stream: true, Accepted: t0, TTFT: time.Nanosecond}
			step := func() {
				l, err := r.Claim(t0, req, nil)
				if err != nil {
					t.Fatal(err)
				}
				l.Held(time.Millisecond)
				l.FirstToken(t0)
				if l.Decision() != nil && d == nil {
					t.Fatal("recorded")
				}
				l.Done(t0, backends.Outcome{})
			}
			for range 100 { // more than are sampled in no time
				step()
			}
			return testing.AllocsPerRun(500, step)
		}
		if without, with := count(nil), count(router.NewDecisions()); with > without {
			t.Errorf("%s: %v allocations with a record beside, %v without", policy, with, without)
		} else {
			t.Logf("%s: %v allocations", policy, with)
		}
	}
}
