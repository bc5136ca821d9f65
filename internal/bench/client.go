package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// client asks the target.
type client struct {
	plan   Plan
	header http.Header
	http   *http.Client
	url    string
}

func newClient(plan Plan, header http.Header, transport http.RoundTripper) *client {
	path := "/v1/chat/completions"
	if plan.Endpoint == "completions" {
		path = "/v1/completions"
	}
	c := &client{plan: plan, header: header.Clone(), url: plan.Target + path}
	if c.header == nil {
		c.header = http.Header{}
	}
	c.header.Set("Content-Type", "application/json")
	c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c
}

// question is one request, ready to be sent.
type question struct {
	trace.Request
	index     int
	at        time.Duration
	body      []byte
	header    http.Header
	objective report.Objective
}

// each makes the questions of a source ready, one by one, until send wants no
// more.
func (c *client) each(s trace.Source, seed uint64, send func(*question) bool) error {
	p := &c.plan
	n := 0
	for r, err := range s {
		if err != nil {
			return err
		}
		own := mix(mix(seed) + uint64(n))
		r.PromptTokens, r.OutputTokens = p.prompt.of(mix(own^1), r.PromptTokens), p.output.of(mix(own^2), r.OutputTokens)
		if p.Stream != "" {
			r.Stream = p.Stream == "yes"
		}
		q := &question{Request: r, index: n, at: r.At, body: p.body(&r, own), header: c.headerOf(r.Tenant), objective: p.objective}
		if p.Objective == "" {
			q.objective = report.Objective{TTFT: r.TTFT, TPOT: r.TPOT, E2E: r.E2E}
		}
		if !send(q) {
			return nil
		}
		n++
	}
	return nil
}

// tenantHeader names the tenant to a gateway that was not told otherwise.
const tenantHeader = "X-Tenant"

// headerOf is the header of a tenant's request. A tenant that the user gave
// holds for all.
func (c *client) headerOf(tenant string) http.Header {
	if tenant == "" || c.header.Get(tenantHeader) != "" {
		return c.header
	}
	h := c.header.Clone()
	h.Set(tenantHeader, tenant)
	return h
}

var errTimeout = errors.New("timeout")

// ask sends a question and reads the answer to its end.
func (c *client) ask(ctx context.Context, q *question, r *Result) {
	r.Streamed, r.Prompt, r.objective = q.Stream, q.PromptTokens, q.objective
	if c.plan.Timeout > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, c.plan.Timeout, errTimeout)
		defer cancel()
		ctx = limited
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(q.body))
	if err != nil {
		r.fail(Unconnected, err.Error())
		return
	}
	req.Header = q.header
	sent := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		r.E2E = time.Since(sent)
		r.lost(ctx, Unconnected, plain(err))
		return
	}
	defer resp.Body.Close()
	r.Status = resp.StatusCode
	switch {
	case resp.StatusCode/100 != 2:
		r.refused(resp.Body)
		r.E2E = time.Since(sent)
	case !q.Stream:
		r.whole(ctx, resp.Body, sent)
	case !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // as much as there is
		r.E2E = time.Since(sent)
		r.fail(BadAnswer, fmt.Sprintf("asked for a stream, got %q: %s", resp.Header.Get("Content-Type"), clip(text)))
	default:
		r.Tokens = make([]time.Duration, 0, min(q.OutputTokens, 1<<12)+1)
		r.stream(ctx, resp.Body, sent)
	}
}

func (r *Result) fail(o Outcome, problem string) { r.Outcome, r.Error = o, problem }

// lost is a failure to read on, unless it was the run or the request's time
// that was over.
func (r *Result) lost(ctx context.Context, o Outcome, problem string) {
	switch {
	case ctx.Err() == nil:
		r.fail(o, problem)
	case errors.Is(context.Cause(ctx), errTimeout):
		r.fail(TimedOut, fmt.Sprintf("not done after %v; %d chunks with tokens had come", r.E2E.Round(time.Millisecond), len(r.Tokens)))
	default:
		r.fail(Interrupted, "")
	}
}

// refused reads an answer that is no success.
func (r *Result) refused(body io.Reader) {
	text, _ := io.ReadAll(io.LimitReader(body, 4<<10)) // as much as there is
	o := Outcome(fmt.Sprintf("http_%d", r.Status))
	switch r.Status {
	case http.StatusTooManyRequests:
		o = Refused429
	case http.StatusServiceUnavailable:
		o = Refused503
	}
	r.fail(o, cmp.Or(said(text), http.StatusText(r.Status)))
}

