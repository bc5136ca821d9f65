package replay

import (
	"cmp"
	"slices"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// Trial is one comparison: variants that serve the same traces.
type Trial struct {
	Variants []Variant
	Seeds    int // runs of each variant; differences need at least two. 1

	// Objective is what every request is to meet. If it is zero each has its
	// own, as the trace says, and Default those that have none.
	Objective, Default report.Objective

	// Source gives the trace of a seed. Recorded traces may give the same for
	// all; what differs then is the engines' noise and the policies' draws.
	Source func(seed uint64) trace.Source
	// Progress is told before each run; may be nil.
	Progress func(variant string, seed int)
	// Seen is told each request's end; may be nil. What it gets is valid until it returns.
	Seen func(s *report.Sample, o *Outcome)
}

// Variant is one of the things compared: a policy, a fleet, or anything else
// that a Config says. Its Seed is set for each run.
type Variant struct {
	Name string // unique in the trial
	Config
}

// Compare runs every variant over every seed. The runs are those of the first
// seed; differences to the first variant come from all of them. partial says
// that Stop ended it.
func (t Trial) Compare() (runs []report.Run, differences []report.Difference, partial bool, err error) {
	seen := make([][][]figure, len(t.Variants))
	for seed := range max(t.Seeds, 1) {
		for i, v := range t.Variants {
			if t.Progress != nil {
				t.Progress(v.Name, seed)
			}
			run, stopped, err := t.Run(v, uint64(seed+1))
			if err != nil {
				return runs, nil, false, err
			}
			if seed == 0 {
				runs = append(runs, run)
			}
			if stopped {
				return runs, nil, true, nil
			}
			seen[i] = append(seen[i], figures(&run))
		}
	}
	return runs, t.differences(seen), false, nil
}

// figure is one number that variants are compared by.
type figure struct {
	name  string
	value float64
}

func figures(r *report.Run) []figure {
	return []figure{
		{"TTFT mean", r.All.TTFT.Mean}, {"TTFT p95", r.All.TTFT.P95}, {"TTFT p99", r.All.TTFT.P99},
		{"E2E mean", r.All.E2E.Mean}, {"goodput", r.Goodput},
	}
}

// differences compares the figures of each variant, by seed, with the first's.
func (t Trial) differences(seen [][][]figure) []report.Difference {
	if t.Seeds < 2 || len(t.Variants) < 2 {
		return nil
	}
	of := func(variant, figure int) (values []float64) {
		for _, seed := range seen[variant] {
			values = append(values, seed[figure].value)
		}
		return values
	}
	var out []report.Difference
	for k, f := range seen[0][0] {
		for i := 1; i < len(t.Variants); i++ {
			out = append(out, report.Compare(t.Variants[i].Name, f.name, of(i, k), of(0, k)))
		}
	}
	return out
}

// Run is one variant over one seed. stopped says that Stop ended it.
func (t Trial) Run(v Variant, seed uint64) (r report.Run, stopped bool, err error) {
	c := v.Config
	c.Seed = seed
	c.Engines = slices.Clone(c.Engines)
	for i := range c.Engines {
		c.Engines[i].Seed += seed * 1_000_003
	}
	var samples []report.Sample
	totals, err := Run(c, t.promised(t.Source(seed)), func(o *Outcome) {
		samples = append(samples, t.sample(&c, o))
		if t.Seen != nil {
			t.Seen(&samples[len(samples)-1], o)
		}
	})
	if err != nil {
		return report.Run{}, false, err
	}
	r = report.Summarise(v.Name, samples, uses(&c, samples, totals))
	name(r.ByContract, c.Contracts)
	return r, totals.Stopped, nil
}

func (t *Trial) sample(c *Config, o *Outcome) report.Sample {
	r := &o.Request
	s := report.Sample{
		At: r.At, Model: r.Model, Turn: r.Turn, Busy: o.Busy, Reason: o.Reason,
		TTFT: o.TTFT, TPOT: o.TPOT(), E2E: o.E2E, Prompt: r.PromptTokens, Objective: objective(r, o.Contract),
		Held: o.Held, Contract: o.Contract.Name(), Verdicts: kept(o),
	}
	if p := o.Foreseen; p != nil && p.TTFT > 0 && !p.Censored {
		s.Foreseen = report.Foreseen{P50: p.Said[p.Served].P50, P95: p.Said[p.Served].P95, Truth: p.TTFT}
	}
	if o.Engine >= 0 {
		s.Engine = c.Engines[o.Engine].Name
	}
	return s
}

// promised gives every request the objectives it is judged by, so that gateways
// know them.
func (t *Trial) promised(src trace.Source) trace.Source {
	return func(yield func(trace.Request, error) bool) {
		for r, err := range src {
			o := t.objective(&r)
			r.TTFT, r.TPOT, r.E2E = o.Within(r.PromptTokens), o.TPOT, o.E2E
			if !yield(r, err) {
				return
			}
		}
	}
}

func (t *Trial) objective(r *trace.Request) report.Objective {
	own := report.Objective{TTFT: r.TTFT, TPOT: r.TPOT, E2E: r.E2E}
	return cmp.Or(t.Objective, own, t.Default)
}

func uses(c *Config, samples []report.Sample, t Totals) []report.EngineUse {
	served := map[string]int{}
	all := 0
	for i := range samples {
		if samples[i].OK() {
			served[samples[i].Engine]++
			all++
		}
	}
	out := make([]report.EngineUse, len(c.Engines))
	for i, e := range c.Engines {
		s := t.Engines[i]
		out[i] = report.EngineUse{
			Name: e.Name, Share: share(served[e.Name], all), Preemptions: s.Preemptions,
			Utilisation: s.Busy.Seconds() / max(t.End.Seconds(), 1e-9), CacheHits: share(s.PrefixHits, s.PrefixQueries),
		}
	}
	return out
}

func share(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
