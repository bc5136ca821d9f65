package fakellm

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Reply answers as the request asks: Tokens if it wants a stream, otherwise
// JSON with n tokens at the time at which the stream would have ended.
func Reply(n int, ttft, gap time.Duration) Script { return reply(n, steady(ttft, gap)) }

func reply(n int, wait pace) Script {
	return Script{func(w *Response) error {
		if w.Request.Stream {
			return tokens(n, wait).Play(w)
		}
		return JSON(n, wait.total(n)).Play(w)
	}}
}

// Tokens streams n content chunks, the first after ttft, the others gap apart.
// The header and the role chunk go out at once: neither is a token. After the
// last content come finish_reason, usage if stream_options.include_usage asked
// for it, and [DONE]. A request to /v1/completions gets text chunks instead.
func Tokens(n int, ttft, gap time.Duration) Script { return tokens(n, steady(ttft, gap)) }

func tokens(n int, wait pace) Script {
	return Script{Stream(), func(w *Response) error {
		return answer{w.Request, n}.stream(w, n, wait)
	}, Done()}
}

// Broken is Tokens that comes to an end of another kind (CutClean, CutDirty,
// Reset, Hang, Event of an error...) right after n content chunks.
func Broken(n int, ttft, gap time.Duration, end Step) Script {
	return Script{Stream(), func(w *Response) error {
		return answer{w.Request, n + 1}.stream(w, n, steady(ttft, gap))
	}, end}
}

// JSON gives, after wait, the whole answer of a request that wants no stream:
// n tokens, or the embeddings of the input, with usage.
func JSON(n int, wait time.Duration) Script {
	return Script{Wait(wait), func(w *Response) error {
		return Status(http.StatusOK, nil, answer{w.Request, n}.whole()).Play(w)
	}}
}

// Status gives a whole answer with its Content-Length. A body that starts with
// a brace is taken for JSON, any other for text, unless headers say more.
func Status(code int, headers http.Header, body string) Script {
	h := http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
	if strings.HasPrefix(body, "{") {
		h.Set("Content-Type", "application/json")
	}
	for name, values := range headers {
		h[name] = values
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	return Script{Header(code, h), Send(body)}
}

// Text is the content of an answer of n tokens.
func Text(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(word(i))
	}
	return b.String()
}

// Body is what Tokens sends in answer to r, for use with SplitAt.
func Body(r *Request, n int) string {
	var b strings.Builder
	for _, data := range (answer{r, n}).events() {
		b.WriteString(frame(data))
	}
	b.WriteString(frame("[DONE]"))
	return b.String()
}

// pace is the time from the token before, or from the request, to token i.
type pace func(i int) time.Duration

func steady(ttft, gap time.Duration) pace {
	return func(i int) time.Duration {
		if i == 0 {
			return ttft
		}
		return gap
	}
}

func (wait pace) total(n int) (sum time.Duration) {
	for i := range n {
		sum += wait(i)
	}
	return sum
}

// answer is the text of n tokens in the form its request wants.
type answer struct {
	*Request
	n int
}

type (
	completion struct {
		ID      string          `json:"id"`
		Object  string          `json:"object"`
		Created int64           `json:"created"`
		Model   string          `json:"model"`
		Choices []choice        `json:"choices"`
		Usage   json.RawMessage `json:"usage,omitempty"`
	}
	choice struct {
		Index        int      `json:"index"`
		Delta        *message `json:"delta,omitempty"`
		Message      *message `json:"message,omitempty"`
		Text         *string  `json:"text,omitempty"`
		FinishReason *string  `json:"finish_reason"`
	}
	message struct {
		Role    string  `json:"role,omitempty"`
		Content *string `json:"content,omitempty"`
	}
)

// stream sends the events up to and with the last of the first sent tokens, or
// all of them when there are no more tokens.
func (a answer) stream(w *Response, sent int, wait pace) error {
	for token, data := range a.events() {
		if token >= sent {
			return nil
		}
		if token >= 0 {
			if err := w.wait(wait(token)); err != nil {
				return err
			}
		}
		if err := w.event(frame(data)); err != nil {
			return err
		}
	}
	return nil
}

// events yields the data of each event but [DONE], and which token it is, -1
// for none.
func (a answer) events() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		if a.chat() && !yield(-1, a.chunk(choice{Delta: &message{Role: "assistant", Content: new("")}})) {
			return
		}
		for i := range a.n {
			if !yield(i, a.chunk(a.delta(word(i)))) {
				return
			}
		}
		last := choice{Delta: &message{}, FinishReason: new("stop")}
		if !a.chat() {
			last = choice{Text: new(""), FinishReason: new("stop")}
		}
		if yield(-1, a.chunk(last)) && a.IncludeUsage {
			yield(-1, a.encode(".chunk", []choice{}, a.usage()))
		}
	}
}

func (a answer) delta(text string) choice {
	if a.chat() {
		return choice{Delta: &message{Content: &text}}
	}
	return choice{Text: &text}
}

func (a answer) chunk(c choice) string {
	usage := ""
	if a.IncludeUsage {
		usage = "null"
	}
	return a.encode(".chunk", []choice{c}, usage)
}

func (a answer) whole() string {
	if strings.HasSuffix(a.Path, "/embeddings") {
		return a.embeddings()
	}
	c := choice{Text: new(Text(a.n)), FinishReason: new("stop")}
	if a.chat() {
		c = choice{Message: &message{Role: "assistant", Content: new(Text(a.n))}, FinishReason: new("stop")}
	}
	return a.encode("", []choice{c}, a.usage())
}

func (a answer) encode(suffix string, choices []choice, usage string) string {
	c := completion{
		ID: fmt.Sprint("chatcmpl-", a.Seq), Object: "chat.completion" + suffix,
		Created: a.Received.Unix(), Model: a.Model, Choices: choices, Usage: json.RawMessage(usage),
	}
	if !a.chat() {
		c.ID, c.Object = fmt.Sprint("cmpl-", a.Seq), "text_completion"
	}
	return encode(c)
}

func (a answer) embeddings() string {
	var body struct{ Input json.RawMessage }
	_ = json.Unmarshal(a.Body, &body) // what is no request has no inputs
	var inputs []json.RawMessage
	if json.Unmarshal(body.Input, &inputs) != nil {
		inputs = []json.RawMessage{body.Input}
	}
	var data []string
	for i := range inputs {
		data = append(data, fmt.Sprintf(`{"object":"embedding","index":%d,"embedding":[0.25,-0.5,0.75]}`, i))
	}
	return fmt.Sprintf(`{"object":"list","data":[%s],"model":%s,"usage":{"prompt_tokens":%[3]d,"total_tokens":%[3]d}}`,
		strings.Join(data, ","), quote(a.Model), a.promptTokens())
}

func (a answer) usage() string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`,
		a.promptTokens(), a.n, a.promptTokens()+a.n)
}

// promptTokens counts a token for each four bytes of the body, as a stand-in.
func (a answer) promptTokens() int { return (len(a.Body) + 3) / 4 }

func (a answer) chat() bool { return !strings.HasSuffix(a.Path, "/v1/completions") }

func word(i int) string { return "w" + strconv.Itoa(i) + " " }

func quote(s string) string { return encode(s) }

// encode is for values that cannot fail.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
