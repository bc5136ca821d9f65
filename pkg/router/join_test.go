package router_test

import (
	"slices"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// known is a gate whose engines have shown for long enough how fast they are; at
// t0 all of them are idle.
func known(t *testing.T, n int) *router.Router {
	t.Helper()
	r := gate(t, n)
	for place := range n {
		now := t0.Add(-time.Hour)
		l := send(t, r, now, place, &router.Request{PromptTokens: 100, Stream: true})
		now = now.Add(121 * time.Millisecond) // as their speed has it
		l.FirstToken(now)
		for range 60 {
			now = now.Add(20010 * time.Microsecond)
			l.Token(now)
		}
		l.Done(now, backends.Outcome{})
	}
	return r
}

// send puts a request on one engine, whoever would have been chosen.
func send(t *testing.T, r *router.Router, now time.Time, place int, q *router.Request) *router.Lease {
	t.Helper()
	l, err := r.Claim(now, q, others(r, place))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// others are all engines but one.
func others(r *router.Router, place int) []*backends.Backend {
	all := r.Pool().Backends
	return slices.Concat(all[:place], all[place+1:])
}

// first is a request that was promised a first token only.
func first(tokens int, ttft time.Duration) *router.Request {
	q := ask(tokens, ttft)
	q.TPOT = 0
	return q
}

func ofClass(q *router.Request, class int) *router.Request {
	q.Class = class
	return q
}

// cached is a request whose first tokens are in the prefix cache of the engine.
func cached(t *testing.T, r *router.Router, place int, q *router.Request, tokens int) *router.Request {
	t.Helper()
	for k := range tokens / backends.BlockTokens {
		q.Blocks = append(q.Blocks, uint64(k+1))
	}
	before := t0.Add(-time.Minute)
	l := send(t, r, before, place, &router.Request{PromptTokens: tokens, Blocks: q.Blocks, Stream: true})
	l.FirstToken(before.Add(time.Duration(tokens+21) * time.Millisecond))
	l.Done(before.Add(time.Duration(tokens+21)*time.Millisecond), backends.Outcome{})
	return q
}

// waiting is a known engine with so many prompt tokens pending.
func waiting(t *testing.T, tokens int) *router.Router {
	t.Helper()
	r := known(t, 1)
	send(t, r, t0, 0, first(tokens, 0))
	return r
}

// TestJoinInTime: one with a promised first token joins an engine where much is
// pending if its P50 fits what is left of the promise, and not if it does not.
func TestJoinInTime(t *testing.T) {
	l := send(t, waiting(t, 3000), t0, 0, first(500, time.Minute))
	said, _, _ := l.Prediction()
	if said.P50 < 3*time.Second || said.P50 > 4*time.Second || said.P95 < said.P50+10*time.Millisecond {
		t.Fatalf("%+v of 3500 tokens at 1 ms", said)
	}
	for _, row := range []struct {
		ttft, waited time.Duration
		joins        bool
	}{
		{said.P50 + time.Millisecond, 0, true},
		{said.P50 - time.Millisecond, 0, false},
		{said.P50 + 501*time.Millisecond, 500 * time.Millisecond, true},
		{said.P50 + 499*time.Millisecond, 500 * time.Millisecond, false},
	} {
		q := first(500, row.ttft)
		q.Accepted = t0.Add(-row.waited)
		if k := enter(waiting(t, 3000), t0, q); k.Decided() != row.joins {
			t.Errorf("P50 %v, promised %v, of which %v are gone: joins %v", said.P50, row.ttft, row.waited, k.Decided())
		}
	}
}

// TestJoinYoung: where the speed is only guessed the P95 has to fit.
func TestJoinYoung(t *testing.T) {
	guessed := func() *router.Router {
		r := gate(t, 1)
		send(t, r, t0, 0, first(3000, 0))
		return r
	}
	said, _, _ := send(t, guessed(), t0, 0, first(500, time.Minute)).Prediction()
	for ttft, joins := range map[time.Duration]bool{said.P95 + time.Millisecond: true, said.P95 - time.Millisecond: false} {
		if k := enter(guessed(), t0, first(500, ttft)); k.Decided() != joins {
			t.Errorf("P50 %v, P95 %v, promised %v: joins %v", said.P50, said.P95, ttft, k.Decided())
		}
	}
}

// TestWhoJoins: an engine with so many tokens pending, and one that comes.
func TestWhoJoins(t *testing.T) {
	long := 10 * time.Minute
	for name, row := range map[string]struct {
		pending int
		q       *router.Request
		joins   bool
	}{
		"few are pending":                        {999, ask(600, long), true},
		"as many as close it":                    {1000, ask(600, long), false},
		"a first token only":                     {1000, first(600, long), true},
		"just below 16 times as many":            {15999, first(600, long), true},
		"16 times as many":                       {16000, first(600, long), false},
		"promised nothing":                       {1000, first(10, 0), false},
		"a time per token only":                  {1000, ask(10, 0), false},
		"a time per token, and half as many":     {1000, ask(500, long), true},
		"a time per token, and more than half":   {1000, ask(501, long), false},
		"a time per token that is missed anyway": {1000, tpot(ask(10, long), 19*time.Millisecond), false},
	} {
		t.Run(name, func(t *testing.T) {
			if k := enter(waiting(t, row.pending), t0, row.q); k.Decided() != row.joins {
				t.Errorf("joins %v", k.Decided())
			}
		})
	}
}

func tpot(q *router.Request, d time.Duration) *router.Request {
	q.TPOT = d
	return q
}

// TestCachedJoins: of a long prompt only what is not cached makes gaps longer.
func TestCachedJoins(t *testing.T) {
	for tokens, joins := range map[int]bool{1600 + 500: true, 1600 + 501: false} {
		r := known(t, 1)
		q := cached(t, r, 0, ask(tokens, time.Minute), 1600)
		send(t, r, t0, 0, first(2000, 0))
		if k := enter(r, t0, q); k.Decided() != joins {
			t.Errorf("%d tokens, 1600 of them cached: joins %v", tokens, k.Decided())
		}
	}
}

// come lets one in and out again at once: all that is left is that it came.
func come(t *testing.T, r *router.Router, now time.Time, q *router.Request) {
	t.Helper()
	q.Accepted = now
	k := enter(r, now, q)
	if k.Lease == nil {
		t.Fatalf("not let in by an idle engine: %+v", k)
	}
	k.Lease.Done(now, backends.Outcome{Class: backends.Dropped})
}

// joins reports whether a request joins 3000 tokens at the one engine: 3.5 s.
func joins(t *testing.T, r *router.Router, now time.Time, class int) bool {
	t.Helper()
	send(t, r, now, 0, first(3000, 0))
	q := ofClass(first(500, 20*time.Minute), class)
	q.Accepted = now
	return enter(r, now, q).Decided()
}

// TestJoinBehindNobodyMoreCritical: while somebody more critical may come, nobody
// less critical waits at an engine. Who came counts for a minute at least.
func TestJoinBehindNobodyMoreCritical(t *testing.T) {
	for name, row := range map[string]struct {
		seen, class int
		after       time.Duration
		joins       bool
	}{
		"more critical, just now":       {0, 1, 0, false},
		"more critical, lately":         {0, 1, time.Minute, false},
		"more critical, long ago":       {0, 1, 2 * time.Minute, true},
		"as critical":                   {1, 1, 0, true},
		"less critical":                 {2, 1, 0, true},
		"far less critical, just now":   {1, 7, 0, false},
		"far less critical, long since": {1, 7, 2 * time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := known(t, 1)
			come(t, r, t0, ofClass(first(10, time.Minute), row.seen))
			if got := joins(t, r, t0.Add(row.after), row.class); got != row.joins {
				t.Errorf("joins %v", got)
			}
		})
	}
}

// TestJoinNoDeeperThanTheTightest: nobody waits at an engine for longer than the
// smallest budget of the last minute, which could not be kept behind it.
func TestJoinNoDeeperThanTheTightest(t *testing.T) {
	for name, row := range map[string]struct {
		seen, after time.Duration
		joins       bool
	}{
		"tight, just now": {time.Second, 0, false},
		"tight, lately":   {time.Second, time.Minute, false},
		"tight, long ago": {time.Second, 2 * time.Minute, true},
		"wide enough":     {10 * time.Second, 0, true},
		"none":            {0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := known(t, 1)
			come(t, r, t0, first(10, row.seen))
			if got := joins(t, r, t0.Add(row.after), 0); got != row.joins {
				t.Errorf("joins %v", got)
			}
		})
	}
}

