package proxy

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/firsttoken/firsttoken/pkg/router"
)

// pumpEvery is how often routers look again at the requests they hold. First
// tokens and ends of leases make them look at once.
const pumpEvery = 20 * time.Millisecond

// pump makes routers look again at the requests they hold, while there are any,
// those of older revisions included. It is safe for concurrent use.
type pump struct {
	begun chan struct{} // of capacity 1: somebody is held

	mu   sync.Mutex
	held map[*router.Router]int
}

func newPump() *pump {
	return &pump{begun: make(chan struct{}, 1), held: map[*router.Router]int{}}
}

// begin counts a request that is held; end must follow.
func (p *pump) begin(r *router.Router) {
	p.mu.Lock()
	p.held[r]++
	p.mu.Unlock()
	select {
	case p.begun <- struct{}{}:
	default:
	}
}

func (p *pump) end(r *router.Router) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[r]--; p.held[r] == 0 {
		delete(p.held, r)
	}
}

// run pumps until ctx ends.
func (p *pump) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.begun:
		}
		p.whileHeld(ctx)
	}
}

func (p *pump) whileHeld(ctx context.Context) {
	tick := time.NewTicker(pumpEvery)
	defer tick.Stop()
	for {
		routers := p.routers()
		if len(routers) == 0 {
			return
		}
		for _, r := range routers {
			r.Pump(time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (p *pump) routers() []*router.Router {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.held))
}
