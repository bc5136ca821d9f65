package app_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

func TestErrorMatrix(t *testing.T) {
	const chat, completions, embeddings, responses = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	rows := []struct {
		name, method, path, body string
		header                   []string
		status                   int
		code                     string
		param                    any
	}{
		{name: "broken JSON", path: chat, body: `{`, status: 400, code: "invalid_json"},
		{name: "no body", path: chat, status: 400, code: "invalid_json"},
		{name: "no object", path: chat, body: `[]`, status: 400, code: "invalid_body"},
		{name: "text behind", path: chat, body: `{"model":"m",` + messages + `}{}`, status: 400, code: "invalid_json"},
		{name: "duplicate key", path: chat, body: `{"model":"m","model":"x",` + messages + `}`, status: 400, code: "duplicate_key"},
		{name: "bad UTF-8", path: chat, body: "{\"model\":\"m\xff\"," + messages + "}", status: 400, code: "invalid_json"},
		{name: "no model", path: chat, body: `{` + messages + `}`, status: 400, code: "missing_required_parameter", param: "model"},
		{name: "model is a number", path: chat, body: `{"model":1,` + messages + `}`, status: 400, code: "invalid_type", param: "model"},
		{name: "model is empty", path: chat, body: `{"model":"",` + messages + `}`, status: 400, code: "invalid_type", param: "model"},
		{name: "no messages", path: chat, body: `{"model":"m"}`, status: 400, code: "missing_required_parameter", param: "messages"},
		{name: "messages is text", path: chat, body: `{"model":"m","messages":"hi"}`, status: 400, code: "invalid_type", param: "messages"},
		{name: "messages is empty", path: chat, body: `{"model":"m","messages":[]}`, status: 400, code: "empty_array", param: "messages"},
		{name: "no prompt", path: completions, body: `{"model":"m"}`, status: 400, code: "missing_required_parameter", param: "prompt"},
		{name: "no input", path: embeddings, body: `{"model":"m"}`, status: 400, code: "missing_required_parameter", param: "input"},
		{name: "responses without model", path: responses, body: `{"input":"hi"}`, status: 400, code: "missing_required_parameter", param: "model"},
		{name: "stream is text", path: chat, body: `{"model":"m","stream":"yes",` + messages + `}`, status: 400, code: "invalid_type", param: "stream"},
		{name: "stream_options is a number", path: chat, body: `{"model":"m","stream_options":1,` + messages + `}`, status: 400, code: "invalid_type", param: "stream_options"},
		{name: "max_tokens is half", path: chat, body: `{"model":"m","max_tokens":0.5,` + messages + `}`, status: 400, code: "invalid_value", param: "max_tokens"},
		{name: "unknown model", path: chat, body: plainBody("nobody"), status: 404, code: "model_not_found", param: "model"},
		{name: "unknown model in the URL", method: "GET", path: "/v1/models/nobody", status: 404, code: "model_not_found", param: "model"},
		{name: "unknown path", method: "GET", path: "/v1/nothing", status: 404, code: "unknown_url"},
		{name: "wrong method", method: "GET", path: chat, status: 405, code: "method_not_allowed"},
		{name: "unknown method", method: "BREW", path: chat, status: 501, code: "method_not_implemented"},
		{name: "dot segments", method: "GET", path: "/v1/../admin", status: 400, code: "invalid_path"},
		{name: "long URL", method: "GET", path: "/" + strings.Repeat("a", 9<<10), status: 414, code: "url_too_long"},
		{name: "many headers", path: chat, body: plainBody("m"), header: many("X-H", 120), status: 431, code: "too_many_headers"},
		{name: "unknown expectation", path: chat, body: plainBody("m"), header: []string{"Expect", "tea"}, status: 417, code: "expectation_failed"},
		{name: "compressed", path: chat, body: plainBody("m"), header: []string{"Content-Encoding", "gzip"}, status: 415, code: "unsupported_content_encoding"},
		{name: "too large", path: chat, body: strings.Repeat("x", 2000), status: 413, code: "body_too_large"},
	}
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{}
		g := startGateway(t, strings.Replace(configFor(quiet, "a:8000"), "server: {", "server: {max_body: 1000, ", 1), map[string]http.Handler{"a:8000": backend})
		for _, row := range rows {
			got := g.do(row.method, row.path, row.body, row.header...)
			wantType := "invalid_request_error"
			if row.status >= 500 {
				wantType = "server_error"
			}
			e := errorIn(t, got.body)
			if got.status != row.status || e.Code != row.code || e.Type != wantType || e.Param != row.param {
				t.Errorf("%s: status %d, error %+v; want %d, code %s, param %v", row.name, got.status, e, row.status, row.code, row.param)
			}
			if ct := got.header.Get("Content-Type"); ct != "application/json" {
				t.Errorf("%s: Content-Type %q", row.name, ct)
			}
			if allow := got.header.Get("Allow"); (got.status == 405) != (allow != "") {
				t.Errorf("%s: Allow %q", row.name, allow)
			}
		}
		if n := backend.Count(); n != 0 {
			t.Errorf("the backend got %d requests", n)
		}
		g.want(`firsttoken_edge_rejections_total{code="model_not_found"}`, "2")
	})
}

