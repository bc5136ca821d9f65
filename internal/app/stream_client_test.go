package app_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// TestClientCancel: a client that leaves at any moment takes the backend's
// work with it within 100 ms, is logged as 499, and is nobody's fault. Before
// the first token the prefill stays counted, for the engine may go on with it.
func TestClientCancel(t *testing.T) {
	const leave = 3 * time.Second
	token := fakellm.Script{fakellm.Send(helloChunk), fakellm.Wait(100 * time.Millisecond)}
	for name, test := range map[string]struct {
		stream bool
		script fakellm.Script
		held   float64
	}{
		"before the headers":      {true, fakellm.Script{fakellm.Wait(time.Minute), fakellm.Stream()}, 1},
		"before the first token":  {true, fakellm.Script{fakellm.Stream(), fakellm.Hang()}, 1},
		"after a comment":         {true, fakellm.Script{fakellm.Stream(), fakellm.Send(": ping\n\n"), fakellm.Hang()}, 1},
		"after the role chunk":    {true, fakellm.Script{fakellm.Stream(), fakellm.Send(roleChunk), fakellm.Hang()}, 1},
		"midway, silent":          {true, fakellm.Script{fakellm.Stream(), token.Play, fakellm.Hang()}, 0},
		"midway, streaming":       {true, fakellm.Script{fakellm.Stream(), repeat(1000, token)}, 0},
		"midway in an event":      {true, fakellm.Script{fakellm.Stream(), token.Play, fakellm.Send("data: {"), fakellm.Hang()}, 0},
		"unstreamed":              {false, fakellm.Script{fakellm.Wait(time.Minute)}, 1},
		"unstreamed, in the body": {false, fakellm.Script{fakellm.Header(200, http.Header{"Content-Type": {"application/json"}}), fakellm.Send(`{"choices":`), fakellm.Hang()}, 1},
		"raw":                     {true, fakellm.Script{fakellm.Header(200, http.Header{"Content-Type": {"application/x-ndjson"}}), fakellm.Send("{}\n"), fakellm.Hang()}, 1},
		"a refusal's body":        {true, fakellm.Script{fakellm.Header(503, http.Header{"Content-Type": {"application/json"}}), fakellm.Send(`{"error":`), fakellm.Hang()}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, backend := twins(t, lenient, always(test.script...))
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				start := time.Now()
				time.AfterFunc(leave, cancel)
				body := plainBody("m")
				if test.stream {
					body = streamBody("m")
				}
				if resp, err := g.post(ctx, "/v1/chat/completions", body); err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if err == nil {
						t.Error("the answer ended before the client left")
					}
				}
				synctest.Wait()
				time.Sleep(100 * time.Millisecond)
				if n := backend.Count(); n != 1 {
					t.Fatalf("%d attempts, want 1", n)
				}
				cancelled := backend.Requests()[0].Cancelled()
				if late := cancelled.Sub(start) - leave; cancelled.IsZero() || late < 0 || late > 100*time.Millisecond {
					t.Errorf("the backend was cancelled %v after the client left", late)
				}
				if g.blamed() || g.attempts("client_left") != 1 {
					t.Errorf("backend blamed: %t; %d attempts counted as client_left", g.blamed(), g.attempts("client_left"))
				}
				if held := g.sumOver("firsttoken_backend_held_prefills"); held != test.held {
					t.Errorf("%v prefills held, want %v", held, test.held)
				}
				if n := g.sumOver("firsttoken_backend_in_flight"); n != 0 {
					t.Errorf("%v attempts in flight after the client left", n)
				}
				line := g.access()[0]
				if line["status"] != 499.0 || line["reason"] != "client_left" {
					t.Errorf("access line %v, want 499 client_left", line)
				}
			})
		})
	}
}

// TestClientCancelWhileDialing: a client that leaves before there is a
// connection left no work behind, so no prefill stays counted.
func TestClientCancelWhileDialing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor(lenient, "a:8000", "b:8000"), nil)
		g.silence("a:8000")
		g.silence("b:8000")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if resp, err := g.post(ctx, "/v1/chat/completions", streamBody("m")); err == nil {
			resp.Body.Close()
			t.Fatalf("status %d, want no answer", resp.StatusCode)
		}
		time.Sleep(100 * time.Millisecond)
		if n := g.attempts("client_left"); n != 1 {
			t.Errorf("%d attempts counted as client_left, want 1", n)
		}
		if held := g.sumOver("firsttoken_backend_held_prefills"); held != 0 {
			t.Errorf("%v prefills held by an engine that was not reached", held)
		}
	})
}

