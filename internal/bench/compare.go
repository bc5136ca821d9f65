package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/firsttoken/firsttoken/internal/report"
)

// Comparison is how a run differs from an older one.
type Comparison struct {
	Base     string   `json:"base"` // file of the older run
	Warnings []string `json:"warnings"`
	Unit     string   `json:"unit"` // what the bootstrap drew
	Ratios   []Ratio  `json:"ratios"`
}

// Ratio is one figure of both runs; new over old.
type Ratio struct {
	Figure string  `json:"figure"`
	Old    float64 `json:"old"`
	New    float64 `json:"new"`
	Ratio  float64 `json:"ratio"`
	Low    float64 `json:"low"` // 95 % interval of the ratio
	High   float64 `json:"high"`
}

// Sure reports whether the interval leaves no doubt which is larger.
func (r Ratio) Sure() bool { return r.Low > 1 || r.High < 1 }

// Read reads a report as WriteJSON wrote it.
func Read(r io.Reader) (*Report, error) {
	var old Report
	if err := json.NewDecoder(r).Decode(&old); err != nil {
		return nil, fmt.Errorf("is no report of firsttoken bench --json: %w", err)
	}
	if old.Format != format {
		return nil, fmt.Errorf("has format %q, not %q: give a file of firsttoken bench --json", old.Format, format)
	}
	return &old, nil
}

const (
	draws     = 1000
	minBlocks = 10
)

// CompareWith adds the comparison with an older run, whose file is named base.
//
// The intervals are percentile bootstraps over windows of a second, drawn whole
// from each run on its own: what queued together stays together. A run of
// fewer than ten windows with requests in them is drawn request by request.
func (r *Report) CompareWith(old *Report, base string) {
	c := &Comparison{Base: base, Warnings: differences(old, r), Unit: "1-s windows"}
	r.Comparison = c
	c.Warnings = append(c.Warnings, cacheDifference(&old.All, &r.All)...)
	if old.Partial {
		c.Warnings = append(c.Warnings, "the older run was stopped before its end")
	}
	a, b := blocksBySecond(&old.Requests), blocksBySecond(&r.Requests)
	if a.n < minBlocks || b.n < minBlocks {
		a, b = blocksByRequest(&old.Requests), blocksByRequest(&r.Requests)
		c.Unit = "requests"
		c.Warnings = append(c.Warnings, fmt.Sprintf("too short for an interval over 1-s windows (at least %d): it is over requests, and too narrow where they queue", minBlocks))
	}
	for _, f := range []struct {
		name               string
		oldTimes, newTimes []float64
		old, now           report.Spread
	}{
		{"TTFT", old.Requests.TTFT, r.Requests.TTFT, old.All.TTFT, r.All.TTFT},
		{"TPOT", old.Requests.TPOT, r.Requests.TPOT, old.All.TPOT, r.All.TPOT},
		{"E2E", old.Requests.E2E, r.Requests.E2E, old.All.E2E, r.All.E2E},
	} {
		c.Ratios = append(c.Ratios, ratios(f.name, a.sorted(f.oldTimes), b.sorted(f.newTimes), f.old, f.now)...)
	}
	c.Ratios = append(c.Ratios, meanRatio("ITL mean", a.gaps(&old.Requests), b.gaps(&r.Requests))...)
	c.Ratios = append(c.Ratios, perSecond("output tokens/s", old, r, func(w *Window) float64 { return w.OutputTokens })...)
	c.Ratios = append(c.Ratios, perSecond("requests/s", old, r, func(w *Window) float64 { return float64(w.Served) })...)
	if r.Objective != "" && r.Objective == old.Objective {
		c.Ratios = append(c.Ratios, perSecond("goodput/s", old, r, func(w *Window) float64 { return float64(w.Met) })...)
	}
}

// maxCacheDifference is how far the shares of cached prompt tokens may lie
// apart before two runs say more of the caches than of what changed.
const maxCacheDifference = 0.05

// cacheDifference warns of engines whose caches held other shares of the
// prompts.
func cacheDifference(old, now *Figures) []string {
	if old.PromptTokens == 0 || now.PromptTokens == 0 {
		return nil
	}
	a, b := old.cached(), now.cached()
	if math.Abs(a-b) <= maxCacheDifference {
		return nil
	}
	return []string{fmt.Sprintf("prompt tokens cached: %.1f %%, now %.1f %%: restart the engines before each run, or give each another --seed, if that is not what you compare", 100*a, 100*b)}
}

// blocks say which draw each request belongs to.
type blocks struct {
	of []int
	n  int
}

func blocksBySecond(c *Columns) blocks {
	b := blocks{of: make([]int, len(c.At))}
	seen := map[int]int{}
	for i, at := range c.At {
		second := int(at)
		k, ok := seen[second]
		if !ok {
			k = len(seen)
			seen[second] = k
		}
		b.of[i] = k
	}
	b.n = len(seen)
	return b
}

