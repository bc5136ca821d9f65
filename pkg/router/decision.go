package router

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// Decision is the record of one choice: what it was between, what was known and
// predicted of each, what was picked, and what became of it. It holds nothing of
// prompts or keys. Fields in _ms are milliseconds; what does not apply is left
// out of the JSON.
type Decision struct {
	At           time.Time `json:"at"`
	Request      string    `json:"request_id"`
	Model        string    `json:"model"`
	Policy       string    `json:"policy"`
	Contract     string    `json:"contract,omitempty"`
	Tenant       string    `json:"tenant,omitempty"` // where it may be shown
	Class        int       `json:"class"`            // rank: lower ones are let in first, see sla.Set.Rank
	PromptTokens int       `json:"prompt_tokens"`    // estimate

	Attempt  int      `json:"attempt"`                // from 1
	WaitedMS float64  `json:"waited_ms"`              // since the request was accepted, former attempts included
	HeldMS   float64  `json:"held_ms"`                // of this, held at the gateway
	LeftMS   *float64 `json:"ttft_left_ms,omitempty"` // of the promised time to first token; below 0 it is overdue
	TPOTMS   float64  `json:"tpot_budget_ms,omitempty"`

	Pick   string `json:"pick"`   // name of the backend; "" if the request was refused
	Reason string `json:"reason"` // the policy, "probe", or why it was refused

	// Explored: headroom picked one of a higher cost than it had to, to learn of it.
	Explored bool `json:"explored,omitempty"`

	// Candidates are at most 32: the pick first, then those that were open to
	// the request, the most attractive first. Of is how many there were.
	Candidates []Considered `json:"candidates"`
	Of         int          `json:"of"`

	// What became of it.
	TTFTMS     *float64 `json:"ttft_ms,omitempty"`     // attempt sent to first token, as predicted; of streams only
	DurationMS *float64 `json:"duration_ms,omitempty"` // attempt sent to its end
	Outcome    string   `json:"outcome,omitempty"`     // served, failed, overloaded, left, dropped or refused; none while it goes on
	Missed     bool     `json:"missed"`                // the first token was not there when it was due, or the attempt failed

	due time.Time // of the first token; zero if nothing was promised
}

// Considered is one candidate as it stood when the choice was made.
type Considered struct {
	Backend   string  `json:"backend"`
	State     string  `json:"state"`            // up, unless there was nobody in rotation
	Readiness string  `json:"readiness"`        // standby, cold, warming, ready or draining
	Open      bool    `json:"open"`             // the policy could choose it
	Closed    string  `json:"closed,omitempty"` // why it could not: one of the Closed constants
	Weight    float64 `json:"weight"`           // capacity, cut while it ramps up and by violations
	Penalty   float64 `json:"penalty,omitempty"`
	Stale     bool    `json:"stale,omitempty"` // its own numbers are old
	Young     bool    `json:"young,omitempty"` // its speed is not known yet

	InFlight   int      `json:"in_flight"`
	Pending    int      `json:"pending_tokens"`    // of prompts ahead
	Cached     int      `json:"cached_tokens"`     // of this prompt, as far as known
	Harmed     int      `json:"harmed,omitempty"`  // answers that would newly miss their time per token
	Running    *float64 `json:"running,omitempty"` // these three as the engine's metrics last said
	Waiting    *float64 `json:"waiting,omitempty"`
	KVUse      *float64 `json:"kv_use,omitempty"`         // 0..1
	RecentTTFT float64  `json:"recent_ttft_ms,omitempty"` // peak of late, decayed

	// Where the policy predicts.
	Compliance float64 `json:"compliance,omitempty"` // share of the contract's requests met there lately, 0..1
	P50        float64 `json:"p50_ms,omitempty"`
	P95        float64 `json:"p95_ms,omitempty"`
	TPOT       float64 `json:"tpot_ms,omitempty"`
	Score      float64 `json:"score,omitempty"` // 0.6·C + 0.4·L, among those that were open
	Fit        float64 `json:"fit,omitempty"`   // share of a budget that the request would use
	Toll       float64 `json:"toll_ms,omitempty"`
	Cost       float64 `json:"cost,omitempty"` // what headroom takes the lowest of: fit and toll over the score, and what makes it dearer
}

// Why a candidate was not open to a request.
const (
	ClosedPending = "pending_tokens" // too many prompt tokens wait there
	ClosedHarm    = "harm"           // a running answer would newly miss its time per token
	ClosedTPOT    = "tpot"           // the request's own answer would
	ClosedFull    = "full"           // prompts wait there for a running request to end
	ClosedLost    = "lost"           // the request can hardly be in time, and gets idle engines only
)

// maxConsidered bounds the candidates of a record.
const maxConsidered = 32

// Record makes the router record decisions. It is to be called before the first
// Claim.
func (r *Router) Record(d *Decisions) { r.decisions = d }

