package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
)

// WriteTable prints the report for a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	r.head(&b)
	r.spreads(&b)
	r.models(&b)
	r.workloads(&b)
	r.seconds(&b)
	r.errors(&b)
	r.comparison(&b)
	if len(r.Notes) > 0 {
		fmt.Fprintln(&b)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(&b, "note:", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) head(b *strings.Builder) {
	p, f := &r.Plan, &r.All
	fmt.Fprintf(b, "%s, %s: %s\n", p.Target, p.Endpoint, p.Describe())
	fmt.Fprintln(b, r.Environment.describe())
	if r.Partial {
		fmt.Fprintln(b, "stopped before its end: the figures cover what ended until then")
	}
	fmt.Fprintf(b, "\n%d requests in %.1f s: %d served, %d refused, %d failed\n", f.Requests, r.Seconds, f.Served, f.Refused, f.Failed)
	fmt.Fprintf(b, "%.2f requests/s, %.1f output tokens/s, %.1f in flight", f.RequestsPerSecond, f.OutputTokensPerSecond, f.InFlight)
	if f.CachedTokens > 0 {
		fmt.Fprintf(b, ", %.1f %% of prompt tokens cached", 100*f.cached())
	}
	fmt.Fprintln(b)
	if r.Objective != "" {
		fmt.Fprintf(b, "goodput %.2f requests/s: %.1f %% within the objective (%s)\n", f.Goodput, 100*f.Met, r.Objective)
	}
}

// Describe is the plan in a line.
func (p *Plan) Describe() string {
	parts := []string{"closed loop of " + fmt.Sprint(p.Concurrency)}
	if p.Open() {
		parts[0] = "open loop"
	}
	add := func(when bool, format string, v ...any) {
		if when {
			parts = append(parts, fmt.Sprintf(format, v...))
		}
	}
	add(p.Rate > 0, "%g requests/s", p.Rate)
	add(p.Law != "", "%s", p.Law)
	add(p.Trace != "", "trace %s", p.Trace)
	add(p.Workload != "", "workload %s", p.Workload)
	add(p.Multiplier > 0, "%g times as fast", p.Multiplier)
	add(p.PromptTokens != "", "%s prompt tokens", p.PromptTokens)
	add(p.OutputTokens != "", "%s output tokens", p.OutputTokens)
	add(p.Stream == "no", "not streamed")
	add(p.WarmUp > 0, "after %d of warm-up", p.WarmUp)
	add(true, "seed %d", p.Seed)
	return strings.Join(parts, ", ")
}

func (e *Environment) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "client %s, %d CPUs, %s, %s", cmp.Or(e.Client, "unknown"), e.CPUs, e.Go, e.Platform)
	if e.Gateway != "" {
		fmt.Fprintf(&b, "; gateway %s, backends:", e.Gateway)
	}
	for _, x := range e.Backends {
		about := slices.DeleteFunc([]string{x.Engine, x.GPU, x.CUDA, x.Quantization, x.Topology}, func(s string) bool { return s == "" })
		fmt.Fprintf(&b, " %s (%s)", x.Name, strings.Join(about, " "))
	}
	return b.String()
}

func newTable(b *strings.Builder) *tabwriter.Writer {
	return tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
}

func (r *Report) spreads(b *strings.Builder) {
	t := newTable(b)
	fmt.Fprintln(t, "\nmilliseconds\tcount\tmean\tσ\tp50\tp95\tp99\tmax\t")
	row := func(name string, s report.Spread) {
		if s.Count > 0 {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, s.Count, ms(s.Mean), ms(s.StdDev), ms(s.P50), ms(s.P95), ms(s.P99), ms(s.Max))
		}
	}
	row("TTFT", r.All.TTFT)
	row("ITL", r.All.ITL)
	row("TPOT", r.All.TPOT)
	row("E2E", r.All.E2E)
	row("sent late by", r.Lateness)
	if s := r.All.WindowTokens; s.Count > 0 {
		fmt.Fprintf(t, "output tokens/s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t\n", s.Count, s.Mean, s.StdDev, s.P50, s.P95, s.P99, s.Max)
	}
	_ = t.Flush() // into memory
}

