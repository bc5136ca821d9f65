package replay

import (
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// Engine is one engine of the fleet.
type Engine struct {
	Name   string
	Model  string // of the requests it serves; all engines of a model form a pool
	Params engine.Params
	Seed   uint64 // of the noise
}

// Config is one replay. The zero value of a field means its default.
type Config struct {
	Engines  []Engine
	Policy   string        // of package router
	Gateways int           // replicas that don't see each other; requests are dealt in turn. 1
	Network  time.Duration // one way between gateway and engine. 200 µs; below 0: none
	Scrape   time.Duration // between scrapes, jittered by a fifth. 300 ms; below 0: none
	Probe    time.Duration // between health probes. 5 s; below 0: none
	Attempts int           // tries of a request at most, the first included; no budget bounds them. 3
	Health   backends.HealthRules
	Seed     uint64
	Faults   []Fault
	Tokens   bool     // gateways see every token of a stream; else its first and its end only
	Predict  *Predict // what gateways predict with; nil: nothing. It makes Tokens true
	// Admission is how gateways let requests in, where they predict; nil: at once.
	Admission *router.Admission
	// Contracts are what was promised to whom. The one that holds for a request's
	// tenant and model is in the place of the objectives that its trace states. May be nil.
	Contracts *sla.Set
	// WarmUp is what cold engines are sent before they get requests; nil: nothing,
	// and they get requests at once.
	WarmUp *WarmUp
	// Inspect looks at decisions of gateways that predict; nil: at none. Slow.
	Inspect *Inspect
	// Stop ends the replay when it returns true; asked every few thousand events.
	Stop func() bool
}

func (c Config) withDefaults() Config {
	if c.Gateways == 0 {
		c.Gateways = 1
	}
	if c.Network == 0 {
		c.Network = 200 * time.Microsecond
	}
	c.Network = max(c.Network, 0)
	if c.Scrape == 0 {
		c.Scrape = 300 * time.Millisecond
	}
	if c.Probe == 0 {
		c.Probe = 5 * time.Second
	}
	if c.Attempts == 0 {
		c.Attempts = 3
	}
	if c.Predict == nil && router.Foresees(c.Policy) {
		c.Predict = &Predict{}
	}
	c.Tokens = c.Tokens || c.Predict != nil
	c.Health.BreakerFailures = 0 // the breaker's library reads the wall clock
	return c
}

// Predict is how gateways predict.
type Predict struct {
	Rules  predictor.Rules
	Model  predictor.Model                   // may be nil
	Prior  func(engine int) *predictor.Speed // what they know of an engine's speed; nil, or nil of an engine: nothing
	Oracle bool                              // Outcome.Oracle is to be found out; slow
	Watch  predictor.Watch                   // is told what the predictors do; may be nil
}

// Outcome is what became of one request.
type Outcome struct {
	Index    int // in the trace
	Request  trace.Request
	Engine   int               // that served it; -1: none
	Attempts int               // made
	Cached   int               // prompt tokens found in the engine's prefix cache
	TTFT     time.Duration     // accepted to first token; 0 if there was none, or if the answer was no stream
	E2E      time.Duration     // accepted to the end
	Reason   string            // OK, or why not
	Held     time.Duration     // it waited at the gateway to be let in, all attempts together
	Contract *sla.Contract     // that holds for it; nil: none
	Oracle   time.Duration     // TTFT of the last attempt as an oracle foresaw it when it was sent; 0: not asked for
	Foreseen *predictor.Sample // what the gateway foresaw of the last attempt; nil: nothing
	Busy     int               // requests in flight on the engine when this one was sent, itself left out; -1: it was sent to none
}

// The reasons for which a request ends.
const (
	OK           = report.OK
	Refused      = report.Refused      // no engine of the model was in rotation, or those tried took no more
	TooLong      = report.TooLong      // the engine's context or cache is too small for it
	UnknownModel = report.UnknownModel // no engine serves its model
	Shed         = report.Shed         // the gateway let it not in; "_" and why follow
	Lost         = report.Lost         // by engines that were down or broke down
	Unfinished   = report.Unfinished   // under way when the replay was stopped
)

// OK reports whether the request was served.
func (o *Outcome) OK() bool { return o.Reason == OK }

// TPOT is the time per output token after the first; 0 with fewer than two, or
// without a first.
func (o *Outcome) TPOT() time.Duration {
	if !o.OK() || o.TTFT == 0 || o.Request.OutputTokens < 2 {
		return 0
	}
	return (o.E2E - o.TTFT) / time.Duration(o.Request.OutputTokens-1)
}

// Totals are what the replay as a whole came to.
type Totals struct {
	End      time.Duration  // of the last event
	Engines  []engine.Stats // as of the end; of a restarted engine, all its lives together
	Requests int
	Stopped  bool // Stop ended it
}

// origin is the instant of a trace's start, as the gateway's code sees it.
var origin = time.Unix(1_700_000_000, 0)

// Run replays the source, whose requests are in order of arrival, and gives each request's outcome to sink, in the
// order in which they ended.
func Run(c Config, src trace.Source, sink func(*Outcome)) (Totals, error) {
	c = c.withDefaults()
	w, err := newWorld(c, sink)
	if err != nil {
		return Totals{}, err
	}
	return w.run(src)
}
