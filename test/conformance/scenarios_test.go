package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

const (
	fleetModel = "llama-3.1-8b"
	slashModel = "lab/model-1" // another name of the fleet's model
	deadModel  = "dead"        // its backend refuses connections
)

// scenario is a call, what its backend does, and what has to come of it.
type scenario struct {
	name   string
	call   call
	script func(*fakellm.Request) fakellm.Script // nil: no backend of its own
	keys   string                                // of its model, see pool
	check  func(*testing.T, seen)
}

// hello is the usual prompt.
var hello = []string{"Say hello."}

// scenarios are made anew for each SDK, since scripts count their requests.
func scenarios(t *testing.T) []scenario {
	return slices.Concat(served(), toolStreams(t), refused(), broken(), retried(), left())
}

// served are calls to the simulated fleet that succeed.
func served() []scenario {
	ask := func(api string) call { return call{API: api, Model: fleetModel, Prompts: hello, MaxTokens: 8} }
	stream := func(api string, usage bool) call {
		c := ask(api)
		c.Stream, c.Usage = true, usage
		return c
	}
	return []scenario{
		{name: "models", call: call{API: "models"}, check: wantModels(fleetModel, slashModel, deadModel)},
		{name: "model", call: call{API: "model", Model: fleetModel}, check: wantModels(fleetModel)},
		{name: "model with a slash", call: call{API: "model", Model: slashModel}, check: wantModels(slashModel)},
		{name: "chat", call: ask("chat"), check: wantText("length", 8)},
		{name: "chat stream", call: stream("chat", false), check: wantStream("length", 0)},
		{name: "chat stream with usage", call: stream("chat", true), check: wantStream("length", 8)},
		{name: "completion", call: ask("completions"), check: wantText("length", 8)},
		{name: "completion stream", call: stream("completions", false), check: wantStream("length", 0)},
		{name: "completion stream with usage", call: stream("completions", true), check: wantStream("length", 8)},
		{name: "embeddings", call: call{API: "embeddings", Model: fleetModel, Prompts: []string{"a", "b"}}, check: wantVectors},
		{name: "response", call: ask("responses"), check: wantText("incomplete", 8)},
		{name: "response stream", call: stream("responses", false), check: wantResponseEvents},
	}
}

func wantModels(ids ...string) func(*testing.T, seen) {
	return func(t *testing.T, got seen) {
		for _, id := range ids {
			if !slices.Contains(got.Models, id) {
				t.Errorf("models %q lack %q", got.Models, id)
			}
		}
	}
}

func wantText(finish string, tokens int) func(*testing.T, seen) {
	return func(t *testing.T, got seen) {
		if got.Error != nil || !got.Ended || got.Text == "" || got.Finish != finish || got.Tokens != tokens {
			t.Errorf("got %s, want a text that ended with %q after %d tokens", show(got.result), finish, tokens)
		}
	}
}

// wantStream wants a whole stream, with one usage chunk of so many tokens, or
// with none if tokens is 0.
func wantStream(finish string, tokens int) func(*testing.T, seen) {
	return func(t *testing.T, got seen) {
		usageChunks := min(tokens, 1)
		if got.Error != nil || !got.Ended || got.Chunks < 8 || got.Text == "" || got.Finish != finish {
			t.Errorf("got %s, want a stream that ended with %q", show(got.result), finish)
		}
		if got.UsageChunks != usageChunks || got.Tokens != tokens {
			t.Errorf("got %d usage chunks with %d tokens, want %d with %d", got.UsageChunks, got.Tokens, usageChunks, tokens)
		}
	}
}

func wantVectors(t *testing.T, got seen) {
	if len(got.Vectors) != 2 || got.Vectors[0] < 2 || got.Vectors[0] != got.Vectors[1] {
		t.Errorf("got vectors of %v dimensions, want two alike", got.Vectors)
	}
}

func wantResponseEvents(t *testing.T, got seen) {
	n := len(got.Events)
	if got.Error != nil || !got.Ended || n < 8 || got.Text == "" {
		t.Fatalf("got %s", show(got.result))
	}
	if got.Events[0] != "response.created" || got.Events[n-1] != "response.incomplete" {
		t.Errorf("events %q", got.Events)
	}
	for i := 1; i < n; i++ {
		if got.Sequence[i] <= got.Sequence[i-1] {
			t.Errorf("sequence numbers %v do not rise", got.Sequence)
		}
	}
}

