//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3/option"

	"github.com/firsttoken/firsttoken/test/e2e/live"
)

// What the gate is tested with.
const (
	longestWarmUp = 256 // tokens; prompts of 64 and 128 go before it
	callers       = 4
	contract      = `
apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: acme-chat}
spec:
  match: {tenants: [acme]}
  objectives: [{metric: e2e, percentile: 95, threshold: 60s}]
`
)

// TestWarmUpGate starts an engine again while a contract's traffic flows. It
// gets warm-up prompts first and requests only when these are answered.
func TestWarmUpGate(t *testing.T) {
	restarted, other := startLlama(t, 1, wholeStep), startLlama(t, 1, wholeStep)
	engines := map[string]*llama{"restarted": restarted, "other": other}
	file := filepath.Join(t.TempDir(), "contract.yaml")
	if err := os.WriteFile(file, []byte(contract), 0o600); err != nil {
		t.Fatal(err)
	}
	// Round robin would send every second request to an engine that is not ready.
	// Two good probes take longer than a scrape, so that the engine is seen cold.
	g := startBinary(t, live.Ports+fmt.Sprintf(`
warm_up: {max_prompt: %d, repeat: 1}
contracts: {files: [%q]}
drain: {accept: off}
defaults:
  policy: round-robin
  retry: {budget_ratio: 1}
  health: {interval: 300ms, unhealthy: 2, timeout: 5s, ejection: %v, slow_start: off}
  signals: {interval: 100ms}
`, longestWarmUp, file, ejection)+modelOf(engines))
	gate := &gate{t: t, g: g, e: restarted, name: "restarted"}
	if ready := gate.look().state; ready != "ready" {
		t.Fatalf("an engine that was there before the gateway is %s, want ready", ready)
	}
	stop := flow(t, g)
	gate.await("the engine serves", func(s sight) bool { return s.served > 2 })

	restarted.kill()
	gate.await("the gateway sees that the engine is gone", func(s sight) bool { return !s.up })
	restarted.launch()
	before := gate.await("the gateway sees that the engine is another", func(s sight) bool { return s.state != "ready" })
	states := gate.follow(before)
	if want := []string{"cold", "warming", "ready"}; !slices.Equal(states, want) {
		t.Errorf("the engine was %v, want %v", states, want)
	}
	ready := time.Now()
	gate.await("the engine serves again", func(s sight) bool { return s.served > before.served })
	t.Logf("first request ended on it %v after it was ready", time.Since(ready).Round(time.Millisecond))
	stop()
	gate.checkLog()
}

// flow has callers send requests of the contract until stop. All of them have
// to be served, whatever becomes of the engine: they are not streamed, so that
// what the kill breaks is tried again.
func flow(t *testing.T, g *binary) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			client := goClient(g.url)
			for ctx.Err() == nil {
				a := ask{model: "gemma", prompt: text(20), tokens: 8}
				if _, err := client.Chat.Completions.New(context.Background(), a.plain(), option.WithHeader("X-Tenant", "acme")); err != nil {
					t.Errorf("a request failed: %v", err)
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// gate looks at one engine as the gateway does.
type gate struct {
	t    *testing.T
	g    *binary
	e    *llama
	name string
}

// sight is what the gateway's metrics said of the engine.
type sight struct {
	state    string // of its readiness
	up       bool
	inFlight float64 // requests
	attempts float64 // that have ended, whatever their end
	served   float64
}

func (g *gate) look() sight {
	g.t.Helper()
	m := g.g.metrics()
	s := sight{
		up:       m.Sum("firsttoken_backend_up", "backend", g.name) == 1,
		inFlight: m.Sum("firsttoken_backend_in_flight", "backend", g.name),
		attempts: m.Sum("firsttoken_attempts_total", "backend", g.name),
		served:   m.Sum("firsttoken_attempts_total", "backend", g.name, "reason", "ok"),
	}
	for _, state := range []string{"cold", "warming", "ready", "draining"} {
		if m.Sum("firsttoken_backend_readiness", "backend", g.name, "state", state) == 1 {
			s.state = state
		}
	}
	return s
}

func (g *gate) await(what string, met func(sight) bool) (s sight) {
	g.t.Helper()
	live.Await(g.t, patience, func() string {
		if s = g.look(); met(s) {
			return ""
		}
		return fmt.Sprintf("not yet: %s; it is %+v", what, s)
	})
	return s
}

// follow goes with the engine until it is ready and gives the states on the
// way. Until then it has nothing but one warm-up prompt at a time.
func (g *gate) follow(first sight) (states []string) {
	g.t.Helper()
	states = []string{first.state}
	most, computed := 0.0, 0.0
	g.await("the engine is ready", func(s sight) bool {
		if s.state != states[len(states)-1] {
			states = append(states, s.state)
		}
		if s.state == "ready" {
			return true
		}
		if s.inFlight != 0 || s.attempts != first.attempts {
			g.t.Errorf("while %s it has %v requests in flight and ended %v attempts", s.state, s.inFlight, s.attempts-first.attempts)
		}
		now := live.Scrape(g.t, g.e.url()+"/metrics")
		if g.look().state != "ready" { // and was not when the engine was asked
			most = max(most, now.Sum("llamacpp:requests_processing")+now.Sum("llamacpp:requests_deferred"))
			computed = max(computed, now.Sum("llamacpp:prompt_tokens_total"))
		}
		return false
	})
	g.t.Logf("before it was ready the engine had computed %v prompt tokens of warm-up, %v prompt at a time", computed, most)
	if most > 1 || computed == 0 {
		g.t.Errorf("the engine says that it had up to %v requests and computed %v prompt tokens, want one at a time and some", most, computed)
	}
	return states
}

// checkLog ends the gateway and reads what it says of the warm-up and of the
// requests.
func (g *gate) checkLog() {
	g.t.Helper()
	for _, l := range g.g.requests() {
		if l.Contract != "acme-chat" || l.Reason != "ok" {
			g.t.Errorf("log line %+v", l)
		}
	}
	begun, over := 0, 0
	for raw := range strings.Lines(g.g.log.String()) {
		var event struct {
			Msg, Backend, Why, Readiness string
			Prompts                      int
			Took                         float64 // seconds
		}
		if err := json.Unmarshal([]byte(raw), &event); err != nil {
			g.t.Fatalf("log line %q: %v", raw, err)
		}
		switch event.Msg {
		case "backend is warmed up before it gets requests":
			begun++
			g.t.Logf("%s is warmed up because it is %q", event.Backend, event.Why)
		case "warm-up is over":
			over++
			g.t.Logf("%s answered %d prompts in %.1f s and is %s", event.Backend, event.Prompts, event.Took, event.Readiness)
			if event.Backend != g.name || event.Prompts != 3 || event.Readiness != "ready" {
				g.t.Errorf("warm-up ended with %+v", event)
			}
		}
	}
	if begun != 1 || over != 1 {
		g.t.Errorf("%d warm-ups begun and %d over, want one", begun, over)
	}
}
