package app_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// TestIdleTimeout: a stream that falls silent after its first token ends with
// an error event when the idle time is over, and the engine is let go.
func TestIdleTimeout(t *testing.T) {
	const idle = 5 * time.Second
	alive := fakellm.Script{fakellm.Wait(4 * time.Second), fakellm.Send(": ping\n\n")}
	for name, test := range map[string]struct {
		script fakellm.Script
		whole  string
		at     time.Duration
		code   string
	}{
		"after a token":       {fakellm.Script{fakellm.Send(roleChunk, helloChunk), fakellm.Hang()}, roleChunk + helloChunk, idle, "upstream_idle_timeout"},
		"in an event":         {fakellm.Script{fakellm.Send(roleChunk, helloChunk, "data: {"), fakellm.Hang()}, roleChunk + helloChunk, idle, "upstream_idle_timeout"},
		"after the finish":    {fakellm.Script{fakellm.Send(roleChunk, helloChunk, stopChunk), fakellm.Hang()}, roleChunk + helloChunk + stopChunk, idle, "upstream_idle_timeout"},
		"kept alive":          {fakellm.Script{fakellm.Send(helloChunk), alive.Play, alive.Play, fakellm.Hang()}, helloChunk + ": ping\n\n: ping\n\n", 8*time.Second + idle, "upstream_idle_timeout"},
		"slow but not silent": {fakellm.Script{fakellm.Send(helloChunk), repeat(5, fakellm.Script{fakellm.Wait(idle - 1), fakellm.Send(worldChunk)}), fakellm.Hang()}, helloChunk + strings.Repeat(worldChunk, 5), 5*(idle-1) + idle, "upstream_idle_timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, backend := twins(t, withTimeouts("idle: 5s, first_token: 20s"), always(append(fakellm.Script{fakellm.Stream()}, test.script...)...))
				start := time.Now()
				got := g.chat(streamBody("m"))
				if d := time.Since(start); d != test.at {
					t.Errorf("the stream ended after %v, want %v", d, test.at)
				}
				checkBroken(t, got, test.whole, test.code)
				time.Sleep(100 * time.Millisecond)
				if backend.Count() != 1 || backend.Requests()[0].Cancelled().IsZero() {
					t.Errorf("%d attempts, the backend was cancelled at %v", backend.Count(), backend.Requests()[0].Cancelled())
				}
				if g.attempts("idle_timeout") != 1 || !g.blamed() {
					t.Errorf("blamed: %t", g.blamed())
				}
				if line := g.access()[0]; line["reason"] != "idle_timeout" || line["status"] != 200.0 {
					t.Errorf("access line %v", line)
				}
			})
		})
	}
}

// TestIdleTimeoutUnstreamed: the idle time is that of one read of the answer,
// not of the whole, and a silent engine is replaced.
func TestIdleTimeoutUnstreamed(t *testing.T) {
	whole := `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}`
	header := fakellm.Header(http.StatusOK, http.Header{"Content-Type": {"application/json"}})
	t.Run("slow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, backend := twins(t, withTimeouts("idle: 5s"), always(header, fakellm.SplitEvery(whole, 4*time.Second, 10)))
			if got := g.chat(plainBody("m")); got.body != whole || backend.Count() != 1 {
				t.Errorf("%d attempts, body %q", backend.Count(), got.body)
			}
		})
	})
	t.Run("silent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, _ := twins(t, withTimeouts("idle: 5s"), fakellm.Sequence(
				fakellm.Script{header, fakellm.Send(whole[:10]), fakellm.Hang()}, fakellm.Status(200, nil, whole)))
			start := time.Now()
			if got := g.chat(plainBody("m")); got.body != whole || time.Since(start) != 5*time.Second {
				t.Errorf("body %q after %v", got.body, time.Since(start))
			}
			if g.attempts("idle_timeout") != 1 || !g.blamed() {
				t.Errorf("%d attempts counted as idle", g.attempts("idle_timeout"))
			}
		})
	})
}

// TestFirstTokenTimeout: the clock that starts with the attempt stops at the
// first token, and at nothing else.
func TestFirstTokenTimeout(t *testing.T) {
	const limit = 3 * time.Second
	pings := repeat(100, fakellm.Script{fakellm.Wait(700 * time.Millisecond), fakellm.Send(": ping\n\n")})
	roles := repeat(100, fakellm.Script{fakellm.Send(roleChunk), fakellm.Wait(700 * time.Millisecond)})
	for name, test := range map[string]struct {
		script  fakellm.Script
		retried bool
		whole   string // what the client has of the failed attempt
	}{
		"no headers":         {fakellm.Script{fakellm.Wait(time.Hour)}, true, ""},
		"headers only":       {fakellm.Script{fakellm.Stream(), fakellm.Hang()}, true, ""},
		"a torn event":       {fakellm.Script{fakellm.Stream(), fakellm.Send(`data: {"choices":`), fakellm.Hang()}, true, ""},
		"comments":           {fakellm.Script{fakellm.Stream(), pings}, true, strings.Repeat(": ping\n\n", 4)},
		"a role chunk":       {fakellm.Script{fakellm.Stream(), fakellm.Send(roleChunk), fakellm.Hang()}, false, roleChunk},
		"role chunks":        {fakellm.Script{fakellm.Stream(), roles}, false, strings.Repeat(roleChunk, 5)},
		"late headers, role": {fakellm.Script{fakellm.Wait(2 * time.Second), fakellm.Stream(), fakellm.Send(roleChunk), fakellm.Hang()}, false, roleChunk},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := twins(t, withTimeouts("first_token: 3s, idle: 1s"), fakellm.Sequence(test.script, fakellm.Script{fakellm.Stream(), fakellm.Send(goodStream)}))
				start := time.Now()
				got := g.chat(streamBody("m"))
				if d := time.Since(start); d != limit {
					t.Errorf("ended after %v, want %v", d, limit)
				}
				if !test.retried {
					checkBroken(t, got, test.whole, "upstream_first_token_timeout")
				} else if got.body != test.whole+goodStream {
					t.Errorf("body %q, want %q and the other backend's stream", got.body, test.whole)
				}
				if g.attempts("first_token_timeout") != 1 || !g.blamed() {
					t.Errorf("%d attempts timed out, blamed %t", g.attempts("first_token_timeout"), g.blamed())
				}
			})
		})
	}
	t.Run("nobody answers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, _ := twins(t, withTimeouts("first_token: 3s"), always(fakellm.Stream(), fakellm.Hang()))
			got := g.chat(streamBody("m"))
			if got.status != http.StatusGatewayTimeout {
				t.Errorf("status %d, want 504", got.status)
			}
			checkError(t, got.body, "upstream_first_token_timeout")
		})
	})
	t.Run("in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, backend := twins(t, withTimeouts("first_token: 3s, idle: 1s"), always(fakellm.Stream(), fakellm.Send(roleChunk),
				fakellm.Wait(limit-1), fakellm.Send(helloChunk), fakellm.Wait(time.Second-1), fakellm.Send(stopChunk, doneEvent)))
			if got := g.chat(streamBody("m")); got.body != roleChunk+helloChunk+stopChunk+doneEvent || backend.Count() != 1 {
				t.Errorf("%d attempts, body %q", backend.Count(), got.body)
			}
		})
	})
}