// toolStreams are recorded streams of tool calls.
func toolStreams(t *testing.T) []scenario {
	var list []scenario
	for _, e := range recorded(t) {
		if !e.Stream || !e.HasDone || !strings.Contains(e.File, "_tools_stream_") {
			continue
		}
		model := strings.TrimSuffix(e.File, ".sse")
		list = append(list, scenario{
			name:   model,
			call:   call{API: "chat", Model: model, Prompts: hello, Stream: true, Usage: true},
			script: func(*fakellm.Request) fakellm.Script { return fakellm.Recorded(e) },
			check: func(t *testing.T, got seen) {
				want := readRecorded(t, e.Body)
				if got.Error != nil || !got.Ended || got.Text != want.Text || got.Finish != want.Finish ||
					len(got.Tools) != len(want.Tools) || (len(want.Tools) > 0 && !reflect.DeepEqual(got.Tools, want.Tools)) {
					t.Errorf("got %+v, want %s", show(got.result), show(want))
				}
			},
		})
	}
	return list
}

// recorded loads the recorded exchanges; there are none without the data sets.
func recorded(t *testing.T) []fakellm.Exchange {
	t.Helper()
	dir := dataPath("sse")
	if _, err := os.Stat(dir); err != nil {
		t.Logf("without recorded streams: the public data sets are not here (FIRSTTOKEN_DATA): %v", err)
		return nil
	}
	exchanges, err := fakellm.LoadRecorded(dir)
	if err != nil {
		t.Fatal(err)
	}
	return exchanges
}

// readRecorded reads a chat stream without any SDK.
func readRecorded(t *testing.T, body []byte) result {
	t.Helper()
	var want result
	for _, data := range events(string(body)) {
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content   string
					ToolCalls []struct {
						Index    int
						Function toolCall
					} `json:"tool_calls"`
				}
				FinishReason string `json:"finish_reason"`
			}
		}
		if data.text == "[DONE]" {
			break
		}
		if err := json.Unmarshal([]byte(data.text), &chunk); err != nil {
			t.Fatal(err)
		}
		for _, c := range chunk.Choices {
			want.Text += c.Delta.Content
			if c.FinishReason != "" {
				want.Finish = c.FinishReason
			}
			for _, part := range c.Delta.ToolCalls {
				for len(want.Tools) <= part.Index {
					want.Tools = append(want.Tools, toolCall{})
				}
				want.Tools[part.Index].Name += part.Function.Name
				want.Tools[part.Index].Arguments += part.Function.Arguments
			}
		}
	}
	return want
}

// refused are calls that end in an HTTP error. class is what Python and Node
// raise; the Go SDK has one type for all.
func refused() []scenario {
	type row struct {
		name   string
		call   call
		engine int // status of the engine's own answer; 0: the gateway refuses
		status int
		class  string
		code   string
		param  string
	}
	chat := func(model string) call { return call{API: "chat", Model: model, Prompts: hello} }
	rows := []row{
		{"unknown model", chat("nobody"), 0, 404, "NotFoundError", "model_not_found", "model"},
		{"unknown model of a stream", call{API: "chat", Model: "nobody", Prompts: hello, Stream: true}, 0, 404, "NotFoundError", "model_not_found", "model"},
		{"unknown model's details", call{API: "model", Model: "no/body"}, 0, 404, "NotFoundError", "model_not_found", "model"},
		{"no messages", call{API: "chat", Model: fleetModel, Prompts: []string{}}, 0, 400, "BadRequestError", "empty_array", "messages"},
		{"dead backend", chat(deadModel), 0, 502, "InternalServerError", "upstream_dial_failed", ""},
		{"engine's 400", chat("engine-400"), 400, 400, "BadRequestError", "said_by_engine", "messages"},
		{"engine's 401", chat("engine-401"), 401, 401, "AuthenticationError", "said_by_engine", "messages"},
		{"engine's 403", chat("engine-403"), 403, 403, "PermissionDeniedError", "said_by_engine", "messages"},
		{"engine's 404", chat("engine-404"), 404, 404, "NotFoundError", "said_by_engine", "messages"},
		{"engine's 422", chat("engine-422"), 422, 422, "UnprocessableEntityError", "said_by_engine", "messages"},
		{"engine's 429", chat("engine-429"), 429, 429, "RateLimitError", "said_by_engine", "messages"},
		{"engine's 500", chat("engine-500"), 500, 500, "InternalServerError", "said_by_engine", "messages"},
		{"engine's 503", chat("engine-503"), 503, 503, "InternalServerError", "said_by_engine", "messages"},
	}
	var list []scenario
	for _, r := range rows {
		s := scenario{name: r.name, call: r.call, check: func(t *testing.T, got seen) {
			wantRefusal(t, got, r.status, r.class, r.code)
			if got.Error != nil && got.Error.Param != r.param {
				t.Errorf("param %q, want %q", got.Error.Param, r.param)
			}
		}}
		if r.engine != 0 {
			s.script = func(*fakellm.Request) fakellm.Script { return engineError(r.engine, nil) }
		}
		list = append(list, s)
	}
	return list
}

