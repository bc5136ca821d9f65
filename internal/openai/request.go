package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Endpoint is one of the forwarded APIs.
type Endpoint uint8

// The endpoints the gateway forwards.
const (
	ChatCompletions Endpoint = iota
	Completions
	Embeddings
	Responses
)

// Path is the endpoint's URL path.
func (e Endpoint) Path() string {
	return [...]string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"}[e]
}

// String is the endpoint's metric label.
func (e Endpoint) String() string {
	return [...]string{"chat_completions", "completions", "embeddings", "responses"}[e]
}

// Request is what the gateway reads of a request body. The body itself is
// kept as it came and only ever spliced.
type Request struct {
	Endpoint  Endpoint
	Model     string
	Stream    bool
	MaxTokens int    // tokens the client allows; 0 if it did not say
	Session   string // prompt_cache_key, else user; may be empty

	// PromptTokens estimates the prompt's length: four bytes a token, inline
	// media left out.
	PromptTokens int

	// AskedUsage says that the client asked for the usage chunk itself.
	AskedUsage bool

	body    []byte
	model   span // the model's value, quotes included
	options span // the value of stream_options; empty if absent
	usage   span // the value of stream_options.include_usage; empty if absent
	end     int  // offset of the outermost closing brace
}

// span is a part of a body: body[from:to].
type span struct{ from, to int }

func (s span) empty() bool { return s.to == 0 }

// bytesPerToken is the usual rule of thumb for English text and BPE tokenizers.
const bytesPerToken = 4

// mediaTokens is what one inline image or audio clip is taken for.
const mediaTokens = 1000

// ReadRequest checks a request body and reads the fields the gateway needs.
// The body must be one JSON object in UTF-8 without duplicate keys at any
// depth (RFC 7493), so that gateway and engine cannot read it differently;
// numbers of any size pass as they are. The request keeps body, which must
// not be changed afterwards.
func ReadRequest(api Endpoint, body []byte) (*Request, *Error) {
	r := &Request{Endpoint: api, body: body}
	dec := jsontext.NewDecoder(bytes.NewBuffer(body))
	if dec.PeekKind() != '{' {
		if _, err := dec.ReadValue(); err != nil {
			return nil, brokenJSON(err)
		}
		return nil, Invalid("", "invalid_body", "the request body must be a JSON object")
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, brokenJSON(err)
	}
	if bad := r.readMembers(dec); bad != nil {
		return nil, bad
	}
	if _, err := dec.ReadToken(); err != nil { // the closing brace
		return nil, brokenJSON(err)
	}
	r.end = int(dec.InputOffset()) - 1
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, Invalid("", "invalid_json", "the request body has text after its JSON object; send exactly one object")
	}
	return r, r.check()
}

// presence of the fields an endpoint cannot do without.
func (r *Request) check() *Error {
	if r.model.empty() {
		return Invalid("model", "missing_required_parameter", "you must provide a model parameter")
	}
	return nil
}

func (r *Request) readMembers(dec *jsontext.Decoder) *Error {
	required := requiredField(r.Endpoint)
	found := required == ""
	for dec.PeekKind() != '}' {
		key, err := dec.ReadValue()
		if err != nil {
			return brokenJSON(err)
		}
		name := fieldName(key)
		value, err := dec.ReadValue()
		if err != nil {
			return brokenJSON(err)
		}
		at := span{from: int(dec.InputOffset()) - len(value), to: int(dec.InputOffset())}
		if bad := r.readField(name, value, at); bad != nil {
			return bad
		}
		if name == required && string(value) != "null" {
			found = true
		}
	}
	if !found {
		return Invalid(required, "missing_required_parameter",
			fmt.Sprintf("%s needs the parameter %q", r.Endpoint.Path(), required))
	}
	return nil
}

func requiredField(api Endpoint) string {
	switch api {
	case ChatCompletions:
		return "messages"
	case Completions:
		return "prompt"
	case Embeddings:
		return "input"
	}
	return ""
}

