//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"

	"github.com/firsttoken/firsttoken/test/e2e/live"
)

// patience is for what ends by itself; a test that needs it all has failed.
const patience = 3 * time.Minute

// Health of the engines: what decides how soon one that returns serves again.
const (
	probe    = 500 * time.Millisecond
	ejection = 2 * time.Second
)

// TestLlamaCpp has two real engines behind the gateway's binary, and official
// SDKs in front of it.
func TestLlamaCpp(t *testing.T) {
	fast, slow := startLlama(t, 2, wholeStep), startLlama(t, 1, wholeStep)
	engines := map[string]*llama{"fast": fast, "slow": slow}
	t.Run("stream", func(t *testing.T) { testStream(t, engines) })
	t.Run("refusal", func(t *testing.T) { testRefusal(t, engines) })
	t.Run("abandoned prefill", func(t *testing.T) { testAbandonedPrefill(t, fast) })
	t.Run("killed", func(t *testing.T) { testKilled(t, engines) })
}

func configFor(engines map[string]*llama) string {
	return live.Listen + fmt.Sprintf(`
drain: {accept: off}
defaults:
  health: {interval: %v, timeout: 5s, ejection: %v, slow_start: off}
`, probe, ejection) + modelOf(engines)
}

// modelOf is the part of a configuration that names the engines.
func modelOf(engines map[string]*llama) string {
	var b strings.Builder
	b.WriteString("models:\n  - name: gemma\n    backends:\n")
	for name, e := range engines {
		fmt.Fprintf(&b, "      - {name: %s, url: %q, engine: llamacpp, model: gemma3-270m}\n", name, e.url())
	}
	return b.String()
}

// testStream streams through both engines with both SDKs and compares what
// the client, the engine and the gateway say.
func testStream(t *testing.T, engines map[string]*llama) {
	g := startBinary(t, configFor(engines))
	const tokens = 24
	answers := streamAll(t, g, 2, tokens, func(string, int) {})

	byBackend := map[string]int{}
	for _, s := range answers {
		byBackend[s.backend]++
		if s.err != nil || s.failure != "" {
			t.Errorf("%s: stream failed: %v %s", s.sdk, s.err, s.failure)
			continue
		}
		if s.text == "" || s.finish != "length" || s.usage.Completion != tokens {
			t.Errorf("%s: text %q, finish reason %q, usage %+v", s.sdk, s.text, s.finish, s.usage)
		}
		if s.timings.PredictedN != tokens || s.timings.PromptN+s.timings.CacheN != s.usage.Prompt {
			t.Errorf("%s: the engine's timings %+v do not fit the usage %+v", s.sdk, s.timings, s.usage)
		}
	}
	if byBackend["fast"] == 0 || byBackend["slow"] == 0 {
		t.Errorf("served by %v, want both engines", byBackend)
	}
	m := g.metrics()
	for name := range engines {
		for _, series := range []string{"firsttoken_engine_requests_running", "firsttoken_engine_requests_waiting", "firsttoken_engine_signals_age_seconds"} {
			if !m.Has(series, "backend", name) {
				t.Errorf("no %s of %s", series, name)
			}
		}
		if n := m.Sum("firsttoken_upstream_ttft_seconds", "backend", name); int(n) != byBackend[name] {
			t.Errorf("%v first tokens counted for %s, want %d", n, name, byBackend[name])
		}
	}
	checkLog(t, g.requests(), answers)
}

// streamAll streams n answers with each SDK at the same time.
func streamAll(t *testing.T, g *binary, n, tokens int, tell progress) []streamed {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answers := make([]streamed, 2*n)
	var all sync.WaitGroup
	for i := range n {
		a := ask{base: g.url, model: "gemma", prompt: text(20), tokens: tokens}
		all.Go(func() { answers[2*i] = streamGo(ctx, a, fmt.Sprint("go-", i), tell) })
		all.Go(func() { answers[2*i+1] = streamPython(ctx, t, a, tell) })
	}
	all.Wait()
	return answers
}

