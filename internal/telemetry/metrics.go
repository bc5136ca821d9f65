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
	probes          *prometheus.CounterVec
	scrapes         *prometheus.CounterVec
	staleConns      *prometheus.CounterVec
	unparsed        *prometheus.CounterVec
	reloads         *prometheus.CounterVec
	lastReload      prometheus.Gauge
	lastReloadTime  prometheus.Gauge
	revision        prometheus.Gauge
	rejectedAtEdge  *prometheus.CounterVec
	panics          prometheus.Counter
	mu              sync.Mutex
	modelCache      map[string]*Model
	perModel        []deleter
	perBackend      []deleter
	perBackendModel []deleter
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
	m := &Metrics{modelCache: map[string]*Model{}}
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
	m.tpot = histogram("tpot_seconds", "Time per output token of a request: (end - first token) / (tokens - 1).", tpotBuckets, "model", "backend")
	m.ejections = counter("ejections_total", "Ejections of a backend: consecutive, failure_rate, probation.", "backend", "reason")
	m.probes = counter("health_probes_total", "Active health probes, by result (ok, failed).", "backend", "result")
	m.scrapes = counter("engine_scrapes_total", "Scrapes of engines' metrics, by result (ok, failed).", "backend", "result")
	m.staleConns = counter("stale_connections_total", "Requests sent again on a fresh connection because the engine had closed an idle one.", "backend")
	m.unparsed = counter("unparsed_events_total", "Stream events whose data was not JSON; they are passed on unchanged.", "backend")
	m.reloads = counter("config_reloads_total", "Reloads of the configuration, by result (ok, failed).", "result")
	m.rejectedAtEdge = counter("edge_rejections_total", "Requests refused before they named a model, by error code.", "code")
	m.lastReload = gauge("config_last_reload_successful", "1 if the last reload succeeded.").WithLabelValues()
	m.lastReloadTime = gauge("config_last_reload_success_timestamp_seconds", "When the configuration in force was loaded.").WithLabelValues()
	m.revision = gauge("config_revision", "Revision of the configuration in force; it rises by one with every successful reload.").WithLabelValues()
	m.panics = counter("panics_total", "Panics recovered while serving requests.").WithLabelValues()

	m.perModel = []deleter{m.requests, m.inFlight, m.ttft, m.duration, m.tokens, m.retries, m.retriesDenied}
	m.perBackendModel = []deleter{m.attempts, m.upstreamTTFT, m.tpot}
	m.perBackend = []deleter{m.ejections, m.probes, m.scrapes, m.staleConns, m.unparsed}
	return m
}

// Model returns the series of one model; the same one for the same name.
func (m *Metrics) Model(name string) *Model {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.modelCache[name]; c != nil {
		return c
	}
	c := &Model{
		m:        m,
		name:     name,
		InFlight: m.inFlight.WithLabelValues(name),
		backends: map[string]*Backend{},
		requests: map[requestKey]prometheus.Counter{},
	}
	for _, kind := range []string{"prompt", "cached", "completion", "reasoning"} {
		c.tokens = append(c.tokens, m.tokens.WithLabelValues(name, kind))
	}
	m.modelCache[name] = c
	return c
}

// Keep drops the series of models and backends that a reload took away.
// backends maps each backend to the models it serves.
func (m *Metrics) Keep(models map[string]bool, backends map[string]map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, c := range m.modelCache {
		if !models[name] {
			delete(m.modelCache, name)
			drop(m.perModel, prometheus.Labels{"model": name})
			drop(m.perBackendModel, prometheus.Labels{"model": name})
		}
		c.mu.Lock()
		for b := range c.backends {
			if !backends[b][name] {
				delete(c.backends, b)
				drop(m.perBackendModel, prometheus.Labels{"model": name, "backend": b})
			}
			if backends[b] == nil {
				drop(m.perBackend, prometheus.Labels{"backend": b})
			}
		}
		c.mu.Unlock()
	}
}

func drop(from []deleter, labels prometheus.Labels) {
	for _, d := range from {
		d.DeletePartialMatch(labels)
	}
}

