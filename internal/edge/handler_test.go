package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestMethods(t *testing.T) {
	backend := new(testBackend)
	addr := testServer(t, Options{}, noPanics(t), backend)
	tests := map[string]struct {
		line   string
		status int
		code   string
	}{
		"CONNECT authority":  {"CONNECT a:443 HTTP/1.1", 405, "method_not_allowed"},
		"CONNECT path":       {"CONNECT /v1/models HTTP/1.1", 405, "method_not_allowed"},
		"TRACE":              {"TRACE /v1/models HTTP/1.1", 405, "method_not_allowed"},
		"PRI":                {"PRI /v1/models HTTP/1.1", 501, "method_not_implemented"},
		"preface":            {"PRI * HTTP/2.0", 400, "malformed_request"},
		"unknown":            {"PROPFIND /v1/models HTTP/1.1", 501, "method_not_implemented"},
		"lower case":         {"get /v1/models HTTP/1.1", 501, "method_not_implemented"},
		"asterisk":           {"OPTIONS * HTTP/1.1", 400, "malformed_request"},
		"absolute form":      {"GET http://a/v1/models HTTP/1.1", 400, "invalid_path"},
		"absolute form case": {"GET HTTPS://a/v1/models HTTP/1.1", 400, "invalid_path"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, addr)
			io.WriteString(conn, test.line+"\r\nHost: a\r\n\r\n"+smuggled)
			answers := readAnswers(t, conn) // without half-closing: the server must close
			if len(answers) != 1 {
				t.Fatalf("%d answers", len(answers))
			}
			checkRefusal(t, answers[0], test.status, test.code)
			if allow := answers[0].Header.Get("Allow"); (test.status == 405) != (allow != "") {
				t.Errorf("Allow: %q", allow)
			}
			if seen := backend.saw(conn); seen != nil {
				t.Errorf("the backend saw %q", seen)
			}
		})
	}
	for _, method := range strings.Split(allowedMethods, ", ") {
		conn := dial(t, addr)
		io.WriteString(conn, method+" /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		io.ReadAll(conn)
		if seen := backend.saw(conn); len(seen) != 1 {
			t.Errorf("%s: the backend saw %q", method, seen)
		}
	}
}

// TestUpgrade holds that an offer to change protocols is ignored.
func TestUpgrade(t *testing.T) {
	for _, offer := range []string{
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
		"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
		"Upgrade: h2c\r\n",
	} {
		var got http.Header
		addr := testServer(t, Options{}, noPanics(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got = r.Header.Clone() }))
		answers := exchange(t, addr, get(offer))
		if len(answers) != 1 || answers[0].StatusCode != http.StatusOK {
			t.Fatalf("answers %v", answers)
		}
		for _, name := range []string{"Upgrade", "Http2-Settings", "Connection"} {
			if _, ok := got[name]; ok {
				t.Errorf("%s reached the handler", name)
			}
		}
	}
}