// TestWhoCameIsForgotten: whoever comes meanwhile, who came counts for a minute, and
// not for three.
func TestWhoCameIsForgotten(t *testing.T) {
	for every := 7 * time.Second; every < 70*time.Second; every += 9 * time.Second {
		for offset := time.Duration(0); offset < 2*time.Minute; offset += 13 * time.Second {
			for _, after := range []time.Duration{time.Second, 30 * time.Second, time.Minute, 2*time.Minute + time.Second, 5 * time.Minute} {
				r := known(t, 1)
				seen, now := t0.Add(offset), t0.Add(offset+after)
				at := t0
				for ; at.Before(seen); at = at.Add(every) {
					come(t, r, at, ofClass(first(10, time.Minute), 1))
				}
				come(t, r, seen, ofClass(first(10, time.Second), 0))
				for ; at.Before(now); at = at.Add(every) {
					come(t, r, at, ofClass(first(10, time.Minute), 1))
				}
				if want := after > time.Minute; joins(t, r, now, 1) != want {
					t.Fatalf("somebody more critical came %v ago, others every %v, it %v after the first of them: joins %v", after, every, offset, !want)
				}
			}
		}
	}
}

// TestJoinPassesNobody: while somebody is held who is to go first nobody joins.
func TestJoinPassesNobody(t *testing.T) {
	long := 10 * time.Minute
	for name, row := range map[string]struct {
		held  *router.Request
		class int
		joins bool
	}{
		"nobody":                 {nil, 1, true},
		"due before":             {ofClass(ask(600, long-1), 1), 1, false},
		"due after":              {ofClass(ask(600, long+1), 1), 1, true},
		"less critical":          {ofClass(ask(600, long-1), 2), 1, true},
		"promised nothing":       {ofClass(ask(600, 0), 1), 1, false}, // as if due in 10 s
		"can hardly be in time":  {ofClass(ask(600, 2*time.Second), 1), 1, false},
		"will hardly be in time": {ofClass(first(600, 700*time.Millisecond), 1), 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := waiting(t, 3000)
			if row.held != nil && enter(r, t0, row.held).Decided() {
				t.Fatal("not held")
			}
			if got := enter(r, t0, ofClass(first(600, long), row.class)).Decided(); got != row.joins {
				t.Errorf("joins %v", got)
			}
		})
	}
}