// TestSlowHeaders: a client that takes too long over its headers is told so.
func TestSlowHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor(lenient, "a:8000"), nil)
		c := g.rawClient()
		c.send(t, "GET /v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n")
		c.answer(t)
		c.send(t, "GET /v1/models HTTP/1.1\r\nHo")
		got := c.answer(t)
		if got.status != http.StatusRequestTimeout || !got.last {
			t.Errorf("status %d, connection closed: %t", got.status, got.last)
		}
		checkError(t, got.body, "header_timeout")
	})
}

// TestUnsentBody: a client that got its answer without having sent its body
// does not keep the connection by never sending it.
func TestUnsentBody(t *testing.T) {
	for name, test := range map[string]struct {
		line   string
		status int
	}{
		"slow body":           {"POST /v1/chat/completions HTTP/1.1", 408},
		"compressed":          {"POST /v1/chat/completions HTTP/1.1\r\nContent-Encoding: gzip", 415},
		"nothing there":       {"POST /v1/nothing HTTP/1.1", 404},
		"wrong method":        {"PUT /v1/chat/completions HTTP/1.1", 405},
		"unimplemented":       {"BREW /v1/chat/completions HTTP/1.1", 501},
		"a list has no body":  {"GET /v1/models HTTP/1.1", 200},
		"a model has no body": {"GET /v1/models/m HTTP/1.1", 200},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := startGateway(t, configFor(lenient, "a:8000"), nil)
				c := g.rawClient()
				_ = c.SetReadDeadline(time.Now().Add(5 * time.Minute))
				c.send(t, test.line+"\r\nHost: gateway\r\nContent-Length: 100\r\n\r\n{")
				if got := c.answer(t); got.status != test.status {
					t.Errorf("status %d, want %d", got.status, test.status)
				}
				answered := time.Now()
				if _, err := c.read.ReadByte(); err != io.EOF {
					t.Errorf("%v after the answer: %v, want a closed connection", time.Since(answered), err)
				}
			})
		})
	}
}

// repeat plays the script n times.
func repeat(n int, s fakellm.Script) fakellm.Step {
	return func(w *fakellm.Response) error {
		for range n {
			if err := s.Play(w); err != nil {
				return err
			}
		}
		return nil
	}
}

// TestClientCancelAfterTheEnd: who leaves with [DONE], or with an engine's
// error in hand, does not change what the request came to.
func TestClientCancelAfterTheEnd(t *testing.T) {
	fault := `data: {"error":{"message":"CUDA error","type":"internal_error","code":500}}` + "\n\n"
	for name, test := range map[string]struct{ last, reason string }{
		"[DONE]":       {doneEvent, "ok"},
		"engine error": {fault, "engine_error_event"},
		"abort":        {chunk(`{}`, "abort"), "engine_aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(helloChunk, test.last), fakellm.Hang()))
				resp := g.stream(t.Context())
				lines := bufio.NewReader(resp.Body)
				for got := ""; !strings.HasSuffix(got, test.last); {
					line, err := lines.ReadString('\n')
					if err != nil {
						t.Fatal(err)
					}
					got += line
				}
				resp.Body.Close()
				time.Sleep(time.Second)
				if blamed := g.blamed(); blamed != (test.reason != "ok") {
					t.Errorf("backend blamed: %t", blamed)
				}
				if line := g.access()[0]; line["reason"] != test.reason {
					t.Errorf("access line %v, want the reason %s", line, test.reason)
				}
			})
		})
	}
}

// TestSlowReader: a client that stops reading holds the backend back instead
// of filling memory; after client_write the attempt is cancelled, and nobody
// is to blame.
func TestSlowReader(t *testing.T) {
	for name, body := range map[string]string{"stream": streamBody("m"), "unstreamed": plainBody("m"), "raw": streamBody("m")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sent := 0
				kind := map[string]string{"stream": "text/event-stream", "unstreamed": "application/json", "raw": "application/x-ndjson"}[name]
				piece := chunk(`{"content":"`+strings.Repeat("x", 4000)+`"}`, "")
				flood := func(w *fakellm.Response) error {
					for {
						if err := w.Send(piece); err != nil {
							return err
						}
						sent += len(piece)
					}
				}
				g, backend := twins(t, withTimeouts("client_write: 10s, idle: 2s"),
					always(fakellm.Header(200, http.Header{"Content-Type": {kind}}), flood))
				start := time.Now()
				resp, err := g.post(t.Context(), "/v1/chat/completions", body)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				synctest.Wait()
				const window = 64 << 10 // of each connection
				most := 2*window + 64<<10
				if name == "unstreamed" {
					most += 1 << 20 // held so that it can be retried
				}
				if sent > most {
					t.Errorf("the backend got rid of %d bytes that nobody reads, want at most %d", sent, most)
				}
				time.Sleep(11 * time.Second)
				r := backend.Requests()[0]
				if late := r.Cancelled().Sub(start) - 10*time.Second; r.Cancelled().IsZero() || late < 0 || late > 100*time.Millisecond {
					t.Errorf("the backend was cancelled %v after client_write, want at once", late)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err == nil {
					t.Error("the answer looks whole to the client")
				}
				if backend.Count() != 1 || g.blamed() || g.attempts("client_write_timeout") != 1 {
					t.Errorf("%d attempts, blamed %t", backend.Count(), g.blamed())
				}
				if line := g.access()[0]; line["reason"] != "client_write_timeout" {
					t.Errorf("access line %v", line)
				}
			})
		})
	}
}

