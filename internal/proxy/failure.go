package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

// failure is why an attempt did not serve the request.
type failure struct {
	reason  string         // closed list; metric label and log field
	class   backends.Class // what it says of the backend
	retry   bool           // another backend may do better
	client  bool           // the client left: nobody is to blame, nobody is told
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
	reasonOK           = "ok"
	reasonClientLeft   = "client_left"
	reasonClientWrite  = "client_write_timeout"
	reasonDraining     = "gateway_draining"
	reasonDial         = "dial_failed"
	reasonDialTimeout  = "dial_timeout"
	reasonHeader       = "response_header_timeout"
	reasonFirstToken   = "first_token_timeout"
	reasonIdle         = "idle_timeout"
	reasonTotal        = "total_timeout"
	reasonLost         = "connection_lost"
	reasonTruncated    = "stream_truncated"
	reasonAborted      = "engine_aborted"
	reasonErrorEvent   = "engine_error_event"
	reasonBadResponse  = "bad_response"
	reasonEngine4xx    = "engine_4xx"
	reasonEngine429    = "engine_429"
	reasonEngine5xx    = "engine_5xx"
	reasonNoBackend    = "no_backend"
	reasonSaturated    = "saturated"
	reasonInvalid      = "invalid_request"
	statusClientClosed = 499 // nginx's code for a client that left; logged, never sent
)

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
	case cause == errTotal:
		return neutral(reasonTotal, &openai.Error{Status: http.StatusGatewayTimeout, Code: reasonTotal,
			Message: "the request took longer than the gateway's total timeout"}, cause)
	case cause == errHeaderTimeout:
		return upstream(reasonHeader, http.StatusGatewayTimeout, "the engine sent no response headers in time", cause)
	case cause == errFirstToken:
		return upstream(reasonFirstToken, http.StatusGatewayTimeout, "the engine produced no first token in time", cause)
	case cause == errIdle:
		return upstream(reasonIdle, http.StatusGatewayTimeout, "the engine fell silent in the middle of its answer", cause)
	case x.r.Context().Err() != nil:
		return clientLeft(err)
	}
	return unreachable(err)
}

// unreachable tells a failed dial from a lost connection.
func unreachable(err error) *failure {
	var op *net.OpError
	switch {
	case errors.Is(err, errDialTimeout):
		return upstream(reasonDialTimeout, http.StatusGatewayTimeout, "the engine could not be reached in time", err)
	case errors.As(err, &op) && op.Op == "dial":
		return upstream(reasonDial, http.StatusBadGateway, "the engine could not be reached", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return upstream(reasonDial, http.StatusBadGateway, "the engine could not be reached", err)
	case strings.Contains(err.Error(), "malformed HTTP"), strings.Contains(err.Error(), "server response headers exceeded"):
		return upstream(reasonBadResponse, http.StatusBadGateway, "the engine's answer was not understood", err)
	}
	return upstream(reasonLost, http.StatusBadGateway, "the connection to the engine was lost", err)
}

// refusedByEngine is a 429 or 5xx that the engine answered; its own answer is
// passed on if nobody else can serve the request.
func refusedByEngine(a *engineAnswer) *failure {
	f := &failure{
		reason: reasonEngine5xx, class: backends.Fault, retry: a.status != http.StatusNotImplemented,
		engine: a, details: fmt.Errorf("engine answered %d", a.status),
		told: &openai.Error{Status: a.status, Type: "upstream_error", Code: "upstream_" + reasonEngine5xx,
			Message: fmt.Sprintf("the engine answered %d", a.status)},
	}
	if a.status == http.StatusTooManyRequests {
		f.reason, f.class = reasonEngine429, backends.Overloaded
	}
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
