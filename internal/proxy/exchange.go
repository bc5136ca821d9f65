package proxy

import (
	"bytes"
	"context"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// exchange is one request of a client and the answer it gets, over one or
// more attempts. It belongs to the request's goroutine.
type exchange struct {
	h        *Handler
	w        http.ResponseWriter
	rc       *http.ResponseController
	r        *http.Request
	id       string // request id
	table    *Table
	model    *Model
	req      *openai.Request
	ask      router.Request
	accepted time.Time
	deadline time.Time // zero: none

	tried    []*backends.Backend
	attempts int
	retried  bool   // holds a retry of the budget
	why      string // reason of the last choice
	meter    openai.Meter

	committed  bool // the status line went out
	dataSent   bool // a data event, or part of a body, went out
	writeBound time.Time

	status     int
	reason     string
	details    error
	backend    string
	attemptAt  time.Time
	firstToken time.Time // of the attempt that served
	lastToken  time.Time
}

// run serves the request: claim, attempt, and again while that may help.
func (x *exchange) run() {
	x.model.Metrics.InFlight.Inc()
	x.model.Budget.begin(x.accepted)
	defer func() {
		x.model.Budget.end(x.retried)
		x.model.Metrics.InFlight.Dec()
		x.report()
	}()
	ctx, cancel := x.totalTimeout()
	defer cancel()

	lease, err := x.model.Router.Claim(x.accepted, &x.ask, nil)
	if err != nil {
		x.fail(noBackend(err))
		return
	}
	for {
		f := x.attempt(ctx, lease)
		if f == nil {
			x.reason = x.served()
			return
		}
		if lease = x.again(f); lease == nil {
			x.fail(f)
			return
		}
	}
}

func (x *exchange) totalTimeout() (context.Context, context.CancelFunc) {
	ctx := x.r.Context()
	total := time.Duration(0)
	for _, t := range x.model.Targets {
		total = max(total, t.Timeouts.Total)
	}
	if total <= 0 {
		return ctx, func() {}
	}
	x.bound(x.accepted.Add(total))
	return context.WithDeadlineCause(ctx, x.accepted.Add(total), errTotal)
}

// bound moves the deadline closer.
func (x *exchange) bound(t time.Time) {
	if x.deadline.IsZero() || t.Before(x.deadline) {
		x.deadline = t
	}
}

// clientDeadline reads the timeout that official SDKs announce in seconds. It
// only ever saves retries that would come too late.
func (x *exchange) clientDeadline() {
	hint := x.r.Header.Get("X-Stainless-Timeout")
	if hint == "" {
		return
	}
	if s, err := strconv.ParseFloat(hint, 64); err == nil && s > 0 && s < 86400 && !math.IsNaN(s) {
		x.bound(x.accepted.Add(time.Duration(s * float64(time.Second))))
	}
}

// again decides whether a failed attempt is followed by another, and if so
// returns its lease: nothing was sent, another backend exists, and attempts,
// budget and deadline allow it.
func (x *exchange) again(f *failure) *router.Lease {
	if !f.retry || x.dataSent || x.r.Context().Err() != nil || x.model.Retry.MaxAttempts <= 1 {
		return nil
	}
	now := time.Now()
	deny := func(why string) *router.Lease {
		x.model.Metrics.RetryDenied(why)
		return nil
	}
	if x.attempts >= x.model.Retry.MaxAttempts {
		return deny("attempts")
	}
	if !x.deadline.IsZero() && now.Add(x.model.Router.ExpectedTTFT(now)).After(x.deadline) {
		return deny("deadline")
	}
	lease, err := x.model.Router.Claim(now, &x.ask, x.tried)
	if err != nil {
		return deny("no_backend")
	}
	if !x.model.Budget.take(now, x.retried) {
		lease.Done(now, backends.Outcome{Class: backends.Dropped})
		return deny("budget")
	}
	x.retried = true
	x.model.Metrics.Retry(f.reason)
	return lease
}

// attempt tries one backend. nil means that the request is served; otherwise
// the failure says what happened, and dataSent what the client has seen.
func (x *exchange) attempt(ctx context.Context, lease *router.Lease) *failure {
	b := lease.Backend()
	target := x.model.target(b)
	x.attempts++
	x.tried = append(x.tried, b)
	x.backend, x.why = b.Name, lease.Reason()
	x.meter.Reset()
	x.attemptAt, x.firstToken, x.lastToken = time.Now(), time.Time{}, time.Time{}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errAttemptOver)
	dog := newWatchdog(cancel)
	defer dog.pause()
	var f *failure
	defer func() { x.settle(lease, target, f) }() // on a panic as well

	x.armForHeaders(dog, target)
	resp, err := target.Transport.RoundTrip(x.request(ctx, target))
	if err != nil {
		f = x.explain(ctx, err)
		return f
	}
	defer resp.Body.Close()
	f = x.answer(&attempt{exchange: x, ctx: ctx, dog: dog, lease: lease, target: target, resp: resp})
	return f
}

// armForHeaders starts the phase that ends with the engine's headers.
func (x *exchange) armForHeaders(dog *watchdog, t *Target) {
	header, first := t.Timeouts.ResponseHeader, t.Timeouts.FirstToken
	if x.req.Stream && first > 0 && (header <= 0 || first < header) {
		dog.arm(first, errFirstToken)
		return
	}
	dog.arm(header, errHeaderTimeout)
}

