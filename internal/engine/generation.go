package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
)

// maxBody bounds a request body, in bytes.
const maxBody = 32 << 20

// sampling are the fields that the generating endpoints have in common.
// min_tokens, ignore_eos and cache_salt are vLLM's.
type sampling struct {
	Model     string   `json:"model"`
	Stream    bool     `json:"stream"`
	N         *int     `json:"n"`
	Stop      stopList `json:"stop"`
	MinTokens int      `json:"min_tokens"`
	IgnoreEOS bool     `json:"ignore_eos"`
	CacheSalt string   `json:"cache_salt"`

	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// stopList is a string or a list of them.
type stopList []string

func (l *stopList) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*l = nil
		if one != "" {
			*l = stopList{one}
		}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(l))
}

// generation is a prompt and the whole answer it will get; what is left to the
// engine is when.
type generation struct {
	sampling
	prompt       []byte // a whole number of tokens
	promptTokens int
	text         []byte // the answer
	tokens       int    // the answer's length
	reason       string // why it ends there: stop, length
}

// usage counts tokens for the client.
type usage struct {
	prompt, cached, completion int
}

// compose decides the answer. limit is the request's own token limit, nil for
// none; param names the field the prompt came in.
func (g *generation) compose(p *Params, limit *int, param string) error {
	if g.N != nil && *g.N != 1 {
		return invalid("n", "Only n=1 is supported.")
	}
	if limit != nil && *limit < 1 {
		return invalid("max_tokens", "max_tokens must be at least 1.")
	}
	room := p.MaxModelLen - g.promptTokens
	if room < 1 || (limit != nil && *limit > room) {
		return tooLong(p.MaxModelLen, g.promptTokens, limit, param)
	}
	if limit != nil {
		room = *limit
	}
	seed := digest(g.prompt)
	g.tokens, g.reason = room, "length"
	if natural := max(naturalLength(seed), g.MinTokens); natural < room && !g.IgnoreEOS {
		g.tokens, g.reason = natural, "stop"
	}
	g.text = compose(seed, g.tokens)
	if cut, stopped := cutAtStop(g.text, g.Stop); stopped {
		g.text, g.reason = cut, "stop"
		g.tokens = len(cut)/bytesPerToken + 1
	}
	return nil
}

func tooLong(limit, prompt int, output *int, param string) error {
	asked := ""
	if output != nil {
		asked = " and " + itoa(*output) + " in the completion"
	}
	return invalid(param, "This model's maximum context length is "+itoa(limit)+" tokens, but the request has "+
		itoa(prompt)+" in the prompt"+asked+".").coded(http.StatusBadRequest, "context_length_exceeded")
}

// request is what the engine has to do for it.
func (g *generation) request() Request {
	whole := append(bytes.Clone(g.prompt), g.text...)
	return Request{
		PromptTokens: g.promptTokens,
		OutputTokens: g.tokens,
		Hashes:       hashText(g.CacheSalt, whole),
	}
}

// piece is the text of the i-th token of the answer, from 0.
func (g *generation) piece(i int) []byte {
	from := min(i*bytesPerToken, len(g.text))
	to := min(from+bytesPerToken, len(g.text))
	return g.text[from:to]
}

// decode reads a JSON body.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooBig *http.MaxBytesError
	if errors.As(err, &tooBig) {
		return invalid("", "The request body is too large.").coded(http.StatusRequestEntityTooLarge, "request_too_large")
	}
	if err != nil {
		return invalid("", "The request body could not be read: "+err.Error())
	}
	err = json.Unmarshal(body, into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return invalid(wrong.Field, "Invalid type for '"+wrong.Field+"': got "+wrong.Value+".")
	}
	if err != nil {
		return invalid("", "We could not parse the JSON body of your request: "+err.Error())
	}
	return nil
}

// message is one turn of a conversation, in the chat or the responses form.
type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// content is a text or a list of parts; parts without text count as the JSON
// they are.
type content []byte

func (c *content) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil { // null is the empty text
		*c = content(text)
		return nil
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	for _, p := range parts {
		var part struct {
			Text *string `json:"text"`
		}
		if json.Unmarshal(p, &part) == nil && part.Text != nil {
			*c = append(*c, *part.Text...)
		} else {
			*c = append(*c, p...)
		}
	}
	return nil
}

// render writes a conversation as a chat template would: a header before each
// message, and at the end the one the answer follows.
func render(tools json.RawMessage, messages []message) []byte {
	var text []byte
	if len(tools) > 0 && !bytes.Equal(tools, []byte("null")) {
		text = renderMessage(text, "tools", tools)
	}
	for _, m := range messages {
		text = renderMessage(text, m.Role, m.Content)
	}
	return renderMessage(text, "assistant", nil)
}

func renderMessage(text []byte, role string, content []byte) []byte {
	text = append(text, "<|"...)
	text = append(text, role...)
	text = pad(append(text, "|>"...))
	return pad(append(text, content...))
}