// told are an engine's own numbers.
func told(r *router.Router, place int, change func(*backends.Signals)) {
	s := backends.UnknownSignals()
	s.Began, s.At = t0, t0
	change(&s)
	r.Pool().Backends[place].SetSignals(s)
}

// TestFullIsClosed: where requests wait for a running one to end nobody joins
// them, however few tokens that is; who would be the first to wait may.
func TestFullIsClosed(t *testing.T) {
	for name, row := range map[string]struct {
		kv      float64
		pending bool
		open    bool
	}{
		"room, and one waits":    {0.5, true, true},
		"full, and one waits":    {0.96, true, false},
		"full, and nobody waits": {0.96, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, d := known(t, 1), router.NewDecisions()
			r.Record(d)
			running := send(t, r, t0, 0, first(10, 0))
			running.FirstToken(t0.Add(30 * time.Millisecond))
			if row.pending {
				send(t, r, t0.Add(30*time.Millisecond), 0, first(10, 0))
			}
			told(r, 0, func(s *backends.Signals) { s.KVUse = row.kv })
			now := t0.Add(31 * time.Millisecond)
			if k := enter(r, now, first(10, time.Minute)); k.Decided() != row.open {
				t.Fatalf("open %v", k.Decided())
			}
			if row.open {
				return
			}
			x := r.Refused(now, &router.Request{PromptTokens: 10, Explain: true}, nil, 0, "no").Candidates[0]
			if x.Open || x.Closed != router.ClosedFull || x.Pending != 10 {
				t.Errorf("recorded as %+v", x)
			}
		})
	}
}

// TestOwnShare: an engine closes at our part of the tokens that may wait there.
func TestOwnShare(t *testing.T) {
	for name, row := range map[string]struct {
		running  float64
		own      int
		closesAt int
	}{
		"a quarter":           {8, 2, 250},
		"all":                 {8, 8, 1000},
		"more than it admits": {8, 12, 1000},
		"none":                {8, 0, 100},
		"of few":              {4, 1, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			for pending, open := range map[int]bool{row.closesAt - 1: true, row.closesAt: false} {
				r := known(t, 1)
				told(r, 0, func(s *backends.Signals) { s.Running, s.Waiting, s.OwnInFlight = row.running, 0, row.own })
				send(t, r, t0, 0, first(pending, 0))
				if k := enter(r, t0, first(10, 0)); k.Decided() != open {
					t.Errorf("%d pending: open %v", pending, k.Decided())
				}
			}
		})
	}
	r := known(t, 1)
	send(t, r, t0, 0, first(999, 0))
	if k := enter(r, t0, first(10, 0)); !k.Decided() {
		t.Error("closed to who knows of no others")
	}
}

// TestClosedByOwnShare: an engine that others fill as well is recorded as closed
// for what waits there.
func TestClosedByOwnShare(t *testing.T) {
	r := known(t, 1)
	r.Record(router.NewDecisions())
	told(r, 0, func(s *backends.Signals) { s.Running, s.Waiting, s.OwnInFlight = 8, 0, 2 })
	send(t, r, t0, 0, first(300, 0))
	q := first(10, 0)
	q.Explain = true
	if x := r.Refused(t0, q, nil, 0, "no").Candidates[0]; x.Open || x.Closed != router.ClosedPending {
		t.Errorf("%+v", x)
	}
}