// The second half of the matrix: what an engine did.
func TestErrorMatrixEngine(t *testing.T) {
	textHeader := http.Header{"Content-Type": {"text/html"}, "Retry-After": {"7"}}
	rows := []struct {
		name   string
		script fakellm.Script
		talk   func(net.Conn, *bufio.Reader, int)
		status int
		code   string
	}{
		{name: "refused", status: 502, code: "upstream_dial_failed"},
		{name: "reset", script: fakellm.Script{fakellm.Reset()}, status: 502, code: "upstream_connection_lost"},
		{name: "closed", script: fakellm.Script{fakellm.Close()}, status: 502, code: "upstream_connection_lost"},
		{name: "cut", script: fakellm.Script{fakellm.Header(200, http.Header{"Content-Type": {"application/json"}}), fakellm.CutDirty(`{"id":`)},
			status: 502, code: "upstream_connection_lost"},
		{name: "no HTTP", talk: speak("hello\r\n\r\n"), status: 502, code: "upstream_bad_response"},
		{name: "bad header", talk: speak("HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), status: 502, code: "upstream_bad_response"},
		{name: "bad chunk", talk: speak("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
			status: 502, code: "upstream_bad_response"},
		{name: "redirect", script: fakellm.Status(307, http.Header{"Location": {"http://elsewhere/"}}, ""), status: 502, code: "upstream_bad_response"},
		{name: "switching", talk: speak("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"), status: 502, code: "upstream_bad_response"},
		{name: "503 of a proxy", script: fakellm.Status(503, textHeader, "<html>down</html>"), status: 503, code: "upstream_engine_5xx"},
		{name: "429 of a proxy", script: fakellm.Status(429, textHeader, "<html>slow down</html>"), status: 429, code: "upstream_engine_429"},
		{name: "empty 500", script: fakellm.Status(500, textHeader, ""), status: 500, code: "upstream_engine_5xx"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGateway(t)
				g.config = configFor(quiet, "a:8000")
				switch {
				case row.talk != nil:
					g.rawBackend("a:8000", row.talk)
				case row.script != nil:
					g.serveBackend("a:8000", &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script { return row.script }})
				}
				g.start(g.load)
				for _, body := range []string{plainBody("m"), streamBody("m")} {
					got := g.chat(body)
					e := errorIn(t, got.body)
					if got.status != row.status || e.Code != row.code || e.Type != "upstream_error" || e.Param != nil {
						t.Errorf("status %d, error %+v; want %d and %s", got.status, e, row.status, row.code)
					}
					if row.status == 503 && got.header.Get("Retry-After") != "7" {
						t.Errorf("the engine's Retry-After is lost: %v", got.header)
					}
					for _, name := range []string{"Upgrade", "Location", "Content-Encoding"} {
						if got.header.Get(name) != "" {
							t.Errorf("%s: %s", name, got.header.Get(name))
						}
					}
				}
				g.want(`firsttoken_attempts_total{backend="a",model="m",reason="`+strings.TrimPrefix(row.code, "upstream_")+`"}`, "2")
			})
		})
	}
}

// speak answers each request on a connection with the same bytes, then hangs up.
func speak(text string) func(net.Conn, *bufio.Reader, int) {
	return func(conn net.Conn, read *bufio.Reader, _ int) {
		if _, _, ok := readRequest(read); ok {
			_, _ = io.WriteString(conn, text)
		}
	}
}

// many is n header fields.
func many(prefix string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, prefix+string(rune('a'+i%26))+strings.Repeat("x", i/26), "1")
	}
	return out
}