func TestPaths(t *testing.T) {
	refused := []string{
		"/..", "/.", "/./", "/../", "/v1/../admin", "/v1/./models", "/v1/models/..", "/v1/models/.", "/v1/..?a=b",
		"/%2e%2e", "/v1/%2e%2e/admin", "/v1/.%2e/admin", "/v1/%2E./admin", "/v1/%2e", "/v1/a%2eb",
		"//", "//v1/models", "/v1//models", "/v1/models//", "/v1/models//a",
		"/v1%2fmodels", "/v1%2Fmodels", "/v1/chat%2f..%2fadmin", "/v1/models%2Fa", "/%2Fv1/models/a",
		"/v1%5cmodels", "/v1/..%5cadmin", "/v1\\models", "/v1/models/a%5Cb", "/v1/models/a\\b",
		"/v1/models%00", "/v1/models/a%00b", "/v1/models%0d%0a", "/v1/models%7f", "/v1/%09",
		"/v1/models;a=b", "/v1/..;/admin", "/v1/models/a;b", "/v1/models%3ba",
		"/v1/models#a", "/v1/models%23a", "/v1/models?a=b#c", "/v1/models%3Fa=b", "/v1/models/a%23b",
		"/v1/%61dmin", "/v1/%252e%252e/admin", "/v1/models/a%252Fb", "/v1/models/%61", "/v1/models/%2e%2e%2fadmin",
		"/v1/models/%2Fa", "/v1/models/a%2F%2Fb", "/v1/models/a%2F/b", "/v1/models/a%2F..%2Fb", "/v1/models/..%2Fadmin",
		"/v1/models/a/../b", "/v1/models/a%2F.", "/v1/models/a%2F./b", "/v1/models/a/%2e%2e/b",
		"/V1/models/a%2Fb", "/v1/Models/a%2Fb", "/v1/modelsx/a%2Fb",
		"/v1/%", "/v1/%2", "/v1/%zz", "v1/models", "", "?a=b", "*", "http://a/v1/models", "a:443",
		"/v1/\x7f", "/v1/\x01", "/v1/ ", "/v1/\xc3\xa9",
	}
	for _, target := range refused {
		if targetProblem(target) == "" {
			t.Errorf("%q passes", target)
		}
	}
	passed := []string{
		"/", "/v1", "/v1/", "/v1/models", "/v1/models/", "/v1/chat/completions", "/v1/chat/completions?a=b&c=%2e%2e//",
		"/v1/models/gpt-4o", "/v1/models/ft:gpt-4o:org::id", "/v1/models/meta-llama/Llama-3.1-8B", "/v1/models/meta-llama%2FLlama-3.1-8B",
		"/v1/models/a%2fb%2Fc", "/v1/models/a%20b", "/v1/models/ft%3Agpt", "/v1/models/a@b", "/v1/models/...", "/v1/models/.hidden",
		"/v1/models/a..b", "/v1/models/%C3%A9", "/v1/responses/resp_1", "/v1/models/a.b%2Fc..",
	}
	for _, target := range passed {
		if why := targetProblem(target); why != "" {
			t.Errorf("%q: %s", target, why)
		}
	}
	backend := new(testBackend)
	addr := testServer(t, Options{}, noPanics(t), backend)
	for _, target := range refused {
		conn := dial(t, addr)
		io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: a\r\n\r\n")
		for _, answer := range readAnswers(t, conn) {
			if answer.StatusCode != 400 || answer.Header.Get("X-Request-Id") == "" {
				t.Errorf("%q answered %d, id %q", target, answer.StatusCode, answer.Header.Get("X-Request-Id"))
			}
		}
		if seen := backend.saw(conn); seen != nil {
			t.Errorf("%q: the backend saw %q", target, seen)
		}
	}
}

func TestIdentityHeaders(t *testing.T) {
	var got http.Header
	var trailer http.Header
	addr := testServer(t, Options{}, noPanics(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		got, trailer = r.Header.Clone(), r.Trailer
	}))
	answers := exchange(t, addr, post(te+strings.Join([]string{
		"X_Tenant_Id: 1", "X.Tenant.Id: 1", "X-Tenant_Id: 1", "x-firsttoken-tenant: 1", "X-FIRSTTOKEN-BACKEND: 1", "X-Firsttoken-: 1",
		"Connection: X-Nominated, close ,\tX-Other", "X-Nominated: 1", "X-Other: 1", "Keep-Alive: 1", "Proxy-Connection: 1",
		"TE: trailers", "Trailer: X-Late", "Expect: 100-continue",
		"X-Kept: 1", "X-Firsttokens: 1", "x-firsttoken-explain: 1", "X-Firsttoken-Explain-It: 1", "Authorization: Bearer k", "Content-Type: application/json", "",
	}, "\r\n"), "0\r\nX-Late: 1\r\n\r\n"))
	if last := answers[len(answers)-1]; last.StatusCode != http.StatusOK {
		t.Fatalf("answered %d", last.StatusCode)
	}
	var names []string
	for name := range got {
		names = append(names, name)
	}
	slices.Sort(names)
	if want := []string{"Authorization", "Content-Type", "X-Firsttoken-Explain", "X-Firsttokens", "X-Kept"}; !slices.Equal(names, want) {
		t.Errorf("headers %q, want %q", names, want)
	}
	if trailer != nil {
		t.Errorf("trailer %v", trailer)
	}
}

