package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/internal/edge"
	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// Handler is the data plane. It is safe for concurrent use.
type Handler struct {
	table    atomic.Pointer[Table]
	metrics  *telemetry.Metrics
	promises Promises
	log      *zap.Logger // events
	access   *zap.Logger // one line a request; nil for none
	pump     *pump
	buffers  *bufferPool
	fields   *fieldPool
}

// New returns a data plane that serves the table. access may be nil.
func New(t *Table, m *telemetry.Metrics, p Promises, log, access *zap.Logger) *Handler {
	h := &Handler{metrics: m, promises: p, log: log, access: access, pump: newPump(), buffers: &bufferPool{}, fields: &fieldPool{}}
	h.table.Store(t)
	return h
}

// Pump lets requests in that are held at the gateway, as time passes, until ctx
// ends. It is to run as long as requests are served.
func (h *Handler) Pump(ctx context.Context) { h.pump.run(ctx) }

// Swap puts a new revision into force. Requests under way keep theirs.
func (h *Handler) Swap(t *Table) { h.table.Store(t) }

// Table is the revision in force.
func (h *Handler) Table() *Table { return h.table.Load() }

// Handler returns the whole chain that a client's request passes, outermost
// first: the edge, then the routes.
func (h *Handler) Handler(limits edge.Options) http.Handler {
	return edge.Chain(limits, h.EdgeError, h.panicked, h.routes())
}

// routes lists everything that is served; anything else is 404, and another
// method on these paths 405.
func (h *Handler) routes() http.Handler {
	r := chi.NewRouter()
	r.NotFound(h.notFound)
	for _, api := range []openai.Endpoint{openai.ChatCompletions, openai.Completions, openai.Embeddings, openai.Responses} {
		r.Handle(api.Path(), h.only("POST"))
		r.Post(api.Path(), func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, api) })
	}
	for path, get := range map[string]http.HandlerFunc{"/v1/models": h.listModels, "/v1/models/*": h.getModel} {
		r.Handle(path, h.only("GET, HEAD"))
		r.Get(path, get)
		r.Head(path, get)
	}
	return r
}

// only refuses every method but the allowed ones.
func (h *Handler) only(allowed string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allowed)
		h.refuse(w, r, &openai.Error{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed",
			Message: r.Method + " is not allowed on " + r.URL.Path + "; use " + allowed})
	}
}

func (h *Handler) notFound(w http.ResponseWriter, r *http.Request) {
	h.refuse(w, r, &openai.Error{Status: http.StatusNotFound, Code: "unknown_url",
		Message: "there is nothing at " + r.Method + " " + clip(r.URL.Path) +
			"; the gateway serves /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses and /v1/models"})
}

// EdgeError writes a refusal of the edge in OpenAI's shape.
func (h *Handler) EdgeError(w http.ResponseWriter, r *http.Request, status int, code, param, message string) {
	h.refuse(w, r, &openai.Error{Status: status, Code: code, Param: param, Message: message})
}

func (h *Handler) panicked(r *http.Request, value any, stack []byte) {
	h.metrics.Panicked()
	h.log.Error("panic while serving a request", zap.String("request_id", edge.RequestIDFrom(r.Context())),
		zap.Any("panic", value), zap.ByteString("stack", stack))
}

// refuse answers a request that no backend is asked about: it names no model
// the gateway has, or nothing that is served.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, e *openai.Error) {
	h.metrics.EdgeRejected(e.Code)
	boundAnswer(w)
	e.Write(w)
	h.note(r, e.Status, reasonInvalid, e.Code)
}

// note writes the access line of an answer that took no backend.
func (h *Handler) note(r *http.Request, status int, reason, code string) {
	if h.access == nil {
		return
	}
	fields := []zap.Field{
		zap.String("request_id", edge.RequestIDFrom(r.Context())),
		zap.String("method", r.Method), zap.String("path", clip(r.URL.Path)),
		zap.Int("status", status), zap.String("reason", reason),
	}
	if code != "" {
		fields = append(fields, zap.String("code", code))
	}
	if id := edge.ClientRequestID(r); id != "" {
		fields = append(fields, zap.String("client_request_id", id))
	}
	h.access.Info("request", fields...)
}

