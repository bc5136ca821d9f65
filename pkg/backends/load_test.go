package backends_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// sharedPools are three models over three engines: one has all of them, one
// engine is in every pool.
func sharedPools(f *backends.Fleet) []*backends.Pool {
	r := rules(backends.HealthRules{MaxEjected: 1, BreakerFailures: 3, BreakerOpen: time.Nanosecond})
	return f.Pools([]backends.PoolSpec{
		{Model: "x", Backends: specs("abc", r)},
		{Model: "y", Backends: specs("ab", r, capped(5))},
		{Model: "z", Backends: specs("b")},
	})
}

func anyOutcome(rng *rand.Rand) backends.Outcome {
	classes := []backends.Class{backends.Served, backends.Fault, backends.Overloaded, backends.Dropped}
	return backends.Outcome{Class: classes[rng.IntN(len(classes))], ClientLeft: rng.IntN(3) == 0}
}

// TestLoadLaws checks the counts of every engine against the claims that are
// open, after each step of random sequences over pools that share engines.
func TestLoadLaws(t *testing.T) {
	type open struct {
		*backends.Claim
		tokens int
		token  bool
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		pools := sharedPools(backends.NewFleet())
		now, left := t0, 0
		var claims []*open
		var ended []*backends.Claim
		step := func() {
			switch k := rng.IntN(10); {
			case k < 4:
				w := backends.Work{PromptTokens: rng.IntN(1000)}
				c, err := pools[rng.IntN(3)].Claim(now, w, nil, func(c []backends.Candidate) int { return rng.IntN(len(c)) })
				if err == nil {
					claims = append(claims, &open{Claim: c, tokens: w.PromptTokens})
				}
			case k < 6 && len(claims) > 0:
				c := claims[rng.IntN(len(claims))] // again and again, perhaps
				c.FirstToken(now)
				c.token = true
			case k < 8 && len(claims) > 0:
				i, o := rng.IntN(len(claims)), anyOutcome(rng)
				c := claims[i]
				c.End(now, o)
				if o.ClientLeft && !c.token {
					left++
				}
				claims = append(claims[:i], claims[i+1:]...)
				ended = append(ended, c.Claim)
			case k < 9 && len(ended) > 0: // what has ended stays so
				c := ended[rng.IntN(len(ended))]
				c.FirstToken(now)
				if e := c.End(now, backends.Outcome{Class: backends.Fault}); e.Ejected {
					t.Fatalf("seed %d: a second end ejected", seed)
				}
			default:
				now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			}
		}
		check := func() {
			held := 0
			for _, b := range pools[0].Backends {
				got, want := b.Load(now), backends.Load{}
				for _, c := range claims {
					if c.Backend.Same(b) {
						want.InFlight++
						if !c.token {
							want.Prefilling++
							want.PrefillTokens += c.tokens
						}
					}
				}
				if got.InFlight != want.InFlight || got.Prefilling != want.Prefilling || got.PrefillTokens != want.PrefillTokens {
					t.Fatalf("seed %d: %s has %+v, want %+v", seed, b.Name, got, want)
				}
				held += got.Held
			}
			if held > left {
				t.Fatalf("seed %d: %d held for %d clients that left", seed, held, left)
			}
		}
		for range 200 {
			step()
			check()
		}
		for _, c := range claims {
			c.End(now, anyOutcome(rng))
		}
		wantIdle(t, pools[0], now)
	}
}

// wantIdle checks that nothing stays counted.
func wantIdle(t *testing.T, p *backends.Pool, now time.Time) {
	t.Helper()
	now = now.Add(time.Hour)
	for _, b := range p.Backends {
		if l := b.Load(now); l != (backends.Load{TTFT: l.TTFT}) {
			t.Errorf("%s is left with %+v", b.Name, l)
		}
	}
}