func (r *Report) models(b *strings.Builder) {
	t := newTable(b)
	fmt.Fprintln(t, "\nmodel\trequests\tserved\ttokens/s\tTTFT mean\tσ\tp50\tp95\tp99\tITL mean\tp95\tp99\tTPOT mean\tp95\tE2E mean\tp95\tmet\t")
	for i := range r.ByModel {
		f := &r.ByModel[i]
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.Model, f.Requests, f.Served, f.OutputTokensPerSecond,
			ms(f.TTFT.Mean), ms(f.TTFT.StdDev), ms(f.TTFT.P50), ms(f.TTFT.P95), ms(f.TTFT.P99), ms(f.ITL.Mean), ms(f.ITL.P95), ms(f.ITL.P99),
			ms(f.TPOT.Mean), ms(f.TPOT.P95), ms(f.E2E.Mean), ms(f.E2E.P95), r.met(f))
	}
	_ = t.Flush()
}

// met is the share within the objective, where there is one.
func (r *Report) met(f *Figures) string {
	if r.Objective == "" {
		return "–"
	}
	return fmt.Sprintf("%.1f%%", 100*f.Met)
}

// seconds shows the windows as one character each, or fewer in a long run.
func (r *Report) seconds(b *strings.Builder) {
	if r.Seconds < 3 {
		return
	}
	var all []Window
	for i := range r.Windows {
		if r.Windows[i].Model == "" && r.whole(&r.Windows[i]) {
			all = append(all, r.Windows[i])
		}
	}
	per := (len(all) + sparks - 1) / sparks
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nover time, %v a step\tlow\thigh\t\n", time.Duration(per)*time.Second)
	for _, row := range []struct {
		name string
		of   func(*Window) float64
	}{
		{"output tokens/s", func(w *Window) float64 { return w.OutputTokens }},
		{"in flight", func(w *Window) float64 { return w.InFlight }},
		{"TTFT p95, ms", func(w *Window) float64 { return w.TTFT.P95 }},
		{"ITL p95, ms", func(w *Window) float64 { return w.ITL.P95 }},
	} {
		var values []float64
		for part := range slices.Chunk(all, per) {
			sum := 0.0
			for i := range part {
				sum += row.of(&part[i])
			}
			values = append(values, sum/float64(len(part)))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", row.name, ms(lowest(values)), ms(slices.Max(values)), spark(values))
	}
	_ = t.Flush()
}

// lowest leaves out seconds in which nothing was measured.
func lowest(values []float64) float64 {
	low := 0.0
	for _, v := range values {
		if v > 0 && (low == 0 || v < low) {
			low = v
		}
	}
	return low
}

// sparks is the most characters of a curve.
const sparks = 60

// spark draws values from 0 to their maximum.
func spark(values []float64) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	high := slices.Max(values)
	var b strings.Builder
	for _, v := range values {
		level := 0
		if high > 0 {
			level = min(int(v/high*float64(len(levels))), len(levels)-1)
		}
		b.WriteRune(levels[level])
	}
	return b.String()
}

func (r *Report) errors(b *strings.Builder) {
	if len(r.Errors) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nerrors\tcount\texample")
	for _, k := range r.Errors {
		fmt.Fprintf(t, "%s\t%d\t%s\n", k.Kind, k.Count, k.Example)
	}
	_ = t.Flush()
}

func (r *Report) comparison(b *strings.Builder) {
	c := r.Comparison
	if c == nil {
		return
	}
	t := newTable(b)
	fmt.Fprintf(t, "\ncompared with %s\told\tnew\tratio\t95 %% interval\t\t\n", c.Base)
	for _, x := range c.Ratios {
		verdict := "no difference shown"
		if x.Sure() {
			verdict = "differs"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.3f\t%.3f to %.3f\t%s\t\n", x.Figure, ms(x.Old), ms(x.New), x.Ratio, x.Low, x.High, verdict)
	}
	_ = t.Flush()
	fmt.Fprintf(b, "intervals by bootstrap over %s\n", c.Unit)
	for _, w := range c.Warnings {
		fmt.Fprintln(b, "warning:", w)
	}
}

func ms(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
