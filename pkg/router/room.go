package router

import (
	"math"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// This file decides which instances have room for a request.

// isOpen reports whether an instance can take the request now: it does no harm
// there, and few prompt tokens are pending or it may join them, with its first
// token after ttft.
func (r *Router) isOpen(now time.Time, req *Request, c *backends.Candidate, ttft time.Duration) bool {
	return isHarmless(req, c) && (r.fewWait(c) || r.mayJoin(now, req, c, ttft))
}

// couldBeOpen is isOpen before anything is predicted: base is within a factor of
// two of what will be.
func (r *Router) couldBeOpen(now time.Time, req *Request, c *backends.Candidate, base time.Duration) bool {
	return isIdle(c) || r.isOpen(now, req, c, base/2)
}

// fewWait reports whether fewer prompt tokens wait there than close an instance.
func (r *Router) fewWait(c *backends.Candidate) bool {
	return float64(c.Pending) < ownShare(c)*float64(r.admission.PendingTokens)
}

// ownShare is which part of the requests at an engine were this gateway's when
// it was last asked; at least a tenth. Gateways that do not see each other share
// the room they fill.
func ownShare(c *backends.Candidate) float64 {
	const few = 4
	s := c.Signals
	if all := s.Running + s.Waiting; !s.At.IsZero() && all > few {
		return min(max(float64(s.OwnInFlight)/all, 0.1), 1)
	}
	return 1
}

// isHarmless reports whether the request would neither make a running answer
// newly miss what was promised of its tokens nor miss it itself, nor join those
// that wait for a running one to end.
func isHarmless(req *Request, c *backends.Candidate) bool {
	return c.Harmed == 0 && keepsGaps(req, c) && (!c.Full || c.Pending == 0)
}

// unseen is the part of the time between tokens that is left to prompts of
// others, where all are others'.
const unseen = 0.4

// keepsGaps reports whether the request's own time between tokens would be as
// promised, with what is left to those this gateway does not see.
func keepsGaps(req *Request, c *backends.Candidate) bool {
	return req.TPOT == 0 || float64(c.TPOT) <= (1-unseen*(1-ownShare(c)))*float64(req.TPOT)
}

// mayJoin reports whether the request may wait at an engine where many prompt
// tokens are pending: if there is about an even chance that it is in time, and
// that one with the tightest budget would be behind it; if nobody more critical
// may come; and if it makes few gaps between tokens longer: it was promised none
// itself, or its prompt is mostly cached.
func (r *Router) mayJoin(now time.Time, req *Request, c *backends.Candidate, ttft time.Duration) bool {
	lately := &r.queue.lately
	if req.TTFT == 0 || req.Class > lately.class() || c.Pending >= joinLimit*r.admission.PendingTokens {
		return false
	}
	if req.TPOT > 0 && 2*(req.PromptTokens-c.Cached) > r.admission.PendingTokens {
		return false
	}
	return ttft <= min(req.left(now), lately.budget()) && !r.passes(now, req)
}

// likely is about the time to first token that an even chance is judged by. An
// engine of unknown speed has to have more to spare.
func likely(c *backends.Candidate) time.Duration {
	if c.Young {
		return expected(c.P95, c)
	}
	return expected(c.P50, c)
}

// passes reports whether somebody is held who is to be let in before the request
// and due before it: joining would keep an engine closed to that one for as long
// as others join.
func (r *Router) passes(now time.Time, req *Request) bool {
	due := req.Accepted.Add(req.TTFT)
	for _, t := range r.queue.held {
		switch earlier := t.deadline.Before(due); {
		case t.req.Class > req.Class, t.req.Class == req.Class && !earlier: // as all behind it
			return false
		case earlier && t.req != req && !t.isLost(now):
			return true
		}
	}
	return false
}

// lately is the most urgent that was asked for of late: what waits at engines
// can't be passed by it. A request counts for latelyFor at least, and for twice
// as long at most. The zero value has seen nobody for long.
type lately struct {
	present, former urgent
	since           time.Time // start of the present
}

// urgent is the least of some requests.
type urgent struct {
	budget time.Duration // for a first token
	class  int           // the most critical
}

func nothing() urgent { return urgent{budget: math.MaxInt64, class: math.MaxInt} }

func (l *lately) budget() time.Duration { return min(l.present.budget, l.former.budget) }

func (l *lately) class() int { return min(l.present.class, l.former.class) }

// joinLimit is how many times PendingTokens close an instance to everybody.
const joinLimit = 16

// latelyFor is how long a request counts.
const latelyFor = time.Minute

// note counts a request.
func (l *lately) note(now time.Time, req *Request) {
	switch passed := now.Sub(l.since); {
	case passed >= 2*latelyFor:
		l.former, l.present, l.since = nothing(), nothing(), now
	case passed >= latelyFor:
		l.former, l.present, l.since = l.present, nothing(), l.since.Add(latelyFor)
	}
	l.present.class = min(l.present.class, req.Class)
}

// noteBudget counts what a request asks for, unless no engine could do it if it
// were idle: nobody needs to leave room for that.
func (l *lately) noteBudget(req *Request, c []backends.Candidate) {
	for i := range c {
		if req.TTFT > c[i].Own {
			l.present.budget = min(l.present.budget, req.TTFT)
			return
		}
	}
}

// idle counts the engines that are.
func idle(c []backends.Candidate) (n int) {
	for i := range c {
		if isIdle(&c[i]) {
			n++
		}
	}
	return n
}

// isIdle reports whether an engine has nothing of ours. Such a one is open to
// everybody.
func isIdle(c *backends.Candidate) bool { return c.Load.InFlight+c.Load.Held == 0 }
