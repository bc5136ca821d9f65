package telemetry

import "time"

// Backend is the series of one backend of one model. It is safe for concurrent
// use, also after Keep has dropped the backend.
type Backend struct {
	name       string
	engine     *engine
	attempts   *counters[string]
	ttft, tpot *durations
}

func newBackend(m *Metrics, model, name string, e *engine) *Backend {
	return &Backend{
		name:     name,
		engine:   e,
		attempts: counted(m.attempts, model, name),
		ttft:     timed(m.upstreamTTFT, model),
		tpot:     timed(m.tpot, model),
	}
}

// show makes the series there from the start, at 0.
func (b *Backend) show() {
	b.attempts.of("ok")
	b.ttft.of(b.name)
	b.tpot.of(b.name)
}

// Attempt counts one attempt by how it ended.
func (b *Backend) Attempt(reason string) { b.attempts.inc(reason) }

// TTFT records the time from attempt sent to first token.
func (b *Backend) TTFT(d time.Duration) { b.ttft.observe(b.name, d) }

// TPOT records a request's time per output token.
func (b *Backend) TPOT(d time.Duration) { b.tpot.observe(b.name, d) }

// Ejected counts an ejection.
func (b *Backend) Ejected(reason string) { b.engine.ejections.inc(reason) }

// StaleConnection counts a request sent again on a fresh connection.
func (b *Backend) StaleConnection() { b.engine.staleConns.inc(b.name) }

// Unparsed counts stream events that were not JSON.
func (b *Backend) Unparsed(n int) {
	if n > 0 {
		b.engine.unparsed.add(b.name, float64(n))
	}
}

func (b *Backend) drop() {
	b.attempts.drop()
	b.ttft.drop()
	b.tpot.drop()
}

// engine is the series of one backend, whatever models it serves.
type engine struct {
	ejections, calledIn, probes, scrapes, staleConns, unparsed *counters[string]
}

func newEngine(m *Metrics, name string) *engine {
	return &engine{
		ejections:  counted(m.ejections, name),
		calledIn:   counted(m.calledIn),
		probes:     counted(m.probes, name),
		scrapes:    counted(m.scrapes, name),
		staleConns: counted(m.staleConns),
		unparsed:   counted(m.unparsed),
	}
}

func (e *engine) drop() {
	for _, c := range []*counters[string]{e.ejections, e.calledIn, e.probes, e.scrapes, e.staleConns, e.unparsed} {
		c.drop()
	}
}
