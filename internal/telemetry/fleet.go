package telemetry

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// fleetCollector reads the backends of the revision in force at every scrape,
// so that the series of a backend end with it.
type fleetCollector struct {
	fleet func() []*backends.Backend
	now   func() time.Time
	info  *prometheus.Desc
	ready *prometheus.Desc
	each  []fleetGauge
}

type fleetGauge struct {
	desc  *prometheus.Desc
	value reading
}

// reading is a value of a backend; NaN is unknown and not exposed.
type reading func(*backends.Backend, backends.Status, time.Time) float64

// NewFleetCollector exposes load, health and engine signals of the backends
// that fleet returns, each once.
func NewFleetCollector(fleet func() []*backends.Backend, now func() time.Time) prometheus.Collector {
	c := &fleetCollector{fleet: fleet, now: now}
	c.info = prometheus.NewDesc("firsttoken_backend_info", "Labels of a backend; always 1.",
		[]string{"backend", "engine", "gpu", "cuda", "quantization", "topology"}, nil)
	c.ready = prometheus.NewDesc("firsttoken_"+"backend_readiness", "1 for the state a backend is in: standby, cold, warming, ready or draining.",
		[]string{"backend", "state"}, nil)
	add := func(name, help string, value reading) {
		c.each = append(c.each, fleetGauge{
			desc:  prometheus.NewDesc("firsttoken_"+name, help, []string{"backend"}, nil),
			value: value,
		})
	}
	load := func(of func(backends.Load) float64) reading {
		return func(_ *backends.Backend, s backends.Status, _ time.Time) float64 { return of(s.Load) }
	}
	signal := func(of func(backends.Signals) float64) reading {
		return func(_ *backends.Backend, s backends.Status, _ time.Time) float64 { return of(s.Signals) }
	}
	add("backend_in_flight", "Attempts in flight on a backend.", load(func(l backends.Load) float64 { return float64(l.InFlight) }))
	add("backend_prefilling", "Attempts in flight without a first token.", load(func(l backends.Load) float64 { return float64(l.Prefilling) }))
	add("backend_prefill_tokens", "Estimated prompt tokens of attempts without a first token.", load(func(l backends.Load) float64 { return float64(l.PrefillTokens) }))
	add("backend_held_prefills", "Prefills the engine may go on with although their clients left.", load(func(l backends.Load) float64 { return float64(l.Held) }))
	add("backend_failure_penalty", "Recent failures, decayed; each weighs as one request in flight.", load(func(l backends.Load) float64 { return l.Penalty }))
	add("backend_up", "1 unless active probes fail.", func(_ *backends.Backend, s backends.Status, _ time.Time) float64 { return toFloat(s.Up) })
	add("backend_ejected", "1 while a backend is ejected or in probation.", func(_ *backends.Backend, s backends.Status, _ time.Time) float64 {
		return toFloat(s.State == backends.Ejected || s.State == backends.Probation)
	})
	add("backend_draining", "1 while a backend gets no new work.", func(_ *backends.Backend, s backends.Status, _ time.Time) float64 {
		return toFloat(s.State == backends.Draining)
	})
	add("backend_breaker_state", "Circuit breaker: 0 closed, 1 half-open, 2 open.", func(_ *backends.Backend, s backends.Status, _ time.Time) float64 {
		switch s.Breaker {
		case "open":
			return 2
		case "half-open":
			return 1
		}
		return 0
	})
	add("backend_weight", "Configured capacity of a backend, relative to its pool.", func(b *backends.Backend, _ backends.Status, _ time.Time) float64 { return b.Weight })
	add("engine_requests_running", "Sequences the engine computes, by its own metrics.", signal(func(s backends.Signals) float64 { return s.Running }))
	add("engine_requests_waiting", "Requests queued inside the engine, by its own metrics.", signal(func(s backends.Signals) float64 { return s.Waiting }))
	add("engine_kv_use_ratio", "Share of the engine's KV cache in use.", signal(func(s backends.Signals) float64 { return s.KVUse }))
	add("engine_prefix_hit_ratio", "Share of prompt tokens found in the engine's prefix cache.", signal(func(s backends.Signals) float64 { return s.PrefixHitRatio }))
	add("engine_cpu_cores", "CPU cores the engine's process uses.", signal(func(s backends.Signals) float64 { return s.CPU }))
	add("engine_signals_age_seconds", "Age of the engine's signals.", func(_ *backends.Backend, s backends.Status, now time.Time) float64 {
		if s.Signals.At.IsZero() {
			return math.NaN()
		}
		return s.Signals.Age(now).Seconds()
	})
	return c
}

func toFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (c *fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.info
	ch <- c.ready
	for _, g := range c.each {
		ch <- g.desc
	}
}

func (c *fleetCollector) Collect(ch chan<- prometheus.Metric) {
	now := c.now()
	for _, b := range c.fleet() {
		l := b.Labels
		ch <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1,
			b.Name, string(b.Kind), l["gpu"], l["cuda"], l["quantization"], l["topology"])
		status := b.Status(now)
		for _, state := range backends.Readinesses() {
			ch <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, toFloat(status.Ready == state), b.Name, string(state))
		}
		for _, g := range c.each {
			if v := g.value(b, status, now); !math.IsNaN(v) {
				ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, v, b.Name)
			}
		}
	}
}
