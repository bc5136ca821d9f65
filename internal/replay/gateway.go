package replay

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// gateway is one replica with its own view of the fleet.
type gateway struct {
	routers map[string]*router.Router // by model
	models  []string
	pumping bool
	targets []*backends.Backend       // by engine
	engine  map[*backends.Backend]int // the other way round
	scrapes []scrape                  // by engine
	warming []warming                 // by engine
	ledger  *sla.Ledger               // of contracts; nil: there are none

	foresights map[string]router.Foresight // by model; of none if nothing is predicted
}

// scrape is one request for an engine's metrics under way.
type scrape struct {
	began time.Duration
	own   int
	text  engine.Stats
	ok    bool
}

func newGateway(c Config, g int) (*gateway, error) {
	gate := &gateway{
		routers: map[string]*router.Router{},
		targets: make([]*backends.Backend, len(c.Engines)),
		engine:  map[*backends.Backend]int{},
		scrapes: make([]scrape, len(c.Engines)),
		warming: make([]warming, len(c.Engines)),

		foresights: map[string]router.Foresight{},
	}
	if c.Contracts != nil {
		gate.ledger = sla.NewLedger(c.Contracts, sla.Options{})
	}
	var models []string
	members := map[string][]int{}
	for i, e := range c.Engines {
		if members[e.Model] == nil {
			models = append(models, e.Model)
		}
		members[e.Model] = append(members[e.Model], i)
	}
	gate.models = models
	fleet := predictor.NewFleet(c.Predict.watch())
	var specs []backends.PoolSpec
	for _, m := range models {
		ps := backends.PoolSpec{Model: m}
		for _, i := range members[m] {
			ps.Backends = append(ps.Backends, backends.Spec{
				Name:   c.Engines[i].Name,
				URL:    &url.URL{Scheme: "http", Host: fmt.Sprintf("engine-%d", i)},
				Kind:   backends.VLLM,
				Health: c.Health,
				WarmUp: c.WarmUp != nil,
			})
		}
		specs = append(specs, ps)
	}
	for k, pool := range backends.NewFleet().Pools(specs) {
		policy, err := router.NewPolicy(c.Policy, rand.NewPCG(c.Seed, uint64(g)<<32|uint64(k)))
		if err != nil {
			return nil, err
		}
		gate.routers[models[k]] = router.New(pool, c.Policy, policy)
		for j, i := range members[models[k]] {
			gate.targets[i] = pool.Backends[j]
			gate.engine[pool.Backends[j]] = i
		}
		if c.Predict != nil {
			foresight := c.Predict.foresight(fleet, pool, members[models[k]])
			if gate.ledger != nil {
				foresight.Ledger = gate.ledger
			}
			gate.foresights[models[k]] = foresight
			gate.routers[models[k]].Foresee(foresight)
			if c.Admission != nil {
				gate.routers[models[k]].Admit(*c.Admission)
			}
		}
	}
	return gate, nil
}

func (p *Predict) watch() predictor.Watch {
	if p == nil {
		return nil
	}
	return p.Watch
}

// foresight sets one pool's predictor up.
func (p *Predict) foresight(fleet *predictor.Fleet, pool *backends.Pool, engines []int) router.Foresight {
	f := router.Foresight{Pool: fleet.Pool(pool.Model, p.Rules)}
	if p.Model != nil {
		f.Pool.SetModel(p.Model)
	}
	for j, b := range pool.Backends {
		var prior *predictor.Speed
		if p.Prior != nil {
			prior = p.Prior(engines[j])
		}
		f.Instances = append(f.Instances, fleet.Instance(b.URL.String(), prior))
	}
	return f
}
