package replay

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// packed is an engine that runs out of places and blocks, guesses tokens, and
// is cold at first.
func packed() engine.Params {
	return engine.Params{
		Step:    engine.StepModel{T0: 10 * time.Millisecond, Alpha: 50, Beta: 300, Gamma: 2, H: 3 * time.Millisecond},
		MaxSeqs: 6, MaxBatchedTokens: 256, KVBlocks: 80,
		Cold:        engine.Cold{Tables: 40 * time.Millisecond, Cache: 3 * time.Millisecond, Requests: 3},
		Speculative: engine.Speculative{DraftTokens: 3, Acceptance: 0.6},
	}
}

// crowd is chats that share their starts and come in bursts.
func crowd(seed uint64, n int) []trace.Request {
	rng := rand.New(rand.NewPCG(seed, 7))
	asks := make([]trace.Request, n)
	at := time.Duration(0)
	for i := range asks {
		if rng.IntN(3) == 0 {
			at += time.Duration(rng.IntN(400)) * time.Millisecond
		}
		at += time.Duration(rng.IntN(2)) * 100 * time.Microsecond // less than the network
		shared, own := 64+rng.IntN(200), 1+rng.IntN(150)
		asks[i] = stream(at, shared+own, 1+rng.IntN(60))
		asks[i].Content = []trace.Segment{{ID: uint64(rng.IntN(4)), Tokens: shared}, {ID: uint64(1000 + i), Tokens: own}}
	}
	return asks
}

// Without noise and without later arrivals the oracle is right to the
// nanosecond, whichever engine is chosen.
func TestOracleIsRight(t *testing.T) {
	t.Parallel()
	p := packed()
	var all engine.Stats
	wired := 0
	for seed := range uint64(3) {
		asks := crowd(seed, 60)
		for last := range asks {
			var said time.Duration
			w, err := newWorld(Config{Engines: []Engine{{Params: p}, {Params: p, Seed: 1}}, Policy: router.RoundRobin}.withDefaults(), func(o *Outcome) {
				if o.Index == last && (!o.OK() || o.TTFT != said) {
					t.Errorf("seed %d: the oracle says %v of request %d, it took %v (%s)", seed, said, last, o.TTFT, o.Reason)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			o := oracle{w: w}
			gate := w.gates[0]
			gate.routers[""] = router.New(gate.routers[""].Pool(), "oracle", router.PolicyFunc(
				func(_ time.Time, _ *router.Request, c []backends.Candidate) int {
					i := w.count % len(c)
					slot := latest(w)
					n := w.engines[gate.engine[c[i].Backend]]
					said = o.firstToken(n, w.now, w.flights[slot].request(slot))
					wired += len(o.wire)
					return i
				}))
			totals, err := w.run(trace.Of(asks[:last+1]...))
			if err != nil {
				t.Fatal(err)
			}
			all = add(all, totals.Engines[0])
		}
	}
	if all.Preemptions == 0 || all.PrefixHits == 0 || all.AcceptedTokens == 0 || wired == 0 {
		t.Errorf("the crowd does not reach what it is for: %+v, %d on the wire", all, wired)
	}
}

// latest is the slot of the flight that came last.
func latest(w *world) int {
	for slot := range w.flights {
		if f := &w.flights[slot]; f.live && f.outcome.Index == w.count-1 {
			return slot
		}
	}
	return -1
}

// To ask changes nothing, and what can't be has no time.
func TestOracleLeavesEnginesAlone(t *testing.T) {
	t.Parallel()
	p := packed()
	p.Noise = 0.1
	asks := crowd(1, 80)
	run := func(ask bool) []Outcome {
		var out []Outcome
		w, err := newWorld(Config{Engines: []Engine{{Params: p}, {Params: p, Seed: 1}}, Policy: router.RoundRobin}.withDefaults(),
			func(o *Outcome) { out = append(out, *o) })
		if err != nil {
			t.Fatal(err)
		}
		o := oracle{w: w}
		watched(t, w, asks, func(e event) {
			if !ask {
				return
			}
			for _, n := range w.engines {
				if d := o.firstToken(n, w.now, engine.Request{Ref: -1, PromptTokens: 100, OutputTokens: 1}); d <= 2*w.Network || d == never {
					t.Fatalf("%v: first token after %v", e.at, d)
				}
				if d := o.firstToken(n, w.now, engine.Request{Ref: -1, PromptTokens: 81 * engine.BlockTokens}); d != never {
					t.Fatalf("%v: a prompt that can't run takes %v", e.at, d)
				}
			}
		})
		return out
	}
	plain, asked := run(false), run(true)
	for i := range plain {
		if plain[i].TTFT != asked[i].TTFT || plain[i].E2E != asked[i].E2E || plain[i].Index != asked[i].Index {
			t.Fatalf("end %d: %+v, with questions %+v", i, plain[i], asked[i])
		}
	}
	w, _ := testWorld(t, Config{Policy: router.RoundRobin}, stream(0, 1, 1))
	w.crash(0)
	if d := (&oracle{w: w}).firstToken(w.engines[0], w.now, engine.Request{PromptTokens: 1}); d != never {
		t.Errorf("an engine that is down answers after %v", d)
	}
}
