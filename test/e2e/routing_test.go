//go:build e2e

package e2e

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/openai/openai-go/v3/option"

	"github.com/firsttoken/firsttoken/test/e2e/live"
)

// The load of the comparison: one at which most requests find a free engine, so
// that it is the choice that shows, also on processors that others use too.
const (
	moderate     = 0.3 // of what both engines do, one request at a time
	rounds       = 4   // of four blocks each
	requests     = 15  // of a block
	promptTokens = "40-240"
	outputTokens = 8
)

// slower is P95 of TTFT, over that of least-inflight, which the default policy
// may have. P95 is the seventh slowest of 120 requests; on processors that
// others use too it differs by a tenth or more between equal runs.
const slower = 1.1

// TestRoutingOnRealEngines has a gateway with each policy before the same two
// engines of unequal speed. They get the same load in short blocks in the order
// A B B A, so that a machine that gets slower or faster meanwhile does so for both.
func TestRoutingOnRealEngines(t *testing.T) {
	// Each has processors of its own: else the slow one would make the fast one
	// slow. Prompts token by token make it slow where two are all there are.
	fast, slow := startLlama(t, max(1, runtime.NumCPU()-1), wholeStep), startLlama(t, 1, 1)
	engines := map[string]*llama{"fast": fast, "slow": slow}
	paceFast, paceSlow := paceOf(t, fast), paceOf(t, slow)
	rate := moderate * (1/paceFast.Seconds() + 1/paceSlow.Seconds())
	t.Logf("a request takes %v on the fast engine and %v on the slow one; sent are %.2f a second",
		paceFast.Round(time.Millisecond), paceSlow.Round(time.Millisecond), rate)

	simple, usual := startRunner(t, "least-inflight", engines, rate, 1), startRunner(t, "headroom", engines, rate, 1001)
	for range rounds {
		for _, r := range []*runner{simple, usual, usual, simple} {
			r.block()
		}
	}
	simple.tell()
	usual.tell()
	ratio := quantile(usual.ttft, 0.95) / quantile(simple.ttft, 0.95)
	t.Logf("P95 of TTFT, %s over %s: %.2f", usual.policy, simple.policy, ratio)
	if ratio > slower {
		t.Errorf("P95 of TTFT is %.2f of that of %s, want at most %v", ratio, simple.policy, slower)
	}
}

// runner sends blocks of requests through a gateway of its own. No two blocks
// share text, which an engine would have in its cache.
type runner struct {
	t       *testing.T
	policy  string
	gateway *binary
	rate    float64
	seed    int       // of the next block
	ttft    []float64 // milliseconds of each request so far
}

func startRunner(t *testing.T, policy string, engines map[string]*llama, rate float64, seed int) *runner {
	t.Helper()
	g := startBinary(t, live.Listen+"drain: {accept: off}\ndefaults: {policy: "+policy+"}\n"+modelOf(engines))
	return &runner{t: t, policy: policy, gateway: g, rate: rate, seed: seed}
}

// block sends requests at random times; those before the first block, from
// which the gateway gets to know the engines, do not count.
func (r *runner) block() {
	r.t.Helper()
	warmUp := 0
	if len(r.ttft) == 0 {
		warmUp = 20
	}
	table := filepath.Join(r.t.TempDir(), "requests.csv")
	command(r.t, "bench", "--target", r.gateway.url, "--model", "gemma", "--rate", fmt.Sprint(r.rate), "--requests", fmt.Sprint(requests),
		"--seed", fmt.Sprint(r.seed), "--prompt-tokens", promptTokens, "--output-tokens", fmt.Sprint(outputTokens), "--ignore-eos",
		"--warmup", fmt.Sprint(warmUp), "--csv", table)
	ttft := readTTFT(r.t, table)
	r.t.Logf("%s: TTFT P50 %.0f ms, highest %.0f ms", r.policy, quantile(slices.Clone(ttft), 0.5), slices.Max(ttft))
	r.ttft = append(r.ttft, ttft...)
	r.seed++
}

// tell logs what was measured.
func (r *runner) tell() {
	by := map[string]int{}
	for _, l := range r.gateway.requests() {
		by[l.Backend]++
	}
	r.t.Logf("%s: TTFT P50 %.0f ms, P95 %.0f ms; served by %v", r.policy, quantile(r.ttft, 0.5), quantile(r.ttft, 0.95), by)
}

// paceOf is how long a request of mean length takes on an idle engine.
func paceOf(t *testing.T, e *llama) time.Duration {
	t.Helper()
	client := goClient(e.url())
	var took []time.Duration
	for range 9 {
		began := time.Now()
		a := ask{model: "gemma", prompt: text(140), tokens: outputTokens}
		if _, err := client.Chat.Completions.New(t.Context(), a.plain(), option.WithJSONSet("ignore_eos", true)); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// readTTFT reads the times to first token in a table of bench's. Every request
// has to be served: those that are not would flatter the others.
func readTTFT(t *testing.T, file string) []float64 {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := slices.Index(rows[0], "ttft_ms")
	var ttft []float64
	for _, row := range rows[1:] {
		ms, err := strconv.ParseFloat(row[column], 64)
		if err != nil {
			t.Errorf("a request has no first token: %v", row)
			continue
		}
		ttft = append(ttft, ms)
	}
	if len(ttft) != requests {
		t.Fatalf("%d requests have a first token, want %d", len(ttft), requests)
	}
	return ttft
}
