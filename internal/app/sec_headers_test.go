package app_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/fakellm"
)

func TestHopByHop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{}
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": backend})
		got := g.exchange(rawPost(plainBody("m"),
			"Connection: keep-alive, X-Hop ,x-other", "X-Hop: 1", "X-Other: 1", "Keep-Alive: timeout=5", "Proxy-Connection: keep-alive",
			"TE: trailers", "Trailer: X-T", "Upgrade: websocket, h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
			"Proxy-Authorization: Basic x", "Proxy-Authenticate: Basic", "X-Stays: 1"))
		if got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		r := backend.Requests()[0]
		for _, name := range []string{"Connection", "X-Hop", "X-Other", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Upgrade",
			"Http2-Settings", "Proxy-Authorization", "Proxy-Authenticate", "Transfer-Encoding"} {
			if v, ok := r.Header[name]; ok {
				t.Errorf("the backend got %s: %q", name, v)
			}
		}
		if r.Header.Get("X-Stays") != "1" {
			t.Error("an ordinary header is lost")
		}
	})
}

func TestHopByHopAnswers(t *testing.T) {
	const fields = "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nProxy-Authentication-Info: x\r\n" +
		"Proxy-Connection: close\r\nUpgrade: h2c\r\nTrailer: X-T\r\nTe: x\r\nX-Firsttoken-Backend: fake\r\nX-Accel-Redirect: /x\r\nX-Client-Request-Id: fake\r\nAlt-Svc: h3=\":1\"\r\nX-Stays: 1\r\n"
	answers := map[string]string{
		"whole":     "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 84\r\n" + fields + "\r\n" + smallBody,
		"chunked":   "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n" + fields + "\r\n54\r\n" + smallBody + "\r\n0\r\nX-T: 1\r\n\r\n",
		"refusal":   "HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: 2\r\n" + fields + "\r\n{}",
		"failure":   "HTTP/1.1 500 Bad\r\nContent-Type: application/json\r\nContent-Length: 2\r\n" + fields + "\r\n{}",
		"early":     "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n" + fields + "\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 84\r\nX-Stays: 1\r\n\r\n" + smallBody,
		"switching": "HTTP/1.1 101 Switching Protocols\r\n" + strings.Replace(fields, "keep-alive, X-Hop", "upgrade, X-Hop", 1) + "\r\n",
		"closing":   "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nX-Stays: 1\r\n\r\n" + smallBody,
		"stream":    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + fields + "\r\n" + goodStream,
	}
	for name, text := range answers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGateway(t)
				g.config = configFor(quiet, "a:8000")
				g.rawBackend("a:8000", func(conn net.Conn, read *bufio.Reader, _ int) {
					if _, _, ok := readRequest(read); ok {
						_, _ = io.WriteString(conn, text)
					}
				})
				g.start(g.load)
				client := g.rawClient()
				client.send(t, rawPost(plainBody("m"), "Connection: Upgrade", "Upgrade: h2c"))
				got := client.answer(t)
				for _, field := range []string{"Connection", "X-Hop", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Connection",
					"Upgrade", "Trailer", "Te", "X-Firsttoken-Backend", "X-Accel-Redirect", "X-Client-Request-Id", "Alt-Svc", "Link", "X-T"} {
					if v, ok := got.header[field]; ok {
						t.Errorf("the client got %s: %q", field, v)
					}
				}
				if got.last {
					t.Error("the engine's Connection: close closed the client's")
				}
				if name == "switching" {
					errorIn(t, got.body)
					if got.status != 502 {
						t.Errorf("status %d", got.status)
					}
					return
				}
				if got.header.Get("X-Stays") != "1" {
					t.Error("an ordinary header is lost")
				}
			})
		})
	}
}

func TestIdentityHeaders(t *testing.T) {
	names := []string{
		"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-User", "X-Forwarded-Client-Cert", "Forwarded", "Via",
		"X-Real-IP", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP", "X-Cluster-Client-IP", "X-Envoy-External-Address", "X-Remote-User", "Remote-User",
		"X-Firsttoken-Backend", "X-Firsttoken-Tenant", "X-Firsttoken-Anything", "X-Original-URL", "X-Rewrite-URL", "X-HTTP-Method-Override",
		"X_Forwarded_For", "X-Forwarded_For", "X.Forwarded.For", "X_Firsttoken_Backend", "x_tenant_id", "X-Tenant.Id",
	}
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{}
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": backend})
		for _, spell := range []func(string) string{strings.ToLower, strings.ToUpper, func(s string) string { return s }} {
			var lines []string
			for _, name := range names {
				lines = append(lines, spell(name)+": canary")
			}
			lines = append(lines, "Connection: X-Request-Id, Authorization")
			got := g.exchange(rawPost(plainBody("m"), lines...))
			if got.status != 200 || got.header.Get("X-Request-Id") == "" {
				t.Fatalf("%d %v", got.status, got.header)
			}
			requests := backend.Requests()
			r := requests[len(requests)-1]
			for name, values := range r.Header {
				if strings.Contains(strings.Join(values, ","), "canary") {
					t.Errorf("the backend got %s", name)
				}
			}
			if r.Header.Get("X-Request-Id") != got.header.Get("X-Request-Id") {
				t.Error("a Connection header took the gateway's own header away")
			}
		}
	})
}

