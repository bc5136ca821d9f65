package sla

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Options tune a Ledger. A zero field is the default it names.
type Options struct {
	// HalfLife after which a request counts half in a share. Default 60s.
	HalfLife time.Duration
	// PriorSamples is the weight of the fleet's share in an instance's. Default 20.
	PriorSamples float64
	// Window is the length of the windows that violations are judged in. Default 10s.
	Window time.Duration
	// MinSamples that a window needs to be judged. Default 10.
	MinSamples int
	// Violations in a row that cut an instance's weight. Default 3.
	Violations int
	// Cut is the factor of one cut, and Floor the lowest weight. Default 0.5 and 0.1.
	Cut, Floor float64
	// Recovery is the half-life of what is missing from a weight. Default 60s.
	Recovery time.Duration
}

func (o Options) complete() Options {
	o.HalfLife = orDefault(o.HalfLife, time.Minute)
	o.PriorSamples = orDefault(o.PriorSamples, 20)
	o.Window = orDefault(o.Window, 10*time.Second)
	o.MinSamples = orDefault(o.MinSamples, 10)
	o.Violations = orDefault(o.Violations, 3)
	o.Cut = orDefault(o.Cut, 0.5)
	o.Floor = orDefault(o.Floor, 0.1)
	o.Recovery = orDefault(o.Recovery, time.Minute)
	return o
}

func orDefault[T int | float64 | time.Duration](x, def T) T {
	if x <= 0 {
		return def
	}
	return x
}

// Ledger books what became of requests: per instance and contract the decayed
// share that met its objectives and the violations, per contract the error
// budgets and burn rates. It may be used by many goroutines at once. Its memory
// is bounded by the number of contracts and of instances in use.
type Ledger struct {
	opts     Options
	adopting sync.Mutex
	accounts atomic.Pointer[map[string]*account]
}

// NewLedger opens a ledger for the contracts of a set.
func NewLedger(set *Set, opts Options) *Ledger {
	l := &Ledger{opts: opts.complete()}
	l.accounts.Store(&map[string]*account{})
	l.Adopt(set)
	return l
}

// Adopt goes on with the contracts of another set. A contract whose objectives
// are the same keeps its books; the others begin new ones.
func (l *Ledger) Adopt(set *Set) {
	l.adopting.Lock()
	defer l.adopting.Unlock()
	before, after := *l.accounts.Load(), map[string]*account{}
	for _, c := range set.Contracts() {
		a := before[c.Name()]
		if a == nil || a.contract.digest != c.digest {
			a = newAccount(c)
		}
		after[c.Name()] = a
	}
	l.accounts.Store(&after)
}

func (l *Ledger) account(contract string) *account { return (*l.accounts.Load())[contract] }

// account is the books of one contract.
type account struct {
	contract *Contract

	mu        sync.Mutex
	fleet     tally
	cells     map[string]*cell // by instance
	swept     int64
	targets   []float64 // by entry of a tally: what its share should be at least
	books     []book    // by objective
	spectrums [len(metrics)][]*spectrum
}

// maxObjectives is what the tag of Spec.Objectives allows.
const maxObjectives = 16

// cell is the books of one instance under one contract.
type cell struct {
	tally tally
	watch watch
}

func newAccount(c *Contract) *account {
	a := &account{contract: c, cells: map[string]*cell{}}
	a.fleet = newTally(c)
	a.targets = []float64{1}
	for i := range c.Spec.Objectives {
		o := &c.Spec.Objectives[i]
		a.books = append(a.books, newBook(c, o))
		a.targets = append(a.targets, float64(o.Target))
		if a.books[i].governs {
			a.targets[0] = min(a.targets[0], float64(o.Target))
		}
		if m := a.books[i].metric; o.Percentile > 0 && a.spectrums[m] == nil {
			for _, length := range burnWindows {
				a.spectrums[m] = append(a.spectrums[m], &spectrum{length: length})
			}
		}
	}
	return a
}