// see returns the record of a pick that is about to be made, nil if it is not to
// be recorded. open tells who the policy could choose from; nil: all. It runs in
// the pool's critical section.
func (r *Router) see(now time.Time, req *Request, tried []*backends.Backend, c []backends.Candidate, pick int, open func(*backends.Candidate) bool) *Decision {
	if pick < 0 || r.decisions == nil {
		return nil
	}
	late := c[pick].P50 > 0 && req.TTFT > 0 && now.Add(c[pick].P50).After(req.Accepted.Add(req.TTFT))
	if !r.decisions.wants(now, req.Explain, late || len(tried) > 0) {
		return nil
	}
	return r.write(now, req, len(tried), c, pick, open)
}

// write is a decision without its outcome.
func (r *Router) write(now time.Time, req *Request, tried int, c []backends.Candidate, pick int, open func(*backends.Candidate) bool) *Decision {
	d := &Decision{
		At: now, Request: req.ID, Model: req.Model, Policy: r.name, Contract: req.Contract, Tenant: req.Label, Class: req.Class,
		PromptTokens: req.PromptTokens, Attempt: tried + 1, TPOTMS: inMS(req.TPOT), Of: len(c),
	}
	if !req.Accepted.IsZero() {
		d.WaitedMS = inMS(now.Sub(req.Accepted))
	}
	if req.TTFT > 0 {
		d.due = req.Accepted.Add(req.TTFT)
		left := inMS(d.due.Sub(now))
		d.LeftMS = &left
	}
	d.Candidates = r.consider(now, req, c, pick, open)
	d.Explored = r.name == Headroom && explored(d.Candidates)
	return d
}

// consider lists the candidates, in the order that Decision.Candidates promises.
func (r *Router) consider(now time.Time, req *Request, c []backends.Candidate, pick int, open func(*backends.Candidate) bool) []Considered {
	all := ranking(now, req, c, pick, open)
	out := make([]Considered, 0, min(len(all), maxConsidered))
	for _, k := range all[:min(len(all), maxConsidered)] {
		x := considered(now, k.Candidate)
		x.Open, x.Score, x.Fit = k.open, rounded(k.score), rounded(k.fit)
		if k.P95 > 0 {
			x.Toll, x.Cost = inMS(req.tollFor(k.Candidate)), rounded(k.cost)
		}
		if !k.open {
			x.Closed = r.whyClosed(req, k.Candidate)
		}
		out = append(out, x)
	}
	return out
}

// explored reports whether another one that was open is cheaper than the pick.
func explored(all []Considered) bool {
	return len(all) > 1 && all[0].Open && all[1].Open && all[1].Cost < all[0].Cost
}

// ranked is a candidate on its way into a record.
type ranked struct {
	*backends.Candidate
	open, picked     bool
	score, fit, cost float64 // score and fit are 0 where nothing is predicted
}

func ranking(now time.Time, req *Request, c []backends.Candidate, pick int, open func(*backends.Candidate) bool) []ranked {
	if len(c) == 0 {
		return nil
	}
	all := make([]ranked, 0, len(c))
	for i := range c {
		all = append(all, ranked{Candidate: &c[i], open: open == nil || open(&c[i]), picked: i == pick})
	}
	best := bestOpen(all)
	for i := range all {
		k := &all[i]
		if k.cost = k.Load.Pending(); k.P95 > 0 {
			k.score, k.fit = score(k.Candidate, best), fit(req, k.Candidate, req.left(now))
			k.cost = headroomCost(req, k.Candidate, best, req.left(now))
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(first(a.picked, b.picked), first(a.open, b.open), cmp.Compare(a.cost, b.cost))
	})
	return all
}

// bestOpen is the lowest prediction of those that were open; of all, if none was.
func bestOpen(all []ranked) time.Duration {
	nobody := !slices.ContainsFunc(all, func(k ranked) bool { return k.open })
	best := time.Duration(math.MaxInt64)
	for _, k := range all {
		if k.open || nobody {
			best = min(best, expected(k.P95, k.Candidate))
		}
	}
	return best
}

// first orders what is true before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func considered(now time.Time, c *backends.Candidate) Considered {
	s := c.Backend.Status(now)
	x := Considered{
		Backend: c.Backend.Name, State: string(s.State), Readiness: string(s.Ready),
		Weight: rounded(c.Weight), Penalty: rounded(c.Load.Penalty), Stale: c.Stale, Young: c.Young,
		InFlight: c.Load.InFlight, Pending: c.Pending, Cached: c.Cached, Harmed: c.Harmed,
		Running: known(c.Signals.Running), Waiting: known(c.Signals.Waiting), KVUse: known(c.Signals.KVUse),
		RecentTTFT: inMS(c.Load.TTFT), P50: inMS(c.P50), P95: inMS(c.P95), TPOT: inMS(c.TPOT),
	}
	if c.P95 > 0 {
		x.Compliance = rounded(c.Compliance)
		return x
	}
	x.Pending = c.Load.PrefillTokens + c.Load.HeldTokens
	return x
}

