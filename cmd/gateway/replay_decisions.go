package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
)

// decisions writes each request's end with what was predicted of it. nil
// writes nothing.
type decisions struct {
	file *os.File
	out  *bufio.Writer
	run  string
	seed int
	err  error // the first
}

// decision is one line.
type decision struct {
	Run      string  `json:"run"`
	Seed     int     `json:"seed"`
	Index    int     `json:"index"` // in the trace
	At       float64 `json:"at_s"`
	Tenant   string  `json:"tenant,omitempty"`
	Model    string  `json:"model,omitempty"`
	Contract string  `json:"contract,omitempty"`
	Reason   string  `json:"reason"`
	Met      bool    `json:"met"`
	Engine   string  `json:"engine,omitempty"`
	Attempts int     `json:"attempts"`
	Prompt   int     `json:"prompt_tokens"`
	Held     float64 `json:"held_ms"`
	P50      float64 `json:"predicted_ttft_p50_ms,omitempty"` // of the last attempt, sent to first token
	P95      float64 `json:"predicted_ttft_p95_ms,omitempty"`
	Upstream float64 `json:"upstream_ttft_ms,omitempty"` // what that took
	TTFT     float64 `json:"ttft_ms,omitempty"`          // accepted to first token
	TPOT     float64 `json:"tpot_ms,omitempty"`
	E2E      float64 `json:"e2e_ms"`
}

// openDecisions opens the file; no name is none.
func openDecisions(name string) (*decisions, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Create(name) //nolint:gosec // the file the user names
	if err != nil {
		return nil, err
	}
	return &decisions{file: f, out: bufio.NewWriter(f)}, nil
}

// begin names the run whose requests follow.
func (d *decisions) begin(run string, seed int) {
	if d != nil {
		d.run, d.seed = run, seed
	}
}

func (d *decisions) write(s *report.Sample, o *replay.Outcome) {
	if d == nil || d.err != nil {
		return
	}
	line, err := json.Marshal(decision{
		Run: d.run, Seed: d.seed, Index: o.Index, At: s.At.Seconds(), Tenant: o.Request.Tenant, Model: s.Model, Contract: s.Contract,
		Reason: s.Reason, Met: s.Objective.Met(s), Engine: s.Engine, Attempts: o.Attempts, Prompt: s.Prompt, Held: milliseconds(s.Held),
		P50: milliseconds(s.Foreseen.P50), P95: milliseconds(s.Foreseen.P95), Upstream: milliseconds(s.Foreseen.Truth),
		TTFT: milliseconds(s.TTFT), TPOT: milliseconds(s.TPOT), E2E: milliseconds(s.E2E),
	})
	if err == nil {
		_, err = d.out.Write(append(line, '\n'))
	}
	d.err = err
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

func (d *decisions) close() error {
	if d == nil {
		return nil
	}
	return errors.Join(d.err, d.out.Flush(), d.file.Close())
}
