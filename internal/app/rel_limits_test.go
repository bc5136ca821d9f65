package app_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

func TestSaturation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := fakellm.Tokens(5, time.Second, time.Second)
		a, b := playing(slow...), playing(slow...)
		text := configFor(strings.Replace(quiet, "defaults: {", "defaults: {limits: {max_in_flight: 3}, ", 1), "a:8000", "b:8000")
		g := startGateway(t, text, map[string]http.Handler{"a:8000": a, "b:8000": b})
		var clients sync.WaitGroup
		var mu sync.Mutex
		served, refused := 0, 0
		for range 20 {
			clients.Go(func() {
				start := time.Now()
				got := g.chat(streamBody("m"))
				mu.Lock()
				defer mu.Unlock()
				if got.status == 200 {
					served++
					return
				}
				refused++
				e := errorIn(t, got.body)
				if got.status != 429 || e.Code != "backends_saturated" || e.Type != "rate_limit_error" ||
					got.header.Get("Retry-After") != "1" || time.Since(start) != 0 {
					t.Errorf("%d %v %v", got.status, e, got.header)
				}
			})
		}
		clients.Wait()
		if served != 6 || refused != 14 || a.Count() != 3 || b.Count() != 3 {
			t.Errorf("%d served, %d refused; %d and %d attempts", served, refused, a.Count(), b.Count())
		}
		g.want(`firsttoken_requests_total{code="429",endpoint="chat_completions",model="m",reason="saturated"}`, "14")
		if got := g.chat(streamBody("m")); got.status != 200 {
			t.Errorf("status %d when there is room again", got.status)
		}
	})
}

func TestBreakersOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := down(0), down(0)
		text := configFor("defaults: {policy: round-robin, retry: {max_attempts: 1}, health: {interval: off, max_ejected: 0, breaker_failures: 3, breaker_open: 7s}}", "a:8000", "b:8000")
		g := startGateway(t, text, map[string]http.Handler{"a:8000": a, "b:8000": b})
		for range 20 {
			g.chat(plainBody("m"))
		}
		got := g.chat(plainBody("m"))
		if e := errorIn(t, got.body); got.status != 503 || e.Code != "no_backend_available" || e.Type != "server_error" || got.header.Get("Retry-After") != "7" {
			t.Errorf("%d %v %v", got.status, e, got.header)
		}
		if a.Count() != 3 || b.Count() != 3 {
			t.Errorf("%d and %d attempts, want 3 each", a.Count(), b.Count())
		}
		g.want(`firsttoken_backend_breaker_state{backend="a"}`, "2")
		time.Sleep(7*time.Second + time.Millisecond)
		a.Script, b.Script = nil, nil
		for range 5 {
			if got := g.chat(plainBody("m")); got.status != 200 {
				t.Errorf("status %d after the breakers' time", got.status)
			}
		}
		g.want(`firsttoken_backend_breaker_state{backend="a"}`, "0")
		g.want(`firsttoken_backend_breaker_state{backend="b"}`, "0")
	})
}

func TestDrainingBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &fakellm.Backend{}
		text := strings.Replace(configFor(quiet, "a:8000"), "name: a,", "name: a, draining: true,", 1)
		g := startGateway(t, text, map[string]http.Handler{"a:8000": a})
		got := g.chat(plainBody("m"))
		if e := errorIn(t, got.body); got.status != 503 || e.Code != "no_backend_available" || got.header.Get("Retry-After") == "" || a.Count() != 0 {
			t.Errorf("%d %v; %d attempts", got.status, e, a.Count())
		}
		if g.ready() {
			t.Error("ready with nobody to serve")
		}
	})
}

// What an engine says to the client's own mistake, or about its limits, is for
// the client.
func TestEngineRefusals(t *testing.T) {
	header := http.Header{
		"Retry-After": {"17"}, "X-Ratelimit-Limit-Requests": {"10"}, "X-Ratelimit-Remaining-Requests": {"0"}, "X-Should-Retry": {"false"},
		"Content-Type": {"application/json"},
	}
	const body = `{"object":"error","message":"max_tokens is too large","type":"BadRequestError","param":null,"code":400}`
	for _, status := range []int{400, 401, 403, 404, 409, 413, 422, 429, 500, 501, 502, 503, 529} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := playing(fakellm.Status(status, header, body).Play)
				b := playing(fakellm.Status(status, header, body).Play)
				g := startGateway(t, configFor(quiet, "a:8000", "b:8000"), map[string]http.Handler{"a:8000": a, "b:8000": b})
				for i, request := range []string{plainBody("m"), streamBody("m")} {
					got := g.chat(request)
					if got.status != status || got.body != body {
						t.Errorf("%d %q", got.status, got.body)
					}
					for name, want := range header {
						if got.header.Get(name) != want[0] {
							t.Errorf("%s: %q, want %q", name, got.header[name], want)
						}
					}
					attempts := 1 // the client's mistake is one everywhere; 501 will not change
					if status == 429 || status >= 500 && status != 501 {
						attempts = 2
					}
					if n := a.Count() + b.Count(); n != (i+1)*attempts {
						t.Errorf("%d attempts, want %d", n, (i+1)*attempts)
					}
				}
				blamed := g.metric(`firsttoken_backend_failure_penalty{backend="a"}`) != "0" || g.metric(`firsttoken_backend_failure_penalty{backend="b"}`) != "0"
				if blamed != (status == 429 || status >= 500) {
					t.Errorf("engines are blamed: %v", blamed)
				}
				reason := "engine_4xx"
				switch {
				case status == 429:
					reason = "engine_429"
				case status >= 500:
					reason = "engine_5xx"
				}
				g.want(fmt.Sprintf(`firsttoken_requests_total{code="%d",endpoint="chat_completions",model="m",reason="%s"}`, status, reason), "2")
			})
		})
	}
}

