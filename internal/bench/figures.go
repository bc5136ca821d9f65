package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
)

// Report is what a run has shown.
type Report struct {
	Format      string        `json:"format"` // of this document
	Started     time.Time     `json:"started"`
	Partial     bool          `json:"partial,omitempty"` // stopped before its end
	Plan        Plan          `json:"plan"`
	Environment Environment   `json:"environment"`
	Objective   string        `json:"objective,omitempty"`
	Seconds     float64       `json:"seconds"` // from the start to the last end
	All         Figures       `json:"all"`
	ByModel     []Figures     `json:"by_model"`
	ByWorkload  []Workload    `json:"by_workload,omitempty"`
	Lateness    report.Spread `json:"lateness"` // of the generator behind its schedule
	Errors      []ErrorKind   `json:"errors"`
	Notes       []string      `json:"notes"`
	Windows     []Window      `json:"windows"`
	Requests    Columns       `json:"requests"`
	Comparison  *Comparison   `json:"comparison,omitempty"`
}

// format names the document and its version.
const format = "firsttoken-bench/1"

// Figures are those of all requests or of a model's. Times are of the requests
// that were served.
type Figures struct {
	Model    string `json:"model,omitempty"`
	Requests int    `json:"requests"`
	Served   int    `json:"served"`
	Refused  int    `json:"refused"`
	Failed   int    `json:"failed"`

	TTFT report.Spread `json:"ttft"`
	ITL  report.Spread `json:"itl"` // of all gaps: weighs tokens
	TPOT report.Spread `json:"tpot"`
	E2E  report.Spread `json:"e2e"`

	RequestsPerSecond     float64 `json:"requests_per_second"`      // served
	OutputTokensPerSecond float64 `json:"output_tokens_per_second"` // of the served
	WindowTokens          Spread  `json:"output_tokens_per_window"` // over whole windows of 1 s
	InFlight              float64 `json:"in_flight"`                // mean
	PromptTokens          int     `json:"prompt_tokens"`
	CachedTokens          int     `json:"cached_tokens"`
	OutputTokens          int     `json:"output_tokens"`
	Met                   float64 `json:"met"`         // share of all requests served within the objective
	Goodput               float64 `json:"goodput_rps"` // requests/s that were
}

// cached is the share of the prompt tokens that the target had in its cache.
func (f *Figures) cached() float64 { return float64(f.CachedTokens) / float64(f.PromptTokens) }

