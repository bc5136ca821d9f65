package sla

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// State is how a promise stands.
type State string

// The states. The rules are those of "Alerting on SLOs" in Google's Site
// Reliability Workbook (chapter 5, multiwindow, multi-burn-rate), where the burn
// rate of a window is its share of missed requests over the share that may be
// missed (1 - target), and the short window makes a state end with its cause:
//
//	breaching  burn ≥ 14.4 over 1 h and 5 m (2 % of a 30-day budget in an hour),
//	           burn ≥ 6 over 6 h and 30 m (5 % of it), or the budget is spent
//	at_risk    burn ≥ 1 over 3 d and 6 h; ours: also over 1 h and 5 m
//	no_data    fewer than 20 requests were judged within the last hour
//	ok         anything else
//
// A window shows something from 20 requests and 5 misses on, and a rule whose
// long window is longer than the objective's does not apply.
const (
	OK        State = "ok"
	AtRisk    State = "at_risk"
	Breaching State = "breaching"
	NoData    State = "no_data"
)

const (
	fewest       = 20 // requests that a window must have to show something
	fewestMisses = 5
)

// burnWindows are those that Status reports.
var burnWindows = []time.Duration{5 * time.Minute, time.Hour, 6 * time.Hour, 3 * day}

// halfHour is the short window of six hours.
const halfHour = 30 * time.Minute

// rules are tried in order.
var rules = []struct {
	long, short time.Duration
	burn        float64
	state       State
}{
	{time.Hour, 5 * time.Minute, 14.4, Breaching},
	{6 * time.Hour, halfHour, 6, Breaching},
	{3 * day, 6 * time.Hour, 1, AtRisk},
	{time.Hour, 5 * time.Minute, 1, AtRisk},
}

// book is the windows of one objective.
type book struct {
	objective *Objective
	metric    int // index in metrics
	governs   bool
	rings     []*ring
}

func newBook(c *Contract, o *Objective) book {
	b := book{objective: o, metric: slices.Index(metrics[:], o.Metric), governs: o == c.Governing(o.Metric)}
	for _, length := range append([]time.Duration{halfHour, o.Window.D()}, burnWindows...) {
		if b.ring(length) == nil {
			b.rings = append(b.rings, &ring{length: length})
		}
	}
	return b
}

func (b *book) ring(length time.Duration) *ring {
	i := slices.IndexFunc(b.rings, func(r *ring) bool { return r.length == length })
	if i < 0 {
		return nil
	}
	return b.rings[i]
}

// Status is how a contract stands.
type Status struct {
	Contract string
	// State is the worst of the objectives; no_data only when all have none.
	State      State
	Objectives []ObjectiveStatus
	Instances  []InstanceStatus // by name
}

// ObjectiveStatus is how one objective stands.
type ObjectiveStatus struct {
	Objective Objective
	State     State
	Reason    string // the rule that gave the state
	Samples   int64  // judged within the objective's window
	Missed    int64
	// Budget is the part of the error budget that is left, from 1 down; below 0
	// it is overspent: 1 - missed / ((1 - target) · samples).
	Budget  float64
	Windows []WindowStatus // 5 m, 1 h, 6 h, 3 d
}

// WindowStatus is an objective over a window that ends now.
type WindowStatus struct {
	Length  time.Duration
	Samples int64
	Missed  int64
	// Burn is the burn rate: 1 spends the budget exactly in the objective's window.
	Burn float64
	// Percentile estimates the value of the percentile that the contract names,
	// off by an eighth at most; 0 when it names none or there are no values. The
	// share of missed is exact, and says the same: P95 ≤ 320 ms is at least 95 %
	// within 320 ms. What never came counts as infinitely late.
	Percentile time.Duration
}

// InstanceStatus is how one instance serves a contract.
type InstanceStatus struct {
	Instance   string
	Compliance float64   // as by Ledger.Compliance
	Shares     []float64 // within each objective, smoothed alike
	Weight     float64   // as by Ledger.Weight
	Violated   int       // windows in a row
}

// Status reports on a contract; false when it is not in force.
func (l *Ledger) Status(now time.Time, contract string) (Status, bool) {
	a := l.account(contract)
	if a == nil {
		return Status{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := now.UnixNano()
	s := Status{Contract: contract, State: NoData}
	for i := range a.books {
		o := a.books[i].status(at, a.spectrums[a.books[i].metric])
		s.Objectives = append(s.Objectives, o)
		s.State = worse(s.State, o.State)
	}
	for _, name := range slices.Sorted(maps.Keys(a.cells)) {
		s.Instances = append(s.Instances, a.instance(name, at, &l.opts))
	}
	return s, true
}

func worse(a, b State) State {
	order := []State{NoData, OK, AtRisk, Breaching}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

func (a *account) instance(name string, at int64, opts *Options) InstanceStatus {
	c := a.cells[name]
	s := InstanceStatus{
		Instance: name, Compliance: a.share(0, c, at, opts),
		Weight: c.watch.weight(at, opts), Violated: c.watch.violatedInARow(at, opts),
	}
	for i := range a.books {
		s.Shares = append(s.Shares, a.share(i+1, c, at, opts))
	}
	return s
}

func (b *book) status(at int64, spectrums []*spectrum) ObjectiveStatus {
	o := b.objective
	s := ObjectiveStatus{Objective: *o, Budget: 1}
	s.Samples, s.Missed = b.ring(o.Window.D()).sum(at)
	if s.Samples > 0 {
		s.Budget = 1 - b.burn(s.Samples, s.Missed)
	}
	for i, length := range burnWindows {
		w := WindowStatus{Length: length}
		w.Samples, w.Missed = b.ring(length).sum(at)
		w.Burn = b.burn(w.Samples, w.Missed)
		if o.Percentile > 0 {
			w.Percentile = spectrums[i].quantile(at, float64(o.Target))
		}
		s.Windows = append(s.Windows, w)
	}
	s.State, s.Reason = b.state(at, &s)
	return s
}

// burn is the burn rate of some requests; 0 of none.
func (b *book) burn(samples, missed int64) float64 {
	if samples == 0 {
		return 0
	}
	return float64(missed) / float64(samples) / (1 - float64(b.objective.Target))
}

func (b *book) state(at int64, s *ObjectiveStatus) (State, string) {
	window := b.objective.Window
	if s.Budget <= 0 && shows(s.Samples, s.Missed) {
		return Breaching, fmt.Sprintf("the error budget of %s is spent", window)
	}
	for _, r := range rules {
		if r.long > window.D() {
			continue
		}
		long, short := b.burning(at, r.long), b.burning(at, r.short)
		if min(long, short) >= r.burn {
			return r.state, fmt.Sprintf("burn rate %.1f over %s and %.1f over %s, from %v on",
				long, Duration(r.long), short, Duration(r.short), r.burn)
		}
	}
	if judged, _ := b.ring(time.Hour).sum(at); judged < fewest {
		return NoData, fmt.Sprintf("%d requests judged within the last hour, fewer than %d", judged, fewest)
	}
	return OK, "no burn rate is too high"
}

// burning is the burn rate of a window that shows something, else 0.
func (b *book) burning(at int64, length time.Duration) float64 {
	samples, missed := b.ring(length).sum(at)
	if !shows(samples, missed) {
		return 0
	}
	return math.Max(0, b.burn(samples, missed))
}

func shows(samples, missed int64) bool { return samples >= fewest && missed >= fewestMisses }
