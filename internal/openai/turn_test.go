package openai

import "testing"

func TestTurn(t *testing.T) {
	for _, c := range []struct {
		name string
		api  Endpoint
		body string
		want int
	}{
		{"one", ChatCompletions, `"messages":[{"role":"user","content":"hi"}]`, 1},
		{"a conversation", ChatCompletions, `"messages":[{"role":"system","content":"s"},{"content":"a","role":"user"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]`, 2},
		{"white space", ChatCompletions, "\"messages\":[{\"role\" :\n\t \"user\",\"content\":\"hi\"}]", 1},
		{"none of the user's", ChatCompletions, `"messages":[{"role":"system","content":"s"}]`, 0},
		{"another role", ChatCompletions, `"messages":[{"role":"users","content":"s"},{"role":"USER","content":"s"}]`, 0},
		{"text about roles", ChatCompletions, `"messages":[{"role":"user","content":"{\"role\":\"user\"} \"role"},{"role":"tool","content":"role","name":"user"}]`, 1},
		{"parts", ChatCompletions, `"messages":[{"role":"user","content":[{"type":"text","text":"role"},{"type":"text","text":"user"}]}]`, 1},
		{"elsewhere", ChatCompletions, `"metadata":{"role":"user"},"messages":[{"role":"user","content":"x"}]`, 1},
		{"text", Responses, `"input":"hi"`, 1},
		{"items", Responses, `"input":[{"role":"user","content":"hi"},{"type":"message","role":"assistant","content":[]},{"role":"user","content":"hi"}]`, 2},
		{"no input", Responses, `"previous_response_id":"r"`, 0},
		{"null", Responses, `"input":null`, 0},
		{"a prompt", Completions, `"prompt":"hi"`, 0},
		{"embeddings", Embeddings, `"input":"hi"`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, bad := ReadRequest(c.api, []byte(`{"model":"m",`+c.body+`}`))
			if bad != nil {
				t.Fatal(bad)
			}
			if r.Turn != c.want {
				t.Errorf("turn %d, want %d", r.Turn, c.want)
			}
		})
	}
}
