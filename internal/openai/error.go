package openai

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Error is a refusal or failure in OpenAI's shape.
type Error struct {
	Status  int    // HTTP status
	Type    string // invalid_request_error, server_error, ...; empty: by Status
	Code    string // machine-readable; null when empty
	Param   string // request field at fault; null when empty
	Message string // what is wrong and how to mend it

	// RetryAfter, if positive, is sent as whole seconds, at least 1.
	RetryAfter time.Duration
}

// Error is the message, and never empty.
func (e *Error) Error() string {
	return cmp.Or(e.Message, http.StatusText(e.Status), "unknown error")
}

// Invalid is a 400 that names the field at fault.
func Invalid(param, code, message string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: code, Param: param, Message: message}
}

func (e *Error) kind() string {
	switch {
	case e.Type != "":
		return e.Type
	case e.Status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case e.Status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// details are the four keys of an error, always present.
type details struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *Error) details() details {
	return details{Message: e.Error(), Type: e.kind(), Param: orNull(e.Param), Code: orNull(e.Code)}
}

// Body is the JSON document {"error":{message,type,param,code}}, all four
// keys always present and the message never empty.
func (e *Error) Body() []byte {
	body, _ := json.Marshal(struct { // strings and nulls cannot fail
		Error details `json:"error"`
	}{e.details()})
	return body
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Event is the error as one event of a stream. The official SDKs raise on any
// event whose data has an error; readers of Responses streams also look at
// the event's type, and for the message beside it.
func (e *Error) Event(api Endpoint) []byte {
	if api != Responses {
		return fmt.Appendf(nil, "data: %s\n\n", e.Body())
	}
	d := e.details()
	data, _ := json.Marshal(struct { // strings and nulls cannot fail
		Type    string  `json:"type"`
		Code    *string `json:"code"`
		Message string  `json:"message"`
		Param   *string `json:"param"`
		Error   details `json:"error"`
	}{"error", d.Code, d.Message, d.Param, d})
	return fmt.Appendf(nil, "event: error\ndata: %s\n\n", data)
}

// Write answers a request with the error.
func (e *Error) Write(w http.ResponseWriter) {
	h := w.Header()
	body := e.Body()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	if e.RetryAfter > 0 {
		seconds := int64((e.RetryAfter + time.Second - 1) / time.Second)
		h.Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(body) // a client that left has no use for the error
}
