package backends_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// listed are the candidates of a claim, by their place; nobody is claimed. With
// somebody tried it never probes.
func listed(p *backends.Pool, seconds float64, w backends.Work, tried []*backends.Backend) map[int]backends.Candidate {
	out := map[int]backends.Candidate{}
	_, _ = p.Claim(after(seconds), w, append(tried, stranger), func(c []backends.Candidate) int {
		for i := range c {
			out[c[i].Index] = c[i]
		}
		return -1
	})
	return out
}

// blocks are the first of a conversation.
func blocks(n int) (out []uint64) {
	for k := range n {
		out = append(out, uint64(k+1))
	}
	return out
}

// TestLook: one that may be given work looks as it does among all; others are no
// candidates.
func TestLook(t *testing.T) {
	lame := rules(backends.HealthRules{BreakerFailures: 2, MaxEjected: -1})
	for name, row := range map[string]struct {
		spec  backends.Spec
		do    func(t *testing.T, p *backends.Pool, b *backends.Backend)
		tried bool
		at    float64
		want  bool
	}{
		"idle":           {spec: spec("x"), want: true},
		"busy":           {spec: spec("x"), want: true, do: func(t *testing.T, p *backends.Pool, _ *backends.Backend) { claim(t, p, t0, "x") }},
		"tried":          {spec: spec("x"), tried: true},
		"draining":       {spec: spec("x", draining)},
		"down":           {spec: spec("x"), do: func(_ *testing.T, _ *backends.Pool, b *backends.Backend) { down(b, t0) }},
		"ejected":        {spec: spec("x"), do: func(t *testing.T, p *backends.Pool, _ *backends.Backend) { eject(t, p, t0, "x") }},
		"in probation":   {spec: spec("x"), do: func(t *testing.T, p *backends.Pool, _ *backends.Backend) { eject(t, p, t0, "x") }, at: 11},
		"failed once":    {spec: spec("x"), want: true, do: func(t *testing.T, p *backends.Pool, _ *backends.Backend) { end(t, p, t0, "x", backends.Fault) }},
		"full":           {spec: spec("x", capped(1)), do: func(t *testing.T, p *backends.Pool, _ *backends.Backend) { claim(t, p, t0, "x") }},
		"not quite full": {spec: spec("x", capped(2)), want: true, do: func(t *testing.T, p *backends.Pool, _ *backends.Backend) { claim(t, p, t0, "x") }},
		"standing by":    {spec: spec("x", standby)},
		"called in":      {spec: spec("x", standby), do: func(_ *testing.T, p *backends.Pool, _ *backends.Backend) { p.CallIn(t0) }},
		"called in, and warm": {spec: spec("x", standby), want: true, do: func(t *testing.T, p *backends.Pool, b *backends.Backend) {
			p.CallIn(t0)
			warm(t, b, 0, backends.WhyCalled)
		}},
		"cold":    {spec: spec("x", warmed), do: func(_ *testing.T, _ *backends.Pool, b *backends.Backend) { probe(b, 0, "-+") }},
		"warming": {spec: spec("x", warmed), do: func(_ *testing.T, _ *backends.Pool, b *backends.Backend) { probe(b, 0, "-+"); b.BeginWarmUp(after(2)) }, at: 3},
		"warm": {spec: spec("x", warmed), want: true, do: func(t *testing.T, _ *backends.Pool, b *backends.Backend) {
			probe(b, 0, "-+")
			warm(t, b, 2, backends.WhyNew)
		}, at: 3},
		"behind an open breaker": {spec: spec("x", lame), do: func(t *testing.T, p *backends.Pool, _ *backends.Backend) {
			end(t, p, t0, "x", backends.Fault)
			end(t, p, t0, "x", backends.Fault)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPool(spec("a"), row.spec, spec("b"), spec("c"))
			b := p.Backends[1]
			if row.do != nil {
				row.do(t, p, b)
			}
			var tried []*backends.Backend
			if row.tried {
				tried = append(tried, b)
			}
			c, ok := p.Look(after(row.at), backends.Work{PromptTokens: 100}, 1, tried)
			among, isListed := listed(p, row.at, backends.Work{PromptTokens: 100}, tried)[1]
			if ok != row.want || isListed != row.want {
				t.Fatalf("a candidate: %v, in the list: %v, want %v", ok, isListed, row.want)
			}
			if !reflect.DeepEqual(c, among) {
				t.Errorf("looks like\n%+v, in the list\n%+v", c, among)
			}
		})
	}
}

// TestLookIsTheList: whatever happens to engines, a look at each of them is the
// list of all, while one is healthy and ready.
func TestLookIsTheList(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 1))
	seen := map[bool]int{}
	for range 120 {
		p := testPool(spec("a"), spec("b", capped(2)), spec("c", draining), spec("d", warmed), spec("e", standby), spec("f"))
		now, running := 0.0, []*backends.Claim(nil)
		for range 60 {
			now += rng.ExpFloat64()
			w := backends.Work{PromptTokens: 64 * (1 + rng.IntN(20)), Blocks: blocks(rng.IntN(20))}
			switch b := p.Backends[1+rng.IntN(5)]; rng.IntN(6) { // a stays as it is
			case 0, 1:
				if c, err := p.Claim(after(now), w, nil, func(c []backends.Candidate) int { return rng.IntN(len(c)) }); err == nil {
					running = append(running, c)
				}
			case 2:
				if len(running) > 0 {
					c := running[rng.IntN(len(running))]
					c.FirstToken(after(now))
					class := backends.Class(rng.IntN(4))
					if c.Backend.Name == "a" {
						class = backends.Served
					}
					c.End(after(now), backends.Outcome{Class: class, ClientLeft: class == backends.Dropped})
				}
			case 3:
				b.Probe(after(now), rng.IntN(4) > 0)
			case 4:
				p.CallIn(after(now))
			case 5:
				if w := b.BeginWarmUp(after(now)); w != nil {
					w.End(after(now), backends.WarmUpEnd(rng.IntN(3)))
				}
			}
			var tried []*backends.Backend
			if rng.IntN(3) == 0 {
				tried = append(tried, p.Backends[1+rng.IntN(5)])
			}
			all := listed(p, now, w, tried)
			for place := range p.Backends {
				c, ok := p.Look(after(now), w, place, tried)
				among, isListed := all[place]
				if ok != isListed || !reflect.DeepEqual(c, among) {
					t.Fatalf("%s after %v s: a candidate %v, in the list %v:\n%+v\n%+v", p.Backends[place].Name, now, ok, isListed, c, among)
				}
				seen[ok]++
			}
		}
	}
	if seen[true] < 1000 || seen[false] < 1000 {
		t.Errorf("%v: nothing was tested", seen)
	}
}

// TestLookChangesNothing: it counts nothing and takes no probation.
func TestLookChangesNothing(t *testing.T) {
	p := testPool(specs("ab")...)
	eject(t, p, t0, "a")
	for range 10 {
		p.Look(after(11), backends.Work{PromptTokens: 100}, 0, nil)
		if _, ok := p.Look(after(11), backends.Work{PromptTokens: 100}, 1, nil); !ok {
			t.Fatal("b is no candidate")
		}
	}
	if got := p.Backends[1].Load(after(11)); got != (backends.Load{}) {
		t.Errorf("b counts %+v", got)
	}
	c, err := p.Claim(after(11), backends.Work{}, nil, first)
	if err != nil || !c.Probe || c.Backend.Name != "a" {
		t.Errorf("%+v, %v: want the probation of a", c, err)
	}
}