// TestSlowReaderComesBack: while the client is waited for, no other clock
// runs; a pause within client_write harms nobody, nor does a stream that takes
// longer than that, nor the next request on its connection.
func TestSlowReaderComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var script fakellm.Script
		script = append(script, fakellm.Stream(), fakellm.Send(roleChunk))
		content := chunk(`{"content":"`+strings.Repeat("x", 4000)+`"}`, "")
		for range 60 {
			script = append(script, fakellm.Send(content))
		}
		for range 30 {
			script = append(script, fakellm.Wait(time.Second), fakellm.Send(helloChunk))
		}
		script = append(script, fakellm.Send(stopChunk+doneEvent))
		g, backend := twins(t, withTimeouts("client_write: 10s, idle: 2s, first_token: 3s"), always(script...))
		resp := g.stream(t.Context())
		time.Sleep(9 * time.Second) // the windows are full, the backend waits
		body, err := io.ReadAll(resp.Body)
		want := roleChunk + strings.Repeat(content, 60) + strings.Repeat(helloChunk, 30) + stopChunk + doneEvent
		if err != nil || string(body) != want {
			t.Errorf("error %v, %d bytes, want %d", err, len(body), len(want))
		}
		time.Sleep(30 * time.Second) // on to the next request, after the last write's deadline
		if got := g.chat(streamBody("m")); got.err != nil || got.body != want {
			t.Errorf("next request: error %v, %d bytes, want %d", got.err, len(got.body), len(want))
		}
		if backend.Count() != 2 || g.attempts("ok") != 2 {
			t.Errorf("%d attempts, %d of them ok", backend.Count(), g.attempts("ok"))
		}
	})
}

// TestSlowReaderOfAnError: a client that does not even read the error event
// holds its request open for five seconds and no longer.
func TestSlowReaderOfAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := twins(t, withTimeouts("client_write: 60s"), always(fakellm.Stream(), fakellm.Send(helloChunk), fakellm.CutClean()))
		conn, err := g.net.DialContext(t.Context(), "tcp", gatewayAddr)
		if err != nil {
			t.Fatal(err)
		}
		sendStream(conn)
		whole, err := io.ReadAll(closeAtEnd{conn})
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()

		g.net.SetWindow(len(whole) - 20) // ends within the error event
		silent, err := g.net.DialContext(t.Context(), "tcp", gatewayAddr)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		sendStream(silent)
		synctest.Wait()
		g.net.SetWindow(64 << 10)
		inFlight := func() string { return g.metric(`firsttoken_requests_in_flight{model="m"}`) }
		time.Sleep(4 * time.Second)
		if n := inFlight(); n != "1" {
			t.Fatalf("%s requests in flight, want one that waits for its client", n)
		}
		time.Sleep(2 * time.Second)
		if n := inFlight(); n != "0" {
			t.Errorf("%s requests still wait for a client that reads no error", n)
		}
	})
}

