package replay_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
)

const ms = time.Millisecond

func TestTimesOfOneEngine(t *testing.T) {
	t.Parallel()
	embedding := ask(200*ms, 300, 0)
	whole := ask(300*ms, 100, 3)
	whole.Stream = false
	// a reaches the engine at 1 ms: prefill of 100 to 21 ms, then with b's
	// prefill of 50 to 37 ms, then both decode to 49 ms. One ms back.
	got, _ := run(t, replay.Config{Engines: fleet(plain), Network: ms},
		trace.Of(ask(0, 100, 3), ask(5*ms, 50, 2), embedding, whole, ask(400*ms, 10, 1)))
	for i, want := range []struct{ ttft, e2e, tpot time.Duration }{
		{22 * ms, 50 * ms, 14 * ms},
		{33 * ms, 45 * ms, 12 * ms},
		{0, 42 * ms, 0}, // no tokens come out
		{0, 44 * ms, 0}, // no token is seen before the end
		{13 * ms, 13 * ms, 0},
	} {
		o := got[i]
		if !o.OK() || o.TTFT != want.ttft || o.E2E != want.e2e || o.TPOT() != want.tpot || o.Engine != 0 || o.Attempts != 1 {
			t.Errorf("request %d: %s, TTFT %v, E2E %v, TPOT %v, engine %d, %d attempts; want %v",
				i, o.Reason, o.TTFT, o.E2E, o.TPOT(), o.Engine, o.Attempts, want)
		}
	}
}

func TestNetworkDelayCountsTwice(t *testing.T) {
	t.Parallel()
	for network, want := range map[time.Duration]time.Duration{
		-1: 20 * ms, 0: 20*ms + 400*time.Microsecond, ms: 22 * ms, 7 * ms: 34 * ms,
	} {
		got, _ := run(t, replay.Config{Engines: fleet(plain), Network: network}, trace.Of(ask(0, 100, 1)))
		if got[0].TTFT != want {
			t.Errorf("network %v: TTFT %v, want %v", network, got[0].TTFT, want)
		}
	}
}

func TestFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	p := plain
	p.MaxSeqs = 1
	got, _ := run(t, replay.Config{Engines: fleet(p), Network: -1}, trace.Of(many(5, ms, 100, 1)...))
	for i, o := range got {
		if want := time.Duration(i+1)*20*ms - time.Duration(i)*ms; o.TTFT != want {
			t.Errorf("request %d: TTFT %v, want %v: 20 ms for each before it", i, o.TTFT, want)
		}
	}
}

// Replicas share engines but not what they know.
func TestGatewaysDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	const n = 24
	for _, gateways := range []int{1, 2, 4} {
		got, _ := run(t, replay.Config{Engines: fleet(plain), Gateways: gateways, Network: -1}, trace.Of(many(n, 0, 10, 1)...))
		for i, o := range got {
			if o.Busy != i/gateways {
				t.Fatalf("%d gateways: request %d was sent with %d in flight, want those of its own gateway, %d", gateways, i, o.Busy, i/gateways)
			}
			if want := 34 * ms; o.TTFT != want { // 10 ms and 24 × 1 ms of prefill
				t.Fatalf("%d gateways: request %d has TTFT %v, want %v as the engine is one", gateways, i, o.TTFT, want)
			}
		}
	}
	// Least in flight of two engines is even for one gateway; two gateways that
	// each send their first request may send both to one engine.
	uneven := 0
	for seed := range uint64(20) {
		got, _ := run(t, replay.Config{Engines: fleet(plain, plain), Gateways: 2, Policy: router.LeastInFlight, Seed: seed}, trace.Of(many(2, 0, 10, 1)...))
		if got[0].Engine == got[1].Engine {
			uneven++
		}
	}
	if uneven == 0 || uneven == 20 {
		t.Errorf("two gateways chose the same engine in %d of 20 runs", uneven)
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	short, small := plain, plain
	short.MaxModelLen, small.KVBlocks = 100, 8
	other := ask(0, 10, 1)
	other.Model = "another"
	unnamed := ask(0, 10, 1)
	unnamed.Model = ""
	for _, c := range []struct {
		name   string
		params engine.Params
		ask    trace.Request
		want   string
		took   time.Duration
	}{
		{"beyond the context", short, ask(0, 90, 11), replay.TooLong, 2 * ms},
		{"just within the context", short, ask(0, 90, 10), replay.OK, 0},
		{"beyond the cache", small, ask(0, 120, 9), replay.TooLong, 2 * ms},
		{"no such model", plain, other, replay.UnknownModel, 0},
		{"no model", plain, unnamed, replay.UnknownModel, 0},
	} {
		got, _ := run(t, replay.Config{Engines: fleet(c.params), Network: ms}, trace.Of(c.ask))
		o := got[0]
		if o.Reason != c.want || o.TTFT != 0 && !o.OK() || !o.OK() && o.E2E != c.took || o.OK() != (o.Engine == 0) {
			t.Errorf("%s: %s after %v on engine %d, want %s after %v", c.name, o.Reason, o.E2E, o.Engine, c.want, c.took)
		}
	}
	// What an engine refuses on sight says nothing bad of it.
	asks := append(many(50, ms, 200, 1), ask(time.Second, 50, 1))
	got, _ := run(t, replay.Config{Engines: fleet(short, short)}, trace.Of(asks...))
	if last := got[50]; !last.OK() || last.Attempts != 1 {
		t.Errorf("after 50 that were too long: %s", last.Reason)
	}
}