// fieldName is the name of one of the fields the gateway reads, "" of any
// other. Escapes in a name are undone first: "mod\u0065l" is model.
func fieldName(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') >= 0 {
		name, err := jsontext.AppendUnquote(nil, quoted)
		if err != nil {
			return ""
		}
		quoted = append(append([]byte{'"'}, name...), '"')
	}
	switch string(quoted) {
	case `"model"`:
		return "model"
	case `"stream"`:
		return "stream"
	case `"stream_options"`:
		return "stream_options"
	case `"messages"`:
		return "messages"
	case `"prompt"`:
		return "prompt"
	case `"input"`:
		return "input"
	case `"instructions"`:
		return "instructions"
	case `"tools"`:
		return "tools"
	case `"max_tokens"`:
		return "max_tokens"
	case `"max_completion_tokens"`:
		return "max_completion_tokens"
	case `"max_output_tokens"`:
		return "max_output_tokens"
	case `"user"`:
		return "user"
	case `"prompt_cache_key"`:
		return "prompt_cache_key"
	}
	return ""
}

func (r *Request) readField(name string, value jsontext.Value, at span) *Error {
	switch name {
	case "model":
		return r.readModel(value, at)
	case "stream":
		return r.readStream(value)
	case "stream_options":
		return r.readStreamOptions(value, at)
	case "messages":
		return r.readMessages(value)
	case "prompt", "input", "instructions", "tools":
		r.PromptTokens += estimateTokens(value)
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		return r.readMaxTokens(name, value)
	case "prompt_cache_key":
		if s, ok := stringValue(value); ok {
			r.Session = s
		}
	case "user":
		if s, ok := stringValue(value); ok && r.Session == "" {
			r.Session = s
		}
	}
	return nil
}

func (r *Request) readModel(value jsontext.Value, at span) *Error {
	s, ok := stringValue(value)
	if !ok || s == "" {
		return Invalid("model", "invalid_type", "model must be a non-empty string")
	}
	r.Model, r.model = s, at
	return nil
}

func (r *Request) readStream(value jsontext.Value) *Error {
	switch value.Kind() {
	case 't', 'f', 'n':
		r.Stream = value.Kind() == 't'
		return nil
	}
	return Invalid("stream", "invalid_type", "stream must be true or false")
}

func (r *Request) readMessages(value jsontext.Value) *Error {
	if value.Kind() != '[' {
		return Invalid("messages", "invalid_type", "messages must be an array of messages")
	}
	if len(bytes.TrimSpace(value[1:len(value)-1])) == 0 {
		return Invalid("messages", "empty_array", "messages must hold at least one message")
	}
	r.PromptTokens += estimateTokens(value)
	return nil
}

func (r *Request) readMaxTokens(name string, value jsontext.Value) *Error {
	if value.Kind() == 'n' {
		return nil
	}
	n, err := strconv.ParseFloat(string(value), 64)
	if value.Kind() != '0' || (err == nil && n < 0) {
		return Invalid(name, "invalid_value", name+" must be a positive integer")
	}
	if n < 1<<31 {
		r.MaxTokens = int(n)
	}
	return nil
}

func (r *Request) readStreamOptions(value jsontext.Value, at span) *Error {
	switch value.Kind() {
	case 'n':
		r.options = at
		return nil
	case '{':
	default:
		return Invalid("stream_options", "invalid_type", "stream_options must be an object")
	}
	r.options = at
	dec := jsontext.NewDecoder(bytes.NewBuffer(value))
	_, _ = dec.ReadToken() // the value was checked as part of the body
	for dec.PeekKind() != '}' {
		key, err := dec.ReadToken()
		if err != nil {
			return brokenJSON(err)
		}
		name := key.String()
		v, err := dec.ReadValue()
		if err != nil {
			return brokenJSON(err)
		}
		if name != "include_usage" {
			continue
		}
		to := at.from + int(dec.InputOffset())
		r.usage = span{from: to - len(v), to: to}
		r.AskedUsage = v.Kind() == 't'
	}
	return nil
}