// TestManyStreams holds 2,000 streams open at once and lets them end in every
// way. Not a goroutine, connection or count is left.
func TestManyStreams(t *testing.T) {
	const streams = 2000
	synctest.Test(t, func(t *testing.T) {
		engine := newBareEngine()
		g := startGateway(t, configFor(lenient, "a:8000"), nil)
		ln, err := g.net.Listen("a:8000")
		if err != nil {
			t.Fatal(err)
		}
		defer engine.close(ln)
		go engine.accept(ln)
		synctest.Wait()
		before, _ := goroutines()

		clients := make([]net.Conn, streams)
		for i := range clients {
			clients[i] = openStream(t, g)
		}
		synctest.Wait()
		if n := g.metric(`firsttoken_backend_in_flight{backend="a"}`); n != fmt.Sprint(streams) {
			t.Errorf("%s streams in flight, want %d", n, streams)
		}
		g.client.CloseIdleConnections()

		ended := endStreams(t, engine, clients)
		synctest.Wait()
		time.Sleep(5 * time.Minute) // idle connections go
		synctest.Wait()             // and whatever else is due now has run
		if after, stacks := goroutines(); after > before {
			t.Errorf("%d goroutines, %d before the streams\n%s", after, before, stacks)
		}
		if n := g.metric(`firsttoken_backend_in_flight{backend="a"}`); n != "0" {
			t.Errorf("%s streams in flight at the end", n)
		}
		if n := g.metric(`firsttoken_requests_in_flight{model="m"}`); n != "0" {
			t.Errorf("%s requests in flight at the end", n)
		}
		reasons := map[string]int{}
		for _, line := range g.access() {
			reasons[line["reason"].(string)]++
		}
		for reason, n := range ended {
			if reasons[reason] != n {
				t.Errorf("requests by reason %v, want %v", reasons, ended)
				break
			}
		}
	})
}

// goroutines counts those of a test's bubble: the runtime starts others for a
// moment, as for finalizers.
func goroutines() (n int, stacks string) {
	buf := make([]byte, 1<<20)
	stacks = string(buf[:runtime.Stack(buf, true)])
	return strings.Count(stacks, "synctest bubble "), stacks
}

// bareEngine serves one stream on each connection without a goroutine for it:
// the race detector allows 8,128 of them, and the gateway needs four a stream.
type bareEngine struct {
	mu    sync.Mutex
	conns []net.Conn
	done  chan struct{}
}

func newBareEngine() *bareEngine { return &bareEngine{done: make(chan struct{})} }

func (e *bareEngine) accept(ln net.Listener) {
	defer close(e.done)
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		if req, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			_, _ = io.Copy(io.Discard, req.Body)
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"+inChunk(roleChunk+helloChunk))
		e.mu.Lock()
		e.conns = append(e.conns, conn)
		e.mu.Unlock()
	}
}

func (e *bareEngine) close(ln net.Listener) {
	ln.Close()
	<-e.done
	for _, conn := range e.conns {
		conn.Close()
	}
}

func inChunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// openStream opens a stream and reads up to its first token.
func openStream(t *testing.T, g *gateway) net.Conn {
	t.Helper()
	conn, err := g.net.DialContext(t.Context(), "tcp", gatewayAddr)
	if err != nil {
		t.Fatal(err)
	}
	sendStream(conn)
	buf := make([]byte, 4096)
	for got := ""; !strings.Contains(got, helloChunk); {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("error %v after %q", err, got)
		}
		got += string(buf[:n])
	}
	return conn
}

// sendStream sends a request without waiting for its answer.
func sendStream(conn net.Conn) {
	body := streamBody("m")
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// endStreams ends a quarter of the streams with [DONE], a quarter by cutting
// them, a quarter by a reset and a quarter by the client's leaving. It returns
// how many requests must have ended for which reason.
func endStreams(t *testing.T, e *bareEngine, clients []net.Conn) map[string]int {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.conns) != len(clients) {
		t.Fatalf("%d streams on the engine, want %d", len(e.conns), len(clients))
	}
	ended := map[string]int{}
	for i, conn := range e.conns {
		switch i % 4 {
		case 0:
			_, _ = io.WriteString(conn, inChunk(stopChunk+doneEvent)+"0\r\n\r\n")
			ended["ok"]++
		case 1:
			_, _ = io.WriteString(conn, "0\r\n\r\n")
			ended["stream_truncated"]++
		case 2:
			_ = conn.(interface{ Reset() error }).Reset()
			ended["connection_lost"]++
		case 3: // conns are in the order of the clients
			clients[i].Close()
			ended["client_left"]++
		}
	}
	for i, client := range clients {
		if i%4 == 3 {
			continue
		}
		answer, err := io.ReadAll(closeAtEnd{client})
		if err != nil {
			t.Fatal(err)
		}
		if done := strings.Contains(string(answer), "[DONE]"); done != (i%4 == 0) || strings.Contains(string(answer), "upstream_error") == done {
			t.Fatalf("stream %d ended with %q", i, answer)
		}
		client.Close()
	}
	return ended
}

// closeAtEnd reads a chunked answer up to its last chunk.
type closeAtEnd struct{ net.Conn }

func (c closeAtEnd) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && strings.HasSuffix(string(p[:n]), "0\r\n\r\n") {
		err = io.EOF
	}
	return n, err
}