// checkLog compares the gateway's account of the streams with the engine's.
func checkLog(t *testing.T, log []live.Line, answers []streamed) {
	t.Helper()
	byID := map[string]live.Line{}
	for _, l := range log {
		byID[l.ClientRequestID] = l
	}
	for _, s := range answers {
		if s.id == "" || s.err != nil {
			continue
		}
		l := byID[s.id]
		if l.Reason != "ok" || l.Backend != s.backend || l.PromptTokens != s.usage.Prompt || l.Completion != s.usage.Completion ||
			l.Chunks != s.chunks || l.FirstToken != "content" {
			t.Errorf("the log says %+v of %+v", l, s)
		}
		// The engine's prefill lies inside the time from attempt to first token.
		if l.UpstreamTTFT < s.timings.PromptMS || l.UpstreamTTFT > l.TTFT || l.TTFT > l.Duration {
			t.Errorf("%s: upstream TTFT %v ms, TTFT %v ms, duration %v ms; the engine says prefill took %v ms",
				s.id, l.UpstreamTTFT, l.TTFT, l.Duration, s.timings.PromptMS)
		}
		t.Logf("%s on %s: upstream TTFT %.0f ms (engine's prefill %.0f ms), %d tokens in %.0f ms",
			s.id, s.backend, l.UpstreamTTFT, s.timings.PromptMS, l.Completion, l.Duration)
	}
}

// testRefusal: what the engine finds wrong with a request reaches the client
// in the engine's own words.
func testRefusal(t *testing.T, engines map[string]*llama) {
	g := startBinary(t, configFor(engines))
	client := goClient(g.url)
	_, err := client.Chat.Completions.New(t.Context(), ask{model: "gemma", prompt: text(6000), tokens: 4}.plain())
	var refused *openai.Error
	if !errors.As(err, &refused) {
		t.Fatalf("an over-long prompt gave %v, want the engine's refusal", err)
	}
	body := refused.RawJSON()
	if refused.StatusCode != http.StatusBadRequest || refused.Type != "exceed_context_size_error" ||
		!strings.Contains(body, `"n_prompt_tokens"`) || !strings.Contains(body, `"n_ctx"`) {
		t.Errorf("status %d, body %s", refused.StatusCode, body)
	}
	if l := g.requests()[0]; l.Reason != "engine_4xx" || l.Attempts != 1 || l.Status != http.StatusBadRequest {
		t.Errorf("log line %+v", l)
	}
}

func (a ask) plain() openai.ChatCompletionNewParams {
	p := a.params()
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
	return p
}

// testAbandonedPrefill: llama.cpp goes on with the prefill of a client that
// left. The gateway counts it until the engine's own numbers say it is gone.
func testAbandonedPrefill(t *testing.T, e *llama) {
	g := startBinary(t, configFor(map[string]*llama{"fast": e})) // one that has seen no TTFT yet expects the most
	leave := abandon(t, g, 700)
	live.Await(t, patience, func() string {
		if m := g.metrics(); m.Sum("firsttoken_engine_requests_running", "backend", "fast") != 1 {
			return "the engine does not say that it runs the request"
		}
		return ""
	})
	leave()
	left := time.Now()
	held := func() float64 { return g.metrics().Sum("firsttoken_backend_held_prefills", "backend", "fast") }
	live.Await(t, time.Second*10, func() string {
		if held() == 1 {
			return ""
		}
		return "the abandoned prefill is not held"
	})
	for held() == 1 && time.Since(left) < patience {
		time.Sleep(50 * time.Millisecond)
	}
	released := time.Since(left)
	// The engine is asked after the gateway: it can only have become idle since.
	if n := e.busy(); n != 0 {
		t.Errorf("held for %v after the client left, and the engine still runs %v requests", released, n)
	}
	t.Logf("a prefill of a client that left was held for %v", released.Round(time.Millisecond))
	live.AwaitIdle(t, g.operator, patience)
	if l := g.requests()[0]; l.Reason != "client_left" || l.Status != 499 {
		t.Errorf("log line %+v", l)
	}
}

