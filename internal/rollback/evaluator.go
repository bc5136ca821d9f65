package rollback

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// Store takes a predictor's model back, as *models.Store does.
type Store interface {
	// Rollback makes the model active again that was so before, and returns its ID.
	Rollback() (id string, err error)
}

// Options are what New takes.
type Options struct {
	Rules   Rules
	History *History
	Watch   *Watch // its samples
	// Load opens a model of the predictor by its ID.
	Load  func(id string) (predictor.Model, error)
	Store Store       // nil: models are recommended only
	Log   *zap.Logger // nil: nothing is logged
	// Applied is called after a rollback, for the model to be put into force at
	// once; may be nil.
	Applied func(id string)
}

const (
	maxRecords = 100
	maxOusted  = 100
)

// Evaluator evaluates violations, one at a time. It is safe for concurrent use.
type Evaluator struct {
	Options
	outcomes ring[Outcome]
	due      chan sla.Violation

	mu      sync.Mutex
	last    time.Time // violation that was taken on last; zero: none
	busy    bool      // it is due, or being evaluated
	also    int       // violations beside the one that is due
	rolled  time.Time // last rollback; zero: none
	ousted  []string  // models that were rolled back from: there is no way back to them by itself
	records []Record
}

// New returns an evaluator; Run makes it work.
func New(o Options) *Evaluator {
	o.Rules = o.Rules.withDefaults()
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return &Evaluator{Options: o, outcomes: ring[Outcome]{size: maxOutcomes}, due: make(chan sla.Violation, 1)}
}

// Served takes in how a request kept its contract. It is quick.
func (e *Evaluator) Served(o Outcome) { e.outcomes.add(&o) }

// Violated takes on a violation and returns at once. Of those that come together
// one is evaluated: a change concerns them all.
func (e *Evaluator) Violated(v sla.Violation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy || !e.last.IsZero() && v.At.Sub(e.last) < e.Rules.Quiet {
		e.merge()
		return
	}
	e.last, e.busy = v.At, true
	e.due <- v // nobody else is waiting: there is room
}

// merge counts a violation to the evaluation that is due, or else to the last.
// Called with mu held.
func (e *Evaluator) merge() {
	if n := len(e.records); !e.busy && n > 0 {
		e.records[n-1].Also++
		return
	}
	e.also++
}

// Run evaluates what is taken on until ctx ends.
func (e *Evaluator) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-e.due:
			e.evaluate(v)
		}
	}
}

// evaluate goes through one violation and keeps the record.
func (e *Evaluator) evaluate(v sla.Violation) {
	r := Evaluate(v, Evidence{
		Changes: e.History.Between(v.At.Add(-e.Rules.Window), v.At), Samples: e.Watch.samples.list(), Outcomes: e.outcomes.list(), Load: e.Load,
	}, e.Rules)
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Kind == Model && f.Verdict == Recommend {
			e.rollBack(v.At, f)
		}
	}
	r.conclude()
	e.mu.Lock()
	r.Also, e.also, e.busy = e.also, 0, false
	if len(e.records) == maxRecords {
		e.records = slices.Delete(e.records, 0, 1)
	}
	e.records = append(e.records, r)
	e.mu.Unlock()
	e.Log.Warn("rollback evaluated", zap.String("verdict", string(r.Verdict)), zap.String("why", r.Why),
		zap.String("contract", r.Contract), zap.String("backend", r.Instance), zap.Any("record", r))
}

// rollBack takes the present model back if that may be done without asking.
// Only evaluate calls it, one at a time.
func (e *Evaluator) rollBack(now time.Time, f *Finding) {
	switch {
	case e.Store == nil:
		return
	case !e.rolled.IsZero() && now.Sub(e.rolled) < e.Rules.Pause:
		f.Why += "; the last rollback was less than " + e.Rules.Pause.String() + " ago"
		return
	case slices.Contains(e.ousted, f.From):
		f.Why += "; but that model was rolled back itself"
		return
	}
	id, err := e.Store.Rollback()
	if err != nil {
		f.Why += "; the rollback failed: " + err.Error()
		return
	}
	e.rolled = now
	if len(e.ousted) == maxOusted {
		e.ousted = slices.Delete(e.ousted, 0, 1)
	}
	e.ousted = append(e.ousted, f.To)
	f.Verdict = RolledBack
	f.Why += "; " + id + " serves again"
	e.History.Add(Change{At: now, Kind: Model, From: f.To, To: id, Rollback: true})
	if e.Applied != nil {
		e.Applied(id)
	}
}

// Records gives the last evaluations, the newest first.
func (e *Evaluator) Records() []Record {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := slices.Clone(e.records)
	slices.Reverse(out)
	return out
}
