package router

import (
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// Request is what a choice may depend on.
type Request struct {
	Model        string
	PromptTokens int // estimate, >= 0
	MaxTokens    int // tokens the client allows; 0 if it did not say
	Stream       bool
	Session      string // key of the conversation or user; may be empty

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
}

// New returns a router over the pool. The policy belongs to the router from
// now on: its Pick is only called inside the pool's critical section.
func New(pool *backends.Pool, policyName string, policy Policy) *Router {
	return &Router{pool: pool, policy: policy, name: policyName}
}

// Pool returns the pool the router chooses from.
func (r *Router) Pool() *backends.Pool { return r.pool }

// Lease is one claimed slot on one backend. Whoever holds it must end it with
// Done. It is safe for concurrent use.
type Lease struct {
	claim  *backends.Claim
	policy string // name of the one that chose
}

// Claim chooses a backend for req, leaving out those already tried, and
// counts the work on it. The error wraps backends.ErrNoBackend.
func (r *Router) Claim(now time.Time, req *Request, tried []*backends.Backend) (*Lease, error) {
	work := backends.Work{PromptTokens: req.PromptTokens, Blocks: req.Blocks}
	claim, err := r.pool.Claim(now, work, tried, func(c []backends.Candidate) int {
		return r.policy.Pick(now, req, c)
	})
	if err != nil {
		return nil, err
	}
	return &Lease{claim: claim, policy: r.name}, nil
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

// FirstToken ends the lease's prefill share and records the upstream TTFT.
// Only the first call counts, and none after Done.
func (l *Lease) FirstToken(now time.Time) { l.claim.FirstToken(now) }

// Done ends the lease with its outcome and reports whether the outcome
// ejected the backend. Only the first call counts, on whatever goroutine.
func (l *Lease) Done(now time.Time, o backends.Outcome) backends.Ejection {
	return l.claim.End(now, o)
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