// request builds the attempt's request from the client's.
func (x *exchange) request(ctx context.Context, t *Target) *http.Request {
	body := x.req.Body(t.Backend.Model, x.hides(t))
	sent := 0
	newBody := func() (io.ReadCloser, error) {
		if sent++; sent > 1 {
			t.Metrics.StaleConnection()
		}
		return io.NopCloser(bytes.NewReader(body)), nil
	}
	first, _ := newBody()
	u := t.urls[x.req.Endpoint]
	r := &http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: requestHeader(x.r.Header, t.Backend, x.id),
		Body:   first, GetBody: newBody, ContentLength: int64(len(body)),
	}
	return r.WithContext(ctx)
}

// hides reports whether the gateway asks this target for a usage chunk that
// the client must not see.
func (x *exchange) hides(t *Target) bool {
	return t.InjectUsage && x.req.Stream && !x.req.AskedUsage &&
		(x.req.Endpoint == openai.ChatCompletions || x.req.Endpoint == openai.Completions)
}

// settle ends the lease with what the attempt came to.
func (x *exchange) settle(lease *router.Lease, t *Target, f *failure) {
	now := time.Now()
	outcome, reason := backends.Outcome{Class: backends.Served}, x.served()
	if f != nil {
		outcome, reason = backends.Outcome{Class: f.class, ClientLeft: f.client}, f.reason
	}
	if e := lease.Done(now, outcome); e.Ejected {
		t.Metrics.Ejected(e.Reason)
		x.h.ejected(t.Backend, e.Reason)
	}
	t.Metrics.Attempt(reason)
	t.Metrics.Unparsed(x.meter.Unparsed)
	if f == nil {
		x.observeTPOT(t)
	}
}

// served is the reason of an answer that was passed on whole.
func (x *exchange) served() string {
	if x.status >= 400 {
		return reasonEngine4xx
	}
	return reasonOK
}

func (x *exchange) observeTPOT(t *Target) {
	tokens := x.meter.Chunks
	if x.meter.HasUsage {
		tokens = x.meter.Usage.Completion
	}
	if tokens > 1 && x.lastToken.After(x.firstToken) {
		t.Metrics.TPOT(x.lastToken.Sub(x.firstToken) / time.Duration(tokens-1))
	}
}

// fail tells the client, in the way that is still open, and records why.
func (x *exchange) fail(f *failure) {
	x.reason, x.details = f.reason, f.details
	switch {
	case f.client:
		x.status = statusClientClosed
	case x.committed && x.streaming():
		x.writeEvent(f.told)
	case x.committed:
		panic(http.ErrAbortHandler) // a body that can't be finished must not look whole
	case f.engine != nil:
		x.pass(f.engine)
	default:
		x.status = f.told.Status
		f.told.Write(x.w)
	}
}

// streaming reports whether the committed answer is an event stream.
func (x *exchange) streaming() bool {
	return isEventStream(x.w.Header())
}

// pass hands on an engine's own answer. A body that is no JSON is put into
// the error shape that clients can read.
func (x *exchange) pass(a *engineAnswer) {
	x.status = a.status
	copyResponseHeader(x.w.Header(), a.header)
	if !isJSON(a.header) && !isEventStream(a.header) {
		e := &openai.Error{Status: a.status, Type: "upstream_error", Code: "upstream_" + reasonEngine5xx,
			Message: "the engine answered " + strconv.Itoa(a.status) + " " + http.StatusText(a.status)}
		x.w.Header().Del("Content-Encoding")
		e.Write(x.w)
		return
	}
	x.commit(a.status, int64(len(a.body)))
	if err := x.write(a.body, 0); err != nil {
		x.details = err
	}
}

// commit sends the status line and headers; length < 0 is unknown.
func (x *exchange) commit(status int, length int64) {
	if x.committed {
		return
	}
	x.committed, x.status = true, status
	h := x.w.Header()
	if length >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	}
	if x.table.DebugHeaders {
		h["X-Firsttoken-Backend"] = []string{x.backend}
		h["X-Firsttoken-Attempts"] = []string{strconv.Itoa(x.attempts)}
	}
	x.w.WriteHeader(status)
}

// write sends p to the client within limit (0: none) for each write.
func (x *exchange) write(p []byte, limit time.Duration) error {
	if len(p) == 0 {
		return nil
	}
	x.boundWrite(limit)
	_, err := x.w.Write(p)
	return err
}

// boundWrite moves the connection's write deadline. Moving it costs more than
// reading the clock, so a deadline that is still far away stays.
func (x *exchange) boundWrite(limit time.Duration) {
	if limit <= 0 {
		return
	}
	now := time.Now()
	if x.writeBound.Sub(now) > limit-limit/16 {
		return
	}
	x.writeBound = now.Add(limit)
	_ = x.rc.SetWriteDeadline(x.writeBound) // not every writer has deadlines
}

// writeEvent ends a committed stream with one error event and no [DONE].
func (x *exchange) writeEvent(e *openai.Error) {
	if x.write(e.Event(x.req.Endpoint), errorEventLimit) == nil {
		_ = x.rc.Flush()
	}
}

// errorEventLimit bounds telling a client that its stream is broken.
const errorEventLimit = 5 * time.Second
