package engine

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

type responsesRequest struct {
	sampling
	Input           json.RawMessage `json:"input"`
	Instructions    *string         `json:"instructions"`
	Tools           json.RawMessage `json:"tools"`
	MaxOutputTokens *int            `json:"max_output_tokens"`
}

func (s *Server) responses(w http.ResponseWriter, r *http.Request) {
	var req responsesRequest
	g, err := s.readResponse(w, r, &req)
	if err != nil {
		writeError(w, err)
		return
	}
	s.answer(w, r, g, &responseFace{
		id: s.newID("resp_"), item: s.newID("msg_"), created: time.Now().Unix(), g: g, req: &req,
	})
}

func (s *Server) readResponse(w http.ResponseWriter, r *http.Request, req *responsesRequest) (*generation, error) {
	if err := decode(w, r, req); err != nil {
		return nil, err
	}
	if err := s.knows(req.Model); err != nil {
		return nil, err
	}
	messages, ok := inputMessages(req.Input)
	if !ok {
		return nil, invalid("input", "'input' must be a non-empty string or a list of messages.")
	}
	if req.Instructions != nil {
		system := message{Role: "system", Content: content(*req.Instructions)}
		messages = append([]message{system}, messages...)
	}
	prompt := render(req.Tools, messages)
	g := &generation{sampling: req.sampling, prompt: prompt, promptTokens: len(prompt) / bytesPerToken}
	return g, g.compose(&s.limits, req.MaxOutputTokens, "input")
}

func inputMessages(raw json.RawMessage) ([]message, bool) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []message{{Role: "user", Content: content(text)}}, text != ""
	}
	var messages []message
	err := json.Unmarshal(raw, &messages)
	return messages, err == nil && len(messages) > 0
}

// responseFace writes the responses API: named events with a sequence number.
type responseFace struct {
	id, item string
	created  int64
	g        *generation
	req      *responsesRequest
	sequence int
}

func (f *responseFace) open(b []byte) []byte {
	start := f.response("in_progress", nil, nil)
	b = f.event(b, "response.created", map[string]any{"response": start})
	return f.event(b, "response.in_progress", map[string]any{"response": start})
}

func (f *responseFace) head(b []byte) []byte {
	b = f.event(b, "response.output_item.added", map[string]any{"output_index": 0, "item": f.message("in_progress", []any{})})
	return f.event(b, "response.content_part.added", f.part(map[string]any{"part": outputText("")}))
}

func (f *responseFace) token(b, piece []byte) []byte {
	b = append(b, "event: response.output_text.delta\n"+`data: {"type":"response.output_text.delta","content_index":0,"output_index":0,"item_id":"`...)
	b = append(append(b, f.item...), `","logprobs":[],"delta":"`...)
	b = append(append(b, piece...), `","sequence_number":`...)
	b = strconv.AppendInt(b, int64(f.sequence), 10)
	f.sequence++
	return append(b, "}\n\n"...)
}

func (f *responseFace) tail(b []byte, u usage) []byte {
	text, status := string(f.g.text), f.status()
	b = f.event(b, "response.output_text.done", f.part(map[string]any{"text": text, "logprobs": []any{}}))
	b = f.event(b, "response.content_part.done", f.part(map[string]any{"part": outputText(text)}))
	b = f.event(b, "response.output_item.done", map[string]any{"output_index": 0, "item": f.message(status, []any{outputText(text)})})
	return f.event(b, "response."+status, map[string]any{"response": f.whole(u)})
}

func (f *responseFace) whole(u usage) any {
	text := string(f.g.text)
	return f.response(f.status(), []any{f.message(f.status(), []any{outputText(text)})}, &u)
}

// status of the finished answer.
func (f *responseFace) status() string {
	if f.g.reason == "length" {
		return "incomplete"
	}
	return "completed"
}

func (f *responseFace) event(b []byte, name string, fields map[string]any) []byte {
	fields["type"], fields["sequence_number"] = name, f.sequence
	f.sequence++
	data, err := json.Marshal(fields)
	if err != nil {
		panic(err) // only our own plain types come here
	}
	b = append(append(b, "event: "...), name...)
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}

// part adds where in the answer a content event belongs.
func (f *responseFace) part(fields map[string]any) map[string]any {
	fields["item_id"], fields["output_index"], fields["content_index"] = f.item, 0, 0
	return fields
}

func (f *responseFace) message(status string, content []any) map[string]any {
	return map[string]any{"id": f.item, "type": "message", "role": "assistant", "status": status, "content": content}
}

func outputText(text string) map[string]any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

func (f *responseFace) response(status string, output []any, u *usage) map[string]any {
	if output == nil {
		output = []any{}
	}
	r := map[string]any{
		"id": f.id, "object": "response", "created_at": f.created, "status": status, "model": f.g.Model,
		"output": output, "error": nil, "incomplete_details": nil, "instructions": f.req.Instructions,
		"max_output_tokens": f.req.MaxOutputTokens, "metadata": map[string]any{}, "parallel_tool_calls": true,
		"previous_response_id": nil, "temperature": 1.0, "top_p": 1.0, "tools": []any{}, "tool_choice": "auto",
	}
	if status == "incomplete" {
		r["incomplete_details"] = map[string]any{"reason": "max_output_tokens"}
	}
	if u != nil {
		r["usage"] = map[string]any{
			"input_tokens": u.prompt, "input_tokens_details": map[string]any{"cached_tokens": u.cached, "cache_write_tokens": 0},
			"output_tokens": u.completion, "output_tokens_details": map[string]any{"reasoning_tokens": 0},
			"total_tokens": u.prompt + u.completion,
		}
	}
	return r
}