// engineError is an engine's own error, marked so that it is known again.
func engineError(status int, h http.Header) fakellm.Script {
	return fakellm.Status(status, h,
		`{"error":{"message":"no, says the engine","type":"engine_error","param":"messages","code":"said_by_engine"}}`)
}

func wantRefusal(t *testing.T, got seen, status int, class, code string) {
	t.Helper()
	e := got.Error
	if e == nil || got.Ended {
		t.Fatalf("got %s, want an error", show(got.result))
	}
	if e.Class != class && e.Class != "Error" {
		t.Errorf("raised %s, want %s", e.Class, class)
	}
	if e.Status != status || e.Code != code || e.Type == "" || e.Message == "" || e.RequestID == "" {
		t.Errorf("got %+v, want status %d, code %q, and a type, a message and a request id", *e, status, code)
	}
}

// broken are answers whose engine does not finish them. None may look whole.
func broken() []scenario {
	const tokens = 5
	ends := []struct {
		name    string
		end     fakellm.Step
		message string
	}{
		{"between events", fakellm.CutClean(), "ended the stream before its answer was complete"},
		{"inside an event", fakellm.CutDirty(`data: {"id":"x","choices":[{"index":0,"delta":{"con`), "connection to the engine was lost"},
		{"inside an event, cleanly", fakellm.Script{fakellm.Send(`data: {"id":"x","choices":[{"in`), fakellm.CutClean()}.Play, "ended the stream before its answer was complete"},
		{"by a reset", fakellm.Reset(), "connection to the engine was lost"},
		{"by an error event", fakellm.Script{fakellm.Event(`{"error":{"message":"out of memory, says the engine","type":"server_error","param":null,"code":null}}`), fakellm.CutClean()}.Play, "out of memory, says the engine"},
	}
	var list []scenario
	for _, api := range []string{"chat", "completions", "responses"} {
		for i, e := range ends {
			model := fmt.Sprintf("broken-%s-%d", api, i)
			script := fakellm.Broken(tokens, 0, 0, e.end)
			if api == "responses" {
				script = fakellm.Script{fakellm.Stream(), fakellm.Send(responseStart(model)...), e.end}
			}
			list = append(list, scenario{
				name:   api + " stream broken " + e.name,
				call:   call{API: api, Model: model, Prompts: hello, Stream: true, Retries: 2},
				script: func(*fakellm.Request) fakellm.Script { return script },
				check: func(t *testing.T, got seen) {
					wantBroken(t, got, fakellm.Text(tokens), e.message)
					wantRequests(t, got, 1) // a stream that began is never repeated
				},
			})
		}
	}
	return append(list, scenario{
		name: "answer cut in the middle",
		call: call{API: "chat", Model: "cut-answer", Prompts: hello},
		script: func(*fakellm.Request) fakellm.Script {
			h := http.Header{"Content-Type": {"application/json"}, "Content-Length": {"1000"}}
			return fakellm.Script{fakellm.Header(200, h), fakellm.CutDirty(`{"id":"x","choices":[`)}
		},
		check: func(t *testing.T, got seen) {
			wantRefusal(t, got, 502, "InternalServerError", "upstream_connection_lost")
		},
	})
}

// responseStart are the first events of a streamed response, with as much
// text as five tokens of the other APIs.
func responseStart(model string) []string {
	start := fmt.Sprintf(`{"id":"resp_1","object":"response","created_at":1,"status":"in_progress","model":%q,"output":[],`+
		`"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"error":null,"incomplete_details":null,"instructions":null,`+
		`"metadata":{},"temperature":1,"top_p":1}`, model)
	text, _ := json.Marshal(fakellm.Text(5))
	return []string{
		`event: response.created` + "\n" + `data: {"type":"response.created","sequence_number":0,"response":` + start + "}\n\n",
		`event: response.output_text.delta` + "\n" + `data: {"type":"response.output_text.delta","sequence_number":1,` +
			`"item_id":"msg_1","output_index":0,"content_index":0,"logprobs":[],"delta":` + string(text) + "}\n\n",
	}
}

