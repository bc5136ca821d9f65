package replay

import (
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// contractOf is the contract that holds for a request, by its tenant and model:
// a trace has no headers. nil if none does.
func (w *world) contractOf(r *trace.Request) *sla.Contract {
	return match(w.Contracts, r)
}

// match finds the contract of a request in a set, which may be nil.
func match(set *sla.Set, r *trace.Request) *sla.Contract {
	if set == nil {
		return nil
	}
	return set.Match(sla.Key{Tenant: r.Tenant, Model: r.Model})
}

func isShed(reason string) bool { return strings.HasPrefix(reason, Shed) }

// promise tells the router what the request may take: what its contract says,
// or its trace where it has none.
func promise(ask *router.Request, r *trace.Request, set *sla.Set, c *sla.Contract) {
	o := objective(r, c)
	ask.TTFT, ask.TPOT, ask.E2E, ask.Class = firstDue(o), o.TPOT, o.E2E, set.Rank(c, false)
	ask.Contract = c.Name()
	if c != nil {
		ask.Reuse, ask.Even = float64(c.Spec.MinKVReuse), c.Spec.JitterSensitive
	}
	if due, ok := c.FirstDue(r.PromptTokens); ok {
		ask.TTFT = due
	}
}

// objective is what one request is to meet.
func objective(r *trace.Request, c *sla.Contract) report.Objective {
	if c == nil {
		return report.Objective{TTFT: r.TTFT, TPOT: r.TPOT, E2E: r.E2E}
	}
	var o report.Objective
	o.TTFT, _ = c.TTFTBudget(r.PromptTokens)
	o.TPOT, _ = c.TPOTBudget()
	o.E2E, _ = c.E2EBudget(r.PromptTokens)
	return o
}

// firstDue is the time in which the first token is due: that of the whole
// answer if that is all there is, or ends earlier.
func firstDue(o report.Objective) time.Duration {
	if o.E2E > 0 && (o.TTFT == 0 || o.E2E < o.TTFT) {
		return o.E2E
	}
	return o.TTFT
}

// book writes a request's end into the books of its gateway. What its client
// did wrong and what the replay cut off are not written down.
func (w *world) book(f *flight) {
	if f.gate.ledger == nil || f.outcome.Contract == nil {
		return
	}
	o, instance := &f.outcome, ""
	out := sla.Outcome{PromptTokens: o.Request.PromptTokens, TTFT: o.TTFT, E2E: o.E2E, TPOT: o.TPOT()}
	switch {
	case o.OK():
		out.End = sla.Served
	case o.Reason == Unfinished, o.Reason == TooLong, o.Reason == UnknownModel:
		return
	case isShed(o.Reason):
		out.End = sla.Refused
	default:
		out.End = sla.Failed
	}
	if o.Attempts > 0 && out.End != sla.Refused {
		instance = w.engines[f.engine].Name
	}
	f.gate.ledger.Record(w.clock(), instance, o.Contract, out)
}

// kept tells of each objective of a request's contract whether the outcome is
// within it, or does not count for it, as the ledger judges.
func kept(o *Outcome) []report.Verdict {
	if o.Contract == nil {
		return nil
	}
	end := sla.Outcome{End: sla.Failed, PromptTokens: o.Request.PromptTokens, TTFT: o.TTFT, E2E: o.E2E, TPOT: o.TPOT()}
	if o.OK() {
		end.End = sla.Served
	}
	out := make([]report.Verdict, len(o.Contract.Spec.Objectives))
	for i := range out {
		v, _ := o.Contract.Spec.Objectives[i].Judge(&end)
		out[i] = [...]report.Verdict{sla.Neutral: report.NotJudged, sla.Met: report.Kept, sla.Missed: report.Broken}[v]
	}
	return out
}

// name puts the contracts' objectives beside how they were kept.
func name(promises []report.Promise, set *sla.Set) {
	for i := range promises {
		for k, o := range set.Contract(promises[i].Name).Spec.Objectives {
			a := &promises[i].Objectives[k]
			a.Name, a.Target = o.String(), float64(o.Target)
		}
	}
}
