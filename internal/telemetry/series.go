package telemetry

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// series are the time series of one metric that one owner (a model, a
// backend) reports to, by the labels that vary. They are kept, since a look-up
// by labels costs more than the report. Once they are dropped, reports go
// nowhere: a late one would bring a deleted series back for ever.
type series[K comparable, S any] struct {
	find func(K) S

	found atomic.Pointer[map[K]S] // replaced, never changed; nil once dropped
	mu    sync.Mutex              // held while it is replaced
}

// of returns the series of k; ok is false once they are dropped.
func (s *series[K, S]) of(k K) (v S, ok bool) {
	if found := s.found.Load(); found != nil {
		if v, ok = (*found)[k]; ok {
			return v, true
		}
		return s.first(k)
	}
	return v, false
}

// first finds the series of k in the metric.
func (s *series[K, S]) first(k K) (v S, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.found.Load()
	if old == nil {
		return v, false
	}
	v = s.find(k)
	found := maps.Clone(*old)
	found[k] = v
	s.found.Store(&found)
	return v, true
}

// drop comes before the deletion of the series from their metric.
func (s *series[K, S]) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found.Store(nil)
}

// counters are series of a counter.
type counters[K comparable] struct {
	series[K, prometheus.Counter]
}

func newCounters[K comparable](find func(K) prometheus.Counter) *counters[K] {
	c := &counters[K]{series[K, prometheus.Counter]{find: find}}
	c.found.Store(&map[K]prometheus.Counter{})
	return c
}

// counted are the counters of v whose labels are the given ones and one more.
func counted(v *prometheus.CounterVec, labels ...string) *counters[string] {
	return newCounters(func(last string) prometheus.Counter {
		return v.WithLabelValues(append(labels[:len(labels):len(labels)], last)...)
	})
}

func (c *counters[K]) inc(k K) { c.add(k, 1) }

func (c *counters[K]) add(k K, n float64) {
	if counter, ok := c.of(k); ok {
		counter.Add(n)
	}
}

// durations are series of a histogram of seconds.
type durations struct {
	series[string, prometheus.Observer]
}

// timed are the histograms of v whose labels are the given ones and one more.
func timed(v *prometheus.HistogramVec, labels ...string) *durations {
	d := &durations{series[string, prometheus.Observer]{find: func(last string) prometheus.Observer {
		return v.WithLabelValues(append(labels[:len(labels):len(labels)], last)...)
	}}}
	d.found.Store(&map[string]prometheus.Observer{})
	return d
}

func (d *durations) observe(label string, t time.Duration) {
	if o, ok := d.of(label); ok {
		o.Observe(t.Seconds())
	}
}
