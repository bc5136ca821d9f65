package bench

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// Workload is what became of one workload's requests.
type Workload struct {
	Name       string      `json:"workload"`
	Requests   int         `json:"requests"`
	Served     int         `json:"served"`
	Objectives []Objective `json:"objectives"` // those that requests had
}

// Objective is one part of what the requests were to meet.
type Objective struct {
	Metric string        `json:"metric"`   // TTFT, TPOT or E2E
	Limit  time.Duration `json:"limit_ns"` // the longest that a request was allowed
	Judged int           `json:"judged"`   // requests that had it, refused and failed ones included
	Within float64       `json:"within"`   // share of them that was served within it
	Times  report.Spread `json:"times"`    // of the served
}

// underWay is the time in which conversations that began before a workload's
// start are looked for.
const underWay = 2 * time.Minute

// appendPasts appends one request for each conversation that is under way when
// a workload starts: what was said until then, in nobody's name, for one token.
// Caches would hold it if the workload had gone on before.
func appendPasts(to []trace.Request, s trace.Source) ([]trace.Request, error) {
	seen := map[string]bool{}
	for r, err := range s.Window(0, underWay) {
		if err != nil {
			return nil, err
		}
		if r.Turn > 1 && !seen[r.Session] {
			to = append(to, past(r))
		}
		seen[r.Session] = true
	}
	return to, nil
}

// past is a request without what its user says in this turn.
func past(r trace.Request) trace.Request {
	r.Content = r.Content[:len(r.Content)-2] // the turn and its answer
	r.Tenant, r.PromptTokens, r.OutputTokens = "", 0, 1
	for _, s := range r.Content {
		r.PromptTokens += s.Tokens
	}
	return r
}

// byWorkload is the workloads in the order of their first requests.
func byWorkload(results []Result) []Workload {
	var all []Workload
	for i := range results {
		name := results[i].Workload
		if name == "" || slices.ContainsFunc(all, func(w Workload) bool { return w.Name == name }) {
			continue
		}
		all = append(all, workload(name, slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Workload != name })))
	}
	return all
}

func workload(name string, results []Result) Workload {
	w := Workload{Name: name, Requests: len(results)}
	for i := range results {
		if results[i].OK() {
			w.Served++
		}
	}
	for _, o := range []struct {
		metric string
		of     func(r *Result) (value, limit time.Duration)
	}{
		{"TTFT", func(r *Result) (_, _ time.Duration) { return r.TTFT(), r.streamed(r.objective.Within(r.Prompt)) }},
		{"TPOT", func(r *Result) (_, _ time.Duration) { return r.TPOT(), r.streamed(r.objective.TPOT) }},
		{"E2E", func(r *Result) (_, _ time.Duration) { return r.E2E, r.objective.E2E }},
	} {
		if judged := judge(o.metric, results, o.of); judged.Judged > 0 {
			w.Objectives = append(w.Objectives, judged)
		}
	}
	return w
}

// streamed is a limit that answers have only if they are streamed.
func (r *Result) streamed(limit time.Duration) time.Duration {
	if !r.Streamed {
		return 0
	}
	return limit
}

func judge(metric string, results []Result, of func(*Result) (value, limit time.Duration)) Objective {
	o := Objective{Metric: metric}
	within, values := 0, []float64(nil)
	for i := range results {
		value, limit := of(&results[i])
		if limit == 0 {
			continue
		}
		o.Judged++
		o.Limit = max(o.Limit, limit)
		if !results[i].OK() {
			continue
		}
		values = addPositive(values, value)
		if value <= limit {
			within++
		}
	}
	slices.Sort(values)
	o.Times = report.Describe(values)
	if o.Judged > 0 {
		o.Within = float64(within) / float64(o.Judged)
	}
	return o
}

// workloads shows each objective of each workload by itself.
func (r *Report) workloads(b *strings.Builder) {
	if len(r.ByWorkload) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nworkload\trequests\tserved\tobjective\twithin\tmean\tp50\tp95\tp99")
	for i := range r.ByWorkload {
		w := &r.ByWorkload[i]
		head := fmt.Sprintf("%s\t%d\t%d", w.Name, w.Requests, w.Served)
		for _, o := range w.Objectives {
			fmt.Fprintf(t, "%s\t%s %v\t%.1f%%\t%s\t%s\t%s\t%s\n", head, o.Metric, o.Limit, 100*o.Within, ms(o.Times.Mean), ms(o.Times.P50), ms(o.Times.P95), ms(o.Times.P99))
			head = "\t\t"
		}
		if len(w.Objectives) == 0 {
			fmt.Fprintln(t, head)
		}
	}
	_ = t.Flush() // into memory
}
