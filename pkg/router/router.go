package router

import (
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// Request is what a choice may depend on.
type Request struct {
	Model        string
	PromptTokens int // estimate, >= 0
	MaxTokens    int // tokens the client allows; 0 if it did not say
	Stream       bool
	Turn         int    // user messages of the conversation; 0 if unknown
	Session      string // key of the conversation or user; may be empty

	// What its contract allows; 0 if it says nothing. TTFT counts from Accepted.
	Accepted time.Time
	TTFT     time.Duration
	TPOT     time.Duration
	E2E      time.Duration // from Accepted
	Reuse    float64       // share of the prompt that should be cached, 0..1
	Even     bool          // an even delay is worth more than a short one
	Contract string        // name; empty: none
	Tenant   string        // for fairness; may be empty
	Class    int           // rank: lower ones are let in first, see sla.Set.Rank

	ID      string // of the request, in records
	Label   string // its tenant as records may show it; empty if they may not
	Explain bool   // its decisions are recorded in any case

	// Blocks are chained hashes of the prompt's blocks of
	// backends.BlockTokens tokens, from its start; empty if unknown.
	Blocks []uint64
}

// Router chooses backends of one pool by one policy. It is safe for
// concurrent use.
type Router struct {
	pool   *backends.Pool
	policy Policy
	name   string // of the policy, as the configuration spells it

	foresight *Foresight // nil: nothing is predicted
	places    map[*backends.Backend]int
	foresees  bool // the policy wants every candidate's prediction

	admission *Admission // nil: everybody is let in at once
	queue     queue
	choice    []backends.Candidate // what the policy chooses from: open ones, then those worth waiting for
	open      int                  // how many of them are open; scratch both, guarded by the queue's mutex
	looks     []predictor.Look     // scratch, guarded by the pool's critical section

	decisions *Decisions // nil: none are recorded
}

// Foresight is what a router predicts with: the pool's estimators and an
// instance for each of the pool's backends, in their order.
type Foresight struct {
	Pool      *predictor.Pool
	Instances []*predictor.Instance
	Ledger    Ledger // may be nil
}

// Ledger keeps count of promises met.
type Ledger interface {
	// Compliance is the share of the contract's requests that met it on the
	// instance lately, 0..1.
	Compliance(now time.Time, instance, contract string) float64
	// Weight is by what factor violations have cut the instance under the
	// contract, above 0 and at most 1.
	Weight(now time.Time, instance, contract string) float64
}

// Foresee makes the router predict. It is to be called before the first Claim.
func (r *Router) Foresee(f Foresight) {
	r.foresight = &f
	_, r.foresees = r.policy.(interface{ foresees() })
	r.places = make(map[*backends.Backend]int, len(r.pool.Backends))
	for i, b := range r.pool.Backends {
		r.places[b] = i
	}
}

// New returns a router over the pool. The policy belongs to the router from
// now on: its Pick is only called inside the pool's critical section.
func New(pool *backends.Pool, policyName string, policy Policy) *Router {
	return &Router{pool: pool, policy: policy, name: policyName}
}

// Pool returns the pool the router chooses from.
func (r *Router) Pool() *backends.Pool { return r.pool }

// Policy is the policy's name.
func (r *Router) Policy() string { return r.name }

// Foresight is what the router predicts with; nil if nothing predicts. It is
// not to be changed.
func (r *Router) Foresight() *Foresight { return r.foresight }

// Lease is one claimed slot on one backend. Whoever holds it must end it with
// Done. It is safe for concurrent use.
type Lease struct {
	router  *Router
	claim   *backends.Claim
	policy  string             // name of the one that chose
	attempt *predictor.Attempt // nil: nothing is predicted

	decision *Decision // nil: it is not recorded
}

// Claim chooses a backend for req, leaving out those already tried, and
// counts the work on it. The error wraps backends.ErrNoBackend.
func (r *Router) Claim(now time.Time, req *Request, tried []*backends.Backend) (*Lease, error) {
	l := &Lease{}
	if err := r.claimAny(now, l, req, tried); err != nil {
		return nil, err
	}
	return l, nil
}

// claimAny is Claim into a lease.
func (r *Router) claimAny(now time.Time, l *Lease, req *Request, tried []*backends.Backend) error {
	return r.claim(now, l, req, tried, nil, func(c []backends.Candidate) int {
		r.foretell(now, req, c)
		return r.policy.Pick(now, req, c)
	})
}

// claim claims what pick picks. open tells whom it could pick; nil: all.
func (r *Router) claim(now time.Time, l *Lease, req *Request, tried []*backends.Backend, open func(*backends.Candidate) bool, pick func([]backends.Candidate) int) error {
	var seen *Decision
	claim, err := r.pool.Claim(now, req.demand(), tried, func(c []backends.Candidate) int {
		k := pick(c)
		seen = r.see(now, req, tried, c, k, open)
		return k
	})
	if err != nil {
		return err
	}
	*l = Lease{router: r, claim: claim, policy: r.name, attempt: r.begin(now, req, claim)}
	l.recorded(now, req, tried, seen)
	return nil
}

// demand is the request as the pool sees it.
func (q *Request) demand() backends.Work {
	return backends.Work{PromptTokens: q.PromptTokens, Blocks: q.Blocks}
}

// foretell predicts for every candidate, if the policy asks for it.
func (r *Router) foretell(now time.Time, req *Request, c []backends.Candidate) {
	if r.foresight == nil || !r.foresees {
		return
	}
	r.lookAt(now, req, c)
	r.predict(now, req, c)
}

// lookAt fills in what every candidate looks like to the request. It runs in the
// pool's critical section, as predict does after it.
func (r *Router) lookAt(now time.Time, req *Request, c []backends.Candidate) {
	r.looks = slices.Grow(r.looks[:0], len(c))[:len(c)]
	for k := range c {
		r.foresight.lookAt(now, req, &c[k], &r.looks[k])
	}
}

func (f *Foresight) lookAt(now time.Time, req *Request, c *backends.Candidate, l *predictor.Look) {
	tell(f.Instances[c.Index], c.Signals)
	f.Instances[c.Index].Look(now, req.work(now, req.PromptTokens-c.Cached), l)
	c.TPOT, c.Own, c.Decoding, c.Harmed, c.Pending, c.Young, c.Full = l.TPOT, l.Own, l.Decoding, l.Harmed, l.Pending, l.Young, l.Regime == predictor.KVFull
	c.Stale = !c.Signals.At.IsZero() && c.Signals.Age(now) > staleAfter
}

// predict asks the estimators about every candidate that was looked at.
func (r *Router) predict(now time.Time, req *Request, c []backends.Candidate) {
	for k := range c {
		p, _ := r.foresight.Pool.Foretell(now, &r.looks[k])
		c[k].P50, c[k].P95 = p.P50, p.P95
		r.foresight.account(now, &c[k], req)
	}
}

// account adds what the ledger says of a candidate under the request's contract.
func (f *Foresight) account(now time.Time, c *backends.Candidate, req *Request) {
	c.Compliance = 1
	if f.Ledger == nil || req.Contract == "" {
		return
	}
	c.Compliance = f.Ledger.Compliance(now, c.Backend.Name, req.Contract)
	c.Weight *= f.Ledger.Weight(now, c.Backend.Name, req.Contract)
}

// begin tells the predictor of an attempt.
func (r *Router) begin(now time.Time, req *Request, claim *backends.Claim) *predictor.Attempt {
	if r.foresight == nil {
		return nil
	}
	i := r.foresight.Instances[r.places[claim.Backend]]
	signals := claim.Backend.Signals()
	tell(i, &signals)
	return r.foresight.Pool.Begin(now, i, req.work(now, claim.Uncached()))
}

// staleAfter is the age from which on an engine's own numbers are stale.
const staleAfter = 15 * time.Second

// tell passes on what the engine's metrics last said.
func tell(i *predictor.Instance, s *backends.Signals) {
	if s.At.IsZero() {
		return
	}
	i.Scraped(&predictor.Scrape{
		Began: s.Began, At: s.At, Running: s.Running, Waiting: s.Waiting, KVUse: s.KVUse, Hit: s.PrefixHitRatio,
		CPU: s.CPU, CacheTokens: s.CacheTokens, Started: s.StartTime, OwnInFlight: s.OwnInFlight,
	})
}

// work is the request as the predictor sees it.
func (q *Request) work(now time.Time, uncached int) predictor.Work {
	w := predictor.Work{Prompt: q.PromptTokens, Uncached: max(uncached, 0), Max: q.MaxTokens, Turn: q.Turn, Stream: q.Stream, TPOT: q.TPOT, Class: q.Class}
	if q.E2E > 0 {
		w.E2E = max(q.E2E-now.Sub(q.Accepted), time.Nanosecond)
	}
	return w
}

// Backend is the backend the lease is on.
func (l *Lease) Backend() *backends.Backend { return l.claim.Backend }

// Reason says why this backend: the policy's name, or "probe" for the one
// request that decides on a backend in probation.
func (l *Lease) Reason() string {
	if l.claim.Probe {
		return "probe"
	}
	return l.policy
}

// Name labels the attempt's sample with its engine and the revision of the
// configuration. To be called before the first token.
func (l *Lease) Name(backend, revision string) {
	if l.attempt != nil {
		l.attempt.Name(backend, revision)
	}
}

// FirstToken ends the lease's prefill share and records the upstream TTFT.
// Only the first call counts, and none after Done.
func (l *Lease) FirstToken(now time.Time) {
	l.claim.FirstToken(now)
	l.begun(now)
	l.Token(now)
	l.router.roomAt(now, l.claim.Backend)
}

// Token notes a token of a streamed answer after the first.
func (l *Lease) Token(now time.Time) {
	if l.attempt != nil {
		l.attempt.Token(now)
	}
}

// Cached notes how many prompt tokens the engine says it found in its cache.
func (l *Lease) Cached(tokens int) {
	l.claim.Cached(tokens)
	if l.attempt != nil {
		l.attempt.Cached(tokens)
	}
}

// Output notes how many tokens the answer has by now.
func (l *Lease) Output(tokens int) { l.claim.Output(tokens) }

// Sample is all that was predicted of the attempt and what became of it, to be
// read after its first token or its end; nil if nothing predicts.
func (l *Lease) Sample() *predictor.Sample {
	if l.attempt == nil {
		return nil
	}
	return l.attempt.Sample()
}

// Prediction is what was expected of the attempt when it was sent, and by
// which estimator; ok is false if nothing predicts.
func (l *Lease) Prediction() (p predictor.Prediction, by predictor.Kind, ok bool) {
	if l.attempt == nil {
		return p, predictor.Kinds, false
	}
	p, by = l.attempt.Said()
	return p, by, true
}

// Done ends the lease with its outcome and reports whether the outcome
// ejected the backend. Only the first call counts, on whatever goroutine.
func (l *Lease) Done(now time.Time, o backends.Outcome) backends.Ejection {
	e := l.end(now, o)
	l.router.roomAt(now, l.claim.Backend)
	return e
}

func (l *Lease) end(now time.Time, o backends.Outcome) backends.Ejection {
	if l.attempt != nil {
		l.attempt.Done(now, end(o))
	}
	l.ended(now, o)
	return l.claim.End(now, o)
}

// drop ends a lease that nobody took.
func (l *Lease) drop(now time.Time) { l.end(now, backends.Outcome{Class: backends.Dropped}) }

// end is an outcome as the predictor sees it.
func end(o backends.Outcome) predictor.End {
	switch o.Class {
	case backends.Served:
		return predictor.Completed
	case backends.Dropped:
		return predictor.Left
	}
	return predictor.Failed
}

// ExpectedTTFT is the lowest recent TTFT of the pool: the least a new attempt
// will take. 0 when nothing was measured yet.
func (r *Router) ExpectedTTFT(now time.Time) time.Duration {
	best := time.Duration(0)
	for _, b := range r.pool.Backends {
		if t := b.Load(now).TTFT; t > 0 && (best == 0 || t < best) {
			best = t
		}
	}
	return best
}
