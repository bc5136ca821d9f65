package replay

import (
	"cmp"
	"errors"
	"slices"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// Trial is one comparison: the same traces on the same fleet under several policies.
type Trial struct {
	Config   Config // its Policy and Seed are set for each run
	Policies []string
	Seeds    int // runs of each policy; differences need at least two. 1

	// Objective is what every request is to meet. If it is zero each has its
	// own, as the trace says, and Default those that have none.
	Objective, Default report.Objective

	// Source gives the trace of a seed. Recorded traces may give the same for
	// all; what differs then is the engines' noise and the policies' draws.
	Source func(seed uint64) trace.Source
	// Progress is told before each run; may be nil.
	Progress func(policy string, seed int)
}

// Compare runs every policy over every seed. The runs are those of the first
// seed; differences to the first policy come from all of them. partial says
// that Stop ended it.
func (t Trial) Compare() (runs []report.Run, differences []report.Difference, partial bool, err error) {
	seen := map[string][][]figure{}
	for seed := range max(t.Seeds, 1) {
		for _, policy := range t.Policies {
			if t.Progress != nil {
				t.Progress(policy, seed)
			}
			run, stopped, err := t.run(policy, uint64(seed+1))
			if err != nil {
				return runs, nil, false, err
			}
			if seed == 0 {
				runs = append(runs, run)
			}
			if stopped {
				return runs, nil, true, nil
			}
			seen[policy] = append(seen[policy], figures(&run))
		}
	}
	return runs, t.differences(seen), false, nil
}

// figure is one number that policies are compared by.
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

// differences compares the figures of each policy, by seed, with the first's.
func (t Trial) differences(seen map[string][][]figure) []report.Difference {
	if t.Seeds < 2 || len(t.Policies) < 2 {
		return nil
	}
	of := func(policy string, figure int) (values []float64) {
		for _, seed := range seen[policy] {
			values = append(values, seed[figure].value)
		}
		return values
	}
	var out []report.Difference
	for i, f := range seen[t.Policies[0]][0] {
		for _, p := range t.Policies[1:] {
			out = append(out, report.Compare(p, f.name, of(p, i), of(t.Policies[0], i)))
		}
	}
	return out
}

// run is one policy over one seed.
func (t Trial) run(policy string, seed uint64) (report.Run, bool, error) {
	c := t.Config
	c.Policy, c.Seed = policy, seed
	c.Engines = slices.Clone(c.Engines)
	for i := range c.Engines {
		c.Engines[i].Seed += seed * 1_000_003
	}
	var samples []report.Sample
	totals, err := Run(c, t.Source(seed), func(o *Outcome) { samples = append(samples, t.sample(o)) })
	if err != nil {
		return report.Run{}, false, err
	}
	return report.Summarise(policy, samples, uses(c, samples, totals)), totals.Stopped, nil
}

func (t *Trial) sample(o *Outcome) report.Sample {
	r := &o.Request
	s := report.Sample{
		At: r.At, Model: r.Model, Turn: r.Turn, Busy: o.Busy, Reason: o.Reason,
		TTFT: o.TTFT, TPOT: o.TPOT(), E2E: o.E2E, Prompt: r.PromptTokens, Objective: t.objective(r),
	}
	if o.Engine >= 0 {
		s.Engine = t.Config.Engines[o.Engine].Name
	}
	return s
}

func (t *Trial) objective(r *trace.Request) report.Objective {
	own := report.Objective{TTFT: r.TTFT, TPOT: r.TPOT, E2E: r.E2E}
	return cmp.Or(t.Objective, own, t.Default)
}

func uses(c Config, samples []report.Sample, t Totals) []report.EngineUse {
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

// Goodput is what FindGoodput found for one policy.
type Goodput struct {
	Policy     string
	Multiplier float64 // of the trace's rate
	Requests   float64 // requests/s that met their objectives at it
	Met        float64 // share that met them
}

// ErrStopped says that Stop ended a search before its end.
var ErrStopped = errors.New("stopped")

// FindGoodput searches the highest rate multiplier, to 1 %, at which at least
// target (0..1) of the requests meet their objectives. It doubles or halves
// from 1 until it has a bracket and then bisects; 0 means not even 1/64 does.
func (t Trial) FindGoodput(policy string, target float64) (Goodput, error) {
	at := func(k float64) (Goodput, error) {
		scaled := t
		scaled.Source = func(seed uint64) trace.Source { return t.Source(seed).Rate(k) }
		run, stopped, err := scaled.run(policy, 1)
		if err == nil && stopped {
			err = ErrStopped
		}
		return Goodput{Policy: policy, Multiplier: k, Requests: run.Goodput, Met: run.All.Met}, err
	}
	best := Goodput{Policy: policy}
	low, high := 0.0, 0.0
	for k := 1.0; low == 0 || high == 0; {
		g, err := at(k)
		switch {
		case err != nil:
			return best, err
		case g.Met >= target:
			best, low = g, k
			k *= 2
		default:
			high = k
			k /= 2
		}
		if k < 1.0/64 || k > 4096 {
			return best, nil
		}
		if low > 0 && high > 0 {
			break
		}
	}
	for high/low > 1.01 {
		k := (low + high) / 2
		g, err := at(k)
		if err != nil {
			return best, err
		}
		if g.Met >= target {
			best, low = g, k
		} else {
			high = k
		}
	}
	return best, nil
}