// TestLoadConcurrently ends every claim twice at the same time, while
// revisions, signals and probes come in.
func TestLoadConcurrently(t *testing.T) {
	f := backends.NewFleet()
	first := sharedPools(f)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 1))
			now := t0
			for i := range 300 {
				now = now.Add(time.Millisecond)
				pools := first
				if i%50 == 0 {
					pools = sharedPools(f)
				}
				c, err := pools[rng.IntN(3)].Claim(now, backends.Work{PromptTokens: 10}, nil,
					func(c []backends.Candidate) int { return len(c) - 1 })
				if err != nil {
					continue
				}
				var ends sync.WaitGroup
				for range 2 {
					o := anyOutcome(rng)
					ends.Go(func() {
						c.FirstToken(now)
						c.End(now, o)
					})
				}
				s := backends.UnknownSignals()
				s.Running, s.Waiting, s.At = 1, 0, now
				c.Backend.SetSignals(s)
				c.Backend.Probe(now, true)
				c.Backend.Status(now)
				ends.Wait()
			}
		})
	}
	wg.Wait()
	wantIdle(t, first[0], t0)
}

// TestMaxInFlight holds the cap over pools that share the engine.
func TestMaxInFlight(t *testing.T) {
	t.Run("saturation", func(t *testing.T) {
		p := testPool(spec("a", capped(2)), spec("b", capped(1)), spec("c", draining))
		held := []*backends.Claim{claim(t, p, t0, "a"), claim(t, p, t0, "a"), claim(t, p, t0, "b")}
		_, err := p.Claim(t0, backends.Work{}, nil, first)
		wantUnavailable(t, err, true, time.Second)
		held[2].End(t0, backends.Outcome{})
		if got := candidates(t, p, t0); got != "b" {
			t.Errorf("candidates %q after b got free", got)
		}
	})
	t.Run("down is not saturated", func(t *testing.T) {
		p := testPool(spec("a", capped(1)), spec("b"))
		claim(t, p, t0, "a")
		for range 3 {
			p.Backends[0].Probe(t0, false)
		}
		if got := candidates(t, p, t0); got != "b" {
			t.Errorf("candidates %q", got)
		}
	})
	t.Run("everyone out and full", func(t *testing.T) {
		p := testPool(spec("a", capped(1)))
		claim(t, p, t0, "a")
		for range 3 {
			p.Backends[0].Probe(t0, false)
		}
		_, err := p.Claim(t0, backends.Work{}, nil, first)
		wantUnavailable(t, err, true, time.Second)
	})
	t.Run("another model is quicker", func(t *testing.T) {
		pools := backends.NewFleet().Pools([]backends.PoolSpec{
			{Model: "m", Backends: specs("ab", capped(1))}, {Model: "y", Backends: specs("a", capped(1))},
		})
		c, err := pools[0].Claim(t0, backends.Work{}, nil, func(c []backends.Candidate) int {
			if c[0].Backend.Name == "a" {
				claim(t, pools[1], t0, "a")
			}
			return 0
		})
		if err != nil || c.Backend.Name != "b" {
			t.Errorf("got %+v, %v, want b", c, err)
		}
	})
	t.Run("an ejected one does not help out", func(t *testing.T) {
		p := testPool(spec("a"), spec("b", capped(1)))
		eject(t, p, t0, "a")
		claim(t, p, t0, "b")
		_, err := p.Claim(t0, backends.Work{}, nil, first)
		wantUnavailable(t, err, true, time.Second)
	})
	t.Run("two models at once", func(t *testing.T) {
		const most = 3
		pools := backends.NewFleet().Pools([]backends.PoolSpec{
			{Model: "x", Backends: specs("a", capped(most))}, {Model: "y", Backends: specs("a", capped(most))},
		})
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 500 {
					c, err := pools[i%2].Claim(t0, backends.Work{}, nil, first)
					if err != nil {
						continue
					}
					if n := c.Backend.Load(t0).InFlight; n > most {
						t.Errorf("%d in flight, cap %d", n, most)
					}
					c.End(t0, backends.Outcome{})
				}
			})
		}
		wg.Wait()
	})
}

