package backends_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

func warmed(s *backends.Spec) { s.WarmUp = true }

// said is a scrape of an engine that started so many seconds after t0; NaN is
// unknown.
func said(at, start float64) backends.Signals {
	s := backends.UnknownSignals()
	s.Began, s.At = after(at), after(at)
	s.StartTime = float64(t0.Unix()) + start
	return s
}

// cpu is a scrape of an engine that tells only how long it has computed.
func cpu(t *testing.T, at float64, seconds int) backends.Signals {
	t.Helper()
	s, err := backends.ParseSignals(backends.VLLM, strings.NewReader(fmt.Sprintf("process_cpu_seconds_total %d\n", seconds)))
	if err != nil {
		t.Fatal(err)
	}
	s.Began, s.At = after(at), after(at)
	return s
}

func probe(b *backends.Backend, at float64, verdicts string) {
	for _, v := range verdicts {
		b.Probe(after(at), v == '+')
		at++
	}
}

// TestReadinessOfWhatIsSeen: which engines are cold, and why.
func TestReadinessOfWhatIsSeen(t *testing.T) {
	for name, tt := range map[string]struct {
		see  func(b *backends.Backend)
		want string // why it is cold; "" is ready
	}{
		"nothing":                   {func(*backends.Backend) {}, ""},
		"up, start unknown":         {func(b *backends.Backend) { probe(b, 0, "+++") }, ""},
		"old":                       {func(b *backends.Backend) { b.SetSignals(said(1, -60)) }, ""},
		"young":                     {func(b *backends.Backend) { b.SetSignals(said(1, -59)) }, backends.WhyNew},
		"up, then young":            {func(b *backends.Backend) { probe(b, 0, "+"); b.SetSignals(said(1, -5)) }, backends.WhyNew},
		"comes later":               {func(b *backends.Backend) { probe(b, 0, "-+") }, backends.WhyNew},
		"a miss after it was there": {func(b *backends.Backend) { probe(b, 0, "+-+") }, ""},
		"another start":             {func(b *backends.Backend) { b.SetSignals(said(1, -99)); b.SetSignals(said(2, 1)) }, backends.WhyRestarted},
		"another start, long since": {func(b *backends.Backend) { b.SetSignals(said(1, -99)); b.SetSignals(said(900, 1)) }, backends.WhyRestarted},
		"start unknown in between": {func(b *backends.Backend) {
			b.SetSignals(said(1, -99))
			b.SetSignals(cpu(t, 2, 3))
			b.SetSignals(said(3, 2))
		}, backends.WhyRestarted},
		"the same start":         {func(b *backends.Backend) { b.SetSignals(said(1, -99)); b.SetSignals(said(2, -99)) }, ""},
		"a counter begins again": {func(b *backends.Backend) { b.SetSignals(cpu(t, 1, 50)); b.SetSignals(cpu(t, 2, 1)) }, backends.WhyRestarted},
		"a counter goes on":      {func(b *backends.Backend) { b.SetSignals(cpu(t, 1, 50)); b.SetSignals(cpu(t, 2, 50)) }, ""},
		"it was down":            {func(b *backends.Backend) { probe(b, 0, "+---++") }, backends.WhyReturned},
		"it is down":             {func(b *backends.Backend) { probe(b, 0, "+---+") }, ""},
		"it was out of reach": {func(b *backends.Backend) {
			b.SetSignals(said(0, -99))
			probe(b, 1, "---++")
			b.SetSignals(said(7, -99))
		}, ""},
		"an answer of before": {func(b *backends.Backend) {
			b.SetSignals(said(0, -99))
			probe(b, 1, "---++")
			b.SetSignals(said(4, -99))
		}, backends.WhyReturned},
		"it was down, and is another": {func(b *backends.Backend) { b.SetSignals(said(0, -99)); probe(b, 1, "---++"); b.SetSignals(said(7, 4)) }, backends.WhyRestarted},
	} {
		t.Run(name, func(t *testing.T) {
			b := testPool(spec("a", warmed)).Backends[0]
			tt.see(b)
			got := ""
			if w := b.BeginWarmUp(after(1000)); w != nil {
				got = w.Why
			}
			if got != tt.want {
				t.Errorf("cold for %q, want %q", got, tt.want)
			}
			off := testPool(spec("a")).Backends[0]
			tt.see(off)
			if off.Readiness() != backends.Ready || off.BeginWarmUp(after(1000)) != nil {
				t.Error("an engine that is not to be warmed is not ready")
			}
		})
	}
}

