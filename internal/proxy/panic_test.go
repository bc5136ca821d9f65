package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"math/rand/v2"

	"github.com/firsttoken/firsttoken/internal/edge"
	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/memnet"
	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// trip is a transport made of a function.
type trip func(*http.Request) (*http.Response, error)

func (f trip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// testServer is a served data plane with one model of one backend.
type testServer struct {
	network *memnet.Network
	client  *http.Client
	backend *backends.Backend
	reg     *prometheus.Registry
	log     bytes.Buffer
	logs    *telemetry.Logs
}

// startServer serves the data plane at gateway:80, with engines behind the
// transport.
func startServer(t *testing.T, rt http.RoundTripper) *testServer {
	t.Helper()
	p := &testServer{network: memnet.New(), reg: prometheus.NewRegistry()}
	metrics := telemetry.NewMetrics(p.reg)
	var err error
	if p.logs, err = telemetry.NewLogs(&p.log, "info"); err != nil {
		t.Fatal(err)
	}
	pool := backends.NewFleet().Pools([]backends.PoolSpec{{Model: "m", Backends: []backends.Spec{{
		Name: "a", URL: &url.URL{Scheme: "http", Host: "a:8000"},
	}}}})[0]
	p.backend = pool.Backends[0]
	policy, err := router.NewPolicy(router.LeastInFlight, rand.NewPCG(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{Name: "m", Router: router.New(pool, router.LeastInFlight, policy), Retry: RetryRules{MaxAttempts: 3},
		Budget: NewBudget(0.2, 3), Metrics: metrics.Model("m")}
	target := NewTarget(p.backend, rt)
	target.Metrics = m.Metrics.Backend("a")
	m.Targets = []*Target{target}
	table := NewTable(1, []*Model{m})
	table.MaxBody = 1 << 20
	table.Contracts = &sla.Set{}
	h := New(table, metrics, noPromises{}, p.logs.Events, p.logs.Access)

	ln, err := p.network.Listen("gateway:80")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h.Handler(edge.Options{}), ErrorLog: p.logs.ForServer()}
	edge.Configure(server, edge.Options{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(edge.Listener(ln, edge.Options{}, h.EdgeError)) }()
	p.client = &http.Client{Transport: &http.Transport{DialContext: p.network.DialContext}}
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		_ = server.Close()
		<-done
		_ = p.logs.Sync()
	})
	return p
}

func (p *testServer) post(t *testing.T, header ...string) (status int, body string, err error) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://gateway/v1/chat/completions",
		strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := p.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// body is an answer's body made of a function.
type body func([]byte) (int, error)

func (f body) Read(b []byte) (int, error) { return f(b) }
func (body) Close() error                 { return nil }

// answering is a 200 of the type with the body.
func answering(kind string, b io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}, Body: b, ContentLength: -1}
}

func TestPanic(t *testing.T) {
	const event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}\n\n"
	after := func(text string, do func() error) body {
		sent := false
		return func(b []byte) (int, error) {
			if !sent {
				sent = true
				return copy(b, text), nil
			}
			return 0, do()
		}
	}
	boom := func() error { panic("boom") }
	rows := []struct {
		name  string
		trip  trip
		begun bool // a part of the answer is out
		quiet bool // no panic of ours
	}{
		{name: "in the transport", trip: func(*http.Request) (*http.Response, error) { panic("boom") }},
		{name: "in the first read", trip: func(*http.Request) (*http.Response, error) {
			return answering("text/event-stream", after("", boom)), nil
		}},
		{name: "in the stream", begun: true, trip: func(*http.Request) (*http.Response, error) {
			return answering("text/event-stream", after(event, boom)), nil
		}},
		{name: "in bytes", begun: true, trip: func(*http.Request) (*http.Response, error) {
			return answering("audio/wav", after("abc", boom)), nil
		}},
		{name: "aborted on purpose", begun: true, quiet: true, trip: func(*http.Request) (*http.Response, error) {
			return answering("audio/wav", after("abc", func() error { return io.ErrUnexpectedEOF })), nil
		}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var engine *http.Transport
				p := startServer(t, trip(func(r *http.Request) (*http.Response, error) {
					if r.Header.Get("X-Panic") != "" {
						return row.trip(r)
					}
					return engine.RoundTrip(r)
				}))
				engine = NewTransport(TransportOptions{Dial: time.Second, IdleConnTimeout: time.Second, MaxIdleConns: 1}, p.network.DialContext)
				ln, err := p.network.Listen("a:8000")
				if err != nil {
					t.Fatal(err)
				}
				server := fakellm.Serve(ln, &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script {
					return fakellm.Tokens(5, time.Second, time.Second)
				}})
				defer server.Close()
				other := make(chan error, 1)
				go func() {
					status, text, err := p.post(t)
					if status != 200 || !strings.HasSuffix(text, "data: [DONE]\n\n") {
						err = errors.Join(err, errors.New("another stream ended with "+text))
					}
					other <- err
				}()
				time.Sleep(2500 * time.Millisecond)

				status, text, err := p.post(t, "X-Panic", "1")
				switch {
				case row.begun && (status != 200 || err == nil || strings.Contains(text, "internal_error")):
					t.Errorf("%d %q %v; want an answer that is cut", status, text, err)
				case !row.begun && (status != 500 || err != nil || !strings.Contains(text, `"code":"internal_error"`)):
					t.Errorf("%d %q %v; want 500", status, text, err)
				}
				if load := p.backend.Load(time.Now()); load.InFlight != 1 || load.Penalty != 0 && !row.quiet {
					t.Errorf("the lease did not end, or the backend was blamed: %+v", load)
				}
				if err := <-other; err != nil {
					t.Error(err)
				}
				if load := p.backend.Load(time.Now()); load.InFlight != 0 {
					t.Errorf("load %+v", load)
				}
				p.check(t, row.quiet)
			})
		})
	}
}

// check compares what was counted and logged with one request that went wrong.
func (p *testServer) check(t *testing.T, quiet bool) {
	t.Helper()
	want, reason, code := 1.0, "panic", "500"
	if quiet {
		want, reason, code = 0, "connection_lost", "200"
	}
	if got := p.metric(t, "firsttoken_panics_total", ""); got != want {
		t.Errorf("%v panics, want %v", got, want)
	}
	if got := p.metric(t, "firsttoken_requests_in_flight", ""); got != 0 {
		t.Errorf("%v requests in flight", got)
	}
	if got := p.metric(t, "firsttoken_attempts_total", reason); got != 1 {
		t.Errorf("%v attempts ended with %s", got, reason)
	}
	if err := p.logs.Sync(); err != nil {
		t.Fatal(err)
	}
	text := p.log.String()
	if strings.Contains(text, `"level":"error"`) == quiet || strings.Contains(text, "stack") == quiet {
		t.Errorf("log of a panic (%v): %s", !quiet, text)
	}
	if !strings.Contains(text, `"reason":"`+reason+`"`) || !strings.Contains(text, `"status":`+code) {
		t.Errorf("no access line with %s and %s: %s", reason, code, text)
	}
}

// metric is the value of the metric's series with the reason, or of its only series.
func (p *testServer) metric(t *testing.T, name, reason string) float64 {
	t.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labelled := slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "reason" && l.GetValue() == reason })
			if f.GetName() == name && (labelled || reason == "") {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s of reason %q", name, reason)
	return 0
}
