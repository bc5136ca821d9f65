package report

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Verdict is what a request says of one objective of its contract.
type Verdict uint8

// The verdicts.
const (
	NotJudged Verdict = iota // it says nothing
	Kept
	Broken
)

// Foreseen is what was predicted of an attempt's time to first token, sent to
// first token, and what it took. All zero: nothing was.
type Foreseen struct{ P50, P95, Truth time.Duration }

// Promise is how one contract was kept.
type Promise struct {
	Name       string         `json:"name"`
	Requests   int            `json:"requests"`
	Met        float64        `json:"met"` // share that met all its governing objectives
	Shed       map[string]int `json:"shed,omitempty"`
	Held       Spread         `json:"held"` // waits of those that waited to be let in
	Objectives []Attainment   `json:"objectives"`
}

// Attainment is how one objective was kept.
type Attainment struct {
	Name   string  `json:"name"`
	Target float64 `json:"target"` // share that is to be within it
	Judged int     `json:"judged"` // requests that say something of it
	Share  float64 `json:"share"`  // of these, within it
}

// Kept reports whether the share is at least the target, or nothing says so.
func (a *Attainment) Kept() bool { return a.Judged == 0 || a.Share >= a.Target }

// Prediction is how good the predictions of one run were.
type Prediction struct {
	Requests int     `json:"requests"` // that have a prediction and a first token
	MAPE     float64 `json:"mape"`     // mean error of P50, as a share of the truth
	Coverage float64 `json:"coverage"` // share that took no longer than P95
}

// promises sums up by contract, in the order of the names. The objectives have
// no names yet.
func promises(samples []*Sample) []Promise {
	by := map[string][]*Sample{}
	for _, s := range samples {
		if s.Contract != "" {
			by[s.Contract] = append(by[s.Contract], s)
		}
	}
	var out []Promise
	for _, name := range slices.Sorted(maps.Keys(by)) {
		out = append(out, promise(name, by[name]))
	}
	return out
}

func promise(name string, samples []*Sample) Promise {
	p := Promise{
		Name: name, Requests: len(samples), Met: group(name, samples).Met, Held: Describe(waits(samples)),
		Objectives: make([]Attainment, len(samples[0].Verdicts)),
	}
	for _, s := range samples {
		if s.Shed() {
			if p.Shed == nil {
				p.Shed = map[string]int{}
			}
			p.Shed[s.Reason]++
		}
		for i, v := range s.Verdicts {
			p.Objectives[i].add(v)
		}
	}
	return p
}

// add counts one verdict in.
func (a *Attainment) add(v Verdict) {
	if v == NotJudged {
		return
	}
	kept := 0.0
	if v == Kept {
		kept = 1
	}
	a.Judged++
	a.Share += (kept - a.Share) / float64(a.Judged)
}

// waits are the times that requests waited to be let in, of those that did,
// sorted, in milliseconds.
func waits(samples []*Sample) []float64 {
	var out []float64
	for _, s := range samples {
		if s.Held > 0 {
			out = append(out, s.Held.Seconds()*1e3)
		}
	}
	slices.Sort(out)
	return out
}

func judgePredictions(samples []*Sample) *Prediction {
	p := Prediction{}
	for _, s := range samples {
		f := s.Foreseen
		if f.Truth <= 0 || f.P50 <= 0 {
			continue
		}
		p.Requests++
		p.MAPE += math.Abs(float64(f.P50-f.Truth)) / float64(f.Truth)
		if f.Truth <= f.P95 {
			p.Coverage++
		}
	}
	if p.Requests == 0 {
		return nil
	}
	p.MAPE /= float64(p.Requests)
	p.Coverage /= float64(p.Requests)
	return &p
}
