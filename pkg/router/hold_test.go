package router_test

import (
	"slices"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/router"
)

// pastAt is a request of 2000 tokens, so many of which are cached at b0, where
// others' prompts are pending; b1 only decodes. What it may not join it can wait
// for.
func pastAt(t *testing.T, tokens, pending, decoding int) (*router.Router, *router.Ticket) {
	t.Helper()
	r := known(t, 2)
	q := cached(t, r, 0, ask(2000, time.Minute), tokens)
	send(t, r, t0, 0, first(pending, 0))
	decode(t, r, 1, decoding)
	return r, enter(r, t0, q)
}

// TestWaitsForItsPast: one that has much of its prompt cached is held for that
// engine while that is closed, rather than sent to an open one, if the policy
// would have it so.
func TestWaitsForItsPast(t *testing.T) {
	for name, row := range map[string]struct {
		cached, pending, decoding int
		want                      string // "" is held
	}{
		"open":                          {1024, 500, 0, "b0"},
		"closed, and half is cached":    {1024, 1200, 0, ""},
		"closed, and not worth it":      {1024, 3000, 0, "b1"},
		"others would be held up there": {1024, 3000, 3, ""},
		"closed, and little is cached":  {256, 1200, 3, "b1"},
		"closed, and nothing is cached": {0, 1200, 3, "b1"},
		"open, and nothing is cached":   {0, 500, 3, "b0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, k := pastAt(t, row.cached, row.pending, row.decoding)
			got := ""
			if k.Lease != nil {
				got = k.Lease.Backend().Name
			}
			if got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

// TestWaitedForItsPast: it gets there once there is room, or elsewhere once that
// is better.
func TestWaitedForItsPast(t *testing.T) {
	t.Run("room", func(t *testing.T) {
		r := known(t, 2)
		q := cached(t, r, 0, ask(2000, time.Minute), 1024)
		before := send(t, r, t0, 0, first(1200, 0))
		k := enter(r, t0, q)
		r.Pump(t0.Add(time.Second))
		if k.Decided() {
			t.Fatal("not held for what it has cached")
		}
		before.FirstToken(t0.Add(1221 * time.Millisecond))
		if k.Lease == nil || k.Lease.Backend().Name != "b0" || k.Held != 1221*time.Millisecond {
			t.Errorf("%+v", k)
		}
	})
	t.Run("elsewhere", func(t *testing.T) {
		r, k := pastAt(t, 1024, 1200, 0)
		r.Pump(t0.Add(200 * time.Millisecond))
		if k.Decided() {
			t.Fatal("not held for what it has cached")
		}
		send(t, r, t0.Add(400*time.Millisecond), 0, first(4000, 0))
		r.Pump(t0.Add(600 * time.Millisecond))
		if k.Lease == nil || k.Lease.Backend().Name != "b1" {
			t.Errorf("%+v", k)
		}
	})
	t.Run("nothing is due", func(t *testing.T) {
		r := known(t, 2)
		q := cached(t, r, 0, ask(2000, 0), 1600)
		send(t, r, t0, 0, first(1000, 0))
		k := enter(r, t0, q)
		r.Pump(t0.Add(999 * time.Millisecond))
		if k.Decided() {
			t.Fatal("not held for what it has cached")
		}
		r.Pump(t0.Add(time.Second))
		if k.Lease == nil || k.Lease.Backend().Name != "b1" {
			t.Errorf("after a second: %+v", k)
		}
	})
	t.Run("its time is short", func(t *testing.T) {
		// b0 has 1400 tokens pending: 3.2 s to the P95 there, 2.6 s at b1.
		for left, want := range map[time.Duration]bool{11 * time.Second: false, 9 * time.Second: true, 2700 * time.Millisecond: true} {
			r := known(t, 2)
			q := cached(t, r, 0, ask(2000, 20*time.Second), 1024)
			q.Accepted = t0.Add(left - 20*time.Second)
			send(t, r, t0, 0, first(1400, 0))
			if k := enter(r, t0, q); k.Decided() != want {
				t.Errorf("%v left: decided %v", left, k.Decided())
			}
		}
	})
}

// crowd is held at one engine that is busy.
type crowd struct {
	*router.Router
	busy *router.Lease
	held []*router.Ticket
}

// newCrowd holds requests of so many tokens each, the first with the earliest
// deadline.
func newCrowd(t *testing.T, tokens ...int) *crowd {
	t.Helper()
	c := &crowd{Router: known(t, 1)}
	c.busy = send(t, c.Router, t0, 0, first(2000, 0))
	for k, n := range tokens {
		c.enter(t, ask(n, time.Duration(60+k)*time.Second))
	}
	return c
}

func (c *crowd) enter(t *testing.T, q *router.Request) {
	t.Helper()
	k := enter(c.Router, t0, q)
	if k.Decided() {
		t.Fatalf("%+v is not held", k)
	}
	c.held = append(c.held, k)
}

// next is who is let in when there is room.
func (c *crowd) next() (let []int) {
	c.busy.FirstToken(t0.Add(2020 * time.Millisecond))
	for k, ticket := range c.held {
		if ticket.Decided() {
			let = append(let, k)
		}
	}
	return let
}

// TestCheapFirst: while more than 8 of a class wait, those with less to compute
// than the mean come first, by their deadlines; while few wait, deadlines count.
func TestCheapFirst(t *testing.T) {
	for name, row := range map[string]struct {
		tokens []int
		want   int
	}{
		"one":              {[]int{3000}, 0},
		"8 wait":           {[]int{3000, 3000, 3000, 3000, 1000, 1000, 1000, 1000}, 0},
		"9 wait":           {[]int{3000, 3000, 3000, 3000, 3000, 1000, 1000, 1000, 1000}, 5},
		"beyond the eight": {[]int{3000, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 1000, 1000}, 10},
		"all alike":        {[]int{1500, 1500, 1500, 1500, 1500, 1500, 1500, 1500, 1500, 1500}, 0},
		"not the cheapest": {[]int{3000, 3000, 3000, 3000, 3000, 1100, 1000, 1000, 1000, 1000}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			if got := newCrowd(t, row.tokens...).next(); !slices.Equal(got, []int{row.want}) {
				t.Errorf("%v are let in, want %d", got, row.want)
			}
		})
	}
	t.Run("what is cached costs nothing", func(t *testing.T) {
		c := &crowd{Router: known(t, 1)}
		q := cached(t, c.Router, 0, ask(6200, 2*time.Minute), 5120)
		c.busy = send(t, c.Router, t0, 0, first(2000, 0))
		for k := range 9 {
			c.enter(t, ask(1500, time.Duration(60+k)*time.Second))
		}
		c.enter(t, q)
		if got := c.next(); !slices.Equal(got, []int{9}) {
			t.Errorf("%v are let in, want the last", got)
		}
	})
}

// TestCheapComesAfterClassAndShare: less to compute passes neither who is more
// critical nor whose tenant has had less.
func TestCheapComesAfterClassAndShare(t *testing.T) {
	cheap := []int{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000}
	t.Run("class", func(t *testing.T) {
		c := &crowd{Router: known(t, 1)}
		c.busy = send(t, c.Router, t0, 0, first(2000, 0))
		for _, n := range cheap {
			c.enter(t, ofClass(ask(n, time.Minute), 1))
		}
		c.enter(t, ask(5000, 3*time.Minute))
		if got := c.next(); !slices.Equal(got, []int{len(cheap)}) {
			t.Errorf("%v are let in, want the one more critical", got)
		}
	})
	t.Run("share", func(t *testing.T) {
		for had, want := range map[int]int{4500: len(cheap), 3500: 0} { // 4000 ahead is within a share
			c := &crowd{Router: known(t, 1)}
			c.busy = enter(c.Router, t0, of("many", ask(had, 0))).Lease
			for k, n := range cheap {
				c.enter(t, of("many", ask(n, time.Duration(60+k)*time.Second)))
			}
			c.enter(t, of("few", ask(5000, 3*time.Minute)))
			if got := c.next(); !slices.Equal(got, []int{want}) {
				t.Errorf("after %d tokens of its tenant %v are let in, want %d", had, got, want)
			}
		}
	})
}

func of(tenant string, q *router.Request) *router.Request {
	q.Tenant = tenant
	return q
}
