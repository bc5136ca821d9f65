package proxy

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// Promises is told of requests that contracts hold for, and of first tokens. It is
// called by many requests at once and must not block.
type Promises interface {
	// Arrived counts a request of a contract with a burst, and reports whether the
	// burst does not cover it.
	Arrived(now time.Time, c *sla.Contract) (over bool)
	// FirstToken takes in when the first token of a streamed answer came, after
	// acceptance. turn is of the conversation, 0 if unknown.
	FirstToken(now time.Time, model string, turn int, ttft time.Duration)
	// Record books what became of a request, once. backend is "" when none is
	// to blame. judged is false when the outcome says nothing about what was promised.
	Record(now time.Time, backend string, c *sla.Contract, out sla.Outcome) (met, judged bool)
	// WarmUp asks for a further instance of a model. It is called for each
	// request that can't be in time and whose contract says so.
	WarmUp(model string)
}

// promise finds what was promised to the request and what it asks for by its
// own headers, and tells the router.
func (x *exchange) promise() *openai.Error {
	header := x.r.Header.Get
	tenant := header(x.table.TenantHeader)
	c := x.table.Contracts.Match(sla.Key{Tenant: tenant, Model: x.req.Model, ServiceTier: x.req.ServiceTier, Header: header})
	terms, err := c.TightenBy(header)
	if err != nil {
		return badTerms(err)
	}
	x.terms = terms
	x.ask.Accepted, x.ask.Contract, x.ask.Tenant = x.accepted, c.Name(), keptName(tenant)
	x.over = c != nil && c.Spec.Burst > 0 && x.h.promises.Arrived(x.accepted, c)
	x.ask.Class = x.table.Contracts.Rank(c, x.over)
	if c != nil && slices.Contains(c.Spec.Match.Tenants, tenant) {
		x.tenant = tenant
	}
	x.ask.Label = x.tenant
	if due, ok := terms.Deadline(x.accepted, x.req.PromptTokens); ok {
		x.due = due
		x.ask.TTFT = due.Sub(x.accepted)
	}
	x.ask.TPOT, _ = terms.TPOTBudget()
	if c != nil {
		x.ask.Reuse, x.ask.Even = float64(c.Spec.MinKVReuse), c.Spec.JitterSensitive
	}
	x.ask.E2E, _ = terms.E2EBudget(x.req.PromptTokens)
	return nil
}

// longestName is how much of a tenant's name is kept in memory after its request:
// the client writes it. Those that begin alike for so long share their turns.
const longestName = 64

func keptName(tenant string) string {
	if len(tenant) <= longestName {
		return tenant
	}
	return strings.Clone(tenant[:longestName])
}

func badTerms(err error) *openai.Error {
	param := ""
	if h := (*sla.HeaderError)(nil); errors.As(err, &h) {
		param = h.Header
	}
	return openai.Invalid(param, "invalid_slo_header", err.Error())
}

// book tells what became of the request, if a contract holds for it. What the
// client did wrong itself is left out.
func (x *exchange) book(now time.Time) (met, judged bool) {
	end, counts := x.end()
	if x.terms.Contract == nil || !counts {
		return false, false
	}
	out := sla.Outcome{End: end, PromptTokens: x.req.PromptTokens, E2E: now.Sub(x.accepted), TPOT: x.tpot()}
	if !x.firstToken.IsZero() {
		out.TTFT = x.firstToken.Sub(x.accepted)
	}
	backend := x.backend
	if x.reason == reasonDraining || x.reason == reasonPanic {
		backend = ""
	}
	return x.h.promises.Record(now, backend, x.terms.Contract, out)
}

// end is how the request ended, as contracts see it.
func (x *exchange) end() (end sla.End, counts bool) {
	switch x.reason {
	case reasonOK:
		return sla.Served, true
	case reasonEngine4xx:
		return 0, false
	case reasonClientLeft, reasonClientWrite:
		return sla.Left, true
	case reasonShedDeadline, reasonShedFull, reasonShedVisibleLimit, reasonSaturated, reasonEngine429:
		return sla.Refused, true
	}
	return sla.Failed, true
}
