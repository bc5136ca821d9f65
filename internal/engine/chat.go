package engine

import (
	"encoding/json"
	"net/http"
	"time"
)

type chatRequest struct {
	sampling
	Messages            []message       `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	g, err := s.readChat(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	created, id := time.Now().Unix(), s.newID("chatcmpl-")
	s.answer(w, r, g, &chatFace{
		chunks: newChunks(id, "chat.completion.chunk", created, g),
		id:     id, created: created, g: g,
	})
}

func (s *Server) readChat(w http.ResponseWriter, r *http.Request) (*generation, error) {
	var req chatRequest
	if err := decode(w, r, &req); err != nil {
		return nil, err
	}
	if err := s.knows(req.Model); err != nil {
		return nil, err
	}
	if len(req.Messages) == 0 {
		return nil, invalid("messages", "'messages' must hold at least one message.")
	}
	limit := req.MaxCompletionTokens
	if limit == nil {
		limit = req.MaxTokens
	}
	prompt := render(req.Tools, req.Messages)
	g := &generation{sampling: req.sampling, prompt: prompt, promptTokens: len(prompt) / bytesPerToken}
	return g, g.compose(&s.limits, limit, "messages")
}

func (s *Server) knows(model string) error {
	switch model {
	case s.spec.Model:
		return nil
	case "":
		return invalid("model", "You must provide a model parameter.")
	}
	return unknownModel(model)
}

type chatFace struct {
	chunks
	id      string
	created int64
	g       *generation
}

func (f *chatFace) open(b []byte) []byte { return b }

func (f *chatFace) head(b []byte) []byte {
	b = append(b, f.start...)
	return append(b, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
}

func (f *chatFace) token(b, piece []byte) []byte {
	b = append(append(b, f.start...), `{"index":0,"delta":{"content":"`...)
	b = append(b, piece...)
	return append(b, `"},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
}

func (f *chatFace) tail(b []byte, u usage) []byte {
	return f.end(b, `{"index":0,"delta":{},"logprobs":null,"finish_reason":"`, u)
}

func (f *chatFace) whole(u usage) any {
	return map[string]any{
		"id": f.id, "object": "chat.completion", "created": f.created, "model": f.g.Model,
		"choices": []any{map[string]any{
			"index":         0,
			"message":       map[string]any{"role": "assistant", "content": string(f.g.text), "refusal": nil},
			"logprobs":      nil,
			"finish_reason": f.g.reason,
		}},
		"usage": u,
	}
}
