package targets

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/firsttoken/firsttoken/deploy/contracts"
	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/fleet"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

const (
	model     = "m"
	noise     = 0.05
	scrape    = 500 * time.Millisecond
	target    = 0.95 // share of the requests that is to meet its contract
	precision = 0.02 // precision of a goodput
)

// recorded are the traces by the names of their files.
var recorded = map[string]string{
	"conv":     "azure2023_conv_00-30min.csv",
	"code":     "azure2023_code_00-30min.csv",
	"mooncake": "mooncake_conversation_00-30min.jsonl",
}

// Traces names the loads: recorded ones, and the workloads of the contracts
// that ship.
func Traces() []string {
	return []string{"conv", "code", "mooncake", "customer-service", "code-completion", "live-summarisation"}
}

// promise is what requests of recorded traces are held to.
const promise = `
apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: recorded}
spec:
  objectives:
    - {metric: ttft, percentile: 95, threshold: {base: 400ms, per_token: 250us}}
    - {metric: tpot, percentile: 95, threshold: 80ms}
`

var errNoCell = errors.New("the trace is not there")

// cell is one fleet under one load.
type cell struct {
	*Options
	fleet, trace string
	engines      []replay.Engine
	contracts    *sla.Set
	source       func(seed uint64) trace.Source

	mu    sync.Mutex
	found map[finding]report.Goodput
}

// finding is the goodput of a rule, of a number of gateways, under a seed.
type finding struct {
	rule
	gateways int
	seed     uint64
}

func newCell(o *Options, fleetName, traceName string) (*cell, error) {
	c := &cell{Options: o, fleet: fleetName, trace: traceName, found: map[finding]report.Goodput{}}
	var err error
	if c.engines, err = engines(fleetName); err != nil {
		return nil, err
	}
	if file := recorded[traceName]; file != "" {
		if c.contracts, err = sla.Parse(sla.Source{Name: "targets", Data: []byte(promise)}); err != nil {
			return nil, err
		}
		return c, c.record(file)
	}
	w, err := trace.Shipped(traceName)
	if err != nil {
		return nil, err
	}
	c.source = drawn(w, o.Requests)
	c.contracts, err = sla.LoadFS(contracts.Files())
	return c, err
}

// record reads the beginning of a recorded trace, once.
func (c *cell) record(file string) error {
	path := filepath.Join(c.Data, file)
	if _, err := os.Stat(path); c.Data == "" || err != nil {
		return fmt.Errorf("%w: %s", errNoCell, file)
	}
	src, err := trace.Open(path, trace.Options{})
	if err != nil {
		return err
	}
	requests, err := served(src.First(c.Requests)).Collect()
	c.source = func(uint64) trace.Source { return trace.Of(requests...) }
	return err
}

// drawn is the beginning of a workload, drawn once a seed.
func drawn(w trace.Workload, n int) func(seed uint64) trace.Source {
	var mu sync.Mutex
	known := map[uint64]trace.Source{}
	return func(seed uint64) trace.Source {
		mu.Lock()
		defer mu.Unlock()
		if known[seed] == nil {
			requests, err := served(w.Source(seed).First(n)).Collect()
			if err != nil {
				return func(yield func(trace.Request, error) bool) { yield(trace.Request{}, err) }
			}
			known[seed] = trace.Of(requests...)
		}
		return known[seed]
	}
}

// served lets the fleet's one model serve a trace.
func served(src trace.Source) trace.Source {
	return src.Each(func(r *trace.Request) { r.Model = model })
}

func engines(name string) (out []replay.Engine, err error) {
	f, err := fleet.Shipped(name)
	if err != nil {
		return nil, err
	}
	for _, e := range f.Engines {
		p := e.Params
		p.Noise = noise
		out = append(out, replay.Engine{Name: e.Name, Model: model, Params: p, Seed: e.Seed})
	}
	return out, nil
}

func (c *cell) name() string { return c.trace + ", " + c.fleet }

// config is a rule on the cell's fleet.
func (c *cell) config(r rule) replay.Config {
	out := replay.Config{Engines: c.engines, Policy: r.policy, Scrape: scrape, Contracts: c.contracts, Stop: c.Stop}
	if r.hold {
		out.Admission = &router.Admission{}
	}
	if r.known {
		out.Predict = &replay.Predict{Prior: c.truth}
	}
	return out
}

// truth is the speed of an engine as its parameters say.
func (c *cell) truth(i int) *predictor.Speed {
	s := speedOf(&c.engines[i].Params.Step)
	return &s
}

