package report

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"sort"
	"strings"
)

// Section is a part of a page; its body is HTML.
type Section struct{ Title, Body string }

// WriteHTML prints the report as one file that needs no other: the tables and,
// as SVG, the distribution of TTFT, the load over time and each engine's share.
func (r *Report) WriteHTML(w io.Writer) error {
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		return err
	}
	names := make([]string, len(r.Runs))
	ttfts := make([][]float64, len(r.Runs))
	for i := range r.Runs {
		names[i], ttfts[i] = r.Runs[i].Name, r.Runs[i].TTFTs
	}
	var sections []Section
	if len(r.Runs) > 0 {
		sections = []Section{
			{"Time to first token", DistributionChart("TTFT in milliseconds", ttfts)},
			{"Load over time", r.load()},
			{"Share of requests by engine", r.shares()},
		}
	}
	return WritePage(w, r.Title, names, append(sections, Section{"Figures", Preformatted(table.String())})...)
}

// WritePage prints one HTML file that needs no other. The names are the legend
// of its charts.
func WritePage(w io.Writer, title string, names []string, sections ...Section) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>%[1]s</title><style>
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
pre{overflow-x:auto;font-size:13px}svg{width:100%%;height:auto;max-width:60rem}svg text{font:12px system-ui,sans-serif;fill:currentColor}
.grid{stroke:currentColor;stroke-opacity:.15}.keys{display:flex;flex-wrap:wrap;gap:0 1.2em}.keys svg{width:1.6em;height:.8em;margin-right:.4em}
</style></head><body><h1>%[1]s</h1>`, html.EscapeString(title))
	b.WriteString(legend(names, line))
	for _, s := range sections {
		fmt.Fprintf(&b, "<h2>%s</h2>%s", html.EscapeString(s.Title), s.Body)
	}
	b.WriteString("</body></html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// Preformatted is text as it stands, for a Section.
func Preformatted(text string) string { return "<pre>" + html.EscapeString(text) + "</pre>" }

// colour gives each run one of eight colours that remain apart for most
// colour-blind readers (Okabe and Ito 2008).
func colour(i int) string {
	return [...]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a800"}[i%8]
}

// line and area are how run or engine i is drawn: those of the same colour
// differ in dashes or in depth.
func line(i int) string {
	return fmt.Sprintf(`fill="none" stroke="%s" stroke-dasharray="%s"`, colour(i), [...]string{"none", "7 3", "2 3"}[i/8%3])
}

func area(i int) string {
	return fmt.Sprintf(`fill="%s" fill-opacity="%g"`, colour(i), [...]float64{1, .65, .35}[i/8%3])
}

// legend shows how each name is drawn.
func legend(names []string, drawn func(i int) string) string {
	var b strings.Builder
	b.WriteString(`<p class="keys">`)
	for i, name := range names {
		fmt.Fprintf(&b, `<span><svg viewBox="0 0 32 16" aria-hidden="true"><path d="M0 6H32V10H0Z" stroke-width="4" %s/></svg>%s</span>`,
			drawn(i), html.EscapeString(name))
	}
	return b.String() + "</p>"
}

// plot is a chart of 900 × 320 with its axes.
type plot struct {
	b          strings.Builder
	maxX, maxY float64
	logX       bool
	minX       float64
}

const (
	plotWidth, plotHeight             = 900.0, 320.0
	plotLeft, plotBottom, plotPadding = 60.0, 40.0, 24.0
)

func (p *plot) x(v float64) float64 {
	share := v / p.maxX
	if p.logX {
		share = math.Log(v/p.minX) / math.Log(p.maxX/p.minX)
	}
	return plotLeft + share*(plotWidth-plotLeft-plotPadding)
}

func (p *plot) y(v float64) float64 {
	return plotHeight - plotBottom - v/p.maxY*(plotHeight-plotBottom-plotPadding)
}

func (p *plot) frame(xLabel, yLabel string, xTicks, yTicks []float64, format string) {
	fmt.Fprintf(&p.b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s by %s">`, plotWidth, plotHeight, html.EscapeString(yLabel), html.EscapeString(xLabel))
	for _, t := range xTicks {
		fmt.Fprintf(&p.b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/><text x="%.1f" y="%g" text-anchor="middle">%g</text>`,
			p.x(t), p.x(t), plotPadding, plotHeight-plotBottom, p.x(t), plotHeight-plotBottom+16, t)
	}
	for _, t := range yTicks {
		fmt.Fprintf(&p.b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text x="%g" y="%.1f" text-anchor="end">`+format+`</text>`,
			plotLeft, plotWidth-plotPadding, p.y(t), p.y(t), plotLeft-6, p.y(t)+4, t)
	}
	fmt.Fprintf(&p.b, `<text x="%g" y="%g" text-anchor="middle">%s</text><text x="%g" y="12">%s</text>`,
		plotWidth/2, plotHeight-6, html.EscapeString(xLabel), plotLeft, html.EscapeString(yLabel))
}

