package proxy

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// plane is a data plane with one model "m" on one engine, which answers every
// request with the next of its bodies.
type plane struct {
	*Handler
	router *router.Router
	logs   *observer.ObservedLogs
	body   io.Reader
	header http.Header
}

func newPlane(t testing.TB, hideUsage bool) *plane {
	t.Helper()
	p := &plane{header: http.Header{"Content-Type": {"text/event-stream"}}}
	base, err := url.Parse("http://engine:8000")
	if err != nil {
		t.Fatal(err)
	}
	pool := backends.NewFleet().Pools([]backends.PoolSpec{{Model: "m", Backends: []backends.Spec{{Name: "a", URL: base}}}})[0]
	policy, err := router.NewPolicy(router.RoundRobin, rand.NewPCG(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	metrics := telemetry.NewMetrics(prometheus.NewRegistry())
	target := NewTarget(pool.Backends[0], p)
	target.Timeouts = Timeouts{FirstToken: time.Minute, Idle: time.Minute, ClientWrite: time.Minute}
	target.InjectUsage = hideUsage
	target.Metrics = metrics.Model("m").Backend("a")
	p.router = router.New(pool, router.RoundRobin, policy)
	table := NewTable(1, []*Model{{
		Name: "m", Router: p.router, Targets: []*Target{target},
		Retry: RetryRules{MaxAttempts: 1}, Budget: NewBudget(0.2, 3), Metrics: metrics.Model("m"),
	}})
	table.MaxBody = 1 << 20
	core, logs := observer.New(zap.InfoLevel)
	p.logs = logs
	table.Contracts = &sla.Set{}
	p.Handler = New(table, metrics, noPromises{}, zap.NewNop(), zap.New(core))
	return p
}

// predicting makes the plane predict, and shows its only engine.
func (p *plane) predicting() *predictor.Instance {
	fleet := predictor.NewFleet(nil)
	engine := fleet.Instance("http://engine:8000", nil)
	p.router.Foresee(router.Foresight{Pool: fleet.Pool("m", predictor.Rules{}), Instances: []*predictor.Instance{engine}})
	return engine
}

// RoundTrip makes a plane its own engine.
func (p *plane) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Header: p.header, ContentLength: -1,
		Body: io.NopCloser(p.body), Request: r}, nil
}

// relay is one request whose answer arrives in the given parts, one a read.
// It returns what the client got and the access line without its times.
func (p *plane) relay(parts ...string) (string, map[string]any) {
	readers := make([]io.Reader, len(parts))
	for i, part := range parts {
		readers[i] = strings.NewReader(part)
	}
	p.body = io.MultiReader(readers...)
	w := httptest.NewRecorder()
	p.serve(w, streamRequest(), openai.ChatCompletions)
	line := p.logs.TakeAll()[0].ContextMap()
	for name := range line {
		if strings.HasSuffix(name, "_ms") {
			delete(line, name)
		}
	}
	return w.Body.String(), line
}

func streamRequest() *http.Request {
	return httptest.NewRequest(http.MethodPost, "/v1/chat/completions",
		strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
}

// recordedStreams are the recorded event streams, or a skip.
func recordedStreams(t testing.TB) []fakellm.Exchange {
	t.Helper()
	var streams []fakellm.Exchange
	for _, e := range fakellm.Recordings(t) {
		if e.Stream {
			streams = append(streams, e)
		}
	}
	return streams
}

// TestByteSplit relays every recorded stream in two parts split at every
// offset (near the line ends and at random for the long ones), and byte by
// byte: bytes and access line are always those of the unsplit stream.
func TestByteSplit(t *testing.T) {
	for _, e := range recordedStreams(t) {
		t.Run(e.File, func(t *testing.T) {
			p, body := newPlane(t, false), string(e.Body)
			got, want := p.relay(body)
			if got != body {
				t.Fatalf("unsplit: the client got %d bytes %q, want %d", len(got), tail(got), len(body))
			}
			check := func(how string, parts ...string) {
				t.Helper()
				got, line := p.relay(parts...)
				if got != body {
					t.Fatalf("%s: bytes differ from %d on, of %d", how, common(got, body), len(body))
				}
				if !reflect.DeepEqual(line, want) {
					t.Fatalf("%s: access line\n%v, want\n%v", how, line, want)
				}
			}
			for _, at := range offsets(body) {
				check(fmt.Sprintf("split at %d", at), body[:at], body[at:])
			}
			check("byte by byte", strings.Split(body, "")...)
		})
	}
}

// TestByteSplitLineEnds is the same for every way to end lines, alone and mixed.
func TestByteSplitLineEnds(t *testing.T) {
	event := `data: {"choices":[{"index":0,"delta":{"content":"é"}}]}`
	for name, body := range map[string]string{
		"LF":            event + "\n\n" + event + "\n\ndata: [DONE]\n\n",
		"CRLF":          event + "\r\n\r\n" + event + "\r\n\r\ndata: [DONE]\r\n\r\n",
		"CR":            event + "\r\r" + event + "\r\rdata: [DONE]\r\r",
		"mixed":         event + "\r\n\n" + event + "\n\r" + event + "\r\r\ndata:[DONE]\n\r\n",
		"no space":      "data:" + event[6:] + "\n\ndata:[DONE]\n\n",
		"blank lines":   "\n\n\n" + event + "\n\n\n\n" + event + "\n\n\n\ndata: [DONE]\n\n",
		"comments":      ": ping\n\n: ping\n" + event + "\n: pong\n\n:\n\ndata: [DONE]\n\n",
		"named events":  "event: message\nid: 7\nretry: 10\n" + event + "\n\ndata: [DONE]\n\n",
		"many lines":    "data: {\"choices\":\ndata: [{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n",
		"not JSON":      "data: hello\n\ndata:\n\ndata: [DONE]\n\n",
		"no blank line": event + "\n\ndata: [DONE]",
		"byte order":    "\ufeff" + event + "\n\ndata: [DONE]\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, false)
			_, want := p.relay(body)
			if want["reason"] != "ok" {
				t.Fatalf("unsplit: access line %v", want)
			}
			for at := range len(body) + 1 {
				got, line := p.relay(body[:at], body[at:])
				if got != body || !reflect.DeepEqual(line, want) {
					t.Fatalf("split at %d: %q\n%v, want %q\n%v", at, got, line, body, want)
				}
			}
		})
	}
}

