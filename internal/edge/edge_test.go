package edge

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience bounds a step that a correct server takes at once.
const patience = 10 * time.Second

// writeError is an ErrorWriter like the data plane's.
func writeError(w http.ResponseWriter, r *http.Request, status int, code, param, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"message": message, "type": "invalid_request_error", "param": param, "code": code,
	}})
}

func noPanics(t *testing.T) PanicLogger {
	return func(r *http.Request, value any, stack []byte) {
		t.Errorf("panic in %s %s: %v\n%s", r.Method, r.RequestURI, value, stack)
	}
}

// testBackend stands for everything behind the edge: it reads the body and
// remembers each whole request by the client's address.
type testBackend struct {
	mu   sync.Mutex
	seen map[string][]string
}

func (b *testBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		writeError(w, r, http.StatusBadRequest, "malformed_request", "", err.Error())
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen == nil {
		b.seen = make(map[string][]string)
	}
	b.seen[r.RemoteAddr] = append(b.seen[r.RemoteAddr], fmt.Sprintf("%s %s %d", r.Method, r.RequestURI, len(body)))
	io.WriteString(w, "ok")
}

func (b *testBackend) saw(conn net.Conn) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.seen[conn.LocalAddr().String()])
}

// testServer serves next behind the edge on a loopback listener.
func testServer(t testing.TB, opts Options, logPanic PanicLogger, next http.Handler) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, ln, opts, logPanic, next)
	return ln.Addr().String()
}

// lineCounter counts what the server logs.
type lineCounter struct{ atomic.Int32 }

func (c *lineCounter) Write(p []byte) (int, error) {
	c.Add(1)
	return len(p), nil
}

func serve(t testing.TB, ln net.Listener, opts Options, logPanic PanicLogger, next http.Handler) (logged *lineCounter) {
	t.Helper()
	logged = new(lineCounter)
	srv := &http.Server{
		Handler:           Chain(opts, writeError, logPanic, next),
		ErrorLog:          log.New(logged, "", 0),
		ReadHeaderTimeout: patience,
	}
	Configure(srv, opts)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(Listener(ln, opts, writeError)) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return logged
}

// pipeListener is an in-memory listener: a Write on one side is exactly one or
// more Reads of the other.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (l *pipeListener) dial(t testing.TB) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	l.conns <- server
	t.Cleanup(func() { client.Close() })
	client.SetDeadline(time.Now().Add(patience))
	return client
}

func dial(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// readAnswers reads until the server closes the connection; it fails the test
// if the server does not.
func readAnswers(t testing.TB, conn net.Conn) []*http.Response {
	t.Helper()
	all, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection stays open after %q", all)
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	var answers []*http.Response
	for r := bufio.NewReader(strings.NewReader(string(all))); ; {
		if _, err := r.Peek(1); err != nil {
			return answers
		}
		answers = append(answers, readAnswer(t, r))
	}
}

func readAnswer(t testing.TB, r *bufio.Reader) *http.Response {
	t.Helper()
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body = io.NopCloser(strings.NewReader(string(body)))
	return answer
}

// exchange sends raw on its own connection, closes the sending side and returns
// all answers.
func exchange(t testing.TB, addr, raw string) []*http.Response {
	t.Helper()
	conn := dial(t, addr)
	io.WriteString(conn, raw)
	conn.CloseWrite()
	return readAnswers(t, conn)
}

// checkRefusal wants an error in the API's shape, with a request id.
func checkRefusal(t testing.TB, answer *http.Response, status int, code string) {
	t.Helper()
	var body struct {
		Error struct{ Message, Type, Param, Code string }
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		t.Errorf("error body: %v", err)
	}
	if answer.StatusCode != status || body.Error.Code != code || body.Error.Message == "" {
		t.Errorf("got %d %+v, want %d %s", answer.StatusCode, body.Error, status, code)
	}
	if id := answer.Header.Get("X-Request-Id"); !strings.HasPrefix(id, "req_") {
		t.Errorf("x-request-id = %q", id)
	}
}
