package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// attempt is one answer of one engine on its way to the client.
type attempt struct {
	*exchange
	ctx    context.Context
	dog    *watchdog
	lease  *router.Lease
	target *Target
	resp   *http.Response
}

const (
	// wholeLimit is how much of an unstreamed answer is read before any of it
	// is sent, so that an engine that dies in the middle can be replaced.
	wholeLimit = 1 << 20
	// refusalLimit is how much of an engine's 429 or 5xx is kept.
	refusalLimit = 1 << 20
)

// answer handles the engine's response by its status and kind.
func (a *attempt) answer() *failure {
	status, stream := a.resp.StatusCode, isEventStream(a.resp.Header) && !encoded(a.resp.Header)
	switch {
	case status == http.StatusTooManyRequests || status >= 500:
		return a.hold()
	case status < 200 || (status >= 300 && status < 400):
		return a.badResponse("")
	case a.committed && (status >= 400 || !stream):
		return a.refuseInStream()
	case status >= 400:
		return a.relayWhole()
	case stream:
		return a.relayStream()
	case isJSON(a.resp.Header) && !encoded(a.resp.Header):
		return a.relayWhole()
	}
	return a.relayRaw(nil)
}

// badResponse is an answer that no client could make sense of. The log gets its
// status and nothing of the engine's own text, which may be of a completion.
func (a *attempt) badResponse(how string) *failure {
	return upstream(reasonBadResponse, http.StatusBadGateway, "the engine's answer was not understood",
		fmt.Errorf("engine answered %d%s", a.resp.StatusCode, how))
}

func isEventStream(h http.Header) bool { return mediaType(h) == "text/event-stream" }

func isJSON(h http.Header) bool {
	t := mediaType(h)
	return t == "application/json" || strings.HasSuffix(t, "+json")
}

func mediaType(h http.Header) string {
	v := h["Content-Type"]
	if len(v) == 0 {
		return ""
	}
	switch v[0] { // the usual ones need no parsing
	case "text/event-stream", "application/json":
		return v[0]
	case "text/event-stream; charset=utf-8":
		return "text/event-stream"
	}
	t, _, err := mime.ParseMediaType(v[0])
	if err != nil {
		return ""
	}
	return t
}

// encoded answers are passed on as they are: they can't be read on the way.
func encoded(h http.Header) bool {
	e := h.Get("Content-Encoding")
	return e != "" && !strings.EqualFold(e, "identity")
}

// hold keeps an engine's refusal, to be passed on if nobody else can serve.
func (a *attempt) hold() *failure {
	body, err := io.ReadAll(io.LimitReader(idleReader{a}, refusalLimit))
	if err != nil {
		return a.explain(a.ctx, err)
	}
	return refusedByEngine(&engineAnswer{status: a.resp.StatusCode, header: a.resp.Header, body: body})
}

// refuseInStream keeps an answer that can't continue the stream that was begun:
// the comments of an engine that failed are all the client has of it.
func (a *attempt) refuseInStream() *failure {
	if a.resp.StatusCode < 400 {
		return a.badResponse(" in another type")
	}
	f := a.hold()
	if f.engine != nil {
		f.reason, f.class, f.retry = reasonEngine4xx, backends.Served, false
	}
	return f
}

// relayWhole reads an unstreamed answer before any of it is sent; one that is
// too long for that goes on as it comes. A refusal is not looked into.
func (a *attempt) relayWhole() *failure {
	body, err := readUpTo(idleReader{a}, a.resp.ContentLength, wholeLimit)
	switch {
	case errors.Is(err, errMore):
		return a.relayRaw(body)
	case err != nil:
		return a.explain(a.ctx, err)
	}
	if a.resp.StatusCode < 400 {
		if f := a.readJSON(body); f != nil {
			return f
		}
	}
	copyResponseHeader(a.w.Header(), a.resp.Header)
	a.commit(a.resp.StatusCode, int64(len(body)))
	a.dataSent = true
	if err := a.write(body, a.target.Timeouts.ClientWrite); err != nil {
		return a.clientGone(err)
	}
	return nil
}

