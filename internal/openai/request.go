package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

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

	// ServiceTier is the client's service_tier; may be empty.
	ServiceTier string

	// PromptTokens estimates the prompt's length: four bytes a token, inline
	// media left out.
	PromptTokens int

	// Turn counts the user's messages in the conversation; 0 if unknown.
	Turn int

	// AskedUsage says that the client asked for the usage chunk itself.
	AskedUsage bool

	body     []byte
	model    span // the model's value, quotes included
	options  span // the value of stream_options; empty if absent
	usage    span // the value of stream_options.include_usage; empty if absent
	prompt   span // the value of messages, prompt or input
	head     span // what chat templates put before it: tools or instructions
	end      int  // offset of the outermost closing brace
	prompted bool // the required field is there
	keyed    bool // Session is the prompt_cache_key
}

// span is a part of a body: body[from:to].
type span struct{ from, to int }

func (s span) empty() bool { return s.to == 0 }

// maxNesting is how deep a body may nest. Real ones need a tenth of it, and
// engines fail on a thousand.
const maxNesting = 200

// ReadRequest checks a request body and reads the fields the gateway needs.
// The body must be one JSON object in UTF-8 without duplicate keys at any
// depth (RFC 7493), so that gateway and engine cannot read it differently;
// numbers of any size pass as they are. The request keeps body, which must
// not be changed afterwards.
func ReadRequest(api Endpoint, body []byte) (*Request, *Error) {
	if nestsTooDeep(body) {
		return nil, Invalid("", "nested_too_deep",
			fmt.Sprintf("the request body nests objects and arrays too deep; at most %d levels are allowed", maxNesting))
	}
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
	if bad := r.check(); bad != nil {
		return nil, bad
	}
	return r, nil
}

// nestsTooDeep looks closer only at bodies with enough brackets to be deep.
func nestsTooDeep(body []byte) bool {
	if bytes.Count(body, []byte{'{'})+bytes.Count(body, []byte{'['}) <= maxNesting {
		return false
	}
	depth := 0
	for i := 0; i < len(body) && depth <= maxNesting; i++ {
		switch body[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			i += 1 + stringLength(body[i+1:])
		}
	}
	return depth > maxNesting
}

// stringLength counts the bytes up to a string's closing quote.
func stringLength(p []byte) int {
	for i := 0; ; i += 2 { // a backslash and what it escapes
		if i >= len(p) {
			return len(p)
		}
		if i += plainText(p[i:]); i == len(p) || p[i] == '"' {
			return i
		}
	}
}

// check looks for the fields an endpoint cannot do without.
func (r *Request) check() *Error {
	if r.model.empty() {
		return Invalid("model", "missing_required_parameter", `the parameter "model" is missing; name the model to use`)
	}
	if name := requiredField(r.Endpoint); name != "" && !r.prompted {
		return Invalid(name, "missing_required_parameter",
			fmt.Sprintf("the parameter %q is missing; %s needs it", name, r.Endpoint.Path()))
	}
	return nil
}

func (r *Request) readMembers(dec *jsontext.Decoder) *Error {
	required := requiredField(r.Endpoint)
	for dec.PeekKind() != '}' {
		key, err := dec.ReadValue()
		if err != nil {
			return brokenJSON(err)
		}
		name, bad := fieldName(key)
		if bad != nil {
			return bad
		}
		value, err := dec.ReadValue()
		if err != nil {
			return brokenJSON(err)
		}
		end := int(dec.InputOffset())
		if bad := r.readField(name, value, span{from: end - len(value), to: end}); bad != nil {
			return bad
		}
		if name != "" && name == required && value.Kind() != 'n' {
			r.prompted = true
		}
	}
	return nil
}

// requiredField is the field with the endpoint's prompt, if there must be one.
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
// other. Escapes in a name are undone first: "mod\u0065l" is model. Engines in
// Go take "Model" for model, so that nobody can say what it means here.
func fieldName(quoted []byte) (string, *Error) {
	if bytes.IndexByte(quoted, '\\') >= 0 {
		name, err := jsontext.AppendUnquote([]byte{'"'}, quoted)
		if err != nil {
			return "", brokenJSON(err)
		}
		quoted = append(name, '"')
	}
	if name := knownField(quoted); name != "" {
		return name, nil
	}
	key := quoted[1 : len(quoted)-1]
	for _, name := range [...]string{"model", "stream", "stream_options"} {
		if bytes.EqualFold(key, []byte(name)) {
			return "", Invalid(name, "ambiguous_key",
				fmt.Sprintf("the key %q differs from %q only in case; write %q", key, name, name))
		}
	}
	return "", nil
}

