package app_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

func TestBadChunkNoDial(t *testing.T) {
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
	bodies := map[string]string{
		"no number": "zz\r\n{}\r\n0\r\n\r\n", "0x": "0x2\r\n{}\r\n0\r\n\r\n", "plus": "+2\r\n{}\r\n0\r\n\r\n",
		"underscore": "0_2\r\n{}\r\n0\r\n\r\n", "overflow": "ffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
		"bare LF": "2\n{}\n0\n\n", "bare LF behind data": "2\r\n{}\n0\r\n\r\n", "data too long": "2\r\n{}}}}}\r\n0\r\n\r\n",
		"long extension": "2;" + strings.Repeat("a", 5000) + "\r\n{}\r\n0\r\n\r\n",
		"bad later on":   "2\r\n{}\r\n1;\n\r\n0\r\n\r\n",
	}
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.config = configFor(quiet, "a:8000")
		backend := g.rawBackend("a:8000", func(net.Conn, *bufio.Reader, int) {})
		g.start(g.load)
		for name, body := range bodies {
			got := g.exchange(head + body)
			if e := errorIn(t, got.body); got.status != 400 || e.Type != "invalid_request_error" || !got.last {
				t.Errorf("%s: %d %v", name, got.status, e)
			}
		}
		if n := backend.conns(); n != 0 {
			t.Errorf("%d dials", n)
		}
		g.want(`firsttoken_backend_breaker_state{backend="a"}`, "0")
		g.want(`firsttoken_backend_failure_penalty{backend="a"}`, "0")
	})
}

// keepAliveRace serves every first request of a connection and treats the
// second as an engine does that has just given the connection up.
func keepAliveRace(gaveUp func(net.Conn, *bufio.Reader)) func(net.Conn, *bufio.Reader, int) {
	return func(conn net.Conn, read *bufio.Reader, _ int) {
		if _, _, ok := readRequest(read); !ok {
			return
		}
		if _, err := io.WriteString(conn, smallAnswer); err == nil {
			gaveUp(conn, read)
		}
	}
}

func TestKeepAliveRace(t *testing.T) {
	const idle = 100 * time.Millisecond
	rows := []struct {
		name   string
		body   string
		gaveUp func(net.Conn, *bufio.Reader)
		stale  string // how many requests found the connection closed; "": the race decides
	}{
		{"reset with the request in it", plainBody("m"), func(conn net.Conn, read *bufio.Reader) {
			_, _ = read.Peek(1) // leaves the request unread, which makes closing a reset
		}, "49"},
		{"closed behind the request", plainBody("m"), func(conn net.Conn, read *bufio.Reader) {
			_, _, _ = readRequest(read)
		}, "49"},
		{"reset in a long body", longBody(300 << 10), func(conn net.Conn, read *bufio.Reader) {
			_, _ = read.Discard(100 << 10)
		}, "49"},
		{"closed at the same instant", plainBody("m"), func(net.Conn, *bufio.Reader) { time.Sleep(idle) }, ""},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGateway(t)
				g.config = configFor(quiet, "a:8000")
				g.rawBackend("a:8000", keepAliveRace(row.gaveUp))
				g.start(g.load)
				for i := range 50 {
					if got := g.chat(row.body); got.status != 200 || got.body != smallBody {
						t.Fatalf("request %d: %d %s", i, got.status, got.body)
					}
					time.Sleep(idle)
				}
				if row.stale != "" {
					g.want(`firsttoken_stale_connections_total{backend="a"}`, row.stale)
				}
				g.want(`firsttoken_attempts_total{backend="a",model="m",reason="ok"}`, "50")
				g.want(`firsttoken_backend_failure_penalty{backend="a"}`, "0")
			})
		})
	}
}

func longBody(n int) string {
	return `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", n) + `"}]}`
}

// A connection that never served a request is not tried again in secret.
func TestFreshConnectionFailsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script { return fakellm.Script{fakellm.Reset()} }}
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": backend})
		if got := g.chat(plainBody("m")); got.status != 502 || backend.Count() != 1 {
			t.Errorf("status %d after %d requests", got.status, backend.Count())
		}
		g.want(`firsttoken_stale_connections_total{backend="a"}`, "")
	})
}

func TestIdleBelowBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.config = configFor(quiet, "a:8000")
		var mu sync.Mutex
		var idles []time.Duration
		backend := g.rawBackend("a:8000", func(conn net.Conn, read *bufio.Reader, _ int) {
			for {
				since := time.Now()
				_ = conn.SetReadDeadline(since.Add(5 * time.Second)) // uvicorn's keep-alive
				if _, _, ok := readRequest(read); !ok {
					mu.Lock()
					idles = append(idles, time.Since(since))
					mu.Unlock()
					return
				}
				_, _ = io.WriteString(conn, smallAnswer)
			}
		})
		g.start(g.load)
		for _, pause := range []time.Duration{3900 * time.Millisecond, 4500 * time.Millisecond, 5 * time.Second} {
			if got := g.chat(plainBody("m")); got.status != 200 {
				t.Errorf("status %d", got.status)
			}
			time.Sleep(pause)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(idles) != 2 || idles[0] != 4*time.Second || idles[1] != 4*time.Second || backend.conns() != 2 {
			t.Errorf("connections were idle for %v on %d connections, want twice 4s", idles, backend.conns())
		}
		g.want(`firsttoken_stale_connections_total{backend="a"}`, "")
	})
}

// An engine that answers before it has read the whole request.
func TestEarlyAnswer(t *testing.T) {
	const events = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}\n\n" +
		"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	rows := []struct {
		name, answer, want string
		status             int
		reads              bool // the rest of the body, later
	}{
		{"stream", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + events, events, 200, true},
		{"stream of a length", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: " + fmt.Sprint(len(events)) + "\r\n\r\n" + events, events, 200, true},
		{"whole", smallAnswer, smallBody, 200, true},
		{"refusal", "HTTP/1.1 413 Too Large\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "{}", 413, true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGateway(t)
				g.config = configFor(quiet, "a:8000")
				g.rawBackend("a:8000", func(conn net.Conn, read *bufio.Reader, _ int) {
					for {
						r, err := http.ReadRequest(read)
						if err != nil {
							return
						}
						_, _ = io.WriteString(conn, row.answer)
						time.Sleep(time.Second)
						_, _ = io.Copy(io.Discard, r.Body)
						if strings.Contains(row.answer, "close") {
							return
						}
					}
				})
				g.start(g.load)
				for range 5 {
					got := g.chat(strings.Replace(longBody(200<<10), "{", `{"stream":true,`, 1))
					if got.status != row.status || got.body != row.want || got.err != nil {
						t.Fatalf("%d %.100q %v", got.status, got.body, got.err)
					}
				}
			})
		})
	}
}

func TestLargeBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.net.SetWindow(4 << 20)
		g.config = configFor(quiet, "a:8000")
		sent, same := longBody(20<<20), false
		g.rawBackend("a:8000", func(conn net.Conn, read *bufio.Reader, _ int) {
			_, got, _ := readRequest(read)
			same = got == sent
			_, _ = io.WriteString(conn, smallAnswer)
		})
		g.start(g.load)
		if got := g.chat(sent); got.status != 200 {
			t.Fatalf("%d %.200s", got.status, got.body)
		}
		if !same {
			t.Error("the body was changed")
		}
	})
}