// do sends a request with any method and reads the whole answer; "" is POST.
func (g *gateway) do(method, path, body string, header ...string) answer {
	g.t.Helper()
	if method == "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+gatewayAddr, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.URL.Opaque = path // as it is
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := g.client.Do(req)
	if err != nil {
		g.t.Fatalf("%s %s: %v", method, path, err)
	}
	return readAnswer(resp)
}

func TestRequestID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{}
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": backend})
		answers := []answer{
			g.chat(streamBody("m"), "X-Request-Id", "mine-1"),
			g.chat(plainBody("m"), "X-Client-Request-Id", "mine-2"),
			g.chat(plainBody("m"), "X-Request-Id", "not good\tenough"),
			g.chat(plainBody("nobody"), "X-Request-Id", "mine-4"),
			g.chat("{"),
			g.do("GET", "/v1/models", ""),
			g.do("HEAD", "/v1/models", ""),
			g.do("GET", "/nothing", ""),
			g.do("DELETE", "/v1/chat/completions", ""),
			g.exchange("GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
			g.exchange("nonsense\r\n\r\n"),
		}
		backend.Script = func(*fakellm.Request) fakellm.Script { return fakellm.Script{fakellm.Reset()} }
		answers = append(answers, g.chat(plainBody("m")))
		logged := map[any]map[string]any{}
		for _, line := range g.access() {
			logged[line["request_id"]] = line
		}
		seen := map[string]bool{}
		for i, a := range answers {
			id := a.header.Get("X-Request-Id")
			if !strings.HasPrefix(id, "req_") || len(a.header["X-Request-Id"]) != 1 || seen[id] {
				t.Errorf("answer %d has request id %q", i, a.header["X-Request-Id"])
			}
			seen[id] = true
			if line := logged[id]; line == nil || line["status"] != float64(a.status) {
				t.Errorf("answer %d (%d) is not in the log: %v", i, a.status, line)
			}
		}
		for i, r := range backend.Requests() {
			want := answers[i].header.Get("X-Request-Id")
			if i >= 3 { // the reset comes twice: a reused connection is tried again on a fresh one
				want = answers[len(answers)-1].header.Get("X-Request-Id")
			}
			if got := r.Header["X-Request-Id"]; len(got) != 1 || got[0] != want {
				t.Errorf("request %d reached the backend as %q, want %q", i, got, want)
			}
			if got := r.Header.Get("X-Client-Request-Id"); got != "" {
				t.Errorf("the client's id reached the backend: %q", got)
			}
		}
		for i, want := range []string{"mine-1", "mine-2", "", "mine-4"} {
			if got := answers[i].header.Get("X-Client-Request-Id"); got != want {
				t.Errorf("answer %d echoes %q, want %q", i, got, want)
			}
			if line := logged[answers[i].header.Get("X-Request-Id")]; want != "" && line["client_request_id"] != want {
				t.Errorf("client's id of answer %d is not logged: %v", i, line)
			}
		}
	})
}

func TestBodyLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{}
		text := strings.Replace(configFor(quiet, "a:8000"), "server: {", "server: {max_body: 1000, read_body_timeout: 10s, ", 1)
		g := startGateway(t, text, map[string]http.Handler{"a:8000": backend})

		fits := plainBody("m")[:len(plainBody("m"))-1] + strings.Repeat(" ", 1000-len(plainBody("m"))) + "}"
		if got := g.chat(fits); got.status != 200 {
			t.Errorf("a body of exactly the limit: %d %s", got.status, got.body)
		}
		for _, got := range []answer{
			g.exchange(rawPost(fits + " ")),
			g.exchange("POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + fits + " \r\n0\r\n\r\n"),
			g.exchange("POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 5000000\r\nExpect: 100-continue\r\n\r\n"),
		} {
			if e := errorIn(t, got.body); got.status != 413 || e.Code != "body_too_large" || !got.last {
				t.Errorf("a body over the limit: %d %v %v", got.status, e, got.header)
			}
		}

		start := time.Now()
		slow := g.rawClient()
		slow.send(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\n{")
		got := slow.answer(t)
		if e := errorIn(t, got.body); got.status != 408 || e.Code != "body_timeout" || time.Since(start) != 10*time.Second {
			t.Errorf("a body that does not come: %d %v after %v", got.status, e, time.Since(start))
		}

		short := g.rawClient()
		short.send(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\n{")
		_ = short.Close()
		synctest.Wait()
		if n := backend.Count(); n != 1 {
			t.Errorf("the backend got %d requests, want 1", n)
		}
	})
}
