package proxy

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

// holdLimit is how much of an unfinished event is held back. A client can do
// nothing with a part of an event, and a whole one can still be replaced by
// an error; a longer event goes on in pieces.
const holdLimit = 64 << 10

// relayStream passes on an event stream: every event unchanged and at once,
// metered on the way.
func (a *attempt) relayStream() *failure {
	s := &stream{attempt: a, buf: a.h.buffers.get()}
	defer func() { a.h.buffers.put(s.buf) }()
	return s.relay()
}

// stream is the state of one relay. buf[:held] are bytes of an unfinished
// event that were read but not yet sent.
type stream struct {
	*attempt
	buf     []byte
	held    int
	through bool // the unfinished event is too long to hold: it goes on in pieces
}

func (s *stream) relay() *failure {
	hide := s.hides(s.target)
	for {
		s.armForRead()
		n, err := s.resp.Body.Read(s.buf[s.held:])
		s.dog.pause()
		if n > 0 {
			if f := s.forward(n, hide); f != nil {
				return f
			}
		}
		if err != nil {
			return s.end(err, hide)
		}
	}
}

// armForRead starts the phase the next read is in: until the first token, or
// between events.
func (s *stream) armForRead() {
	t := s.target.Timeouts
	if s.firstToken.IsZero() && t.FirstToken > 0 {
		s.dog.arm(max(t.FirstToken-time.Since(s.attemptAt), 1), errFirstToken)
		return
	}
	s.dog.arm(t.Idle, errIdle)
}

// forward meters the n bytes just read and sends every event that they
// complete. What remains of an unfinished event is held.
func (s *stream) forward(n int, hide bool) *failure {
	now := time.Now()
	end := s.held + n
	sendFrom, eventFrom := 0, 0
	for at := s.held; at < end; {
		k, ev, ended := s.meter.Next(s.buf[at:end])
		at += k
		if !ended {
			break
		}
		if ev.Token {
			s.tokenAt(now)
		}
		switch f := s.judge(ev, s.buf[sendFrom:at]); {
		case f != nil:
			if s.dataSent {
				_ = s.send(s.buf[sendFrom:eventFrom])
			}
			return f
		case hide && ev.UsageOnly && !s.through:
			if f := s.send(s.buf[sendFrom:eventFrom]); f != nil {
				return f
			}
			sendFrom = at
		}
		s.dataSent = s.dataSent || ev.Data
		s.through = false
		eventFrom = at
	}
	if end-eventFrom > holdLimit || s.through {
		s.through, s.dataSent = true, true
		eventFrom = end
	}
	if f := s.send(s.buf[sendFrom:eventFrom]); f != nil {
		return f
	}
	s.keep(eventFrom, end)
	return nil
}

// judge says whether an event ends the attempt instead of being passed on:
// an error in place of the first data event, which another backend may do
// without, and [DONE] after the engine gave up.
func (s *stream) judge(ev openai.Event, pending []byte) *failure {
	if ev.Failed && !s.dataSent && s.engineFault() {
		f := upstream(reasonErrorEvent, http.StatusBadGateway, "the engine answered with an error",
			errors.New("error event "+s.meter.ErrorCode))
		f.engine = &engineAnswer{status: s.resp.StatusCode, header: s.resp.Header, body: append([]byte(nil), pending...)}
		return f
	}
	if ev.Done && s.meter.Aborted && !s.meter.Failed {
		return s.aborted()
	}
	return nil
}

// engineFault tells an engine's own error from one the request caused.
func (s *stream) engineFault() bool {
	status := s.meter.ErrorStatus
	return s.meter.ErrorType != "invalid_request_error" && (status < 400 || status >= 500 || status == http.StatusTooManyRequests)
}

// send passes whole events on.
func (s *stream) send(p []byte) *failure {
	if len(p) == 0 {
		return nil
	}
	s.commitFrom(true)
	if err := s.write(p, s.target.Timeouts.ClientWrite); err != nil {
		return s.clientGone(err)
	}
	if err := s.rc.Flush(); err != nil {
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
	bigger := make([]byte, min(2*len(s.buf), 2*holdLimit))
	copy(bigger, s.buf)
	s.h.buffers.put(s.buf)
	s.buf = bigger
}

// end judges how the stream ended. Only one that reached its own end is a
// success, whatever the connection did.
func (s *stream) end(err error, hide bool) *failure {
	if err == io.EOF {
		if f := s.lastEvent(hide); f != nil {
			return f
		}
	}
	switch {
	case s.meter.Aborted && !s.meter.Failed:
		return s.aborted()
	case s.meter.Failed:
		return s.failedInside()
	case s.meter.Done, err == io.EOF && s.meter.Complete():
		s.commitFrom(true)
		return nil
	case err == io.EOF:
		return upstream(reasonTruncated, http.StatusBadGateway, "the engine ended the stream before its answer was complete", io.ErrUnexpectedEOF)
	}
	return s.explain(s.ctx, err)
}

// lastEvent sends a last event that no blank line follows.
func (s *stream) lastEvent(hide bool) *failure {
	ev, ended := s.meter.End()
	if !ended || s.held == 0 {
		return nil
	}
	if ev.Token {
		s.tokenAt(time.Now())
	}
	if f := s.judge(ev, s.buf[:s.held]); f != nil {
		return f
	}
	if (hide && ev.UsageOnly) || (!s.meter.Complete() && !ev.Failed) {
		return nil
	}
	s.dataSent = true
	return s.send(s.buf[:s.held])
}

// failedInside is a stream in which the engine itself reported an error: the
// client has the engine's words, so nothing is added to them.
func (s *stream) failedInside() *failure {
	f := &failure{reason: reasonErrorEvent, class: backends.Fault, details: errors.New("error event " + s.meter.ErrorCode)}
	if !s.engineFault() {
		f.class = backends.Served
	}
	return f
}
