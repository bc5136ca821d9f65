//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/fleet"
	"github.com/firsttoken/firsttoken/test/e2e/live"
)

const (
	replayed = 10_000
	// speed is how many times faster than recorded the trace is played and
	// the engines run: half an hour in two minutes.
	speed = 15
)

// TestTraceReplay plays a recorded half hour through the quickstart fleet.
// One engine is killed in the middle and comes back; some clients leave, some
// send what cannot be served. Afterwards the accounts of the clients, the log
// and the metrics agree request by request.
func TestTraceReplay(t *testing.T) {
	trace := readTrace(t, "azure2023_conv_00-30min.csv", replayed)
	before := goleak.IgnoreCurrent()
	fleet := startFleet(t)
	g := live.Start(t, fleetConfig(fleet))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}}
	live.AwaitIdle(t, g.OperatorURL, time.Minute)
	idle := runtime.NumGoroutine()

	began := time.Now()
	results := play(t, client, g.URL, plan(trace), func(share float64) {
		switch victim := fleet.Engines()[0]; {
		case share == 0.4:
			victim.Kill()
		case share == 0.5:
			if err := victim.Restart(); err != nil {
				t.Errorf("restart the engine: %v", err)
			}
		}
	})
	took := time.Since(began)

	live.AwaitIdle(t, g.OperatorURL, 2*time.Minute)
	client.CloseIdleConnections()
	awaitGoroutines(t, idle)
	metrics := g.Metrics()
	log := g.Log()
	fleet.Stop()
	if err := goleak.Find(before); err != nil {
		t.Errorf("goroutines are left: %v", err)
	}

	agree(t, results, log, metrics)
	if !servedLate(log, "sim-1") {
		t.Errorf("the engine that was killed and restarted has served nothing since")
	}
	t.Logf("%d requests in %v, %d times as fast as recorded", len(results), took.Round(time.Millisecond), speed)
	report(t, results, log, metrics)
}

// startFleet starts the quickstart's engines, sped up.
func startFleet(t *testing.T) *engine.Fleet {
	quickstart, err := fleet.Shipped("quickstart")
	if err != nil {
		t.Fatal(err)
	}
	engines, err := engine.StartFleet(context.Background(), quickstart.Specs(speed), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engines.Stop)
	return engines
}

// fleetConfig is the quickstart's: every setting is the default.
func fleetConfig(fleet *engine.Fleet) string {
	var b strings.Builder
	b.WriteString(live.Listen + "models:\n")
	last := ""
	for i, e := range fleet.Engines() {
		if model := e.Spec().Model; model != last {
			fmt.Fprintf(&b, "  - name: %s\n    backends:\n", model)
			last = model
		}
		fmt.Fprintf(&b, "      - {name: sim-%d, url: %q, engine: vllm}\n", i+1, e.URL())
	}
	return b.String()
}

// call is one request to send.
type call struct {
	id             string
	at             time.Duration // since the start of the replay
	model          string
	prompt, output int // tokens
	stream, usage  bool
	broken         bool // the body is not JSON
	// A client that leaves does so after so many tokens of a stream, or, if
	// that is 0, after a time.
	leaves bool
	tokens int
	after  time.Duration
	text   []byte
}

// plan decides, in the same way every time, what is asked for at each arrival:
// which model, streamed or not; one client in a hundred leaves early, and a few
// send what cannot be served.
func plan(trace []arrival) []call {
	rng := rand.New(rand.NewPCG(1, 2))
	calls := make([]call, len(trace))
	for i, a := range trace {
		c := call{id: fmt.Sprint("replay-", i), at: a.at / speed, model: "llama-3.1-8b", prompt: a.prompt, output: a.output}
		if rng.IntN(5) < 2 {
			c.model = "llama-3.1-70b"
		}
		c.stream, c.usage = rng.IntN(2) == 0, rng.IntN(2) == 0
		switch n := rng.IntN(1000); {
		case n < 10:
			c.leaves, c.tokens, c.after = true, rng.IntN(2)*(1+rng.IntN(20)), time.Duration(rng.IntN(60))*time.Millisecond
		case n < 12:
			c.model = "nobody-serves-this"
		case n < 14:
			c.broken = true
		}
		c.text = promptOf(rng, a.prompt)
		calls[i] = c
	}
	return calls
}

