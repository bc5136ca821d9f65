package targets

import (
	"fmt"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
)

const (
	// roundRobinMean is the mean TTFT in milliseconds that round robin is to have.
	roundRobinMean = 182
	// fastest is the most requests a second that conversations are sent.
	fastest = 60.0
)

// coldStart is what the first requests of each prompt length cost an engine.
var coldStart = engine.Cold{Tables: 42 * time.Millisecond, Cache: 3500 * time.Microsecond, Requests: 3}

// turns is the comparison with round robin: engines that start cold, and
// conversations whose turns share prefixes.
func (b *bench) turns() (Table, error) {
	t := Table{
		Title:   "cold starts and conversations of ten turns, against round robin",
		Columns: []string{"policy", "TTFT mean", "p99", "mean of round robin's", "p99 of round robin's", "turn 1", "turn 10+", "shed"},
	}
	c, err := b.conversations()
	if err != nil {
		return t, err
	}
	usual, err := c.rate()
	if err != nil {
		return t, err
	}
	rate, err := c.rateOf(rule{policy: router.RoundRobin}, roundRobinMean, fastest/usual)
	if err != nil {
		return t, err
	}
	t.Notes = append(t.Notes, fmt.Sprintf("fleet wide at %.1f requests/s, where round robin has a mean near %d ms; times in milliseconds", rate*usual, roundRobinMean))
	rules := []rule{{policy: router.RoundRobin}, {policy: router.LeastInFlight}, {policy: router.PrefixAffinity}, {policy: router.LMetric}, ours}
	all := make([]spell, len(rules))
	err = b.each(len(rules), func(i int) (err error) {
		all[i], err = c.spell(rules[i], rate)
		return err
	})
	if err != nil {
		return t, err
	}
	for i, r := range rules {
		_, means := ratio(all[0].mean, all[i].mean)
		_, tails := ratio(all[0].p99, all[i].p99)
		t.row(r.policy, ms(mean(all[i].mean)), ms(mean(all[i].p99)), means, tails, ms(mean(all[i].first)), ms(mean(all[i].tenth)), share(mean(all[i].shed)))
	}
	last := len(rules) - 1
	means, _ := ratio(all[0].mean, all[last].mean)
	tails, _ := ratio(all[0].p99, all[last].p99)
	t.atLeast("mean TTFT of round robin over headroom's", "%.2f", means.Ratio, 1.9)
	t.atLeast("P99 TTFT of round robin over headroom's", "%.2f", tails.Ratio, 3.1)
	t.atMost("headroom's drift, mean of turn 10 and later over turn 1", "%.2f", mean(all[last].tenth)/mean(all[last].first), mean(all[0].tenth)/mean(all[0].first))
	return t, nil
}

// conversations is the cell: customer service with ten turns in the mean and
// short answers, on engines that start cold.
func (b *bench) conversations() (*cell, error) {
	c, err := newCell(&b.Options, "wide", "customer-service")
	if err != nil {
		return nil, err
	}
	for i := range c.engines {
		c.engines[i].Params.Cold = coldStart
	}
	w := trace.CustomerService()
	w.Turns, w.MaxContext = 10, 4096
	w.Output = trace.Size{Median: 60, Spread: 0.5, Max: 250} // prompts of about 1,000 tokens
	c.source = drawn(w, min(c.Requests, 4000))
	return c, nil
}

// rate is the requests a second of the cell at a multiple of 1.
func (c *cell) rate() (float64, error) {
	n, last := 0, time.Duration(0)
	for r, err := range c.source(1) {
		if err != nil {
			return 0, err
		}
		n, last = n+1, r.At
	}
	return float64(n) / last.Seconds(), nil
}

// rateOf is the multiple of the rate, below high, at which a rule has that mean
// TTFT, in milliseconds.
func (c *cell) rateOf(r rule, wanted, high float64) (float64, error) {
	low := 0.05
	for high > 1.02*low {
		at := (low + high) / 2
		run, err := c.run(c.config(r), at, 1)
		if err != nil {
			return 0, err
		}
		if run.All.TTFT.Mean > wanted {
			high = at
		} else {
			low = at
		}
	}
	return low, nil
}

// spell is the times of one rule, by seed.
type spell struct{ mean, p99, first, tenth, shed []float64 }

func (c *cell) spell(r rule, rate float64) (s spell, err error) {
	for _, seed := range c.seeds() {
		run, err := c.run(c.config(r), rate, seed)
		if err != nil {
			return s, err
		}
		s.mean, s.p99 = append(s.mean, run.All.TTFT.Mean), append(s.p99, run.All.TTFT.P99)
		s.first, s.tenth = append(s.first, byTurn(&run, "turn 1")), append(s.tenth, byTurn(&run, "turn 10+"))
		s.shed = append(s.shed, shedShare(&run))
	}
	return s, nil
}

func byTurn(r *report.Run, name string) float64 {
	for _, g := range r.ByTurn {
		if g.Name == name {
			return g.TTFT.Mean
		}
	}
	return 0
}
