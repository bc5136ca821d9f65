package router

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// Admission is how requests are let in. Zero fields mean the default named
// beside them.
type Admission struct {
	// PendingTokens closes an instance while so many prompt tokens wait there, to
	// those that may join them while 16 times as many do. 1000
	PendingTokens int
	// MaxHeld is how many requests wait at the gateway at most, for a model. 2000
	MaxHeld int
}

func (a Admission) withDefaults() Admission {
	if a.PendingTokens == 0 {
		a.PendingTokens = 1000
	}
	if a.MaxHeld == 0 {
		a.MaxHeld = 2000
	}
	return a
}

// Shed is the error of a request that is not let in.
type Shed struct {
	Reason     string        // one of the Shed constants
	RetryAfter time.Duration // when trying again may help
}

// Why requests are shed.
const (
	ShedDeadline = "deadline" // its budget was gone before anybody could begin
	ShedFull     = "full"     // too many were waiting already
)

func (s *Shed) Error() string { return "shed: " + s.Reason }

// Ticket is a request on its way to a backend: decided, with a lease or an
// error, or held at the gateway.
type Ticket struct {
	Lease *Lease // nil while it is held, and if Err is set; not to be used without its ticket
	Err   error  // *Shed, or as Claim's
	Held  time.Duration

	req      *Request
	tried    []*backends.Backend
	entered  time.Time
	deadline time.Time     // of the first token
	promised bool          // by a contract: past the deadline it is shed
	best     time.Duration // lowest prediction as of foretold
	foretold time.Time
	cost     int // prompt tokens to compute where most are cached, as of foretold
	decided  bool
	notify   func()
	lease    Lease // what Lease points to
}

// Decided reports whether the ticket has its lease or its error.
func (t *Ticket) Decided() bool { return t.decided }

// queue holds the requests of one pool that wait at the gateway, by class and
// then by deadline.
type queue struct {
	mu      sync.Mutex
	held    []*Ticket
	tenants tenants
	lately  lately
}

// patience is after how long those who were promised nothing are as urgent as
// those whose time is up.
const patience = 10 * time.Second

// Admit makes the router hold requests back until an instance can take them
// without harm. It is to be called before the first Enter.
func (r *Router) Admit(a Admission) {
	a = a.withDefaults()
	r.admission = &a
}

// Enter asks for a backend. Without admission, or with a policy that predicts
// nothing, the ticket is decided at once; otherwise it may be held, and notify
// is called once it is decided, on any goroutine, perhaps before Enter returns.
// A ticket that is not waited for any more must be given to Leave.
func (r *Router) Enter(now time.Time, req *Request, tried []*backends.Backend, notify func()) *Ticket {
	t := &Ticket{req: req, tried: tried, entered: now, notify: notify, deadline: now.Add(patience)}
	if req.TTFT > 0 {
		t.deadline, t.promised = req.Accepted.Add(req.TTFT), true
	}
	if r.admission == nil || !r.foresees {
		t.decide(now, r.claimAny(now, &t.lease, req, tried))
		return t
	}
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	if len(r.queue.held) >= r.admission.MaxHeld {
		t.decide(now, &Shed{Reason: ShedFull, RetryAfter: retryAfter(0)})
		return t
	}
	r.queue.lately.note(now, req)
	r.queue.insert(t)
	r.letOneIn(now, func(held *Ticket) bool { return held == t })
	return t
}

// Leave takes a ticket out that nobody waits for any more. One that was
// decided meanwhile has its lease ended.
func (r *Router) Leave(now time.Time, t *Ticket) {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	if t.decided {
		if t.Lease != nil {
			t.Lease.drop(now)
		}
		return
	}
	t.decided = true
	r.queue.remove(t)
}

// Pump looks again at the requests held: to be called when time has passed.
// First tokens and ends of leases give their backend's room away by themselves.
func (r *Router) Pump(now time.Time) {
	if r.admission == nil {
		return
	}
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	if len(r.queue.held) > 0 {
		r.pump(now)
	}
}

// roomAt looks again at the requests held when something has ended at a backend:
// only there can more room be than before.
func (r *Router) roomAt(now time.Time, b *backends.Backend) {
	if r.admission == nil {
		return
	}
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	r.shedLate(now)
	for len(r.queue.held) > 0 && r.letOneIn(now, func(t *Ticket) bool { return r.hasRoom(now, t, b) }) {
	}
}

