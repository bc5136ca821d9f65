package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Model is the series of one model. It is safe for concurrent use, also after
// Keep has dropped the model.
type Model struct {
	InFlight prometheus.Gauge
	Held     prometheus.Gauge // waiting at the gateway

	m    *Metrics
	name string

	requests                       *counters[requestKey]
	duration, ttft, ttftByTurn     *durations
	heldTime                       prometheus.Observer
	tokens, retries, retriesDenied *counters[string]
	predicted                      *counters[sampleKey]
	switched                       *counters[switchKey]
	drifted                        *counters[driftKey]

	backends map[string]*Backend // guarded by m.mu; nil once dropped
}

type requestKey struct {
	endpoint, reason string
	code             int
}

func newModel(m *Metrics, name string) *Model {
	c := &Model{
		m:        m,
		name:     name,
		InFlight: m.inFlight.WithLabelValues(name),
		Held:     m.held.WithLabelValues(name),
		heldTime: m.heldTime.WithLabelValues(name),
		requests: newCounters(func(k requestKey) prometheus.Counter {
			return m.requests.WithLabelValues(name, k.endpoint, codeLabel(k.code), k.reason)
		}),
		duration:      timed(m.duration, name),
		ttft:          timed(m.ttft, name),
		ttftByTurn:    timed(m.ttftByTurn, name),
		tokens:        counted(m.tokens, name),
		retries:       counted(m.retries, name),
		retriesDenied: counted(m.retriesDenied, name),
		predicted: newCounters(func(k sampleKey) prometheus.Counter {
			return m.predicted.WithLabelValues(name, k.by.String(), k.regime.String())
		}),
		switched: newCounters(func(k switchKey) prometheus.Counter {
			return m.switched.WithLabelValues(name, k.from.String(), k.to.String(), k.reason)
		}),
		drifted: newCounters(func(k driftKey) prometheus.Counter {
			return m.drifted.WithLabelValues(name, k.of.String(), k.reason)
		}),
		backends: map[string]*Backend{},
	}
	for _, kind := range []string{"prompt", "cached", "completion", "reasoning"} {
		c.tokens.of(kind) // there from the start, at 0
	}
	return c
}

// Request counts one answered request.
func (m *Model) Request(endpoint string, code int, reason string, duration time.Duration) {
	m.requests.inc(requestKey{endpoint, reason, statusOrOther(code)})
	m.duration.observe(endpoint, duration)
}

// TTFT records the time from request accepted to a first token of the kind, in
// a turn of a conversation; 0 is unknown.
func (m *Model) TTFT(kind string, turn int, d time.Duration) {
	m.ttft.observe(kind, d)
	if turn > 0 {
		m.ttftByTurn.observe(turnLabel(turn), d)
	}
}

// HeldFor records how long a request waited at the gateway.
func (m *Model) HeldFor(d time.Duration) { m.heldTime.Observe(d.Seconds()) }

// Tokens counts what an engine reported.
func (m *Model) Tokens(prompt, cached, completion, reasoning int) {
	count := func(kind string, n int) {
		if n > 0 {
			m.tokens.add(kind, float64(n))
		}
	}
	count("prompt", prompt)
	count("cached", cached)
	count("completion", completion)
	count("reasoning", reasoning)
}

// Retry counts one attempt that is tried again elsewhere.
func (m *Model) Retry(reason string) { m.retries.inc(reason) }

// RetryDenied counts one failed attempt that is not tried again.
func (m *Model) RetryDenied(why string) { m.retriesDenied.inc(why) }

// TurnsDrifted counts that later turns of conversations wait longer for their
// first token than first ones.
func (m *Metrics) TurnsDrifted(model string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.models[model] != nil {
		m.turnsDrifted.WithLabelValues(model).Inc()
	}
}

// Backend returns the series of one backend of the model; the same one for
// the same name.
func (m *Model) Backend(name string) *Backend {
	m.m.mu.Lock()
	defer m.m.mu.Unlock()
	if b := m.backends[name]; b != nil {
		return b
	}
	e := m.m.engines[name]
	if e == nil {
		e = newEngine(m.m, name)
	}
	b := newBackend(m.m, m.name, name, e)
	if m.backends == nil {
		b.drop()
		if m.m.engines[name] != e {
			e.drop()
		}
		return b
	}
	m.backends[name], m.m.engines[name] = b, e
	b.show()
	return b
}

// drop is called with m.mu held.
func (m *Model) drop() {
	for _, b := range m.backends {
		b.drop()
	}
	m.backends = nil
	m.requests.drop()
	m.duration.drop()
	m.ttft.drop()
	m.ttftByTurn.drop()
	m.tokens.drop()
	m.retries.drop()
	m.retriesDenied.drop()
	m.predicted.drop()
	m.switched.drop()
	m.drifted.drop()
}

// statusOrOther is an HTTP status, or 0 for what no server sends.
func statusOrOther(code int) int {
	if code < 100 || code > 599 {
		return 0
	}
	return code
}

func codeLabel(code int) string {
	if code == 0 {
		return "other"
	}
	return strconv.Itoa(code)
}
