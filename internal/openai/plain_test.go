package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// The plain reader says once more, and slowly, what a Meter must find: it has
// the whole stream at once, cuts it by the book and decodes every event.

// plainEvent is one event of a stream.
type plainEvent struct {
	name string
	data *string // nil without a data field
}

// plainEvents cuts a stream as WHATWG's "parsing an event stream" says, but
// for the end: a last event counts though no blank line follows.
func plainEvents(stream []byte) (events []plainEvent) {
	text := strings.TrimPrefix(string(stream), "\ufeff")
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	var ev plainEvent
	for _, line := range strings.Split(text+"\n\n", "\n") {
		if line == "" {
			if ev.data != nil {
				events = append(events, ev)
			}
			ev = plainEvent{}
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			ev.name = value
		case "data":
			if ev.data != nil {
				value = *ev.data + "\n" + value
			}
			ev.data = &value
		}
	}
	return events
}

// plainTally is what a stream holds. Where one event says a thing at several
// places, whose order decoding loses, every candidate is kept.
type plainTally struct {
	events, chunks, unparsed                 int
	firstToken                               TokenKind
	hasUsage, done, terminal, aborted, fails bool
	seen, finished                           map[int64]bool
	last                                     map[string][]any // field → candidates
	meant                                    []Event
}

func readPlain(stream []byte) *plainTally {
	t := &plainTally{seen: map[int64]bool{}, finished: map[int64]bool{}, last: map[string][]any{}}
	for _, ev := range plainEvents(stream) {
		t.add(ev)
	}
	return t
}

// readPlainJSON is readPlain for an unstreamed answer.
func readPlainJSON(body []byte) *plainTally {
	t := readPlain(nil)
	data := string(bytes.ReplaceAll(body, []byte("\n"), []byte(" ")))
	t.add(plainEvent{data: &data})
	t.events, t.chunks, t.firstToken, t.meant = 0, 0, NoToken, nil
	return t
}

func (t *plainTally) complete() bool {
	for index := range t.seen {
		if !t.finished[index] || index >= 64 { // a meter gives up on more than 64
			return t.done || t.terminal
		}
	}
	return t.done || t.terminal || len(t.seen) > 0
}

func (t *plainTally) add(ev plainEvent) {
	t.events++
	if strings.HasPrefix(*ev.data, "[DONE]") {
		t.done = true
		t.meant = append(t.meant, Event{Data: true, Done: true})
		return
	}
	e := plainChunk{found: map[string][]any{}, tokens: map[TokenKind]bool{}, choices: -1, tally: t}
	e.failed = ev.name == "error"
	dec := json.NewDecoder(strings.NewReader(*ev.data))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) == nil {
		if root, ok := v.(map[string]any); ok {
			e.root(root)
		}
	} else if *ev.data != "" {
		t.unparsed++
	}
	e.settle()
}

// plainChunk is what one event holds.
type plainChunk struct {
	tally                  *plainTally
	found                  map[string][]any
	tokens                 map[TokenKind]bool
	choices                int
	usage, failed, aborted bool
}

func (e *plainChunk) settle() {
	t := e.tally
	meaning := Event{Data: true, Failed: e.failed, Aborted: e.aborted}
	for _, kind := range []TokenKind{ContentToken, ToolToken, ReasoningToken} {
		if !e.tokens[kind] {
			continue
		}
		meaning.Token = true
		t.chunks++
		if t.firstToken == NoToken {
			t.firstToken = kind
		}
		break
	}
	meaning.UsageOnly = e.usage && e.choices == 0 && !meaning.Token && !e.failed
	t.meant = append(t.meant, meaning)
	t.hasUsage = t.hasUsage || e.usage
	t.aborted = t.aborted || e.aborted
	t.fails = t.fails || e.failed
	for field, found := range e.found {
		if strings.HasPrefix(field, "error") && !e.failed {
			continue
		}
		t.last[field] = found
	}
	if e.failed { // the last error counts, with all it says
		for _, field := range []string{"error code", "error status", "error type"} {
			t.last[field] = e.found[field]
		}
	}
}

func (e *plainChunk) find(field string, v any) { e.found[field] = append(e.found[field], v) }

