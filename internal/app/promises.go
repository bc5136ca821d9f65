package app

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/deploy/contracts"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/proxy"
	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// promises are what outlives revisions of contracts: the ledger, and who is
// told of violations. It is safe for concurrent use.
type promises struct {
	ledger  *sla.Ledger
	metrics *telemetry.Metrics
	log     *zap.Logger
	inForce atomic.Pointer[contractsInForce]

	// Set before the first request.
	onViolation []func(sla.Violation)
	onWarmUp    []func(model string)
}

// contractsInForce are the contracts of one revision and their series.
type contractsInForce struct {
	set    *sla.Set
	series map[string]*telemetry.Contract
	pools  map[string]*backends.Pool // by model
	paces  paces
	counts map[string]*outcomes // go on with later revisions
}

func newPromises(m *telemetry.Metrics, log *zap.Logger) *promises {
	p := &promises{ledger: sla.NewLedger(&sla.Set{}, sla.Options{}), metrics: m, log: log}
	p.inForce.Store(&contractsInForce{set: &sla.Set{}})
	return p
}

// maxContractFile is more than sla reads; what is cut off is refused there.
const maxContractFile = 16 << 20

// LoadContracts reads the contracts that a configuration names. All of them are
// read together: a name stands for one contract. When their content is at fault
// the error is of type sla.Errors and holds everything that is wrong.
func LoadContracts(cfg config.Contracts) (*sla.Set, error) {
	var sources []sla.Source
	if cfg.Shipped {
		shipped, err := shippedContracts()
		if err != nil {
			return nil, fmt.Errorf("contracts.shipped: %w", err)
		}
		sources = shipped
	}
	for i, path := range cfg.Files {
		data, err := readContracts(path)
		if err != nil {
			return nil, fmt.Errorf("contracts.files[%d]: %w", i, err)
		}
		sources = append(sources, sla.Source{Name: path, Data: data})
	}
	if len(sources) == 0 {
		return &sla.Set{}, nil
	}
	return sla.Parse(sources...)
}

func shippedContracts() (sources []sla.Source, err error) {
	names, err := fs.Glob(contracts.Files(), "*.yaml")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		data, err := fs.ReadFile(contracts.Files(), name)
		if err != nil {
			return nil, err
		}
		sources = append(sources, sla.Source{Name: "shipped " + name, Data: data})
	}
	return sources, nil
}

func readContracts(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // a file the configuration names
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxContractFile))
}

// enforce follows the contracts of a table, before it serves.
func (p *promises) enforce(t *proxy.Table) {
	now := &contractsInForce{set: t.Contracts, series: map[string]*telemetry.Contract{}, pools: poolsOf(t), counts: map[string]*outcomes{}}
	former := p.inForce.Load().counts
	now.paces = p.inForce.Load().paces.follow(t)
	names := map[string]bool{}
	for _, c := range t.Contracts.Contracts() {
		names[c.Name()] = true
		series := p.metrics.Contract(c.Name())
		for i := range c.Spec.Objectives {
			series.Show(c.Spec.Objectives[i].ID())
		}
		series.ShowLimits(c.Spec.VisibleLimit > 0, c.Spec.Burst > 0)
		now.series[c.Name()] = series
		now.counts[c.Name()] = cmp.Or(former[c.Name()], &outcomes{})
		p.warnOfModels(t, c)
	}
	p.metrics.KeepContracts(names)
	p.ledger.Adopt(t.Contracts)
	before := p.inForce.Swap(now)
	if before.set.Revision() != now.set.Revision() {
		p.log.Info("contracts in force", zap.Int("contracts", len(names)), zap.String("contracts_revision", now.set.Revision()))
	}
}

// warnOfModels names lighter models that the gateway does not have; their
// actions are passed over.
func (p *promises) warnOfModels(t *proxy.Table, c *sla.Contract) {
	for _, a := range c.Spec.AtRisk {
		if a.Do == sla.LighterModel && !t.Has(a.Model) {
			p.log.Warn("a contract's lighter model is not configured; nobody is given to it",
				zap.String("contract", c.Name()), zap.String("model", a.Model))
		}
	}
}

// Record books an outcome; one of a contract that is no longer in force is dropped.
func (p *promises) Record(now time.Time, backend string, c *sla.Contract, out sla.Outcome) (met, judged bool) {
	in := p.inForce.Load()
	series := in.series[c.Name()]
	if series == nil {
		return false, false
	}
	if v := p.ledger.Record(now, backend, c, out); v != nil {
		p.violated(v)
	}
	met, judged = tell(series, c, &out)
	in.counts[c.Name()].add(out.End, met, judged)
	return met, judged
}

// tell counts an outcome by objective and judges the whole by those that
// single requests are judged by.
func tell(series *telemetry.Contract, c *sla.Contract, out *sla.Outcome) (met, judged bool) {
	if limit := c.Spec.VisibleLimit.D(); limit > 0 && out.TTFT > 0 {
		series.FirstToken(out.TTFT <= limit)
	}
	met = true
	for i := range c.Spec.Objectives {
		o := &c.Spec.Objectives[i]
		verdict, _ := o.Judge(out)
		if verdict == sla.Neutral {
			continue
		}
		within := verdict == sla.Met
		series.Outcome(o.ID(), within)
		if c.Governing(o.Metric) == o {
			met, judged = met && within, true
		}
	}
	return met && judged, judged
}

func (p *promises) violated(v *sla.Violation) {
	p.metrics.Violated(v.Contract, v.Instance)
	p.log.Warn("contract violated", zap.String("contract", v.Contract), zap.String("backend", v.Instance),
		zap.Int("windows", v.Windows), zap.Stringer("objective", &v.Objective), zap.Int("samples", v.Samples),
		zap.Float64("share", v.Share), zap.Float64("weight", v.Weight), zap.Time("since", v.Since))
	for _, f := range p.onViolation {
		f(*v)
	}
}

// report is what a scrape is told.
func (p *promises) report(now time.Time) []sla.Status {
	var out []sla.Status
	for _, c := range p.inForce.Load().set.Contracts() {
		if s, ok := p.ledger.Status(now, c.Name()); ok {
			out = append(out, s)
		}
	}
	return out
}

// OnViolation has f called when a backend has violated a contract for several
// windows in a row, from the request that showed it: f must not block. It comes
// before Run.
func (a *App) OnViolation(f func(sla.Violation)) {
	a.promises.onViolation = append(a.promises.onViolation, f)
}
