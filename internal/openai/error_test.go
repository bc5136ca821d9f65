package openai

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// decoded reads an error body as a client does, and holds it to four keys.
func decoded(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var v map[string]map[string]any
	if err := json.Unmarshal(body, &v); err != nil || len(v) != 1 || len(v["error"]) != 4 {
		t.Fatalf("body %s: %v", body, err)
	}
	return v["error"]
}

func TestErrorBody(t *testing.T) {
	for _, c := range []struct {
		err                        Error
		message, kind, param, code any
	}{
		{Error{Status: 400, Message: "m", Param: "model", Code: "c"}, "m", "invalid_request_error", "model", "c"},
		{Error{Status: 404, Message: "m"}, "m", "invalid_request_error", nil, nil},
		{Error{Status: 429, Message: "m"}, "m", "rate_limit_error", nil, nil},
		{Error{Status: 500, Message: "m"}, "m", "server_error", nil, nil},
		{Error{Status: 503, Message: "m", Type: "upstream_error"}, "m", "upstream_error", nil, nil},
		{Error{Status: 502}, "Bad Gateway", "server_error", nil, nil},
		{Error{Status: 499}, "unknown error", "invalid_request_error", nil, nil},
		{Error{Status: 400, Message: "a \"b\"\n\r\n\ndata: [DONE]\u2028\\"}, "a \"b\"\n\r\n\ndata: [DONE]\u2028\\", "invalid_request_error", nil, nil},
		{Error{Status: 400, Message: "\xff", Code: "\xff"}, "\ufffd", "invalid_request_error", nil, "\ufffd"},
		{*Invalid("n", "bad", "m"), "m", "invalid_request_error", "n", "bad"},
	} {
		got := decoded(t, c.err.Body())
		for key, want := range map[string]any{"message": c.message, "type": c.kind, "param": c.param, "code": c.code} {
			if v, there := got[key]; !there || v != want {
				t.Errorf("%+v: %s is %v, want %v", c.err, key, v, want)
			}
		}
		if c.err.Error() == "" {
			t.Errorf("%+v: no message", c.err)
		}
	}
}

// TestErrorEvent reads the event with a plain reader, and as the SDKs do: they
// raise on data with an error.
func TestErrorEvent(t *testing.T) {
	e := &Error{Status: 502, Code: "upstream_truncated", Param: "p", Message: "two\nlines\r\n\r\ndata: [DONE]\n\n"}
	for api := ChatCompletions; api <= Responses; api++ {
		events := plainEvents(e.Event(api))
		if len(events) != 1 || events[0].data == nil {
			t.Fatalf("%v: %d events", api, len(events))
		}
		var v struct {
			Error                json.RawMessage
			Type, Code           string
			Message, Param, Junk *string
		}
		if err := json.Unmarshal([]byte(*events[0].data), &v); err != nil {
			t.Fatalf("%v: %v", api, err)
		}
		if got := decoded(t, []byte(`{"error":`+string(v.Error)+`}`)); got["message"] != e.Message || got["code"] != e.Code {
			t.Errorf("%v: %v", api, got)
		}
		named := events[0].name == "error" && v.Type == "error" && v.Code == e.Code && v.Message != nil && *v.Message == e.Message && *v.Param == "p"
		if (api == Responses) != named {
			t.Errorf("%v: event %q of %s", api, events[0].name, *events[0].data)
		}
		if strings.Contains(string(e.Event(api)), "\n\ndata: [DONE]") {
			t.Errorf("%v: the message breaks out", api)
		}
	}
}

func TestErrorWrite(t *testing.T) {
	for after, want := range map[time.Duration]string{
		0: "", -time.Second: "", 1: "1", time.Millisecond: "1", time.Second: "1", time.Second + 1: "2", 90 * time.Second: "90",
	} {
		w := httptest.NewRecorder()
		(&Error{Status: 429, Message: "slow down", RetryAfter: after}).Write(w)
		if got := w.Header().Get("Retry-After"); got != want {
			t.Errorf("%v: Retry-After %q, want %q", after, got, want)
		}
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
		if got := decoded(t, w.Body.Bytes()); got["message"] != "slow down" || w.Header().Get("Content-Length") == "" {
			t.Errorf("%v, header %v", got, w.Header())
		}
	}
}