func TestExpect(t *testing.T) {
	backend := new(testBackend)
	addr := testServer(t, Options{}, noPanics(t), backend)
	for _, value := range []string{"200-ok", "100-continue, x", "x, 100-continue", "100-continue\r\nExpect: 100-continue", "100-continue;a=b", "100-continued"} {
		conn := dial(t, addr)
		io.WriteString(conn, post("Expect: "+value+"\r\nContent-Length: 35\r\n", smuggled))
		answers := readAnswers(t, conn)
		if len(answers) != 1 {
			t.Fatalf("Expect %q: %d answers", value, len(answers))
		}
		checkRefusal(t, answers[0], http.StatusExpectationFailed, "expectation_failed")
		if seen := backend.saw(conn); seen != nil {
			t.Errorf("Expect %q: the backend saw %q", value, seen)
		}
	}
	conn := dial(t, addr)
	r := bufio.NewReader(conn)
	io.WriteString(conn, post("Expect: 100-Continue\r\nContent-Length: 5\r\n", ""))
	if answer := readAnswer(t, r); answer.StatusCode != http.StatusContinue {
		t.Fatalf("first answer %d", answer.StatusCode)
	}
	io.WriteString(conn, "hello")
	if answer := readAnswer(t, r); answer.StatusCode != http.StatusOK {
		t.Errorf("second answer %d", answer.StatusCode)
	}
}

func TestLimits(t *testing.T) {
	backend := new(testBackend)
	addr := testServer(t, Options{}, noPanics(t), backend)
	fields := func(n int) string { return strings.Repeat("A: b\r\n", n) }
	bytes := func(n int) string { // a request of n bytes
		return get("A: " + strings.Repeat("b", n-len(get("A: \r\n"))) + "\r\n")
	}
	url := func(n int) string { // a request with a target of n bytes
		return "GET /" + strings.Repeat("a", n-1) + " HTTP/1.1\r\nHost: a\r\n\r\n"
	}
	tests := map[string]struct {
		raw    string
		status int
		code   string
	}{
		"100 fields":       {get(fields(99)), 200, ""},
		"101 fields":       {get(fields(100)), 431, "too_many_headers"},
		"10000 fields":     {get(fields(10000)), 431, "too_many_headers"},
		"64 KiB":           {bytes(64 << 10), 200, ""},
		"64 KiB + 1":       {bytes(64<<10 + 1), 431, "headers_too_large"},
		"900 KiB":          {bytes(900 << 10), 431, "headers_too_large"},
		"8 KiB URL":        {url(8 << 10), 200, ""},
		"8 KiB + 1 URL":    {url(8<<10 + 1), 414, "url_too_long"},
		"query counts too": {"GET /?" + url(8 << 10)[5:], 414, "url_too_long"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, addr)
			go io.WriteString(conn, test.raw) // the server may stop reading
			answer := readAnswer(t, bufio.NewReader(conn))
			if answer.StatusCode != test.status {
				t.Fatalf("answered %d", answer.StatusCode)
			}
			if test.status == 200 {
				return
			}
			checkRefusal(t, answer, test.status, test.code)
			if seen := backend.saw(conn); seen != nil {
				t.Errorf("the backend saw %q", seen)
			}
		})
	}
}

// TestOwnAnswers holds that what net/http answers by itself has our shape too,
// also on a connection that has served requests.
func TestOwnAnswers(t *testing.T) {
	addr := testServer(t, Options{}, noPanics(t), new(testBackend))
	tests := map[string]struct {
		raw    string
		status int
		code   string
	}{
		"bad version":  {"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505, "unsupported_http_version"},
		"no version":   {"GET /\r\n\r\n", 400, "malformed_request"},
		"TLS":          {"\x16\x03\x01\x00\xa5\x01\x00\x00\n\r\n", 400, "malformed_request"},
		"coding":       {post("Transfer-Encoding: gzip\r\n", ""), 400, "malformed_request"},
		"no host":      {"GET / HTTP/1.1\r\n\r\n", 400, "malformed_request"},
		"host":         {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "malformed_request"},
		"url":          {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"},
		"expectation":  {get("Expect: x\r\n"), 417, "expectation_failed"},
		"head too big": {get(strings.Repeat("A: b\r\n", 20000)), 431, "headers_too_large"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, before := range []int{0, 2} {
				conn := dial(t, addr)
				r := bufio.NewReader(conn)
				for range before {
					io.WriteString(conn, get(""))
					readAnswer(t, r)
				}
				go io.WriteString(conn, test.raw)
				answer := readAnswer(t, r)
				checkRefusal(t, answer, test.status, test.code)
				if !answer.Close {
					t.Error("no Connection: close")
				}
			}
		})
	}
}

// TestOwnAnswersBehindAHandler holds that a read which net/http takes back at
// the end of a handler does not make a malformed request look late.
func TestOwnAnswersBehindAHandler(t *testing.T) {
	addr := testServer(t, Options{}, noPanics(t), new(testBackend))
	conn := dial(t, addr)
	r := bufio.NewReader(conn)
	io.WriteString(conn, get("")+"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n") // one segment: nothing is left to read
	readAnswer(t, r)
	checkRefusal(t, readAnswer(t, r), http.StatusBadRequest, "malformed_request")
}

// TestOwnAnswersLookalike holds that a handler may write what looks like an
// answer of net/http's own, while it runs or left over for net/http to flush.
func TestOwnAnswersLookalike(t *testing.T) {
	const lookalike = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"
	for _, copies := range []int{1, 200} {
		text := strings.Repeat(lookalike, copies)
		ln := newPipeListener()
		serve(t, ln, Options{}, noPanics(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			http.NewResponseController(w).Flush() // so that the next Write to the connection starts with text
			io.WriteString(w, text)
		}))
		conn := ln.dial(t)
		r := bufio.NewReader(conn)
		for range 2 {
			io.WriteString(conn, get(""))
			answer := readAnswer(t, r)
			if body, _ := io.ReadAll(answer.Body); string(body) != text {
				t.Fatalf("body changed: %.200q", body)
			}
		}
	}
}

