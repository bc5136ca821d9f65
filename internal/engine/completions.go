package engine

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"time"
)

type completionRequest struct {
	sampling
	Prompt    json.RawMessage `json:"prompt"`
	MaxTokens *int            `json:"max_tokens"`
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	g, err := s.readCompletion(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	created, id := time.Now().Unix(), s.newID("cmpl-")
	s.answer(w, r, g, &completionFace{
		chunks: newChunks(id, "text_completion", created, g),
		id:     id, created: created, g: g,
	})
}

func (s *Server) readCompletion(w http.ResponseWriter, r *http.Request) (*generation, error) {
	var req completionRequest
	if err := decode(w, r, &req); err != nil {
		return nil, err
	}
	if err := s.knows(req.Model); err != nil {
		return nil, err
	}
	prompts, ok := texts(req.Prompt)
	if !ok || len(prompts) != 1 || len(prompts[0]) == 0 {
		return nil, invalid("prompt", "'prompt' must be one non-empty prompt: a string or a list of token ids.")
	}
	limit := req.MaxTokens
	if limit == nil {
		limit = new(16) // the API's default
	}
	g := &generation{sampling: req.sampling, prompt: prompts[0], promptTokens: len(prompts[0]) / bytesPerToken}
	return g, g.compose(&s.limits, limit, "prompt")
}

// texts reads a string, a list of strings, a list of token ids or a list of
// such lists; each as a whole number of tokens.
func texts(raw json.RawMessage) ([][]byte, bool) {
	if text, ok := read[string](raw); ok {
		return [][]byte{pad([]byte(text))}, true
	}
	var out [][]byte
	if many, ok := read[[]string](raw); ok {
		for _, text := range many {
			out = append(out, pad([]byte(text)))
		}
		return out, true
	}
	if ids, ok := read[[]uint32](raw); ok {
		return [][]byte{tokenText(ids)}, true
	}
	lists, ok := read[[][]uint32](raw)
	for _, ids := range lists {
		out = append(out, tokenText(ids))
	}
	return out, ok
}

func read[T any](raw json.RawMessage) (v T, ok bool) {
	err := json.Unmarshal(raw, &v)
	return v, err == nil
}

func tokenText(ids []uint32) []byte {
	var text []byte
	for _, id := range ids {
		text = binary.LittleEndian.AppendUint32(text, id)
	}
	return text
}

type completionFace struct {
	chunks
	id      string
	created int64
	g       *generation
}

func (f *completionFace) open(b []byte) []byte { return b }
func (f *completionFace) head(b []byte) []byte { return b }

func (f *completionFace) token(b, piece []byte) []byte {
	b = append(append(b, f.start...), `{"index":0,"text":"`...)
	b = append(b, piece...)
	return append(b, `","logprobs":null,"finish_reason":null}]}`+"\n\n"...)
}

func (f *completionFace) tail(b []byte, u usage) []byte {
	return f.end(b, `{"index":0,"text":"","logprobs":null,"finish_reason":"`, u)
}

func (f *completionFace) whole(u usage) any {
	return map[string]any{
		"id": f.id, "object": "text_completion", "created": f.created, "model": f.g.Model,
		"choices": []any{map[string]any{
			"index": 0, "text": string(f.g.text), "logprobs": nil, "finish_reason": f.g.reason,
		}},
		"usage": u,
	}
}
