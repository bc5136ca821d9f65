package evaluate

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// Report is all that was evaluated.
type Report struct {
	Title     string     `json:"title"`
	Notes     []string   `json:"notes,omitempty"`
	Runs      []Run      `json:"runs,omitempty"`
	Measured  []Measured `json:"measured,omitempty"`
	Changes   []Change   `json:"changes,omitempty"`
	Steady    []Steady   `json:"steady,omitempty"`
	Ablations []Ablation `json:"ablations,omitempty"`
}

// WriteTable prints the report for a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintln(&b, r.Title)
	for _, n := range r.Notes {
		fmt.Fprintln(&b, n)
	}
	r.writeRuns(&b)
	r.writeRanks(&b)
	r.writeMeasured(&b)
	r.writeChanges(&b)
	for i := range r.Ablations {
		r.Ablations[i].write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func columns(b *strings.Builder) *tabwriter.Writer {
	return tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
}

// writeRuns prints the errors of all by run and regime, and of a single run
// all there is.
func (r *Report) writeRuns(b *strings.Builder) {
	if len(r.Runs) == 0 {
		return
	}
	fmt.Fprint(b, "\nError of P50 (MAPE) by estimator; coverage of P95 and pinball skill against the best baseline, of what served\n")
	t := columns(b)
	fmt.Fprintln(t, "run\tregime\trows\tanalytic\tlinear\tlightgbm\tserved\tbest baseline\toracle\tratio\tcoverage\tskill\tmissed\t")
	for i := range r.Runs {
		for regime := range predictor.Regimes + 1 {
			r.Runs[i].writeRegime(t, regime.String())
		}
	}
	_ = t.Flush() // into memory
	if v := Sum(r.Runs); v.Regimes > 0 {
		fmt.Fprintf(b, "of %d regimes with %d rows or more: error ≤ 12 %% in %d, ≤ 1.25 × the oracle's (or 5 %%) in %d, coverage 0.93 to 0.97 in %d, no baseline better in %d\n",
			v.Regimes, EnoughRows, v.NearTruth, v.NearOracle, v.Calibrated, v.Beats)
	}
	if len(r.Runs) == 1 {
		writeScores(b, r.Runs[0].Scores)
	}
	r.writeByLoad(b)
}

// writeByLoad puts the runs of one trace and fleet side by side.
func (r *Report) writeByLoad(b *strings.Builder) {
	var loads []float64
	for i := range r.Runs {
		if !slices.Contains(loads, r.Runs[i].Load) {
			loads = append(loads, r.Runs[i].Load)
		}
	}
	if len(loads) < 2 || len(r.Runs)%len(loads) != 0 {
		return
	}
	fmt.Fprintf(b, "\nError of what served / the oracle's, in %%, by load; coverage over all of them; in brackets: fewer than %d requests\n", EnoughRows)
	t := columns(b)
	fmt.Fprint(t, "trace\tfleet\tregime\t")
	for _, load := range loads {
		fmt.Fprintf(t, "%g\t", load)
	}
	fmt.Fprintln(t, "coverage\t")
	for i := 0; i < len(r.Runs); i += len(loads) {
		for regime := range predictor.Regimes {
			writeLoads(t, r.Runs[i:i+len(loads)], regime.String())
		}
	}
	_ = t.Flush()
}

func writeLoads(w io.Writer, runs []Run, regime string) {
	cells, covered, rows := "", 0.0, 0.0
	for i := range runs {
		s := Find(runs[i].Scores, Served, regime)
		if s == nil {
			cells += "–\t"
			continue
		}
		cell := plain(100*s.MAPE, 1) + " / " + plain(100*s.Oracle, 1)
		if s.Rows < EnoughRows {
			cell = "(" + cell + ")"
		}
		cells += cell + "\t"
		covered += float64(s.Coverage) * float64(s.Rows)
		rows += float64(s.Rows)
	}
	if rows > 0 {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s%.3f\t\n", runs[0].Trace, runs[0].Fleet, regime, cells, covered/rows)
	}
}

func (r *Run) writeRegime(w io.Writer, regime string) {
	s := Find(r.Scores, Served, regime)
	if s == nil {
		return
	}
	best := Best(r.Scores, regime, mapeOf)
	fmt.Fprintf(w, "%s\t%s\t%d\t", r.Name(), regime, s.Rows)
	for _, name := range []string{predictor.Analytic.String(), predictor.Linear.String(), predictor.LightGBM.String(), Served} {
		fmt.Fprintf(w, "%s\t", percent(figure(Find(r.Scores, name, regime), mapeOf)))
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", percent(best.MAPE), percent(s.Oracle), plain(trees.Number(s.Ratio()), 2),
		plain(s.Coverage, 3), plain(1-s.Pinball/Best(r.Scores, regime, pinballOf).Pinball, 2), s.missed())
}

func pinballOf(s *Score) trees.Number { return s.Pinball }

// figure of a score that may not be there.
func figure(s *Score, of func(*Score) trees.Number) trees.Number {
	if s == nil {
		return trees.Number(math.NaN())
	}
	return of(s)
}

// missed names the targets that are not met.
func (s *Score) missed() string {
	if s.Regime == All {
		return ""
	}
	if s.Rows < EnoughRows {
		return "(few)"
	}
	var out []string
	add := func(met bool, what string) {
		if !met {
			out = append(out, what)
		}
	}
	add(s.NearTruth(), "error")
	add(s.NearOracle() || math.IsNaN(float64(s.Oracle)), "oracle")
	add(s.Calibrated(), "coverage")
	return strings.Join(out, ",")
}

// writeScores prints everything known of every estimator.
func writeScores(b *strings.Builder, scores []Score) {
	fmt.Fprintln(b)
	t := columns(b)
	simple := Baselines()
	fmt.Fprintf(t, "estimator\tregime\trows\tMAPE\tmedian\tMAE ms\tbias\tcoverage\tpinball ms\tskill: %s\t\n", strings.Join(simple[:], "\t"))
	for i := range scores {
		s := &scores[i]
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t", s.Estimator, s.Regime, s.Rows, percent(s.MAPE), percent(s.MedianError),
			plain(1000*s.MAE, 1), plain(s.Bias, 3), plain(s.Coverage, 3), plain(1000*s.Pinball, 2))
		for _, name := range simple {
			skill, ok := s.Skill[name]
			if !ok {
				skill = trees.Number(math.NaN())
			}
			fmt.Fprintf(t, "%s\t", plain(skill, 2))
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
}

func (r *Report) writeRanks(b *strings.Builder) {
	ranked := slices.DeleteFunc(slices.Clone(r.Runs), func(run Run) bool { return run.Rank.Decisions == 0 })
	if len(ranked) == 0 {
		return
	}
	fmt.Fprint(b, "\nDecisions: the instances' order by P50 against the oracle's, and switches of the estimator that serves\n")
	t := columns(b)
	fmt.Fprintln(t, "run\trate\trequests\tdecisions\tKendall's tau\tbest picked\tregret\tswitches\t")
	for i := range ranked {
		run := &ranked[i]
		fmt.Fprintf(t, "%s\t%.3g×\t%d\t%d\t%s\t%s\t%s\t%d\t\n", run.Name(), run.Multiplier, run.Requests, run.Rank.Decisions,
			plain(run.Rank.Tau, 3), percent(run.Rank.Best), percent(run.Rank.Regret), len(run.Switches))
	}
	_ = t.Flush()
	if len(ranked) == 1 {
		writeSwitches(b, ranked[0].Switches)
	}
}

func (r *Report) writeMeasured(b *strings.Builder) {
	for i := range r.Measured {
		m := &r.Measured[i]
		served := Find(m.Scores, Served, All)
		fmt.Fprintf(b, "\n%s: learned in order of arrival, the last %d of %d requests judged; the rebuilt steps are off by %s for a request\n",
			m.Trace, served.Rows, m.Requests, percent(m.GridError))
		fmt.Fprintf(b, "median error %s (12 %% wanted), mean error %s of the best baseline's (%s; 50 %% wanted), coverage %s (0.90 to 0.98 wanted)%s\n",
			percent(served.MedianError), percent(m.Share), m.Simple, plain(served.Coverage, 3), m.missed())
		writeScores(b, m.Scores)
		writeSwitches(b, m.Switches)
	}
}

// missed names the targets of measured runs that are not met.
func (m *Measured) missed() string {
	s, out := Find(m.Scores, Served, All), ""
	if s.MedianError > Limit {
		out += " median"
	}
	if m.Share > measuredShare {
		out += " mean"
	}
	if s.Coverage < measuredCoverageLow || s.Coverage > measuredCoverageHigh {
		out += " coverage"
	}
	if out == "" {
		return ""
	}
	return ": missed:" + out
}

func (r *Report) writeChanges(b *strings.Builder) {
	for _, c := range r.Changes {
		fmt.Fprintf(b, "\n%s on %s: %s takes %g × as long from %.0f s on. Error over its last %d requests: %s before, %s at most after, ",
			c.Trace, c.Fleet, c.Engine, c.Factor, c.At, slide, percent(c.Before), percent(c.Highest))
		switch {
		case math.IsNaN(float64(c.Over)):
			fmt.Fprintln(b, "never above 12 %")
		case math.IsNaN(float64(c.Back)):
			fmt.Fprintf(b, "above 12 %% after %.1f s and not back by the end\n", c.Over)
		default:
			fmt.Fprintf(b, "above 12 %% after %.1f s, back after %.1f s (60 wanted), above again at %s of the requests since\n", c.Over, c.Back, percent(c.Later))
		}
		writeSwitches(b, c.Switches)
	}
	for _, s := range r.Steady {
		fmt.Fprintf(b, "\n%s on %s, unchanged load: %d requests over %.0f s, %d switches of estimator\n", s.Trace, s.Fleet, s.Requests, s.Seconds, len(s.Switches))
		writeSwitches(b, s.Switches)
	}
}

func writeSwitches(b *strings.Builder, all []Switch) {
	for _, s := range all {
		fmt.Fprintf(b, "  %.0f s: %s to %s (%s), error of %s was %.1f %%\n", s.At, s.From, s.To, s.Why, s.From, 100*s.Error)
	}
}

func (a *Ablation) write(b *strings.Builder) {
	fmt.Fprintf(b, "\nWhat errors rise by without a feature: %s, %d rows judged, with all features MAPE %s, pinball %s ms\n",
		a.Estimator, a.Rows, percent(a.MAPE), plain(1000*a.Pinball, 2))
	t := columns(b)
	fmt.Fprintln(t, "feature\tMAPE\tpinball\t")
	for _, f := range a.Features {
		fmt.Fprintf(t, "%s\t%+.1f %%\t%+.1f %%\t\n", f.Feature, 100*f.MAPE, 100*f.Pinball)
	}
	_ = t.Flush()
}

func percent(v trees.Number) string {
	if math.IsNaN(float64(v)) {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}

func plain(v trees.Number, digits int) string {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return "–"
	}
	return fmt.Sprintf("%.*f", digits, float64(v))
}
