package replay

import (
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// Inspect looks at decisions: what the gateway foresees of a request on every
// engine it may be sent to, beside the truth.
type Inspect struct {
	Every int // looks at the first of so many requests
	Seen  func(index int, prospects []Prospect)
}

// Prospect is one engine's part of a decision.
type Prospect struct {
	Engine   int
	Foreseen predictor.Forecast
	Oracle   time.Duration // to the first token; an hour and more: the engine cannot serve it
}

// inspect looks at the decision that a request which has just arrived is about
// to lead to. The look itself claims nothing.
func (w *world) inspect(slot int) {
	f := &w.flights[slot]
	foresight, ok := f.gate.foresights[f.ask.Model]
	if w.Inspect == nil || !ok || f.outcome.Index%max(w.Inspect.Every, 1) != 0 {
		return
	}
	var all []Prospect
	work := backends.Work{PromptTokens: f.ask.PromptTokens, Blocks: f.ask.Blocks}
	claim, err := f.gate.routers[f.ask.Model].Pool().Claim(w.clock(), work, nil, func(c []backends.Candidate) int {
		for k := range c {
			all = append(all, w.prospect(slot, foresight, &c[k]))
		}
		return -1
	})
	if err == nil { // a backend in probation takes what comes
		claim.End(w.clock(), backends.Outcome{Class: backends.Dropped})
	}
	if len(all) > 0 {
		w.Inspect.Seen(f.outcome.Index, all)
	}
}

func (w *world) prospect(slot int, on router.Foresight, c *backends.Candidate) Prospect {
	f := &w.flights[slot]
	i, s := on.Instances[c.Index], c.Signals
	if !s.At.IsZero() {
		i.Scraped(&predictor.Scrape{
			Began: s.Began, At: s.At, Running: s.Running, Waiting: s.Waiting, KVUse: s.KVUse, Hit: s.PrefixHitRatio,
			CPU: s.CPU, CacheTokens: s.CacheTokens, Started: s.StartTime, OwnInFlight: s.OwnInFlight,
		})
	}
	ask := predictor.Work{
		Prompt: f.ask.PromptTokens, Uncached: max(f.ask.PromptTokens-c.Cached, 0), Max: f.ask.MaxTokens, Turn: f.ask.Turn, Stream: f.ask.Stream,
	}
	engine := f.gate.engine[c.Backend]
	return Prospect{
		Engine: engine, Foreseen: on.Pool.Predict(w.clock(), i, ask),
		Oracle: w.oracle.firstToken(w.engines[engine], w.now, f.request(slot)),
	}
}
