package toxics

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/test/e2e/live"
)

// patient ejects nobody, so that every request meets the toxic; strict ejects
// after two failures and for a short time.
const (
	patient = `{interval: off, consecutive: 1000, failure_rate: 1, min_requests: 1000, breaker_failures: 1000}`
	strict  = `{interval: off, consecutive: 2, ejection: 300ms, slow_start: off}`
)

// Timeouts of the engine behind the proxy: quick where the toxic is to trip
// them, and otherwise so long that a busy machine does not.
const (
	quick     = `{dial: 5s, response_header: 600ms, first_token: 500ms, idle: 400ms}`
	quickIdle = `{dial: 5s, response_header: 10s, first_token: 10s, idle: 400ms}`
	slow      = `{dial: 5s, response_header: 10s, first_token: 10s, idle: 10s}`
)

// hang is how long a request may take before it counts as one that never
// ends: far above the sum of all timeouts, whatever else the machine does.
const hang = 30 * time.Second

// bench is a gateway and two engines, one of them behind toxiproxy.
type bench struct {
	t       *testing.T
	gateway *live.Gateway
	proxy   *toxiproxy.Proxy
	client  *http.Client
	behind  *fakellm.Backend // the engine behind the proxy
	prompt  string
	answer  string // of a request without a stream
	closes  bool   // the end of a stream is the end of its connection
	pauseAt int    // streams stop before this token until goOn
	goOn    chan struct{}

	mu      sync.Mutex
	asked   int
	reasons map[string]int // as clients were told
}

func startBench(t *testing.T, health, timeouts string) *bench {
	b := &bench{
		t: t, goOn: make(chan struct{}), client: &http.Client{Transport: &http.Transport{}}, reasons: map[string]int{},
		prompt: strings.Repeat("tell me more ", 2000),
		answer: `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"` +
			strings.Repeat("and then ", 800) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":800}}`,
	}
	t.Cleanup(b.client.CloseIdleConnections)
	b.behind = &fakellm.Backend{Script: b.script}
	b.proxy = startProxy(t, "127.0.0.1:0", serveEngine(t, b.behind))
	clean := serveEngine(t, &fakellm.Backend{Script: b.script})
	behind := fmt.Sprintf(`{name: poisoned, url: "http://%s", timeouts: %s}`, b.proxy.Listen, timeouts)
	beside := fmt.Sprintf(`{name: clean, url: "http://%s", timeouts: %s}`, clean, slow)
	b.gateway = live.Start(t, fmt.Sprintf(live.Listen+`
defaults:
  policy: least-inflight
  health: %s
  retry: {budget_min: 20}
models:
  - {name: alone, backends: [%[2]s]}
  - {name: pair, backends: [%[2]s, %[3]s]}
  - {name: other, backends: [%[3]s]}
`, health, behind, beside))
	return b
}

func serveEngine(t *testing.T, b *fakellm.Backend) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := fakellm.Serve(l, b)
	t.Cleanup(server.Close)
	return l.Addr().String()
}

func startProxy(t *testing.T, listen, upstream string) *toxiproxy.Proxy {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(server, "engine", listen, upstream)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// script is the same answer every time, so that its bytes can be compared.
func (b *bench) script(r *fakellm.Request) fakellm.Script {
	if !r.Stream {
		return append(fakellm.Script{fakellm.Wait(ttft)}, fakellm.Status(http.StatusOK, nil, b.answer)...)
	}
	h := http.Header{"Content-Type": {"text/event-stream"}}
	if b.closes {
		h.Set("Transfer-Encoding", "identity")
	}
	s := fakellm.Script{fakellm.Header(http.StatusOK, h), fakellm.Event(role), fakellm.Wait(ttft)}
	for i := range tokens {
		if i > 0 && i == b.pauseAt {
			s = append(s, b.pause)
		}
		s = append(s, fakellm.Event(token(i)), fakellm.Wait(gap))
	}
	return append(s, fakellm.Event(last), fakellm.Done())
}

func (b *bench) pause(w *fakellm.Response) error {
	select {
	case <-b.goOn:
		return nil
	case <-w.Context().Done():
		return w.Context().Err()
	}
}

const (
	role = `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	last = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
)

func token(i int) string {
	return fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":"token %d "},"finish_reason":null}]}`, i)
}

// whole is the stream as the engine sends it.
func whole() string {
	var s strings.Builder
	frame := func(data string) { s.WriteString("data: " + data + "\n\n") }
	frame(role)
	for i := range tokens {
		frame(token(i))
	}
	frame(last)
	frame("[DONE]")
	return s.String()
}

// poison adds the toxic, to open connections as well.
func (b *bench) poison(c toxic) {
	if c.typ == "" {
		return
	}
	spec := fmt.Sprintf(`{"name":"toxic","type":%q,"stream":%q,"toxicity":1,"attributes":%s}`, c.typ, c.stream, c.attrs)
	if _, err := b.proxy.Toxics.AddToxicJson(strings.NewReader(spec)); err != nil {
		b.t.Errorf("add toxic %s: %v", spec, err)
	}
}

// cure puts a good network in the place of the bad one. What was connected
// through that is cut.
func (b *bench) cure(t *testing.T) {
	b.proxy.Stop()
	b.proxy = startProxy(t, b.proxy.Listen, b.proxy.Upstream)
}

// answer is what a client got.
type answer struct {
	stream  bool
	status  int
	backend string
	body    string
	broken  bool // the body ended in an error of the connection
	reason  string
}

// begun says that the client had seen data before the end.
func (a answer) begun() bool { return a.status == http.StatusOK && a.body != "" }

