package edge

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// ErrMalformedBody is what reading a chunked request body fails with when its
// framing is wrong: answer 400. Nothing more is served on that connection.
var ErrMalformedBody = errors.New("malformed request body")

// guard knows whether what a client sent on one connection so far is well
// framed. net/http hides from handlers what smuggling is made of (folded lines,
// bare LF, both lengths, ...), so the guard reads the same bytes just before
// net/http does. By the time a handler runs, the guard has seen at least the
// whole head of that request.
//
// The first fault is final, and no request that starts after it was seen is
// served, not even a good one that was pipelined in front of the bad one: that
// holds whatever part of the requests passes by admit.
//
// Bytes are fed by one goroutine at a time; everything else may be called from
// any goroutine.
type guard struct {
	framing framing // of the reading goroutine
	state   atomic.Uint64
	taken   atomic.Uint64
	phase   atomic.Uint32
	cut     atomic.Bool
	late    atomic.Bool // the last read waited for a request in vain
}

// Phases of a connection, as far as its writes are concerned.
const (
	phaseIdle      = iota // no handler has run since the last answer was written
	phaseHandling         // a handler runs
	phaseFinishing        // net/http writes what the handler left
)

// Layout of guard.state: the fault, whether it lies in a body, and the clean heads.
const (
	stateFault  = 1<<8 - 1
	stateInBody = 1 << 8
	stateHeads  = 9
)

// observe takes the bytes that net/http is about to read.
func (g *guard) observe(b []byte) {
	f := &g.framing
	if f.fault != noFault {
		return
	}
	heads := f.heads
	f.feed(b)
	if f.heads == heads && f.fault == noFault {
		return
	}
	state := f.heads<<stateHeads | uint64(f.fault)
	if f.fault != noFault && f.inBody {
		state |= stateInBody
	}
	g.state.Store(state)
}

// admit gives the verdict on the request whose handler starts now. Call it once
// for each request.
func (g *guard) admit() fault {
	nth := g.taken.Add(1)
	state := g.state.Load()
	if why := fault(state & stateFault); why != noFault {
		return why
	}
	if nth > state>>stateHeads {
		return faultLost // net/http sees a request where the guard sees none
	}
	return noFault
}

// bodyFault says whether the connection was lost inside a body.
func (g *guard) bodyFault() bool {
	return g.state.Load()&stateInBody != 0
}

// hangUp makes every later read of the connection report its end, so that
// net/http closes it without waiting for the rest of a refused body.
func (g *guard) hangUp() { g.cut.Store(true) }

type guardKey struct{}

// connContext is an http.Server.ConnContext hook: it hands the guard of a
// connection from Listener to Chain.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	guarded, ok := conn.(*guardConn)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, guardKey{}, &guarded.guard)
}

// refuseFaults answers 400, or what fits the fault better, to a request that is
// not well framed, and watches over the body of one that is.
func refuseFaults(next http.Handler, errw ErrorWriter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g, ok := r.Context().Value(guardKey{}).(*guard)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		g.phase.Store(phaseHandling)
		defer g.phase.Store(phaseFinishing)
		if why := g.admit(); why != noFault {
			g.hangUp()
			refuse(w, r, errw, why.status(), why.code(), why.message())
			return
		}
		if r.ContentLength < 0 {
			r.Body = &guardedBody{body: r.Body, guard: g}
		}
		next.ServeHTTP(w, r)
	})
}

// guardedBody is a chunked body that fails where the guard is stricter than
// net/http.
type guardedBody struct {
	body  io.ReadCloser
	guard *guard
}

func (b *guardedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if b.guard.bodyFault() {
		return n, ErrMalformedBody
	}
	return n, err
}

func (b *guardedBody) Close() error { return b.body.Close() }

// Listener returns ln with a guard on each connection. It serves plain
// HTTP/1.0 and HTTP/1.1: put TLS below it. Where net/http answers a malformed
// request by itself, without any handler, the answer is written by errw instead.
func Listener(ln net.Listener, opts Options, errw ErrorWriter) net.Listener {
	return &guardListener{Listener: ln, opts: opts.withDefaults(), errw: errw}
}

type guardListener struct {
	net.Listener
	opts Options
	errw ErrorWriter
}

func (l *guardListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	guarded := &guardConn{Conn: conn, listener: l}
	guarded.guard.framing.maxHead = l.opts.MaxHeaderBytes
	return guarded, nil
}

// guardConn is a connection that shows its guard all it reads. Bytes pass
// through unchanged and at once.
type guardConn struct {
	net.Conn
	listener *guardListener
	guard    guard
}

func (c *guardConn) Read(p []byte) (int, error) {
	if c.guard.cut.Load() {
		return 0, io.EOF
	}
	n, err := c.Conn.Read(p)
	c.guard.observe(p[:n])
	// While a handler runs, an elapsed deadline is how net/http takes a read back.
	c.guard.late.Store(errors.Is(err, os.ErrDeadlineExceeded) && c.guard.phase.Load() == phaseIdle)
	return n, err
}

// Write passes p on, unless p is an answer of net/http's own.
func (c *guardConn) Write(p []byte) (int, error) {
	if c.guard.phase.Load() != phaseIdle {
		return c.Conn.Write(p)
	}
	status, ok := ownAnswer(p)
	if !ok {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(c.errorAnswer(status)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// SetWriteDeadline also marks the end of an answer: net/http takes the write
// deadline back once it has written all of it.
func (c *guardConn) SetWriteDeadline(t time.Time) error {
	c.guard.phase.CompareAndSwap(phaseFinishing, phaseIdle)
	return c.Conn.SetWriteDeadline(t)
}

// CloseWrite lets net/http close the sending side first, where there is one.
func (c *guardConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
