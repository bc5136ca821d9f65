package targets

import (
	"fmt"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// contenders are the default and the best baseline, each with the goodput of
// the first seed.
type contender struct {
	rule
	capacity float64
}

func (c *cell) contenders() (out []contender, err error) {
	best, err := c.best(1)
	if err != nil {
		return nil, err
	}
	mine, err := c.goodput(ours, 1)
	return []contender{{ours, mine.Multiplier}, {rule{policy: best.Name}, best.Multiplier}}, err
}

// met is the mean share met over the seeds, with what changes the config.
func (c *cell) met(r rule, rate float64, change func(*replay.Config)) (float64, error) {
	var met []float64
	for _, seed := range c.seeds() {
		config := c.config(r)
		change(&config)
		run, err := c.run(config, rate, seed)
		if err != nil {
			return 0, err
		}
		met = append(met, run.All.Met)
	}
	return mean(met), nil
}

// signals is what old and scattered knowledge costs.
func (b *bench) signals() (Table, error) {
	t := Table{
		Title:   "old signals: share met at 0.9 of what each bears, and what four gateways that don't see each other bear",
		Columns: []string{"trace", "policy", "load", "scrapes of 500ms", "of 5s", "four gateways", "goodput", "of four gateways", "kept"},
	}
	traces := []string{"conv", "mooncake"}
	rows := make([][]signal, len(traces))
	err := b.each(len(traces), func(i int) error {
		c, err := b.mixed(traces[i])
		if err == nil {
			rows[i], err = c.signals()
		}
		return err
	})
	if err != nil {
		return t, err
	}
	for i, trace := range traces {
		for _, s := range rows[i] {
			t.row(trace, s.policy, times(s.load), share(s.fresh), share(s.old), share(s.four), times(s.capacity), times(s.spread), share(s.spread/s.capacity))
		}
		mine, best := rows[i][0], rows[i][1]
		t.atMost(trace+": share lost by scrapes of 5 s, against the best baseline's and half a point", "%.3f", mine.fresh-mine.old, max(best.fresh-best.old, 0)+halfPoint)
		t.atMost(trace+": share lost by four gateways, against the best baseline's and half a point", "%.3f", mine.fresh-mine.four, max(best.fresh-best.four, 0)+halfPoint)
	}
	return t, nil
}

// halfPoint is what two runs of the same may differ by.
const halfPoint = 0.005

type signal struct {
	contender
	load, fresh, old, four, spread float64
}

func (c *cell) signals() (out []signal, err error) {
	all, err := c.contenders()
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		c.Progress(fmt.Sprintf("%s: old signals of %s", c.name(), one.policy))
		s := signal{contender: one, load: 0.9 * one.capacity}
		for _, m := range []struct {
			into   *float64
			change func(*replay.Config)
		}{
			{&s.fresh, func(*replay.Config) {}},
			{&s.old, func(c *replay.Config) { c.Scrape = 5 * time.Second }},
			{&s.four, func(c *replay.Config) { c.Gateways = 4 }},
		} {
			if *m.into, err = c.met(one.rule, s.load, m.change); err != nil {
				return nil, err
			}
		}
		four, err := c.goodputOf(one.rule, 4, 1)
		if err != nil {
			return nil, err
		}
		s.spread = four.Multiplier
		out = append(out, s)
	}
	return out, nil
}

const (
	slowAt     = time.Minute
	slowBy     = 4
	slowLoad   = 0.6 // of what headroom bears
	slowBucket = 5 * time.Second
	slowSpan   = 3 // buckets that have to be well on end
	slowPoints = 0.02
	slowWithin = 30 * time.Second
)