func wantBroken(t *testing.T, got seen, text, message string) {
	t.Helper()
	if got.Error == nil || got.Ended {
		t.Fatalf("got %s: the break was not reported", show(got.result))
	}
	if c := got.Error.Class; c != "APIError" && c != "StreamError" {
		t.Errorf("raised %s, want APIError", c)
	}
	if !strings.Contains(got.Error.Message, message) {
		t.Errorf("message %q, want %q in it", got.Error.Message, message)
	}
	if got.Text != text {
		t.Errorf("text before the break %q, want %q", got.Text, text)
	}
}

// retried are refusals that the SDKs try again by themselves. One backend
// each, so that the gateway has nobody else to ask.
func retried() []scenario {
	soon := http.Header{"Retry-After": {"1"}}
	ask := func(model string, stream bool, retries int) call {
		return call{API: "chat", Model: model, Prompts: hello, Stream: stream, Retries: retries}
	}
	return []scenario{
		{
			name: "retry after 503", call: ask("retry-503", true, 2),
			script: fakellm.Sequence(engineError(503, soon), fakellm.Tokens(5, 0, 0)),
			check:  wantRetriedLater,
		},
		{
			name: "retry after 429", call: ask("retry-429", false, 2),
			script: fakellm.Sequence(engineError(429, soon), fakellm.JSON(5, 0)),
			check:  wantRetriedLater,
		},
		{
			name: "retries used up", call: ask("retry-in-vain", true, 1),
			script: fakellm.Sequence(engineError(503, soon)),
			check: func(t *testing.T, got seen) {
				wantRefusal(t, got, 503, "InternalServerError", "said_by_engine")
				wantRequests(t, got, 2)
			},
		},
		{
			name: "retry after the gateway's own 502", call: ask("retry-502", true, 2),
			script: fakellm.Sequence(fakellm.Script{fakellm.Reset()}, fakellm.Tokens(5, 0, 0)),
			check:  wantRetried,
		},
		{
			name: "no retry of a 400", call: ask("retry-400", true, 2),
			script: fakellm.Sequence(engineError(400, nil), fakellm.Tokens(5, 0, 0)),
			check: func(t *testing.T, got seen) {
				wantRefusal(t, got, 400, "BadRequestError", "said_by_engine")
				wantRequests(t, got, 1)
			},
		},
	}
}

func wantRetried(t *testing.T, got seen) {
	if got.Error != nil || !got.Ended || got.Text != fakellm.Text(5) {
		t.Errorf("got %s, want the text of the second try", show(got.result))
	}
	wantRequests(t, got, 2)
}

// wantRetriedLater also wants the second try no sooner than the first answer
// asked for, in whole seconds.
func wantRetriedLater(t *testing.T, got seen) {
	wantRetried(t, got)
	if r := got.backend.Requests(); len(r) == 2 {
		if wait := r[1].Received.Sub(r[0].Received); wait < time.Second {
			t.Errorf("tried again after %v, before the second that Retry-After asked for", wait)
		}
	}
}

func wantRequests(t *testing.T, got seen, n int) {
	t.Helper()
	if c := got.backend.Count(); c != n {
		t.Errorf("the backend got %d requests, want %d", c, n)
	}
}

// left are streams that the client closes while the engine is still at work.
func left() []scenario {
	var list []scenario
	for _, api := range []string{"chat", "completions"} {
		list = append(list, scenario{
			name:   api + " stream left by the client",
			call:   call{API: api, Model: "left-" + api, Prompts: hello, Stream: true, LeaveAfter: 3},
			script: func(*fakellm.Request) fakellm.Script { return fakellm.Broken(5, 0, 0, fakellm.Hang()) },
			check: func(t *testing.T, got seen) {
				if got.Error != nil || got.Chunks != 3 {
					t.Errorf("got %s, want 3 chunks and no error", show(got.result))
				}
				waitUntil(t, "the engine to be told", func() bool { return !got.backend.Requests()[0].Cancelled().IsZero() })
				waitUntil(t, "the access log", func() bool { return len(got.gateway.access(got.model)) == 1 })
				if l := got.gateway.access(got.model)[0]; l.Status != 499 || l.Reason != "client_left" {
					t.Errorf("logged %+v, want 499 and client_left", l)
				}
			},
		})
	}
	return list
}

// show is a result without what is empty.
func show(r result) string {
	text, _ := json.Marshal(r)
	return string(text)
}
