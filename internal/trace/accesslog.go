package trace

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// readAccessLog reads the gateway's own access log; lines of other messages on
// the same stream are passed over. A request arrived when it was logged less how
// long it took, so the order is another one and the log is held in memory. What
// was wrong in itself (most 4xx), or was for no engine (a list of models), is left out; what was refused for load, failed
// or was left by its client counts as demand, with the median output of its model.
func readAccessLog(f file, _ Options) Source {
	return func(yield func(Request, error) bool) {
		var all []logged
		err := f.lines(func(l *lines) bool {
			if r, ok := readLogged(l); ok {
				all = append(all, r)
			}
			return true
		})
		if err != nil {
			yield(Request{}, err)
			return
		}
		slices.SortStableFunc(all, func(a, b logged) int { return a.arrival.Compare(b.arrival) })
		guess := medianOutput(all)
		for _, r := range all {
			r.At = r.arrival.Sub(all[0].arrival)
			if !r.ended {
				r.OutputTokens = max(1, guess[r.Model])
			}
			if !yield(r.Request, nil) {
				return
			}
		}
	}
}

// logged is a request as the log has it.
type logged struct {
	Request
	arrival time.Time
	ended   bool // its output is known
}

func readLogged(l *lines) (logged, bool) {
	var row struct {
		Message    string     `json:"msg"`
		Time       *time.Time `json:"time"`
		DurationMS *float64   `json:"duration_ms"`
		Endpoint   string     `json:"endpoint"`
		Tenant     string     `json:"tenant"`
		Model      string     `json:"model"`
		Status     int        `json:"status"`
		Stream     bool       `json:"stream"`
		Estimate   int        `json:"prompt_tokens_estimate"`
		Prompt     int        `json:"prompt_tokens"`
		Completion *int       `json:"completion_tokens"`
		Chunks     int        `json:"chunks"`
	}
	l.decode(&row)
	if l.err != nil || row.Message != "request" || row.Endpoint == "" || wrongInItself(row.Status) {
		return logged{}, false
	}
	if row.Time == nil {
		l.fault("time", "is missing", "give the gateway's access log as it was written")
	}
	if row.DurationMS == nil {
		l.fault("duration_ms", "is missing", "give the gateway's access log as it was written")
	} else if *row.DurationMS < 0 || *row.DurationMS > float64(maxTime.Milliseconds()) {
		l.fault("duration_ms", fmt.Sprintf("%g is out of range", *row.DurationMS), "give milliseconds")
	}
	prompt := cmp.Or(row.Prompt, row.Estimate, 1)
	l.tokens("prompt_tokens", prompt, 1)
	output, ended := row.Chunks, true
	switch {
	case row.Completion != nil:
		output = *row.Completion
	case row.Endpoint == "embeddings":
		output = 0
	default:
		ended = row.Status == 200 && output > 0
	}
	l.tokens("completion_tokens", output, 0)
	if l.err != nil {
		return logged{}, false
	}
	return logged{
		Request: Request{Tenant: row.Tenant, Model: row.Model, PromptTokens: prompt, OutputTokens: output, Stream: row.Stream},
		arrival: row.Time.Add(-seconds(*row.DurationMS / 1e3)),
		ended:   ended,
	}, true
}

// wrongInItself says that no engine would have had work with the request.
func wrongInItself(status int) bool {
	return status >= 400 && status < 500 && status != 429 && status != 499
}

// medianOutput is by model; a model of which nothing is known has none.
func medianOutput(all []logged) map[string]int {
	known := map[string][]int{}
	for _, r := range all {
		if r.ended && r.OutputTokens > 0 {
			known[r.Model] = append(known[r.Model], r.OutputTokens)
		}
	}
	medians := make(map[string]int, len(known))
	for model, outputs := range known {
		slices.Sort(outputs)
		medians[model] = outputs[len(outputs)/2]
	}
	return medians
}
