package evaluate

import (
	"fmt"
	"time"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// Warmup is how many requests of a simulated run, the first ones, are not
// judged.
const Warmup = 500

// Fleet is simulated engines and the requests they get, at the rate recorded.
type Fleet struct {
	Trace, Name string
	Config      replay.Config // but for Predict and Inspect
	Source      trace.Source
	Model       predictor.Model // may be nil
	Rules       predictor.Rules
}

// Run is what came of one fleet under one load.
type Run struct {
	Trace      string   `json:"trace"`
	Fleet      string   `json:"fleet"`
	Load       float64  `json:"load"` // of capacity
	Multiplier float64  `json:"rate_multiplier"`
	Seconds    float64  `json:"virtual_seconds"`
	Requests   int      `json:"requests"`
	Scores     []Score  `json:"scores"`
	Rank       Rank     `json:"rank"`
	Switches   []Switch `json:"switches,omitempty"`

	Rows []Row `json:"-"`
}

// Name tells the run from others.
func (r *Run) Name() string {
	if r.Fleet == "" {
		return r.Trace
	}
	return fmt.Sprintf("%s on %s at %g", r.Trace, r.Fleet, r.Load)
}

// Thin drops rows that no plot would show.
func (r *Run) Thin() {
	var kept []Row
	for i := 0; i < len(r.Rows); i += len(r.Rows)/scatterPoints + 1 {
		kept = append(kept, r.Rows[i])
	}
	r.Rows = kept
}

// Switch is a change of the estimator whose word counts.
type Switch struct {
	At    float64 `json:"at_s"`
	From  string  `json:"from"`
	To    string  `json:"to"`
	Why   string  `json:"why"`
	Error float64 `json:"mape"` // of the one that was left
}

// Run replays the fleet at a multiple of the recorded rate, the oracle beside
// it, and looks at every 20th decision.
func (f *Fleet) Run(load, multiplier float64) (Run, error) {
	r := Run{Trace: f.Trace, Fleet: f.Name, Load: load, Multiplier: multiplier}
	ranks := ranking{}
	c := f.Config
	c.Inspect = &replay.Inspect{Every: 20, Seen: func(index int, all []replay.Prospect) {
		if index >= Warmup {
			ranks.add(all)
		}
	}}
	watch := &switches{}
	c.Predict = &replay.Predict{Model: f.Model, Rules: f.Rules, Oracle: true, Watch: watch}
	totals, err := replay.Run(c, f.Source.Rate(multiplier), func(o *replay.Outcome) { r.take(&c, o) })
	if err != nil {
		return r, err
	}
	r.Seconds, r.Requests = totals.End.Seconds(), totals.Requests
	r.Scores, r.Rank, r.Switches = Judge(r.Rows, Warmup), ranks.rank(), watch.list
	return r, nil
}

// take keeps what was foreseen of a request.
func (r *Run) take(c *replay.Config, o *replay.Outcome) {
	if o.Foreseen == nil {
		return
	}
	row := Row{Sample: *o.Foreseen, Oracle: o.Oracle, Cached: o.Cached}
	if o.Engine >= 0 {
		row.Backend = c.Engines[o.Engine].Name
	}
	r.Rows = append(r.Rows, row)
}

// switches keeps the changes of estimators. A replay runs on one goroutine.
type switches struct {
	began time.Time // of the first sample
	list  []Switch
}

func (w *switches) Observed(s *predictor.Sample) {
	if w.began.IsZero() || s.At.Before(w.began) {
		w.began = s.At
	}
}

func (w *switches) Switched(s predictor.Switch) {
	w.list = append(w.list, Switch{
		At: s.At.Sub(w.began).Seconds(), From: s.From.String(), To: s.To.String(), Why: s.Why, Error: s.Standing.Scores[s.From].MAPE,
	})
}

func (w *switches) Drifted(predictor.Alarm) {}