func knownField(quoted []byte) string {
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
	case `"service_tier"`:
		return "service_tier"
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
		r.prompt = at
		return r.readMessages(value)
	case "prompt", "input":
		r.prompt = at
		r.PromptTokens += estimateTokens(value)
		if r.Endpoint == Responses {
			r.Turn = userItems(value)
		}
	case "instructions", "tools":
		r.head = at
		r.PromptTokens += estimateTokens(value)
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		return r.readMaxTokens(name, value)
	case "prompt_cache_key":
		if s := stringValue(value); s != "" {
			r.Session, r.keyed = s, true
		}
	case "service_tier":
		r.ServiceTier = stringValue(value)
	case "user":
		if !r.keyed {
			r.Session = stringValue(value)
		}
	}
	return nil
}

func (r *Request) readModel(value jsontext.Value, at span) *Error {
	s := stringValue(value)
	if s == "" {
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
	r.Turn = userMessages(value)
	return nil
}

// userItems counts the user's messages in the input of a response; a text is one.
func userItems(input jsontext.Value) int {
	switch input.Kind() {
	case '"':
		return 1
	case '[':
		return userMessages(input)
	}
	return 0
}

// userMessages counts the keys "role" with the value "user" in valid JSON.
// Inside of text their quotes are escaped, so that text counts for nothing.
func userMessages(v []byte) (n int) {
	role, user := []byte(`"role"`), []byte(`"user"`)
	for {
		at := bytes.Index(v, role)
		if at < 0 {
			return n
		}
		v = bytes.TrimLeft(v[at+len(role):], " \t\r\n")
		if len(v) == 0 || v[0] != ':' {
			continue
		}
		v = bytes.TrimLeft(v[1:], " \t\r\n")
		if bytes.HasPrefix(v, user) {
			n++
		}
	}
}

// readMaxTokens reads one of the names of the limit; of max_tokens and
// max_completion_tokens the newer counts. -1 is llama.cpp's word for no limit.
func (r *Request) readMaxTokens(name string, value jsontext.Value) *Error {
	if value.Kind() == 'n' {
		return nil
	}
	n, _ := strconv.ParseFloat(string(value), 64) // out of range is infinite
	if value.Kind() != '0' || n < -1 || n != math.Trunc(n) {
		return Invalid(name, "invalid_value", name+" must be a whole number that is not negative (or -1, where the engine takes it for no limit)")
	}
	if n >= 0 && n < 1<<31 && (name != "max_tokens" || r.MaxTokens == 0) {
		r.MaxTokens = int(n)
	}
	return nil
}

func (r *Request) readStreamOptions(value jsontext.Value, at span) *Error {
	r.options = at
	if value.Kind() == 'n' {
		return nil
	}
	if value.Kind() != '{' {
		return Invalid("stream_options", "invalid_type", "stream_options must be an object")
	}
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
		switch v.Kind() {
		case 't', 'f', 'n':
		default:
			return Invalid("stream_options.include_usage", "invalid_type", "stream_options.include_usage must be true or false")
		}
		to := at.from + int(dec.InputOffset())
		r.usage = span{from: to - len(v), to: to}
		r.AskedUsage = v.Kind() == 't'
	}
	return nil
}

// stringValue is a string's text, and empty for any other value.
func stringValue(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1])
	}
	s, _ := jsontext.AppendUnquote(nil, v) // the value was checked as part of the body
	return string(s)
}

// brokenJSON says what is wrong and where, in words that hold nothing of the
// body but a character.
func brokenJSON(err error) *Error {
	var syntax *jsontext.SyntacticError
	where := ""
	if errors.As(err, &syntax) {
		where, err = fmt.Sprintf(" (at byte %d)", syntax.ByteOffset), syntax.Err
	}
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return Invalid("", "duplicate_key", "the request body has the same key twice in one object"+where+"; send each key once")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Invalid("", "invalid_json", "the request body is not valid JSON: it ends too early"+where+"; send it whole")
	case errors.Is(err, io.EOF):
		return Invalid("", "invalid_json", "the request body is empty; send a JSON object")
	}
	what, rest, quoted := strings.Cut(err.Error(), " `")
	if quoted {
		what += rest[strings.LastIndexByte(rest, '`')+1:]
	}
	return Invalid("", "invalid_json", "the request body is not valid JSON: "+what+where+"; send one JSON object in UTF-8")
}

// Forget frees the body; Body and AppendBlocks must not be called after it.
func (r *Request) Forget() { r.body = nil }

// Body returns the request's body for an engine that knows the model as
// model ("" keeps the client's name); injectUsage adds
// stream_options.include_usage to a stream whose client did not ask for it.
// Every other byte is the client's. With nothing to change it is the original.
func (r *Request) Body(model string, injectUsage bool) []byte {
	var edits [2]edit
	n := 0
	if model != "" && model != r.Model {
		quoted, _ := jsontext.AppendQuote(nil, model) // what is no UTF-8 is replaced
		edits[n] = edit{at: r.model, text: quoted}
		n++
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
