package replay

import (
	"slices"
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
func promise(ask *router.Request, r *trace.Request, c *sla.Contract) {
	o := objective(r, c)
	ask.TTFT, ask.TPOT, ask.Class = firstDue(o), o.TPOT, classOf(c)
	ask.Contract = c.Name()
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

// classOf is the class of criticality: critical ones are let in first. A request
// without a contract is standard.
func classOf(c *sla.Contract) int {
	order := []sla.Criticality{sla.Critical, sla.Standard, sla.Sheddable}
	if c == nil {
		return 1
	}
	return slices.Index(order, c.Spec.Criticality)
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
	out := make([]report.Verdict, len(o.Contract.Spec.Objectives))
	for i := range out {
		out[i] = verdict(&o.Contract.Spec.Objectives[i], o)
	}
	return out
}

func verdict(p *sla.Objective, o *Outcome) report.Verdict {
	value := map[sla.Metric]time.Duration{sla.TTFT: o.TTFT, sla.TPOT: o.TPOT(), sla.E2E: o.E2E}[p.Metric]
	within := value <= p.Threshold.Base.D()+p.Threshold.PerToken.D()*time.Duration(o.Request.PromptTokens)
	switch {
	case p.Metric == sla.Availability && o.OK(), value > 0 && within && (o.OK() || p.Metric != sla.E2E):
		return report.Kept
	case value == 0 && (o.OK() || p.Metric == sla.TPOT):
		return report.NotJudged
	}
	return report.Broken
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
