package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

const (
	// holdLimit is how much of an unfinished event is held back. A client can
	// do nothing with a part of an event, and a whole one can still be replaced
	// by an error; a longer event goes on in pieces.
	holdLimit = 64 << 10

	// tailLimit bounds the wait for the end of a response whose stream is
	// over: long enough to get the connection back from an engine that ends
	// it, short enough for the client of one that does not.
	tailLimit = 50 * time.Millisecond
)

// relayStream passes on an event stream: every event unchanged and at once,
// metered on the way.
func (a *attempt) relayStream() *failure {
	s := &stream{attempt: a, buf: a.h.buffers.get(waitingBuffer), hide: a.hides(a.target)}
	defer func() { a.h.buffers.put(s.buf) }()
	f := s.relay()
	if f != nil && s.through && !f.client {
		// What the client is told next must not become part of the event it
		// has a piece of.
		_ = s.write([]byte("\n\n"), ownWriteLimit)
	}
	return f
}

// stream is the state of one relay. buf[:held] are bytes of an unfinished
// event that were read but not yet sent.
type stream struct {
	*attempt
	buf     []byte
	held    int
	hide    bool // usage chunks are the gateway's, not the client's
	through bool // the unfinished event is too long to hold: it goes on in pieces
	endedCR bool // [DONE] ended in a CR; an LF that follows belongs to it
}

func (s *stream) relay() *failure {
	for {
		s.armForRead()
		n, err := s.resp.Body.Read(s.buf[s.held:])
		s.dog.pause()
		if n > 0 {
			full := s.held+n == len(s.buf)
			if f := s.forward(n, err); f != nil {
				return f
			}
			if full && len(s.buf) < busyBuffer { // more was ready: this stream does not wait
				s.grow(busyBuffer)
			}
			if s.meter.Done {
				s.drain(err)
				return s.failedInside()
			}
		}
		if err != nil {
			return s.end(err)
		}
	}
}

// armForRead starts the phase the next read is in: until the first token,
// between events, or after the last one.
func (s *stream) armForRead() {
	t := s.target.Timeouts
	switch {
	case s.meter.Terminal:
		s.dog.arm(tailLimit, errStreamOver)
	case s.firstToken.IsZero() && t.FirstToken > 0:
		s.dog.arm(max(t.FirstToken-time.Since(s.attemptAt), 1), errFirstToken)
	default:
		s.dog.arm(t.Idle, errIdle)
	}
}

// forward meters the n bytes just read and sends every event that they
// complete. What remains of an unfinished event is held; nothing counts that
// follows [DONE]. readErr is what the read ended with.
func (s *stream) forward(n int, readErr error) *failure {
	now := time.Now()
	end := s.held + n
	sendFrom, eventFrom := 0, 0
	for at := s.held; at < end && !s.meter.Done; {
		k, ev, ended := s.meter.Next(s.buf[at:end])
		at += k
		if !ended {
			break
		}
		if ev.Token {
			s.tokenAt(now)
		}
		if f := s.judge(ev, s.buf[sendFrom:at]); f != nil {
			if s.dataSent {
				_ = s.send(s.buf[sendFrom:eventFrom])
			}
			return f
		}
		if s.hide && ev.UsageOnly && !s.through {
			if f := s.send(s.buf[sendFrom:eventFrom]); f != nil {
				return f
			}
			sendFrom, eventFrom = at, at
			continue
		}
		s.dataSent = s.dataSent || ev.Data
		s.through = false
		eventFrom = at
	}
	if s.meter.Done {
		return s.sendDone(s.buf[sendFrom:eventFrom], readErr)
	}
	if end-eventFrom > holdLimit || s.through {
		s.through, s.dataSent = true, true
		eventFrom = end
	}
	eventFrom += commentLines(s.buf[eventFrom:end])
	if f := s.send(s.buf[sendFrom:eventFrom]); f != nil {
		return f
	}
	if s.dataSent && s.resp.Header != nil {
		s.forget()
	}
	s.keep(eventFrom, end)
	return nil
}

// forget frees what only another attempt would need: from now on there is
// none, and the stream may go on for long.
func (s *stream) forget() {
	s.body = nil
	s.req.Forget()
	s.ask = router.Request{}
	s.resp.Request, s.resp.Header = nil, nil
}

// judge says whether an event ends the attempt instead of being passed on: an
// engine's failure in place of the first data event, which another backend may
// do without, and [DONE] after the engine gave up.
func (s *stream) judge(ev openai.Event, pending []byte) *failure {
	switch {
	case ev.Failed && !s.dataSent && s.engineFault():
		return s.errorAnswer(bytes.Clone(pending))
	case s.meter.Failed, s.meter.Terminal:
		return nil // the client has the engine's own words
	case ev.Done && s.meter.Aborted, ev.Aborted && !s.dataSent:
		return s.aborted()
	}
	return nil
}

// commentLines is how many bytes at the start of an unfinished event are whole
// comment lines. Engines keep connections alive by them, some without a blank
// line, and they belong to no event.
func commentLines(p []byte) int {
	n := 0
	for n < len(p) && p[n] == ':' {
		line := bytes.IndexByte(p[n:], '\n') + 1
		if line == 0 {
			break
		}
		n += line
	}
	return n
}

