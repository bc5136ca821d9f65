package fakellm_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

func TestRequestsAreRecorded(t *testing.T) {
	b := &fakellm.Backend{Script: always(fakellm.Script{fakellm.Wait(time.Second), fakellm.Done()})}
	inBubble(t, b, func(t *testing.T, c client) {
		start := time.Now()
		req, _ := http.NewRequestWithContext(t.Context(), "PUT", c.url+"/v1/x?y=z", strings.NewReader(usage))
		req.Header.Set("X-Tenant", "acme")
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		synctest.Wait()

		if b.Count() != 1 || len(b.Requests()) != 1 {
			t.Fatalf("%d requests", b.Count())
		}
		r := b.Requests()[0]
		if r.Method != "PUT" || r.Path != "/v1/x" || r.Query != "y=z" || r.Host != "backend:80" || r.Header.Get("X-Tenant") != "acme" {
			t.Errorf("got %s %s %s?%s %v", r.Method, r.Host, r.Path, r.Query, r.Header)
		}
		if string(r.Body) != usage || r.Model != "m" || !r.Stream || !r.IncludeUsage {
			t.Errorf("body %s: model %q, stream %v, usage %v", r.Body, r.Model, r.Stream, r.IncludeUsage)
		}
		if r.Received != start || r.Finished().Sub(start) != time.Second || !r.Cancelled().IsZero() {
			t.Errorf("received %v, finished %v, cancelled %v", r.Received, r.Finished(), r.Cancelled())
		}
	})
}

func TestConnectionsAreToldApart(t *testing.T) {
	b := &fakellm.Backend{Script: fakellm.Sequence(
		fakellm.Status(200, nil, "kept"), fakellm.Script{fakellm.Send("x"), fakellm.Close()}, fakellm.Status(200, nil, ""))}
	inBubble(t, b, func(t *testing.T, c client) {
		for range 3 {
			c.post(t.Context(), "/", plain)
			synctest.Wait()
		}
		r := b.Requests()
		if r[0].RemoteAddr != r[1].RemoteAddr || r[1].RemoteAddr == r[2].RemoteAddr {
			t.Errorf("connections %s, %s, %s; want the first reused and the third new", r[0].RemoteAddr, r[1].RemoteAddr, r[2].RemoteAddr)
		}
	})
}

func TestClientLeavesDuringUpload(t *testing.T) {
	b := &fakellm.Backend{}
	inBubble(t, b, func(t *testing.T, c client) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		body := &stuckBody{start: strings.NewReader("partial"), ctx: ctx}
		req, _ := http.NewRequestWithContext(ctx, "POST", c.url+"/", body)
		if _, err := c.http.Do(req); err == nil {
			t.Fatal("no error")
		}
		synctest.Wait()
		r := b.Requests()[0]
		if string(r.Body) != "partial" || r.Cancelled().Sub(r.Received) != time.Second {
			t.Errorf("body %q, cancelled after %v", r.Body, r.Cancelled().Sub(r.Received))
		}
	})
}

// stuckBody gives its start and then nothing until ctx ends.
type stuckBody struct {
	start *strings.Reader
	ctx   context.Context
}

func (b *stuckBody) Read(p []byte) (int, error) {
	if b.start.Len() > 0 {
		return b.start.Read(p)
	}
	<-b.ctx.Done()
	return 0, b.ctx.Err()
}

func TestProbes(t *testing.T) {
	b := &fakellm.Backend{Model: "llama", Script: always(fakellm.Script{fakellm.Hang()})}
	inBubble(t, b, func(t *testing.T, c client) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { c.post(ctx, "/v1/chat/completions", stream) })
		synctest.Wait()
		for path, want := range map[string]string{
			"/health":    "",
			"/v1/models": `{"object":"list","data":[{"id":"llama","object":"model","owned_by":"fakellm"}]}`,
			"/metrics":   `vllm:num_requests_running{model_name="llama"} 1`,
		} {
			if got := c.do(t.Context(), "GET", path, ""); got.status != 200 || !strings.Contains(got.body(), want) {
				t.Errorf("%s: %d %q", path, got.status, got.body())
			}
		}
		cancel()
		wg.Wait()
		if b.Count() != 1 || len(b.Probes()) != 3 {
			t.Errorf("%d requests, %d probes", b.Count(), len(b.Probes()))
		}
	})
}

func TestProbesAreProgrammable(t *testing.T) {
	b := &fakellm.Backend{
		Health:  fakellm.Sequence(fakellm.Status(503, nil, "loading"), fakellm.Status(200, nil, "ok")),
		Models:  always(fakellm.Status(401, nil, `{}`)),
		Metrics: always(fakellm.Script{fakellm.Wait(time.Second), fakellm.Send("up 1\n")}),
	}
	inBubble(t, b, func(t *testing.T, c client) {
		for _, want := range []int{503, 200, 200} {
			if got := c.do(t.Context(), "GET", "/health", ""); got.status != want {
				t.Errorf("/health %d, want %d", got.status, want)
			}
		}
		if got := c.do(t.Context(), "GET", "/v1/models", ""); got.status != 401 {
			t.Errorf("/v1/models %d", got.status)
		}
		if got := c.do(t.Context(), "GET", "/metrics", ""); len(got.pieces) != 1 || got.pieces[0] != (piece{time.Second, "up 1\n"}) {
			t.Errorf("/metrics %v", got.pieces)
		}
	})
}

func TestForgetKeepsTheCount(t *testing.T) {
	b := &fakellm.Backend{Forget: true}
	inBubble(t, b, func(t *testing.T, c client) {
		for range 3 {
			c.post(t.Context(), "/v1/chat/completions", plain)
		}
		if b.Count() != 3 || len(b.Requests()) != 0 {
			t.Errorf("count %d, kept %d", b.Count(), len(b.Requests()))
		}
	})
}

func TestConcurrentRequests(t *testing.T) {
	const n = 50
	b := &fakellm.Backend{}
	overTCP(t, b, func(t *testing.T, c client) {
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if got := c.post(t.Context(), "/v1/chat/completions", stream); got.err != nil || !strings.HasSuffix(got.body(), "data: [DONE]\n\n") {
					t.Errorf("%v after %q", got.err, got.body())
				}
			})
		}
		wg.Wait()
	})
	seen := map[int]bool{}
	for _, r := range b.Requests() {
		seen[r.Seq] = true
	}
	if len(seen) != n || b.InFlight() != 0 {
		t.Errorf("%d sequence numbers, %d in flight", len(seen), b.InFlight())
	}
}
