package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptrace"

	"github.com/firsttoken/firsttoken/internal/openai"
)

// maxResends bounds how often a request is sent again because of connections
// that the engine had given up.
const maxResends = 3

// roundTrip sends the request and waits for the engine's headers. The engine
// may close an idle connection at the moment it is used again, which is no
// failure: the request goes out on another one. net/http does that by itself
// unless it happens while the body is being written, when the engine can't
// have begun to work on it either.
func (x *exchange) roundTrip(ctx context.Context, t *Target) (*http.Response, error) {
	x.conns.trace.GotConn = x.conns.got
	ctx = httptrace.WithClientTrace(ctx, &x.conns.trace)
	r := x.request(t)
	for resends := 0; ; resends++ {
		x.conns.taken = 0
		resp, err := t.Transport.RoundTrip(r.WithContext(ctx))
		again := err != nil && x.conns.reused && isWrite(err) && ctx.Err() == nil && resends < maxResends
		for n := x.conns.taken; n > 1 || (again && n > 0); n-- {
			t.Metrics.StaleConnection()
		}
		if !again {
			return resp, err
		}
		r.Body, _ = r.GetBody()
	}
}

// connTrace watches which connections a request takes.
type connTrace struct {
	trace  httptrace.ClientTrace
	taken  int  // by one RoundTrip, which goes on when one turns out to be closed
	reused bool // the last one had served a request before
}

func (c *connTrace) got(info httptrace.GotConnInfo) {
	c.taken++
	c.reused = info.Reused
}

// request builds the attempt's request from the client's, with a body that can
// be sent again.
func (x *exchange) request(t *Target) *http.Request {
	x.body = x.req.Body(t.Backend.Model, x.hides(t))
	u := t.urls[x.req.Endpoint]
	return &http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: x.header(t),
		Body:   reader(x.body), ContentLength: int64(len(x.body)),
		GetBody: func() (io.ReadCloser, error) { return reader(x.body), nil },
	}
}

// header is the attempt's, without the client's word for who it is.
func (x *exchange) header(t *Target) http.Header {
	h := requestHeader(x.r.Header, t.Backend, x.id)
	if x.table.TenantHeader != t.Backend.AuthHeader {
		delete(h, x.table.TenantHeader)
	}
	return h
}

// reader is a body on its way to an engine. The transport sends one that it
// knows to be in memory together with the headers, which is what most are
// worth; a large one is let go of when it is read.
func reader(body []byte) io.ReadCloser {
	if len(body) <= 16<<10 {
		return io.NopCloser(bytes.NewReader(body))
	}
	return &sentBody{rest: body}
}

// sentBody lets go of what was read: the transport keeps the request until the
// answer has ended, and a prompt may be large and an answer long.
type sentBody struct{ rest []byte }

func (b *sentBody) Read(p []byte) (int, error) {
	n := copy(p, b.rest)
	if b.rest = b.rest[n:]; len(b.rest) == 0 {
		b.rest = nil
		return n, io.EOF
	}
	return n, nil
}

func (b *sentBody) Close() error { return nil }

// hides reports whether the gateway asks this target for a usage chunk that
// the client must not see.
func (x *exchange) hides(t *Target) bool {
	return t.InjectUsage && x.req.Stream && !x.req.AskedUsage &&
		(x.req.Endpoint == openai.ChatCompletions || x.req.Endpoint == openai.Completions)
}
