package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/internal/admin"
)

// operator is a telemetry listener with one model.
func operator(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(admin.State{Version: "v9", Revision: 7, Ready: true, Models: []admin.Model{{Name: "llama", Backends: []admin.Backend{{Name: "h100-1", State: "up", Readiness: "ready"}}}}})
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(admin.Events{Events: []admin.Event{{Seq: 1, Level: "info", Message: "serving"}}, Next: 1})
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// TestTop runs the binary without a terminal: it prints a frame and ends.
func TestTop(t *testing.T) {
	url := operator(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--url", url}, 0, "revision 7"},
		{[]string{"--url", url, "--once", "--model", "llama"}, 0, "h100-1"},
		{[]string{"--url", url, "--json"}, 0, `"revision": 7`},
		{[]string{"--url", url, "--model", "gpt"}, 1, `--model "gpt": the gateway has no such model; it has: ["llama"]`},
		{[]string{"--url", url, "--interval", "1ms"}, 1, "give 100ms or more"},
		{[]string{"--url", url + "/elsewhere"}, 1, "telemetry.listen"},
		{[]string{"--url", "localhost:8081"}, 1, "http://HOST:PORT"},
	} {
		code, stdout, stderr := run(t, append([]string{"top"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) || strings.Contains(stdout, "\x1b") {
			t.Errorf("top %v: exit code %d, want %d and %q:\n%s%s", c.args, code, c.code, c.want, stdout, stderr)
		}
	}
}
