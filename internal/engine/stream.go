package engine

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
)

// face writes an answer in the shape of one endpoint. Its stream methods append
// whole events.
type face interface {
	open(b []byte) []byte // on acceptance
	head(b []byte) []byte // with the first token
	token(b, piece []byte) []byte
	tail(b []byte, u usage) []byte
	whole(u usage) any // the answer that is not streamed
}

// answer runs a generation and writes it, streamed or not.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, g *generation, f face) {
	c, err := s.begin(g.request(), g.reason)
	if err != nil {
		writeError(w, err)
		return
	}
	if g.Stream {
		err = stream(r.Context(), w, g, c, f)
	} else if err = c.waitFinished(r.Context()); err == nil {
		writeJSON(w, http.StatusOK, f.whole(g.usage(c)))
	}
	if err != nil {
		c.cancel()
		panic(http.ErrAbortHandler) // the client sees a broken answer, never a clean end
	}
}

func (g *generation) usage(c *call) usage {
	return usage{prompt: g.promptTokens, cached: c.cached, completion: g.tokens}
}

// stream writes the headers at once and then one event a token, each flushed.
func stream(ctx context.Context, w http.ResponseWriter, g *generation, c *call, f face) error {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	flusher := http.NewResponseController(w)
	send := func(b []byte) error {
		if _, err := w.Write(b); err != nil { //nolint:gosec // an event stream, which no browser renders
			return err
		}
		return flusher.Flush()
	}
	buf := f.open(nil)
	if err := send(buf); err != nil {
		return err
	}
	buf = f.head(buf[:0])
	for seen, finished := 0, false; !finished; {
		tokens, done, err := c.wait(ctx, seen)
		if err != nil {
			return err
		}
		for finished = done; seen < tokens; seen++ {
			buf = f.token(buf, g.piece(seen))
			if err := send(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	return send(f.tail(buf, g.usage(c)))
}

func (u usage) MarshalJSON() ([]byte, error) { return u.append(nil), nil }

// append writes the usage object of the chat and completions endpoints.
func (u usage) append(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"prompt_tokens":`...), int64(u.prompt), 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), int64(u.completion), 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), int64(u.prompt+u.completion), 10)
	b = strconv.AppendInt(append(b, `,"prompt_tokens_details":{"cached_tokens":`...), int64(u.cached), 10)
	return append(b, "}}"...)
}

// chunks writes the events of the chat and completions endpoints, which differ
// in little.
type chunks struct {
	start  []byte // up to and with the opening of choices
	usage  bool
	reason string
}

func newChunks(id, object string, created int64, g *generation) chunks {
	model, _ := json.Marshal(g.Model) // a string always marshals
	start := `data: {"id":"` + id + `","object":"` + object + `","created":` + strconv.FormatInt(created, 10) +
		`,"model":` + string(model) + `,"choices":[`
	return chunks{start: []byte(start), usage: g.StreamOptions.IncludeUsage, reason: g.reason}
}

// end closes a stream: an empty choice with the reason, usage when asked for,
// and [DONE].
func (c *chunks) end(b []byte, choice string, u usage) []byte {
	b = append(append(b, c.start...), choice...)
	b = append(append(b, c.reason...), "\"}]}\n\n"...)
	if c.usage {
		b = append(append(b, c.start...), `],"usage":`...)
		b = append(u.append(b), "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}
