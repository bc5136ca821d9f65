package app_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/memnet"
)

// ready is what a load balancer sees of the gateway.
func (g *gateway) ready() bool {
	resp, err := g.client.Get("http://operator:8081/readyz")
	if err != nil {
		return false
	}
	return readAnswer(resp).status == 200
}

// term stops the gateway as SIGTERM does.
func (g *gateway) term() { g.stop(app.Stop{}) }

// ended waits for the gateway's end and returns when it was.
func (g *gateway) ended() time.Time {
	g.t.Helper()
	if err := <-g.done; err != nil {
		g.t.Errorf("gateway ended with %v", err)
	}
	g.done <- nil
	return time.Now()
}

// A rolling restart behind a load balancer that notices the red readiness with
// its next check and goes on sending until then, on old and new connections.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{Script: always(fakellm.Tokens(10, time.Second, time.Second)...)}
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": backend})

		var clients sync.WaitGroup
		var mu sync.Mutex
		inRotation, sent, lastSent := true, 0, time.Time{}
		client := func() bool {
			mu.Lock()
			defer mu.Unlock()
			if inRotation {
				sent++
				lastSent = time.Now()
			}
			return inRotation
		}
		clients.Go(func() { // the balancer's health check
			for g.ready() {
				time.Sleep(4 * time.Second)
			}
			mu.Lock()
			defer mu.Unlock()
			inRotation = false
		})
		clients.Go(func() {
			for client() {
				clients.Go(func() {
					if got := g.chat(streamBody("m")); got.status != 200 || got.err != nil || !strings.HasSuffix(got.body, doneEvent) {
						t.Errorf("a stream failed: %d %v %.80q", got.status, got.err, got.body)
					}
				})
				time.Sleep(250 * time.Millisecond)
			}
		})

		time.Sleep(31 * time.Second)
		g.term()
		synctest.Wait()
		if g.ready() {
			t.Error("still ready after SIGTERM")
		}
		if got := g.operator("/healthz"); got.status != 200 {
			t.Errorf("liveness %d", got.status)
		}
		begun := time.Now()
		ended := g.ended()
		clients.Wait()
		if over := lastSent.Add(10 * time.Second); ended.Before(over) || ended.After(over.Add(time.Second)) {
			t.Errorf("ended %v after SIGTERM; the last stream was over at %v", ended.Sub(begun), over.Sub(begun))
		}
		if sent < 100 || backend.Count() != sent {
			t.Errorf("%d requests sent, %d arrived", sent, backend.Count())
		}
		if _, err := g.net.DialContext(t.Context(), "tcp", gatewayAddr); err == nil {
			t.Error("still listening")
		}
	})
}

// Requests are accepted for exactly the configured time, and their clients are
// asked to use another connection next.
func TestDrainAccepts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor(quiet+"\ndrain: {accept: 5s, limit: 10s}", "a:8000"), map[string]http.Handler{"a:8000": &fakellm.Backend{}})
		idle := g.rawClient()
		idle.send(t, rawPost(plainBody("m")))
		if got := idle.answer(t); got.status != 200 || got.last {
			t.Fatalf("%d, closed: %v", got.status, got.last)
		}
		g.term()
		time.Sleep(5*time.Second - time.Millisecond)
		if got := g.exchange(rawPost(plainBody("m"))); got.status != 200 || !got.last {
			t.Errorf("on a new connection: %d, closed: %v", got.status, got.last)
		}
		idle.send(t, rawPost(plainBody("m")))
		if got := idle.answer(t); got.status != 200 || !got.last {
			t.Errorf("on an old connection: %d, closed: %v", got.status, got.last)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if _, err := g.net.DialContext(t.Context(), "tcp", gatewayAddr); err == nil {
			t.Error("still accepting after 5s")
		}
	})
}

func TestDrainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": playing(fakellm.Tokens(4, 0, time.Second)...)})
		resp := g.stream(t.Context())
		start := time.Now()
		g.stop(app.Stop{AtOnce: true})
		synctest.Wait()
		if _, err := g.net.DialContext(t.Context(), "tcp", gatewayAddr); err == nil {
			t.Error("still accepting")
		}
		if got := readAnswer(resp); !strings.HasSuffix(got.body, doneEvent) {
			t.Errorf("stream ended with %q", got.body)
		}
		if d := g.ended().Sub(start); d < 3*time.Second || d > 4*time.Second {
			t.Errorf("ended after %v", d)
		}
	})
}

func TestDrainDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := playing(fakellm.Tokens(100, 500*time.Millisecond, time.Second)...)
		b := playing(fakellm.Hang())
		text := strings.Replace(configFor(quiet+"\ndrain: {accept: 2s, limit: 7s}", "a:8000"), "server: {", "server: {read_body_timeout: 1h, ", 1) +
			"  - name: n\n    backends: [{name: b, url: \"http://b:8000\"}]\n"
		g := startGateway(t, text, map[string]http.Handler{"a:8000": a, "b:8000": b})
		start := time.Now()
		limit := start.Add(9 * time.Second)

		var clients sync.WaitGroup
		clients.Go(func() {
			got := g.chat(streamBody("m"))
			if time.Now() != limit {
				t.Errorf("the stream ended after %v", time.Since(start))
			}
			whole := roleAndTokens(9)
			if n := len(eventData(got.body)); n != whole+1 {
				t.Errorf("%d events, want %d and an error", n, whole)
			}
			if got.err != nil || strings.Contains(got.body, "[DONE]") {
				t.Errorf("%v %q", got.err, got.body)
			}
			checkError(t, eventData(got.body)[whole], "gateway_draining")
		})
		clients.Go(func() {
			got := g.chat(plainBody("n"))
			if e := errorIn(t, got.body); got.status != 503 || e.Code != "gateway_draining" || got.header.Get("Retry-After") == "" || time.Now() != limit {
				t.Errorf("%d %v %v after %v", got.status, e, got.header, time.Since(start))
			}
		})
		stuck := g.rawClient() // its body never comes
		stuck.send(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\n{")

		synctest.Wait()
		g.term()
		if d := g.ended().Sub(limit); d < 2*time.Second || d > 3*time.Second {
			t.Errorf("ended %v after the limit; a request that cannot be told gets 2s", d)
		}
		clients.Wait()
		if a.InFlight()+b.InFlight() != 0 {
			t.Error("engines still work")
		}
		lines := g.access()
		if len(lines) != 3 {
			t.Errorf("%d requests were logged before the end, want 3", len(lines))
		}
		for _, line := range lines {
			if line["model"] != nil && line["reason"] != "gateway_draining" {
				t.Errorf("access line %v", line)
			}
		}
		for _, line := range g.log.lines(t) {
			if line["level"] == "error" {
				t.Errorf("logged as an error: %v", line)
			}
		}
	})
}

// roleAndTokens is how many events a stream has whose n-th token just came.
func roleAndTokens(n int) int { return 1 + n }

// No drain limit means that streams are waited for, however long they take.
func TestDrainWithoutLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor(quiet+"\ndrain: {accept: off, limit: off}", "a:8000"),
			map[string]http.Handler{"a:8000": playing(fakellm.Tokens(200, time.Second, 30*time.Second)...)})
		resp := g.stream(t.Context())
		g.term()
		if got := readAnswer(resp); !strings.HasSuffix(got.body, doneEvent) {
			t.Errorf("stream ended with %q", got.body)
		}
		g.ended()
	})
}

func TestReloadWhileDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor("", "a:8000"), map[string]http.Handler{"a:8000": &fakellm.Backend{}})
		g.term()
		synctest.Wait()
		if err := g.reload(configFor("", "a:8000", "b:8000")); err == nil {
			t.Error("a draining gateway was reloaded")
		}
		g.ended()
		if err := g.reload(configFor("", "a:8000")); err == nil {
			t.Error("a stopped gateway was reloaded")
		}
	})
}

// failingListener fails its first Accept after fail is closed.
type failingListener struct {
	net.Listener
	fail chan struct{}
}

func (l failingListener) Accept() (net.Conn, error) {
	type accepted struct {
		conn net.Conn
		err  error
	}
	got := make(chan accepted, 1)
	go func() {
		conn, err := l.Listener.Accept()
		got <- accepted{conn, err}
	}()
	select {
	case a := <-got:
		return a.conn, a.err
	case <-l.fail:
		return nil, errors.New("out of luck")
	}
}

func TestListenerFails(t *testing.T) {
	for _, which := range []string{gatewayAddr, "operator:8081"} {
		t.Run(which, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGateway(t)
				g.serveBackend("a:8000", playing(fakellm.Tokens(5, time.Second, time.Second)...))
				cfg, err := config.Parse("test.yaml", []byte(configFor(quiet, "a:8000")), ".", nil)
				if err != nil {
					t.Fatal(err)
				}
				fail := make(chan struct{})
				a, err := app.New(cfg, app.Options{Dial: g.dial, Log: g.log, Listen: func(_, addr string) (net.Listener, error) {
					ln, err := g.net.Listen(addr)
					if addr == which {
						ln = failingListener{ln, fail}
					}
					return ln, err
				}})
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- a.Run(t.Context()) }()
				g.client = &http.Client{Transport: &http.Transport{DialContext: g.net.DialContext}}
				defer g.client.CloseIdleConnections()
				resp := g.stream(t.Context())
				close(fail)
				if got := readAnswer(resp); !strings.HasSuffix(got.body, doneEvent) {
					t.Errorf("a stream was cut: %q", got.body)
				}
				if err := <-done; err == nil || !strings.Contains(err.Error(), "out of luck") {
					t.Errorf("Run returned %v", err)
				}
			})
		})
	}
}

func TestNewFails(t *testing.T) {
	for _, taken := range []string{gatewayAddr, "operator:8081"} {
		network := memnet.New()
		ln, err := network.Listen(taken)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Parse("test.yaml", []byte(configFor("", "a:8000")), ".", nil)
		if err != nil {
			t.Fatal(err)
		}
		listen := func(_, addr string) (net.Listener, error) { return network.Listen(addr) }
		if _, err := app.New(cfg, app.Options{Listen: listen}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", taken)) {
			t.Errorf("New returned %v", err)
		}
		_ = ln.Close()
		for _, addr := range []string{gatewayAddr, "operator:8081"} { // both are free again
			ln, err := network.Listen(addr)
			if err != nil {
				t.Fatal(err)
			}
			_ = ln.Close()
		}
	}
}

// A client that does not go away by itself doesn't keep a stopped gateway alive.
func TestStopEndsIdleClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor("", "a:8000"), map[string]http.Handler{"a:8000": &fakellm.Backend{}})
		silent := g.rawClient()
		half := g.rawClient()
		half.send(t, "POST /v1/chat/compl")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		synctest.Wait()
		g.stop(app.Stop{AtOnce: true})
		select {
		case err := <-g.done:
			g.done <- err
		case <-ctx.Done():
			t.Error("still running")
		}
		_ = silent
	})
}
