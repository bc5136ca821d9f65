package proxy

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
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
	asked    *Model // by the client
	model    *Model // asked, or the lighter one in its place
	req      *openai.Request
	ask      router.Request
	terms    sla.Terms // what was promised; zero: nothing
	over     bool      // the contract's burst does not cover it
	tenant   string    // for the log: if the contract names it, so that the operator wrote it
	accepted time.Time
	due      time.Time     // of the first token, as promised; zero: none
	deadline time.Time     // of the whole; zero: none
	held     time.Duration // spent waiting at the gateway

	tried    []*backends.Backend
	attempts int
	last     *router.Lease    // of the last attempt; nil before there was one
	refusal  *router.Decision // of a request that got no backend; nil if it is not recorded
	retried  bool             // holds a retry of the budget
	why      string           // reason of the last choice
	meter    openai.Meter
	body     []byte // of the last attempt; nil once nobody can need it again
	conns    connTrace

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

// run serves the request: admit, attempt, and again while that may help.
func (x *exchange) run() {
	x.model.Metrics.InFlight.Inc()
	x.model.Budget.begin(time.Now()) // not accepted: the body took its time
	defer func() {
		x.model.Budget.end(x.retried)
		x.model.Metrics.InFlight.Dec()
		x.report()
	}()
	ctx, cancel := x.totalTimeout()
	defer cancel()

	lease, f := x.admit(ctx)
	for f == nil {
		if f = x.attempt(ctx, lease); f == nil {
			x.reason = x.served()
			return
		}
		lease, f = x.again(ctx, f)
	}
	x.fail(f)
}

