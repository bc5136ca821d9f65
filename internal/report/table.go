package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"
)

// Report is what a command prints: one run a policy, and how they compare.
type Report struct {
	Title       string       `json:"title"`
	Objective   string       `json:"objective,omitempty"`
	Notes       []string     `json:"notes,omitempty"`
	Partial     bool         `json:"partial,omitempty"` // it was stopped before its end
	Runs        []Run        `json:"runs,omitempty"`
	Differences []Difference `json:"differences,omitempty"`
	Goodput     []Goodput    `json:"highest_goodput,omitempty"`
}

// WriteTable prints the report for a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintln(&b, r.Title)
	if r.Partial {
		fmt.Fprintln(&b, "stopped before its end: the figures cover what was served until then")
	}
	if r.Objective != "" {
		fmt.Fprintln(&b, "objective:", r.Objective)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(&b, n)
	}
	fmt.Fprintln(&b)
	r.writeRuns(&b)
	r.writeAdmission(&b)
	r.writePromises(&b)
	writeDifferences(&b, r.Differences)
	writeGoodput(&b, r.Goodput)
	for i := range r.Runs {
		r.writeDetail(&b, &r.Runs[i])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) writeRuns(b *strings.Builder) {
	if len(r.Runs) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "run\trequests\trefused\tfailed\tTTFT mean\tσ\tp50\tp90\tp95\tp99\tTPOT mean\tp95\tE2E p50\tp95\tmet\tgoodput/s\t")
	for i := range r.Runs {
		g := &r.Runs[i].All
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Runs[i].Name,
			g.Requests, g.Refused, g.Failed,
			ms(g.TTFT.Mean), ms(g.TTFT.StdDev), ms(g.TTFT.P50), ms(g.TTFT.P90), ms(g.TTFT.P95), ms(g.TTFT.P99),
			ms(g.TPOT.Mean), ms(g.TPOT.P95), ms(g.E2E.P50), ms(g.E2E.P95),
			r.judged("%.1f%%", 100*g.Met), r.judged("%.2f", r.Runs[i].Goodput))
	}
	_ = t.Flush() // into memory
	fmt.Fprintln(b, "times in milliseconds")
}

// writeAdmission tells what was predicted, held and shed, if anything was.
func (r *Report) writeAdmission(b *strings.Builder) {
	if !slices.ContainsFunc(r.Runs, func(run Run) bool { return run.Prediction != nil || run.All.Shed > 0 }) {
		return
	}
	fmt.Fprintln(b)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "run\terror of P50\twithin P95\theld\tmean\tp99\tshed\tfor\t")
	for i := range r.Runs {
		run := &r.Runs[i]
		off, within := "–", "–"
		if p := run.Prediction; p != nil {
			off, within = percent(p.MAPE), percent(p.Coverage)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%d\t%s\t\n", run.Name, off, within,
			run.Held.Count, ms(run.Held.Mean), ms(run.Held.P99), run.All.Shed, shedFor(run.Reasons))
	}
	_ = t.Flush()
}

// shedFor lists why requests were shed.
func shedFor(reasons map[string]int) string {
	var parts []string
	for _, reason := range keys(reasons) {
		if why, ok := strings.CutPrefix(reason, Shed); ok {
			parts = append(parts, fmt.Sprintf("%s %d", cmp.Or(strings.TrimPrefix(why, "_"), "load"), reasons[reason]))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "–")
}

// writePromises tells how the contracts were kept, contract by contract.
func (r *Report) writePromises(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	empty := true
	for i := range r.Runs {
		for _, p := range r.Runs[i].ByContract {
			if empty {
				fmt.Fprintln(t, "\ncontract\trun\trequests\tmet\tshed\theld\tmean\tp99\tobjectives")
				empty = false
			}
			shed := 0
			for _, n := range p.Shed {
				shed += n
			}
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d\t%s\t%s\t%s\n", p.Name, r.Runs[i].Name, p.Requests, percent(p.Met),
				shed, p.Held.Count, ms(p.Held.Mean), ms(p.Held.P99), attainments(p.Objectives))
		}
	}
	_ = t.Flush()
}

// attainments reads "P95 TTFT ≤ 320ms by 97.1%, P95 TPOT ≤ 80ms by 93.0% (missed)".
func attainments(all []Attainment) string {
	var parts []string
	for _, a := range all {
		switch {
		case a.Judged == 0:
			parts = append(parts, a.Name+" by none asked")
		case a.Kept():
			parts = append(parts, a.Name+" by "+percent(a.Share))
		default:
			parts = append(parts, a.Name+" by "+percent(a.Share)+" (missed)")
		}
	}
	return strings.Join(parts, ", ")
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

func writeDifferences(b *strings.Builder, ds []Difference) {
	if len(ds) == 0 {
		return
	}
	fmt.Fprintln(b)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "compared with the first\tfigure\tratio\t95 % interval\tseeds\t\t")
	for _, d := range ds {
		verdict := "no difference shown"
		switch {
		case d.Sure():
			verdict = "differs"
		case d.Seeds < EnoughSeeds:
			verdict = "too few seeds to say"
		}
		fmt.Fprintf(t, "%s\t%s\t%.3f\t%.3f to %.3f\t%d\t%s\t\n", d.Name, d.Metric, d.Ratio, d.Low, d.High, d.Seeds, verdict)
	}
	_ = t.Flush()
}

func writeGoodput(b *strings.Builder, gs []Goodput) {
	if len(gs) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "run\thighest rate\tgoodput/s\tmet\t")
	for _, g := range gs {
		if g.Multiplier == 0 {
			fmt.Fprintf(t, "%s\tnone\t-\t-\t\n", g.Name)
			continue
		}
		fmt.Fprintf(t, "%s\t%.3g×\t%.2f\t%.1f%%\t\n", g.Name, g.Multiplier, g.Requests, 100*g.Met)
	}
	_ = t.Flush()
}

func (r *Report) writeDetail(b *strings.Builder, run *Run) {
	if len(run.Engines)+len(run.ByModel)+len(run.ByTurn)+len(run.ByRegime) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s\n", run.Name)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(run.Engines) > 0 {
		fmt.Fprintln(t, "engine\tshare\tutilisation\tcache hits\tpreemptions\t")
		for _, e := range run.Engines {
			fmt.Fprintf(t, "%s\t%.1f%%\t%.1f%%\t%.1f%%\t%d\t\n", e.Name, 100*e.Share, 100*e.Utilisation, 100*e.CacheHits, e.Preemptions)
		}
		_ = t.Flush()
	}
	for _, part := range [][]Group{run.ByModel, run.ByTurn, run.ByRegime} {
		if len(part) == 0 {
			continue
		}
		fmt.Fprintln(t, "\trequests\tTTFT mean\tp50\tp95\tp99\tTPOT p95\tmet\t")
		for _, g := range part {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t\n", g.Name, g.Requests,
				ms(g.TTFT.Mean), ms(g.TTFT.P50), ms(g.TTFT.P95), ms(g.TTFT.P99), ms(g.TPOT.P95), r.judged("%.1f%%", 100*g.Met))
		}
		_ = t.Flush()
	}
	if len(run.Reasons) > 1 {
		fmt.Fprint(b, "ends:")
		for _, k := range keys(run.Reasons) {
			fmt.Fprintf(b, " %s %d", k, run.Reasons[k])
		}
		fmt.Fprintln(b)
	}
}

// judged shows a figure that means something only against an objective.
func (r *Report) judged(format string, v float64) string {
	if r.Objective == "" {
		return "–"
	}
	return fmt.Sprintf(format, v)
}

func keys(m map[string]int) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

func ms(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