// TestLaterEngines: one that comes with a later revision is cold, those that
// stay are as they were.
func TestLaterEngines(t *testing.T) {
	f := backends.NewFleet()
	pool := func(names string) *backends.Pool {
		return f.Pools([]backends.PoolSpec{{Model: "m", Backends: specs(names, warmed)}})[0]
	}
	p := pool("a")
	if got := backend(p, "a").Readiness(); got != backends.Ready {
		t.Errorf("a is %s at the start", got)
	}
	p = pool("ab")
	if a, b := backend(p, "a").Readiness(), backend(p, "b").Readiness(); a != backends.Ready || b != backends.Cold {
		t.Errorf("a is %s, b is %s", a, b)
	}
	backend(p, "b").BeginWarmUp(t0).End(t0, backends.WarmedUp)
	if got := backend(pool("ab"), "b").Readiness(); got != backends.Ready {
		t.Errorf("b is %s after it was warmed", got)
	}
}

// TestWarmUpCourse walks through the states.
func TestWarmUpCourse(t *testing.T) {
	b := testPool(spec("a", warmed)).Backends[0]
	restart := func(at float64) { b.SetSignals(said(at, at)) }
	want := func(want backends.Readiness) {
		t.Helper()
		if got := b.Readiness(); got != want || b.Status(t0).Ready != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
	b.SetSignals(said(0, -99))
	restart(10)
	want(backends.Cold)
	first := b.BeginWarmUp(after(10))
	want(backends.Warming)
	if b.BeginWarmUp(after(10)) != nil {
		t.Error("a second one at the same time")
	}
	restart(11)
	want(backends.Cold)
	if first.Wanted() || first.End(after(11), backends.WarmedUp) != backends.Cold {
		t.Error("a warm-up of the former life counts")
	}
	second := b.BeginWarmUp(after(11))
	first.End(after(11), backends.WarmedUp)
	want(backends.Warming)
	second.End(after(11), backends.WarmUpDropped)
	want(backends.Cold)
	b.BeginWarmUp(after(12)).End(after(12), backends.WarmUpDropped)
	want(backends.Cold)
	for k := range 3 {
		at := 12 + float64(5*k)
		w := b.BeginWarmUp(after(at))
		if w == nil {
			t.Fatalf("no warm-up %d", k)
		}
		if to := w.End(after(at), backends.WarmUpFailed); (to == backends.Ready) != (k == 2) {
			t.Errorf("%s after failure %d", to, k+1)
		}
		if k < 2 && b.BeginWarmUp(after(at+4.9)) != nil {
			t.Error("no pause after a failure")
		}
	}
	want(backends.Ready)
	restart(60)
	probe(b, 61, "---")
	if b.BeginWarmUp(after(64)) != nil {
		t.Error("an engine that is down is warmed")
	}
	probe(b, 65, "++")
	b.SetSignals(said(70, 60))
	want(backends.Cold) // the engine of before, which was cold
	b.BeginWarmUp(after(70)).End(after(71), backends.WarmedUp)
	probe(b, 71, "---++---++")
	want(backends.Cold)
	b.SetSignals(said(90, 60))
	want(backends.Ready) // the engine of before, which was warm
}

func TestDrainingIsNotWarmed(t *testing.T) {
	b := testPool(spec("a", warmed, draining)).Backends[0]
	b.SetSignals(said(0, 0))
	if b.Readiness() != backends.Finishing || b.BeginWarmUp(t0) != nil {
		t.Errorf("%s", b.Readiness())
	}
}

// TestGate: who is not ready is no candidate as long as enough others are.
func TestGate(t *testing.T) {
	for _, tt := range []struct {
		cold, want string
	}{
		{"", "abcd"}, {"a", "bcd"}, {"bd", "ac"}, {"abd", "abcd"}, {"abcd", "abcd"},
	} {
		p := testPool(specs("abcd", warmed)...)
		for _, name := range tt.cold {
			backend(p, string(name)).SetSignals(said(0, 0))
		}
		if got := candidates(t, p, after(1)); got != tt.want {
			t.Errorf("%q are cold: %q may be chosen, want %q", tt.cold, got, tt.want)
		}
		for _, name := range tt.cold {
			backend(p, string(name)).BeginWarmUp(after(1))
		}
		if got := candidates(t, p, after(1)); got != tt.want {
			t.Errorf("%q are being warmed: %q may be chosen, want %q", tt.cold, got, tt.want)
		}
	}
	t.Run("the ready are full, or were tried", func(t *testing.T) {
		p := testPool(spec("a", warmed, capped(1)), spec("b", warmed))
		backend(p, "b").SetSignals(said(0, 0))
		claim(t, p, t0, "a")
		if got := candidates(t, p, t0); got != "b" {
			t.Errorf("%q may be chosen, want the cold one before nobody", got)
		}
		if c, err := p.Claim(t0, backends.Work{}, []*backends.Backend{backend(p, "a")}, first); err != nil || c.Backend.Name != "b" {
			t.Errorf("a second attempt: %v", err)
		}
	})
	t.Run("probation", func(t *testing.T) {
		p := testPool(specs("abc", warmed)...)
		eject(t, p, t0, "a")
		backend(p, "a").SetSignals(said(11, 5))
		if c, err := p.Claim(after(11), backends.Work{}, nil, first); err != nil || c.Probe {
			t.Errorf("the probe of a probation goes to a cold engine: %v", err)
		}
		backend(p, "a").BeginWarmUp(after(11)).End(after(12), backends.WarmedUp)
		if c, err := p.Claim(after(12), backends.Work{}, nil, first); err != nil || !c.Probe {
			t.Errorf("a warm engine is not probed: %v", err)
		}
	})
}

// TestGateLaws: never nobody where the gate is what keeps them out, and never an
// unready engine while half are ready.
func TestGateLaws(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 500 {
		n := 1 + rng.IntN(6)
		names := "abcdef"[:n]
		p := testPool(specs(names, warmed)...)
		cold := map[rune]bool{}
		for _, name := range names {
			if rng.IntN(2) == 0 {
				cold[name] = true
				backend(p, string(name)).SetSignals(said(0, 0))
			}
		}
		got := candidates(t, p, after(1))
		if got == "" {
			t.Fatalf("%d of %d cold: nobody may be chosen", len(cold), n)
		}
		for _, name := range got {
			if cold[name] && 2*len(cold) <= n {
				t.Errorf("%d of %d cold: %c may be chosen", len(cold), n, name)
			}
		}
	}
}

// TestWarmUpIsNoTraffic: it leaves load and health alone.
func TestWarmUpIsNoTraffic(t *testing.T) {
	b := testPool(spec("a", warmed)).Backends[0]
	b.SetSignals(said(0, 0))
	before := b.Status(after(1))
	b.BeginWarmUp(after(1)).End(after(2), backends.WarmUpFailed)
	if got := b.Status(after(2)); got.Load != before.Load || got.State != backends.Up {
		t.Errorf("%+v, before %+v", got, before)
	}
}

// TestWarmUpClearsPenalty: failures of the engine that was do not weigh on the
// one that answered its warm-up.
func TestWarmUpClearsPenalty(t *testing.T) {
	for how, want := range map[backends.WarmUpEnd]float64{backends.WarmedUp: 0, backends.WarmUpFailed: 1, backends.WarmUpDropped: 1} {
		p := testPool(spec("a", warmed))
		b := p.Backends[0]
		b.SetSignals(said(0, -99))
		end(t, p, after(1), "a", backends.Fault)
		b.SetSignals(said(1, 1))
		b.BeginWarmUp(after(1)).End(after(1), how)
		if got := b.Load(after(1)).Penalty; got != want {
			t.Errorf("end %v: penalty %v, want %v", how, got, want)
		}
	}
}
