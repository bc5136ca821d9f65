package memnet_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/memnet"
)

// serve runs handler on n as http://backend and returns a client. Both are
// closed when the bubble's test ends; a goroutine that stayed would make
// synctest fail the test.
func serve(t *testing.T, n *memnet.Network, handler http.HandlerFunc) *http.Client {
	t.Helper()
	l, err := n.Listen("backend:80")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	transport := &http.Transport{DialContext: n.DialContext}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return &http.Client{Transport: transport}
}

func TestHTTPStreamKeepsItsTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := serve(t, memnet.New(), func(w http.ResponseWriter, r *http.Request) {
			for i := range 5 {
				time.Sleep(300 * time.Millisecond)
				fmt.Fprintf(w, "line %d\n", i)
				http.NewResponseController(w).Flush()
			}
		})
		start := time.Now()
		resp, err := client.Get("http://backend/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for i := range 5 {
			if !lines.Scan() || lines.Text() != fmt.Sprint("line ", i) {
				t.Fatalf("line %d is %q, %v", i, lines.Text(), lines.Err())
			}
			wantElapsed(t, start, time.Duration(i+1)*300*time.Millisecond)
		}
	})
}

func TestHTTPWithLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		n.SetLatency(10 * time.Millisecond)
		client := serve(t, n, func(w http.ResponseWriter, r *http.Request) {})
		for _, want := range []time.Duration{40 * time.Millisecond, 20 * time.Millisecond} { // dial, then reuse
			start := time.Now()
			resp, err := client.Get("http://backend/")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			wantElapsed(t, start, want)
		}
	})
}

// The handler answers before it reads: an unbuffered pipe would stop both.
func TestHTTPLargeBodiesCross(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := bytes.Repeat([]byte("token "), 50_000)
		client := serve(t, memnet.New(), func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).EnableFullDuplex()
			io.Copy(w, r.Body)
		})
		resp, err := client.Post("http://backend/", "text/plain", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, body) {
			t.Errorf("echo of %d bytes, %v", len(got), err)
		}
	})
}

func TestHTTPClientLeavesAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan time.Time, 1)
		client := serve(t, memnet.New(), func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			left <- time.Now()
		})
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "GET", "http://backend/", nil)
		if _, err := client.Do(req); err == nil {
			t.Fatal("no error after the deadline")
		}
		if got := (<-left).Sub(start); got != 700*time.Millisecond {
			t.Errorf("handler saw the client leave after %v", got)
		}
	})
}

func TestHTTPServerTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		l, err := n.Listen("backend:80")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{ReadHeaderTimeout: 2 * time.Second}
		go server.Serve(l)
		defer server.Close()
		conn, err := n.DialContext(t.Context(), "tcp", "backend:80")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		start := time.Now()
		write(t, conn, "GET / HTTP/1.1\r\nHost: ")
		io.Copy(io.Discard, conn)
		wantElapsed(t, start, 2*time.Second)
	})
}

func TestHTTPShutdownWaitsForStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		l, err := n.Listen("backend:80")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(3 * time.Second)
			io.WriteString(w, "done")
		})}
		go server.Serve(l)
		shutdown := make(chan error, 1)
		time.AfterFunc(time.Second, func() { shutdown <- server.Shutdown(context.Background()) })

		transport := &http.Transport{DialContext: n.DialContext}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get("http://backend/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "done" {
			t.Errorf("got %q, %v", got, err)
		}
		if err := <-shutdown; err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
}

func TestHTTPResetMidBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := serve(t, memnet.New(), func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "half a li")
			rc := http.NewResponseController(w)
			rc.Flush()
			conn, _, err := rc.Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			conn.(*memnet.Conn).Reset()
		})
		resp, err := client.Get("http://backend/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		if string(got) != "half a li" || err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("read %q, %v", got, err)
		}
	})
}
