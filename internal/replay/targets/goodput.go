package targets

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// ratioCap is the most that one cell counts in a geometric mean.
const ratioCap = 2

// wins is one cell's goodput by seed.
type wins struct {
	names              []string // of the best baselines
	base, ours, oracle []float64
}

// ratios are those of each seed, capped.
func (w *wins) ratios() (out []float64) {
	for s := range w.ours {
		if w.base[s] == 0 && w.ours[s] == 0 {
			out = append(out, 1)
			continue
		}
		out = append(out, min(w.ours[s]/w.base[s], ratioCap))
	}
	return out
}

// goodput is how much more fleets bear than under the best baseline.
func (b *bench) goodput() (Table, error) {
	all := make([]wins, len(b.cells))
	err := b.each(len(b.cells), func(i int) (err error) {
		all[i], err = b.cells[i].wins()
		return err
	})
	if err != nil || len(all) == 0 {
		return Table{}, orNoCell(err)
	}
	return goodputTable(b, all), nil
}

func goodputTable(b *bench, all []wins) Table {
	t := Table{
		Title: "highest multiple of the trace's rate at which 95 % of the requests meet their contract",
		Notes: []string{
			fmt.Sprintf("%d seeds, first %d requests, noise %.0f %%, scrapes every %v; to %.0f %%; shed counts as missed", b.Seeds, b.Requests, 100*noise, scrape, 100*precision),
			"headroom knows nothing of the engines when it begins; known: it begins with their true parameters",
		},
		Columns: []string{"trace", "fleet", "best baseline", "rate", "headroom", "ratio", "known", "known/learned"},
	}
	for i, w := range all {
		_, r := ratio(w.ours, w.base)
		_, price := ratio(w.oracle, w.ours)
		t.row(b.cells[i].trace, b.cells[i].fleet, strings.Join(w.names, " or "), times(mean(w.base)), times(mean(w.ours)), r, times(mean(w.oracle)), price)
	}
	b.judgeGoodput(&t, all)
	return t
}

func orNoCell(err error) error {
	if err == nil {
		return errNoCell
	}
	return err
}

func (c *cell) wins() (w wins, err error) {
	for _, seed := range c.seeds() {
		best, err := c.best(seed)
		if err != nil {
			return w, err
		}
		mine, err := c.goodput(ours, seed)
		if err != nil {
			return w, err
		}
		truth, err := c.goodput(known, seed)
		if err != nil {
			return w, err
		}
		if !slices.Contains(w.names, best.Name) {
			w.names = append(w.names, best.Name)
		}
		w.base, w.ours, w.oracle = append(w.base, best.Multiplier), append(w.ours, mine.Multiplier), append(w.oracle, truth.Multiplier)
	}
	return w, nil
}

// judgeGoodput sums up over the cells of unequal fleets, and of equal ones.
func (b *bench) judgeGoodput(t *Table, all []wins) {
	for _, kind := range []struct {
		what        string
		equal       bool
		mean, least float64
	}{{"mixed fleets", false, 1.5, 1}, {"equal GPUs", true, 1.05, 0.97}} {
		var cells []float64
		bySeed := make([][]float64, b.Seeds)
		for i := range all {
			if (b.cells[i].fleet == "equal") != kind.equal {
				continue
			}
			d, _ := ratio(all[i].ours, all[i].base)
			cells = append(cells, min(d.Ratio, ratioCap))
			for s, r := range all[i].ratios() {
				bySeed[s] = append(bySeed[s], r)
			}
		}
		if len(cells) == 0 {
			continue
		}
		var means []float64
		for _, cells := range bySeed {
			means = append(means, geometric(cells))
		}
		_, interval := ratio(means, slices.Repeat([]float64{1}, len(means)))
		t.atLeast(kind.what+", geometric mean of the ratios, each at most 2: "+interval+" over seeds", "%.2f", geometric(cells), kind.mean)
		t.atLeast(kind.what+", lowest cell", "%.2f", lowest(cells), kind.least)
	}
	var prices []float64
	for i := range all {
		if d, _ := ratio(all[i].oracle, all[i].ours); d.Ratio > 0 && !math.IsInf(d.Ratio, 0) {
			prices = append(prices, min(d.Ratio, ratioCap))
		}
	}
	t.atMost("price of learning: geometric mean of known over learned", "%.3f", geometric(prices), 1.03)
}
