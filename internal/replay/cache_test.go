package replay

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// guesses compares how much of each prompt the gateway thought was in the chosen
// engine's cache with how much was.
type guesses struct {
	requests, off         int // off: by more than a tenth of the prompt
	wrong, cached, prompt int // tokens
}

// guess replays a trace of one model and compares. Requests go to the engine that
// has most of their prompt, or to the one with least to do.
func guess(t *testing.T, c Config, src trace.Source) (g guesses) {
	t.Helper()
	c.Policy = router.PrefixAffinity
	said := map[int]int{}
	w, err := newWorld(c.withDefaults(), func(o *Outcome) {
		if !o.OK() {
			return
		}
		wrong := max(said[o.Index]-o.Cached, o.Cached-said[o.Index])
		g.requests, g.wrong = g.requests+1, g.wrong+wrong
		g.cached, g.prompt = g.cached+o.Cached, g.prompt+o.Request.PromptTokens
		if 10*wrong > o.Request.PromptTokens {
			g.off++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for k, gate := range w.gates {
		policy, err := router.NewPolicy(c.Policy, rand.NewPCG(1, uint64(k)))
		if err != nil {
			t.Fatal(err)
		}
		pool := gate.routers["m"].Pool()
		gate.routers["m"] = router.New(pool, c.Policy, router.PolicyFunc(func(now time.Time, r *router.Request, on []backends.Candidate) int {
			i := policy.Pick(now, r, on)
			said[w.count-1] = on[i].Cached
			return i
		}))
	}
	if _, err := w.run(src.Each(func(r *trace.Request) { r.Model = "m" })); err != nil {
		t.Fatal(err)
	}
	return g
}

// check allows a share of requests to be off, in percent.
func (g guesses) check(t *testing.T, most float64) {
	t.Helper()
	share := 100 * float64(g.off) / float64(g.requests)
	t.Logf("off by more than a tenth: %.2f%%; by %d tokens in the mean, of %d, of which %d are cached",
		share, g.wrong/g.requests, g.prompt/g.requests, g.cached/g.requests)
	if share > most {
		t.Errorf("%.2f%% of the guesses are off by more than a tenth of the prompt, want %.2f%% at most", share, most)
	}
	if g.cached < g.prompt/20 {
		t.Errorf("%d of %d tokens were cached: nothing to guess", g.cached, g.prompt)
	}
}

// What the gateway thinks of an engine's cache is what the engine has, on
// recorded conversations, whose prefixes do not all fit, near capacity.
func TestGuessOfConversations(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("FIRSTTOKEN_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	const name = "mooncake_conversation_00-30min.jsonl"
	src, err := trace.Open(filepath.Join(dir, "traces", name), trace.Options{})
	if err != nil {
		t.Skipf("%s is not there; set FIRSTTOKEN_DATA to the folder of the data sets", name)
	}
	p, ok := engine.LookupProfile("h100-llama-3.1-70b-fp8-tp4")
	if !ok {
		t.Fatal("no such profile")
	}
	engines := make([]Engine, 8)
	for i := range engines {
		engines[i] = Engine{Model: "m", Params: p.Params, Seed: uint64(i)}
	}
	for gateways, most := range map[int]float64{1: 0.5, 2: 4} {
		guess(t, Config{Engines: engines, Gateways: gateways}, src.Rate(2.7).First(2000)).check(t, most)
	}
}

// The same with engines so small that a few prompts fill them, and whose
// answers take much of the room.
func TestGuessOnSmallEngines(t *testing.T) {
	t.Parallel()
	const times = 8 // blocks are to be small beside a prompt
	p := packed()
	p.KVBlocks, p.Speculative = times*p.KVBlocks, engine.Speculative{}
	p.MaxBatchedTokens, p.Step.Alpha = times*p.MaxBatchedTokens, p.Step.Alpha/times
	asks := crowd(1, 2000)
	for i := range asks {
		r := &asks[i]
		r.At *= 20 // busy, no more
		r.PromptTokens, r.OutputTokens = times*r.PromptTokens, times*r.OutputTokens
		for k := range r.Content {
			r.Content[k].Tokens *= times
		}
	}
	guess(t, Config{Engines: []Engine{{Model: "m", Params: p}, {Model: "m", Params: p, Seed: 1}}, Scrape: 100 * time.Millisecond},
		trace.Of(asks...)).check(t, 4)
}
