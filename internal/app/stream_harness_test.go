package app_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// lenient are defaults under which no number of failures takes a backend out
// of turn or uses up the retry budget.
const lenient = `
defaults:
  policy: round-robin
  retry: {budget_min: 1000000}
  health: {interval: off, consecutive: 1000000, min_requests: 1000000, breaker_failures: 1000000}
`

// withTimeouts are the lenient defaults with timeouts, in YAML.
func withTimeouts(timeouts string) string { return lenient + "  timeouts: {" + timeouts + "}\n" }

// twins is a gateway with two backends, a and b, that share one script.
func twins(t testing.TB, extra string, script func(*fakellm.Request) fakellm.Script) (*gateway, *fakellm.Backend) {
	t.Helper()
	backend := &fakellm.Backend{Script: script}
	return startGateway(t, configFor(extra, "a:8000", "b:8000"), map[string]http.Handler{"a:8000": backend, "b:8000": backend}), backend
}

// hidingUsage makes the configuration ask for usage that clients do not see.
func hidingUsage(config string) string {
	return strings.Replace(config, "  - name: m\n", "  - name: m\n    inject_usage: always\n", 1)
}

func always(s ...fakellm.Step) func(*fakellm.Request) fakellm.Script {
	return func(*fakellm.Request) fakellm.Script { return s }
}

// attempts sums the attempts that ended with the reason over the twins.
func (g *gateway) attempts(reason string) int {
	g.t.Helper()
	sum := 0
	for _, b := range []string{"a", "b"} {
		n, _ := strconv.Atoi(g.metric(`firsttoken_attempts_total{backend="` + b + `",model="m",reason="` + reason + `"}`))
		sum += n
	}
	return sum
}

// sumOver adds up a gauge over the twins.
func (g *gateway) sumOver(gauge string) float64 {
	g.t.Helper()
	sum := 0.0
	for _, b := range []string{"a", "b"} {
		v, _ := strconv.ParseFloat(g.metric(gauge+`{backend="`+b+`"}`), 64)
		sum += v
	}
	return sum
}

// blamed reports whether failures weigh on a backend.
func (g *gateway) blamed() bool {
	g.t.Helper()
	return g.sumOver("firsttoken_backend_failure_penalty") > 0
}

// stream posts a streaming chat and returns the open answer.
func (g *gateway) stream(ctx context.Context, header ...string) *http.Response {
	g.t.Helper()
	resp, err := g.post(ctx, "/v1/chat/completions", streamBody("m"), header...)
	if err != nil {
		g.t.Fatalf("stream: %v", err)
	}
	return resp
}

// arrival is a piece of an answer and when it came.
type arrival struct {
	at   time.Duration
	text string
}

// arrivals reads an answer to its end. What comes at one instant is one piece.
func arrivals(r io.Reader, start time.Time) (got []arrival, err error) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		at := time.Since(start)
		switch {
		case n > 0 && len(got) > 0 && got[len(got)-1].at == at:
			got[len(got)-1].text += string(buf[:n])
		case n > 0:
			got = append(got, arrival{at, string(buf[:n])})
		}
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
	}
}

// eventData reads a stream as a browser does and returns each event's data.
func eventData(body string) (events []string) {
	var data []string
	for line := range strings.SplitSeq(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(body), "\n") {
		field, value, _ := strings.Cut(line, ":")
		switch {
		case line == "" && data != nil:
			events, data = append(events, strings.Join(data, "\n")), nil
		case field == "data":
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	return events
}

// checkBroken checks a stream that broke after the events in whole: they are
// unchanged, one error event with the code follows, and no [DONE].
func checkBroken(t testing.TB, got answer, whole, code string) {
	t.Helper()
	if got.err != nil || got.status != http.StatusOK {
		t.Errorf("status %d, error %v; want a stream that ends in order", got.status, got.err)
	}
	rest, unchanged := strings.CutPrefix(got.body, whole)
	if !unchanged {
		t.Fatalf("body %q, want it to begin with %q", got.body, whole)
	}
	events := eventData(rest)
	if len(events) != 1 || strings.Contains(rest, "[DONE]") || !strings.HasSuffix(rest, "\n\n") {
		t.Fatalf("after the events came %q, want one error event", rest)
	}
	checkError(t, events[0], code)
}

// checkError checks an error of the gateway's own in OpenAI's shape.
func checkError(t testing.TB, body, code string) {
	t.Helper()
	var e struct{ Error map[string]any }
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("error body %q: %v", body, err)
	}
	if len(e.Error) != 4 || e.Error["code"] != code || e.Error["message"] == "" || e.Error["type"] == "" {
		t.Errorf("error %v, want the code %q, a message, a type and a param", e.Error, code)
	}
}

// chunk is a chat event with the given delta and, if any, finish reason.
func chunk(delta, finish string) string {
	reason := "null"
	if finish != "" {
		reason = strconv.Quote(finish)
	}
	return `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":` +
		delta + `,"finish_reason":` + reason + "}]}\n\n"
}

// The events most streams are made of.
var (
	roleChunk  = chunk(`{"role":"assistant","content":""}`, "")
	helloChunk = chunk(`{"content":"hello"}`, "")
	worldChunk = chunk(`{"content":" world"}`, "")
	stopChunk  = chunk(`{}`, "stop")
	usageChunk = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],` +
		`"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}` + "\n\n"
	doneEvent  = "data: [DONE]\n\n"
	goodStream = roleChunk + helloChunk + worldChunk + stopChunk + doneEvent
)