// Record books an outcome. instance is the one that served the request, or
// failed to; "" when none is to blame, as when it was shed: then only the
// contract's books are touched. An outcome of a contract that is no longer in
// force, or of none, is dropped.
//
// The result is not nil when the outcome shows that a window before it violated
// the contract, as the third in a row or a later one that cut the weight.
func (l *Ledger) Record(now time.Time, instance string, c *Contract, out Outcome) *Violation {
	a := l.account(c.Name())
	if a == nil || a.contract.digest != c.digest {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var verdicts [maxObjectives]Verdict
	at := now.UnixNano()
	a.book(at, &out, &verdicts)
	if instance == "" {
		return nil
	}
	whole := a.whole(&verdicts)
	a.fleet.add(at, l.opts.HalfLife, whole, &verdicts)
	cell := a.cell(instance, at, &l.opts)
	cell.tally.add(at, l.opts.HalfLife, whole, &verdicts)
	v := cell.watch.close(at, &l.opts, a.contract)
	cell.watch.add(at, &l.opts, &verdicts)
	if v != nil {
		v.Instance = instance
	}
	return v
}

// book judges an outcome and writes it into the contract's windows.
func (a *account) book(at int64, out *Outcome, verdicts *[maxObjectives]Verdict) {
	var seen [len(metrics)]bool
	for i := range a.books {
		b := &a.books[i]
		v, value := b.objective.Judge(out)
		verdicts[i] = v
		if v == Neutral {
			continue
		}
		for _, r := range b.rings {
			r.add(at, v == Missed)
		}
		if seen[b.metric] {
			continue
		}
		seen[b.metric] = true
		for _, s := range a.spectrums[b.metric] {
			s.add(at, value)
		}
	}
}

// whole judges the request against all governing objectives together: missed
// when one was, met when nothing was missed and something was met.
func (a *account) whole(verdicts *[maxObjectives]Verdict) Verdict {
	sum := Neutral
	for i := range a.books {
		if a.books[i].governs {
			sum = max(sum, verdicts[i])
		}
	}
	return sum
}

// cell returns an instance's books, opened when it has none. Instances that
// have not been heard of for so long that nothing of them is left are dropped.
func (a *account) cell(instance string, at int64, opts *Options) *cell {
	const forgotten = 30 // half-lives
	c := a.cells[instance]
	if c != nil {
		return c
	}
	if silence := forgotten * int64(max(opts.HalfLife, opts.Recovery)); at-a.swept > silence {
		a.swept = at
		maps.DeleteFunc(a.cells, func(_ string, c *cell) bool { return at-c.tally.at > silence })
	}
	c = &cell{tally: newTally(a.contract), watch: newWatch(a.contract)}
	a.cells[instance] = c
	return c
}

// tally is decayed counts: of whole requests first, then by objective.
type tally struct {
	at          int64
	good, total []float64
}

func newTally(c *Contract) tally {
	n := 1 + len(c.Spec.Objectives)
	both := make([]float64, 2*n)
	return tally{good: both[:n:n], total: both[n:]}
}

func (t *tally) add(at int64, halfLife time.Duration, whole Verdict, verdicts *[maxObjectives]Verdict) {
	f := t.decay(at, halfLife)
	for i := range t.total {
		t.good[i] *= f
		t.total[i] *= f
		v := whole
		if i > 0 {
			v = verdicts[i-1]
		}
		if v != Neutral {
			t.total[i]++
		}
		if v == Met {
			t.good[i]++
		}
	}
	t.at = max(t.at, at)
}

// decay is what a count of then is worth now: 2^(-elapsed / half-life).
func (t *tally) decay(at int64, halfLife time.Duration) float64 {
	if at <= t.at {
		return 1
	}
	return math.Exp2(-float64(at-t.at) / float64(halfLife))
}

// Compliance is the decayed share of an instance's requests under a contract
// that met all their governing objectives, smoothed towards the fleet's:
//
//	(good + 20·prior) / (all + 20),  prior = (fleet's good + 20·target) / (fleet's all + 20)
//
// where target is the lowest that a governing objective has. Without data of
// the instance it is the prior. A contract that is not in force has 1. It takes
// constant time and allocates nothing.
func (l *Ledger) Compliance(now time.Time, instance, contract string) float64 {
	a := l.account(contract)
	if a == nil {
		return 1
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.share(0, a.cells[instance], now.UnixNano(), &l.opts)
}

// share is the smoothed share of tally entry i.
func (a *account) share(i int, c *cell, at int64, opts *Options) float64 {
	k := opts.PriorSamples
	smooth := func(t *tally, prior float64) float64 {
		f := t.decay(at, opts.HalfLife)
		return (t.good[i]*f + k*prior) / (t.total[i]*f + k)
	}
	prior := smooth(&a.fleet, a.targets[i])
	if c == nil {
		return prior
	}
	return smooth(&c.tally, prior)
}

// Weight is by what factor an instance's weight under a contract is cut: 1 when
// it is not, at least the floor. It takes constant time and allocates nothing.
func (l *Ledger) Weight(now time.Time, instance, contract string) float64 {
	a := l.account(contract)
	if a == nil {
		return 1
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.cells[instance]
	if c == nil {
		return 1
	}
	return c.watch.weight(now.UnixNano(), &l.opts)
}
