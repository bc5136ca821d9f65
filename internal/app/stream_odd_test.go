package app_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// TestStreamHeaders: the engine's content type and own headers are kept, and
// nothing on the way may hold the stream back or believe in a length.
func TestStreamHeaders(t *testing.T) {
	for name, test := range map[string]struct{ engine, want http.Header }{
		"none of its own": {
			http.Header{"Content-Type": {"text/event-stream"}},
			http.Header{"Content-Type": {"text/event-stream"}, "Cache-Control": {"no-cache"}, "X-Accel-Buffering": {"no"}},
		},
		"its own": {
			http.Header{"Content-Type": {"text/event-stream; charset=UTF-8"}, "Cache-Control": {"no-store"}, "X-Accel-Buffering": {"yes"}, "X-Engine": {"7"}},
			http.Header{"Content-Type": {"text/event-stream; charset=UTF-8"}, "Cache-Control": {"no-store"}, "X-Accel-Buffering": {"no"}, "X-Engine": {"7"}},
		},
		"a length": {
			http.Header{"Content-Type": {"text/event-stream"}, "Content-Length": {fmt.Sprint(len(goodStream))}},
			http.Header{"Content-Type": {"text/event-stream"}, "Content-Length": nil},
		},
		"hop by hop": {
			http.Header{"Content-Type": {"text/event-stream"}, "Connection": {"X-Hop"}, "X-Hop": {"1"}, "Keep-Alive": {"5"}, "Set-Cookie": {"a=b"}, "Trailer": {"X-Late"}},
			http.Header{"X-Hop": nil, "Keep-Alive": nil, "Set-Cookie": nil, "Trailer": nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := twins(t, lenient, always(fakellm.Header(200, test.engine), fakellm.Send(goodStream)))
				got := g.chat(streamBody("m"))
				if got.err != nil || got.body != goodStream {
					t.Errorf("error %v, body %q", got.err, got.body)
				}
				for name, want := range test.want {
					if !reflect.DeepEqual(got.header[name], want) {
						t.Errorf("%s: %q, want %q", name, got.header[name], want)
					}
				}
			})
		})
	}
}

// TestStreamHeadersOfAnError: an error that an engine sends instead of a stream,
// and that nobody else could do without, is not held back on the way either.
func TestStreamHeadersOfAnError(t *testing.T) {
	const fault = `data: {"error":{"message":"CUDA error","type":"internal_error","code":500}}` + "\n\n"
	synctest.Test(t, func(t *testing.T) {
		g, backend := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(fault)))
		got := g.chat(streamBody("m"))
		if got.body != fault || backend.Count() != 2 {
			t.Errorf("body %q after %d attempts, want the engine's error after 2", got.body, backend.Count())
		}
		if got.header.Get("X-Accel-Buffering") != "no" || got.header.Get("Cache-Control") != "no-cache" {
			t.Errorf("headers %v, want those of a stream", got.header)
		}
	})
}

// TestOddAnswers: answers of unusual but honest shapes pass unchanged.
func TestOddAnswers(t *testing.T) {
	typed := func(kind, body string) fakellm.Script {
		return fakellm.Script{fakellm.Header(200, http.Header{"Content-Type": {kind}}), fakellm.Send(body)}
	}
	whole := `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`
	for name, test := range map[string]struct {
		request, want string
		script        fakellm.Script
	}{
		"JSON though a stream was asked for":     {streamBody("m"), whole, fakellm.Status(200, nil, whole)},
		"a stream though none was asked for":     {plainBody("m"), goodStream, typed("text/event-stream", goodStream)},
		"lines of JSON":                          {streamBody("m"), "{\"a\":1}\n{\"b\":2}\n", typed("application/x-ndjson", "{\"a\":1}\n{\"b\":2}\n")},
		"audio":                                  {plainBody("m"), "ID3\x00\xff", typed("audio/mpeg", "ID3\x00\xff")},
		"no type at all":                         {streamBody("m"), "hello", fakellm.Script{fakellm.Send("hello")}},
		"another success":                        {plainBody("m"), whole, fakellm.Status(201, nil, whole)},
		"a named error field that is null":       {plainBody("m"), `{"error":null,"choices":[]}`, fakellm.Status(200, nil, `{"error":null,"choices":[]}`)},
		"early hints":                            {streamBody("m"), goodStream, append(fakellm.Script{informational(103)}, typed("text/event-stream", goodStream)...)},
		"processing":                             {streamBody("m"), goodStream, append(fakellm.Script{informational(102), informational(102)}, typed("text/event-stream", goodStream)...)},
		"trailers":                               {streamBody("m"), goodStream, fakellm.Script{trailer, typed("text/event-stream", goodStream).Play}},
		"a stream that ends with its connection": {streamBody("m"), goodStream, fakellm.Script{raw("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + goodStream)}},
		"JSON that ends with its connection":     {plainBody("m"), whole, fakellm.Script{raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + whole)}},
		"many headers":                           {streamBody("m"), goodStream, append(fakellm.Script{bigHeader(200 << 10)}, typed("text/event-stream", goodStream)...)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, backend := twins(t, lenient, always(test.script...))
				got := g.chat(test.request)
				if got.err != nil || got.status/100 != 2 || got.body != test.want {
					t.Errorf("error %v, status %d, body %q, want %q", got.err, got.status, got.body, test.want)
				}
				if backend.Count() != 1 || g.blamed() {
					t.Errorf("%d attempts, blamed %t", backend.Count(), g.blamed())
				}
				if line := g.access()[0]; line["reason"] != "ok" {
					t.Errorf("access line %v", line)
				}
			})
		})
	}
}