// offsets are all of a short body; of a long one those around its line ends
// and some at random.
func offsets(body string) []int {
	var out []int
	if len(body) <= 2000 {
		for at := range len(body) + 1 {
			out = append(out, at)
		}
		return out
	}
	most := 2 << 20 / len(body) // bounds the time
	rng := rand.New(rand.NewPCG(1, uint64(len(body))))
	for range min(most, 100) {
		out = append(out, rng.IntN(len(body)))
	}
	for i := 0; i < len(body) && len(out) < 2*most; i++ {
		if body[i] == '\n' {
			out = append(out, i, i+1)
		}
	}
	return out
}

func tail(s string) string { return s[max(0, len(s)-80):] }

func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// TestRelayAllocatesNothingPerChunk compares a long stream with a short one.
func TestRelayAllocatesNothingPerChunk(t *testing.T) {
	p := newPlane(t, false)
	p.predicting()
	perStream := func(events int) float64 {
		return testing.AllocsPerRun(20, func() {
			p.body = &repeated{event: []byte(contentEvent), times: events}
			p.serve(newSink(), streamRequest(), openai.ChatCompletions)
			p.logs.TakeAll()
		})
	}
	const more = 2000
	if perChunk := (perStream(10+more) - perStream(10)) / more; perChunk > 0.01 {
		t.Errorf("%.3f allocations a chunk, want none", perChunk)
	}
}

const contentEvent = `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1796065861,"model":"m",` +
	`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n"

// BenchmarkRelay is one event of a stream through the relay, metered, with its
// tokens told to the predictor and without.
func BenchmarkRelay(b *testing.B) {
	for _, perRead := range []int{1, 8} {
		b.Run(fmt.Sprintf("%d_a_read", perRead), func(b *testing.B) { benchmarkRelay(b, newPlane(b, false), perRead) })
		b.Run(fmt.Sprintf("%d_a_read/predicting", perRead), func(b *testing.B) {
			p := newPlane(b, false)
			p.predicting()
			benchmarkRelay(b, p, perRead)
		})
	}
}

func benchmarkRelay(b *testing.B, p *plane, perRead int) {
	event := bytes.Repeat([]byte(contentEvent), perRead)
	b.SetBytes(int64(len(contentEvent)))
	b.ReportAllocs()
	p.body = &repeated{event: event, times: b.N/perRead + 1}
	w, r := newSink(), streamRequest()
	b.ResetTimer()
	p.serve(w, r, openai.ChatCompletions)
}

// repeated is a body of the same event over and over, one a read, and [DONE].
type repeated struct {
	event []byte
	times int
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.times--; r.times >= 0 {
		return copy(p, r.event), nil
	}
	return copy(p, "data: [DONE]\n\n"), io.EOF
}

// sink is a client that reads everything at once.
type sink struct{ header http.Header }

func newSink() *sink                           { return &sink{header: http.Header{}} }
func (s *sink) Header() http.Header            { return s.header }
func (*sink) WriteHeader(int)                  {}
func (*sink) Write(p []byte) (int, error)      { return len(p), nil }
func (*sink) FlushError() error                { return nil }
func (*sink) SetWriteDeadline(time.Time) error { return nil }
