package targets

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/firsttoken/firsttoken/internal/report"
)

// Table is one part: figures, and what they say of the targets.
type Table struct {
	Name     string     `json:"name"`
	Title    string     `json:"title"`
	Notes    []string   `json:"notes,omitempty"`
	Columns  []string   `json:"columns,omitempty"`
	Rows     [][]string `json:"rows,omitempty"`
	Verdicts []Verdict  `json:"verdicts,omitempty"`
}

// Verdict holds a figure against a target.
type Verdict struct {
	What   string  `json:"what"`
	Value  float64 `json:"value"`
	Target float64 `json:"target"`
	Most   bool    `json:"at_most"` // the target is the most that it may be, else the least
	Format string  `json:"-"`
}

// Met reports whether the figure is as the target wants it.
func (v *Verdict) Met() bool {
	if v.Most {
		return v.Value <= v.Target
	}
	return v.Value >= v.Target
}

// Write prints the table for a terminal.
func (t *Table) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "== %s: %s\n", t.Name, t.Title)
	for _, n := range t.Notes {
		fmt.Fprintln(&b, n)
	}
	if len(t.Rows) > 0 {
		out := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(out, strings.Join(t.Columns, "\t")+"\t")
		for _, row := range t.Rows {
			fmt.Fprintln(out, strings.Join(row, "\t")+"\t")
		}
		_ = out.Flush() // into memory
	}
	for i := range t.Verdicts {
		v := &t.Verdicts[i]
		fmt.Fprintf(&b, "%s  %s: "+v.Format+", wanted %s "+v.Format+"\n", word(v.Met(), "met   ", "MISSED"), v.What, v.Value, word(v.Most, "at most", "at least"), v.Target)
	}
	fmt.Fprintln(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func word(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}

func (t *Table) row(cells ...string) { t.Rows = append(t.Rows, cells) }

// atLeast and atMost hold a figure against a target; no figure is no verdict.
func (t *Table) atLeast(what, format string, value, least float64) {
	t.verdict(Verdict{What: what, Value: value, Target: least, Format: format})
}

func (t *Table) atMost(what, format string, value, most float64) {
	t.verdict(Verdict{What: what, Value: value, Target: most, Format: format, Most: true})
}

func (t *Table) verdict(v Verdict) {
	if !math.IsNaN(v.Value) && !math.IsInf(v.Value, 0) {
		t.Verdicts = append(t.Verdicts, v)
	}
}

// times is a rate multiplier.
func times(x float64) string { return fmt.Sprintf("%.3g×", x) }

func share(x float64) string {
	if math.IsNaN(x) {
		return "–"
	}
	return fmt.Sprintf("%.1f%%", 100*x)
}

func ms(x float64) string { return fmt.Sprintf("%.0f", x) }

// ratio is that of two figures by seed, with its interval.
func ratio(over, under []float64) (report.Difference, string) {
	d := report.Compare("", "", over, under)
	if d.Ratio >= 1000 {
		return d, "far above"
	}
	if d.Seeds < 2 {
		return d, fmt.Sprintf("%.2f", d.Ratio)
	}
	return d, fmt.Sprintf("%.2f (%.2f–%.2f)", d.Ratio, d.Low, d.High)
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// lowest is NaN of none.
func lowest(xs []float64) float64 {
	low := math.NaN()
	for _, x := range xs {
		if !(low <= x) {
			low = x
		}
	}
	return low
}

// geometric is the geometric mean, NaN of none.
func geometric(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += math.Log(x)
	}
	return math.Exp(sum / float64(len(xs)))
}
