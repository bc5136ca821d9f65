package evaluate

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// Limit is the error of P50 above which predictions are taken to be wrong.
const Limit = 0.12

// slide is how many requests of the changed instance an error is over.
const slide = 50

// Change is what came of one instance that became slower.
type Change struct {
	Trace    string       `json:"trace"`
	Fleet    string       `json:"fleet"`
	Engine   string       `json:"engine"`
	At       float64      `json:"at_s"`
	Factor   float64      `json:"factor"`
	Before   trees.Number `json:"error_before"`  // over the last 50 of the instance
	Highest  trees.Number `json:"error_highest"` // over any 50 since
	Over     trees.Number `json:"over_limit_s"`  // from the change until the error passed 12 %; unknown: it never did
	Back     trees.Number `json:"back_in_s"`     // from the change until it was under again; unknown: it never was
	Later    trees.Number `json:"later_over"`    // share of the requests after that at which it was over once more
	Switches []Switch     `json:"switches,omitempty"`
}

// Slow replays the fleet and slows one engine from a moment on.
func (f *Fleet) Slow(multiplier float64, index int, at time.Duration, factor float64) (Change, error) {
	c := f.Config
	c.Faults = append(c.Faults[:len(c.Faults):len(c.Faults)],
		replay.Fault{At: at, Engine: index, Fault: engine.Fault{Kind: engine.Slow, Factor: factor}})
	out := Change{Trace: f.Trace, Fleet: f.Name, Engine: c.Engines[index].Name, At: at.Seconds(), Factor: factor}
	var run Run
	watch := &switches{}
	c.Predict = &replay.Predict{Model: f.Model, Rules: f.Rules, Watch: watch}
	if _, err := replay.Run(c, f.Source.Rate(multiplier), func(o *replay.Outcome) { run.take(&c, o) }); err != nil {
		return out, err
	}
	inOrder(run.Rows)
	if len(run.Rows) == 0 {
		return out, fmt.Errorf("%s on %s: no request was served", f.Trace, f.Name)
	}
	out.Switches = watch.list
	out.read(sliding(run.Rows, out.Engine, run.Rows[0].At.Add(at)))
	return out, nil
}

// moment is the mean error over the last requests of an instance.
type moment struct{ at, error float64 } // seconds since the change; share

// sliding is the served error of an engine over its last 50 requests, each
// counted when its first token comes.
func sliding(rows []Row, engine string, changed time.Time) (curve []moment) {
	var last []float64
	for _, place := range byKnowledge(rows) {
		r := &rows[place]
		if r.Backend != engine {
			continue
		}
		p50, truth := r.Said[r.Served].P50.Seconds(), r.TTFT.Seconds()
		last = lastOf(slide, last, math.Abs(p50-truth)/truth)
		curve = append(curve, moment{r.known().Sub(changed).Seconds(), mean(last)})
	}
	return curve
}

// read takes the figures from the curve.
func (c *Change) read(curve []moment) {
	c.Before, c.Over = trees.Number(math.NaN()), trees.Number(math.NaN())
	for len(curve) > 0 && curve[0].at < 0 {
		c.Before = trees.Number(curve[0].error)
		curve = curve[1:]
	}
	for _, m := range curve {
		c.Highest = max(c.Highest, trees.Number(m.error))
	}
	over := slices.IndexFunc(curve, func(m moment) bool { return m.error > Limit })
	if over < 0 {
		return
	}
	c.Over, c.Back = trees.Number(curve[over].at), trees.Number(math.NaN())
	back := slices.IndexFunc(curve[over:], func(m moment) bool { return m.error <= Limit })
	if back < 0 {
		return
	}
	c.Back = trees.Number(curve[over+back].at)
	later, high := curve[over+back:], 0
	for _, m := range later {
		if m.error > Limit {
			high++
		}
	}
	c.Later = trees.Number(float64(high) / float64(len(later)))
}

// Steady is what came of an unchanged load.
type Steady struct {
	Trace    string   `json:"trace"`
	Fleet    string   `json:"fleet"`
	Seconds  float64  `json:"virtual_seconds"`
	Requests int      `json:"requests"`
	Switches []Switch `json:"switches"`
}

// Steady replays the fleet's requests again and again, at a constant mean rate
// a second (a Poisson process), for so long.
func (f *Fleet) Steady(rate float64, long time.Duration) (Steady, error) {
	watch := &switches{}
	c := f.Config
	c.Predict = &replay.Predict{Model: f.Model, Rules: f.Rules, Watch: watch}
	src := again(f.Source).Retimed(trace.Poisson(rate), 1).Window(0, long)
	totals, err := replay.Run(c, src, func(*replay.Outcome) {})
	return Steady{Trace: f.Trace, Fleet: f.Name, Seconds: totals.End.Seconds(), Requests: totals.Requests, Switches: watch.list}, err
}

// again repeats a source without an end. Whoever takes it sets the times.
func again(src trace.Source) trace.Source {
	return func(yield func(trace.Request, error) bool) {
		for {
			any := false
			for r, err := range src {
				any = true
				if !yield(r, err) || err != nil {
					return
				}
			}
			if !any {
				return
			}
		}
	}
}

// Pace is how many requests a second the fleet's trace has as recorded, and how
// long it is.
func (f *Fleet) Pace() (rate float64, long time.Duration, err error) {
	n := 0
	for r, err := range f.Source {
		if err != nil {
			return 0, 0, err
		}
		n, long = n+1, r.At
	}
	if long <= 0 {
		return 0, 0, fmt.Errorf("%s: all requests arrive at once", f.Trace)
	}
	return float64(n) / long.Seconds(), long, nil
}
