package fakellm_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// chunk is as much of an answer as the tests look at.
type chunk struct {
	Object  string
	Model   string
	Choices []struct {
		Delta, Message struct{ Role, Content string }
		Text           string
		FinishReason   string `json:"finish_reason"`
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		TotalTokens      int `json:"total_tokens"`
	}
	Data []struct{ Embedding []float64 }
}

func parse(t *testing.T, data string) (c chunk) {
	t.Helper()
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return c
}

// outline says in a word what each event of a stream is.
func outline(t *testing.T, body string) (words []string) {
	t.Helper()
	for event := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			t.Fatalf("event %q", event)
		}
		words = append(words, describe(t, data))
	}
	return words
}

func describe(t *testing.T, data string) string {
	if data == "[DONE]" {
		return "done"
	}
	c := parse(t, data)
	switch {
	case len(c.Choices) == 0 && c.Usage != nil:
		return "usage"
	case c.Choices[0].FinishReason != "":
		return c.Choices[0].FinishReason
	case c.Choices[0].Delta.Role != "":
		return "role"
	}
	return c.Choices[0].Delta.Content + c.Choices[0].Text
}

func TestTokensComeAtTheirTimes(t *testing.T) {
	b := &fakellm.Backend{Script: always(fakellm.Tokens(3, 300*ms, 20*ms))}
	inBubble(t, b, func(t *testing.T, c client) {
		got := c.post(t.Context(), "/v1/chat/completions", stream)
		want := []struct {
			after time.Duration
			words []string
		}{
			{0, []string{"role"}},
			{300 * ms, []string{"w0 "}},
			{320 * ms, []string{"w1 "}},
			{340 * ms, []string{"w2 ", "stop", "done"}},
		}
		if len(got.pieces) != len(want) {
			t.Fatalf("pieces %v", got.pieces)
		}
		for i, p := range got.pieces {
			if words := outline(t, p.bytes); p.after != want[i].after || !reflect.DeepEqual(words, want[i].words) {
				t.Errorf("at %v: %q; want %v: %q", p.after, words, want[i].after, want[i].words)
			}
		}
	})
}

func TestStreams(t *testing.T) {
	for name, c := range map[string]struct {
		script fakellm.Script
		path   string
		body   string
		want   []string
	}{
		"chat":             {fakellm.Tokens(2, 0, 0), "/v1/chat/completions", stream, []string{"role", "w0 ", "w1 ", "stop", "done"}},
		"chat, usage":      {fakellm.Tokens(1, 0, 0), "/v1/chat/completions", usage, []string{"role", "w0 ", "stop", "usage", "done"}},
		"no tokens":        {fakellm.Tokens(0, 0, 0), "/v1/chat/completions", stream, []string{"role", "stop", "done"}},
		"completion":       {fakellm.Tokens(2, 0, 0), "/v1/completions", stream, []string{"w0 ", "w1 ", "stop", "done"}},
		"completion usage": {fakellm.Tokens(1, 0, 0), "/v1/completions", usage, []string{"w0 ", "stop", "usage", "done"}},
		"broken":           {fakellm.Broken(2, 0, 0, fakellm.CutClean()), "/v1/chat/completions", stream, []string{"role", "w0 ", "w1 "}},
		"broken at once":   {fakellm.Broken(0, 0, 0, fakellm.CutClean()), "/v1/chat/completions", stream, []string{"role"}},
		"reply":            {fakellm.Reply(1, 0, 0), "/v1/chat/completions", stream, []string{"role", "w0 ", "stop", "done"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &fakellm.Backend{Script: always(c.script)}
			inBubble(t, b, func(t *testing.T, cl client) {
				got := cl.post(t.Context(), c.path, c.body)
				if words := outline(t, got.body()); got.err != nil || !reflect.DeepEqual(words, c.want) {
					t.Errorf("stream %q, %v; want %q", words, got.err, c.want)
				}
				nulls := 0 // a client that asked for usage gets a null one in each other chunk
				if c.body == usage {
					nulls = len(c.want) - len([]string{"usage", "done"})
				}
				if got := strings.Count(got.body(), `"usage":null`); got != nulls {
					t.Errorf("%d chunks with a null usage, want %d", got, nulls)
				}
				if c.want[len(c.want)-1] == "done" {
					tokens := strings.Count(got.body(), "w0") + strings.Count(got.body(), "w1")
					if body := fakellm.Body(b.Requests()[0], tokens); body != got.body() {
						t.Errorf("Body is\n%s, the stream was\n%s", body, got.body())
					}
				}
			})
		})
	}
}

func TestWholeAnswers(t *testing.T) {
	inBubble(t, &fakellm.Backend{Script: always(fakellm.Reply(3, 300*ms, 20*ms))}, func(t *testing.T, c client) {
		got := c.post(t.Context(), "/v1/chat/completions", plain)
		if len(got.pieces) != 1 || got.pieces[0].after != 340*ms || got.header.Get("Content-Type") != "application/json" {
			t.Fatalf("pieces %v, header %v", got.pieces, got.header)
		}
		chat := parse(t, got.body())
		if chat.Object != "chat.completion" || chat.Model != "m" || chat.Choices[0].Message.Content != fakellm.Text(3) || chat.Usage.CompletionTokens != 3 {
			t.Errorf("chat %s", got.body())
		}
		if u := chat.Usage; u.PromptTokens == 0 || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
			t.Errorf("usage %+v", u)
		}

		got = c.post(t.Context(), "/v1/completions", plain)
		if text := parse(t, got.body()); text.Object != "text_completion" || text.Choices[0].Text != fakellm.Text(3) {
			t.Errorf("completion %s", got.body())
		}

		for input, n := range map[string]int{`"one"`: 1, `["a","b"]`: 2} {
			got = c.post(t.Context(), "/v1/embeddings", `{"model":"e","input":`+input+`}`)
			if e := parse(t, got.body()); e.Model != "e" || len(e.Data) != n || len(e.Data[0].Embedding) == 0 || e.Usage.PromptTokens == 0 {
				t.Errorf("embeddings of %s: %s", input, got.body())
			}
		}
	})
}
