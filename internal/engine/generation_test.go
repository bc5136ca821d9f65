package engine

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Whatever the body, it is refused in the API's shape or becomes a request the
// engine can run.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		``, `{`, `null`, `[]`, `{` + hello + `}`, `{` + hello + `,"stop":["a",""],"max_tokens":3}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}},null,3]}],"tools":[{}]}`,
		`{"model":"m","messages":[null],"stop":null,"n":1,"min_tokens":-5}`,
		`{"model":"m","prompt":[1,2],"input":[{"role":"user","content":"x"}]}`,
		`{"model":"m","prompt":[[1],[2]],"input":["a"],"stream_options":null}`,
		`{"model":"m","prompt":"` + strings.Repeat("x", 100) + `","input":"é","max_output_tokens":2}`,
	} {
		f.Add(body)
	}
	s, err := NewServer(testSpec())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	read := map[string]func(http.ResponseWriter, *http.Request) (*generation, error){
		"chat":       s.readChat,
		"completion": s.readCompletion,
		"response": func(w http.ResponseWriter, r *http.Request) (*generation, error) {
			return s.readResponse(w, r, &responsesRequest{})
		},
	}
	f.Fuzz(func(t *testing.T, body string) {
		for name, read := range read {
			g, err := read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body)))
			var refused *apiError
			if errors.As(err, &refused) {
				if refused.status < 400 || refused.status > 499 || refused.Message == "" {
					t.Errorf("%s: refused with %+v", name, refused)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			r := g.request()
			if err := s.limits.fits(r.PromptTokens, r.OutputTokens); err != nil || r.OutputTokens < 1 {
				t.Errorf("%s: %d + %d tokens: %v", name, r.PromptTokens, r.OutputTokens, err)
			}
			if g.promptTokens*bytesPerToken != len(g.prompt) || len(g.text) > g.tokens*bytesPerToken {
				t.Errorf("%s: %d bytes are %d tokens, %d bytes are %d", name, len(g.prompt), g.promptTokens, len(g.text), g.tokens)
			}
		}
		req := &embeddingRequest{}
		err := s.readEmbedding(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body)), req)
		if refused := (*apiError)(nil); err != nil && !errors.As(err, &refused) {
			t.Errorf("embedding: %v", err)
		}
	})
}