// hasRoom reports whether the backend may be open to the ticket, short of
// predicting.
func (r *Router) hasRoom(now time.Time, t *Ticket, b *backends.Backend) bool {
	c, ok := r.pool.Look(now, t.req.demand(), r.places[b], t.tried)
	if !ok {
		return false
	}
	if 4*c.Cached > t.req.PromptTokens {
		return true // it may have waited for this one, and may go elsewhere now
	}
	var l predictor.Look
	r.foresight.lookAt(now, t.req, &c, &l)
	return r.couldBeOpen(now, t.req, &c, l.Base)
}

// Waiting is how many requests are held.
func (r *Router) Waiting() int {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	return len(r.queue.held)
}

func (q *queue) insert(t *Ticket) {
	at, _ := slices.BinarySearchFunc(q.held, t, func(a, b *Ticket) int {
		if a.req.Class != b.req.Class {
			return a.req.Class - b.req.Class
		}
		if a.deadline.After(b.deadline) {
			return 1
		}
		return -1
	})
	q.held = slices.Insert(q.held, at, t)
}

func (q *queue) remove(t *Ticket) {
	if k := slices.Index(q.held, t); k >= 0 {
		q.held = slices.Delete(q.held, k, k+1)
	}
}

// tries is how many of the held are offered a place at each look: one that
// fits somewhere passes others that fit nowhere.
const tries = 8

// pump lets in whoever can be, until nobody can. Called with the queue locked.
func (r *Router) pump(now time.Time) {
	r.shedLate(now)
	for r.letOneIn(now, anywhere) {
	}
}

// anywhere is for looks at all backends.
func anywhere(*Ticket) bool { return true }

// shedLate turns away those whose budget is gone.
func (r *Router) shedLate(now time.Time) {
	r.queue.held = slices.DeleteFunc(r.queue.held, func(t *Ticket) bool {
		if !t.promised || !now.After(t.deadline) {
			return false
		}
		t.decide(now, &Shed{Reason: ShedDeadline, RetryAfter: retryAfter(t.best)})
		return true
	})
}

// retryAfter is between 1 and 8 s.
func retryAfter(predicted time.Duration) time.Duration {
	return min(max(predicted.Round(time.Second), time.Second), 8*time.Second)
}

// letOneIn offers places to those that can still be in time, class by class. The
// lost get what nobody else uses: an engine that is idle among others. Who is
// not promising is passed over.
func (r *Router) letOneIn(now time.Time, promising func(*Ticket) bool) bool {
	held := r.queue.held
	for from := 0; from < len(held); {
		to := from + 1
		for to < len(held) && held[to].req.Class == held[from].req.Class {
			to++
		}
		if r.letOneOf(now, from, to, promising) {
			return true
		}
		from = to
	}
	lost := func(t *Ticket) bool { return t.isLost(now) }
	return r.offer(now, 0, len(held), lost, promising, 2)
}

// letOneOf offers places to one class: to tenants that have not had more than
// their share, then to all. While many wait, not all of them will be in time, and
// who costs less than the others comes first: so most are.
func (r *Router) letOneOf(now time.Time, from, to int, promising func(*Ticket) bool) bool {
	share := r.queue.tenants.share(now, r.queue.held[from:to])
	modest := func(t *Ticket) bool { return !t.isLost(now) && r.queue.tenants.within(t, share) }
	greedy := func(t *Ticket) bool { return !t.isLost(now) && !r.queue.tenants.within(t, share) }
	if to-from > tries {
		usual := meanCost(r.queue.held[from:to])
		cheap := func(t *Ticket) bool { return (t.cost <= usual || now.Sub(t.entered) > patience) && modest(t) }
		if r.offer(now, from, to, cheap, promising, tries) {
			return true
		}
	}
	return r.offer(now, from, to, modest, promising, tries) || r.offer(now, from, to, greedy, promising, tries)
}

func meanCost(held []*Ticket) int {
	sum := 0
	for _, t := range held {
		sum += t.cost
	}
	return sum / len(held)
}