// abandon sends a long prompt and returns the way to leave.
func abandon(t *testing.T, g *binary, words int) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	body, err := json.Marshal(map[string]any{
		"model": "gemma", "stream": true, "max_tokens": 4,
		"messages": []map[string]string{{"role": "user", "content": text(words)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body) // ends with the context
			_ = resp.Body.Close()
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// testKilled kills an engine in the middle of streams and brings it back.
func testKilled(t *testing.T, engines map[string]*llama) {
	g := startBinary(t, configFor(engines))
	const victim, survivor = "fast", "slow"
	watch := newWatch(victim, 2, 3)
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		<-watch.ready // both of the victim's streams are under way
		engines[victim].kill()
	}()
	var burst []error
	var after sync.WaitGroup
	after.Go(func() {
		<-killed
		burst = askAll(g, 12)
	})
	answers := streamAll(t, g, 2, 150, watch.tell)
	after.Wait()

	broken := 0
	for _, s := range answers {
		switch {
		case s.backend == victim && s.failure != "":
			broken++
		case s.backend == victim || s.err != nil || s.failure != "" || s.usage.Completion != 150:
			t.Errorf("%s on %s: failure %q, %v, %d tokens", s.sdk, s.backend, s.failure, s.err, s.usage.Completion)
		}
	}
	if broken != 2 {
		t.Errorf("%d streams ended with an APIError, want the 2 that ran on the killed engine", broken)
	}
	served := 0
	for i, err := range burst {
		if err != nil {
			t.Errorf("request %d right after the kill failed: %v", i, err)
			continue
		}
		served++
	}
	m := g.metrics()
	t.Logf("%d streams broken by the kill; of %d requests right after it %d served: %v retries, %v ejections",
		broken, len(burst), served, m.Sum("firsttoken_retries_total"), m.Sum("firsttoken_ejections_total"))

	live.Await(t, patience, func() string {
		if g.metrics().Sum("firsttoken_backend_up", "backend", victim) != 0 {
			return "probes do not notice that the engine is gone"
		}
		return ""
	})
	engines[victim].start()
	back := time.Now()
	live.Await(t, patience, func() string {
		before := g.metrics().Sum("firsttoken_attempts_total", "backend", victim, "reason", "ok")
		for _, err := range askAll(g, 2) {
			if err != nil {
				t.Errorf("a request while the engine returns failed: %v", err)
			}
		}
		if g.metrics().Sum("firsttoken_attempts_total", "backend", victim, "reason", "ok") == before {
			return "the engine that came back does not serve"
		}
		return ""
	})
	t.Logf("the engine served again %v after it was ready (probes every %v, two good ones; ejection %v)",
		time.Since(back).Round(time.Millisecond), probe, ejection)
	live.AwaitIdle(t, g.operator, patience)
}

// watch is ready when a number of streams on a backend have a number of chunks.
type watch struct {
	backend string
	chunks  int
	ready   chan struct{}

	mu   sync.Mutex
	left int
}

func newWatch(backend string, streams, chunks int) *watch {
	return &watch{backend: backend, chunks: chunks, left: streams, ready: make(chan struct{})}
}

func (w *watch) tell(backend string, chunks int) {
	if backend != w.backend || chunks != w.chunks {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left--; w.left == 0 {
		close(w.ready)
	}
}

// askAll sends n short requests at once.
func askAll(g *binary, n int) []error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	errs := make([]error, n)
	client := goClient(g.url)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			a := ask{model: "gemma", prompt: text(5), tokens: 4}
			_, errs[i] = client.Chat.Completions.New(ctx, a.plain())
		})
	}
	all.Wait()
	return errs
}

// text is so many words that no engine has in its cache.
func text(words int) string {
	common := strings.Fields(`time year people way day man thing woman life child world school state family student
group country problem hand part place case week company system program question work number night point home water
room mother area money story fact month lot right study book eye job word business issue side kind head house`)
	var b strings.Builder
	for range words {
		b.WriteString(common[rand.IntN(len(common))])
		b.WriteByte(' ')
	}
	return b.String()
}