// Model is the series of one model.
type Model struct {
	InFlight prometheus.Gauge

	m        *Metrics
	name     string
	tokens   []prometheus.Counter
	mu       sync.Mutex
	backends map[string]*Backend
	requests map[requestKey]prometheus.Counter
}

type requestKey struct {
	endpoint, reason string
	code             int
}

// Request counts one answered request.
func (m *Model) Request(endpoint string, code int, reason string, duration time.Duration) {
	m.counter(requestKey{endpoint, reason, code}).Inc()
	m.m.duration.WithLabelValues(m.name, endpoint).Observe(duration.Seconds())
}

// counter caches the series: a label look-up costs more than the count.
func (m *Model) counter(k requestKey) prometheus.Counter {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.requests[k]
	if c == nil {
		c = m.m.requests.WithLabelValues(m.name, k.endpoint, codeLabel(k.code), k.reason)
		m.requests[k] = c
	}
	return c
}

// TTFT records the time from request accepted to a first token of the kind.
func (m *Model) TTFT(kind string, d time.Duration) {
	m.m.ttft.WithLabelValues(m.name, kind).Observe(d.Seconds())
}

// Tokens counts what an engine reported.
func (m *Model) Tokens(prompt, cached, completion, reasoning int) {
	for i, n := range [...]int{prompt, cached, completion, reasoning} {
		if n > 0 {
			m.tokens[i].Add(float64(n))
		}
	}
}

// Retry counts one attempt that is tried again elsewhere.
func (m *Model) Retry(reason string) { m.m.retries.WithLabelValues(m.name, reason).Inc() }

// RetryDenied counts one failed attempt that is not tried again.
func (m *Model) RetryDenied(why string) { m.m.retriesDenied.WithLabelValues(m.name, why).Inc() }

// Backend returns the series of one backend of the model.
func (m *Model) Backend(name string) *Backend {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.backends[name]
	if b == nil {
		b = &Backend{
			m: m.m, model: m.name, name: name,
			served: m.m.attempts.WithLabelValues(m.name, name, "ok"),
			ttft:   m.m.upstreamTTFT.WithLabelValues(m.name, name),
			tpot:   m.m.tpot.WithLabelValues(m.name, name),
		}
		m.backends[name] = b
	}
	return b
}

// Backend is the series of one backend of one model.
type Backend struct {
	m           *Metrics
	model, name string
	served      prometheus.Counter
	ttft, tpot  prometheus.Observer
}

// Attempt counts one attempt by how it ended.
func (b *Backend) Attempt(reason string) {
	if reason == "ok" {
		b.served.Inc()
		return
	}
	b.m.attempts.WithLabelValues(b.model, b.name, reason).Inc()
}

// TTFT records the time from attempt sent to first token.
func (b *Backend) TTFT(d time.Duration) { b.ttft.Observe(d.Seconds()) }

// TPOT records a request's time per output token.
func (b *Backend) TPOT(d time.Duration) { b.tpot.Observe(d.Seconds()) }

// Ejected counts an ejection.
func (b *Backend) Ejected(reason string) { b.m.ejections.WithLabelValues(b.name, reason).Inc() }

// StaleConnection counts a request sent again on a fresh connection.
func (b *Backend) StaleConnection() { b.m.staleConns.WithLabelValues(b.name).Inc() }

// Unparsed counts stream events that were not JSON.
func (b *Backend) Unparsed(n int) {
	if n > 0 {
		b.m.unparsed.WithLabelValues(b.name).Add(float64(n))
	}
}

// Probed counts an active health probe.
func (m *Metrics) Probed(backend string, ok bool) {
	m.probes.WithLabelValues(backend, result(ok)).Inc()
}

// Scraped counts a scrape of an engine's metrics.
func (m *Metrics) Scraped(backend string, ok bool) {
	m.scrapes.WithLabelValues(backend, result(ok)).Inc()
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

// codeLabel is an HTTP status as text; what no server sends is "other".
func codeLabel(code int) string {
	if code < 100 || code > 599 {
		return "other"
	}
	return string([]byte{byte('0' + code/100), byte('0' + code/10%10), byte('0' + code%10)})
}
