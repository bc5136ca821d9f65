package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/firsttoken/firsttoken/pkg/sla"
)

// Contract is the series of one contract. It is safe for concurrent use, also
// after KeepContracts has dropped the contract.
type Contract struct {
	name      string
	outcomes  *counters[outcomeKey]
	visible   *counters[string] // by whether it was within
	overBurst *counters[string] // by name: there is one
}

type outcomeKey struct {
	objective string
	met       bool
}

// Contract returns the series of a contract; the same one for the same name.
func (m *Metrics) Contract(name string) *Contract {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.contracts[name]
	if c == nil {
		c = &Contract{
			name: name,
			outcomes: newCounters(func(k outcomeKey) prometheus.Counter {
				return m.outcomes.WithLabelValues(name, k.objective, strconv.FormatBool(k.met))
			}),
			visible:   counted(m.visible, name),
			overBurst: counted(m.overBurst),
		}
		m.contracts[name] = c
	}
	return c
}

// Show makes the series of an objective there from the start, at 0.
func (c *Contract) Show(objective string) {
	c.outcomes.of(outcomeKey{objective, true})
	c.outcomes.of(outcomeKey{objective, false})
}

// ShowLimits makes the series of the visible limit and of the burst there from
// the start, at 0, where the contract has them.
func (c *Contract) ShowLimits(visible, burst bool) {
	if visible {
		c.visible.of("true")
		c.visible.of("false")
	}
	if burst {
		c.overBurst.of(c.name)
	}
}

// FirstToken counts one that came within the visible limit, or past it.
func (c *Contract) FirstToken(within bool) { c.visible.inc(strconv.FormatBool(within)) }

// OverBurst counts a request that the contract's burst does not cover.
func (c *Contract) OverBurst() { c.overBurst.inc(c.name) }

// Outcome counts a request that was judged by an objective.
func (c *Contract) Outcome(objective string, met bool) { c.outcomes.inc(outcomeKey{objective, met}) }

// KeepContracts drops the series of contracts that are no longer in force.
func (m *Metrics) KeepContracts(names map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, c := range m.contracts {
		if !names[name] {
			delete(m.contracts, name)
			c.outcomes.drop()
			c.visible.drop()
			c.overBurst.drop()
			drop(m.perContract, prometheus.Labels{"contract": name})
		}
	}
}

// Violated counts a contract that a backend violated for several windows in a row.
func (m *Metrics) Violated(contract, backend string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.contracts[contract] != nil && m.engines[backend] != nil {
		m.violations.WithLabelValues(contract, backend).Inc()
	}
}

// Shed counts a request that was refused for load; contract is "" for none.
func (m *Metrics) Shed(model, contract, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.models[model] != nil && m.inForce(contract) {
		m.shed.WithLabelValues(model, contract, reason).Inc()
	}
}

// Lightened counts a request that was given to a lighter model.
func (m *Metrics) Lightened(contract, from, to string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.models[from] != nil && m.models[to] != nil && m.inForce(contract) {
		m.lighter.WithLabelValues(contract, from, to).Inc()
	}
}

// inForce is called with mu held.
func (m *Metrics) inForce(contract string) bool {
	return contract == "" || m.contracts[contract] != nil
}

// turnLabel groups the turns of conversations.
func turnLabel(turn int) string {
	switch {
	case turn <= 2:
		return strconv.Itoa(turn)
	case turn <= 5:
		return "3-5"
	case turn <= 10:
		return "6-10"
	}
	return ">10"
}

// contractCollector reads the ledger at the moment of a scrape.
type contractCollector struct {
	read func(now time.Time) []sla.Status
	now  func() time.Time

	state, burn, budget *prometheus.Desc
}

// NewContractCollector exposes how the contracts stand that read returns. Of
// several objectives it shows the one that stands worst.
func NewContractCollector(read func(now time.Time) []sla.Status, now func() time.Time) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("firsttoken_"+name, help, append([]string{"contract"}, labels...), nil)
	}
	return &contractCollector{
		read: read, now: now,
		state: desc("contract_state", "1 for the state a contract is in: ok, at_risk, breaching, no_data.", "state"),
		burn: desc("contract_burn_rate",
			"Share of requests that missed over the share that may, of the objective for which it is highest; 1 spends the error budget exactly in the objective's window.", "window"),
		budget: desc("contract_budget_remaining_ratio", "Part of the error budget that is left, of the objective that has least; below 0 it is overspent."),
	}
}

func (c *contractCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.state
	ch <- c.burn
	ch <- c.budget
}

func (c *contractCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range c.read(c.now()) {
		for _, state := range []sla.State{sla.OK, sla.AtRisk, sla.Breaching, sla.NoData} {
			gauge(c.state, toFloat(s.State == state), s.Contract, string(state))
		}
		budget, burn := 1.0, map[time.Duration]float64{}
		for _, o := range s.Objectives {
			budget = min(budget, o.Budget)
			for _, w := range o.Windows {
				burn[w.Length] = max(burn[w.Length], w.Burn)
			}
		}
		gauge(c.budget, budget, s.Contract)
		for length, rate := range burn {
			gauge(c.burn, rate, s.Contract, sla.Duration(length).String())
		}
	}
}
