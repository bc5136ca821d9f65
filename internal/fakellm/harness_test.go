package fakellm_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/memnet"
)

const (
	plain  = `{"model":"m","messages":[]}`
	stream = `{"model":"m","messages":[],"stream":true}`
	usage  = `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`
)

// client talks to one running backend.
type client struct {
	http *http.Client
	url  string
}

// inBubble runs test against b in virtual time; goroutines that stay make it
// fail.
func inBubble(t *testing.T, b *fakellm.Backend, test func(t *testing.T, c client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		l, err := n.Listen("backend:80")
		if err != nil {
			t.Fatal(err)
		}
		serve(t, l, n.DialContext, b, test)
	})
}

// overTCP runs test against b on a free port.
func overTCP(t *testing.T, b *fakellm.Backend, test func(t *testing.T, c client)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, nil, b, test)
}

func serve(t *testing.T, l net.Listener, dial func(context.Context, string, string) (net.Conn, error), b *fakellm.Backend, test func(*testing.T, client)) {
	server := fakellm.Serve(l, b)
	defer server.Close()
	transport := &http.Transport{DialContext: dial}
	defer transport.CloseIdleConnections()
	test(t, client{&http.Client{Transport: transport}, server.URL})
}

// piece is what was read at one instant, counted from the request.
type piece struct {
	after time.Duration
	bytes string
}

func (p piece) String() string { return fmt.Sprintf("%v:%q", p.after, p.bytes) }

// answer is what a client saw.
type answer struct {
	status int
	header http.Header
	pieces []piece
	err    error // of the request or of reading the body
}

func (a answer) body() string {
	var b strings.Builder
	for _, p := range a.pieces {
		b.WriteString(p.bytes)
	}
	return b.String()
}

func (c client) post(ctx context.Context, path, body string) answer {
	return c.do(ctx, "POST", path, body)
}

func (c client) do(ctx context.Context, method, path, body string) (a answer) {
	start := time.Now()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header
	buf := make([]byte, 4096)
	for {
		n, err := resp.Body.Read(buf)
		a.add(time.Since(start), string(buf[:n]))
		if err == io.EOF {
			return a
		}
		if err != nil {
			a.err = err
			return a
		}
	}
}

func (a *answer) add(after time.Duration, bytes string) {
	switch last := len(a.pieces) - 1; {
	case bytes == "":
	case last >= 0 && a.pieces[last].after == after:
		a.pieces[last].bytes += bytes
	default:
		a.pieces = append(a.pieces, piece{after, bytes})
	}
}

func always(s fakellm.Script) func(*fakellm.Request) fakellm.Script { return fakellm.Sequence(s) }