// whole reads an answer that is no stream.
func (r *Result) whole(ctx context.Context, body io.Reader, sent time.Time) {
	text, err := io.ReadAll(body)
	r.E2E = time.Since(sent)
	if err != nil {
		r.lost(ctx, Broken, "the answer broke off: "+plain(err))
		return
	}
	var m openai.Meter
	m.Reset()
	m.ReadJSON(text)
	r.count(&m)
	r.Tokens = []time.Duration{r.E2E}
	switch {
	case m.Failed:
		r.fail(ErrorEvent, said(text))
	case m.Aborted:
		r.fail(Aborted, "finish reason "+m.FinishReason)
	case m.Unparsed > 0 || m.FinishReason == "":
		r.fail(BadAnswer, "the answer is no completion: "+clip(text))
	default:
		r.Outcome = OK
	}
}

const readSize = 16 << 10

// stream reads a stream. The clock is read once a Read, before its bytes are
// looked at.
func (r *Result) stream(ctx context.Context, body io.Reader, sent time.Time) {
	var m openai.Meter
	m.Reset()
	buf := make([]byte, readSize)
	for {
		n, err := body.Read(buf)
		now := time.Since(sent)
		r.events(&m, buf[:n], now)
		if err == nil {
			continue
		}
		if ev, ended := m.End(); ended && ev.Token {
			r.Tokens = append(r.Tokens, now)
		}
		if r.E2E == 0 {
			r.E2E = now
		}
		r.count(&m)
		r.judge(ctx, &m, err)
		return
	}
}

// events takes what was read at one time.
func (r *Result) events(m *openai.Meter, p []byte, now time.Duration) {
	for len(p) > 0 {
		n, ev, ended := m.Next(p)
		if ended {
			if ev.Token {
				r.Tokens = append(r.Tokens, now)
			}
			if (ev.Done || m.Terminal) && r.E2E == 0 {
				r.E2E = now
			}
			if ev.Failed && r.Error == "" {
				r.Error = said(bytes.TrimPrefix(bytes.TrimSpace(p[:n]), []byte("data: ")))
			}
		}
		p = p[n:]
	}
}

// count takes the target's count of tokens, or chunks for want of one.
func (r *Result) count(m *openai.Meter) {
	r.Finish = m.FinishReason
	r.Output, r.Cached = m.Chunks, m.Usage.Cached
	if r.Counted = m.HasUsage && (m.Usage.Completion > 0 || m.Chunks == 0); r.Counted {
		r.Output = m.Usage.Completion
		r.Prompt = cmp.Or(m.Usage.Prompt, r.Prompt)
	}
}

// judge says how a stream ended: well only if it said so itself.
func (r *Result) judge(ctx context.Context, m *openai.Meter, err error) {
	switch {
	case m.Failed:
		r.fail(ErrorEvent, cmp.Or(r.Error, m.ErrorCode, m.ErrorType, "an error event"))
	case m.Aborted:
		r.fail(Aborted, "finish reason "+m.FinishReason)
	case m.Done:
		r.ended(m)
	case err != io.EOF:
		r.lost(ctx, Broken, fmt.Sprintf("broke off after %d chunks with tokens: %s", m.Chunks, plain(err)))
	case !m.Complete():
		r.fail(Broken, fmt.Sprintf("ended after %d chunks with tokens, without [DONE] or a finish reason", m.Chunks))
	default:
		r.ended(m)
	}
}

func (r *Result) ended(m *openai.Meter) {
	if m.Chunks == 0 {
		r.fail(Empty, "the stream ended well without a token; finish reason "+cmp.Or(m.FinishReason, "none"))
		return
	}
	r.Outcome = OK
}

// models are the names the target lists.
func (c *client) models(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	text, err := c.get(ctx, c.plan.Target+"/v1/models")
	if err != nil {
		return nil, fmt.Errorf("ask the target for its models, as --model names none: %w", err)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list.Data) == 0 {
		return nil, fmt.Errorf("%s/v1/models lists no models: %s; name them with --model", c.plan.Target, clip(text))
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names, nil
}

func (c *client) get(ctx context.Context, from string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	req.Header = c.header
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, errors.New(plain(err))
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", from, resp.Status, said(text))
	}
	return text, err
}

// said is the message of an error in OpenAI's shape, or the text itself.
func said(text []byte) string {
	var shaped struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(text, &shaped) != nil {
		return clip(text)
	}
	var inner struct {
		Message string `json:"message"`
	}
	var line string
	_ = json.Unmarshal(shaped.Error, &inner) // it is one or the other
	_ = json.Unmarshal(shaped.Error, &line)
	return clip([]byte(cmp.Or(inner.Message, line, shaped.Message, string(text))))
}

// clip keeps a message on one readable line.
func clip(text []byte) string {
	const most = 200
	runes := []rune(strings.Join(strings.Fields(string(text)), " "))
	if len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return string(runes)
}

// plain is the error without the method and URL, which say nothing new.
func plain(err error) string {
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	return clip([]byte(err.Error()))
}