func blocksByRequest(c *Columns) blocks {
	b := blocks{of: make([]int, len(c.At)), n: len(c.At)}
	for i := range b.of {
		b.of[i] = i
	}
	return b
}

// value is a measured value, what it weighs, and its block.
type value struct {
	x, weight float64
	block     int
}

// drawn is the values of one run, which can be drawn again.
type drawn struct {
	values []value
	blocks int
}

func (b blocks) sorted(xs []float64) drawn {
	d := drawn{blocks: b.n}
	for i, x := range xs {
		if x > 0 {
			d.values = append(d.values, value{x, 1, b.of[i]})
		}
	}
	slices.SortFunc(d.values, func(p, q value) int {
		switch {
		case p.x < q.x:
			return -1
		case p.x > q.x:
			return 1
		}
		return 0
	})
	return d
}

// gaps are the mean gaps of requests, by their number.
func (b blocks) gaps(c *Columns) drawn {
	d := drawn{blocks: b.n}
	for i, n := range c.Gaps {
		if n > 0 {
			d.values = append(d.values, value{c.GapSum[i] / float64(n), float64(n), b.of[i]})
		}
	}
	return d
}

// times is how often each block was drawn; nil stands for once each.
func (d *drawn) times(rng *rand.Rand) []float64 {
	n := make([]float64, d.blocks)
	for range d.blocks {
		n[rng.IntN(d.blocks)]++
	}
	return n
}

func (d *drawn) weight(v value, times []float64) float64 {
	if times == nil {
		return v.weight
	}
	return v.weight * times[v.block]
}

func (d *drawn) mean(times []float64) float64 {
	sum, weights := 0.0, 0.0
	for _, v := range d.values {
		w := d.weight(v, times)
		sum, weights = sum+w*v.x, weights+w
	}
	return sum / weights
}

var quantiles = [...]float64{.5, .95, .99}

// summary is the mean and the quantiles of sorted values of weight 1.
func (d *drawn) summary(times []float64) (s [1 + len(quantiles)]float64) {
	s[0] = d.mean(times)
	total := 0.0
	for _, v := range d.values {
		total += d.weight(v, times)
	}
	seen, next := 0.0, 0
	for i, v := range d.values {
		seen += d.weight(v, times)
		for next < len(quantiles) && (seen > quantiles[next]*(total-1) || i == len(d.values)-1) {
			s[1+next] = v.x
			next++
		}
	}
	return s
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) } // the same intervals for the same runs

func ratios(name string, old, now drawn, oldSpread, newSpread report.Spread) []Ratio {
	if len(old.values) == 0 || len(now.values) == 0 {
		return nil
	}
	names := [...]string{" mean", " p50", " p95", " p99"}
	rng := newRand()
	var each [len(names)][]float64
	for range draws {
		a, b := old.summary(old.times(rng)), now.summary(now.times(rng))
		for i := range names {
			each[i] = append(each[i], b[i]/a[i])
		}
	}
	a, b := [...]float64{oldSpread.Mean, oldSpread.P50, oldSpread.P95, oldSpread.P99}, [...]float64{newSpread.Mean, newSpread.P50, newSpread.P95, newSpread.P99}
	var all []Ratio
	for i := range names {
		all = append(all, interval(Ratio{Figure: name + names[i], Old: a[i], New: b[i]}, each[i]))
	}
	return all
}

func meanRatio(name string, old, now drawn) []Ratio {
	if len(old.values) == 0 || len(now.values) == 0 {
		return nil
	}
	rng := newRand()
	var each []float64
	for range draws {
		a := old.mean(old.times(rng))
		each = append(each, now.mean(now.times(rng))/a)
	}
	return []Ratio{interval(Ratio{Figure: name, Old: old.mean(nil), New: now.mean(nil)}, each)}
}

// perSecond compares counts of the whole windows of all models together.
func perSecond(name string, old, now *Report, of func(*Window) float64) []Ratio {
	counts := func(r *Report) (d drawn) {
		for i := range r.Windows {
			if w := &r.Windows[i]; w.Model == "" && r.whole(w) {
				d.values = append(d.values, value{of(w), 1, d.blocks})
				d.blocks++
			}
		}
		return d
	}
	a, b := counts(old), counts(now)
	if a.blocks < minBlocks || b.blocks < minBlocks {
		return nil
	}
	return meanRatio(name, a, b)
}

// interval completes a ratio by those of the draws. A draw of nothing at all
// says nothing.
func interval(r Ratio, each []float64) Ratio {
	each = slices.DeleteFunc(each, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	slices.Sort(each)
	r.Ratio, r.Low, r.High = r.New/r.Old, 0, 0
	if len(each) > 0 {
		r.Low, r.High = report.Quantile(each, .025), report.Quantile(each, .975)
	}
	if math.IsNaN(r.Ratio) || math.IsInf(r.Ratio, 0) {
		r.Ratio = 0
	}
	return r
}
