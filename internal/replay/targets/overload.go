package targets

import (
	"fmt"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// loads are multiples of the rate at which 95 % meet their contract.
var loads = []float64{0.5, 1, 1.5, 2}

// crowd is what became of one cell at one load: shares met, by seed.
type crowd struct {
	rate                   []float64 // multiple of the trace's, by seed
	ours, direct, weighted []float64
	shed                   []float64 // by ours
	best                   []float64
	bestName               string
}

// overload is what remains past capacity, and the literal rule at every load.
func (b *bench) overload() (Table, error) {
	cells := b.crowded()
	all := make([][]crowd, len(cells))
	err := b.each(len(cells), func(i int) (err error) {
		all[i], err = cells[i].crowds()
		return err
	})
	if err != nil || len(cells) == 0 {
		return Table{}, orNoCell(err)
	}
	return overloadTable(cells, all), nil
}

func overloadTable(cells []*cell, all [][]crowd) Table {
	t := Table{
		Title: "share of requests that meet their contract, at multiples of what headroom bears (95 % met)",
		Notes: []string{
			"met/s: requests a second that meet it, in relation to those at load 1; ratio: share of headroom over the best baseline's",
			"direct: headroom that sends everything at once; weighted: the literal rule, one draw by 0.6·C + 0.4·L",
		},
		Columns: []string{"trace", "fleet", "load", "headroom", "shed", "met/s", "direct", "weighted", "best baseline", "", "ratio"},
	}
	for i, c := range cells {
		for k, load := range loads {
			w := &all[i][k]
			_, r := ratio(w.ours, w.best)
			t.row(c.trace, c.fleet, fmt.Sprintf("%g", load), share(mean(w.ours)), share(mean(w.shed)), fmt.Sprintf("%.2f", perSecond(w, &all[i][1])),
				share(mean(w.direct)), share(mean(w.weighted)), w.bestName, share(mean(w.best)), r)
		}
	}
	judgeOverload(&t, cells, all)
	return t
}

// crowded are the cells measured past capacity: of the first fleet.
func (b *bench) crowded() (out []*cell) {
	for _, c := range b.cells {
		if c.fleet == b.Fleets[0] {
			out = append(out, c)
		}
	}
	return out
}

// perSecond is the requests a second that meet their contract in relation to
// those of another load.
func perSecond(w, at *crowd) float64 {
	var over, under []float64
	for s := range w.rate {
		over, under = append(over, w.rate[s]*w.ours[s]), append(under, at.rate[s]*at.ours[s])
	}
	d, _ := ratio(over, under)
	return d.Ratio
}

func (c *cell) crowds() ([]crowd, error) {
	out := make([]crowd, len(loads))
	for _, seed := range c.seeds() {
		capacity, err := c.goodput(ours, seed)
		if err != nil {
			return nil, err
		}
		for k, load := range loads {
			if err := c.crowd(&out[k], load*capacity.Multiplier, seed); err != nil {
				return nil, err
			}
		}
	}
	for k := range out {
		out[k].bestName = baselines[0]
	}
	return out, c.bestAt(out)
}

// crowd adds one seed's figures.
func (c *cell) crowd(w *crowd, rate float64, seed uint64) error {
	c.Progress(fmt.Sprintf("%s: at %s, seed %d", c.name(), times(rate), seed))
	w.rate = append(w.rate, rate)
	for _, one := range []struct {
		rule
		into *[]float64
	}{{ours, &w.ours}, {direct, &w.direct}, {rule{policy: router.Weighted}, &w.weighted}} {
		r, err := c.run(c.config(one.rule), rate, seed)
		if err != nil {
			return err
		}
		*one.into = append(*one.into, r.All.Met)
		if one.rule == ours {
			w.shed = append(w.shed, shedShare(&r))
		}
	}
	return nil
}

func shedShare(r *report.Run) float64 { return float64(r.All.Shed) / float64(max(r.All.Requests, 1)) }

// bestAt finds the baseline that is best at each load, over all seeds.
func (c *cell) bestAt(out []crowd) error {
	for k := range out {
		w := &out[k]
		for _, policy := range baselines {
			var met []float64
			for s, seed := range c.seeds() {
				r, err := c.run(c.config(rule{policy: policy}), w.rate[s], seed)
				if err != nil {
					return err
				}
				met = append(met, r.All.Met)
			}
			if w.best == nil || mean(met) > mean(w.best) {
				w.best, w.bestName = met, policy
			}
		}
	}
	return nil
}

// leastRatio is by how much admission is to win past capacity, on the fleet of
// unequal engines.
var leastRatio = map[string]float64{"conv": 4, "mooncake": 4, "code": 1.03}

func judgeOverload(t *Table, cells []*cell, all [][]crowd) {
	for i, c := range cells {
		for k, load := range loads {
			if load <= 1 {
				continue
			}
			w := &all[i][k]
			t.atLeast(fmt.Sprintf("%s at %g: met/s in relation to the peak", c.name(), load), "%.2f", perSecond(w, &all[i][1]), 1)
			if least := leastRatio[c.trace]; least > 0 {
				d, _ := ratio(w.ours, w.best)
				t.atLeast(fmt.Sprintf("%s at %g: in relation to the best baseline", c.name(), load), "%.2f", min(d.Ratio, 100), least)
			}
		}
	}
}