func TestHeldPrefill(t *testing.T) {
	leave := backends.Outcome{Class: backends.Dropped, ClientLeft: true}
	// trained has seen 1000 tokens take 2 s.
	trained := func(t *testing.T) *backends.Pool {
		p := testPool(spec("a"))
		c, _ := p.Claim(t0, backends.Work{PromptTokens: 1000}, nil, first)
		c.FirstToken(after(2))
		c.End(after(2), backends.Outcome{})
		return p
	}
	untrained := func(*testing.T) *backends.Pool { return testPool(spec("a")) }
	for name, tt := range map[string]struct {
		pool   func(*testing.T) *backends.Pool
		tokens int
		token  bool
		leaves float64 // seconds after the claim
		until  float64 // seconds after the claim; 0: not held
	}{
		"nothing known":       {pool: untrained, tokens: 10, leaves: 1, until: 30},
		"by rate per token":   {pool: trained, tokens: 3000, leaves: 1, until: 6},
		"at least a TTFT":     {pool: trained, tokens: 1, leaves: 1, until: 2},
		"at most a minute":    {pool: trained, tokens: 1e6, leaves: 1, until: 60},
		"later than expected": {pool: trained, tokens: 1000, leaves: 3},
		"after a token":       {pool: trained, tokens: 3000, token: true, leaves: 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, start := tt.pool(t), 100.0
			c, err := p.Claim(after(start), backends.Work{PromptTokens: tt.tokens}, nil, first)
			if err != nil {
				t.Fatal(err)
			}
			if tt.token {
				c.FirstToken(after(start + tt.leaves/2))
			}
			c.End(after(start+tt.leaves), leave)
			b := p.Backends[0]
			if l := b.Load(after(start + tt.leaves)); l.InFlight != 0 || l.Prefilling != 0 || l.PrefillTokens != 0 {
				t.Errorf("still in flight: %+v", l)
			}
			if tt.until == 0 {
				if l := b.Load(after(start + tt.leaves)); l.Held != 0 || l.HeldTokens != 0 {
					t.Errorf("held: %+v", l)
				}
				return
			}
			if l := b.Load(after(start + tt.until - 0.001)); l.Held != 1 || l.HeldTokens != tt.tokens || l.Pending() != 1 {
				t.Errorf("not held until the expected end: %+v", l)
			}
			if l := b.Load(after(start + tt.until)); l.Held != 0 || l.HeldTokens != 0 {
				t.Errorf("held past the expected end: %+v", l)
			}
		})
	}
}

// TestHeldPrefillReleasedBySignals: what an engine runs and queues, less the
// gateway's own, is room for clients that left.
func TestHeldPrefillReleasedBySignals(t *testing.T) {
	unknown := math.NaN()
	for name, tt := range map[string]struct {
		running, waiting float64
		own              int     // in flight when the scrape was sent
		began            float64 // the third client leaves at second 3
		held             int
	}{
		"idle":                      {running: 0, waiting: 0, began: 10, held: 0},
		"one still runs":            {running: 1, waiting: 0, began: 10, held: 1},
		"one runs, one waits":       {running: 1, waiting: 1, began: 10, held: 2},
		"room for more":             {running: 5, waiting: 5, began: 10, held: 3},
		"own requests fill it":      {running: 2, waiting: 0, own: 2, began: 10, held: 0},
		"own and one more":          {running: 3, waiting: 0, own: 2, began: 10, held: 1},
		"own that ended meanwhile":  {running: 3, waiting: 0, own: 9, began: 10, held: 1},
		"more own than it runs":     {running: 1, waiting: 0, own: 2, began: 10, held: 0},
		"left after the scrape":     {running: 0, waiting: 0, began: 2.5, held: 1},
		"some left after it":        {running: 1, waiting: 0, began: 2.5, held: 2},
		"all left after the scrape": {running: 0, waiting: 0, began: 0, held: 3},
		"running unknown":           {running: unknown, waiting: 0, began: 10, held: 3},
		"waiting unknown":           {running: 0, waiting: unknown, began: 10, held: 3},
		"absurd":                    {running: 1e18, waiting: 1e18, began: 10, held: 3},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPool(spec("a"))
			for range 2 { // the gateway's own
				claim(t, p, t0, "a")
			}
			for i := range 3 {
				c := claim(t, p, t0, "a")
				c.End(after(float64(i+1)), backends.Outcome{Class: backends.Dropped, ClientLeft: true})
			}
			s := backends.UnknownSignals()
			s.Began, s.At = after(tt.began), after(tt.began+0.01)
			s.Running, s.Waiting, s.OwnInFlight = tt.running, tt.waiting, tt.own
			b := p.Backends[0]
			b.SetSignals(s)
			if l := b.Load(after(10)); l.Held != tt.held || l.InFlight != 2 {
				t.Errorf("held %d, want %d; in flight %d, want 2", l.Held, tt.held, l.InFlight)
			}
		})
	}
}