// TestBadChunk holds that a body that turns bad after its handler has begun
// fails in the handler, which can still answer, and ends the connection.
func TestBadChunk(t *testing.T) {
	for name, rest := range map[string]string{
		"size":         "0x5\r\nworld\r\n0\r\n\r\n",
		"bare LF":      "5\nworld\r\n0\r\n\r\n",
		"no CRLF":      "5\r\nworld0\r\n\r\n",
		"space":        "5 \r\nworld\r\n0\r\n\r\n",
		"extension":    "5;" + strings.Repeat("e", 300) + "\r\nworld\r\n0\r\n\r\n",
		"trailer":      "0\r\nContent-Length: 5\r\n\r\n",
		"trailer fold": "0\r\nA: b\r\n c\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			begun := make(chan struct{})
			failure := make(chan error, 1)
			ln := newPipeListener()
			serve(t, ln, Options{}, noPanics(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.ReadFull(r.Body, make([]byte, 5))
				close(begun)
				_, err := io.ReadAll(r.Body)
				failure <- err
				writeError(w, r, http.StatusBadRequest, "malformed_request", "", "The body is malformed.")
			}))
			conn := ln.dial(t)
			io.WriteString(conn, post(te, "5\r\nhello\r\n"))
			<-begun
			go io.WriteString(conn, rest+smuggled)
			answer := readAnswer(t, bufio.NewReader(conn))
			checkRefusal(t, answer, http.StatusBadRequest, "malformed_request")
			if err := <-failure; !errors.Is(err, ErrMalformedBody) {
				t.Errorf("body failed with %v", err)
			}
		})
	}
}

