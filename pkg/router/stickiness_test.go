package router_test

import (
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// chosen are the engines that so many requests of a kind go to, one after
// another, each given back at once. About one in a hundred explores.
func chosen(t *testing.T, r *router.Router, now time.Time, request func() *router.Request) map[string]int {
	t.Helper()
	out := map[string]int{}
	for range 100 {
		l := mustClaim(t, r, now, request())
		out[l.Backend().Name]++
		l.Done(now, backends.Outcome{Class: backends.Dropped})
	}
	return out
}

const mostOf100 = 93

// decode puts so many running answers on an engine.
func decode(t *testing.T, r *router.Router, place, n int) {
	t.Helper()
	for range n {
		send(t, r, t0.Add(-time.Second), place, first(1, 0)).FirstToken(t0)
	}
}

// TestConversationStays: 1600 of a conversation's 2000 tokens are cached at b0.
// It goes there though b1 is idle and quicker, until what waits at b0 costs more
// than those tokens are worth: the time they take, for it and for whom they would
// hold up.
func TestConversationStays(t *testing.T) {
	for name, row := range map[string]struct {
		waiting int // prompt tokens at b0
		decode  int // answers that run at b1
		want    string
	}{
		"nothing waits":           {0, 0, "b0"},
		"a little more quickly":   {1700, 0, "b0"}, // P95 of 2.1 s here, of 2 s there
		"more than it is worth":   {3400, 0, "b1"}, // 3.8 + 0.4 against 2 + 2 s
		"others are held up less": {3400, 3, "b0"}, // 2 + 4·2 s there
		"far more":                {9900, 3, "b1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := known(t, 2)
			q := cached(t, r, 0, first(2000, time.Minute), 1600)
			if row.waiting > 0 {
				send(t, r, t0, 0, first(row.waiting, 0))
			}
			decode(t, r, 1, row.decode)
			got := chosen(t, r, t0, func() *router.Request { c := *q; return &c })
			if got[row.want] < mostOf100 {
				t.Errorf("goes to %v, want %s", got, row.want)
			}
		})
	}
}

// TestNewConversationGoesWhereFewDecode: what nobody has cached goes where it
// holds few up.
func TestNewConversationGoesWhereFewDecode(t *testing.T) {
	r := known(t, 3)
	for place, n := range []int{6, 1, 3} {
		decode(t, r, place, n)
	}
	if got := chosen(t, r, t0, func() *router.Request { return first(500, time.Minute) }); got["b1"] < mostOf100 {
		t.Errorf("goes to %v", got)
	}
}

// TestHotPrefixSpreads: of many requests at once with one beginning, the engine
// that has it gets most at first; then others get it too, and no queue is much
// longer than what computing it anew would take, for the request and one to come.
func TestHotPrefixSpreads(t *testing.T) {
	const prefix, own, n = 3200, 50, 800
	r := known(t, 4)
	hot := cached(t, r, 0, first(prefix+own, time.Minute), prefix)
	moved := 0
	for k := range n {
		q := *hot
		place := mustClaim(t, r, t0, &q).Backend().Name
		if moved == 0 && place != "b0" {
			moved = k
		}
	}
	if moved < prefix/own/2 {
		t.Errorf("number %d is the first that goes elsewhere", moved)
	}
	least, most := 1<<30, 0
	for _, b := range r.Pool().Backends {
		n := b.Load(t0).PrefillTokens
		least, most = min(least, n), max(most, n)
	}
	if most-least > 2*prefix+2*own || least < n*own/8 {
		t.Errorf("between %d and %d tokens wait at an engine", least, most)
	}
	t.Logf("the first that moves is number %d; %d to %d tokens wait", moved, least, most)
}
