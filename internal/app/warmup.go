package app

import (
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/internal/proxy"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

// poolsOf are the pools of a table by model.
func poolsOf(t *proxy.Table) map[string]*backends.Pool {
	pools := map[string]*backends.Pool{}
	for _, m := range t.Models() {
		pools[m.Name] = m.Router.Pool()
	}
	return pools
}

// WarmUp calls in a backend of the model that stands by, if there is one and
// none is on its way, and passes on that the model could do with one.
func (p *promises) WarmUp(model string) {
	if pool := p.inForce.Load().pools[model]; pool != nil {
		p.callIn(pool)
	}
	for _, f := range p.onWarmUp {
		f(model)
	}
}

func (p *promises) callIn(pool *backends.Pool) {
	b := pool.CallIn(time.Now())
	if b == nil {
		return
	}
	p.metrics.CalledIn(b.Name)
	p.log.Info("standby backend called in", zap.String("model", pool.Model), zap.String("backend", b.Name))
}

// OnWarmUp has f called for each request that can't be in time and whose
// contract wants a further instance of its model then, by several at once: f must not block. It
// comes before Run.
func (a *App) OnWarmUp(f func(model string)) {
	a.promises.onWarmUp = append(a.promises.onWarmUp, f)
}
