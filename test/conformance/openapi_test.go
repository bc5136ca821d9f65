package conformance

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// TestOpenAPIResponses validates every unstreamed answer: successes by the
// path and status of the description, errors that the gateway makes by its
// ErrorResponse, since it lists few error statuses.
func TestOpenAPIResponses(t *testing.T) {
	t.Parallel()
	spec := newSpec(t)
	t.Run("served", func(t *testing.T) { testServedAnswers(t, spec) })
	t.Run("refused", func(t *testing.T) { testRefusals(t, spec) })
}

func testServedAnswers(t *testing.T, spec *spec) {
	pools := simulatedFleet(t)
	pools[0].keys = fmt.Sprintf("aliases: [%s]", slashModel)
	g := startGateway(t, "", pools...)
	rows := []struct{ name, path, body string }{
		{"models", "/models", ""},
		{"model", "/models/{model}", ""},
		{"chat", "/chat/completions", `{"model":%q,"messages":[{"role":"user","content":"hi"}]}`},
		{"chat of few tokens", "/chat/completions", `{"model":%q,"max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`},
		{"completion", "/completions", `{"model":%q,"prompt":"hi"}`},
		{"embeddings", "/embeddings", `{"model":%q,"input":["a","b"]}`},
		{"response", "/responses", `{"model":%q,"input":"hi"}`},
		{"response of few tokens", "/responses", `{"model":%q,"input":"hi","max_output_tokens":3}`},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			method, body := "get", ""
			if r.body != "" {
				method, body = "post", fmt.Sprintf(r.body, fleetModel)
			}
			resp := send(t, method, g.url+"/v1"+strings.Replace(r.path, "{model}", fleetModel, 1), body)
			if resp.StatusCode != 200 {
				t.Errorf("status %d", resp.StatusCode)
			}
			if wrong := spec.answer(r.path, method, resp, readAll(t, resp)); wrong != nil {
				t.Errorf("%.2000v", wrong)
			}
		})
	}
}

func send(t *testing.T, method, url, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), strings.ToUpper(method), url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func testRefusals(t *testing.T, spec *spec) {
	g := startErrorGateway(t)
	for _, c := range errorCases() {
		t.Run(c.name, func(t *testing.T) {
			resp, body := c.send(t, g)
			if kind := resp.Header.Get("Content-Type"); kind != "application/json" {
				t.Errorf("content type %q", kind)
			}
			if wrong := spec.document("ErrorResponse", body); wrong != nil {
				t.Errorf("%s\n%.2000v", body, wrong)
			}
		})
	}
	// 429 is the one error that the description has for forwarded calls.
	t.Run("429 by path", func(t *testing.T) {
		resp := send(t, "post", g.url+"/v1/chat/completions", chatBody("full"))
		if wrong := spec.answer("/chat/completions", "post", resp, readAll(t, resp)); wrong != nil {
			t.Errorf("%.2000v", wrong)
		}
	})
}

// streamAPIs are the APIs that stream: the schema of their events in the
// description, and a request.
var streamAPIs = []struct{ name, path, schema, body string }{
	{"chat", "/v1/chat/completions", "CreateChatCompletionStreamResponse",
		`{"model":%q,"stream":true,"max_tokens":8,"messages":[{"role":"user","content":"hi"}]}`},
	{"chat with usage", "/v1/chat/completions", "CreateChatCompletionStreamResponse",
		`{"model":%q,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`},
	{"completion", "/v1/completions", "CreateCompletionStreamResponse",
		`{"model":%q,"stream":true,"max_tokens":8,"prompt":"hi"}`},
	{"completion with usage", "/v1/completions", "CreateCompletionStreamResponse",
		`{"model":%q,"stream":true,"stream_options":{"include_usage":true},"prompt":"hi"}`},
	{"response", "/v1/responses", "ResponseStreamEvent", `{"model":%q,"stream":true,"input":"hi"}`},
	{"response of few tokens", "/v1/responses", "ResponseStreamEvent",
		`{"model":%q,"stream":true,"max_output_tokens":3,"input":"hi"}`},
}