func TestFindMisfits(t *testing.T) {
	t.Parallel()
	narrow, wide := plain, plain
	narrow.MaxModelLen, wide.MaxModelLen = 100, 200
	engines := fleet(narrow, wide)
	unknown := ask(0, 10, 1)
	unknown.Model = "x"
	m, err := replay.FindMisfits(engines, trace.Of(ask(0, 90, 10), ask(0, 91, 10), unknown, ask(0, 200, 1), ask(0, 200, 0)))
	if err != nil {
		t.Fatal(err)
	}
	index := func(ms []replay.Misfit) (out []int) {
		for _, m := range ms {
			out = append(out, m.Index)
		}
		return out
	}
	if got, want := fmt.Sprint(index(m.TooLong), index(m.Partly), index(m.Unknown)), "[3] [1 4] [2]"; got != want {
		t.Errorf("too long, partly, unknown: %s, want %s", got, want)
	}
	engines[0].Params.KVBlocks = 0
	if _, err := replay.FindMisfits(engines, trace.Of()); err == nil {
		t.Error("an engine without a cache was accepted")
	}
}

func TestCrash(t *testing.T) {
	t.Parallel()
	whole := ask(0, 100, 1000)
	whole.Stream = false
	// Engine a gets requests 0, 2 and 4, b 1 and 3; a dies at 40 ms,
	// when the first tokens of 0 and 2 are out.
	got, totals := run(t, replay.Config{
		Engines: fleet(plain, plain), Network: ms,
		Faults: []replay.Fault{{At: 40 * ms, Engine: 0, Fault: engine.Fault{Kind: engine.Crash}}},
	}, trace.Of(ask(0, 100, 1000), ask(0, 100, 1000), whole, ask(38*ms, 100, 1), ask(39*ms+ms/2, 100, 1)))
	for i, want := range []struct {
		reason   string
		engine   int
		attempts int
	}{
		{replay.Lost, -1, 1}, // after its first token
		{replay.OK, 1, 1},
		{replay.OK, 1, 2}, // the client has seen nothing
		{replay.OK, 1, 1},
		{replay.OK, 1, 2}, // on its way as the engine died
	} {
		if o := got[i]; o.Reason != want.reason || o.Engine != want.engine || o.Attempts != want.attempts {
			t.Errorf("request %d: %s, engine %d, %d attempts; want %v", i, o.Reason, o.Engine, o.Attempts, want)
		}
	}
	if lost := got[0]; lost.E2E != 41*ms || lost.TTFT != 32*ms {
		t.Errorf("the lost request ended at %v with TTFT %v, want 41 ms: the crash and the way back", lost.E2E, lost.TTFT)
	}
	if totals.Engines[0].Finished != 0 || totals.Engines[0].Submitted != 2 {
		t.Errorf("engine a: %+v", totals.Engines[0])
	}
}

func TestAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	var faults []replay.Fault
	for i := range 5 {
		faults = append(faults, replay.Fault{At: 10 * ms, Engine: i, Fault: engine.Fault{Kind: engine.Crash}})
	}
	for attempts, want := range map[int]int{0: 3, 1: 1, 4: 4, 9: 5} {
		got, _ := run(t, replay.Config{Engines: fleet(plain, plain, plain, plain, plain), Faults: faults, Attempts: attempts},
			trace.Of(ask(0, 10, 1), ask(20*ms, 100, 1)))
		if o := got[1]; o.Reason != replay.Lost || o.Attempts != want {
			t.Errorf("at most %d: %s after %d attempts, want %d", attempts, o.Reason, o.Attempts, want)
		}
	}
}

// A crashed engine gets nothing while it is out, and work again after it is back.
func TestRestartedEngineServesAgain(t *testing.T) {
	t.Parallel()
	const crash, restart = 5 * time.Second, 30 * time.Second
	for _, startUp := range []time.Duration{0, 20 * time.Second} {
		p := plain
		p.StartUp = startUp
		c := replay.Config{
			Engines: fleet(p, p),
			Faults:  []replay.Fault{{At: crash, Engine: 0, Fault: engine.Fault{Kind: engine.Crash}}, {At: restart, Engine: 0, Fault: engine.Fault{Kind: engine.Restart}}},
		}
		got, totals := run(t, c, trace.Of(many(1200, 100*ms, 100, 2)...))
		first, failed := time.Duration(0), 0
		for _, o := range got {
			if !o.OK() {
				failed++
			}
			at := o.Request.At
			if o.Engine == 0 && at > crash && at < restart+startUp {
				t.Fatalf("start-up %v: engine a serves a request of %v", startUp, at)
			}
			if o.Engine == 0 && at > crash && first == 0 {
				first = at
			}
		}
		back := restart + startUp
		if first < back || first > back+45*time.Second { // 2 probes, or what is left of an ejection
			t.Errorf("start-up %v: engine a is back at %v, its first request then is of %v", startUp, back, first)
		}
		if failed > 1 {
			t.Errorf("start-up %v: %d requests failed", startUp, failed)
		}
		if e := totals.Engines[0]; e.Finished != e.Submitted-failed || e.Finished < 200 {
			t.Errorf("start-up %v: engine a finished %d of %d over both lives", startUp, e.Finished, e.Submitted)
		}
	}
}

func TestOtherFaults(t *testing.T) {
	t.Parallel()
	on := func(i int, kind engine.FaultKind, at, lasts time.Duration) replay.Fault {
		return replay.Fault{At: at, Engine: i, Fault: engine.Fault{Kind: kind}, For: lasts}
	}
	one := func(fault replay.Fault, engines int, asks ...trace.Request) []replay.Outcome {
		p := make([]engine.Params, engines)
		for i := range p {
			p[i] = plain
		}
		got, _ := run(t, replay.Config{Engines: fleet(p...), Network: ms, Faults: []replay.Fault{fault}}, trace.Of(asks...))
		return got
	}
	three := many(3, time.Second, 100, 1) // 20 ms each and 2 ms of network

	got := one(on(0, engine.Slow, 500*ms, time.Second), 1, three...)
	for i, want := range []time.Duration{22 * ms, 82 * ms, 22 * ms} {
		if got[i].TTFT != want {
			t.Errorf("slow: TTFT %d is %v, want %v", i, got[i].TTFT, want)
		}
	}
	for _, kind := range []engine.FaultKind{engine.Errors, engine.Reject} {
		reason := map[engine.FaultKind]string{engine.Errors: replay.Lost, engine.Reject: replay.Refused}[kind]
		got := one(on(0, kind, 500*ms, time.Second), 1, three...)
		if o := got[1]; o.Reason != reason || o.Attempts != 1 || o.E2E != 2*ms || !got[0].OK() || !got[2].OK() {
			t.Errorf("%s of the only engine: %s after %d attempts and %v", kind, o.Reason, o.Attempts, o.E2E)
		}
		got = one(on(0, kind, 0, 0), 2, many(200, 50*ms, 100, 1)...)
		again := 0
		for i, o := range got {
			if !o.OK() || o.Engine != 1 || o.Attempts == 2 && o.TTFT < 24*ms {
				t.Fatalf("%s of one of two engines: request %d is %s on engine %d with TTFT %v", kind, i, o.Reason, o.Engine, o.TTFT)
			}
			again += o.Attempts - 1
		}
		// Who errs is ejected; who has too much to do is tried time and again.
		if ejected := again < 20; again == 0 || ejected != (kind == engine.Errors) {
			t.Errorf("%s: %d requests met it", kind, again)
		}
	}
	c := replay.Config{Engines: fleet(plain), Network: ms, Faults: []replay.Fault{{Fault: engine.Fault{Kind: engine.Reject, Rate: 0.3}}}}
	got, _ = run(t, c, trace.Of(many(500, 10*ms, 1, 1)...))
	refused := 0
	for _, o := range got {
		if o.Reason == replay.Refused {
			refused++
		}
	}
	if refused < 100 || refused > 200 {
		t.Errorf("a rate of 0.3 refuses %d of 500", refused)
	}
}

