package replay

import (
	"fmt"
	"slices"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// Trial is one comparison: the same traces on the same fleet under several policies.
type Trial struct {
	Config    Config // its Policy and Seed are set for each run
	Policies  []string
	Seeds     int // runs of each policy; differences need at least two. 1
	Objective report.Objective
	// Source gives the trace of a seed. Recorded traces may give the same for
	// all; what differs then is the engines' noise and the policies' draws.
	Source func(seed uint64) trace.Source
	// Progress is told before each run; may be nil.
	Progress func(policy string, seed int)
}

// Compare runs every policy over every seed. Figures and plots are those of the
// first seed; differences to the first policy come from all of them.
func (t Trial) Compare() ([]report.Run, []report.Difference, bool, error) {
	var runs []report.Run
	figures := map[string]map[string][]float64{}
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
			note(figures, policy, &run)
		}
	}
	return runs, t.differences(figures), false, nil
}

// note keeps the figures that policies are compared by.
func note(figures map[string]map[string][]float64, policy string, r *report.Run) {
	for name, v := range map[string]float64{
		"TTFT mean": r.All.TTFT.Mean, "TTFT p95": r.All.TTFT.P95, "TTFT p99": r.All.TTFT.P99, "goodput": r.Goodput,
	} {
		if figures[name] == nil {
			figures[name] = map[string][]float64{}
		}
		figures[name][policy] = append(figures[name][policy], v)
	}
}

func (t Trial) differences(figures map[string]map[string][]float64) []report.Difference {
	if t.Seeds < 2 || len(t.Policies) < 2 {
		return nil
	}
	var out []report.Difference
	for _, metric := range []string{"TTFT mean", "TTFT p95", "TTFT p99", "goodput"} {
		base := figures[metric][t.Policies[0]]
		for _, p := range t.Policies[1:] {
			out = append(out, report.Compare(p, metric, figures[metric][p], base))
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
	totals, err := Run(c, t.Source(seed), func(o *Outcome) { samples = append(samples, sample(c, o)) })
	if err != nil {
		return report.Run{}, false, err
	}
	return report.Summarise(policy, samples, t.Objective, uses(c, samples, totals)), totals.Stopped, nil
}

func sample(c Config, o *Outcome) report.Sample {
	s := report.Sample{
		At: o.Request.At, Model: o.Request.Model, Turn: o.Request.Turn, Regime: regime(o.Busy), Reason: o.Reason,
		TTFT: o.TTFT, TPOT: o.TPOT(), E2E: o.E2E, Prompt: o.Request.PromptTokens, Cached: o.Cached, Output: o.Request.OutputTokens,
	}
	if o.Engine >= 0 {
		s.Engine = c.Engines[o.Engine].Name
	}
	return s
}

// regime names the load an engine had when a request was sent to it; the names
// sort by load.
func regime(busy int) string {
	switch {
	case busy <= 0:
		return "in flight  0"
	case busy < 8:
		return "in flight  1-7"
	case busy < 32:
		return "in flight  8-31"
	}
	return "in flight 32+"
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

// FindGoodput searches the highest rate multiplier, to 1 %, at which at least
// target (0..1) of the requests meet their objectives. It doubles or halves
// from 1 until it has a bracket and then bisects; 0 means not even 1/64 does.
func (t Trial) FindGoodput(policy string, target float64) (Goodput, error) {
	at := func(k float64) (Goodput, error) {
		scaled := t
		scaled.Source = func(seed uint64) trace.Source { return t.Source(seed).Rate(k) }
		run, stopped, err := scaled.run(policy, 1)
		if err == nil && stopped {
			err = fmt.Errorf("stopped while searching the goodput of %s", policy)
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

// TooLong lists, by engine, how many requests of a trace could never be served
// there: their prompt and answer do not fit its context or its cache.
func TooLong(engines []Engine, src trace.Source) (never int, first trace.Request, err error) {
	limit := map[string]int{}
	for _, e := range engines {
		sim, err := engine.New(e.Params, 0)
		if err != nil {
			return 0, first, err
		}
		limit[e.Model] = max(limit[e.Model], sim.Params().MaxModelLen)
		limit[""] = max(limit[""], limit[e.Model])
	}
	for r, err := range src {
		if err != nil {
			return never, first, err
		}
		if longest, known := limit[r.Model]; known && r.PromptTokens+r.OutputTokens > longest {
			if never++; never == 1 {
				first = r
			}
		}
	}
	return never, first, nil
}
