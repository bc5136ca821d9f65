package replay_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// plain is an engine whose times can be reckoned by hand: a step takes 10 ms,
// 100 µs for each prompt token and 1 ms for each sequence that decodes.
var plain = engine.Params{
	Step:     engine.StepModel{T0: 10 * time.Millisecond, Alpha: 100, Beta: 1000},
	KVBlocks: 4096,
}

// fleet is engines of those parameters, all of one model.
func fleet(params ...engine.Params) []replay.Engine {
	out := make([]replay.Engine, len(params))
	for i, p := range params {
		out[i] = replay.Engine{Name: string(rune('a' + i)), Model: "m", Params: p, Seed: uint64(i)}
	}
	return out
}

// twice as slow as plain.
func slow() engine.Params {
	p := plain
	p.Step.T0, p.Step.Alpha, p.Step.Beta = 2*p.Step.T0, 2*p.Step.Alpha, 2*p.Step.Beta
	return p
}

// ask is a streamed request.
func ask(at time.Duration, prompt, output int) trace.Request {
	return trace.Request{At: at, Model: "m", PromptTokens: prompt, OutputTokens: output, Stream: true}
}

// many are n streamed requests, one every gap.
func many(n int, gap time.Duration, prompt, output int) []trace.Request {
	out := make([]trace.Request, n)
	for i := range out {
		out[i] = ask(time.Duration(i)*gap, prompt, output)
	}
	return out
}

// run replays and gives the outcomes by their place in the trace.
func run(t testing.TB, c replay.Config, src trace.Source) ([]replay.Outcome, replay.Totals) {
	t.Helper()
	if c.Policy == "" {
		c.Policy = "round-robin"
	}
	var ended []replay.Outcome
	totals, err := replay.Run(c, src, func(o *replay.Outcome) { ended = append(ended, *o) })
	if err != nil {
		t.Fatal(err)
	}
	out := make([]replay.Outcome, totals.Requests)
	seen := make([]bool, totals.Requests)
	for _, o := range ended {
		if seen[o.Index] {
			t.Fatalf("request %d ends twice", o.Index)
		}
		seen[o.Index], out[o.Index] = true, o
	}
	for i, ok := range seen {
		if !ok {
			t.Fatalf("request %d has no end", i)
		}
	}
	return out, totals
}

// data is a file of the public data sets, which are no part of the repository.
func data(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("FIRSTTOKEN_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	path := filepath.Join(dir, "traces", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not there; set FIRSTTOKEN_DATA to the folder of the data sets", name)
	}
	return path
}