func TestExpect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{}
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": backend})
		start := time.Now()
		for _, spelling := range []string{"Expect: 100-continue", "expect:100-Continue", "EXPECT:  100-CONTINUE"} {
			client := g.rawClient()
			head, body, _ := strings.Cut(rawPost(plainBody("m"), spelling), "\r\n\r\n")
			client.send(t, head+"\r\n\r\n")
			if line, err := client.read.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
				t.Fatalf("%s: %q %v", spelling, line, err)
			}
			_, _ = client.read.ReadString('\n')
			client.send(t, body)
			if got := client.answer(t); got.status != 200 {
				t.Errorf("%s: %d", spelling, got.status)
			}
			// A client that does not wait for the 100.
			eager := g.exchange(rawPost(plainBody("m"), spelling))
			if eager.status != 100 && eager.status != 200 {
				t.Errorf("%s: %d", spelling, eager.status)
			}
		}
		for _, odd := range []string{"Expect: 100-continue, x", "Expect: tea", "Expect: 100-continue\r\nExpect: 100-continue"} {
			if got := g.exchange(rawPost(plainBody("m"), odd)); got.status != 417 {
				t.Errorf("%s: %d", odd, got.status)
			}
		}
		synctest.Wait()
		for _, r := range backend.Requests() {
			if v, ok := r.Header["Expect"]; ok {
				t.Errorf("the backend got Expect: %q", v)
			}
		}
		if backend.Count() != 6 {
			t.Errorf("%d requests, want 6", backend.Count())
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// credentials are the ways in which clients send secrets.
var credentials = []string{
	"Authorization", "Proxy-Authorization", "Cookie", "Cookie2", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key",
	"X-Auth-Token", "X-Access-Token", "X-Authorization", "X-Amz-Security-Token", "X-Csrf-Token", "OpenAI-Organization", "OpenAI-Project",
}

func TestCredentialStrip(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("file-CANARY\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environment := func(name string) (string, bool) { return "env-CANARY", name == "ENGINE_KEY" }
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		fleet := map[string]*fakellm.Backend{"a": down(0), "b": down(0), "c": {}}
		for name, b := range fleet {
			g.serveBackend(name+":8000", b)
		}
		text := configFor(strings.Replace(watched, "defaults: {", "defaults: {policy: round-robin, retry: {budget_min: 100}, ", 1), "a:8000", "b:8000", "c:8000")
		text = strings.Replace(text, "name: a,", "name: a, engine: vllm, credentials: {env: ENGINE_KEY},", 1)
		text = strings.Replace(text, "name: b,", "name: b, weight: 0.001, credentials: {file: key, header: x-engine-key, scheme: \"\"},", 1)
		text = strings.Replace(text, "name: c,", "name: c, weight: 0.000001,", 1)
		g.start(func() (*config.Config, error) { return config.Parse("test.yaml", []byte(text), dir, environment) })
		var header []string
		for i, name := range credentials {
			header = append(header, name, fmt.Sprint("client-CANARY-", i))
		}
		if got := g.chat(streamBody("m"), header...); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		g.chat(streamBody("nobody"), header...)
		g.chat("{", header...)
		time.Sleep(time.Second)
		own := map[string][2]string{"a": {"Authorization", "Bearer env-CANARY"}, "b": {"X-Engine-Key", "file-CANARY"}, "c": {"", ""}}
		for name, b := range fleet {
			if b.Count() != 1 || len(b.Probes()) == 0 {
				t.Errorf("%s got %d requests and %d probes", name, b.Count(), len(b.Probes()))
			}
			for _, r := range append(b.Requests(), b.Probes()...) {
				for field, values := range r.Header {
					text := strings.Join(values, ",")
					switch {
					case field == own[name][0]:
						if text != own[name][1] {
							t.Errorf("%s%s got %s: %q", name, r.Path, field, text)
						}
					case strings.Contains(text, "CANARY"):
						t.Errorf("%s%s got %s: %q", name, r.Path, field, text)
					}
				}
				if field := own[name][0]; field != "" && r.Header.Get(field) == "" {
					t.Errorf("%s%s came without the gateway's credential", name, r.Path)
				}
			}
		}
		silent(t, g)
	})
}

