package rollback

import (
	"sync"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

const (
	maxSamples  = 5_000
	maxOutcomes = 20_000
)

// ring keeps the last entries. It is safe for concurrent use.
type ring[T any] struct {
	mu   sync.Mutex
	size int
	all  []T
	next int // to be overwritten, once it is full
}

func (r *ring[T]) add(v *T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) < r.size {
		r.all = append(r.all, *v)
		return
	}
	r.all[r.next] = *v
	r.next = (r.next + 1) % r.size
}

// list is a copy, the oldest first.
func (r *ring[T]) list() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(append(make([]T, 0, len(r.all)), r.all[r.next:]...), r.all[:r.next]...)
}

// Watch is a predictor.Watch that keeps the last samples and passes everything
// on. It is safe for concurrent use.
type Watch struct {
	predictor.Watch // may be nil
	samples         ring[predictor.Sample]
}

// NewWatch returns a watch that keeps 5,000 samples; next may be nil.
func NewWatch(next predictor.Watch) *Watch {
	return &Watch{Watch: next, samples: ring[predictor.Sample]{size: maxSamples}}
}

// Observed keeps the sample, unless it is only a lower bound.
func (w *Watch) Observed(s *predictor.Sample) {
	if !s.Censored {
		w.samples.add(s)
	}
	if w.Watch != nil {
		w.Watch.Observed(s)
	}
}

// Switched passes it on.
func (w *Watch) Switched(s predictor.Switch) {
	if w.Watch != nil {
		w.Watch.Switched(s)
	}
}

// Drifted passes it on.
func (w *Watch) Drifted(a predictor.Alarm) {
	if w.Watch != nil {
		w.Watch.Drifted(a)
	}
}

// Outcome is how one request kept its contract.
type Outcome struct {
	At       time.Time
	Instance string
	Contract string
	Met      bool // all that single requests are judged by
}
