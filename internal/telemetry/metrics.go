package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the gateway's own time series, all named firsttoken_*. Label
// values come from the configuration or from closed lists, never from a
// client, so their number is bounded. It is safe for concurrent use.
type Metrics struct {
	requests        *prometheus.CounterVec
	inFlight        *prometheus.GaugeVec
	ttft            *prometheus.HistogramVec
	duration        *prometheus.HistogramVec
	tokens          *prometheus.CounterVec
	attempts        *prometheus.CounterVec
	retries         *prometheus.CounterVec
	retriesDenied   *prometheus.CounterVec
	upstreamTTFT    *prometheus.HistogramVec
	tpot            *prometheus.HistogramVec
	ejections       *prometheus.CounterVec
	calledIn        *prometheus.CounterVec
	probes          *prometheus.CounterVec
	scrapes         *prometheus.CounterVec
	staleConns      *prometheus.CounterVec
	unparsed        *prometheus.CounterVec
	predicted       *prometheus.CounterVec
	switched        *prometheus.CounterVec
	drifted         *prometheus.CounterVec
	ttftByTurn      *prometheus.HistogramVec
	turnsDrifted    *prometheus.CounterVec
	held            *prometheus.GaugeVec
	heldTime        *prometheus.HistogramVec
	shed            *prometheus.CounterVec
	outcomes        *prometheus.CounterVec
	visible         *prometheus.CounterVec
	overBurst       *prometheus.CounterVec
	violations      *prometheus.CounterVec
	lighter         *prometheus.CounterVec
	reloads         *prometheus.CounterVec
	lastReload      prometheus.Gauge
	lastReloadTime  prometheus.Gauge
	revision        prometheus.Gauge
	rejectedAtEdge  *prometheus.CounterVec
	panics          prometheus.Counter
	perModel        []deleter
	perBackend      []deleter
	perBackendModel []deleter
	perContract     []deleter

	mu        sync.Mutex
	models    map[string]*Model
	engines   map[string]*engine
	contracts map[string]*Contract
}

type deleter interface {
	DeletePartialMatch(prometheus.Labels) int
}

// latencyBuckets have an edge at every threshold of the shipped contracts
// (120, 300, 320, 650, 800 and 1200 ms).
var latencyBuckets = []float64{
	.005, .01, .02, .04, .06, .08, .1, .12, .16, .2, .25, .3, .32, .4, .5, .65, .8,
	1, 1.2, 1.6, 2, 2.5, 3.2, 5, 7.5, 10, 15, 20, 30, 60, 120, 300, 600,
}

var tpotBuckets = []float64{
	.001, .002, .003, .005, .0075, .01, .015, .02, .025, .03, .04, .05, .06, .08, .1, .15, .2, .3, .5, 1, 2.5,
}

