package bench

import (
	"cmp"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
)

// Result is what became of one request. Times count from its sending, as the
// monotonic clock has it.
type Result struct {
	Index       int // in the order of arrival, from 0
	Model       string
	Workload    string        // that it belongs to; may be empty
	At          time.Duration // arrival since the start: its time on the schedule, or when a caller was free
	Late        time.Duration // sent so much later, for want of the generator's own speed
	Concurrency int           // in flight when it was sent, itself included
	Streamed    bool

	Prompt, Cached, Output int  // tokens; as the target counts them if it does
	Counted                bool // the target counted them: otherwise Prompt is as asked, Output is chunks

	Tokens []time.Duration // when each chunk with tokens came; one for an answer that was no stream
	E2E    time.Duration   // when the answer ended
	Finish string          // the finish reason

	Outcome Outcome
	Status  int    // HTTP; 0 without an answer
	Error   string // what went wrong

	objective report.Objective
}

// Outcome is how a request ended: OK, or the kind of its error.
type Outcome string

// The outcomes. A refusal for load is told by its status; other statuses that
// are no success are http_NNN.
const (
	OK          Outcome = "ok"
	Refused429  Outcome = "refused_429"
	Refused503  Outcome = "refused_503"
	TimedOut    Outcome = "timeout"
	Unconnected Outcome = "connection"    // no answer: not reached, or lost before its header
	Broken      Outcome = "broken_stream" // it began well and did not reach its end
	ErrorEvent  Outcome = "error_event"   // the stream said that it failed
	Aborted     Outcome = "aborted"       // the finish reason says that the engine gave up
	Empty       Outcome = "empty_answer"  // a good end without a token
	BadAnswer   Outcome = "bad_answer"    // 200, but not what was asked for
	Interrupted Outcome = "interrupted"   // by whoever stopped the run
)

// OK reports whether the answer came whole.
func (r *Result) OK() bool { return r.Outcome == OK }

// Refused reports whether the target turned the request away for load.
func (r *Result) Refused() bool { return r.Outcome == Refused429 || r.Outcome == Refused503 }

// TTFT is the time to the first token of any kind; 0 if there was none, or if
// the answer was no stream.
func (r *Result) TTFT() time.Duration {
	if !r.Streamed || len(r.Tokens) == 0 {
		return 0
	}
	return r.Tokens[0]
}

// TPOT is (E2E − TTFT) / (tokens − 1); 0 for fewer than two tokens.
func (r *Result) TPOT() time.Duration {
	if r.TTFT() == 0 || r.Output < 2 {
		return 0
	}
	return (r.E2E - r.TTFT()) / time.Duration(r.Output-1)
}

// sample is the result as reports judge it.
func (r *Result) sample() report.Sample {
	s := report.Sample{Reason: string(r.Outcome), TTFT: r.TTFT(), TPOT: r.TPOT(), E2E: r.E2E, Prompt: r.Prompt}
	return s
}

// met reports whether it was served within every part of its objective.
func (r *Result) met() bool {
	s := r.sample()
	return r.objective.Met(&s)
}

// sent and end count from the start of the run.
func (r *Result) sent() time.Duration { return r.At + r.Late }
func (r *Result) end() time.Duration  { return r.sent() + r.E2E }

func byArrival(results []Result) {
	slices.SortFunc(results, func(a, b Result) int { return cmp.Compare(a.Index, b.Index) })
}
