package evaluate

import (
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// Row is one attempt: what was foreseen of it and what became of it.
type Row struct {
	predictor.Sample
	Oracle time.Duration // TTFT as somebody foresaw it who knows all but the noise; 0: nobody was asked
	Cached int           // prompt tokens that the engine found in its prefix cache; 0 where it did not tell
}

// known is when the truth became known: with the first token.
func (r *Row) known() time.Time { return r.At.Add(r.TTFT) }

// judged reports whether there is a truth to judge by.
func (r *Row) judged() bool { return r.TTFT > 0 && !r.Censored }

// Guess is what somebody said of one attempt, in seconds. 0 is nothing.
type Guess struct{ P50, P95 float64 }

func guessOf(p predictor.Prediction) Guess { return Guess{p.P50.Seconds(), p.P95.Seconds()} }

// inOrder sorts rows by the time at which they were sent.
func inOrder(rows []Row) {
	slices.SortStableFunc(rows, func(a, b Row) int { return a.At.Compare(b.At) })
}

// byKnowledge is the places of the rows that have a truth, in the order in
// which these became known.
func byKnowledge(rows []Row) []int {
	var places []int
	for i := range rows {
		if rows[i].judged() {
			places = append(places, i)
		}
	}
	slices.SortStableFunc(places, func(a, b int) int { return rows[a].known().Compare(rows[b].known()) })
	return places
}