func TestPanic(t *testing.T) {
	var panics atomic.Int32
	logPanic := func(r *http.Request, value any, stack []byte) {
		panics.Add(1)
		if value != "boom" || !strings.Contains(string(stack), "TestPanic") || RequestIDFrom(r.Context()) == "" {
			t.Errorf("logged %v with id %q and %s", value, RequestIDFrom(r.Context()), stack)
		}
	}
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/boom", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		w.Header().Set("Content-Encoding", "gzip")
		panic("boom")
	})
	mux.HandleFunc("/late", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic("boom")
	})
	mux.HandleFunc("/abort", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		<-release
		io.WriteString(w, "whole")
	})
	ln := newPipeListener()
	logged := serve(t, ln, Options{}, logPanic, mux)

	ask := func(path string) net.Conn {
		conn := ln.dial(t)
		io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n")
		return conn
	}
	slow := ask("/slow")

	answers := readAnswers(t, ask("/boom"))
	if len(answers) != 1 || answers[0].Header.Get("Content-Encoding") != "" {
		t.Fatalf("answers %v", answers)
	}
	checkRefusal(t, answers[0], http.StatusInternalServerError, "internal_error")

	late, err := http.ReadResponse(bufio.NewReader(ask("/late")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(late.Body); string(body) != "half" || err == nil {
		t.Errorf("late panic: body %q, error %v, want a cut", body, err)
	}
	if rest, _ := io.ReadAll(ask("/abort")); len(rest) != 0 {
		t.Errorf("abort answered %q", rest)
	}
	if n := panics.Load(); n != 2 {
		t.Errorf("%d panics logged", n)
	}
	close(release)
	if answer := readAnswer(t, bufio.NewReader(slow)); answer.StatusCode != http.StatusOK {
		t.Errorf("the other request got %d", answer.StatusCode)
	}
	if n := logged.Load(); n != 0 { // each cut was seen, so its log line would be there
		t.Errorf("the server logged %d lines", n)
	}
}

func TestRequestID(t *testing.T) {
	var own, client string
	addr := testServer(t, Options{}, noPanics(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own, client = RequestIDFrom(r.Context()), ClientRequestID(r)
	}))
	form := regexp.MustCompile(`^req_[0-9a-f]{32}$`)
	seen := make(map[string]bool)
	for headers, want := range map[string]string{
		"":                            "",
		"X-Request-Id: a.b_c:d-1\r\n": "a.b_c:d-1",
		"X-Client-Request-Id: c1\r\n": "c1",
		"X-Request-Id: a\r\nX-Client-Request-Id: c2\r\n":        "c2",
		"X-Request-Id: a b\r\n":                                 "",
		"X-Request-Id: a\r\nX-Request-Id: b\r\n":                "",
		"X-Request-Id: " + strings.Repeat("a", 128) + "\r\n":    strings.Repeat("a", 128),
		"X-Request-Id: " + strings.Repeat("a", 129) + "\r\n":    "",
		"X-Client-Request-Id: <script>\r\nX-Request-Id: ok\r\n": "ok",
	} {
		answer := exchange(t, addr, get(headers))[0]
		id := answer.Header.Get("X-Request-Id")
		if !form.MatchString(id) || id != own || seen[id] {
			t.Errorf("%q: id %q, in the handler %q", headers, id, own)
		}
		seen[id] = true
		if got := answer.Header.Get("X-Client-Request-Id"); got != want || client != want {
			t.Errorf("%q: client id %q, in the handler %q, want %q", headers, got, client, want)
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	if RequestIDFrom(r.Context()) != "" || ClientRequestID(r) != "" {
		t.Error("ids without RequestID")
	}
}

// TestKeepAlive holds that good requests of all kinds share one connection.
func TestKeepAlive(t *testing.T) {
	ln := newPipeListener()
	serve(t, ln, Options{}, noPanics(t), new(testBackend))
	conn := ln.dial(t)
	r := bufio.NewReader(conn)
	kinds := []string{
		get(""), post("Content-Length: 5\r\n", "hello"), post(te, "5\r\nhello\r\n0\r\n\r\n"),
		post("Content-Length: 0\r\n", ""), post(te, "0\r\nA: b\r\n\r\n"), post("Content-Length: 100000\r\n", strings.Repeat("x", 100000)),
	}
	for i := range 600 {
		io.WriteString(conn, kinds[i%len(kinds)])
		if answer := readAnswer(t, r); answer.StatusCode != http.StatusOK || answer.Close {
			t.Fatalf("request %d got %d", i, answer.StatusCode)
		}
	}
}

func TestPipelining(t *testing.T) {
	addr := testServer(t, Options{}, noPanics(t), new(testBackend))
	one := get("") + post("Content-Length: 5\r\n", "hello") + post(te, "5\r\nhello\r\n0\r\n\r\n")
	conn := dial(t, addr)
	go io.WriteString(conn, strings.Repeat(one, 500))
	r := bufio.NewReader(conn)
	for i := range 1500 {
		if answer := readAnswer(t, r); answer.StatusCode != http.StatusOK {
			t.Fatalf("request %d got %d", i, answer.StatusCode)
		}
	}
}

// TestEverySplit cuts requests at every byte on their way into net/http.
func TestEverySplit(t *testing.T) {
	ln := newPipeListener()
	serve(t, ln, Options{}, noPanics(t), new(testBackend))
	conn := ln.dial(t)
	r := bufio.NewReader(conn)
	raw := get("A: b\r\n") + post("Content-Length: 5\r\n", "hello") + post(te, "5;a\r\nhello\r\n0\r\nA: b\r\n\r\n")
	for cut := range raw {
		go func() {
			io.WriteString(conn, raw[:cut])
			io.WriteString(conn, raw[cut:])
		}()
		for i := range 3 {
			if answer := readAnswer(t, r); answer.StatusCode != http.StatusOK {
				t.Fatalf("cut at %d: request %d got %d", cut, i, answer.StatusCode)
			}
		}
	}
}

// TestBadAfterGood holds that a fault in a later request does no harm to one
// that is being served.
func TestBadAfterGood(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	ln := newPipeListener()
	serve(t, ln, Options{}, noPanics(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun) // a second request would panic here
		<-release
		if err := r.Context().Err(); err != nil {
			t.Errorf("the request was cut: %v", err)
		}
	}))
	conn := ln.dial(t)
	io.WriteString(conn, get(""))
	<-begun
	go io.WriteString(conn, post("Content-Length: 5\r\n"+te, "0\r\n\r\n"))
	close(release)
	answers := readAnswers(t, conn)
	if len(answers) != 2 || answers[0].StatusCode != http.StatusOK || answers[1].StatusCode != http.StatusBadRequest {
		t.Errorf("answers %v", answers)
	}
}

