package fakellm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Script is the answer to one request, step by step. When it runs out of steps
// the response ends as HTTP wants it to.
type Script []Step

// Step does one thing to the response. An error ends the script: the client
// has left. Any func can be a step.
type Step func(*Response) error

// Response is what steps write to.
type Response struct {
	http.ResponseWriter
	Request *Request
	ctx     context.Context
	begun   bool
}

// errEnd ends a script that has done what it should.
var errEnd = errors.New("script ended")

// Play runs the steps in order until one fails. It is a Step itself, so that
// Script{Wait(d), Tokens(3, 0, 0).Play} is a script.
func (s Script) Play(w *Response) error {
	for _, step := range s {
		if err := step(w); err != nil {
			return err
		}
	}
	return nil
}

// Sequence gives the n-th request the n-th script, and the last one to all
// further requests. It is made for Backend.Script.
func Sequence(scripts ...Script) func(*Request) Script {
	var next atomic.Int64
	return func(*Request) Script {
		return scripts[min(int(next.Add(1)), len(scripts))-1]
	}
}

// Context ends when the client leaves.
func (w *Response) Context() context.Context { return w.ctx }

// WriteHeader sends the header as it is now; only the first call counts.
func (w *Response) WriteHeader(status int) {
	if !w.begun {
		w.begun = true
		w.ResponseWriter.WriteHeader(status)
	}
}

// Send writes b and flushes, so that the client gets it now.
func (w *Response) Send(b string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	w.begun = true
	if _, err := w.Write([]byte(b)); err != nil {
		return err
	}
	return w.flush()
}

func (w *Response) flush() error { return http.NewResponseController(w.ResponseWriter).Flush() }

// event sends s and makes the response an event stream if it has no type yet.
func (w *Response) event(s string) error {
	if h := w.Header(); h.Get("Content-Type") == "" {
		h.Set("Content-Type", "text/event-stream")
	}
	return w.Send(s)
}

// wait returns early, with an error, when the client leaves.
func (w *Response) wait(d time.Duration) error {
	if d <= 0 {
		return w.ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// hijack takes the connection. Nothing is lost by it: steps flush.
func (w *Response) hijack() (net.Conn, error) {
	conn, _, err := http.NewResponseController(w.ResponseWriter).Hijack()
	return conn, err
}

// Header sends the status line and the header at once; the body follows. After
// the first bytes of a response it does nothing, so that it can stand before
// Tokens to say more than its own header does.
func Header(status int, headers http.Header) Step {
	return func(w *Response) error {
		for name, values := range headers {
			w.Header()[name] = values
		}
		w.WriteHeader(status)
		return w.flush()
	}
}

// Stream sends the header of an event stream.
func Stream() Step {
	return Header(http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}})
}

// Wait pauses for d.
func Wait(d time.Duration) Step {
	return func(w *Response) error { return w.wait(d) }
}

// Send writes the parts as they are, each with a flush of its own.
func Send(parts ...string) Step { return sendParts(parts, 0) }

// SplitAt writes data cut at the given offsets, which ascend. The parts are
// flushed one by one, gap apart; without a gap a reader may find several parts
// in one read.
func SplitAt(data string, gap time.Duration, offsets ...int) Step {
	var parts []string
	from := 0
	for _, offset := range offsets {
		parts = append(parts, data[from:offset])
		from = offset
	}
	return sendParts(append(parts, data[from:]), gap)
}

// SplitEvery writes data in parts of size bytes, gap apart; see SplitAt.
func SplitEvery(data string, gap time.Duration, size int) Step {
	var offsets []int
	for offset := size; offset < len(data); offset += size {
		offsets = append(offsets, offset)
	}
	return SplitAt(data, gap, offsets...)
}

func sendParts(parts []string, gap time.Duration) Step {
	return func(w *Response) error {
		for i, part := range parts {
			if i > 0 {
				if err := w.wait(gap); err != nil {
					return err
				}
			}
			if err := w.Send(part); err != nil {
				return err
			}
		}
		return nil
	}
}

// Event sends one SSE event; it implies Stream.
func Event(data string) Step {
	return func(w *Response) error { return w.event(frame(data)) }
}

// Comment sends an SSE comment, which keeps a connection alive; it implies
// Stream.
func Comment(s string) Step {
	return func(w *Response) error { return w.event(": " + s + "\n\n") }
}

// Done sends [DONE], the last event of an OpenAI stream.
func Done() Step { return Event("[DONE]") }

func frame(data string) string { return "data: " + data + "\n\n" }

// Reset resets the connection after what was sent; as the first step, before
// any byte of a response.
func Reset() Step {
	return func(w *Response) error {
		conn, err := w.hijack()
		if err != nil {
			return err
		}
		return endWith(resetConn(conn))
	}
}

// resetConn knows the ways of TCP and of in-memory connections.
func resetConn(conn net.Conn) error {
	switch c := conn.(type) {
	case interface{ Reset() error }:
		return c.Reset()
	case interface{ SetLinger(seconds int) error }:
		return errors.Join(c.SetLinger(0), conn.Close())
	}
	return errors.Join(conn.Close(), fmt.Errorf("cannot reset a %T", conn))
}

// CutClean ends the response here as if it were complete: a stream without
// [DONE]. Steps after it are not played.
func CutClean() Step {
	return func(*Response) error { return errEnd }
}

// CutDirty announces a chunk, sends only partial of it and closes the
// connection. A response with a Content-Length gets partial as it is.
func CutDirty(partial string) Step {
	return func(w *Response) error {
		if err := w.flush(); err != nil { // the header, if there was no step before
			return err
		}
		bytes := partial
		if w.ResponseWriter.Header().Get("Content-Length") == "" {
			bytes = fmt.Sprintf("%x\r\n%s", len(partial)+64, partial)
		}
		return w.closeAfter(bytes)
	}
}

// Close closes the connection after what was sent, between two chunks; as the
// first step, before any byte of a response.
func Close() Step {
	return func(w *Response) error { return w.closeAfter("") }
}

// closeAfter sends bytes of no HTTP framing and closes the connection.
func (w *Response) closeAfter(bytes string) error {
	conn, err := w.hijack()
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte(bytes))
	return endWith(errors.Join(err, conn.Close()))
}

func endWith(err error) error {
	if err != nil {
		return err
	}
	return errEnd
}

// Hang sends nothing more and ends when the client leaves.
func Hang() Step {
	return func(w *Response) error {
		<-w.ctx.Done()
		return w.ctx.Err()
	}
}