// totalTimeout bounds the whole request by the longest total timeout of the
// backends that may serve it; one without any is the longest.
func (x *exchange) totalTimeout() (context.Context, context.CancelFunc) {
	ctx := x.r.Context()
	total := time.Duration(0)
	for _, t := range x.model.Targets {
		if t.Timeouts.Total <= 0 {
			return ctx, func() {}
		}
		total = max(total, t.Timeouts.Total)
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
// budget and deadline allow it. Otherwise it returns the failure that the
// request ends with.
func (x *exchange) again(ctx context.Context, f *failure) (*router.Lease, *failure) {
	if !f.retry || x.dataSent || x.r.Context().Err() != nil || x.model.Retry.MaxAttempts <= 1 {
		return nil, f
	}
	now := time.Now()
	deny := func(why string) (*router.Lease, *failure) {
		x.model.Metrics.RetryDenied(why)
		return nil, f
	}
	if x.attempts >= x.model.Retry.MaxAttempts {
		return deny("attempts")
	}
	answer := now.Add(x.model.Router.ExpectedTTFT(now))
	if !x.deadline.IsZero() && answer.After(x.deadline) || x.isUseless(answer) {
		return deny("deadline")
	}
	lease, err := x.enterAgain(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, x.explain(ctx, err)
	case err != nil:
		return deny("no_backend")
	}
	if now = time.Now(); !x.affords(now, f, lease.Backend()) {
		lease.Done(now, backends.Outcome{Class: backends.Dropped})
		return deny("budget")
	}
	x.model.Metrics.Retry(f.reason)
	return lease, nil
}

// enterAgain asks for another backend. One whose promise is lost does not wait
// for long: it has been let in once. Past its visible limit it goes nowhere.
func (x *exchange) enterAgain(ctx context.Context) (*router.Lease, error) {
	lease, err := x.enter(ctx, time.Time{})
	if shed := (*router.Shed)(nil); errors.As(err, &shed) && shed.Reason == router.ShedDeadline {
		return x.claimLate(x.model.Router, x.tried)
	}
	return lease, err
}

// affords asks the budget for a retry on b. A dial that failed put no load on
// anybody, so moving on to a backend that works costs nothing: the crowd that
// meets a dead engine before it is ejected is served by the others. Where the
// next one has failed lately as well, it may be an outage, and the budget holds.
func (x *exchange) affords(now time.Time, f *failure, b *backends.Backend) bool {
	if f.reason == reasonDial && b.Load(now).Penalty == 0 {
		return true
	}
	if !x.model.Budget.take(now, x.retried) {
		return false
	}
	x.retried = true
	return true
}

// attempt tries one backend. nil means that the request is served; otherwise
// the failure says what happened, and dataSent what the client has seen.
func (x *exchange) attempt(ctx context.Context, lease *router.Lease) *failure {
	target := x.model.target(lease.Backend())
	f := panicked // until something better is known
	defer func() { x.settle(lease, target, f) }()
	x.attempts++
	x.tried = append(x.tried, lease.Backend())
	x.last, x.backend, x.why = lease, lease.Backend().Name, lease.Reason()
	lease.Name(x.backend, x.table.revision)
	lease.Held(x.held)
	x.meter.Reset()
	x.attemptAt, x.firstToken, x.lastToken = time.Now(), time.Time{}, time.Time{}
	f = x.try(ctx, lease, target)
	return f
}

// try sends the request to the target and passes its answer on.
func (x *exchange) try(ctx context.Context, lease *router.Lease, target *Target) *failure {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errAttemptOver)
	dog := newWatchdog(cancel)
	defer dog.pause()
	x.armForHeaders(dog, target)
	resp, err := x.roundTrip(ctx, target)
	if err != nil {
		return x.explain(ctx, err)
	}
	defer resp.Body.Close()
	a := &attempt{exchange: x, ctx: ctx, dog: dog, lease: lease, target: target, resp: resp}
	return a.answer()
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

// settle ends the lease with what the attempt came to.
func (x *exchange) settle(lease *router.Lease, t *Target, f *failure) {
	now := time.Now()
	outcome, reason := backends.Outcome{Class: backends.Served}, x.served()
	if f != nil {
		// A client that left before there was a connection left no work behind.
		outcome, reason = backends.Outcome{Class: f.class, ClientLeft: f.client && x.conns.taken > 0}, f.reason
	}
	x.tellUsage(lease)
	if e := lease.Done(now, outcome); e.Ejected {
		t.Metrics.Ejected(e.Reason)
		x.h.ejected(t.Backend, e.Reason)
	}
	t.Metrics.Attempt(reason)
	t.Metrics.Unparsed(x.meter.Unparsed)
	if f == nil {
		x.observeTPOT(t)
		x.boundWrite(t.Timeouts.ClientWrite) // the end of the answer is a write too
	}
}

// tellUsage passes on what the engine said of its work. Its count of a prompt's
// tokens and the gateway's estimate differ; the share that was cached does not.
func (x *exchange) tellUsage(lease *router.Lease) {
	u := x.meter.Usage
	if x.meter.HasCached && u.Prompt > 0 {
		share := min(float64(u.Cached)/float64(u.Prompt), 1)
		lease.Cached(int(math.Round(share * float64(x.req.PromptTokens))))
	}
	lease.Output(x.outputTokens())
}

// outputTokens is the length of the answer so far: as the engine counts, or
// else the events that carried tokens.
func (x *exchange) outputTokens() int {
	if x.meter.HasUsage {
		return x.meter.Usage.Completion
	}
	return x.meter.Chunks
}

// served is the reason of an answer that was passed on whole.
func (x *exchange) served() string {
	if x.status >= 400 {
		return reasonEngine4xx
	}
	return reasonOK
}

func (x *exchange) observeTPOT(t *Target) {
	if d := x.tpot(); d > 0 {
		t.Metrics.TPOT(d)
	}
}

// tpot is the mean time between tokens of the answer; 0 if there were not two.
func (x *exchange) tpot() time.Duration {
	tokens := x.outputTokens()
	if tokens <= 1 || !x.lastToken.After(x.firstToken) {
		return 0
	}
	return x.lastToken.Sub(x.firstToken) / time.Duration(tokens-1)
}

// fail tells the client, in the way that is still open, and records why. An
// answer that can't be finished is cut, so that it does not look whole.
func (x *exchange) fail(f *failure) {
	x.reason, x.details = f.reason, f.details
	if f.shed != "" {
		x.w.Header()["X-Firsttoken-Shed-Reason"] = []string{f.shed}
	}
	switch {
	case f.client:
		x.status = statusClientClosed
		panic(http.ErrAbortHandler)
	case x.committed && x.streaming():
		x.tellInStream(f)
	case x.committed:
		panic(http.ErrAbortHandler)
	case f.engine != nil:
		x.pass(f)
	default:
		x.refuse(f.told)
	}
}

// streaming reports whether the committed answer is an event stream that an
// event can be added to.
func (x *exchange) streaming() bool {
	return isEventStream(x.w.Header()) && !encoded(x.w.Header())
}

// pass hands on an engine's own answer. A body that is no JSON is put into
// the error shape that clients can read.
func (x *exchange) pass(f *failure) {
	a, h := f.engine, x.w.Header()
	copyResponseHeader(h, a.header)
	if !isJSON(a.header) && !isEventStream(a.header) {
		delete(h, "Content-Encoding")
		x.refuse(f.told)
		return
	}
	if isEventStream(a.header) {
		streamHeader(h)
	}
	x.commit(a.status, int64(len(a.body)))
	if err := x.write(a.body, ownWriteLimit); err != nil {
		x.details = err
	}
}

// refuse answers with an error of the gateway's own.
func (x *exchange) refuse(e *openai.Error) {
	x.status = e.Status
	x.debugHeaders()
	x.boundWrite(ownWriteLimit)
	e.Write(x.w)
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
	x.debugHeaders()
	x.w.WriteHeader(status)
}

// debugHeaders names the contract, the time held, the backend of the last
// attempt, and what was expected of it; and the decision, if it was asked for.
func (x *exchange) debugHeaders() {
	x.showDecision()
	if !x.table.DebugHeaders {
		return
	}
	h := x.w.Header()
	h["X-Firsttoken-Backend"] = []string{x.backend}
	h["X-Firsttoken-Attempts"] = []string{strconv.Itoa(x.attempts)}
	if name := x.terms.Name(); name != "" {
		h["X-Firsttoken-Contract"] = []string{name}
	}
	if x.held > 0 {
		h["X-Firsttoken-Held-Ms"] = []string{inMilliseconds(x.held)}
	}
	if p, by, ok := x.predicted(); ok {
		h["X-Firsttoken-Predicted-P50-Ms"] = []string{inMilliseconds(p.P50)}
		h["X-Firsttoken-Predicted-P95-Ms"] = []string{inMilliseconds(p.P95)}
		h["X-Firsttoken-Estimator"] = []string{by.String()}
	}
}

// predicted is what was expected of the last attempt, and by which estimator.
func (x *exchange) predicted() (p predictor.Prediction, by predictor.Kind, ok bool) {
	if x.last == nil {
		return p, by, false
	}
	return x.last.Prediction()
}

func inMilliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Microseconds())/1e3, 'f', -1, 64)
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
	if left := x.writeBound.Sub(now); left > limit-limit/16 && left <= limit {
		return
	}
	x.writeBound = now.Add(limit)
	_ = x.rc.SetWriteDeadline(x.writeBound) // not every writer has deadlines
}

// tellInStream ends a committed stream with one error event and no [DONE]. An
// engine's error keeps its words; one that is in the stream already is not
// told again.
func (x *exchange) tellInStream(f *failure) {
	var event []byte
	switch {
	case f.engine != nil && isEventStream(f.engine.header):
		event = f.engine.body
	case f.engine != nil:
		event = errorEvent(x.req.Endpoint, f.engine.body, f.told)
	case f.told != nil:
		event = f.told.Event(x.req.Endpoint)
	}
	if x.write(event, ownWriteLimit) == nil {
		_ = x.rc.Flush()
	}
}

// ownWriteLimit bounds the writing of what is the gateway's own, or was held
// back: errors, and answers made in one piece.
const ownWriteLimit = 5 * time.Second