// TestOpenAPIChunks validates every event of every stream by the schema of
// its API, and the gateway's own error events, which the description knows
// for Responses only, by ErrorResponse: that is what the SDKs raise on.
func TestOpenAPIChunks(t *testing.T) {
	t.Parallel()
	spec := newSpec(t)
	pools := simulatedFleet(t)
	broken := &fakellm.Backend{Model: "broken", Script: func(r *fakellm.Request) fakellm.Script {
		if r.Path == "/v1/responses" {
			return fakellm.Script{fakellm.Stream(), fakellm.Send(responseStart("broken")...), fakellm.CutClean()}
		}
		return fakellm.Broken(3, 0, 0, fakellm.Reset())
	}}
	g := startGateway(t, "", append(pools, pool{model: broken.Model, urls: []string{serveBackend(t, broken)}})...)
	for _, api := range streamAPIs {
		t.Run(api.name, func(t *testing.T) {
			stream := readAll(t, send(t, "post", g.url+api.path, fmt.Sprintf(api.body, fleetModel)))
			testChunks(t, spec, api.schema, events(stream))
			if done := strings.HasSuffix(stream, "data: [DONE]\n\n"); done != (api.schema != "ResponseStreamEvent") {
				t.Errorf("ends in [DONE]: %v", done)
			}
		})
		t.Run(api.name+" broken", func(t *testing.T) {
			stream := events(readAll(t, send(t, "post", g.url+api.path, fmt.Sprintf(api.body, broken.Model))))
			last := stream[len(stream)-1]
			if wrong := spec.document("ErrorResponse", last.text); wrong != nil {
				t.Errorf("last event %s\n%.2000v", last.text, wrong)
			}
			if api.schema == "ResponseStreamEvent" && (last.name != "error" || !strings.Contains(last.text, `"type":"error"`)) {
				t.Errorf("the last event is %q %s, want one that is named and typed error", last.name, last.text)
			}
		})
	}
}

func testChunks(t *testing.T, spec *spec, schema string, stream []event) {
	t.Helper()
	if len(stream) < 2 {
		t.Fatalf("only %d events", len(stream))
	}
	for _, e := range stream {
		if e.text == "[DONE]" {
			continue
		}
		if wrong := spec.document(schema, e.text); wrong != nil {
			t.Errorf("event %s\n%.2000v", e.text, wrong)
		}
	}
}

// TestSpecRefuses shows that the validation can fail.
func TestSpecRefuses(t *testing.T) {
	t.Parallel()
	spec := newSpec(t)
	for _, row := range []struct{ schema, document string }{
		{"ErrorResponse", `{"error":{"message":"no","type":"t","param":null}}`},
		{"ErrorResponse", `{"error":"no"}`},
		{"ListModelsResponse", `{"object":"list","data":[{"id":"m","object":"model","owned_by":"x"}]}`},
		{"CreateChatCompletionStreamResponse", `{"id":"x","object":"chat.completion.chunk","created":1,"model":"m"}`},
		{"CreateChatCompletionStreamResponse", `{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`},
		{"CreateChatCompletionStreamResponse", `{"error":{"message":"no","type":"t","param":null,"code":null}}`},
		{"CreateCompletionStreamResponse", `{"id":"x","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop","logprobs":null}]}`},
		{"ResponseStreamEvent", `{"type":"response.output_text.delta","delta":"a","item_id":"i","output_index":0,"content_index":0}`},
		{"CreateEmbeddingResponse", `{"object":"list","model":"m","data":[{"object":"embedding","index":0}],"usage":{"prompt_tokens":1,"total_tokens":1}}`},
	} {
		var wrong *jsonschema.ValidationError
		if err := spec.document(row.schema, row.document); !errors.As(err, &wrong) {
			t.Errorf("%s of %s: %v, want it refused", row.schema, row.document, err)
		}
	}
	for _, row := range []struct {
		path, method string
		status       int
		kind, body   string
	}{
		{"/models", "get", 200, "application/json", `{"object":"list","data":[{"id":"m"}]}`},
		{"/models/{model}", "get", 200, "application/json", `{"id":"m","object":"modell","created":1,"owned_by":"x"}`},
		{"/chat/completions", "post", 200, "application/json", `{"id":"x","object":"chat.completion","created":1,"model":"m"}`},
		{"/chat/completions", "post", 201, "application/json", `{}`},
		{"/embeddings", "post", 200, "text/plain", `{}`},
		{"/responses", "post", 429, "application/json", `{"error":"busy"}`},
		{"/elsewhere", "get", 200, "application/json", `{}`},
	} {
		resp := &http.Response{StatusCode: row.status, Header: http.Header{"Content-Type": {row.kind}}}
		if spec.answer(row.path, row.method, resp, row.body) == nil {
			t.Errorf("%s %s accepts %d %s", row.method, row.path, row.status, row.body)
		}
	}
}