func TestPenaltyDecays(t *testing.T) {
	for _, class := range []backends.Class{backends.Fault, backends.Overloaded} {
		p := testPool(spec("a"))
		b := p.Backends[0]
		end(t, p, t0, "a", class)
		for seconds, want := range map[float64]float64{-1: 1, 0: 1, 5: .5, 10: .25, 60: 0} {
			if got := b.Load(after(seconds)).Penalty; math.Abs(got-want) > 1e-9 {
				t.Errorf("class %v: penalty %v after %v s, want %v", class, got, seconds, want)
			}
		}
		end(t, p, after(5), "a", class)
		if got := b.Load(after(5)); math.Abs(got.Pending()-1.5) > 1e-9 {
			t.Errorf("class %v: pending %v after a second failure, want 1.5", class, got.Pending())
		}
	}
	p := testPool(spec("a"))
	for _, class := range []backends.Class{backends.Served, backends.Dropped} {
		end(t, p, t0, "a", class)
	}
	if got := p.Backends[0].Load(t0).Penalty; got != 0 {
		t.Errorf("penalty %v without a failure", got)
	}
}

// TestPeakEWMA checks the law behind TTFT: it is the largest of all samples,
// each decayed by its age.
func TestPeakEWMA(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 3))
		p := testPool(spec("a"))
		b := p.Backends[0]
		if got := b.Load(t0).TTFT; got != 0 {
			t.Fatalf("TTFT %v before any sample", got)
		}
		type sample struct {
			at   time.Time
			ttft time.Duration
		}
		var samples []sample
		now := t0
		for range 40 {
			c := claim(t, p, now, "a")
			ttft := time.Duration(1+rng.IntN(5000)) * time.Millisecond
			now = now.Add(ttft)
			c.FirstToken(now)
			c.End(now, backends.Outcome{})
			samples = append(samples, sample{now, ttft})
			at := now.Add(time.Duration(rng.IntN(20)) * time.Second)
			want := 0.0
			for _, s := range samples {
				want = max(want, s.ttft.Seconds()*math.Exp(-at.Sub(s.at).Seconds()/10))
			}
			if got := b.Load(at).TTFT.Seconds(); math.Abs(got-want) > 1e-6 {
				t.Fatalf("seed %d: TTFT %v, want %v", seed, got, want)
			}
		}
	}
}

// TestFirstTokenAfterEnd: a claim that ended takes no first token any more.
func TestFirstTokenAfterEnd(t *testing.T) {
	p := testPool(spec("a"))
	c := claim(t, p, t0, "a")
	c.End(after(1), backends.Outcome{})
	c.FirstToken(after(2))
	if l := p.Backends[0].Load(after(2)); l != (backends.Load{}) {
		t.Errorf("left with %+v", l)
	}
}

func ExampleLoad_Pending() {
	fmt.Println(backends.Load{InFlight: 2, Held: 1, Penalty: 0.5}.Pending())
	// Output: 3.5
}