// NewMetrics registers the gateway's metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "firsttoken", Name: name, Help: help}, labels)
		reg.MustRegister(v)
		return v
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "firsttoken", Name: name, Help: help}, labels)
		reg.MustRegister(v)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "firsttoken", Name: name, Help: help, Buckets: buckets}, labels)
		reg.MustRegister(v)
		return v
	}
	m := &Metrics{models: map[string]*Model{}, engines: map[string]*engine{}, contracts: map[string]*Contract{}}
	m.requests = counter("requests_total",
		"Requests answered, by endpoint, HTTP status (499: the client left) and reason (ok, or what went wrong; a broken stream counts by its reason, whatever status was sent).",
		"model", "endpoint", "code", "reason")
	m.inFlight = gauge("requests_in_flight", "Requests being served.", "model")
	m.ttft = histogram("ttft_seconds",
		"Time from request accepted to first token, waiting and retries included. Streams only.", latencyBuckets, "model", "kind")
	m.duration = histogram("request_duration_seconds", "Time from request accepted to the end of its answer.", latencyBuckets, "model", "endpoint")
	m.tokens = counter("tokens_total", "Tokens as reported by engines: prompt, cached (part of prompt), completion, reasoning (part of completion).", "model", "kind")
	m.attempts = counter("attempts_total", "Attempts on backends, by how they ended.", "model", "backend", "reason")
	m.retries = counter("retries_total", "Attempts that were tried again elsewhere, by what went wrong.", "model", "reason")
	m.retriesDenied = counter("retries_denied_total", "Failed attempts that were not tried again although they could: budget, attempts, deadline, no_backend.", "model", "why")
	m.upstreamTTFT = histogram("upstream_ttft_seconds", "Time from attempt sent to first token.", latencyBuckets, "model", "backend")
	m.tpot = histogram("tpot_seconds", "Time per output token of a request: (last token - first token) / (tokens - 1).", tpotBuckets, "model", "backend")
	m.ejections = counter("ejections_total", "Ejections of a backend: consecutive, failure_rate, probation.", "backend", "reason")
	m.calledIn = counter("standby_calls_total", "Times a standby backend was called in, since requests were at risk.", "backend")
	m.probes = counter("health_probes_total", "Active health probes, by result (ok, failed).", "backend", "result")
	m.scrapes = counter("engine_scrapes_total", "Scrapes of engines' metrics, by result (ok, failed).", "backend", "result")
	m.staleConns = counter("stale_connections_total", "Requests sent again on a fresh connection because the engine had closed an idle one.", "backend")
	m.unparsed = counter("unparsed_events_total", "Stream events whose data was not JSON; they are passed on unchanged.", "backend")
	m.predicted = counter("prediction_samples_total", "Predictions compared with the truth, by the estimator whose word counted and the load the engine was under.", "model", "estimator", "regime")
	m.switched = counter("prediction_switches_total", "Changes of the estimator whose word counts: error, low_rate, volatile.", "model", "from", "to", "reason")
	m.drifted = counter("prediction_drift_total", "Alarms about an estimator: coverage (of its P95), shift (of its error).", "model", "estimator", "reason")
	m.ttftByTurn = histogram("ttft_by_turn_seconds",
		"Time from request accepted to first token, by turn of the conversation: 1, 2, 3-5, 6-10, >10. Streams only.", latencyBuckets, "model", "turn")
	m.turnsDrifted = counter("ttft_turn_drifts_total", "Times the first tokens of later turns of conversations came later than those of first turns by 30 % in the median.", "model")
	m.held = gauge("held_requests", "Requests that wait at the gateway for an engine that can take them without harm.", "model")
	m.heldTime = histogram("held_seconds", "Time that requests waited at the gateway, of those that had to.", latencyBuckets, "model")
	m.shed = counter("shed_total", "Requests refused for load with 429: deadline (it could not be met any more), visible_limit (past it an answer is of no use), full (too many were waiting).", "model", "contract", "reason")
	m.outcomes = counter("contract_outcomes_total", "Requests judged by an objective of their contract.", "contract", "objective", "met")
	m.visible = counter("contract_first_tokens_total", "First tokens of contracts with a visible limit, by whether they came within it. Streams only.", "contract", "within_limit")
	m.overBurst = counter("contract_over_burst_total", "Requests above a contract's usual rate and burst, which are let in after the others of its criticality.", "contract")
	m.violations = counter("violations_total", "Windows that ended a row of violated ones and cut a backend's weight under a contract.", "contract", "backend")
	m.lighter = counter("lighter_model_total", "Requests that were given to a lighter model because their own could not serve them in time.", "contract", "from", "to")
	m.reloads = counter("config_reloads_total", "Reloads of the configuration, by result (ok, failed).", "result")
	m.rejectedAtEdge = counter("edge_rejections_total", "Requests refused before they named a model, by error code.", "code")
	m.lastReload = gauge("config_last_reload_successful", "1 if the last reload succeeded.").WithLabelValues()
	m.lastReloadTime = gauge("config_last_reload_success_timestamp_seconds", "When the configuration in force was loaded.").WithLabelValues()
	m.revision = gauge("config_revision", "Revision of the configuration in force; it rises by one with every successful reload.").WithLabelValues()
	m.panics = counter("panics_total", "Panics recovered while serving requests.").WithLabelValues()

	m.perModel = []deleter{m.requests, m.inFlight, m.ttft, m.duration, m.tokens, m.retries, m.retriesDenied, m.predicted, m.switched, m.drifted,
		m.ttftByTurn, m.turnsDrifted, m.held, m.heldTime, m.shed}
	m.perContract = []deleter{m.shed, m.outcomes, m.visible, m.overBurst, m.violations, m.lighter}
	m.perBackendModel = []deleter{m.attempts, m.upstreamTTFT, m.tpot}
	m.perBackend = []deleter{m.ejections, m.calledIn, m.probes, m.scrapes, m.staleConns, m.unparsed, m.violations}
	return m
}