// whyClosed tells by what an instance was closed to a request.
func (r *Router) whyClosed(req *Request, c *backends.Candidate) string {
	switch {
	case c.Harmed > 0:
		return ClosedHarm
	case !keepsGaps(req, c):
		return ClosedTPOT
	case c.Full && c.Pending > 0:
		return ClosedFull
	case r.admission != nil && !r.fewWait(c):
		return ClosedPending
	}
	return ClosedLost
}

// offered reports whether the policy was last offered a candidate. Called with
// the queue locked.
func (r *Router) offered(c *backends.Candidate) bool {
	return placeOf(r.choice[:r.open], c.Index) >= 0
}

// Refused records that a request got no backend after it was held for a while:
// why, and how the candidates stand. It returns the record, nil if there is none.
func (r *Router) Refused(now time.Time, req *Request, tried []*backends.Backend, held time.Duration, reason string) *Decision {
	if r.decisions == nil || !r.decisions.wants(now, req.Explain, true) {
		return nil
	}
	r.queue.mu.Lock() // what is open depends on who is held, and who came of late
	defer r.queue.mu.Unlock()
	open := func(c *backends.Candidate) bool {
		return r.admission == nil || isIdle(c) || r.isOpen(now, req, c, likely(c))
	}
	var d *Decision
	claim, err := r.pool.Claim(now, req.demand(), tried, func(c []backends.Candidate) int {
		r.foretell(now, req, c)
		d = r.write(now, req, len(tried), c, -1, open)
		return -1
	})
	if err == nil { // a probation took it; it is not to be sent
		claim.End(now, backends.Outcome{Class: backends.Dropped})
	}
	if d == nil {
		d = r.write(now, req, len(tried), nil, -1, open)
	}
	d.HeldMS, d.Reason, d.Outcome, d.Missed = inMS(held), reason, "refused", true
	r.decisions.add(d)
	return r.decisions.read(d)
}

// recorded books what was picked, if it is to be recorded. A probe takes a
// backend without choosing.
func (l *Lease) recorded(now time.Time, req *Request, tried []*backends.Backend, d *Decision) {
	if l.claim.Probe && l.router.decisions != nil && l.router.decisions.wants(now, req.Explain, true) {
		d = l.router.write(now, req, len(tried), nil, -1, nil)
	}
	if d == nil {
		return
	}
	d.Pick, d.Reason = l.claim.Backend.Name, l.Reason()
	l.decision = d
	l.router.decisions.add(d)
}

// Decision is the record of the choice so far; nil if it is not recorded.
func (l *Lease) Decision() *Decision {
	if l.decision == nil {
		return nil
	}
	return l.router.decisions.read(l.decision)
}

// Held adds to the record how long the request was held at the gateway.
func (l *Lease) Held(d time.Duration) {
	l.note(func(r *Decision) { r.HeldMS = inMS(d) })
}

// begun notes the first token.
func (l *Lease) begun(now time.Time) {
	l.note(func(d *Decision) { d.begun(now) })
}

// ended notes the end.
func (l *Lease) ended(now time.Time, o backends.Outcome) {
	l.note(func(d *Decision) { d.ended(now, o) })
}

// note writes into the record, if there is one.
func (l *Lease) note(f func(*Decision)) {
	if l.decision == nil {
		return
	}
	l.router.decisions.mu.Lock()
	defer l.router.decisions.mu.Unlock()
	f(l.decision)
}

func (d *Decision) begun(now time.Time) {
	if d.TTFTMS != nil || d.Outcome != "" {
		return
	}
	ttft := inMS(now.Sub(d.At))
	d.TTFTMS, d.Missed = &ttft, d.overdue(now)
}

func (d *Decision) ended(now time.Time, o backends.Outcome) {
	if d.Outcome != "" {
		return
	}
	took := inMS(now.Sub(d.At))
	d.DurationMS, d.Outcome = &took, ending(o)
	failed := o.Class == backends.Fault || o.Class == backends.Overloaded
	d.Missed = d.Missed || failed || d.TTFTMS == nil && d.overdue(now)
}

func (d *Decision) overdue(now time.Time) bool { return !d.due.IsZero() && now.After(d.due) }

// ending is an outcome in a word.
func ending(o backends.Outcome) string {
	switch {
	case o.ClientLeft:
		return "left"
	case o.Class == backends.Served:
		return "served"
	case o.Class == backends.Overloaded:
		return "overloaded"
	case o.Class == backends.Fault:
		return "failed"
	}
	return "dropped"
}

func inMS(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// rounded is enough to read.
func rounded(x float64) float64 { return math.Round(x*1e4) / 1e4 }

// known is nil for what is unknown.
func known(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	x = rounded(x)
	return &x
}
