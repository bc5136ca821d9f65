package app_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet switches off what talks to backends besides requests, and every rule
// that takes a backend out.
const quiet = "defaults: {policy: least-inflight, health: {interval: off, max_ejected: 0, breaker_failures: 1000000}}"

// apiError is OpenAI's error object; a key that is missing stays nil.
type apiError struct {
	Message, Type, Param, Code any
}

// errorIn reads the error of an answer or event and insists on its shape.
func errorIn(t testing.TB, text string) apiError {
	t.Helper()
	var doc map[string]map[string]any
	if err := json.Unmarshal([]byte(strings.TrimPrefix(text, "data: ")), &doc); err != nil {
		t.Errorf("no error object: %v in %q", err, text)
		return apiError{}
	}
	e := doc["error"]
	for _, key := range []string{"message", "type", "param", "code"} {
		if _, ok := e[key]; !ok {
			t.Errorf("error without %s: %s", key, text)
		}
	}
	if message, _ := e["message"].(string); message == "" || len(e) != 4 || len(doc) != 1 {
		t.Errorf("error is not of the four keys: %s", text)
	}
	return apiError{e["message"], e["type"], e["param"], e["code"]}
}

// rawClient is a client that writes its own bytes.
type rawClient struct {
	net.Conn
	read *bufio.Reader
}

func (g *gateway) rawClient() *rawClient {
	g.t.Helper()
	conn, err := g.net.DialContext(g.t.Context(), "tcp", gatewayAddr)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	return &rawClient{Conn: conn, read: bufio.NewReader(conn)}
}

// send writes a request as it is.
func (r *rawClient) send(t testing.TB, text string) {
	t.Helper()
	if _, err := io.WriteString(r, text); err != nil {
		t.Fatalf("write %.60q: %v", text, err)
	}
}

// answer reads one whole answer.
func (r *rawClient) answer(t testing.TB) answer {
	t.Helper()
	for {
		resp, err := http.ReadResponse(r.read, nil)
		if err != nil {
			t.Fatalf("read an answer: %v", err)
		}
		if resp.StatusCode != http.StatusContinue {
			return readAnswer(resp)
		}
	}
}

// exchange sends a request as it is on a connection of its own.
func (g *gateway) exchange(text string) answer {
	g.t.Helper()
	c := g.rawClient()
	defer c.Close()
	c.send(g.t, text)
	return c.answer(g.t)
}

// rawPost is a POST of a chat completion, with more header lines.
func rawPost(body string, lines ...string) string {
	head := []string{"POST /v1/chat/completions HTTP/1.1", "Host: gateway", "Content-Type: application/json",
		"Content-Length: " + strconv.Itoa(len(body))}
	return strings.Join(append(head, lines...), "\r\n") + "\r\n\r\n" + body
}

// rawBackend accepts connections at addr and has talk speak on each, n being
// the connection's number from 0. It counts them.
type rawBackend struct {
	mu    sync.Mutex
	count int
}

func (g *gateway) rawBackend(addr string, talk func(conn net.Conn, read *bufio.Reader, n int)) *rawBackend {
	g.t.Helper()
	ln, err := g.net.Listen(addr)
	if err != nil {
		g.t.Fatal(err)
	}
	b := &rawBackend{}
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			n := b.next()
			busy.Go(func() {
				defer conn.Close()
				talk(conn, bufio.NewReader(conn), n)
			})
		}
	})
	g.t.Cleanup(func() {
		_ = ln.Close()
		busy.Wait()
	})
	return b
}

func (b *rawBackend) next() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	return b.count - 1
}

func (b *rawBackend) conns() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// readRequest reads one request, body and all; false at the end of the connection.
func readRequest(read *bufio.Reader) (*http.Request, string, bool) {
	r, err := http.ReadRequest(read)
	if err != nil {
		return nil, "", false
	}
	body, err := io.ReadAll(r.Body)
	return r, string(body), err == nil
}

// smallAnswer is a whole unstreamed answer, as bytes.
const smallAnswer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 84\r\n\r\n" + smallBody

const smallBody = `{"object":"chat.completion","choices":[{"index":0,"finish_reason":"stop"}],"id":"x"}`

// want fails the test unless the metric has the value; "" wants no such series.
func (g *gateway) want(series, value string) {
	g.t.Helper()
	if got := g.metric(series); got != value {
		g.t.Errorf("%s is %q, want %q", series, got, value)
	}
}
