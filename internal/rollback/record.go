package rollback

import (
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// Verdict is what an evaluation came to.
type Verdict string

// The verdicts, the most decisive first.
const (
	RolledBack Verdict = "rolled_back" // the former model serves again
	Recommend  Verdict = "recommend"   // going back would help; people decide
	Keep       Verdict = "keep"        // what was before did no better
	Unknown    Verdict = "unknown"     // too little is known to tell
	NoChange   Verdict = "no_change"   // nothing was changed before the violation
)

// order ranks a record's findings: the most decisive speaks for all.
func order(v Verdict) int {
	for i, other := range []Verdict{RolledBack, Recommend, Unknown, Keep, NoChange} {
		if v == other {
			return i
		}
	}
	return len(v)
}

// Record is one evaluation: what was violated, what had been changed before, and
// what the numbers say of each change.
type Record struct {
	At        time.Time `json:"at"`
	Instance  string    `json:"instance"`
	Contract  string    `json:"contract"`
	Objective string    `json:"objective"` // missed most
	Share     float64   `json:"share"`     // of requests that met it, in the last window
	Requests  int       `json:"requests"`  // in that window
	Windows   int       `json:"windows"`   // violated in a row
	Since     time.Time `json:"since"`     // start of the first
	Weight    float64   `json:"weight"`    // of the instance, after the cut
	// Also counts violations that came at the same time and were not evaluated
	// apart.
	Also int `json:"also,omitempty"`

	From     time.Time `json:"from"` // changes were looked for from then on
	Findings []Finding `json:"findings"`
	Verdict  Verdict   `json:"verdict"`
	Why      string    `json:"why"`
}

// Finding is what the numbers say of one change.
type Finding struct {
	Change
	Models     *Models     `json:"models,omitempty"`
	Attainment *Attainment `json:"attainment,omitempty"`
	Verdict    Verdict     `json:"verdict"`
	Why        string      `json:"why"`
}

// Models is two models of the predictor on the same samples, all of them taken
// after the change.
type Models struct {
	Rows int `json:"rows"`
	// Better is by how much the former model's loss is lower, relative to that of
	// the present one; 0.05 is 5 %.
	Better  trees.Number `json:"better"`
	Regimes []Regime     `json:"regimes"` // with samples; the last is all of them
}

// Regime is both models in one regime of load.
type Regime struct {
	Regime   string `json:"regime"`
	Current  Score  `json:"current"`
	Previous Score  `json:"previous"`
}

// Score is how well a model predicted. Losses are of the logarithm of the time.
type Score struct {
	Rows       int          `json:"rows"`
	PinballP50 trees.Number `json:"pinball_p50"`
	PinballP95 trees.Number `json:"pinball_p95"`
	MAPE       trees.Number `json:"mape"`     // of P50, 0.12 is 12 %
	Coverage   trees.Number `json:"coverage"` // share of samples up to P95
}

// Attainment is the share of the contract's requests that met it, before and
// after a change, within the window that changes are looked for in.
type Attainment struct {
	Before         trees.Number `json:"before"`
	RequestsBefore int          `json:"requests_before"`
	After          trees.Number `json:"after"`
	RequestsAfter  int          `json:"requests_after"`
}

func newRecord(v *sla.Violation, from time.Time) Record {
	return Record{
		At: v.At, Instance: v.Instance, Contract: v.Contract, Objective: v.Objective.String(),
		Share: v.Share, Requests: v.Samples, Windows: v.Windows, Since: v.Since, Weight: v.Weight,
		From: from, Findings: []Finding{}, Verdict: NoChange, Why: "nothing was changed in that time",
	}
}

// conclude lets the most decisive finding speak for all.
func (r *Record) conclude() {
	for i := range r.Findings {
		if f := &r.Findings[i]; i == 0 || order(f.Verdict) < order(r.Verdict) {
			r.Verdict, r.Why = f.Verdict, string(f.Kind)+": "+f.Why
		}
	}
}
