package replay_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// chilled is plain where the first request of each length costs 400 ms more, and
// the next two 80 ms.
func chilled() engine.Params {
	p := plain
	p.Cold = engine.Cold{Tables: 320 * ms, Cache: 80 * ms, Requests: 3}
	return p
}

// varied are streamed requests of 65 to 1025 tokens, so many a second.
func varied(n int, rate float64, seed uint64) []trace.Request {
	rng := rand.New(rand.NewPCG(seed, 1))
	out, at := make([]trace.Request, n), time.Duration(0)
	for i := range out {
		at += time.Duration(rng.ExpFloat64() / rate * float64(time.Second))
		out[i] = ask(at, 1+64<<rng.IntN(5), 20)
	}
	return out
}

// p99 of the TTFT of requests sent in that time.
func p99(t *testing.T, all []replay.Outcome, from, to time.Duration) time.Duration {
	t.Helper()
	var ttft []time.Duration
	for _, o := range all {
		if !o.OK() && o.Attempts == 1 {
			t.Fatalf("a request of %v: %s", o.Request.At, o.Reason)
		}
		if o.Request.At >= from && o.Request.At < to {
			ttft = append(ttft, o.TTFT)
		}
	}
	slices.Sort(ttft)
	return ttft[int(0.99*float64(len(ttft)-1))]
}

// A restarted engine gets its requests once it is warm: that is what they are
// spared. Without the gate they pay for it.
func TestWarmUpSparesRequests(t *testing.T) {
	t.Parallel()
	const rate, restart = 10, 60 * time.Second
	for _, policy := range []string{"round-robin", "least-inflight", "p2c"} {
		var p [2]time.Duration
		for k, warm := range []*replay.WarmUp{nil, replay.DefaultWarmUp()} {
			got, totals := run(t, replay.Config{
				Engines: fleet(chilled(), chilled(), chilled(), chilled()), Policy: policy, WarmUp: warm,
				Faults: []replay.Fault{{At: restart, Engine: 1, Fault: engine.Fault{Kind: engine.Restart}}},
			}, trace.Of(varied(1200, rate, 1)...))
			p[k] = p99(t, got, restart, restart+30*time.Second)
			after := 0
			for _, o := range got {
				if o.Engine == 1 && o.Request.At > restart+10*time.Second {
					after++
				}
			}
			if after < 80 {
				t.Errorf("%s: engine b serves %d requests after its restart, want its quarter of 500", policy, after)
			}
			if warm != nil && totals.Engines[1].ColdRequests < 14 {
				t.Errorf("%s: %d cold requests in engine b's last life, want 14 prompts and more", policy, totals.Engines[1].ColdRequests)
			}
		}
		if p[1] > p[0]/2 || p[1] > 200*ms {
			t.Errorf("%s: P99 of the half minute after a restart is %v with the gate and %v without, want less than half", policy, p[1], p[0])
		}
	}
}

// While an engine is not ready the others carry the load, and nobody does when
// it is alone.
func TestGate(t *testing.T) {
	t.Parallel()
	const restart = 30 * time.Second
	warm := &replay.WarmUp{Lengths: []int{64, 128, 256, 512, 1024, 2048, 100_000}} // the last is too long for it
	for engines, wantServed := range map[int]bool{1: true, 2: false} {
		p := chilled()
		p.Cold.Tables = 2 * time.Second
		got, totals := run(t, replay.Config{
			Engines: fleet(p, p)[:engines], WarmUp: warm, Scrape: 100 * ms,
			Faults: []replay.Fault{{At: restart, Engine: 0, Fault: engine.Fault{Kind: engine.Restart}}},
		}, trace.Of(many(700, 100*ms, 100, 1)...))
		served := false // in the warm-up of 6 prompts of 2 s each
		for _, o := range got {
			if at := o.Request.At; at > restart+200*ms && at < restart+10*time.Second {
				served = served || o.Engine == 0
			}
		}
		if served != wantServed {
			t.Errorf("%d engines: one serves requests while it is warmed: %t", engines, served)
		}
		if o := got[699]; engines == 1 && o.Engine != 0 {
			t.Errorf("the last request: %s", o.Reason)
		}
		if sent := totals.Engines[0].Submitted; sent < 12 {
			t.Errorf("%d engines: %d requests, warm-up included", engines, sent)
		}
	}
}

// An engine that crashes while it is warmed is warmed again when it is back, by
// each gateway.
func TestWarmUpIsInterrupted(t *testing.T) {
	t.Parallel()
	p := chilled()
	p.StartUp = time.Second
	c := replay.Config{
		Engines: fleet(p, p), WarmUp: replay.DefaultWarmUp(), Gateways: 2,
		Faults: []replay.Fault{
			{At: 20 * time.Second, Engine: 0, Fault: engine.Fault{Kind: engine.Restart}},
			{At: 22 * time.Second, Engine: 0, Fault: engine.Fault{Kind: engine.Crash}, For: 30 * time.Second},
		},
	}
	got, _ := run(t, c, trace.Of(many(1200, 100*ms, 100, 2)...))
	last := 0
	for _, o := range got {
		if o.Engine == 0 && o.Request.At > 100*time.Second {
			last++
		}
	}
	if last < 80 {
		t.Errorf("engine a serves %d of the last 200 requests, want half", last)
	}
	if slow := p99(t, got, 70*time.Second, 120*time.Second); slow > 100*ms {
		t.Errorf("P99 is %v once the engine is back", slow)
	}
}
