package conformance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// errorCase is a request that the gateway itself refuses or fails.
type errorCase struct {
	name   string
	method string // POST if empty
	path   string // /v1/chat/completions if empty
	body   string
	header map[string]string
	raw    string // what is sent instead, as it stands

	status int
	code   string
	param  string // null if empty
	want   map[string]string
}

func chatBody(model string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hi"}]}`, model)
}

func streamBody(model string) string {
	return fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"hi"}]}`, model)
}

// errorCases are one of each kind of error that the gateway makes. They are
// for the gateway of startErrorGateway.
func errorCases() []errorCase {
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
	return []errorCase{
		{name: "no such path", path: "/v1/moderations", body: `{}`, status: 404, code: "unknown_url"},
		{name: "no such path outside", method: "GET", path: "/metrics", status: 404, code: "unknown_url"},
		{name: "wrong method", method: "GET", status: 405, code: "method_not_allowed", want: map[string]string{"Allow": "POST"}},
		{name: "wrong method on a model", method: "DELETE", path: "/v1/models/m", status: 405, code: "method_not_allowed", want: map[string]string{"Allow": "GET, HEAD"}},
		{name: "wrong method everywhere", method: "TRACE", status: 405, code: "method_not_allowed"},
		{name: "unknown method", method: "BREW", status: 501, code: "method_not_implemented"},

		{name: "broken JSON", body: `{`, status: 400, code: "invalid_json"},
		{name: "text after JSON", body: chatBody("m") + "x", status: 400, code: "invalid_json"},
		{name: "no body", status: 400, code: "invalid_json"},
		{name: "no object", body: `[]`, status: 400, code: "invalid_body"},
		{name: "key twice", body: `{"model":"m","model":"n","messages":[{}]}`, status: 400, code: "duplicate_key"},
		{name: "no model", body: `{"messages":[{"role":"user","content":"hi"}]}`, status: 400, code: "missing_required_parameter", param: "model"},
		{name: "model is a number", body: `{"model":1,"messages":[{"role":"user","content":"hi"}]}`, status: 400, code: "invalid_type", param: "model"},
		{name: "stream is a string", body: `{"model":"m","stream":"yes","messages":[{"role":"user","content":"hi"}]}`, status: 400, code: "invalid_type", param: "stream"},
		{name: "no messages", body: `{"model":"m"}`, status: 400, code: "missing_required_parameter", param: "messages"},
		{name: "empty messages", body: `{"model":"m","messages":[]}`, status: 400, code: "empty_array", param: "messages"},
		{name: "no prompt", path: "/v1/completions", body: `{"model":"m"}`, status: 400, code: "missing_required_parameter", param: "prompt"},
		{name: "no input", path: "/v1/embeddings", body: `{"model":"m"}`, status: 400, code: "missing_required_parameter", param: "input"},

		{name: "unknown model", body: chatBody("nobody"), status: 404, code: "model_not_found", param: "model"},
		{name: "unknown model's stream", body: streamBody("nobody"), status: 404, code: "model_not_found", param: "model"},
		{name: "unknown model's details", method: "GET", path: "/v1/models/no%2Fbody", status: 404, code: "model_not_found", param: "model"},

		{name: "body too large", body: chatBody(strings.Repeat("m", 70<<10)), status: 413, code: "body_too_large"},
		{name: "compressed body", body: chatBody("m"), header: map[string]string{"Content-Encoding": "gzip"}, status: 415, code: "unsupported_content_encoding"},
		{name: "URL too long", method: "GET", path: "/v1/models/" + strings.Repeat("m", 2<<10), status: 414, code: "url_too_long"},
		{name: "unknown expectation", body: chatBody("m"), header: map[string]string{"Expect": "a miracle"}, status: 417, code: "expectation_failed"},
		{name: "too many headers", raw: head + strings.Repeat("X-A: b\r\n", 200) + "Content-Length: 2\r\n\r\n{}", status: 431, code: "too_many_headers"},
		{name: "headers too large", raw: head + "X-A: " + strings.Repeat("b", 80<<10) + "\r\n\r\n", status: 431, code: "headers_too_large"},
		{name: "length and coding", raw: head + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 400, code: "malformed_request"},
		{name: "two lengths", raw: head + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", status: 400, code: "malformed_request"},
		{name: "body that never comes", raw: head + "Content-Length: 20\r\n\r\n{", status: 408, code: "body_timeout"},

		{name: "all at their limit", body: chatBody("full"), status: 429, code: "backends_saturated", want: map[string]string{"Retry-After": "1"}},
		{name: "none to choose", body: chatBody("drained"), status: 503, code: "no_backend_available", want: map[string]string{"Retry-After": "1"}},
		{name: "engine is down", body: chatBody("dead"), status: 502, code: "upstream_dial_failed"},
		{name: "engine goes away", body: chatBody("lost"), status: 502, code: "upstream_connection_lost"},
		{name: "engine redirects", body: chatBody("redirects"), status: 502, code: "upstream_bad_response"},
		{name: "engine ends a stream without events", body: streamBody("empty"), status: 502, code: "upstream_stream_truncated"},
		{name: "engine gives up", body: chatBody("aborts"), status: 502, code: "upstream_engine_aborted"},
		{name: "engine sends no header", body: chatBody("headless"), status: 504, code: "upstream_response_header_timeout"},
		{name: "engine sends no token", body: streamBody("tokenless"), status: 504, code: "upstream_first_token_timeout"},
		{name: "all takes too long", body: chatBody("slow"), status: 504, code: "total_timeout"},
		{name: "engine fails in its own words", body: chatBody("plain"), status: 500, code: "upstream_engine_5xx"},
	}
}

// startErrorGateway has a model for each way in which a backend can fail.
func startErrorGateway(t *testing.T) *gateway {
	t.Helper()
	var pools []pool
	scripted := func(model, keys string, script fakellm.Script) *fakellm.Backend {
		b := &fakellm.Backend{Model: model, Script: func(*fakellm.Request) fakellm.Script { return script }}
		pools = append(pools, pool{model: model, urls: []string{serveBackend(t, b)}, keys: keys})
		return b
	}
	scripted("m", "", fakellm.Reply(3, 0, 0))
	full := scripted("full", "limits: {max_in_flight: 1}", fakellm.Script{fakellm.Hang()})
	scripted("lost", "", fakellm.Script{fakellm.Reset()})
	scripted("redirects", "", fakellm.Status(302, http.Header{"Location": {"http://127.0.0.1:9/"}}, ""))
	scripted("empty", "", fakellm.Script{fakellm.Stream(), fakellm.CutClean()})
	scripted("aborts", "", fakellm.Status(200, nil, `{"id":"x","object":"chat.completion","created":1,"model":"aborts",`+
		`"choices":[{"index":0,"message":{"role":"assistant","content":"so"},"finish_reason":"abort"}]}`))
	scripted("headless", "timeouts: {response_header: 100ms}", fakellm.Script{fakellm.Hang()})
	scripted("tokenless", "timeouts: {first_token: 100ms}", fakellm.Script{fakellm.Stream(), fakellm.Hang()})
	scripted("slow", "timeouts: {total: 100ms}", fakellm.Script{fakellm.Hang()})
	scripted("plain", "", fakellm.Status(500, nil, "Traceback (most recent call last)"))
	pools = append(pools,
		pool{model: "dead", urls: []string{"http://127.0.0.1:" + freePort(t)}},
		pool{model: "drained", urls: pools[0].urls, draining: true})
	g := startGateway(t, ", max_body: 64KiB, max_url: 1KiB, read_body_timeout: 500ms", pools...)
	occupy(t, g, full)
	return g
}

// occupy keeps a request at the backend until the test ends.
func occupy(t *testing.T, g *gateway, b *fakellm.Backend) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, err := http.NewRequestWithContext(t.Context(), "POST", g.url+"/v1/chat/completions", strings.NewReader(chatBody(b.Model)))
		if err != nil {
			return
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	t.Cleanup(func() { <-done }) // t's context ends before
	waitUntil(t, "a request in flight", func() bool { return b.InFlight() == 1 })
}

// TestErrorMatrix holds every error that the gateway makes to its status and
// code, and to the shape that clients read.
func TestErrorMatrix(t *testing.T) {
	t.Parallel()
	g := startErrorGateway(t)
	ids := map[string]bool{}
	for _, c := range errorCases() {
		t.Run(c.name, func(t *testing.T) {
			resp, body := c.send(t, g)
			if resp.StatusCode != c.status {
				t.Errorf("status %d, want %d", resp.StatusCode, c.status)
			}
			c.checkBody(t, body)
			for name, want := range c.want {
				if got := resp.Header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			id := resp.Header.Get("X-Request-Id")
			if id == "" || ids[id] {
				t.Errorf("x-request-id %q, want one of its own", id)
			}
			ids[id] = true
		})
	}
}

func (c errorCase) checkBody(t *testing.T, body string) {
	t.Helper()
	var answer struct{ Error map[string]any }
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("body %q: %v", body, err)
	}
	for _, key := range []string{"message", "type", "param", "code"} {
		if _, there := answer.Error[key]; !there {
			t.Errorf("no %s in %s", key, body)
		}
	}
	if message, _ := answer.Error["message"].(string); message == "" {
		t.Errorf("no message in %s", body)
	}
	var param any
	if c.param != "" {
		param = c.param
	}
	if answer.Error["code"] != c.code || answer.Error["param"] != param || answer.Error["type"] != c.kind() && c.status < 500 {
		t.Errorf("got %s, want code %q, param %v and type %q", body, c.code, param, c.kind())
	}
}

// kind is the error type of a status below 500.
func (c errorCase) kind() string {
	if c.status == http.StatusTooManyRequests {
		return "rate_limit_error"
	}
	return "invalid_request_error"
}

// send makes the request and reads the whole answer.
func (c errorCase) send(t *testing.T, g *gateway) (*http.Response, string) {
	t.Helper()
	if c.raw != "" {
		return c.sendRaw(t, g)
	}
	method, path := c.method, c.path
	if method == "" {
		method = "POST"
	}
	if path == "" {
		path = "/v1/chat/completions"
	}
	req, err := http.NewRequestWithContext(t.Context(), method, g.url+path, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp, readAll(t, resp)
}

func (c errorCase) sendRaw(t *testing.T, g *gateway) (*http.Response, string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	// The gateway may answer and close before it has read everything.
	_, _ = io.WriteString(conn, c.raw)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp, readAll(t, resp)
}

func readAll(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	return string(text)
}