// Spread describes a distribution of numbers that are no times.
type Spread struct {
	Count  int     `json:"count"`
	Mean   float64 `json:"mean"`
	StdDev float64 `json:"stddev"`
	P50    float64 `json:"p50"`
	P95    float64 `json:"p95"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

// ErrorKind is the requests that ended in one way.
type ErrorKind struct {
	Kind    Outcome `json:"kind"`
	Count   int     `json:"count"`
	Example string  `json:"example"`
}

// Window is one second of a run. TTFT belongs to the second in which the first
// token came, a gap to that of its end, TPOT and E2E to that of the answer's end.
type Window struct {
	Second       int           `json:"second"`
	Model        string        `json:"model,omitempty"` // empty: all
	Sent         int           `json:"sent"`
	Served       int           `json:"served"`
	Failed       int           `json:"failed"` // or refused
	Met          int           `json:"met"`
	InFlight     float64       `json:"in_flight"` // mean
	OutputTokens float64       `json:"output_tokens"`
	TTFT         report.Spread `json:"ttft,omitzero"`
	ITL          report.Spread `json:"itl,omitzero"`
	TPOT         report.Spread `json:"tpot,omitzero"`
	E2E          report.Spread `json:"e2e,omitzero"`
}

// Columns are the served requests, one element each. A time of 0 is none.
type Columns struct {
	At     []float64 `json:"at_s"`
	TTFT   []float64 `json:"ttft_ms"`
	TPOT   []float64 `json:"tpot_ms"`
	E2E    []float64 `json:"e2e_ms"`
	Gaps   []int     `json:"gaps"`        // number
	GapSum []float64 `json:"gaps_sum_ms"` // first token to last
}

// Summarise reports on a run in its environment.
func Summarise(run *Run, env Environment) *Report {
	r := &Report{Format: format, Started: run.Started.Round(0), Partial: run.Stopped, Plan: run.Plan, Environment: env}
	r.Objective = objective(run)
	last := lastEnd(run.Results)
	r.Seconds = last.Seconds()
	r.All = figures("", run.Results, r.Seconds)
	r.Windows = windows("", run.Results, last)
	groups := byModel(run.Results)
	for _, g := range groups {
		r.ByModel = append(r.ByModel, figures(g[0].Model, g, r.Seconds))
		if len(groups) > 1 {
			r.Windows = append(r.Windows, windows(g[0].Model, g, last)...)
		}
	}
	r.ByWorkload = byWorkload(run.Results)
	r.rates()
	if run.Plan.Open() {
		r.Lateness = report.Describe(times(run.Results, func(x *Result) time.Duration { return x.Late }))
	}
	r.Errors = errorKinds(run.Results)
	r.Notes = notes(run, r)
	r.Requests = columns(run.Results)
	return r
}

func byModel(results []Result) [][]Result {
	by := map[string][]Result{}
	for i := range results {
		by[results[i].Model] = append(by[results[i].Model], results[i])
	}
	var groups [][]Result
	for _, g := range by {
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b []Result) int { return cmp.Compare(a[0].Model, b[0].Model) })
	return groups
}

func lastEnd(results []Result) (last time.Duration) {
	for i := range results {
		last = max(last, results[i].end())
	}
	return last
}

// objective is what the requests were to meet; empty if nothing.
func objective(run *Run) string {
	for i := range run.Results {
		if run.Plan.Objective == "" && run.Results[i].objective != (report.Objective{}) {
			return "each request's own, of the trace"
		}
	}
	return run.Plan.Objective
}

func figures(model string, results []Result, seconds float64) Figures {
	f := Figures{Model: model, Requests: len(results)}
	met, busy := 0, 0.0
	var served tally
	for i := range results {
		r := &results[i]
		busy += r.E2E.Seconds()
		switch {
		case r.OK():
			f.Served++
			f.PromptTokens, f.CachedTokens, f.OutputTokens = f.PromptTokens+r.Prompt, f.CachedTokens+r.Cached, f.OutputTokens+r.Output
			served.add(r)
		case r.Refused():
			f.Refused++
		default:
			f.Failed++
		}
		if r.met() {
			met++
		}
	}
	f.TTFT, f.ITL, f.TPOT, f.E2E = served.spreads()
	if f.Requests > 0 {
		f.Met = float64(met) / float64(f.Requests)
	}
	if seconds > 0 {
		f.RequestsPerSecond, f.OutputTokensPerSecond = float64(f.Served)/seconds, float64(f.OutputTokens)/seconds
		f.InFlight, f.Goodput = busy/seconds, float64(met)/seconds
	}
	return f
}

// tally is times in milliseconds.
type tally struct{ ttft, itl, tpot, e2e []float64 }

func (t *tally) add(r *Result) {
	t.ttft = addPositive(t.ttft, r.TTFT())
	t.tpot = addPositive(t.tpot, r.TPOT())
	t.e2e = addPositive(t.e2e, r.E2E)
	for i := 1; i < len(r.Tokens); i++ {
		t.itl = append(t.itl, milliseconds(r.Tokens[i]-r.Tokens[i-1]))
	}
}

func addPositive(to []float64, d time.Duration) []float64 {
	if d <= 0 {
		return to
	}
	return append(to, milliseconds(d))
}

func (t *tally) spreads() (ttft, itl, tpot, e2e report.Spread) {
	for _, part := range [][]float64{t.ttft, t.itl, t.tpot, t.e2e} {
		slices.Sort(part)
	}
	return report.Describe(t.ttft), report.Describe(t.itl), report.Describe(t.tpot), report.Describe(t.e2e)
}

func times(results []Result, of func(*Result) time.Duration) []float64 {
	var all []float64
	for i := range results {
		all = append(all, milliseconds(of(&results[i])))
	}
	slices.Sort(all)
	return all
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// windows are the seconds of a run up to its last end.
func windows(model string, results []Result, last time.Duration) []Window {
	at := func(t time.Duration) int { return int(t / time.Second) }
	n := at(last) + 1
	all, tallies := make([]Window, n), make([]tally, n)
	for i := range results {
		r := &results[i]
		sent, end := at(r.sent()), at(r.end())
		all[sent].Sent++
		for k := sent; k <= end; k++ {
			from, to := max(r.sent(), time.Duration(k)*time.Second), min(r.end(), time.Duration(k+1)*time.Second)
			all[k].InFlight += max(to-from, 0).Seconds()
		}
		if !r.OK() {
			all[end].Failed++
			continue
		}
		all[end].Served++
		if r.met() {
			all[end].Met++
		}
		r.spend(all, tallies)
	}
	for k := range all {
		all[k].Second, all[k].Model = k, model
		all[k].TTFT, all[k].ITL, all[k].TPOT, all[k].E2E = tallies[k].spreads()
	}
	return all
}

// spend puts the tokens and times of a served request into the windows they
// belong to.
func (r *Result) spend(all []Window, tallies []tally) {
	end := r.end() / time.Second
	tallies[end].tpot = addPositive(tallies[end].tpot, r.TPOT())
	tallies[end].e2e = addPositive(tallies[end].e2e, r.E2E)
	for i, t := range r.Tokens {
		k := (r.sent() + t) / time.Second
		all[k].OutputTokens += float64(r.Output) / float64(len(r.Tokens))
		switch {
		case i > 0:
			tallies[k].itl = append(tallies[k].itl, milliseconds(t-r.Tokens[i-1]))
		case r.Streamed:
			tallies[k].ttft = append(tallies[k].ttft, milliseconds(t))
		}
	}
}

// whole reports whether the run went on to the end of the window.
func (r *Report) whole(w *Window) bool { return float64(w.Second+1) <= r.Seconds }

// rates describes the output of whole windows.
func (r *Report) rates() {
	by := map[string][]float64{}
	for _, w := range r.Windows {
		if r.whole(&w) {
			by[w.Model] = append(by[w.Model], w.OutputTokens)
		}
	}
	for _, tokens := range by {
		slices.Sort(tokens)
	}
	r.All.WindowTokens = numbers(by[""])
	for i := range r.ByModel {
		model := r.ByModel[i].Model
		if len(r.ByModel) == 1 {
			model = ""
		}
		r.ByModel[i].WindowTokens = numbers(by[model])
	}
}

func numbers(sorted []float64) Spread {
	s := report.Describe(sorted)
	return Spread{Count: s.Count, Mean: s.Mean, StdDev: s.StdDev, P50: s.P50, P95: s.P95, P99: s.P99, Max: s.Max}
}

// errorKinds are the ways requests failed, the most frequent first, each with
// the first message of its kind.
func errorKinds(results []Result) []ErrorKind {
	var kinds []ErrorKind
	for i := range results {
		r := &results[i]
		if r.OK() {
			continue
		}
		at := slices.IndexFunc(kinds, func(k ErrorKind) bool { return k.Kind == r.Outcome })
		if at < 0 {
			at = len(kinds)
			kinds = append(kinds, ErrorKind{Kind: r.Outcome, Example: r.Error})
		}
		kinds[at].Count++
	}
	slices.SortStableFunc(kinds, func(a, b ErrorKind) int { return cmp.Compare(b.Count, a.Count) })
	return kinds
}

// maxLateness is from which P99 of lateness on the generator is too slow for
// its figures to be trusted, in milliseconds.
const maxLateness = 10

// maxCached is the share of cached prompt tokens that templates and chance may
// bring about where no text is shared.
const maxCached = 0.2

// notes are what a reader of the figures has to know.
func notes(run *Run, r *Report) []string {
	uncounted, lumped, short, unstreamed := 0, 0, 0, 0
	for i := range run.Results {
		x := &run.Results[i]
		switch {
		case !x.OK():
		case !x.Streamed:
			unstreamed++
		case !x.Counted:
			uncounted++
		case x.Output > len(x.Tokens)+1:
			lumped++
		}
		if x.OK() && x.Finish == "stop" && !run.Plan.IgnoreEOS {
			short++
		}
	}
	var all []string
	note := func(n int, what, means string) {
		if n > 0 {
			all = append(all, fmt.Sprintf("%s: %d; %s", what, n, means))
		}
	}
	note(run.Unfinished, "requests under way when the run was stopped", "they are in no figure")
	note(uncounted, "answers without usage", "their output tokens are chunks")
	note(lumped, "answers in fewer chunks than tokens", "their ITL is the gap between chunks")
	note(unstreamed, "answers that were no streams", "they have no TTFT, ITL and TPOT")
	note(short, "answers that ended before the output tokens asked for", "--ignore-eos makes engines that know it go on")
	if run.Plan.synthetic() && r.All.cached() > maxCached {
		all = append(all, "prompt tokens were cached although the requests share no text: the target remembers a run of the same seed; give another --seed, or restart it")
	}
	if r.Lateness.P99 > maxLateness {
		all = append(all, fmt.Sprintf("the generator was late, P99 %.1f ms behind its schedule: use a faster machine or a lower rate", r.Lateness.P99))
	}
	return all
}

func columns(results []Result) Columns {
	var c Columns
	for i := range results {
		r := &results[i]
		if !r.OK() {
			continue
		}
		c.At = append(c.At, rounded(r.sent().Seconds()))
		c.TTFT, c.TPOT, c.E2E = append(c.TTFT, rounded(milliseconds(r.TTFT()))), append(c.TPOT, rounded(milliseconds(r.TPOT()))), append(c.E2E, rounded(milliseconds(r.E2E)))
		gaps, sum := max(len(r.Tokens)-1, 0), time.Duration(0)
		if gaps > 0 {
			sum = r.Tokens[gaps] - r.Tokens[0]
		}
		c.Gaps, c.GapSum = append(c.Gaps, gaps), append(c.GapSum, rounded(milliseconds(sum)))
	}
	return c
}

// rounded keeps six decimals at most: nanoseconds of a number in milliseconds.
func rounded(x float64) float64 { return math.Round(x*1e6) / 1e6 }
