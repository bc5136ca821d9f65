package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// results are metric → peer → one value a round.
type results map[string]map[string][]float64

// added is a metric's latency over direct, round by round.
func (r results) added(metric string) map[string][]float64 {
	direct := r[metric][nameDirect]
	out := map[string][]float64{}
	for name, values := range r[metric] {
		out[name] = over(values, direct)
	}
	delete(out, nameDirect)
	return out
}

// row is one line of the table.
type row struct {
	name   string
	values map[string][]float64
}

func (r results) rows() []row {
	var rows []row
	plainRow := func(metric string) { rows = append(rows, row{metric, r[metric]}) }
	addedRow := func(c cell, metric string) {
		rows = append(rows, row{c.String() + " added " + metric, r.added(c.String() + " " + metric)})
	}
	for _, c := range cells {
		plainRow(c.String() + " CPU us")
		plainRow(c.String() + " per second")
		if c.conns == 16 {
			continue
		}
		if c.kind.stream {
			addedRow(c, "TTFT p50 us")
			addedRow(c, "TTFT p99 us")
		}
		addedRow(c, "p50 us")
		addedRow(c, "p99 us")
	}
	plainRow("idle stream, RSS KiB")
	plainRow("idle stream, PSS KiB")
	plainRow("RSS after load, MiB")
	return rows
}

// against are the peers the gateway is divided by.
var against = []string{nameRelay, nameNginx, nameCaddy}

// print writes the medians over rounds, and the medians of the gateway's
// ratios to peers in the same round.
func (r results) print(w io.Writer, peers []peer, s settings) {
	fmt.Fprintf(w, "\n%d cores, %s, %d rounds of %v a cell, medians; latencies are over direct in the same round.\n", runtime.NumCPU(), runtime.Version(), s.Rounds, s.Duration)
	fmt.Fprintf(w, "json: one small answer. stream: %d events at once. paced: the same, a token every %v.\n", events, pace)
	fmt.Fprintf(w, "At c=16 and c=64 without a pace all cores are busy, load and mock included.\n\n%s\n\n", fairness)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")+"\t") }
	names, versions := []string{""}, []string{""}
	for _, p := range peers {
		names, versions = append(names, p.name), append(versions, p.version)
	}
	for _, a := range against {
		names = append(names, "ft/"+a)
	}
	line(names...)
	line(append(versions, make([]string, len(against))...)...)
	for _, row := range r.rows() {
		cells := []string{row.name}
		for _, p := range peers {
			cells = append(cells, number(row.values[p.name]))
		}
		for _, a := range against {
			cells = append(cells, number(ratios(row.values[nameGateway], row.values[a])))
		}
		line(cells...)
	}
	_ = t.Flush() // to standard output
	printTargets(w, r.targets())
}

// number prints a median with about three digits.
func number(values []float64) string {
	v := median(values)
	switch {
	case len(values) == 0 || math.IsNaN(v):
		return "-"
	case math.Abs(v) < 10:
		return fmt.Sprintf("%.2f", v)
	case math.Abs(v) < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// over subtracts round by round.
func over(of, by []float64) []float64 {
	var out []float64
	for i := range min(len(of), len(by)) {
		out = append(out, of[i]-by[i])
	}
	return out
}

// ratios divides round by round; a round without a sensible divisor is left out.
func ratios(of, by []float64) []float64 {
	var out []float64
	for i := range min(len(of), len(by)) {
		if by[i] > 0 {
			out = append(out, of[i]/by[i])
		}
	}
	return out
}

// target is what the gateway promises in one figure.
type target struct {
	name  string
	value []float64
	most  float64
}

func (r results) targets() []target {
	over := func(metric, peer string) []float64 { return ratios(r[metric][nameGateway], r[metric][peer]) }
	var all []target
	for _, c := range []cell{{stream, 1}, {stream, 16}, {stream, 64}, {paced, 64}} {
		all = append(all,
			target{"CPU, " + c.String() + " / caddy", over(c.String()+" CPU us", nameCaddy), 1},
			target{"CPU, " + c.String() + " / relay", over(c.String()+" CPU us", nameRelay), 1.2})
	}
	for _, metric := range []string{"json c=1 p50 us", "json c=64 p50 us", "stream c=1 TTFT p50 us", "stream c=64 p50 us", "paced c=64 TTFT p50 us"} {
		added := r.added(metric)
		all = append(all, target{"added " + metric + " / caddy", ratios(added[nameGateway], added[nameCaddy]), 1})
	}
	return append(all, target{"idle stream, RSS KiB", r["idle stream, RSS KiB"][nameGateway], 60})
}

func printTargets(w io.Writer, all []target) {
	fmt.Fprintln(w, "\ntargets of firsttoken (most, got):")
	for _, t := range all {
		verdict := "met"
		switch {
		case len(t.value) == 0:
			verdict = "not measured"
		case median(t.value) > t.most:
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "  %-36s %5g  %6s  %s\n", t.name, t.most, number(t.value), verdict)
	}
}

// save writes every value of every round as JSON.
func (r results) save(file string, peers []peer, s settings) error {
	versions := map[string]string{}
	for _, p := range peers {
		versions[p.name] = p.version
	}
	met := map[string]bool{}
	for _, t := range r.targets() {
		met[t.name] = len(t.value) > 0 && median(t.value) <= t.most
	}
	names := make([]string, 0, len(peers))
	for _, p := range peers {
		names = append(names, p.name)
	}
	slices.Sort(names)
	text, err := json.MarshalIndent(map[string]any{
		"cores": runtime.NumCPU(), "go": runtime.Version(), "settings": s,
		"peers": names, "versions": versions, "metrics": r, "targets_met": met,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