func TestEngine429GoesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := playing(fakellm.Status(429, http.Header{"Retry-After": {"1"}}, "{}").Play), &fakellm.Backend{}
		text := configFor("defaults: {retry: {budget_min: 1000}, policy: round-robin, health: {interval: off, consecutive: 2}}", "a:8000", "b:8000")
		g := startGateway(t, text, map[string]http.Handler{"a:8000": a, "b:8000": b})
		for range 50 {
			if got := g.chat(streamBody("m")); got.status != 200 || got.header.Get("Retry-After") != "" {
				t.Errorf("%d %v", got.status, got.header)
			}
		}
		if a.Count() == 0 || b.Count() != 50 {
			t.Errorf("%d and %d attempts", a.Count(), b.Count())
		}
		g.want(`firsttoken_backend_ejected{backend="a"}`, "0")
	})
}

// However requests end, nothing stays counted.
func TestGaugesReturnToZero(t *testing.T) {
	ends := []fakellm.Script{
		fakellm.Reply(5, 50*time.Millisecond, 10*time.Millisecond),
		{fakellm.Reset()}, {fakellm.Close()}, {fakellm.Hang()}, {fakellm.Wait(80 * time.Millisecond), fakellm.Reset()},
		fakellm.Broken(3, 50*time.Millisecond, 10*time.Millisecond, fakellm.Reset()),
		fakellm.Broken(3, 50*time.Millisecond, 10*time.Millisecond, fakellm.CutClean()),
		fakellm.Broken(3, 50*time.Millisecond, 10*time.Millisecond, fakellm.Hang()),
		fakellm.Broken(0, 0, 0, fakellm.Event(`{"error":{"message":"x","code":500}}`)),
		fakellm.Status(400, nil, "{}"), fakellm.Status(429, nil, "{}"), fakellm.Status(500, nil, "{}"), fakellm.Status(503, nil, "no"),
		fakellm.Status(302, nil, ""), {fakellm.Header(200, http.Header{"Content-Type": {"audio/wav"}}), fakellm.Send("abc"), fakellm.Reset()},
	}
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		backend := &fakellm.Backend{Forget: true, Script: func(r *fakellm.Request) fakellm.Script { return ends[r.Seq%len(ends)] }}
		text := configFor("defaults: {timeouts: {first_token: 400ms, idle: 300ms, total: 1s, response_header: 500ms}, limits: {max_in_flight: 30}, "+
			"health: {interval: 100ms, ejection: 100ms, slow_start: 1s, breaker_open: 200ms}}", "a:8000", "b:8000", "c:8000")
		text = strings.ReplaceAll(text, "name: c,", "name: c, engine: vllm,")
		g := startGateway(t, text, map[string]http.Handler{"a:8000": backend, "b:8000": backend, "c:8000": backend})
		var clients sync.WaitGroup
		const requests = 1000
		for range requests {
			body := plainBody("m")
			if rng.IntN(2) == 0 {
				body = streamBody("m")
			}
			patience := time.Duration(1+rng.IntN(800)) * time.Millisecond
			wait := time.Duration(rng.IntN(10000)) * time.Millisecond
			clients.Go(func() {
				time.Sleep(wait)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if resp, err := g.post(ctx, "/v1/chat/completions", body); err == nil {
					readAnswer(resp)
				}
			})
		}
		clients.Wait()
		synctest.Wait()
		if n := backend.InFlight(); n != 0 {
			t.Errorf("%d requests still run on engines", n)
		}
		text = g.metrics()
		for _, gauge := range []string{"firsttoken_requests_in_flight{", "firsttoken_backend_in_flight{", "firsttoken_backend_prefilling{", "firsttoken_backend_prefill_tokens{"} {
			lines := grep(text, gauge)
			if lines == "" {
				t.Errorf("no %s", gauge)
			}
			for line := range strings.SplitSeq(lines, "\n") {
				if !strings.HasSuffix(line, " 0") {
					t.Error(line)
				}
			}
		}
		time.Sleep(time.Minute) // the longest that a prefill is held
		for line := range strings.SplitSeq(grep(g.metrics(), "firsttoken_backend_held_prefills{"), "\n") {
			if !strings.HasSuffix(line, " 0") {
				t.Error(line)
			}
		}
		// Every request is counted once, in the log and in the metrics.
		total := 0
		for line := range strings.SplitSeq(grep(g.metrics(), "firsttoken_requests_total{"), "\n") {
			var n int
			_, _ = fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &n)
			total += n
		}
		if lines := len(g.access()); total != requests || lines != requests {
			t.Errorf("%d requests in the metrics, %d in the log, want %d", total, lines, requests)
		}
	})
}
