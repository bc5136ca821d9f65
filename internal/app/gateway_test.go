package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/memnet"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// gateway is a whole gateway on an in-memory network, with programmable
// backends behind it. Inside a synctest bubble all its times are virtual.
type gateway struct {
	t      testing.TB
	net    *memnet.Network
	app    *app.App
	client *http.Client
	log    *logBuffer
	stop   context.CancelCauseFunc
	done   chan error

	shipped *trees.Bundle // model that comes with it; nil: none

	mu     sync.Mutex
	config string
	silent map[string]bool // addresses whose dials are never answered
}

const gatewayAddr = "gateway:8080"

// startGateway serves the configuration text until the test ends. Backends
// are reached by the host names they are given under, e.g. "a:8000".
func startGateway(t testing.TB, text string, backends map[string]http.Handler) *gateway {
	t.Helper()
	g := newGateway(t)
	g.config = text
	for addr, h := range backends {
		g.serveBackend(addr, h)
	}
	return g.start(g.load)
}

// newGateway is a gateway that is yet to be started, and its network.
func newGateway(t testing.TB) *gateway {
	return &gateway{t: t, net: memnet.New(), log: &logBuffer{}, done: make(chan error, 1), silent: map[string]bool{}}
}

// start starts the gateway with the configuration that load reads.
func (g *gateway) start(load func() (*config.Config, error)) *gateway {
	t := g.t
	t.Helper()
	cfg, err := load()
	if err != nil {
		t.Fatalf("configuration: %v", err)
	}
	g.app, err = app.New(cfg, app.Options{
		Log: g.log, Reload: load, Version: "test", Shipped: g.shipped,
		Listen: func(_, addr string) (net.Listener, error) { return g.net.Listen(addr) },
		Dial:   g.dial,
	})
	if err != nil {
		t.Fatalf("start the gateway: %v", err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	g.stop = stop
	go func() { g.done <- g.app.Run(ctx) }()
	transport := &http.Transport{DialContext: g.net.DialContext, DisableCompression: true}
	g.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		g.shutdown()
	})
	return g
}

// dial connects the gateway to its backends.
func (g *gateway) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	g.mu.Lock()
	silent := g.silent[addr]
	g.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return g.net.DialContext(ctx, network, addr)
}

// silence leaves dials of addr without an answer.
func (g *gateway) silence(addr string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent[addr] = true
}

// serveBackend listens at addr; close ends it and every connection to it.
func (g *gateway) serveBackend(addr string, h http.Handler) (closeBackend func()) {
	g.t.Helper()
	ln, err := g.net.Listen(addr)
	if err != nil {
		g.t.Fatalf("listen at %s: %v", addr, err)
	}
	server := fakellm.Serve(ln, h)
	closeBackend = sync.OnceFunc(server.Close)
	g.t.Cleanup(closeBackend)
	return closeBackend
}

func (g *gateway) load() (*config.Config, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return config.Parse("test.yaml", []byte(g.config), ".", os.LookupEnv)
}

// reload puts a new configuration text into force.
func (g *gateway) reload(text string) error {
	g.mu.Lock()
	g.config = text
	g.mu.Unlock()
	return g.app.Reload()
}

// shutdown stops the gateway at once and waits for it.
func (g *gateway) shutdown() {
	g.t.Helper()
	g.stop(app.Stop{AtOnce: true})
	if err := <-g.done; err != nil {
		g.t.Errorf("gateway ended with %v", err)
	}
	g.done <- nil // shutdown may be called again
}

// post sends a JSON body to a path of the data plane.
func (g *gateway) post(ctx context.Context, path, body string, header ...string) (*http.Response, error) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+gatewayAddr+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return g.client.Do(req)
}

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
	last   bool  // the connection is closed after it
}

// chat posts a chat completion and reads the whole answer.
func (g *gateway) chat(body string, header ...string) answer {
	g.t.Helper()
	resp, err := g.post(context.Background(), "/v1/chat/completions", body, header...)
	if err != nil {
		g.t.Fatalf("chat: %v", err)
	}
	return readAnswer(resp)
}

func readAnswer(resp *http.Response) answer {
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(text), err: err, last: resp.Close}
}

// preferA lets backend a of a configuration be tried before b.
func preferA(text string) string {
	return strings.Replace(text, "name: b,", "name: b, weight: 0.000001,", 1)
}

// streamBody is a chat request that streams.
func streamBody(model string) string {
	return fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"hi"}]}`, model)
}

// plainBody is a chat request that does not stream.
func plainBody(model string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hi"}]}`, model)
}

// metrics is one scrape of the telemetry listener.
func (g *gateway) metrics() string { return g.operator("/metrics").body }

// operator gets a path of the telemetry listener.
func (g *gateway) operator(path string) answer {
	g.t.Helper()
	resp, err := g.client.Get("http://operator:8081" + path)
	if err != nil {
		g.t.Fatalf("get %s: %v", path, err)
	}
	return readAnswer(resp)
}

// metric is the value of the series whose line starts with name{labels}, or
// "" if there is none.
func (g *gateway) metric(series string) string {
	g.t.Helper()
	for line := range strings.SplitSeq(g.metrics(), "\n") {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			return v
		}
	}
	return ""
}

// access stops the gateway, so that the log is whole, and returns its request lines.
func (g *gateway) access() []map[string]any {
	g.t.Helper()
	g.client.CloseIdleConnections()
	g.shutdown()
	var lines []map[string]any
	for _, l := range g.log.lines(g.t) {
		if l["msg"] == "request" {
			lines = append(lines, l)
		}
	}
	return lines
}

// logBuffer collects the gateway's log.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) lines(t testing.TB) []map[string]any {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []map[string]any
	for line := range strings.Lines(b.buf.String()) {
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("log line is not JSON: %q", line)
		}
		out = append(out, l)
	}
	return out
}

// configFor is a configuration with one model "m" on the given backends.
// extra is YAML that goes before the models. Backends get no warm-up prompts
// unless it says so.
func configFor(extra string, addrs ...string) string {
	var b strings.Builder
	b.WriteString("server: {listen: \"" + gatewayAddr + "\"}\ntelemetry: {listen: \"operator:8081\"}\n")
	b.WriteString(extra)
	if !strings.Contains(extra, "warm_up:") {
		b.WriteString("\nwarm_up: {enabled: false}")
	}
	b.WriteString("\nmodels:\n  - name: m\n    backends:\n")
	for _, a := range addrs {
		name, _, _ := strings.Cut(a, ":")
		fmt.Fprintf(&b, "      - {name: %s, url: \"http://%s\"}\n", name, a)
	}
	return b.String()
}
