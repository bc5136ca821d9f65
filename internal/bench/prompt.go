package bench

import (
	"encoding/json"

	"github.com/firsttoken/firsttoken/internal/trace"
)

// bytesPerToken is the length of a token of synthesised text. Each is a space
// and a common word of three letters, one token to most tokenizers.
const bytesPerToken = 4

// words are 128 of them.
const words = " the and for are but not you all any can had her was one our out day get has him his how man new now old see two way who boy did" +
	" its let put say she too use dad mom act add age ago aid aim air arm art ask bad bag ban bar bay bed bet bid big bit box bus buy" +
	" cap car cat cow cry cup cut dog dry due ear eat egg end eye far fat fee few fit fix fly fun gap gas god gun guy hat hit hot ice" +
	" ill job joy key kid lab law lay led leg lie lip lot low map mix net nor odd off oil pay per pet pop raw red run sea set sit six"

const wordCount = len(words) / bytesPerToken

// prompt is the text of a request: what its trace knows of it, and then text
// of its own. Wherever a segment's id occurs the text is the same.
func prompt(r *trace.Request, own uint64) string {
	text := make([]byte, 0, r.PromptTokens*bytesPerToken)
	left := r.PromptTokens
	for _, s := range r.Content {
		n := min(s.Tokens, left)
		text = appendText(text, s.ID, n)
		left -= n
	}
	return string(appendText(text, own, left))
}

func appendText(text []byte, id uint64, tokens int) []byte {
	for i := range tokens {
		at := int(mix(id+mix(uint64(i)))%uint64(wordCount)) * bytesPerToken
		text = append(text, words[at:at+bytesPerToken]...)
	}
	return text
}

// mix spreads a number over all 64 bits (the finaliser of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// body is what is sent.
type body struct {
	Model         string         `json:"model"`
	Messages      []message      `json:"messages,omitempty"`
	Prompt        string         `json:"prompt,omitempty"`
	MaxTokens     int            `json:"max_tokens"`
	Stream        bool           `json:"stream,omitempty"`
	StreamOptions *streamOptions `json:"stream_options,omitempty"`
	IgnoreEOS     bool           `json:"ignore_eos,omitempty"`
	User          string         `json:"user,omitempty"` // keeps a session's turns together
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

func (p *Plan) body(r *trace.Request, own uint64) []byte {
	b := body{Model: r.Model, MaxTokens: max(r.OutputTokens, 1), Stream: r.Stream, IgnoreEOS: p.IgnoreEOS, User: r.Session}
	text := prompt(r, own)
	if p.Endpoint == "chat" {
		b.Messages = []message{{"user", text}}
	} else {
		b.Prompt = text
	}
	if r.Stream {
		b.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	encoded, _ := json.Marshal(b) // strings and numbers cannot fail
	return encoded
}