// line draws the curve of run i.
func (p *plot) line(points []Point, i int) {
	if len(points) == 0 {
		return
	}
	var path strings.Builder
	for k, q := range points {
		fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(k, 1)], p.x(q.X), p.y(q.Y))
	}
	fmt.Fprintf(&p.b, `<path d="%s" stroke-width="2" %s/>`, path.String(), line(i))
}

func (p *plot) end() string { return p.b.String() + "</svg>" }

// DistributionChart shows which share of each run's sorted values lies below
// what. Runs have the colours of the page's legend.
func DistributionChart(label string, runs [][]float64) string {
	lo, hi := math.Inf(1), 0.0
	for _, t := range runs {
		if above0 := t[sort.SearchFloat64s(t, math.SmallestNonzeroFloat64):]; len(above0) > 0 {
			lo, hi = min(lo, above0[0]), max(hi, Quantile(t, .999))
		}
	}
	if !(lo > 0 && hi > lo) {
		return "<p>Too little to show.</p>"
	}
	p := &plot{minX: lo, maxX: hi, maxY: 1, logX: true}
	p.frame(label+", log scale", "share of requests", decades(lo, hi), []float64{0, .25, .5, .75, .95, 1}, "%.2f")
	for i, t := range runs {
		var points []Point
		for q := 0.0; q <= 0.9991; q += 0.0025 {
			if len(t) > 0 {
				points = append(points, Point{X: max(Quantile(t, q), lo), Y: q})
			}
		}
		p.line(points, i)
	}
	return p.end()
}

// decades are the ticks 1, 2, 5 × 10ⁿ between lo and hi.
func decades(lo, hi float64) []float64 {
	var out []float64
	for unit := math.Pow(10, math.Floor(math.Log10(lo))); unit <= hi; unit *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if v := m * unit; v >= lo && v <= hi {
				out = append(out, v)
			}
		}
	}
	return out
}

// load shows the arrivals, which are the same for all, and what they become.
// Both charts go to the last end of any run.
func (r *Report) load() string {
	arrivals, inFlight, last := slices.Clone(r.Runs[0].Arrivals), make([][]Point, len(r.Runs)), 0.0
	for i := range r.Runs {
		inFlight[i] = r.Runs[i].InFlight
		last = max(last, r.Runs[i].Seconds)
	}
	if n := len(arrivals); n > 0 && last > arrivals[n-1].X {
		arrivals = append(arrivals, Point{X: last})
	}
	return LineChart("seconds", "arrivals a second", arrivals) + LineChart("seconds", "requests in flight", inFlight...)
}

// LineChart shows curves of values that aren't negative, in the colours of the
// page's legend.
func LineChart(xLabel, yLabel string, curves ...[]Point) string {
	p := &plot{}
	for _, points := range curves {
		for _, q := range points {
			p.maxX, p.maxY = max(p.maxX, q.X), max(p.maxY, q.Y)
		}
	}
	if p.maxX == 0 || p.maxY == 0 {
		return "<p>Too short to show.</p>"
	}
	p.frame(xLabel, yLabel, steps(p.maxX), steps(p.maxY), "%g")
	for i, points := range curves {
		p.line(points, i)
	}
	return p.end()
}

// steps are about five round ticks up to limit.
func steps(limit float64) []float64 {
	unit := math.Pow(10, math.Floor(math.Log10(limit)))
	for _, m := range []float64{.2, .5, 1} {
		if limit/(unit*m) <= 6 {
			unit *= m
			break
		}
	}
	var out []float64
	for v := 0.0; v <= limit; v += unit {
		out = append(out, math.Round(v*1e6)/1e6)
	}
	return out
}

// shares has a bar a run, with a part an engine.
func (r *Report) shares() string {
	const row, room = 42.0, plotWidth - plotPadding
	var b strings.Builder
	var names []string // of engines, in the order of their colours
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="share of requests by engine">`, plotWidth, row*float64(len(r.Runs)))
	for i := range r.Runs {
		y, x := float64(i)*row, 0.0
		fmt.Fprintf(&b, `<text x="0" y="%g">%s</text>`, y+13, html.EscapeString(r.Runs[i].Name))
		for _, e := range r.Runs[i].Engines {
			k := slices.Index(names, e.Name)
			if k < 0 {
				k, names = len(names), append(names, e.Name)
			}
			fmt.Fprintf(&b, `<rect x="%.1f" y="%g" width="%.1f" height="18" %s><title>%s: %.1f %%, %.1f %% busy</title></rect>`,
				x, y+18, e.Share*room, area(k), html.EscapeString(e.Name), 100*e.Share, 100*e.Utilisation)
			x += e.Share * room
		}
	}
	b.WriteString("</svg>")
	if len(names) > 24 { // too many to tell apart by colour; the parts have titles
		return b.String()
	}
	return b.String() + legend(names, area)
}
