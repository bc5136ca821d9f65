package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/memnet"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

func TestUnreachable(t *testing.T) {
	broken := func(err error) error { return fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", err) }
	rows := []struct {
		err    error
		reason string
	}{
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, reasonDial},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host"}}, reasonDial},
		{&net.OpError{Op: "dial", Err: errDialTimeout}, reasonDialTimeout},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, reasonDial},
		{&tls.CertificateVerificationError{Err: errors.New("unknown authority")}, reasonDial},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, reasonLost},
		{broken(&net.OpError{Op: "write", Err: syscall.EPIPE}), reasonLost},
		{broken(io.EOF), reasonLost},
		{io.ErrUnexpectedEOF, reasonLost},
		{errors.New("http: server closed idle connection"), reasonLost},
		{broken(errors.New(`malformed HTTP response "SECRET"`)), reasonBadResponse},
		{broken(errors.New("malformed MIME header line: SECRET")), reasonBadResponse},
		{errors.New("net/http: server response headers exceeded 262144 bytes; aborted SECRET"), reasonBadResponse},
		{errors.New("invalid byte in chunk length"), reasonBadResponse},
	}
	for _, row := range rows {
		f := unreachable(row.err)
		if f.reason != row.reason || f.class != backends.Fault || !f.retry || f.told.Code != "upstream_"+row.reason {
			t.Errorf("%v is %s (%+v), want %s", row.err, f.reason, f.told, row.reason)
		}
		if strings.Contains(f.details.Error(), "SECRET") || f.details.Error() == "" {
			t.Errorf("%v is logged as %q", row.err, f.details)
		}
	}
}

// What goes wrong below HTTPS is a failed dial, on time and by name.
func TestUnreachableTLS(t *testing.T) {
	for name, row := range map[string]struct {
		serve  func(net.Conn)
		reason string
		after  time.Duration
	}{
		"silent": {func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, reasonDialTimeout, 3 * time.Second},
		"no TLS": {func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		}, reasonDial, 0},
		"hangs up": {func(net.Conn) {}, reasonLost, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := memnet.New()
				ln, err := network.Listen("a:443")
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					if conn, err := ln.Accept(); err == nil {
						row.serve(conn)
						_ = conn.Close()
					}
				}()
				start := time.Now()
				transport := NewTransport(TransportOptions{Dial: 3 * time.Second, IdleConnTimeout: time.Second}, network.DialContext)
				r, err := http.NewRequest(http.MethodGet, "https://a/", nil)
				if err != nil {
					t.Fatal(err)
				}
				_, err = transport.RoundTrip(r)
				if err == nil {
					t.Fatal("no error")
				}
				if f := unreachable(err); f.reason != row.reason || time.Since(start) != row.after {
					t.Errorf("%v is %s after %v, want %s after %v", err, f.reason, time.Since(start), row.reason, row.after)
				}
				_ = ln.Close()
				<-done
			})
		})
	}
}

func TestDialTimeoutIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		_, err := dialWithin(time.Second, hang)(t.Context(), "tcp", "a:1")
		if !errors.Is(err, errDialTimeout) {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := dialWithin(time.Second, hang)(ctx, "tcp", "a:1"); errors.Is(err, errDialTimeout) {
			t.Errorf("a cancelled dial is called %v", err)
		}
	})
}

// Connections to engines are kept, speak HTTP/1.1 and ask for no compression.
func TestTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, backend := memnet.New(), &fakellm.Backend{}
		ln, err := network.Listen("a:80")
		if err != nil {
			t.Fatal(err)
		}
		server := fakellm.Serve(ln, backend)
		defer server.Close()
		transport := NewTransport(TransportOptions{Dial: time.Second, IdleConnTimeout: 4 * time.Second, MaxIdleConns: 8}, network.DialContext)
		for range 3 {
			r, err := http.NewRequest(http.MethodGet, "http://a:80/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(r)
			if err != nil || resp.Proto != "HTTP/1.1" {
				t.Fatalf("%v %v", resp, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		first := backend.Requests()[0]
		for _, r := range backend.Requests() {
			if r.RemoteAddr != first.RemoteAddr || r.Header.Get("Accept-Encoding") != "" {
				t.Errorf("%s %v", r.RemoteAddr, r.Header)
			}
		}
		transport.CloseIdleConnections()
	})
}
