package app

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/firsttoken/firsttoken/internal/admin"
	"github.com/firsttoken/firsttoken/internal/proxy"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// State is the gateway as operators see it.
func (a *App) State(now time.Time) admin.State {
	table, ready := a.plane.Table(), a.readiness(now)
	s := admin.State{
		At: now, Version: a.opts.Version, Revision: table.Revision, UptimeS: now.Sub(a.compile.started).Seconds(),
		Ready: ready.Ready, Draining: a.draining.Load(),
		Models: []admin.Model{}, Contracts: a.promises.standing(now),
	}
	for _, m := range table.Models() {
		s.Models = append(s.Models, modelState(now, m))
	}
	return s
}

func modelState(now time.Time, m *proxy.Model) admin.Model {
	out := admin.Model{Name: m.Name, Policy: m.Router.Policy(), Held: m.Router.Waiting(), Backends: []admin.Backend{}}
	f := m.Router.Foresight()
	if f != nil {
		r := f.Pool.Report(now)
		score := r.Scores[r.Serving][len(r.Scores[r.Serving])-1] // over all regimes
		estimator := r.Serving.String()
		out.Estimator, out.ArrivalRate, out.ArrivalCV = &estimator, known(r.Rate), known(r.CV)
		if score.Rows > 0 {
			out.P50MAPE, out.P95Coverage = known(score.MAPE), known(score.Coverage)
		}
	}
	for i, b := range m.Router.Pool().Backends {
		s := backendState(now, b)
		if f != nil {
			compare(now, &s, f, i)
		}
		out.InFlight += s.InFlight
		out.Backends = append(out.Backends, s)
	}
	return out
}

func backendState(now time.Time, b *backends.Backend) admin.Backend {
	s := b.Status(now)
	out := admin.Backend{
		Name: b.Name, Host: b.URL.Host, State: string(s.State), Readiness: string(s.Ready), Breaker: s.Breaker,
		InFlight: s.Load.InFlight, Weight: s.Weight, Penalty: s.Load.Penalty,
		Running: known(s.Signals.Running), Waiting: known(s.Signals.Waiting), KVUse: known(s.Signals.KVUse),
	}
	if !s.Signals.At.IsZero() {
		out.ScrapeAgeMS = inMS(s.Signals.Age(now))
	}
	if s.Load.TTFT > 0 {
		out.TTFTMS = inMS(s.Load.TTFT)
	}
	return out
}

// compare adds what was predicted of a backend's requests, and what came of it.
func compare(now time.Time, s *admin.Backend, f *router.Foresight, i int) {
	l := f.Pool.Lately(now, f.Instances[i])
	if s.Requests = l.Rows; l.Rows == 0 {
		return
	}
	s.PredictedP50MS, s.PredictedP95MS, s.ActualMS = inMS(l.P50), inMS(l.P95), inMS(l.Actual)
	s.P50Error, s.WithinP95 = known(l.MAPE), known(l.Coverage)
}

// standing is how the contracts in force stand.
func (p *promises) standing(now time.Time) []admin.Contract {
	out := []admin.Contract{}
	in := p.inForce.Load()
	for _, c := range in.set.Contracts() {
		s, ok := p.ledger.Status(now, c.Name())
		if !ok {
			continue
		}
		n := in.counts[c.Name()]
		out = append(out, admin.Contract{
			Name: c.Name(), Criticality: string(c.Spec.Criticality), State: string(s.State),
			Met: n.met.Load(), Missed: n.missed.Load(), Shed: n.shed.Load(),
			Objectives: objectives(s.Objectives), Backends: serving(s.Instances),
		})
	}
	slices.SortFunc(out, func(a, b admin.Contract) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func objectives(all []sla.ObjectiveStatus) []admin.Objective {
	out := []admin.Objective{}
	for i := range all {
		o := &all[i]
		x := admin.Objective{
			ID: o.Objective.ID(), Text: o.Objective.String(), Target: float64(o.Objective.Target),
			BudgetLeft: o.Budget, Burn: map[string]float64{}, State: string(o.State), Reason: o.Reason,
		}
		if o.Samples > 0 {
			x.Share = known(1 - float64(o.Missed)/float64(o.Samples))
		}
		for _, w := range o.Windows {
			x.Burn[sla.Duration(w.Length).String()] = w.Burn
		}
		out = append(out, x)
	}
	return out
}

func serving(all []sla.InstanceStatus) []admin.ContractBackend {
	out := []admin.ContractBackend{}
	for _, i := range all {
		out = append(out, admin.ContractBackend{
			Name: i.Instance, Compliance: i.Compliance, Weight: i.Weight, ViolatedWindows: i.Violated,
		})
	}
	return out
}

// outcomes counts the requests of one contract.
type outcomes struct{ met, missed, shed atomic.Int64 }

func (o *outcomes) add(end sla.End, met, judged bool) {
	switch {
	case judged && met:
		o.met.Add(1)
	case judged:
		o.missed.Add(1)
	}
	if end == sla.Refused {
		o.shed.Add(1)
	}
}

func inMS(d time.Duration) *float64 {
	ms := float64(d.Microseconds()) / 1e3
	return &ms
}

// known is nil for what is unknown.
func known(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}