// TestRefusedBodyIsNotAwaited holds that a refused request does not keep its
// connection by announcing a body that never comes.
func TestRefusedBodyIsNotAwaited(t *testing.T) {
	ln := newPipeListener()
	serve(t, ln, Options{}, noPanics(t), new(testBackend))
	conn := ln.dial(t)
	io.WriteString(conn, post("Content-Length: 0005\r\n", "he"))
	if answers := readAnswers(t, conn); len(answers) != 1 || answers[0].StatusCode != http.StatusBadRequest {
		t.Errorf("answers %v", answers)
	}
}

// TestPassedBy holds that requests which do not go through the chain cannot
// hide a later fault from it.
func TestPassedBy(t *testing.T) {
	backend := new(testBackend)
	chain := Chain(Options{}, writeError, noPanics(t), backend)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ConnContext: connContext, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			chain.ServeHTTP(w, r)
		}
	})}
	go srv.Serve(Listener(ln, Options{}, writeError))
	t.Cleanup(func() { srv.Close() })
	conn := dial(t, ln.Addr().String())
	r := bufio.NewReader(conn)
	for range 3 {
		io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
		readAnswer(t, r)
	}
	io.WriteString(conn, post("Content-Length: 4\r\n"+te, "0\r\n\r\n")+smuggled)
	if answer := readAnswer(t, r); answer.StatusCode != http.StatusBadRequest || backend.saw(conn) != nil {
		t.Errorf("answered %d, the backend saw %q", answer.StatusCode, backend.saw(conn))
	}
}

func TestWriterReachesConnection(t *testing.T) {
	addr := testServer(t, Options{}, noPanics(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(http.Flusher); !ok {
			t.Error("not a Flusher")
		}
		rc := http.NewResponseController(w)
		if err := errors.Join(rc.Flush(), rc.SetWriteDeadline(time.Now().Add(patience)), rc.SetReadDeadline(time.Now().Add(patience)), rc.EnableFullDuplex()); err != nil {
			t.Error(err)
		}
	}))
	if answer := exchange(t, addr, get(""))[0]; answer.StatusCode != http.StatusOK {
		t.Errorf("answered %d", answer.StatusCode)
	}
}

// discard is a ResponseWriter that costs nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

const typicalHead = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.example:8080\r\nUser-Agent: OpenAI/Python 1.99.0\r\n" +
	"Authorization: Bearer sk-0123456789abcdef0123456789abcdef\r\nAccept: application/json\r\nAccept-Encoding: gzip, deflate\r\n" +
	"Content-Type: application/json\r\nX-Stainless-Lang: python\r\nX-Stainless-Package-Version: 1.99.0\r\nX-Stainless-Os: Linux\r\n" +
	"X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\nConnection: keep-alive\r\nContent-Length: 2048\r\n\r\n"

// BenchmarkGuard is what following one typical request costs.
func BenchmarkGuard(b *testing.B) {
	raw := []byte(typicalHead + strings.Repeat("x", 2048))
	g := &guard{framing: *newFraming()}
	b.ReportAllocs()
	for b.Loop() {
		g.observe(raw)
	}
	if why := g.admit(); why != noFault {
		b.Fatal(why.message())
	}
}

// BenchmarkChain is what the chain costs one typical request.
func BenchmarkChain(b *testing.B) {
	g := &guard{framing: *newFraming()}
	g.observe([]byte(typicalHead))
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(typicalHead)))
	if err != nil {
		b.Fatal(err)
	}
	r = r.WithContext(context.WithValue(r.Context(), guardKey{}, g))
	keepAlive := r.Header["Connection"]
	w := &discard{header: make(http.Header)}
	served, asked := 0, 0
	h := Chain(Options{}, writeError, nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	b.ReportAllocs()
	for b.Loop() {
		asked++
		g.taken.Store(0)
		r.Header["Connection"] = keepAlive // the chain drops it
		h.ServeHTTP(w, r)
	}
	if served != asked {
		b.Fatalf("%d of %d requests served", served, asked)
	}
}
