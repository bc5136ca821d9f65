package memnet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/memnet"
)

// network is what the cases below need of memnet and of the kernel's TCP.
type network struct {
	listen func() (net.Listener, error)
	dial   func(addr string) (net.Conn, error)
}

// onBoth runs a case over memnet and over TCP, so that the first cannot drift
// away from the second.
func onBoth(t *testing.T, run func(t *testing.T, n network)) {
	t.Run("memnet", func(t *testing.T) {
		n := memnet.New()
		run(t, network{
			listen: func() (net.Listener, error) { return n.Listen("backend:80") },
			dial:   func(addr string) (net.Conn, error) { return n.DialContext(context.Background(), "tcp", addr) },
		})
	})
	t.Run("tcp", func(t *testing.T) {
		run(t, network{
			listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
			dial:   func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) },
		})
	})
}

func (n network) pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := n.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = n.dial(l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
		t.Fatalf("Write(%q) = %d, %v", s, n, err)
	}
}

func wantBytes(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

// wantError also checks the shape: all but io.EOF are *net.OpError.
func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
	var op *net.OpError
	if want != io.EOF && !errors.As(err, &op) {
		t.Fatalf("error %#v is no *net.OpError", err)
	}
}

func wantReadError(t *testing.T, c net.Conn, want error) {
	t.Helper()
	n, err := c.Read(make([]byte, 8))
	if n != 0 {
		t.Fatalf("read %d bytes, want %v", n, want)
	}
	wantError(t, err, want)
}

func reset(t *testing.T, c net.Conn) {
	t.Helper()
	var err error
	switch c := c.(type) {
	case *memnet.Conn:
		err = c.Reset()
	case *net.TCPConn:
		err = errors.Join(c.SetLinger(0), c.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAddresses(t *testing.T) {
	onBoth(t, func(t *testing.T, n network) {
		client, server := n.pair(t)
		if client.LocalAddr().String() != server.RemoteAddr().String() || client.RemoteAddr().String() != server.LocalAddr().String() {
			t.Errorf("client %v→%v, server %v→%v", client.LocalAddr(), client.RemoteAddr(), server.LocalAddr(), server.RemoteAddr())
		}
		if host, _, err := net.SplitHostPort(server.RemoteAddr().String()); err != nil || net.ParseIP(host) == nil {
			t.Errorf("client address %v is not ip:port", server.RemoteAddr())
		}
	})
}

func TestDialRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, n network) {
		l, err := n.listen()
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		_, err = n.dial(l.Addr().String())
		wantError(t, err, syscall.ECONNREFUSED)
		var op *net.OpError
		if errors.As(err, &op); op.Op != "dial" || op.Addr.String() != l.Addr().String() {
			t.Errorf("error is about %q to %v", op.Op, op.Addr)
		}
	})
}

func TestListenerClose(t *testing.T) {
	onBoth(t, func(t *testing.T, n network) {
		l, err := n.listen()
		if err != nil {
			t.Fatal(err)
		}
		waiting, err := n.dial(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer waiting.Close()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantReadError(t, waiting, syscall.ECONNRESET)
		_, err = l.Accept()
		wantError(t, err, net.ErrClosed)
		wantError(t, l.Close(), net.ErrClosed)
	})
}

func TestHalfClose(t *testing.T) {
	onBoth(t, func(t *testing.T, n network) {
		client, server := n.pair(t)
		write(t, client, "question")
		if err := client.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		wantBytes(t, server, "question")
		wantReadError(t, server, io.EOF)
		write(t, server, "answer")
		wantBytes(t, client, "answer")
		_, err := client.Write([]byte("more"))
		wantError(t, err, syscall.EPIPE)
	})
}

func TestClose(t *testing.T) {
	onBoth(t, func(t *testing.T, n network) {
		client, server := n.pair(t)
		write(t, client, "last words")
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		wantReadError(t, client, net.ErrClosed)
		_, err := client.Write([]byte("x"))
		wantError(t, err, net.ErrClosed)
		wantError(t, client.Close(), net.ErrClosed)
		wantError(t, client.SetReadDeadline(time.Now()), net.ErrClosed)
		wantBytes(t, server, "last words")
		wantReadError(t, server, io.EOF)
	})
}

func TestCloseWithUnreadBytesResets(t *testing.T) {
	onBoth(t, func(t *testing.T, n network) {
		client, server := n.pair(t)
		write(t, client, "ab")
		wantBytes(t, server, "a")
		server.Close()
		wantReadError(t, client, syscall.ECONNRESET)
	})
}

func TestResetComesAfterTheBytes(t *testing.T) {
	onBoth(t, func(t *testing.T, n network) {
		client, server := n.pair(t)
		write(t, server, "partial")
		reset(t, server)
		wantBytes(t, client, "partial")
		wantReadError(t, client, syscall.ECONNRESET)
	})
}

func TestDeadlines(t *testing.T) {
	onBoth(t, func(t *testing.T, n network) {
		client, server := n.pair(t)
		write(t, server, "here")
		past := time.Now().Add(-time.Second)
		if err := client.SetDeadline(past); err != nil {
			t.Fatal(err)
		}
		wantReadError(t, client, os.ErrDeadlineExceeded) // though bytes wait
		_, err := client.Write([]byte("x"))
		wantError(t, err, os.ErrDeadlineExceeded)
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%v is no timeout", err)
		}
		if err := client.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		wantBytes(t, client, "here")
		write(t, client, "there")
		wantBytes(t, server, "there")
	})
}
