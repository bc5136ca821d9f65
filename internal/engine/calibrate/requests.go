package calibrate

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// Request is one measured request.
type Request struct {
	Arrival        time.Duration
	Prompt, Output int // tokens
	Measured       Figures
}

// Replay gives what each request would have measured on an engine with these
// parameters, arriving when it did. Requests share no prefix.
func Replay(p engine.Params, requests []Request) ([]Figures, error) {
	sim, err := engine.New(p, 1)
	if err != nil {
		return nil, err
	}
	r := replay{requests: requests, figures: make([]Figures, len(requests)), first: make([]time.Duration, len(requests))}
	for i, q := range requests {
		r.see(sim.Advance(q.Arrival))
		_, err := sim.Submit(q.Arrival, engine.Request{
			Ref: i, PromptTokens: q.Prompt, OutputTokens: q.Output, Quiet: true, Hashes: own(i, q.Prompt+q.Output),
		})
		if err != nil {
			return nil, err
		}
	}
	for at, ok := sim.NextEvent(); ok; at, ok = sim.NextEvent() {
		r.see(sim.Advance(at))
	}
	return r.figures, nil
}

type replay struct {
	requests []Request
	figures  []Figures
	first    []time.Duration
}

func (r *replay) see(events []engine.Event) {
	for _, e := range events {
		f := &r.figures[e.Ref]
		switch e.Kind {
		case engine.FirstToken:
			r.first[e.Ref] = e.At
			f.TTFT = e.At - r.requests[e.Ref].Arrival
		case engine.Finished:
			if e.Tokens > 1 {
				f.TPOT = (e.At - r.first[e.Ref]) / time.Duration(e.Tokens-1)
			}
		}
	}
}

// own makes block hashes that no other request has: only what it computed
// before a preemption can be found again.
func own(i, tokens int) []uint64 {
	chain := engine.NewChain(strconv.Itoa(i))
	hashes := make([]uint64, tokens/engine.BlockTokens)
	for b := range hashes {
		hashes[b] = chain.Next(uint64(b))
	}
	return hashes
}

// vllmColumns and benchColumns are those that make a file of requests: as
// measured inside a vLLM run, or as written by firsttoken bench --csv.
var (
	vllmColumns  = []string{"arrival_s", "input_toks", "output_toks", "ttft_ms", "tpot_ms"}
	benchColumns = []string{"arrival_s", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "outcome"}
)

// readRequests reads one line a request, in order of arrival from 0.
func readRequests(t *table, prompt, output string) ([]Request, error) {
	var all []Request
	for t.next() {
		if outcome := t.text("outcome"); outcome != "" && outcome != "ok" {
			continue // what failed tells nothing of the engine's speed
		}
		all = append(all, Request{
			Arrival: time.Duration(t.number("arrival_s", -3600) * float64(time.Second)),
			Prompt:  int(t.number(prompt, 1)), Output: int(t.number(output, 1)),
			Measured: Figures{TTFT: t.ms("ttft_ms", 0), TPOT: t.ms("tpot_ms", 0)},
		})
	}
	if t.err != nil {
		return nil, t.err
	}
	slices.SortStableFunc(all, func(a, b Request) int { return cmp.Compare(a.Arrival, b.Arrival) })
	for i := range all {
		if i > 0 {
			all[i].Arrival -= all[0].Arrival
		}
	}
	if len(all) > 0 {
		all[0].Arrival = 0
	}
	return all, nil
}