// slow is one engine that falls to a quarter of its speed.
func (b *bench) slow() (Table, error) {
	t := Table{
		Title:   fmt.Sprintf("one of the fastest engines slowed to a quarter after %v, at %g of what headroom bears", slowAt, slowLoad),
		Columns: []string{"policy", "met before", "first 30s", "next 30s", "after", "back after"},
	}
	c, err := b.mixed("conv")
	if err != nil {
		return t, err
	}
	all, err := c.contenders()
	if err != nil {
		return t, err
	}
	times := make([]recovery, len(all))
	err = b.each(len(all), func(i int) (err error) {
		times[i], err = c.recovery(all[i].rule, slowLoad*all[0].capacity)
		return err
	})
	if err != nil {
		return t, err
	}
	for i := range all {
		r := &times[i]
		back := "never"
		if at, ok := r.back(); ok {
			back = at.String()
		}
		t.row(all[i].policy, share(r.before()), share(r.share(0, slowWithin)), share(r.share(slowWithin, 2*slowWithin)), share(r.share(2*slowWithin, time.Hour)), back)
	}
	at, ok := times[0].back()
	if !ok {
		at = time.Hour
	}
	t.atMost("seconds until headroom is within 2 points of before", "%.0f", at.Seconds(), slowWithin.Seconds())
	return t, nil
}

// recovery counts requests by the bucket of their arrival, of all seeds.
type recovery struct{ met, all []float64 }

func (c *cell) recovery(r rule, rate float64) (out recovery, err error) {
	for _, seed := range c.seeds() {
		config := c.config(r)
		config.Faults = []replay.Fault{{At: slowAt, Engine: 0, Fault: engine.Fault{Kind: engine.Slow, Factor: slowBy}}}
		_, err := c.watch(config, rate, seed, func(s *report.Sample, _ *replay.Outcome) { out.add(s) })
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

func (r *recovery) add(s *report.Sample) {
	k := int(s.At / slowBucket)
	for len(r.all) <= k {
		r.met, r.all = append(r.met, 0), append(r.all, 0)
	}
	r.all[k]++
	if s.Objective.Met(s) {
		r.met[k]++
	}
}

// share is the part of those that met, who arrived so long after the slowing;
// no number if nobody did.
func (r *recovery) share(from, to time.Duration) float64 {
	met, all := 0.0, 0.0
	for k := range r.all {
		if at := time.Duration(k)*slowBucket - slowAt; at >= from && at < to {
			met, all = met+r.met[k], all+r.all[k]
		}
	}
	return met / all
}

// before leaves the first seconds out, in which everything is learned.
func (r *recovery) before() float64 { return r.share(-slowAt/2, 0) }

// back is when the share is within 2 points of before for a quarter of a minute.
func (r *recovery) back() (time.Duration, bool) {
	for k := int(slowAt / slowBucket); k < len(r.all); k++ {
		at := time.Duration(k)*slowBucket - slowAt
		if r.share(at, at+slowSpan*slowBucket) >= r.before()-slowPoints {
			return at, true
		}
	}
	return 0, false
}

// wrong is an engine whose prediction begins 60 % too high or too low.
func (b *bench) wrong() (Table, error) {
	t := Table{
		Title:   "predictions wrong by 60 % for one of the fastest engines, at 0.95 of what the best baseline bears",
		Notes:   []string{"all engines begin with their true parameters, that one with 1.6 or 0.4 times as slow; learning goes on"},
		Columns: []string{"policy", "predictions", "met"},
	}
	c, err := b.mixed("conv")
	if err != nil {
		return t, err
	}
	all, err := c.contenders()
	if err != nil {
		return t, err
	}
	rate := 0.95 * all[1].capacity
	base, err := c.met(all[1].rule, rate, func(*replay.Config) {})
	if err != nil {
		return t, err
	}
	t.row(all[1].policy, "–", share(base))
	for _, factor := range []float64{1, 1.6, 0.4} {
		met, err := c.met(known, rate, func(config *replay.Config) { config.Predict = &replay.Predict{Prior: c.distorted(factor)} })
		if err != nil {
			return t, err
		}
		t.row(known.policy, fmt.Sprintf("× %g", factor), share(met))
		if factor != 1 {
			t.atLeast(fmt.Sprintf("share met with predictions × %g, against 2 points below the best baseline's", factor), "%.3f", met, base-0.02)
		}
	}
	return t, nil
}

// distorted is the truth, but for the first engine.
func (c *cell) distorted(factor float64) func(int) *predictor.Speed {
	return func(i int) *predictor.Speed {
		s := c.truth(i)
		if i == 0 {
			s.Fixed, s.Step, s.Token = factor*s.Fixed, factor*s.Step, factor*s.Token
			s.Seq, s.Context, s.Square = factor*s.Seq, factor*s.Context, factor*s.Square
		}
		return s
	}
}