func (e *plainChunk) root(v map[string]any) {
	const depth = 1
	list, isList := v["choices"].([]any)
	if value, ok := v["choices"]; isList || ok && value == nil {
		e.choices = 0
		for _, c := range list {
			if c, ok := c.(map[string]any); ok {
				e.choice(c, depth+2)
			}
		}
	}
	e.usageOf(v)
	e.errorOf(v["error"])
	e.code(v["code"])
	e.errorType(v["error_type"])
	e.finish(v["stop_reason"])
	e.state(v["status"])
	if timings, ok := v["timings"].(map[string]any); ok {
		e.count("cached", timings["cache_n"])
	}
	for _, key := range []string{"response", "message"} {
		if inner, ok := v[key].(map[string]any); ok {
			e.usageOf(inner)
			e.errorOf(inner["error"])
			e.state(inner["status"])
		}
	}
	if d, ok := v["delta"].(map[string]any); ok {
		e.delta(d, depth+1)
	}
	kind, _ := v["type"].(string)
	e.event(clipped(kind), v["delta"])
}

func (e *plainChunk) event(kind string, delta any) {
	text, _ := delta.(string)
	switch {
	case kind == "error":
		e.failed = true
	case kind == "response.completed", kind == "response.incomplete", kind == "message_stop":
		e.tally.terminal = true
	case kind == "response.failed":
		e.tally.terminal, e.aborted = true, true
	case !strings.HasSuffix(kind, ".delta") || text == "":
	case strings.Contains(kind, "reasoning"):
		e.tokens[ReasoningToken] = true
	case strings.Contains(kind, "_call"):
		e.tokens[ToolToken] = true
	default:
		e.tokens[ContentToken] = true
	}
}

func (e *plainChunk) choice(v map[string]any, depth int) {
	index := int64(e.choices)
	e.choices++
	if n, ok := plainCount(v["index"]); ok {
		index = n
	}
	e.tally.seen[index] = true
	ended := e.finish(v["finish_reason"])
	e.content(v["text"], depth)
	if d, ok := v["delta"].(map[string]any); ok {
		ended = e.delta(d, depth+1) || ended
	}
	if ended {
		e.tally.finished[index] = true
	}
}

func (e *plainChunk) delta(v map[string]any, depth int) (ended bool) {
	for _, key := range []string{"content", "text", "refusal"} {
		e.content(v[key], depth)
	}
	for _, key := range []string{"reasoning", "reasoning_content", "thinking"} {
		e.reasoning(v[key], depth)
	}
	if calls, ok := v["tool_calls"].([]any); ok {
		for _, call := range calls {
			e.call(call, depth+1)
		}
	}
	e.call(v["function_call"], depth)
	e.toolText(v["partial_json"])
	if a, ok := v["audio"].(map[string]any); ok {
		e.content(a["data"], depth+1)
		e.content(a["transcript"], depth+1)
	}
	return e.finish(v["stop_reason"])
}

// content reads a value in a container of the given depth.
func (e *plainChunk) content(v any, depth int) {
	switch v := v.(type) {
	case string:
		e.tokens[ContentToken] = e.tokens[ContentToken] || v != ""
	case []any:
		for _, part := range v {
			e.contentPart(part, depth+1)
		}
	}
}

func (e *plainChunk) contentPart(v any, depth int) {
	if depth > maxOpen {
		return
	}
	if s, ok := v.(string); ok {
		e.content(s, depth)
	}
	part, ok := v.(map[string]any)
	if !ok || depth == maxOpen {
		return
	}
	e.content(part["text"], depth+1)
	e.content(part["refusal"], depth+1)
	e.reasoning(part["thinking"], depth+1)
	switch media := part["image_url"].(type) {
	case string:
		e.content(media, depth+1)
	case map[string]any, []any:
		e.tokens[ContentToken] = e.tokens[ContentToken] || depth+1 < maxOpen
	}
}

func (e *plainChunk) reasoning(v any, depth int) {
	switch v := v.(type) {
	case string:
		e.tokens[ReasoningToken] = e.tokens[ReasoningToken] || v != ""
	case []any:
		for _, part := range v {
			if depth+1 > maxOpen {
				return
			}
			if s, ok := part.(string); ok {
				e.reasoning(s, depth+1)
			}
			if part, ok := part.(map[string]any); ok && depth+1 < maxOpen {
				e.reasoning(part["text"], depth+2)
			}
		}
	}
}

// call reads a tool call in a container of the given depth.
func (e *plainChunk) call(v any, depth int) {
	call, ok := v.(map[string]any)
	if !ok || depth >= maxOpen {
		return
	}
	for _, key := range []string{"name", "arguments", "input"} {
		switch text := call[key].(type) {
		case map[string]any, []any:
			e.tokens[ToolToken] = e.tokens[ToolToken] || depth+1 < maxOpen
		default:
			e.toolText(text)
		}
	}
	e.call(call["function"], depth+1)
	e.call(call["custom"], depth+1)
}

func (e *plainChunk) toolText(v any) {
	switch v := v.(type) {
	case string:
		e.tokens[ToolToken] = e.tokens[ToolToken] || v != ""
	case map[string]any, []any:
		e.tokens[ToolToken] = true
	}
}