// body is the request as it is sent. The answer is as long as in the trace.
func (c *call) body() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"model":%q,"max_tokens":%d,"ignore_eos":true,`, c.model, c.output)
	if c.stream {
		fmt.Fprintf(&b, `"stream":true,"stream_options":{"include_usage":%v},`, c.usage)
	}
	fmt.Fprintf(&b, `"messages":[{"role":"user","content":"%s"}]}`, c.text)
	if c.broken {
		b.Truncate(b.Len() - 2)
	}
	return b.Bytes()
}

// play sends every call at its time, whatever became of those before it, and
// tells of every tenth of the trace that is sent.
func play(t *testing.T, client *http.Client, base string, calls []call, tenth func(share float64)) []result {
	results := make([]result, len(calls))
	began := time.Now()
	var all sync.WaitGroup
	for i := range calls {
		if i > 0 && i%(len(calls)/10) == 0 {
			tenth(float64(10*i/len(calls)) / 10)
		}
		time.Sleep(time.Until(began.Add(calls[i].at)))
		all.Go(func() { results[i] = send(client, base, &calls[i]) })
	}
	all.Wait()
	return results
}

// awaitGoroutines waits until there are no more than when nothing had been
// sent, but for the connections on which engines are watched.
func awaitGoroutines(t *testing.T, idle int) {
	t.Helper()
	live.Await(t, time.Minute, func() string {
		if n := runtime.NumGoroutine(); n > idle+8 {
			return fmt.Sprintf("%d goroutines, %d before the load", n, idle)
		}
		return ""
	})
}

// servedLate reports whether the backend served any of the last tenth.
func servedLate(log []live.Line, backend string) bool {
	for _, l := range log {
		var n int
		if _, err := fmt.Sscanf(l.ClientRequestID, "replay-%d", &n); err != nil {
			continue
		}
		if n >= replayed*9/10 && l.Backend == backend && l.Reason == "ok" {
			return true
		}
	}
	return false
}

// report prints what became of the requests.
func report(t *testing.T, results []result, log []live.Line, metrics live.Samples) {
	outcomes, shares := map[string]int{}, map[string]int{}
	for _, r := range results {
		kind := r.reason
		if r.left {
			kind = "left by the client"
		}
		outcomes[fmt.Sprintf("%s (%d)", kind, r.status)]++
	}
	ttft := map[string][]float64{}
	for _, l := range log {
		if l.Reason == "ok" {
			shares[l.Backend]++
		}
		if l.TTFT > 0 {
			ttft[l.Model] = append(ttft[l.Model], l.TTFT)
		}
	}
	t.Logf("outcomes: %s", counts(outcomes))
	t.Logf("served by: %s", counts(shares))
	for _, model := range slices.Sorted(keys(ttft)) {
		t.Logf("TTFT of %s, real time: p50 %.0f ms, p95 %.0f ms, p99 %.0f ms", model,
			quantile(ttft[model], 0.50), quantile(ttft[model], 0.95), quantile(ttft[model], 0.99))
	}
	t.Logf("retries: %v; denied: %v; ejections: %v; stale connections: %v",
		metrics.By("firsttoken_retries_total", "reason"), metrics.By("firsttoken_retries_denied_total", "why"),
		metrics.By("firsttoken_ejections_total", "backend"), metrics.Sum("firsttoken_stale_connections_total"))
	t.Logf("attempts: %v", metrics.By("firsttoken_attempts_total", "reason"))
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func counts(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}

func quantile(values []float64, q float64) float64 {
	sort.Float64s(values)
	return values[int(q*float64(len(values)-1))]
}