// ask sends a request and reads the answer; each, if not nil, is called after
// every event with their number. It is safe for concurrent use.
func (b *bench) ask(model string, stream bool, each func(event int)) answer {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	a := answer{stream: stream}
	a.read(b.send(ctx, model, stream), each)
	if ctx.Err() != nil {
		a.reason = "hung"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	b.reasons[a.reason]++
	return a
}

// send gives nil when no answer came.
func (b *bench) send(ctx context.Context, model string, stream bool) *http.Response {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.gateway.URL+"/v1/chat/completions", bytes.NewReader(b.body(model, stream)))
	if err != nil {
		return nil
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return nil
	}
	return resp
}

func (a *answer) read(resp *http.Response, each func(event int)) {
	if resp == nil {
		a.reason = "no answer"
		return
	}
	defer resp.Body.Close()
	a.status, a.backend = resp.StatusCode, resp.Header.Get("X-Firsttoken-Backend")
	body, err := readAll(resp.Body, each)
	a.body, a.broken = body, err != nil
	a.reason = a.judge()
}

// askAll sends n requests at once.
func (b *bench) askAll(n int, model string, stream bool) []answer {
	answers := make([]answer, n)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = b.ask(model, stream, nil) })
	}
	all.Wait()
	return answers
}

func (b *bench) body(model string, stream bool) []byte {
	body, err := json.Marshal(map[string]any{
		"model": model, "stream": stream, "messages": []map[string]string{{"role": "user", "content": b.prompt}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return body
}

func readAll(r io.Reader, each func(int)) (string, error) {
	var all strings.Builder
	events := 0
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		all.WriteString(line)
		if line == "\n" {
			if events++; each != nil {
				each(events)
			}
		}
		if err == io.EOF {
			return all.String(), nil
		}
		if err != nil {
			return all.String(), err
		}
	}
}

// judge is the reason the client was told, "ok" if it was told of nothing
// wrong.
func (a answer) judge() string {
	told := a.body
	if a.stream && a.status == http.StatusOK {
		events := strings.Split(strings.TrimSuffix(a.body, "\n\n"), "\n\n")
		told = strings.TrimPrefix(events[len(events)-1], "data: ")
	}
	var body struct {
		Error *struct {
			Message, Type *string
			Param, Code   *string
		} `json:"error"`
	}
	if json.Unmarshal([]byte(told), &body) != nil || body.Error == nil || body.Error.Code == nil {
		return "ok"
	}
	return strings.TrimPrefix(*body.Error.Code, "upstream_")
}

// check holds an answer to the promise: right to the byte, or honestly broken.
func (b *bench) check(t *testing.T, a answer) {
	t.Helper()
	switch {
	case a.reason == "ok" && a.stream:
		if a.status != http.StatusOK || a.broken || a.body != whole() {
			t.Errorf("a stream that seems whole is not: status %d, %q", a.status, a.body)
		}
	case a.reason == "ok":
		if a.status != http.StatusOK || a.broken || a.body != b.answer {
			t.Errorf("an answer that seems whole is not: status %d, %q", a.status, a.body)
		}
	case a.status != http.StatusOK:
		if a.status != http.StatusBadGateway && a.status != http.StatusGatewayTimeout || a.broken {
			t.Errorf("status %d for %q, want 502 or 504", a.status, a.reason)
		}
	default:
		b.checkBroken(t, a)
	}
}

// checkBroken wants a beginning of the stream, up to the end of an event, then
// one error event and nothing more.
func (b *bench) checkBroken(t *testing.T, a answer) {
	t.Helper()
	at := strings.Index(a.body, `data: {"error"`)
	if !a.stream || at < 0 || a.broken {
		t.Errorf("a broken answer ends without an error event: %q", a.body)
		return
	}
	sent, told := a.body[:at], a.body[at:]
	if !strings.HasPrefix(whole(), sent) || (sent != "" && !strings.HasSuffix(sent, "\n\n")) {
		t.Errorf("before the error came %q, which is not a beginning of the stream in whole events", sent)
	}
	if strings.Count(told, "\n\n") != 1 || strings.Contains(told, "[DONE]") {
		t.Errorf("after the break came %q, want one event and no [DONE]", told)
	}
}

// awaitServed asks until the backend is the one that answers.
func (b *bench) awaitServed(t *testing.T, model, backend string) {
	t.Helper()
	live.Await(t, hang, func() string {
		got := b.ask(model, true, nil)
		b.check(t, got)
		if got.reason == "ok" && got.backend == backend {
			return ""
		}
		return backend + " does not serve"
	})
}

// finish compares the gateway's account with the client's: nothing is left
// running, every request is counted once, by the reason the client was told,
// and what reached the engine is what the client sent.
func (b *bench) finish(t *testing.T) {
	t.Helper()
	live.AwaitIdle(t, b.gateway.OperatorURL, hang)
	metrics := b.gateway.Metrics()
	if n := metrics.Sum("firsttoken_requests_total"); int(n) != b.asked {
		t.Errorf("%v requests counted, %d sent", n, b.asked)
	}
	for reason, n := range metrics.By("firsttoken_requests_total", "reason") {
		if reason == "ok" || b.reasons["ok"] == b.asked {
			continue
		}
		if int(n) != b.reasons[reason] {
			t.Errorf("%v requests counted as %q, the client was told of %d", n, reason, b.reasons[reason])
		}
	}
	for _, r := range b.behind.Requests() {
		if r.Cancelled().IsZero() && !bytes.Equal(r.Body, b.body(r.Model, r.Stream)) {
			t.Errorf("the engine got another body than was sent: %d bytes", len(r.Body))
		}
	}
}
