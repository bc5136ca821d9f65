package app_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

func TestStreamPassesThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script {
			return fakellm.Tokens(3, 300*time.Millisecond, 20*time.Millisecond)
		}}
		g := startGateway(t, configFor("", "a:8000"), map[string]http.Handler{"a:8000": backend})
		start := time.Now()
		got := g.chat(streamBody("m"))
		if got.status != 200 || !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
			t.Fatalf("status %d, body %q", got.status, got.body)
		}
		if d := time.Since(start); d != 340*time.Millisecond {
			t.Errorf("the stream took %v, want 340ms", d)
		}
		line := g.access()[0]
		if line["ttft_ms"] != 300.0 || line["reason"] != "ok" || line["backend"] != "a" {
			t.Errorf("access line %v", line)
		}
	})
}
