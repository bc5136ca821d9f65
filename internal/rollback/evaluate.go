package rollback

import (
	"fmt"
	"math"
	"time"

	"github.com/firsttoken/firsttoken/internal/samples"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// Rules are when a change counts as a cause. Zero fields mean the default named
// beside them.
type Rules struct {
	Window    time.Duration // before a violation in which changes are looked for; 30 min
	MinRows   int           // samples that two models are compared on; 200
	Margin    float64       // by how much the former model's loss must be lower; 0.05
	MinServed int           // requests before and after another change; 50
	Pause     time.Duration // between two rollbacks; 10 min
	Quiet     time.Duration // between two evaluations; 30 s
}

func (r Rules) withDefaults() Rules {
	orElse(&r.Window, 30*time.Minute)
	orElse(&r.MinRows, 200)
	orElse(&r.Margin, 0.05)
	orElse(&r.MinServed, 50)
	orElse(&r.Pause, 10*time.Minute)
	orElse(&r.Quiet, 30*time.Second)
	return r
}

func orElse[T comparable](p *T, def T) {
	var zero T
	if *p == zero {
		*p = def
	}
}

// Evidence is what an evaluation is made from.
type Evidence struct {
	Changes  []Change           // the newest first
	Samples  []predictor.Sample // lower bounds are passed over
	Outcomes []Outcome
	// Load opens a model of the predictor by its ID.
	Load func(id string) (predictor.Model, error)
}

// Evaluate says of each change before a violation whether going back would help.
// It changes nothing: a model that is to be rolled back is recommended.
func Evaluate(v sla.Violation, e Evidence, rules Rules) Record {
	rules = rules.withDefaults()
	r := newRecord(&v, v.At.Add(-rules.Window))
	newest := true // of the model's changes
	for _, c := range e.Changes {
		f := Finding{Change: c}
		switch {
		case c.Kind != Model:
			f.compareAttainment(&v, &e, &rules)
		case newest:
			newest = false
			f.compareModels(&e, &rules)
		default:
			f.Verdict, f.Why = Keep, "another model came after it"
		}
		r.Findings = append(r.Findings, f)
	}
	r.conclude()
	return r
}

// compareModels lets the present model and the former one predict the samples
// since the change.
func (f *Finding) compareModels(e *Evidence, rules *Rules) {
	f.Verdict = Unknown
	switch {
	case f.Rollback:
		f.Verdict, f.Why = Keep, "the change was a rollback itself"
		return
	case f.From == "" || f.To == "":
		f.Why = "there was no model before, or there is none now"
		return
	}
	current, err := e.Load(f.To)
	if err != nil {
		f.Why = "the present model can't be read: " + err.Error()
		return
	}
	previous, err := e.Load(f.From)
	if err != nil {
		f.Why = "the former model can't be read: " + err.Error()
		return
	}
	known := func(yield func(predictor.Sample, error) bool) {
		for i := range e.Samples {
			if !e.Samples[i].Censored && !yield(e.Samples[i], nil) {
				return
			}
		}
	}
	v, err := samples.Challenge(known, f.At, samples.Trees(current), samples.Trees(previous))
	if err != nil {
		f.Why = err.Error()
		return
	}
	f.Models = modelsOf(v.Contests)
	f.judgeModels(rules)
}

// modelsOf leaves out the regimes without samples.
func modelsOf(contests []samples.Contest) *Models {
	m := &Models{}
	for i, c := range contests {
		all := i == len(contests)-1
		if c.Champion.Rows == 0 && !all {
			continue
		}
		name := c.Regime.String()
		if all {
			name = "all"
			m.Rows = c.Champion.Rows
			m.Better = trees.Number(1 - c.Challenger.Loss/c.Champion.Loss)
		}
		m.Regimes = append(m.Regimes, Regime{name, scoreOf(&c.Champion), scoreOf(&c.Challenger)})
	}
	return m
}

func scoreOf(r *samples.Result) Score {
	return Score{
		Rows: r.Rows, PinballP50: trees.Number(r.Loss) - r.Pinball, PinballP95: r.Pinball, MAPE: r.MAPE, Coverage: r.Coverage,
	}
}

func (f *Finding) judgeModels(rules *Rules) {
	m := f.Models
	percent := 100 * float64(m.Better)
	switch {
	case m.Rows < rules.MinRows:
		f.Why = fmt.Sprintf("only %d samples since the change, %d are needed", m.Rows, rules.MinRows)
	case !(float64(m.Better) >= rules.Margin):
		f.Verdict, f.Why = Keep, fmt.Sprintf("on the same %d samples the former model's loss is not lower by %.0f %% but by %.1f %%", m.Rows, 100*rules.Margin, percent)
	default:
		f.Verdict, f.Why = Recommend, fmt.Sprintf("on the same %d samples the former model's loss is lower by %.1f %%", m.Rows, percent)
	}
}

// compareAttainment counts the requests that met the contract, before and after:
// those of the instance where the change was one of it, or else of all.
func (f *Finding) compareAttainment(v *sla.Violation, e *Evidence, rules *Rules) {
	var met, all [2]int
	for i := range e.Outcomes {
		o := &e.Outcomes[i]
		if o.Contract != v.Contract || f.Kind == Instance && o.Instance != f.Subject || o.At.After(v.At) || !o.At.After(f.At.Add(-rules.Window)) {
			continue
		}
		k := 0
		if !o.At.Before(f.At) {
			k = 1
		}
		all[k]++
		if o.Met {
			met[k]++
		}
	}
	before, after := float64(met[0])/float64(all[0]), float64(met[1])/float64(all[1])
	f.Attainment = &Attainment{trees.Number(before), all[0], trees.Number(after), all[1]}
	fewest := min(all[0], all[1])
	switch {
	case fewest < rules.MinServed:
		f.Verdict, f.Why = Unknown, fmt.Sprintf("%d requests before and %d after it, %d are needed of both", all[0], all[1], rules.MinServed)
	case worse(before, all[0], after, all[1]):
		f.Verdict = Recommend
		f.Why = fmt.Sprintf("%.1f %% of %d requests met the contract before it, %.1f %% of %d after: go back to %s", 100*before, all[0], 100*after, all[1], f.former())
	default:
		f.Verdict, f.Why = Keep, fmt.Sprintf("%.1f %% of %d requests met the contract before it, %.1f %% of %d after", 100*before, all[0], 100*after, all[1])
	}
}

// former names what there was before.
func (f *Finding) former() string {
	if f.From == "" {
		return "what was before"
	}
	return string(f.Kind) + " " + f.From
}

// worse reports whether the second share is lower by a point at least, and by
// more than chance explains: two standard errors of the difference of two
// proportions (pooled z-test).
func worse(before float64, n int, after float64, m int) bool {
	pooled := (before*float64(n) + after*float64(m)) / float64(n+m)
	se := math.Sqrt(pooled * (1 - pooled) * (1/float64(n) + 1/float64(m)))
	return before-after >= max(0.01, 2*se)
}