func TestNobodyIsLeft(t *testing.T) {
	t.Parallel()
	got, _ := run(t, replay.Config{Engines: fleet(plain), Probe: 100 * ms, Faults: []replay.Fault{{Engine: 0, Fault: engine.Fault{Kind: engine.Crash}}}},
		trace.Of(many(100, 50*ms, 10, 1)...))
	lost, refused := 0, 0
	for i, o := range got {
		switch o.Reason {
		case replay.Lost:
			lost++
		case replay.Refused:
			refused++
			if o.Attempts != 0 || o.Busy != -1 {
				t.Errorf("request %d was refused after %d attempts", i, o.Attempts)
			}
		default:
			t.Errorf("request %d: %s", i, o.Reason)
		}
	}
	if lost == 0 || lost+refused != 100 {
		t.Errorf("%d lost, %d refused", lost, refused)
	}
}

func TestStopGivesWhatThereIs(t *testing.T) {
	t.Parallel()
	asked := 0
	got, totals := run(t, replay.Config{Engines: fleet(plain), Stop: func() bool { asked++; return asked > 3 }},
		trace.Of(many(20_000, ms, 100, 5)...))
	by := map[string]int{}
	for _, o := range got {
		by[o.Reason]++
	}
	if !totals.Stopped || by[replay.OK] == 0 || by[replay.Unfinished] == 0 || by[replay.OK]+by[replay.Unfinished] != len(got) || len(got) == 20_000 {
		t.Errorf("stopped %v, %v of %d", totals.Stopped, by, len(got))
	}
}

func TestMalformedTrace(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "bad.csv")
	text := "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,10,1\n2023-11-16 18:17:04.0000000,many,1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := trace.Open(file, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ended := 0
	src = src.Each(func(r *trace.Request) { r.Model = "m" })
	_, err = replay.Run(replay.Config{Engines: fleet(plain), Policy: router.Random}, src, func(*replay.Outcome) { ended++ })
	var fault *trace.Error
	if !errors.As(err, &fault) || fault.Line != 3 || !strings.HasPrefix(err.Error(), file+":3:") {
		t.Errorf("error %v, want the file and line 3", err)
	}
}

func TestArrivalsOutOfOrder(t *testing.T) {
	t.Parallel()
	got, _ := run(t, replay.Config{Engines: fleet(plain), Network: -1}, trace.Of(ask(time.Second, 100, 1), ask(0, 100, 1), ask(3*time.Second, 100, 1)))
	for i, want := range []time.Duration{time.Second, time.Second, 3 * time.Second} {
		if o := got[i]; o.Request.At != want || !o.OK() || o.TTFT > 40*ms {
			t.Errorf("request %d: arrives at %v with TTFT %v, want at %v", i, o.Request.At, o.TTFT, want)
		}
	}
}