// offer lets in the first of some of the held that anybody is open to.
func (r *Router) offer(now time.Time, from, end int, to, promising func(*Ticket) bool, tries int) bool {
	for k := from; k < end && tries > 0; k++ {
		t := r.queue.held[k]
		if !to(t) {
			continue
		}
		tries--
		if !promising(t) {
			continue
		}
		err := r.claimOpen(now, t)
		if errors.Is(err, backends.ErrHeld) {
			continue
		}
		r.queue.held = slices.Delete(r.queue.held, k, k+1)
		r.queue.tenants.charge(now, t.req)
		t.decide(now, err)
		return true
	}
	return false
}

// isLost reports whether the request could hardly be in time, as of the last
// look.
func (t *Ticket) isLost(now time.Time) bool {
	return t.promised && now.Add(t.best).After(t.deadline)
}

func (t *Ticket) decide(now time.Time, err error) {
	if err == nil {
		t.Lease = &t.lease
	}
	t.Err, t.decided, t.Held = err, true, now.Sub(t.entered)
	if t.notify != nil {
		t.notify()
	}
}

// claimOpen claims one of the instances that are open to the request. At the
// first look that is so whatever is predicted: who finds an engine open takes
// nothing from anybody.
func (r *Router) claimOpen(now time.Time, t *Ticket) error {
	return r.claim(now, &t.lease, t.req, t.tried, r.offered, func(c []backends.Candidate) int {
		r.lookAt(now, t.req, c)
		if now.Sub(t.foretold) < wordCounts && !r.anyCouldBeOpen(now, t.req, c) {
			return -1
		}
		r.predict(now, t.req, c)
		first := t.best == 0
		if first && t.promised {
			r.queue.lately.noteBudget(t.req, c)
		}
		t.best, t.foretold, t.cost = bestP95(c), now, max(t.req.PromptTokens-mostCached(c), 0)
		return r.pickOpen(now, t.req, c, t.isLost(now) && !first)
	})
}

// mayWait reports whether there is time to wait for one instance while others
// are open: half of what was promised, or a second where nothing was.
func (q *Request) mayWait(now time.Time) bool {
	patience := unbounded
	if q.TTFT > 0 {
		patience = q.TTFT / 2
	}
	return now.Sub(q.Accepted) < patience
}

func mostCached(c []backends.Candidate) (tokens int) {
	for i := range c {
		tokens = max(tokens, c[i].Cached)
	}
	return tokens
}

// wordCounts is how long a prediction holds for one who is held while nobody is
// open to it.
const wordCounts = 100 * time.Millisecond

// anyCouldBeOpen reports whether it is worth predicting for the request.
func (r *Router) anyCouldBeOpen(now time.Time, req *Request, c []backends.Candidate) bool {
	for k := range c {
		if r.couldBeOpen(now, req, &c[k], r.looks[k].Base) {
			return true
		}
	}
	return false
}

// pickOpen lets the policy choose among those that are open and, for a while,
// those worth waiting for: they have a quarter more of the prompt cached. It is
// -1 if none is open, or the choice is to wait. To the lost only idle ones are
// open, and those only while half of all are idle: a late answer must not make
// others late.
func (r *Router) pickOpen(now time.Time, req *Request, c []backends.Candidate, lost bool) int {
	r.choice, r.open = r.choice[:0], 0
	if lost && 2*idle(c) < len(c) {
		return -1
	}
	for i := range c {
		if isIdle(&c[i]) || !lost && r.isOpen(now, req, &c[i], likely(&c[i])) {
			r.choice = append(r.choice, c[i])
		}
	}
	if r.open = len(r.choice); r.open == 0 {
		return -1
	}
	known, waits := mostCached(r.choice), !lost && req.mayWait(now)
	for i := range c {
		if waits && 4*(c[i].Cached-known) > req.PromptTokens && isHarmless(req, &c[i]) { // and so it is none of the open ones
			r.choice = append(r.choice, c[i])
		}
	}
	k := r.policy.Pick(now, req, r.choice)
	if k >= r.open {
		return -1
	}
	return placeOf(c, r.choice[k].Index)
}

// placeOf finds the candidate with that index in the pool; -1 if it is not there.
func placeOf(c []backends.Candidate, index int) int {
	for i := range c {
		if c[i].Index == index {
			return i
		}
	}
	return -1
}
