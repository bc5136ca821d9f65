package router

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// crowded is a router whose engines are at work, with requests that are held.
type crowded struct {
	*Router
	now     time.Time
	tickets []*Ticket
	ended   map[*Lease]bool
}

// newCrowded is drawn from a seed: the same one gives the same crowd.
func newCrowded(seed uint64) *crowded {
	rng := rand.New(rand.NewPCG(seed, 5))
	c := &crowded{ended: map[*Lease]bool{}, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	var specs []backends.Spec
	f := Foresight{Pool: predictor.NewPool("m", predictor.Rules{}, nil)}
	for i := range 1 + rng.IntN(4) {
		name := fmt.Sprint("b", i)
		specs = append(specs, backends.Spec{Name: name, URL: &url.URL{Scheme: "http", Host: name}})
		f.Instances = append(f.Instances, predictor.NewInstance(predictor.Speed{
			Fixed: 0.001, Step: 0.02, Token: 0.001 * (0.5 + rng.Float64()), Seq: 1e-4, Context: 1e-9, Square: 1e-12}))
	}
	pool := backends.NewFleet().Pools([]backends.PoolSpec{{Model: "m", Backends: specs}})[0]
	c.Router = New(pool, Headroom, foreseeing{headroom(rand.New(steady{}))})
	c.Foresee(f)
	c.Admit(Admission{})
	for range 10 + rng.IntN(60) {
		c.now = c.now.Add(time.Duration(rng.IntN(100)) * ms)
		c.act(rng)
	}
	c.Pump(c.now)
	return c
}

// underWay are the leases of those who were let in.
func (c *crowded) underWay() (out []*Lease) {
	for _, t := range c.tickets {
		if t.Lease != nil && !c.ended[t.Lease] {
			out = append(out, t.Lease)
		}
	}
	return out
}

// act lets somebody come, or one of them get a token or end.
func (c *crowded) act(rng *rand.Rand) {
	leases := c.underWay()
	switch k := rng.IntN(10); {
	case k < 6 || len(leases) == 0:
		c.tickets = append(c.tickets, c.Enter(c.now, drawnRequest(rng, c.now), nil, nil))
	case k < 9:
		leases[rng.IntN(len(leases))].FirstToken(c.now)
	default:
		l := leases[rng.IntN(len(leases))]
		l.Done(c.now, backends.Outcome{})
		c.ended[l] = true
	}
}

// drawnRequest is of any class, promised anything, and may go on with one of three
// conversations.
func drawnRequest(rng *rand.Rand, now time.Time) *Request {
	one := func(of ...time.Duration) time.Duration { return of[rng.IntN(len(of))] }
	q := &Request{
		PromptTokens: 1 + rng.IntN(3000), Stream: rng.IntN(4) > 0, Accepted: now, Class: rng.IntN(3), Tenant: fmt.Sprint(rng.IntN(3)),
		TTFT: one(0, time.Second, 5*time.Second, 20*time.Second), TPOT: one(0, 25*ms, 80*ms), E2E: one(0, 0, 5*time.Second),
	}
	conversation := uint64(rng.IntN(3)) * 1000
	for k := range rng.IntN(q.PromptTokens/backends.BlockTokens + 1) {
		q.Blocks = append(q.Blocks, conversation+uint64(k))
	}
	return q
}

// ends is what an event does before anybody is let in for it.
func (l *Lease) ends(now time.Time, firstToken bool) {
	if !firstToken {
		l.end(now, backends.Outcome{})
		return
	}
	l.claim.FirstToken(now)
	l.begun(now)
	l.Token(now)
}

// in are the numbers of those who were let in.
func (c *crowded) in() (out []int) {
	for k, t := range c.tickets {
		if t.Lease != nil {
			out = append(out, k)
		}
	}
	return out
}

// TestRoomAt: an end at one engine lets in at once almost all who would be let in
// by a look at all of them, and nobody who would not; whom it leaves out, the next
// look lets in. Few go elsewhere since an engine they waited for looks worse now:
// another may be quicker to take that place.
func TestRoomAt(t *testing.T) {
	let, later, others := 0, 0, 0
	for seed := range uint64(200) {
		one, all := newCrowded(seed), newCrowded(seed)
		a, b := one.underWay(), all.underWay()
		if len(a) == 0 || one.Waiting() == 0 {
			continue
		}
		before := len(one.in())
		at, first := int(seed)%len(a), seed%3 > 0
		a[at].ends(one.now, first)
		one.roomAt(one.now, a[at].Backend())
		atOnce := len(one.in())
		one.Pump(one.now)
		b[at].ends(all.now, first)
		all.Pump(all.now)
		let, later = let+len(all.in())-before, later+len(one.in())-atOnce
		if !slices.Equal(one.in(), all.in()) {
			others++
			t.Logf("seed %d: let in %v, by a look at all %v", seed, one.in(), all.in())
		}
	}
	if let < 30 || 5*later > let || others > 1+let/100 {
		t.Errorf("of %d let in, %d are at the next look only; %d times they are others", let, later, others)
	}
	t.Logf("of %d let in, %d are at the next look only", let, later)
}
