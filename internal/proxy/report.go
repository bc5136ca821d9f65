package proxy

import (
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/internal/edge"
)

// report counts and logs the request, once, however it ended. It names no
// prompt, completion or key.
func (x *exchange) report() {
	now := time.Now()
	if x.reason == "" { // a panic is on its way up
		x.reason, x.status = reasonPanic, http.StatusInternalServerError
	}
	m, u := x.model.Metrics, x.meter.Usage
	m.Request(x.req.Endpoint.String(), x.status, x.reason, now.Sub(x.accepted))
	m.Tokens(u.Prompt, u.Cached, u.Completion, u.Reasoning)
	met, judged := x.book(now)
	if x.req.Stream && !x.firstToken.IsZero() {
		x.h.promises.FirstToken(now, x.model.Name, x.req.Turn, x.firstToken.Sub(x.accepted))
	}
	if x.h.access == nil {
		return
	}
	lent := x.h.fields.get()
	defer x.h.fields.put(lent)
	fields := append(*lent,
		zap.String("request_id", x.id),
		zap.String("endpoint", x.req.Endpoint.String()),
		zap.String("model", x.model.Name),
		zap.String("backend", x.backend),
		zap.Int("status", x.status),
		zap.String("reason", x.reason),
		zap.Bool("stream", x.req.Stream),
		zap.Int("attempts", x.attempts),
		zap.String("decision", x.why),
		zap.Int64("revision", x.table.Revision),
		milliseconds("duration_ms", now.Sub(x.accepted)),
		zap.Int("prompt_tokens_estimate", x.req.PromptTokens),
	)
	if x.model != x.asked {
		fields = append(fields, zap.String("model_asked", x.asked.Name))
	}
	if c := x.terms.Contract; c != nil {
		fields = append(fields, zap.String("contract", c.Name()), zap.String("class", string(c.Spec.Criticality)))
	}
	if x.over {
		fields = append(fields, zap.Bool("over_burst", true))
	}
	if x.tenant != "" {
		fields = append(fields, zap.String("tenant", x.tenant))
	}
	if !x.due.IsZero() {
		fields = append(fields, milliseconds("deadline_ms", x.due.Sub(x.accepted)))
	}
	if judged {
		fields = append(fields, zap.Bool("objective_met", met))
	}
	if x.held > 0 {
		fields = append(fields, milliseconds("held_ms", x.held))
	}
	if p, by, ok := x.predicted(); ok {
		fields = append(fields,
			milliseconds("predicted_p50_ms", p.P50),
			milliseconds("predicted_p95_ms", p.P95),
			zap.String("estimator", by.String()),
			zap.String("regime", x.last.Sample().Regime.String()))
	}
	if !x.firstToken.IsZero() {
		fields = append(fields,
			milliseconds("ttft_ms", x.firstToken.Sub(x.accepted)),
			milliseconds("upstream_ttft_ms", x.firstToken.Sub(x.attemptAt)),
			zap.String("first_token", x.meter.FirstToken.String()),
			zap.Int("chunks", x.meter.Chunks))
	}
	if x.meter.HasUsage {
		fields = append(fields, zap.Int("prompt_tokens", u.Prompt), zap.Int("cached_tokens", u.Cached),
			zap.Int("completion_tokens", u.Completion))
	}
	if x.meter.FinishReason != "" {
		fields = append(fields, zap.String("finish_reason", clip(x.meter.FinishReason)))
	}
	if id := edge.ClientRequestID(x.r); id != "" {
		fields = append(fields, zap.String("client_request_id", id))
	}
	if x.details != nil {
		fields = append(fields, zap.String("error", clip(x.details.Error())))
	}
	x.h.access.Info("request", fields...)
	*lent = fields[:0]
}

// fieldPool lends the slices that log lines are put together in.
type fieldPool struct{ pool sync.Pool }

func (p *fieldPool) get() *[]zap.Field {
	if f, ok := p.pool.Get().(*[]zap.Field); ok {
		return f
	}
	f := make([]zap.Field, 0, 32)
	return &f
}

// put takes the slice back without what it points to.
func (p *fieldPool) put(f *[]zap.Field) {
	clear((*f)[:cap(*f)])
	p.pool.Put(f)
}

// milliseconds is d to the microsecond.
func milliseconds(name string, d time.Duration) zap.Field {
	return zap.Float64(name, float64(d.Microseconds())/1e3)
}