// speedOf keeps every price above 0: the predictor learns in relation to where
// it starts.
func speedOf(m *engine.StepModel) predictor.Speed {
	const perMicrosecond = 1e-6
	return predictor.Speed{
		Fixed: max(m.H.Seconds(), 1e-3), Step: max((m.T0 + m.Experts).Seconds(), 1e-3),
		Token: max(m.Alpha*perMicrosecond, 1e-6), Seq: max(m.Beta*perMicrosecond, 5e-6),
		Context: max(m.Gamma*perMicrosecond, 1e-9), Square: max(m.Alpha2*perMicrosecond, 1e-10),
	}
}

// trial is the cell's load at a multiple of its rate.
func (c *cell) trial(multiplier float64) replay.Trial {
	return replay.Trial{Source: func(seed uint64) trace.Source { return c.source(seed).Rate(multiplier) }}
}

// run is one rule at a multiple of the cell's rate.
func (c *cell) run(config replay.Config, multiplier float64, seed uint64) (report.Run, error) {
	return c.watch(config, multiplier, seed, nil)
}

// watch is run, and tells each request's end.
func (c *cell) watch(config replay.Config, multiplier float64, seed uint64, seen func(*report.Sample, *replay.Outcome)) (report.Run, error) {
	t := c.trial(multiplier)
	t.Seen = seen
	r, stopped, err := t.Run(replay.Variant{Config: config}, seed)
	if stopped {
		err = replay.ErrStopped
	}
	return r, err
}

// goodput is the highest multiple of the rate at which enough requests meet
// their contract under the rule, as seen by one gateway.
func (c *cell) goodput(r rule, seed uint64) (report.Goodput, error) { return c.goodputOf(r, 1, seed) }

func (c *cell) goodputOf(r rule, gateways int, seed uint64) (report.Goodput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := finding{r, gateways, seed}
	if g, ok := c.found[key]; ok {
		return g, nil
	}
	c.Progress(fmt.Sprintf("%s: goodput of %s, seed %d", c.name(), r.policy, seed))
	g, err := c.trial(1).Find(c.variant(r, gateways), c.search(seed, c.near(r)))
	if err == nil {
		c.found[key] = g
	}
	return g, err
}

func (c *cell) variant(r rule, gateways int) replay.Variant {
	config := c.config(r)
	config.Gateways = gateways
	return replay.Variant{Name: r.policy, Config: config}
}

// near is the goodput found before of the policy, by the first seed that has
// one, or else the highest of all; 0 if there is none.
func (c *cell) near(r rule) float64 {
	highest, same, first := 0.0, 0.0, uint64(math.MaxUint64)
	for k, g := range c.found {
		if k.rule == (rule{policy: r.policy, hold: r.hold}) && k.gateways == 1 && g.Multiplier > 0 && k.seed < first {
			same, first = g.Multiplier, k.seed
		}
		highest = max(highest, g.Multiplier)
	}
	return cmp.Or(same, highest)
}

func (c *cell) search(seed uint64, near float64) replay.Search {
	return replay.Search{Target: target, Precision: precision, Seed: seed, Near: near, Known: near > 0}
}

// best is the best baseline. The first is searched; each of the others has to
// do well at a little more than the best so far to be searched itself.
func (c *cell) best(seed uint64) (report.Goodput, error) {
	best, err := c.goodput(rule{policy: baselines[0]}, seed)
	for _, policy := range baselines[1:] {
		if err != nil {
			return best, err
		}
		best, err = c.better(best, rule{policy: policy}, seed)
	}
	return best, err
}

// better is the rule's goodput if it is above the best so far.
func (c *cell) better(best report.Goodput, r rule, seed uint64) (report.Goodput, error) {
	near := best.Multiplier * (1 + precision)
	if best.Multiplier == 0 {
		near = 1.0 / 64
	}
	c.mu.Lock()
	g, known := c.found[finding{r, 1, seed}]
	c.mu.Unlock()
	if known {
		return higher(best, g), nil
	}
	c.Progress(fmt.Sprintf("%s: does %s beat %s, seed %d", c.name(), r.policy, best.Name, seed))
	at, err := c.trial(1).Try(c.variant(r, 1), c.search(seed, near), near)
	switch {
	case err != nil:
		return best, err
	case at.Met >= target:
		at, err = c.trial(1).Find(c.variant(r, 1), c.search(seed, near))
	default:
		at = report.Goodput{Name: r.policy} // it is no better
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found[finding{r, 1, seed}] = at
	return higher(best, at), err
}

func higher(a, b report.Goodput) report.Goodput {
	if b.Multiplier > a.Multiplier {
		return b
	}
	return a
}