func TestConfigurationsThatAreWrong(t *testing.T) {
	t.Parallel()
	broken := plain
	broken.KVBlocks = 0
	for want, c := range map[string]replay.Config{
		"no engines":             {Policy: "random"},
		"no gateway":             {Policy: "random", Engines: fleet(plain), Gateways: -1},
		"kv_blocks":              {Policy: "random", Engines: fleet(plain, broken)},
		`unknown policy "best"`:  {Policy: "best", Engines: fleet(plain)},
		"a fault names engine 1": {Policy: "random", Engines: fleet(plain), Faults: []replay.Fault{{Engine: 1, Fault: engine.Fault{Kind: engine.Crash}}}},
		`knows no fault "hang"`:  {Policy: "random", Engines: fleet(plain), Faults: []replay.Fault{{Fault: engine.Fault{Kind: engine.Hang}}}},
		"factor is -1":           {Policy: "random", Engines: fleet(plain), Faults: []replay.Fault{{Fault: engine.Fault{Kind: engine.Slow, Factor: -1}}}},
	} {
		_, err := replay.Run(c, trace.Of(ask(0, 1, 1)), func(*replay.Outcome) { t.Error("something was served") })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Whatever happens, each request ends once, and engines compute what was served.
func TestEveryRequestEndsOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c, src := anyReplay(rng)
		c.Seed = seed
		got, totals := run(t, c, src) // run checks that each ends once
		want, _ := src.Collect()
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d of %d requests arrived", seed, len(got), len(want))
		}
		tokens, served, submitted := 0, 0, 0
		for i := range got {
			o := &got[i]
			sound := o.Attempts <= 3 && (o.Engine >= 0) == o.OK() && o.TTFT <= o.E2E && o.Cached <= o.Request.PromptTokens
			switch o.Reason {
			case replay.OK:
				served++
				tokens += o.Request.OutputTokens
				sound = sound && o.Attempts >= 1 && (o.TTFT > 0) == (o.Request.Stream && o.Request.OutputTokens > 0)
			case replay.UnknownModel:
				sound = sound && o.Attempts == 0 && o.E2E == 0
			case replay.Refused:
				sound = sound && o.Cached == 0 && o.TTFT == 0
			case replay.TooLong, replay.Lost:
				sound = sound && o.Attempts >= 1
			default:
				sound = false
			}
			if !sound {
				t.Errorf("seed %d, request %d: %+v", seed, i, o)
			}
		}
		finished, generated := 0, 0
		for _, e := range totals.Engines {
			finished, generated, submitted = finished+e.Finished, generated+e.GeneratedTokens, submitted+e.Submitted
		}
		if finished != served || generated < tokens || len(c.Faults) == 0 && (generated != tokens || submitted != served) {
			t.Errorf("seed %d: served %d with %d tokens, engines finished %d of %d with %d", seed, served, tokens, finished, submitted, generated)
		}
	}
}

// anyReplay draws a fleet, its faults and a trace.
func anyReplay(rng *rand.Rand) (replay.Config, trace.Source) {
	models := []string{"m", "n"}[:1+rng.IntN(2)]
	c := replay.Config{
		Policy:   router.PolicyNames()[rng.IntN(len(router.PolicyNames()))],
		Gateways: 1 + rng.IntN(3), Network: time.Duration(rng.IntN(5)) * ms,
		Scrape: []time.Duration{-1, 300 * ms, 2 * time.Second}[rng.IntN(3)],
		Probe:  []time.Duration{-1, 200 * ms, 5 * time.Second}[rng.IntN(3)],
	}
	for i := range 1 + rng.IntN(6) {
		p := plain
		p.KVBlocks = 64 << rng.IntN(7)
		p.MaxSeqs = 1 << rng.IntN(7)
		p.Noise = rng.Float64() * 0.3
		p.NoPrefixCache = rng.IntN(4) == 0
		p.StartUp = time.Duration(rng.IntN(3)) * time.Second
		c.Engines = append(c.Engines, replay.Engine{Name: fmt.Sprint(i), Model: models[i%len(models)], Params: p, Seed: rng.Uint64()})
	}
	kinds := []engine.FaultKind{engine.Crash, engine.Crash, engine.Crash, engine.Restart, engine.Slow, engine.Errors, engine.Reject, engine.StallMetrics}
	for range rng.IntN(5) * rng.IntN(2) {
		c.Faults = append(c.Faults, replay.Fault{
			At: time.Duration(rng.IntN(20_000)) * ms, Engine: rng.IntN(len(c.Engines)),
			Fault: engine.Fault{Kind: kinds[rng.IntN(len(kinds))]}, For: time.Duration(rng.IntN(10_000)) * ms,
		})
	}
	w := trace.CustomerService()
	w.Rate, w.MaxContext = 1+20*rng.Float64(), 3000
	w.System.Max, w.Output.Max = 900, 200
	src := w.Source(rng.Uint64()).First(300).Each(func(r *trace.Request) {
		r.Model = models[r.PromptTokens%len(models)]
		switch r.PromptTokens % 20 {
		case 0:
			r.Model = "none"
		case 1:
			r.Stream = false
		case 2:
			r.OutputTokens = 0
		}
	})
	return c, src
}
