// Package fakellm is a programmable OpenAI-compatible backend: an http.Handler
// that plays a script for each request and remembers what it got. Tests and
// benchmarks use it over TCP, or over an in-memory network in a
// testing/synctest bubble, where every wait is exact.
//
// It owns the scripts (tokens at given times, errors, cuts, resets, splits at
// any byte, recorded exchanges, seeded chaos). It leaves to others how a real
// engine spends its time: nothing here queues or batches.
package fakellm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// Backend answers with scripts. Set its fields before it serves and do not
// copy it; the zero value is a fast, healthy server of the model "fake".
type Backend struct {
	// Script chooses the answer to one request; it runs on the request's
	// goroutine. Nil means Reply(16, 0, 0).
	Script func(*Request) Script

	// Health, Models and Metrics choose the answers of GET /health, /v1/models
	// and /metrics. Nil means 200; the only Model; and vLLM's gauges, of which
	// only the number of running requests moves.
	Health, Models, Metrics func(*Request) Script

	// Model is the id that Models and Metrics name; empty means "fake".
	Model string

	// Forget keeps the number of requests but not the requests, for long runs.
	Forget bool

	mu       sync.Mutex
	requests []*Request
	probes   []*Request
	count    int
	inFlight int
}

// ServeHTTP records the request and plays its script.
func (b *Backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	got, err := receive(r)
	probe := b.probe(r.URL.Path)
	b.arrive(got, probe != nil)
	defer b.leave(got, probe != nil)
	if err != nil {
		got.cancel()
		return
	}
	choose := b.script
	if probe != nil {
		choose = probe
	}
	play(choose(got), w, r.Context(), got)
}

// probe is the script of a side endpoint, nil for any other path.
func (b *Backend) probe(path string) func(*Request) Script {
	switch path {
	case "/health":
		return orElse(b.Health, func(*Request) Script { return Status(200, nil, "") })
	case "/v1/models":
		return orElse(b.Models, func(*Request) Script { return Status(200, nil, b.modelList()) })
	case "/metrics":
		return orElse(b.Metrics, func(*Request) Script { return Status(200, nil, b.gauges()) })
	}
	return nil
}

func (b *Backend) script(r *Request) Script {
	return orElse(b.Script, func(*Request) Script { return Reply(16, 0, 0) })(r)
}

func orElse(choose, usual func(*Request) Script) func(*Request) Script {
	if choose == nil {
		return usual
	}
	return choose
}

func (b *Backend) modelList() string {
	return fmt.Sprintf(`{"object":"list","data":[{"id":%s,"object":"model","owned_by":"fakellm"}]}`, quote(b.model()))
}

func (b *Backend) gauges() string {
	return fmt.Sprintf(`# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name=%[1]q} %[2]d
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name=%[1]q} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name=%[1]q} 0
`, b.model(), b.InFlight())
}

func (b *Backend) model() string {
	if b.Model == "" {
		return "fake"
	}
	return b.Model
}

func (b *Backend) arrive(r *Request, probe bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := &b.requests
	if probe {
		kept = &b.probes
	} else {
		r.Seq = b.count
		b.count++
		b.inFlight++
	}
	if !b.Forget {
		*kept = append(*kept, r)
	}
}

func (b *Backend) leave(r *Request, probe bool) {
	r.finish()
	if probe {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
}

// Requests returns the requests received so far, in order, without the probes.
func (b *Backend) Requests() []*Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*Request(nil), b.requests...)
}

// Probes returns the requests to /health, /v1/models and /metrics.
func (b *Backend) Probes() []*Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*Request(nil), b.probes...)
}

// Count is the number of requests received, without the probes.
func (b *Backend) Count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// InFlight is the number of requests whose script is being played.
func (b *Backend) InFlight() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inFlight
}

// Request is what the backend got. Its fields do not change once a script sees
// it; its methods may be called at any time.
type Request struct {
	Seq        int // 0 for the backend's first request that is no probe
	Method     string
	Host       string
	Path       string
	Query      string
	Header     http.Header
	Body       []byte    // as received
	Received   time.Time // when its header was read
	RemoteAddr string    // tells connections apart

	// Taken from a JSON body, zero without one.
	Model        string
	Stream       bool
	IncludeUsage bool // stream_options.include_usage

	mu                  sync.Mutex
	cancelled, finished time.Time
}

// receive reads the request; the error says that the client left before its
// body was complete.
func receive(r *http.Request) (*Request, error) {
	got := &Request{
		Method: r.Method, Host: r.Host, Path: r.URL.Path, Query: r.URL.RawQuery,
		Header: r.Header.Clone(), RemoteAddr: r.RemoteAddr, Received: time.Now(),
	}
	var err error
	got.Body, err = io.ReadAll(r.Body)
	var body struct {
		Model         string `json:"model"`
		Stream        bool   `json:"stream"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if json.Unmarshal(got.Body, &body) == nil {
		got.Model, got.Stream, got.IncludeUsage = body.Model, body.Stream, body.StreamOptions.IncludeUsage
	}
	return got, err
}

// Cancelled is when the client was seen to leave before the script ended; zero
// if it did not. A client that leaves after a Reset or a cut is not seen.
func (r *Request) Cancelled() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cancelled
}

// Finished is when the script ended, for whatever reason; zero before that.
func (r *Request) Finished() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.finished
}

func (r *Request) cancel() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancelled.IsZero() {
		r.cancelled = time.Now()
	}
}

func (r *Request) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = time.Now()
}

// play runs the script and notes the instant at which the client leaves.
func play(s Script, w http.ResponseWriter, ctx context.Context, r *Request) {
	left := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(left)
		r.cancel()
	})
	err := s.Play(&Response{ResponseWriter: w, Request: r, ctx: ctx})
	if err != nil && !errors.Is(err, errEnd) {
		r.cancel()
	}
	if !stop() {
		<-left
	}
}