// readJSON meters a whole answer and says whether it is one.
func (a *attempt) readJSON(body []byte) *failure {
	a.meter.ReadJSON(body)
	switch {
	case a.meter.Unparsed > 0:
		return upstream(reasonTruncated, http.StatusBadGateway, "the engine's answer was not complete", io.ErrUnexpectedEOF)
	case a.meter.Aborted:
		return a.aborted()
	case a.meter.Failed && a.engineFault():
		return a.errorAnswer(body)
	}
	return nil
}

// idleReader reads an answer's body; each read has the idle timeout anew.
type idleReader struct{ *attempt }

func (r idleReader) Read(p []byte) (int, error) {
	r.dog.arm(r.target.Timeouts.Idle, errIdle)
	n, err := r.resp.Body.Read(p)
	r.dog.pause()
	return n, err
}

// errMore says that there is more to read than was asked for.
var errMore = errors.New("more to read")

func readUpTo(r io.Reader, length int64, limit int) ([]byte, error) {
	if length > int64(limit) {
		return nil, errMore
	}
	size := 4 << 10
	if length >= 0 {
		// One more, so that the end is seen without growing; no more than has
		// a chance to arrive, since a length is only a claim.
		size = int(min(length+1, 1<<20))
	}
	buf := make([]byte, 0, size)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, err
		case len(buf) > limit:
			return buf, errMore
		}
	}
}

// relayRaw passes on an answer whose content is not read, flushing each read.
func (a *attempt) relayRaw(head []byte) *failure {
	buf := a.h.buffers.get(busyBuffer)
	defer func() { a.h.buffers.put(buf) }()
	for chunk, err := head, error(nil); ; {
		a.dataSent = a.dataSent || len(chunk) > 0
		if f := a.send(chunk); f != nil {
			return f
		}
		switch {
		case err == io.EOF && !a.dataSent:
			return a.badResponse(" without a body")
		case err == io.EOF:
			return nil
		case err != nil:
			return a.explain(a.ctx, err)
		}
		var n int
		n, err = idleReader{a}.Read(buf)
		chunk = buf[:n]
	}
}

// send passes a part of the answer on at once, behind its headers.
func (a *attempt) send(p []byte) *failure {
	if len(p) == 0 {
		return nil
	}
	a.commitHeader()
	if err := a.write(p, a.target.Timeouts.ClientWrite); err != nil {
		return a.clientGone(err)
	}
	if err := a.rc.Flush(); err != nil {
		return a.clientGone(err)
	}
	return nil
}

// commitHeader sends the engine's status and headers, once.
func (a *attempt) commitHeader() {
	if a.committed {
		return
	}
	h := a.w.Header()
	copyResponseHeader(h, a.resp.Header)
	length := a.resp.ContentLength
	if isEventStream(a.resp.Header) {
		streamHeader(h)
		length = -1 // the gateway may leave out or add an event
	}
	a.commit(a.resp.StatusCode, length)
}

// clientGone tells a client that reads too slowly from one that left.
func (a *attempt) clientGone(err error) *failure {
	if errors.Is(context.Cause(a.ctx), ErrDraining) {
		return a.explain(a.ctx, err)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		f := clientLeft(errClientWrite)
		f.reason = reasonClientWrite
		return f
	}
	return clientLeft(err)
}

func (a *attempt) aborted() *failure {
	return upstream(reasonAborted, http.StatusBadGateway, "the engine gave up on its answer",
		errors.New("finish reason "+a.meter.FinishReason))
}

// tokenAt records a token seen at now: each tells where the engine stands. The
// first one ends the lease's prefill share and is judged by both clocks.
func (a *attempt) tokenAt(now time.Time) {
	a.lastToken = now
	if !a.firstToken.IsZero() {
		a.lease.Token(now)
		return
	}
	a.firstToken = now
	a.lease.FirstToken(now)
	a.target.Metrics.TTFT(now.Sub(a.attemptAt))
	a.model.Metrics.TTFT(a.meter.FirstToken.String(), a.req.Turn, now.Sub(a.accepted))
}
