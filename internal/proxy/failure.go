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
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// failure is why an attempt did not serve the request.
type failure struct {
	reason  string         // closed list; metric label and log field
	class   backends.Class // what it says of the backend
	retry   bool           // another backend may do better
	client  bool           // the client left: nobody is to blame, nobody is told
	shed    string         // why the request was refused for load; empty if it was not
	told    *openai.Error  // what the client is told
	engine  *engineAnswer  // the engine's own answer, passed on instead of told
	details error          // for the log
}

// engineAnswer is a whole answer held back while another backend is asked.
type engineAnswer struct {
	status int
	header http.Header
	body   []byte
}

// Reasons of attempts and requests. "ok" is a success.
const (
	reasonOK               = "ok"
	reasonClientLeft       = "client_left"
	reasonClientWrite      = "client_write_timeout"
	reasonDraining         = "gateway_draining"
	reasonDial             = "dial_failed"
	reasonDialTimeout      = "dial_timeout"
	reasonHeader           = "response_header_timeout"
	reasonFirstToken       = "first_token_timeout"
	reasonIdle             = "idle_timeout"
	reasonTotal            = "total_timeout"
	reasonLost             = "connection_lost"
	reasonTruncated        = "stream_truncated"
	reasonAborted          = "engine_aborted"
	reasonErrorEvent       = "engine_error_event"
	reasonBadResponse      = "bad_response"
	reasonEngine4xx        = "engine_4xx"
	reasonEngine429        = "engine_429"
	reasonEngine5xx        = "engine_5xx"
	reasonNoBackend        = "no_backend"
	reasonSaturated        = "saturated"
	reasonShedDeadline     = "shed_" + router.ShedDeadline
	reasonShedFull         = "shed_" + router.ShedFull
	reasonShedVisibleLimit = "shed_" + shedVisibleLimit
	reasonInvalid          = "invalid_request"
	reasonPanic            = "panic"
	statusClientClosed     = 499 // nginx's code for a client that left; logged, never sent
)

// shedVisibleLimit is why a request is shed whose contract's visible limit has
// passed, or surely would.
const shedVisibleLimit = "visible_limit"

// upstream is a failure that the backend caused.
func upstream(reason string, status int, message string, cause error) *failure {
	return &failure{
		reason: reason, class: backends.Fault, retry: true, details: cause,
		told: &openai.Error{Status: status, Type: "upstream_error", Code: "upstream_" + reason, Message: message},
	}
}

// neutral is a failure that says nothing of the backend.
func neutral(reason string, told *openai.Error, cause error) *failure {
	return &failure{reason: reason, class: backends.Dropped, told: told, details: cause}
}

// panicked is the failure of an attempt that a panic ended.
var panicked = &failure{reason: reasonPanic, class: backends.Dropped}

func clientLeft(cause error) *failure {
	f := neutral(reasonClientLeft, &openai.Error{Status: statusClientClosed, Message: "the client left"}, cause)
	f.client = true
	return f
}

// explain says why talking to an engine failed with err while ctx, the
// attempt's context, was in force.
func (x *exchange) explain(ctx context.Context, err error) *failure {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrDraining):
		return neutral(reasonDraining, &openai.Error{Status: http.StatusServiceUnavailable, Code: reasonDraining,
			Message: "the gateway is shutting down; try again", RetryAfter: time.Second}, cause)
	case errors.Is(cause, errTotal):
		return neutral(reasonTotal, &openai.Error{Status: http.StatusGatewayTimeout, Code: reasonTotal,
			Message: "the request took longer than the gateway's total timeout"}, cause)
	case errors.Is(cause, errHeaderTimeout):
		return upstream(reasonHeader, http.StatusGatewayTimeout, "the engine sent no response headers in time", cause)
	case errors.Is(cause, errFirstToken):
		return upstream(reasonFirstToken, http.StatusGatewayTimeout, "the engine produced no first token in time", cause)
	case errors.Is(cause, errIdle):
		return upstream(reasonIdle, http.StatusGatewayTimeout, "the engine fell silent in the middle of its answer", cause)
	case x.r.Context().Err() != nil:
		return clientLeft(err)
	}
	return unreachable(err)
}

// unreachable tells apart a failed dial, a lost connection and an answer that
// is no HTTP.
func unreachable(err error) *failure {
	switch {
	case errors.Is(err, errDialTimeout), isTLSTimeout(err):
		return upstream(reasonDialTimeout, http.StatusGatewayTimeout, "the engine could not be reached in time", err)
	case isDial(err):
		return upstream(reasonDial, http.StatusBadGateway, "the engine could not be reached", err)
	case isLost(err):
		return upstream(reasonLost, http.StatusBadGateway, "the connection to the engine was lost", err)
	}
	return upstream(reasonBadResponse, http.StatusBadGateway, "the engine's answer was not understood", withoutContent(err))
}

func isDial(err error) bool {
	var op *net.OpError
	var certificate *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	return errors.As(err, &op) && (op.Op == "dial" || op.Op == "remote error") || // the latter: a TLS alert
		errors.As(err, &certificate) || errors.As(err, &noTLS)
}

// isTLSTimeout knows the transport's own error of that name.
func isTLSTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout() && strings.Contains(err.Error(), "TLS handshake")
}

func isLost(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		strings.HasSuffix(err.Error(), "server closed idle connection")
}

// isWrite reports whether sending failed, as opposed to receiving.
func isWrite(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "write"
}

// withoutContent keeps of an error what was wrong and drops the engine's bytes
// that net/http quotes behind it: they may be of a completion.
func withoutContent(err error) error {
	text := strings.TrimPrefix(err.Error(), "net/http: ")
	text = strings.TrimPrefix(text, "HTTP/1.x transport connection broken: ")
	if end := strings.IndexAny(text, `":;`); end >= 0 {
		text = text[:end]
	}
	return errors.New(strings.TrimSpace(text))
}

// refusedByEngine is a 4xx or 5xx that the engine answered; its own answer is
// passed on if nobody else can serve the request.
func refusedByEngine(a *engineAnswer) *failure {
	reason, class := reasonEngine4xx, backends.Served
	switch {
	case a.status == http.StatusTooManyRequests:
		reason, class = reasonEngine429, backends.Overloaded
	case a.status >= 500:
		reason, class = reasonEngine5xx, backends.Fault
	}
	message := fmt.Sprintf("the engine answered %d %s", a.status, http.StatusText(a.status))
	f := upstream(reason, a.status, message, errors.New(message))
	f.class, f.engine = class, a
	f.retry = class != backends.Served && a.status != http.StatusNotImplemented
	return f
}

// noBackend is the failure of a claim that found nobody.
func noBackend(err error) *failure {
	told := &openai.Error{Status: http.StatusServiceUnavailable, Code: "no_backend_available",
		Message: "no backend is available for this model; try again", RetryAfter: time.Second}
	reason := reasonNoBackend
	var u *backends.Unavailable
	if errors.As(err, &u) {
		told.RetryAfter = u.RetryAfter
		if u.Saturated {
			reason = reasonSaturated
			told.Status, told.Code = http.StatusTooManyRequests, "backends_saturated"
			told.Message = "every backend of this model is at its limit; try again"
		}
	}
	return neutral(reason, told, err)
}
