package memnet_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/memnet"
)

func pair(t *testing.T, n *memnet.Network) (client, server *memnet.Conn) {
	t.Helper()
	c, s := network{
		listen: func() (net.Listener, error) { return n.Listen("backend:80") },
		dial:   func(addr string) (net.Conn, error) { return n.DialContext(t.Context(), "tcp", addr) },
	}.pair(t)
	return c.(*memnet.Conn), s.(*memnet.Conn)
}

func wantElapsed(t *testing.T, since time.Time, want time.Duration) {
	t.Helper()
	if got := time.Since(since); got != want {
		t.Errorf("took %v, want %v", got, want)
	}
}

func TestListenTwice(t *testing.T) {
	n := memnet.New()
	l, err := n.Listen("backend:80")
	if err != nil {
		t.Fatal(err)
	}
	_, err = n.Listen("backend:80")
	wantError(t, err, syscall.EADDRINUSE)
	l.Close()
	if l, err = n.Listen("backend:80"); err != nil {
		t.Fatalf("a closed listener keeps its address: %v", err)
	}
	l.Close()
}

func TestFullWindowBlocksWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		n.SetWindow(4)
		client, server := pair(t, n)
		start := time.Now()
		write(t, client, "1234")
		wantElapsed(t, start, 0)

		time.AfterFunc(3*time.Second, func() { server.Read(make([]byte, 2)) })
		write(t, client, "56")
		wantElapsed(t, start, 3*time.Second)
		wantBytes(t, server, "3456")
	})
}

func TestBlockedWriteEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(client, server *memnet.Conn)
		want error
	}{
		"peer closes":    {func(_, server *memnet.Conn) { server.Close() }, syscall.ECONNRESET},
		"peer resets":    {func(_, server *memnet.Conn) { server.Reset() }, syscall.ECONNRESET},
		"own close":      {func(client, _ *memnet.Conn) { client.Close() }, net.ErrClosed},
		"own half-close": {func(client, _ *memnet.Conn) { client.CloseWrite() }, syscall.EPIPE},
		"deadline":       {func(client, _ *memnet.Conn) { client.SetWriteDeadline(time.Now()) }, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := memnet.New()
				n.SetWindow(4)
				client, server := pair(t, n)
				time.AfterFunc(time.Second, func() { c.end(client, server) })
				start := time.Now()
				sent, err := client.Write([]byte("123456"))
				wantError(t, err, c.want)
				wantElapsed(t, start, time.Second)
				if sent < 4 {
					t.Errorf("Write reports %d bytes, 4 were taken", sent)
				}
			})
		})
	}
}

func TestReadDeadlineMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, memnet.New())
		start := time.Now()
		client.SetReadDeadline(start.Add(time.Second))
		wantReadError(t, client, os.ErrDeadlineExceeded)
		wantElapsed(t, start, time.Second)

		client.SetReadDeadline(start.Add(2 * time.Second))
		time.AfterFunc(500*time.Millisecond, func() { client.SetReadDeadline(start.Add(5 * time.Second)) })
		wantReadError(t, client, os.ErrDeadlineExceeded)
		wantElapsed(t, start, 5*time.Second)

		client.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Hour, func() { write(t, server, "late") })
		wantBytes(t, client, "late")
	})
}

func TestLatency(t *testing.T) {
	const latency = 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		n.SetLatency(latency)
		start := time.Now()
		client, server := pair(t, n)
		wantElapsed(t, start, 2*latency)

		start = time.Now()
		write(t, client, "ping")
		wantElapsed(t, start, 0)
		wantBytes(t, server, "ping")
		wantElapsed(t, start, latency)

		start = time.Now()
		for range 100 { // at one instant: bytes and their end keep their order
			write(t, server, "tick")
		}
		server.Close()
		got, err := io.ReadAll(client)
		if err != nil || !bytes.Equal(got, bytes.Repeat([]byte("tick"), 100)) {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
		wantElapsed(t, start, latency)
	})
}

func TestWriteIsLostUntilCloseArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		n.SetLatency(time.Second)
		client, server := pair(t, n)
		server.Close()
		write(t, client, "crosses the close on the way")
		wantReadError(t, client, io.EOF)
		synctest.Wait()
		_, err := client.Write([]byte("x"))
		wantError(t, err, syscall.EPIPE)
	})
}

func TestDialHonoursContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		n.SetLatency(time.Hour)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := n.DialContext(ctx, "tcp", "backend:80")
		wantError(t, err, context.DeadlineExceeded)
		wantElapsed(t, start, time.Second)
	})
}

// Whatever the sizes of window, writes and reads, the reader gets the bytes of
// the writer.
func TestBytesCrossUnchanged(t *testing.T) {
	for _, window := range []int{1, 7, 1024, 64 << 10} {
		for _, latency := range []time.Duration{0, time.Millisecond} {
			t.Run(fmt.Sprint(window, latency), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := memnet.New()
					n.SetWindow(window)
					n.SetLatency(latency)
					client, server := pair(t, n)
					rng := rand.New(rand.NewPCG(uint64(window), uint64(latency)))
					want := make([]byte, min(16*window, 256<<10))
					for i := range want {
						want[i] = byte(rng.Uint32())
					}
					go func() {
						for rest := want; len(rest) > 0; {
							size := min(len(rest), 1+rng.IntN(2*window))
							client.Write(rest[:size])
							rest = rest[size:]
						}
						client.Close()
					}()
					got, err := io.ReadAll(server)
					if err != nil || !bytes.Equal(got, want) {
						t.Errorf("got %d of %d bytes, or others; %v", len(got), len(want), err)
					}
				})
			})
		}
	}
}

func TestConcurrentWritesStayWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		n.SetWindow(3)
		client, server := pair(t, n)
		const writers, size = 8, 50
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() { client.Write(bytes.Repeat([]byte{'a' + byte(w)}, size)) })
		}
		go func() {
			wg.Wait()
			client.Close()
		}()
		got, _ := io.ReadAll(server)
		if len(got) != writers*size {
			t.Fatalf("read %d bytes", len(got))
		}
		for part := range slices.Chunk(got, size) {
			if !bytes.Equal(part, bytes.Repeat(part[:1], size)) {
				t.Fatalf("writes are mixed: %q", part)
			}
		}
	})
}
