package evaluate

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// WriteHTML prints the report as one file that needs no other: for every run
// what was predicted against what came, how often the truth stayed below P50
// and P95, and the tables.
func (r *Report) WriteHTML(w io.Writer) error {
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		return err
	}
	var sections []report.Section
	for i := range r.Runs {
		sections = append(sections, r.Runs[i].section())
	}
	for i := range r.Measured {
		sections = append(sections, r.Measured[i].section())
	}
	return report.WritePage(w, r.Title, nil, append(sections, report.Section{Title: "Figures", Body: report.Preformatted(table.String())})...)
}

func (r *Run) section() report.Section {
	return report.Section{
		Title: r.Name(),
		Body:  `<div style="display:flex;flex-wrap:wrap;gap:1rem">` + scatter(r.Rows) + reliability(r.Scores) + "</div>",
	}
}

// chart is a square drawing with a margin for its axes.
type chart struct{ strings.Builder }

const (
	chartSize   = 340.0
	chartMargin = 44.0
	chartRoom   = chartSize - chartMargin - 24
)

func across(share float64) float64 { return chartMargin + share*chartRoom }
func up(share float64) float64     { return chartSize - chartMargin - share*chartRoom }

func newChart(label string) *chart {
	c := &chart{}
	fmt.Fprintf(c, `<svg viewBox="0 0 %g %g" style="max-width:%gpx" role="img" aria-label="%s">`, chartSize, chartSize, chartSize, html.EscapeString(label))
	return c
}

func (c *chart) end() string { return c.String() + "</svg>" }

func (c *chart) text(x, y float64, anchor, text string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, y, anchor, html.EscapeString(text))
}

func (c *chart) line(x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, `<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, x1, y1, x2, y2)
}

// shade of a regime: Okabe and Ito 2008.
func shade(r predictor.Regime) string {
	return [...]string{"#56b4e9", "#009e73", "#e69f00", "#d55e00", "#7f7f7f"}[min(r, predictor.Regimes)]
}

// most points of a scatter plot.
const scatterPoints = 500

// scatter shows P50 of what served against the truth, both logarithmic.
func scatter(rows []Row) string {
	lo, hi := math.Inf(1), 0.0
	var shown []*Row
	for i := 0; i < len(rows); i += len(rows)/scatterPoints + 1 {
		r := &rows[i]
		if p50 := r.Said[r.Served].P50; r.judged() && p50 > 0 {
			lo, hi = min(lo, p50.Seconds(), r.TTFT.Seconds()), max(hi, p50.Seconds(), r.TTFT.Seconds())
			shown = append(shown, r)
		}
	}
	if !(hi > lo) {
		return "<p>Too little to show.</p>"
	}
	place := func(v float64) float64 { return math.Log(v/lo) / math.Log(hi/lo) }
	c := newChart("predicted against actual time to first token")
	c.line(across(0), up(0), across(1), up(1))
	for _, v := range ticks(lo, hi) {
		c.line(across(place(v)), up(0), across(place(v)), up(1))
		c.line(across(0), up(place(v)), across(1), up(place(v)))
		c.text(across(place(v)), up(0)+16, "middle", fmt.Sprintf("%g s", v))
		c.text(across(0)-4, up(place(v))+4, "end", fmt.Sprintf("%g s", v))
	}
	for _, r := range shown {
		fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="1.8" fill="%s" fill-opacity=".6"/>`,
			across(place(r.TTFT.Seconds())), up(place(r.Said[r.Served].P50.Seconds())), shade(r.Regime))
	}
	c.text(across(.5), chartSize-8, "middle", "actual")
	c.text(chartMargin, 10, "start", "predicted P50")
	return c.end()
}

// ticks are at most six round values between lo and hi.
func ticks(lo, hi float64) []float64 {
	var all []float64
	for unit := math.Floor(math.Log10(lo)); unit <= math.Log10(hi); unit++ {
		for _, m := range []float64{1, 2, 5} {
			v, err := strconv.ParseFloat(fmt.Sprintf("%ge%g", m, unit), 64)
			if err == nil && v >= lo && v <= hi {
				all = append(all, v)
			}
		}
	}
	for len(all) > 6 {
		kept := all[:0]
		for i := 0; i < len(all); i += 2 {
			kept = append(kept, all[i])
		}
		all = kept
	}
	return all
}

// reliability has two bars a regime: the share of requests up to P50 and up to
// P95. They should end at the lines.
func reliability(scores []Score) string {
	c := newChart("share of requests up to P50 and P95 by regime")
	for _, nominal := range []float64{0, 0.5, 0.95, 1} {
		c.line(across(0), up(nominal), across(1), up(nominal))
		c.text(across(0)-4, up(nominal)+4, "end", fmt.Sprintf("%g", nominal))
	}
	const slot = 1.0 / float64(predictor.Regimes+1)
	for r := range predictor.Regimes + 1 {
		s, left := Find(scores, Served, r.String()), slot*float64(r)
		c.text(across(left+slot/2), up(0)+16, "middle", r.String())
		if s == nil {
			continue
		}
		c.text(across(left+slot/2), up(0)+30, "middle", fmt.Sprint(s.Rows))
		for k, share := range []float64{float64(s.Below), float64(s.Coverage)} {
			if math.IsNaN(share) {
				continue
			}
			fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" fill-opacity="%g"><title>%.3f</title></rect>`,
				across(left+slot*(.12+.4*float64(k))), up(share), slot*.36*chartRoom, share*chartRoom, shade(r), []float64{.5, 1}[k], share)
		}
	}
	c.text(chartMargin, 10, "start", "share of requests up to P50, P95")
	return c.end()
}
