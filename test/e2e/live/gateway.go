// Package live runs a whole gateway on loopback sockets inside a test and
// reads what it tells its operator: metrics and the request log. Engines, real
// or not, are the test's own.
package live

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/config"
)

// Gateway is a running gateway. Its methods are for the test's goroutine.
type Gateway struct {
	// URL and OperatorURL are the bases of the data plane and of the
	// telemetry listener, without a path.
	URL, OperatorURL string

	t    testing.TB
	log  lockedBuffer
	stop context.CancelCauseFunc
	done chan error
	once sync.Once
}

// Ports is the part of a configuration that has a gateway listen on free
// ports of the loopback.
const Ports = `
server: {listen: "127.0.0.1:0", debug_headers: true}
telemetry: {listen: "127.0.0.1:0"}
`

// Listen is Ports for a gateway that sends engines nothing of its own but
// probes.
const Listen = Ports + "warm_up: {enabled: false}\n"

// Start serves the configuration until Stop, or the end of the test.
func Start(t testing.TB, text string) *Gateway {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte(text), ".", os.LookupEnv)
	if err != nil {
		t.Fatalf("configuration: %v", err)
	}
	g := &Gateway{t: t, done: make(chan error, 1)}
	a, err := app.New(cfg, app.Options{Log: &g.log, Version: "test"})
	if err != nil {
		t.Fatalf("start the gateway: %v", err)
	}
	g.URL, g.OperatorURL = "http://"+a.Addr().String(), "http://"+a.OperatorAddr().String()
	ctx, stop := context.WithCancelCause(context.Background())
	g.stop = stop
	go func() { g.done <- a.Run(ctx) }()
	t.Cleanup(g.Stop)
	return g
}

// Stop drains the gateway and waits for its end. It may be called again.
func (g *Gateway) Stop() {
	g.once.Do(func() {
		g.stop(app.Stop{AtOnce: true})
		if err := <-g.done; err != nil {
			g.t.Errorf("the gateway ended with %v", err)
		}
	})
}

// Metrics reads the gateway's metrics as of now.
func (g *Gateway) Metrics() Samples {
	g.t.Helper()
	return Scrape(g.t, g.OperatorURL+"/metrics")
}

// Log stops the gateway, so that its log is whole, and gives the lines of
// requests.
func (g *Gateway) Log() []Line {
	g.t.Helper()
	g.Stop()
	return ReadLog(g.t, g.log.String())
}

// Line is a request as the gateway logged it.
type Line struct {
	Msg             string  `json:"msg"`
	Level           string  `json:"level"`
	ClientRequestID string  `json:"client_request_id"`
	Endpoint        string  `json:"endpoint"`
	Model           string  `json:"model"`
	Backend         string  `json:"backend"`
	Contract        string  `json:"contract"`
	Status          int     `json:"status"`
	Reason          string  `json:"reason"`
	Code            string  `json:"code"` // of a refusal before a model was known
	Error           string  `json:"error"`
	Attempts        int     `json:"attempts"`
	FirstToken      string  `json:"first_token"`
	TTFT            float64 `json:"ttft_ms"`
	UpstreamTTFT    float64 `json:"upstream_ttft_ms"`
	Duration        float64 `json:"duration_ms"`
	Chunks          int     `json:"chunks"`
	PromptTokens    int     `json:"prompt_tokens"`
	Completion      int     `json:"completion_tokens"`
}

// ReadLog gives the lines of requests in a gateway's log.
func ReadLog(t testing.TB, text string) []Line {
	t.Helper()
	var lines []Line
	for raw := range strings.Lines(text) {
		var l Line
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Fatalf("log line %q: %v", raw, err)
		}
		if l.Msg == "request" {
			lines = append(lines, l)
		}
	}
	return lines
}

// lockedBuffer is written by the gateway and read by the test.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