// boundAnswer bounds the writing of an answer that is made in one piece, and before
// it the time that net/http waits for a body nobody reads.
func boundAnswer(w http.ResponseWriter) {
	rc, unsent := http.NewResponseController(w), time.Now().Add(ownWriteLimit)
	_ = rc.SetReadDeadline(unsent) // not every writer has deadlines
	_ = rc.SetWriteDeadline(unsent.Add(ownWriteLimit))
}

// clip bounds what a client can make the log hold.
func clip(s string) string {
	const most = 128
	if len(s) > most {
		return s[:most]
	}
	return s
}

// serve is a forwarded request: read once, find the model, exchange.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, api openai.Endpoint) {
	accepted := time.Now()
	t := h.table.Load()
	rc := http.NewResponseController(w)
	body, bad := readBody(w, rc, r, t)
	if bad != nil {
		h.refuse(w, r, bad)
		return
	}
	req, bad := openai.ReadRequest(api, body)
	if bad != nil {
		h.refuse(w, r, bad)
		return
	}
	m := t.byName[req.Model]
	if m == nil {
		h.refuse(w, r, modelNotFound(req.Model))
		return
	}
	x := &exchange{
		h: h, w: w, rc: rc, r: r, id: edge.RequestIDFrom(r.Context()),
		table: t, asked: m, model: m, req: req, accepted: accepted,
		ask: router.Request{Model: m.Name, PromptTokens: req.PromptTokens, MaxTokens: req.MaxTokens,
			Stream: req.Stream, Turn: req.Turn, Session: req.Session, Blocks: req.AppendBlocks(nil, backends.BlockTokens)},
	}
	x.ask.ID, x.ask.Explain = x.id, x.wantsDecision()
	if bad := x.promise(); bad != nil {
		h.refuse(w, r, bad)
		return
	}
	x.clientDeadline()
	x.run()
}

func modelNotFound(name string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Code: "model_not_found", Param: "model",
		Message: "the model " + strconv.Quote(clip(name)) + " does not exist here; GET /v1/models lists those that do"}
}

// readBody reads the whole body before any backend is chosen, within the
// table's size and time.
func readBody(w http.ResponseWriter, rc *http.ResponseController, r *http.Request, t *Table) ([]byte, *openai.Error) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, &openai.Error{Status: http.StatusUnsupportedMediaType, Code: "unsupported_content_encoding",
			Message: "the request body must not be compressed; leave Content-Encoding out"}
	}
	if r.ContentLength > t.MaxBody {
		w.Header().Set("Connection", "close")
		return nil, tooLarge(t.MaxBody)
	}
	if t.ReadBody > 0 {
		_ = rc.SetReadDeadline(time.Now().Add(t.ReadBody))
		defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	}
	body, err := readUpTo(http.MaxBytesReader(w, r.Body, t.MaxBody), r.ContentLength, int(t.MaxBody))
	if err != nil {
		w.Header().Set("Connection", "close")
		return nil, badBody(err, t)
	}
	return body, nil
}

func badBody(err error, t *Table) *openai.Error {
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig), errors.Is(err, errMore):
		return tooLarge(t.MaxBody)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &openai.Error{Status: http.StatusRequestTimeout, Code: "body_timeout",
			Message: "the request body did not arrive within " + t.ReadBody.String()}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return openai.Invalid("", "incomplete_body", "the request body ended too early")
	}
	return openai.Invalid("", "malformed_body", "the request body could not be read: its framing is broken")
}

func tooLarge(limit int64) *openai.Error {
	return &openai.Error{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large",
		Message: "the request body is larger than " + strconv.FormatInt(limit, 10) + " bytes, the limit of this gateway (server.max_body)"}
}

// ejected logs an ejection, the one thing about a backend that a request decides.
func (h *Handler) ejected(b *backends.Backend, reason string) {
	h.log.Warn("backend ejected", zap.String("backend", b.Name), zap.String("reason", reason))
}
