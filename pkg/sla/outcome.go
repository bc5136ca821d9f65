package sla

import (
	"math"
	"time"
)

// End is how a request ended.
type End uint8

// The ends. What a client did wrong itself (400, 401, quota) is no end of these
// and is not recorded.
const (
	Served  End = iota // answered in full
	Failed             // an engine's or the gateway's fault, timeouts included
	Refused            // shed for load
	Left               // the client left before the end
)

// Outcome is what became of one request, as its client saw it.
type Outcome struct {
	End          End
	PromptTokens int
	// TTFT and E2E count from acceptance, waiting and retries included. TTFT is
	// 0 when the client saw no first token; E2E is then how long it waited.
	TTFT, E2E time.Duration
	// TPOT is the mean time between tokens after the first; 0 when there were
	// not two.
	TPOT time.Duration
}

// Verdict is what an outcome says about an objective.
type Verdict uint8

// The verdicts.
const (
	Neutral Verdict = iota // it says nothing
	Met
	Missed
)

// beyond stands for the time of what never came.
const beyond = time.Duration(math.MaxInt64)

// Judge holds an outcome against an objective and tells the value that was
// measured: 0 where there is none, the longest Duration where it never came.
//
//   - A time that was measured is met or missed, however the request ended.
//   - A first token or an end that never came is missed when the request failed
//     or was shed. When the client left it is missed if it was overdue by then,
//     and says nothing otherwise.
//   - A failure without two tokens says nothing about TPOT.
//   - An answer that was served without a TTFT was not streamed: its TTFT is not judged.
//   - Availability is missed by failures and sheds, and says nothing of clients
//     that left.
func (o *Objective) Judge(out *Outcome) (Verdict, time.Duration) {
	switch o.Metric {
	case Availability:
		return [...]Verdict{Served: Met, Failed: Missed, Refused: Missed, Left: Neutral}[out.End], 0
	case TPOT:
		return o.compare(out.TPOT, out)
	case TTFT:
		if out.TTFT == 0 && out.End != Served {
			return o.never(out)
		}
		return o.compare(out.TTFT, out)
	default:
		if out.End != Served {
			return o.never(out)
		}
		return o.compare(out.E2E, out)
	}
}

func (o *Objective) compare(value time.Duration, out *Outcome) (Verdict, time.Duration) {
	switch {
	case value <= 0:
		return Neutral, 0
	case value <= o.Threshold.at(out.PromptTokens):
		return Met, value
	default:
		return Missed, value
	}
}

// never judges what had not come when the request ended.
func (o *Objective) never(out *Outcome) (Verdict, time.Duration) {
	if out.End == Left && out.E2E <= o.Threshold.at(out.PromptTokens) {
		return Neutral, 0
	}
	return Missed, beyond
}