// silent fails the test if a canary is in the metrics, the health pages or the log.
func silent(t *testing.T, g *gateway) {
	t.Helper()
	for _, path := range []string{"/metrics", "/readyz", "/healthz"} {
		if text := g.operator(path).body; strings.Contains(text, "CANARY") {
			t.Errorf("%s tells a secret:\n%s", path, grep(text, "CANARY"))
		}
	}
	g.access()
	g.log.mu.Lock()
	defer g.log.mu.Unlock()
	if text := g.log.buf.String(); strings.Contains(text, "CANARY") {
		t.Errorf("the log tells a secret:\n%s", grep(text, "CANARY"))
	}
}

// No prompt, completion or key is in a log, a metric or an error, however the
// request ends.
func TestNothingToldOfContent(t *testing.T) {
	event := func(text string) fakellm.Step { return fakellm.Event(text) }
	delta := `{"choices":[{"index":0,"delta":{"content":"CANARY"},"finish_reason":null}]}`
	endings := map[string]fakellm.Script{
		"served":       {event(delta), event(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`), fakellm.Done()},
		"reset":        {event(delta), fakellm.Reset()},
		"cut":          {event(delta), fakellm.CutDirty("data: CANARY")},
		"broken event": {event(delta), event(`{CANARY`), fakellm.CutClean()},
		"error event":  {event(`{"error":{"message":"CANARY","type":"CANARY","param":"CANARY","code":500}}`)},
		"late error":   {event(delta), event(`{"error":{"message":"CANARY","type":"x","param":null,"code":null}}`)},
		"hang":         {event(delta), fakellm.Hang()},
		"400":          fakellm.Status(400, nil, `{"error":{"message":"CANARY","type":"x","param":null,"code":"x"}}`),
		"500":          fakellm.Status(500, nil, `{"error":{"message":"CANARY","type":"x","param":null,"code":"x"}}`),
		"html":         fakellm.Status(502, nil, `<html>CANARY`),
		"redirect":     fakellm.Status(302, http.Header{"Location": {"http://CANARY/"}}, `CANARY`),
		"json":         fakellm.Status(200, nil, `{"choices":[{"message":{"content":"CANARY"}}]`),
	}
	garbage := []string{
		"CANARY\r\n\r\n", "data: CANARY\n\n", "HTTP/1.1 CANARY OK\r\n\r\n", "HTTP/CANARY 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nCANARY\r\n\r\n",
		"HTTP/1.1 200 OK\r\nCANARY: a\r\n b\r\nx CANARY\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: CANARY\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2CANARY\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: CANARY\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nCANARY\r\n",
		"HTTP/1.1 999 CANARY\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 300 CANARY\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 101 CANARY\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Type: CANARY/x\r\nContent-Length: 10\r\n\r\nCANARY", "HTTP/1.1 204 CANARY\r\n\r\n",
	}
	const prompt = `"user":"CANARY","messages":[{"role":"user","content":"CANARY"}]`
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var script fakellm.Script
		backend := &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script {
			mu.Lock()
			defer mu.Unlock()
			return script
		}}
		g := newGateway(t)
		g.config = configFor(strings.Replace(quiet, "defaults: {", "telemetry: {log_level: debug, listen: \"operator:8081\"}\ndefaults: {timeouts: {idle: 1s}, retry: {budget_min: 1000}, ", 1), "a:8000")
		g.config = strings.Replace(g.config, "telemetry: {listen: \"operator:8081\"}\n", "", 1)
		g.config += "  - name: n\n    backends: [{name: r, url: \"http://r:8000\"}]\n"
		g.serveBackend("a:8000", backend)
		raw := ""
		g.rawBackend("r:8000", func(conn net.Conn, read *bufio.Reader, _ int) {
			if _, _, ok := readRequest(read); ok {
				_, _ = io.WriteString(conn, raw)
			}
		})
		g.start(g.load)
		for name, s := range endings {
			mu.Lock()
			script = s
			mu.Unlock()
			got := g.chat(`{"model":"m","stream":true,`+prompt+`}`, "Authorization", "Bearer CANARY")
			if name == "html" || name == "redirect" {
				if strings.Contains(got.body, "CANARY") {
					t.Errorf("%s: %s", name, got.body)
				}
			}
		}
		for _, raw = range garbage {
			got := g.chat(`{"model":"n",`+prompt+`}`, "Authorization", "Bearer CANARY")
			if strings.Contains(got.body, `"error"`) && strings.Contains(got.body, "CANARY") {
				t.Errorf("%q: %s", raw, got.body)
			}
		}
		for _, bad := range []string{`{"model":"m",` + prompt, `{"CANARY":1,"CANARY":2}`, `{"model":"m","messages":"CANARY"}`, `{"model":["CANARY"]}`, `{"model":"m",CANARY}`, "\"CANARY\xff\""} {
			if got := g.chat(bad); got.status != 400 || strings.Contains(got.body, "CANARY") {
				t.Errorf("%d %s", got.status, got.body)
			}
		}
		g.do("GET", "/v1/nothing?key=CANARY", "")
		silent(t, g)
	})
}