// TestBadAnswers: what is no answer is a failure of the backend, made good by
// another, and 502 when there is none.
func TestBadAnswers(t *testing.T) {
	good := fakellm.Script{fakellm.Stream(), fakellm.Send(goodStream)}
	location := http.Header{"Location": {"http://elsewhere/"}}
	for name, test := range map[string]struct {
		script fakellm.Script
		reason string
	}{
		"no content":          {fakellm.Script{fakellm.Header(204, nil)}, "bad_response"},
		"reset content":       {fakellm.Script{fakellm.Header(205, nil)}, "bad_response"},
		"a redirect":          {fakellm.Script{fakellm.Header(307, location)}, "bad_response"},
		"not modified":        {fakellm.Script{fakellm.Header(304, nil)}, "bad_response"},
		"another protocol":    {fakellm.Script{raw("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")}, "bad_response"},
		"no HTTP":             {fakellm.Script{raw("SSH-2.0-OpenSSH_9.2\r\n")}, "bad_response"},
		"a broken header":     {fakellm.Script{raw("HTTP/1.1 200 OK\r\nno colon here\r\n\r\n")}, "bad_response"},
		"a huge header":       {fakellm.Script{bigHeader(300 << 10), good.Play}, "bad_response"},
		"two lengths":         {fakellm.Script{raw("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!")}, "bad_response"},
		"text without a body": {fakellm.Script{fakellm.Header(200, http.Header{"Content-Type": {"text/plain"}})}, "bad_response"},
		"endless early hints": {fakellm.Script{raw(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: "+strings.Repeat("x", 1000)+"\r\n\r\n", 400))}, "bad_response"},
		"a broken chunk":      {fakellm.Script{raw("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")}, "bad_response"},
		"half of a header":    {fakellm.Script{raw("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")}, "connection_lost"},
		"nothing but its end": {fakellm.Script{fakellm.Close()}, "connection_lost"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := twins(t, lenient, fakellm.Sequence(test.script, good, test.script))
				if got := g.chat(streamBody("m")); got.status != http.StatusOK || got.body != goodStream {
					t.Errorf("status %d, body %q, want the other backend's", got.status, got.body)
				}
				got := g.chat(streamBody("m"))
				if got.status != http.StatusBadGateway {
					t.Errorf("status %d, want 502", got.status)
				}
				checkError(t, got.body, "upstream_"+test.reason)
				if n := g.attempts(test.reason); n != 3 || !g.blamed() {
					t.Errorf("%d attempts counted as %s, want 3", n, test.reason)
				}
			})
		})
	}
}

// informational sends an interim answer.
func informational(status int) fakellm.Step {
	return func(w *fakellm.Response) error {
		w.Header().Set("Link", "</x>; rel=preload")
		w.ResponseWriter.WriteHeader(status)
		w.Header().Del("Link")
		return nil
	}
}

// trailer sets a trailer, which follows the body.
func trailer(w *fakellm.Response) error {
	w.Header().Set(http.TrailerPrefix+"X-Late", "1")
	return nil
}

// bigHeader adds a header of n bytes.
func bigHeader(n int) fakellm.Step {
	return func(w *fakellm.Response) error {
		w.Header().Set("X-Big", strings.Repeat("x", n))
		return nil
	}
}

// raw takes the connection, writes s to it and closes it.
func raw(s string) fakellm.Step {
	return func(w *fakellm.Response) error {
		conn, _, err := http.NewResponseController(w.ResponseWriter).Hijack()
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = io.WriteString(conn, s)
		return err
	}
}

// TestOldClient: a client of HTTP/1.0 knows no chunks; its stream ends with
// the connection.
func TestOldClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(goodStream)))
		conn, err := g.net.DialContext(t.Context(), "tcp", gatewayAddr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		head, body := exchange10(t, conn, streamBody("m"))
		if !strings.Contains(head, " 200 ") || body != goodStream {
			t.Errorf("head %q, body %q", head, body)
		}
	})
}

func exchange10(t *testing.T, conn net.Conn, body string) (head, answer string) {
	t.Helper()
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	all, err := io.ReadAll(bufio.NewReader(conn))
	if err != nil {
		t.Fatal(err)
	}
	head, answer, _ = strings.Cut(string(all), "\r\n\r\n")
	return head, answer
}
