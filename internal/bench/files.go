package bench

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
)

// WriteJSON prints the whole report as one document; Read reads it.
func (r *Report) WriteJSON(w io.Writer) error {
	return json.NewEncoder(w).Encode(r)
}

// WriteCSV prints one line a request, those that failed included; a cell that
// does not apply is empty. arrival_s counts from the start.
func (r *Run) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"request", "model", "arrival_s", "late_ms", "concurrency", "prompt_tokens", "cached_tokens", "output_tokens",
		"tokens_counted_by", "ttft_ms", "itl_mean_ms", "tpot_ms", "e2e_ms", "finish_reason", "outcome", "status", "error"}) // Flush reports it
	for i := range r.Results {
		_ = out.Write(r.Results[i].row())
	}
	out.Flush()
	return out.Error()
}

func (r *Result) row() []string {
	by, gap := "chunks", time.Duration(0)
	if r.Counted {
		by = "usage"
	}
	if n := len(r.Tokens) - 1; n > 0 {
		gap = (r.Tokens[n] - r.Tokens[0]) / time.Duration(n)
	}
	return []string{
		strconv.Itoa(r.Index), r.Model, strconv.FormatFloat(r.At.Seconds(), 'f', 6, 64), cell(r.Late), strconv.Itoa(r.Concurrency),
		strconv.Itoa(r.Prompt), strconv.Itoa(r.Cached), strconv.Itoa(r.Output), by,
		cell(r.TTFT()), cell(gap), cell(r.TPOT()), cell(r.E2E), r.Finish, string(r.Outcome), strconv.Itoa(r.Status), r.Error,
	}
}

func cell(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return strconv.FormatFloat(milliseconds(d), 'f', 3, 64)
}

// WriteWindows prints one line a second and model; the rows without a model are
// of all. A cell without a value is empty.
func (r *Report) WriteWindows(w io.Writer) error {
	out := csv.NewWriter(w)
	head := []string{"second", "model", "sent", "served", "failed", "met", "in_flight", "output_tokens"}
	for _, name := range []string{"ttft", "itl", "tpot", "e2e"} {
		for _, figure := range []string{"mean", "stddev", "p50", "p95", "p99"} {
			head = append(head, name+"_"+figure+"_ms")
		}
	}
	_ = out.Write(head)
	for i := range r.Windows {
		x := &r.Windows[i]
		row := []string{strconv.Itoa(x.Second), x.Model, strconv.Itoa(x.Sent), strconv.Itoa(x.Served), strconv.Itoa(x.Failed), strconv.Itoa(x.Met),
			strconv.FormatFloat(x.InFlight, 'f', 3, 64), strconv.FormatFloat(x.OutputTokens, 'f', 1, 64)}
		for _, s := range []report.Spread{x.TTFT, x.ITL, x.TPOT, x.E2E} {
			row = append(row, cells(s)...)
		}
		_ = out.Write(row)
	}
	out.Flush()
	return out.Error()
}

func cells(s report.Spread) []string {
	if s.Count == 0 {
		return make([]string, 5)
	}
	var row []string
	for _, v := range []float64{s.Mean, s.StdDev, s.P50, s.P95, s.P99} {
		row = append(row, strconv.FormatFloat(v, 'f', 3, 64))
	}
	return row
}

// WriteHTML prints the report as one file that needs no other.
func (r *Report) WriteHTML(w io.Writer, run *Run) error {
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		return err
	}
	var names []string
	var ttft, itl [][]float64
	for _, g := range byModel(run.Results) {
		names = append(names, g[0].Model)
		var t tally
		for i := range g {
			if g[i].OK() {
				t.add(&g[i])
			}
		}
		slices.Sort(t.ttft)
		slices.Sort(t.itl)
		ttft, itl = append(ttft, t.ttft), append(itl, t.itl)
	}
	return report.WritePage(w, fmt.Sprintf("Bench of %s, %s", r.Plan.Target, r.Started.UTC().Format("2006-01-02 15:04 UTC")), names,
		report.Section{Title: "Time to first token", Body: report.DistributionChart("TTFT in milliseconds", ttft)},
		report.Section{Title: "Gaps between tokens", Body: report.DistributionChart("ITL in milliseconds", itl)},
		report.Section{Title: "P95 of TTFT over time", Body: r.chart("milliseconds", names, func(w *Window) float64 { return w.TTFT.P95 })},
		report.Section{Title: "Output over time", Body: r.chart("tokens/s", names, func(w *Window) float64 { return w.OutputTokens })},
		report.Section{Title: "In flight over time", Body: r.chart("requests", names, func(w *Window) float64 { return w.InFlight })},
		report.Section{Title: "Figures", Body: report.Preformatted(table.String())})
}

// chart is a curve over the whole windows for each model.
func (r *Report) chart(label string, models []string, of func(*Window) float64) string {
	var curves [][]report.Point
	for _, m := range models {
		if len(models) == 1 {
			m = ""
		}
		var curve []report.Point
		for i := range r.Windows {
			if w := &r.Windows[i]; w.Model == m && r.whole(w) {
				curve = append(curve, report.Point{X: float64(w.Second), Y: of(w)})
			}
		}
		curves = append(curves, curve)
	}
	return report.LineChart("seconds", label, curves...)
}