func (e *plainChunk) finish(v any) bool {
	s, _ := v.(string)
	if s == "" {
		return false
	}
	e.find("finish", clipped(s))
	e.aborted = e.aborted || s == "abort" || s == "error"
	return true
}

func (e *plainChunk) state(v any) {
	switch v {
	case "completed":
		e.find("finish", "stop")
	case "incomplete":
		e.find("finish", "length")
	case "cancelled":
		e.find("finish", "cancelled")
	case "failed":
		e.find("finish", "error")
		e.aborted = true
	}
}

func (e *plainChunk) usageOf(v map[string]any) {
	u, ok := v["usage"].(map[string]any)
	if !ok {
		return
	}
	e.usage = true
	e.count("prompt", u["prompt_tokens"])
	e.count("prompt", u["input_tokens"])
	e.count("completion", u["completion_tokens"])
	e.count("completion", u["output_tokens"])
	e.count("cached", u["cached_tokens"])
	e.count("cached", u["cache_read_input_tokens"])
	e.count("cached", u["prompt_cache_hit_tokens"])
	for _, key := range []string{"prompt_tokens_details", "input_tokens_details"} {
		if d, ok := u[key].(map[string]any); ok {
			e.count("cached", d["cached_tokens"])
		}
	}
	for _, key := range []string{"completion_tokens_details", "output_tokens_details"} {
		if d, ok := u[key].(map[string]any); ok {
			e.count("reasoning", d["reasoning_tokens"])
		}
	}
}

func (e *plainChunk) count(field string, v any) {
	if n, ok := plainCount(v); ok {
		e.find(field, int(n))
	}
}

func plainCount(v any) (int64, bool) {
	n, ok := v.(json.Number)
	if !ok || strings.HasPrefix(string(n), "-") {
		return 0, false
	}
	f, _ := strconv.ParseFloat(string(n), 64)
	return int64(min(f, 1<<53)), true
}

func (e *plainChunk) errorOf(v any) {
	switch v := v.(type) {
	case string:
		e.failed = e.failed || v != ""
	case bool:
		e.failed = e.failed || v
	case json.Number:
		n, _ := plainCount(v)
		e.failed = e.failed || n != 0
	case []any:
		e.failed = true
	case map[string]any:
		e.failed = true
		e.code(v["code"])
		e.errorType(v["type"])
		for _, key := range []string{"status", "status_code", "http_status_code"} {
			if n, ok := plainCount(v[key]); ok {
				e.status(n)
			}
		}
	}
}

func (e *plainChunk) code(v any) {
	if s, ok := v.(string); ok && s != "" {
		e.find("error code", clipped(s))
		e.status(statusOf([]byte(clipped(s))))
	}
	if n, ok := plainCount(v); ok {
		if n != 0 {
			e.find("error code", strconv.FormatInt(n, 10))
		}
		e.status(n)
	}
}

func (e *plainChunk) status(n int64) {
	if n >= 100 && n < 600 {
		e.find("error status", int(n))
	}
}

func (e *plainChunk) errorType(v any) {
	if s, ok := v.(string); ok && s != "" {
		e.find("error type", clipped(s))
	}
}

func clipped(s string) string { return s[:min(len(s), captureLen)] }

// differences lists where a meter's tally departs from the plain one.
func (t *plainTally) differences(m *Meter) (out []string) {
	differ := func(field string, got, want any) {
		if got != want {
			out = append(out, field+": "+show(got)+", want "+show(want))
		}
	}
	differ("events", m.Events, t.events)
	differ("chunks", m.Chunks, t.chunks)
	differ("unparsed", m.Unparsed, t.unparsed)
	differ("first token", m.FirstToken, t.firstToken)
	differ("has usage", m.HasUsage, t.hasUsage)
	differ("has cached", m.HasCached, len(t.last["cached"]) > 0)
	differ("done", m.Done, t.done)
	differ("terminal", m.Terminal, t.terminal)
	differ("aborted", m.Aborted, t.aborted)
	differ("failed", m.Failed, t.fails)
	differ("complete", m.Complete(), t.complete())
	for field, got := range map[string]any{
		"prompt": m.Usage.Prompt, "completion": m.Usage.Completion, "cached": m.Usage.Cached, "reasoning": m.Usage.Reasoning,
		"finish": m.FinishReason, "error code": m.ErrorCode, "error status": m.ErrorStatus, "error type": m.ErrorType,
	} {
		want := t.last[field]
		switch {
		case slices.Contains(want, got):
		case len(want) > 0:
			differ(field, got, want[0])
		case got != 0 && got != "":
			out = append(out, field+": "+show(got)+", want none")
		}
	}
	return out
}

func show(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