// Model returns the series of one model; the same one for the same name.
func (m *Metrics) Model(name string) *Model {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.models[name]
	if c == nil {
		c = newModel(m, name)
		m.models[name] = c
	}
	return c
}

// Keep drops the series of models and backends that a reload took away.
// backends maps each backend to the models it serves. What still runs on an
// older revision may report on; it is not seen any more.
func (m *Metrics) Keep(models map[string]bool, backends map[string]map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, c := range m.models {
		if !models[name] {
			delete(m.models, name)
			c.drop()
			drop(m.perModel, prometheus.Labels{"model": name})
			drop([]deleter{m.lighter}, prometheus.Labels{"from": name})
			drop([]deleter{m.lighter}, prometheus.Labels{"to": name})
			drop(m.perBackendModel, prometheus.Labels{"model": name})
		}
		for b, series := range c.backends {
			if !backends[b][name] {
				delete(c.backends, b)
				series.drop()
				drop(m.perBackendModel, prometheus.Labels{"model": name, "backend": b})
			}
		}
	}
	for name, e := range m.engines {
		if backends[name] == nil {
			delete(m.engines, name)
			e.drop()
			drop(m.perBackend, prometheus.Labels{"backend": name})
		}
	}
}

func drop(from []deleter, labels prometheus.Labels) {
	for _, d := range from {
		d.DeletePartialMatch(labels)
	}
}

// Probed counts an active health probe of a backend that serves some model.
func (m *Metrics) Probed(backend string, ok bool) {
	if e := m.engine(backend); e != nil {
		e.probes.inc(result(ok))
	}
}

// CalledIn counts a standby backend that was called in.
func (m *Metrics) CalledIn(backend string) {
	if e := m.engine(backend); e != nil {
		e.calledIn.inc(backend)
	}
}

// Scraped counts a scrape of the metrics of a backend that serves some model.
func (m *Metrics) Scraped(backend string, ok bool) {
	if e := m.engine(backend); e != nil {
		e.scrapes.inc(result(ok))
	}
}

func (m *Metrics) engine(name string) *engine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.engines[name]
}

// Reloaded records a reload; revision is the one in force after it.
func (m *Metrics) Reloaded(now time.Time, ok bool, revision int64) {
	m.reloads.WithLabelValues(result(ok)).Inc()
	m.revision.Set(float64(revision))
	if !ok {
		m.lastReload.Set(0)
		return
	}
	m.lastReload.Set(1)
	m.lastReloadTime.Set(float64(now.UnixMilli()) / 1e3)
}

// EdgeRejected counts a request refused before it named a model.
func (m *Metrics) EdgeRejected(code string) { m.rejectedAtEdge.WithLabelValues(code).Inc() }

// Panicked counts a recovered panic.
func (m *Metrics) Panicked() { m.panics.Inc() }

func result(ok bool) string {
	if ok {
		return "ok"
	}
	return "failed"
}

// BuildInfo is firsttoken_build_info, always 1.
func BuildInfo(version string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "firsttoken", Name: "build_info", Help: "Version of the gateway; always 1.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	g.Set(1)
	return g
}
