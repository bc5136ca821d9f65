package replay

import (
	"slices"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// WhatIf is the same requests under two sets of contracts.
type WhatIf struct {
	Config   Config    // but for Contracts and Seed
	Prices   []float64 // USD an hour, by engine
	Old, New *sla.Set  // what was promised; nil: nothing
	Seeds    int       // runs of each. 1
	Source   func(seed uint64) trace.Source
	Progress func(what string, seed int) // may be nil
}

// ending is what became of one request.
type ending struct {
	engine         int
	shed           bool
	of             *sla.Contract // of the new set, or else of the old
	oldMet, newMet bool
	byOld, byNew   bool // a contract of the set holds for it
}

// course is one run: endings by their place in the trace, and what it cost.
type course struct {
	ends        []ending
	busy, fleet float64 // USD
}

// Compare runs both over every seed. Every request of both runs is judged by
// both sets. stopped says that Stop ended it, and then there are no figures.
func (w WhatIf) Compare() (changes []report.Change, stopped bool, err error) {
	var old, now []course
	for seed := range max(w.Seeds, 1) {
		for _, side := range []struct {
			what string
			set  *sla.Set
			into *[]course
		}{{"old contracts", w.Old, &old}, {"new contracts", w.New, &now}} {
			if w.Progress != nil {
				w.Progress(side.what, seed)
			}
			c, stopped, err := w.run(side.set, uint64(seed+1))
			if err != nil || stopped {
				return nil, stopped, err
			}
			*side.into = append(*side.into, c)
		}
	}
	return w.changes(old, now), false, nil
}

func (w *WhatIf) run(set *sla.Set, seed uint64) (course, bool, error) {
	c := w.Config
	c.Seed, c.Contracts, c.Engines = seed, set, slices.Clone(c.Engines)
	for i := range c.Engines {
		c.Engines[i].Seed += seed * 1_000_003
	}
	var out course
	src := w.Source(seed).Each(func(r *trace.Request) { r.TTFT, r.TPOT, r.E2E = 0, 0, 0 }) // contracts alone count
	totals, err := Run(c, src, func(o *Outcome) {
		for len(out.ends) <= o.Index {
			out.ends = append(out.ends, ending{})
		}
		out.ends[o.Index] = w.ending(o)
	})
	for i := range totals.Engines {
		out.busy += w.Prices[i] * totals.Engines[i].Busy.Hours()
		out.fleet += w.Prices[i] * totals.End.Hours()
	}
	return out, totals.Stopped, err
}

func (w *WhatIf) ending(o *Outcome) ending {
	e := ending{engine: o.Engine, shed: isShed(o.Reason)}
	s := report.Sample{Reason: o.Reason, TTFT: o.TTFT, TPOT: o.TPOT(), E2E: o.E2E, Prompt: o.Request.PromptTokens}
	judge := func(set *sla.Set) (met, holds bool) {
		c := match(set, &o.Request)
		if c == nil {
			return false, false
		}
		e.of = c
		return objective(&o.Request, c).Met(&s), true
	}
	e.oldMet, e.byOld = judge(w.Old)
	e.newMet, e.byNew = judge(w.New)
	return e
}

// changes are the figures of all requests and of each contract.
func (w *WhatIf) changes(old, now []course) []report.Change {
	out := shares("all", old, now, func(*ending) bool { return true })
	for _, name := range names(w.New, w.Old) {
		out = append(out, shares(name, old, now, func(e *ending) bool { return e.of.Name() == name })...)
	}
	return append(out,
		cost("cost of the time engines compute, USD", old, now, func(c *course) float64 { return c.busy }),
		cost("cost of the fleet until the last end, USD", old, now, func(c *course) float64 { return c.fleet }))
}

func names(sets ...*sla.Set) (out []string) {
	for _, set := range sets {
		if set == nil {
			continue
		}
		for _, c := range set.Contracts() {
			if !slices.Contains(out, c.Name()) {
				out = append(out, c.Name())
			}
		}
	}
	slices.Sort(out)
	return out
}

// quantity is 0 or 1 of a request in each run.
type quantity struct {
	what   string
	counts func(e *ending) bool // the request has it at all
	value  func(e, old *ending) bool
}

func quantities() []quantity {
	always := func(*ending) bool { return true }
	byOld, byNew := func(e *ending) bool { return e.byOld }, func(e *ending) bool { return e.byNew }
	return []quantity{
		{"met the old contracts", byOld, func(e, _ *ending) bool { return e.oldMet }},
		{"met the new contracts", byNew, func(e, _ *ending) bool { return e.newMet }},
		{"missed the new contracts", byNew, func(e, _ *ending) bool { return !e.newMet }},
		{"shed", always, func(e, _ *ending) bool { return e.shed }},
		{"moved to another engine", always, func(e, old *ending) bool {
			return e.engine >= 0 && old.engine >= 0 && e.engine != old.engine
		}},
	}
}

// shares are the figures of some of the requests. Requests that arrive together
// share a fate, so the interval is over stretches of the trace, in which all
// seeds stay together.
func shares(of string, old, now []course, member func(*ending) bool) (out []report.Change) {
	const stretches = 50
	for _, f := range quantities() {
		c := report.Change{Of: of, What: f.what}
		before, after, n := make([]float64, stretches), make([]float64, stretches), make([]float64, stretches)
		for s := range now {
			for i := range now[s].ends {
				e, o := &now[s].ends[i], &old[s].ends[i]
				if !member(e) || !f.counts(e) {
					continue
				}
				k := i * stretches / len(now[s].ends)
				c.N++
				n[k]++
				before[k] += one(f.value(o, o))
				after[k] += one(f.value(e, o))
			}
		}
		if c.N > 0 {
			c.Fill(before, after, n)
			out = append(out, c)
		}
	}
	return out
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// cost is compared over the seeds.
func cost(what string, old, now []course, of func(*course) float64) report.Change {
	c := report.Change{Of: "all", What: what, USD: true, N: len(now)}
	var before, after, n []float64
	for s := range now {
		before, after, n = append(before, of(&old[s])), append(after, of(&now[s])), append(n, 1)
	}
	c.Fill(before, after, n)
	return c
}
