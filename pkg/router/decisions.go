package router

import (
	"sync"
	"sync/atomic"
	"time"
)

// Decisions keeps the last decisions in bounded memory: a sample of all, those
// that were asked for, and for longer those that turned out bad. It is safe for
// concurrent use; several routers may share one.
type Decisions struct {
	plain, odd bucket

	mu     sync.Mutex // guards the rings, and what became of their records
	recent ring
	missed ring // pushed out of recent
}

const (
	recentKept = 800
	missedKept = 200
	// sampledRate is how many decisions a second are recorded without being asked
	// for, and at once: as many of any kind, and as many of those that are
	// retried, refused or expected to be late, which would be rare in a sample.
	sampledRate = 10
)

// NewDecisions returns an empty record.
func NewDecisions() *Decisions {
	return &Decisions{recent: ring{size: recentKept}, missed: ring{size: missedKept}}
}

// Filter says which decisions to list. Empty fields let everything through.
type Filter struct {
	Model    string
	Contract string
	Backend  string // that was picked
	Request  string // its ID
	Limit    int    // how many at most; 0 is no limit
}

// List returns copies of the decisions that match, the newest first.
func (d *Decisions) List(f Filter) []Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := []Decision{}
	for _, r := range []*ring{&d.recent, &d.missed} { // what is in missed is older
		for i := len(r.kept) - 1; i >= 0; i-- {
			if f.Limit > 0 && len(out) >= f.Limit {
				return out
			}
			if x := r.at(i); f.matches(x) {
				out = append(out, *x)
			}
		}
	}
	return out
}

func (f *Filter) matches(d *Decision) bool {
	is := func(want, have string) bool { return want == "" || want == have }
	return is(f.Model, d.Model) && is(f.Contract, d.Contract) && is(f.Backend, d.Pick) && is(f.Request, d.Request)
}

// wants reports whether a decision is to be recorded. It allocates nothing and
// takes no lock.
func (d *Decisions) wants(now time.Time, asked, odd bool) bool {
	return asked || d.plain.take(now) || odd && d.odd.take(now)
}

func (d *Decisions) add(x *Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.recent.add(x); old != nil && old.Missed {
		d.missed.add(old)
	}
}

// read returns a copy of a record. Its candidates never change.
func (d *Decisions) read(x *Decision) *Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	y := *x
	return &y
}

// ring keeps the last size records.
type ring struct {
	size  int
	kept  []*Decision
	first int // of kept: the oldest
}

// add returns the record that it pushes out, if any.
func (r *ring) add(x *Decision) (old *Decision) {
	if len(r.kept) < r.size {
		r.kept = append(r.kept, x)
		return nil
	}
	old, r.kept[r.first] = r.kept[r.first], x
	r.first = (r.first + 1) % r.size
	return old
}

// at is the record number i from the oldest.
func (r *ring) at(i int) *Decision { return r.kept[(r.first+i)%len(r.kept)] }

// bucket is a token bucket of sampledRate a second that holds as many, as the
// generic cell rate algorithm: all it keeps is when it will be full again.
type bucket struct{ full atomic.Int64 } // Unix nanoseconds

func (b *bucket) take(now time.Time) bool {
	const each = int64(time.Second) / sampledRate
	at := now.UnixNano()
	for {
		full := b.full.Load()
		from := max(full, at)
		if full-at > 2*sampledRate*each {
			from = at // the clock was set back
		}
		if from-at > (sampledRate-1)*each {
			return false
		}
		if b.full.CompareAndSwap(full, from+each) {
			return true
		}
	}
}