// sendDone passes the last events on. They need no flush of their own when
// the answer ends with them.
func (s *stream) sendDone(p []byte, readErr error) *failure {
	s.held = 0
	s.endedCR = p[len(p)-1] == '\r'
	if readErr != io.EOF || !s.committed {
		return s.send(p)
	}
	if err := s.write(p, s.target.Timeouts.ClientWrite); err != nil {
		return s.clientGone(err)
	}
	return nil
}

// keep moves the unfinished event to the front and makes room behind it.
func (s *stream) keep(from, end int) {
	s.held = copy(s.buf, s.buf[from:end])
	if s.held < len(s.buf) {
		return
	}
	s.grow(min(2*len(s.buf), 2*holdLimit))
}

// grow replaces the buffer by a bigger one.
func (s *stream) grow(size int) {
	bigger := s.h.buffers.get(size)
	copy(bigger, s.buf[:s.held])
	s.h.buffers.put(s.buf)
	s.buf = bigger
}

// drain reads what an engine may still send after [DONE], so that its
// connection can be used again. The client's stream is over, so nothing that
// happens here can make a failure of it.
func (s *stream) drain(err error) {
	s.dog.arm(tailLimit, errStreamOver)
	for err == nil {
		var n int
		n, err = s.resp.Body.Read(s.buf)
		if n > 0 && s.endedCR && s.buf[0] == '\n' {
			_ = s.write(s.buf[:1], s.target.Timeouts.ClientWrite)
		}
		s.endedCR = s.endedCR && n == 0
	}
}

// end judges how a stream without [DONE] ended. Only one that reached an end
// of its own is a success, whatever the connection did.
func (s *stream) end(err error) *failure {
	torn := err != io.EOF
	if !torn {
		var f *failure
		if torn, f = s.lastEvent(); f != nil {
			return f
		}
	}
	switch {
	case s.meter.Failed, s.meter.Done, s.meter.Terminal:
		return s.failedInside()
	case s.meter.Aborted:
		return s.aborted()
	case !torn && s.meter.Complete():
		return nil
	case err == io.EOF:
		return upstream(reasonTruncated, http.StatusBadGateway, "the engine ended the stream before its answer was complete", io.ErrUnexpectedEOF)
	}
	return s.explain(s.ctx, err)
}

// lastEvent sends a last event that no blank line follows, if it is whole. One
// that was torn off in the middle is as good as not sent.
func (s *stream) lastEvent() (torn bool, f *failure) {
	before := s.meter.Tally
	ev, _ := s.meter.End()
	if s.meter.Unparsed > before.Unparsed || breaksOff(s.buf[:s.held], ev.Data) {
		s.meter.Tally = before
		return true, nil
	}
	if ev.Token {
		s.tokenAt(time.Now())
	}
	if f := s.judge(ev, s.buf[:s.held]); f != nil {
		return false, f
	}
	if (s.hide && ev.UsageOnly) || (!s.meter.Complete() && !s.meter.Failed) {
		return false, nil
	}
	return false, s.send(s.buf[:s.held])
}

// breaksOff reports whether the text ends inside a line that says nothing yet.
func breaksOff(text []byte, data bool) bool {
	text = bytes.TrimRight(text, " ")
	if len(text) == 0 {
		return false
	}
	switch text[len(text)-1] {
	case '\n', '\r':
		return false
	case '}', ']':
		return !data
	}
	return true
}

// errorAnswer is an engine's error in place of an answer, kept to be passed on
// if nobody else can serve.
func (a *attempt) errorAnswer(body []byte) *failure {
	f := upstream(reasonErrorEvent, http.StatusBadGateway, "the engine answered with an error",
		errors.New("error event "+a.meter.ErrorCode))
	f.class = a.errorClass()
	f.engine = &engineAnswer{status: a.resp.StatusCode, header: a.resp.Header, body: body}
	return f
}

// errorEvent is an engine's JSON error as one event of a stream; told stands in
// for a body that clients would not take for an error.
func errorEvent(api openai.Endpoint, body []byte, told *openai.Error) []byte {
	var answer struct{ Error json.RawMessage }
	var line bytes.Buffer
	if json.Unmarshal(body, &answer) != nil || answer.Error == nil || json.Compact(&line, body) != nil {
		return told.Event(api)
	}
	var event []byte
	if api == openai.Responses {
		event = append(event, "event: error\n"...)
	}
	event = append(event, "data: "...)
	event = append(event, line.Bytes()...)
	return append(event, "\n\n"...)
}

// failedInside is the failure of a stream in which the engine itself reported
// one, nil if it did not. The client has the engine's words, so nothing is
// added to them.
func (s *stream) failedInside() *failure {
	if !s.meter.Failed && !s.meter.Aborted {
		return nil
	}
	return &failure{reason: reasonErrorEvent, class: s.errorClass(), details: errors.New("error event " + s.meter.ErrorCode)}
}

// errorClass is what an engine's error says of the engine.
func (a *attempt) errorClass() backends.Class {
	switch {
	case a.meter.ErrorStatus == http.StatusTooManyRequests:
		return backends.Overloaded
	case a.engineFault():
		return backends.Fault
	}
	return backends.Served
}

// engineFault tells an engine's own error from one the request caused.
func (a *attempt) engineFault() bool {
	status := a.meter.ErrorStatus
	return a.meter.ErrorType != "invalid_request_error" && (status < 400 || status >= 500 || status == http.StatusTooManyRequests)
}
