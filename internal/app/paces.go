package app

import (
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/internal/proxy"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// paces are what is learned of contracts' rates and of models' turns. They go on
// with later revisions.
type paces struct {
	contracts map[string]*sla.Pace
	models    map[string]*sla.Turns
}

// follow is the paces of what a table has.
func (p paces) follow(t *proxy.Table) paces {
	next := paces{contracts: map[string]*sla.Pace{}, models: map[string]*sla.Turns{}}
	for _, c := range t.Contracts.Contracts() {
		next.contracts[c.Name()] = orNew(p.contracts[c.Name()])
	}
	for _, m := range t.Models() {
		next.models[m.Name] = orNew(p.models[m.Name])
	}
	return next
}

func orNew[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// Arrived counts a request, and tells whether it is more than the contract's
// burst covers.
func (p *promises) Arrived(now time.Time, c *sla.Contract) (over bool) {
	in := p.inForce.Load()
	pace := in.paces.contracts[c.Name()]
	if pace == nil || !pace.Arrived(now, c.Spec.Burst) {
		return false
	}
	in.series[c.Name()].OverBurst()
	return true
}

// FirstToken follows the first tokens by turn of the conversation.
func (p *promises) FirstToken(now time.Time, model string, turn int, ttft time.Duration) {
	turns := p.inForce.Load().paces.models[model]
	if turns == nil {
		return
	}
	d := turns.Observe(now, turn, ttft)
	if d == nil {
		return
	}
	p.metrics.TurnsDrifted(model)
	p.log.Warn("time to first token drifts over turns", zap.String("model", model), zap.Int("turn", d.Turn),
		zap.Duration("first_turn_median", d.First), zap.Duration("turn_median", d.Later), zap.Float64("ratio", d.Ratio),
		zap.Float64s("requests", d.Counts[:]))
}