func stringValue(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	s, err := jsontext.AppendUnquote(nil, v)
	return string(s), err == nil
}

// estimateTokens takes four bytes of JSON for a token. Token arrays count
// their elements; inline media counts as mediaTokens each.
func estimateTokens(v jsontext.Value) int {
	if inner := bytes.TrimSpace(v[1:max(len(v)-1, 1)]); v.Kind() == '[' && len(inner) > 0 && inner[0] >= '0' && inner[0] <= '9' {
		return bytes.Count(v, []byte{','}) + 1
	}
	size, media := len(v), 0
	for _, mark := range [][]byte{[]byte(`"data:`), []byte(`"data":"`)} {
		for rest := []byte(v); ; {
			i := bytes.Index(rest, mark)
			if i < 0 {
				break
			}
			rest = rest[i+len(mark):]
			end := bytes.IndexByte(rest, '"')
			if end < 0 {
				break
			}
			if end > 1024 {
				size -= end
				media++
			}
			rest = rest[end:]
		}
	}
	return size/bytesPerToken + media*mediaTokens
}

func brokenJSON(err error) *Error {
	message := "the request body is not valid JSON"
	code := "invalid_json"
	var syntax *jsontext.SyntacticError
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		code = "duplicate_key"
		message = "the request body has the same key twice in one object; send each key once"
		if errors.As(err, &syntax) {
			message += fmt.Sprintf(" (at byte %d)", syntax.ByteOffset)
		}
	case errors.As(err, &syntax):
		message += fmt.Sprintf(": %v (at byte %d)", syntax.Err, syntax.ByteOffset)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		message += ": it ends too early"
	}
	return Invalid("", code, message)
}

// Body returns the request's body for an engine that knows the model as
// model ("" keeps the client's name); injectUsage adds
// stream_options.include_usage to a stream whose client did not ask for it.
// Every other byte is the client's. With nothing to change it is the original.
func (r *Request) Body(model string, injectUsage bool) []byte {
	var edits [2]edit
	n := 0
	if model != "" && model != r.Model {
		quoted, err := jsontext.AppendQuote(nil, model)
		if err == nil {
			edits[n] = edit{at: r.model, text: quoted}
			n++
		}
	}
	if injectUsage && r.Stream && !r.AskedUsage {
		edits[n] = r.usageEdit()
		n++
	}
	return splice(r.body, edits[:n])
}

func (r *Request) usageEdit() edit {
	const on = `"include_usage":true`
	switch {
	case !r.usage.empty():
		return edit{at: r.usage, text: []byte("true")}
	case r.options.empty():
		return edit{at: span{from: r.end, to: r.end}, text: []byte(`,"stream_options":{` + on + `}`)}
	}
	value := bytes.TrimSpace(r.body[r.options.from+1 : r.options.to-1])
	if r.body[r.options.from] == 'n' || len(value) == 0 { // null or {}
		return edit{at: r.options, text: []byte("{" + on + "}")}
	}
	start := r.options.from + 1
	return edit{at: span{from: start, to: start}, text: []byte(on + ",")}
}

// edit replaces a part of a body by text.
type edit struct {
	at   span
	text []byte
}

func splice(body []byte, edits []edit) []byte {
	if len(edits) == 0 {
		return body
	}
	if len(edits) == 2 && edits[0].at.from > edits[1].at.from {
		edits[0], edits[1] = edits[1], edits[0]
	}
	size := len(body)
	for _, e := range edits {
		size += len(e.text)
	}
	out := make([]byte, 0, size)
	from := 0
	for _, e := range edits {
		out = append(out, body[from:e.at.from]...)
		out = append(out, e.text...)
		from = e.at.to
	}
	return append(out, body[from:]...)
}
