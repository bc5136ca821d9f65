package backends

import (
	"math"
	"time"
)

// Work is what one request is expected to cost an engine.
type Work struct {
	PromptTokens int // estimate

	// Blocks are chained hashes of the prompt's blocks of BlockTokens, from
	// its start: two prompts have the first n in common if they agree so far.
	// Empty if nothing is known. Not to be changed.
	Blocks []uint64

	uncached int // prompt tokens the chosen engine has to compute
}

// Load is the work the gateway itself has on one engine, plus what its
// observations say of the engine's speed.
type Load struct {
	InFlight      int     // attempts whose answer has not ended
	Prefilling    int     // of these, attempts without a first token
	PrefillTokens int     // prompt tokens of these that are not in the engine's cache, as far as known
	Held          int     // attempts whose client left before the first token, the engine perhaps still at work
	HeldTokens    int     // their prompt tokens
	Penalty       float64 // recent failures, decayed; each weighs as one more request in flight

	// TTFT is the peak-EWMA of upstream TTFT: it jumps to a sample above it
	// and decays from there until the next. 0 before the first sample.
	TTFT time.Duration
}

// Pending is the number that "least in flight" compares: what runs, what may
// still run for clients that left, and recent failures, so that an engine
// that fails fast does not look free.
func (l Load) Pending() float64 {
	return float64(l.InFlight+l.Held) + l.Penalty
}

const (
	// penaltyHalfLife makes a failure weigh on an engine for about as long as
	// Linkerd's 5 s latency penalty does.
	penaltyHalfLife = 5 * time.Second
	// ttftTau is the decay time of the peak-EWMA (Finagle's and tower's order of magnitude).
	ttftTau = 10 * time.Second

	heldMin     = time.Second      // shortest time prefill is held for a client that left
	heldMax     = time.Minute      // longest
	heldUnknown = 30 * time.Second // used before any TTFT was seen
)

type load struct {
	inFlight, prefilling, prefillTokens int

	held []held

	penalty   float64
	penaltyAt time.Time

	ttft        peakEWMA
	prefillRate prefillRate
}

// held is the prefill of one client that left before its first token.
type held struct {
	tokens  int
	since   time.Time
	expires time.Time
}

func (l *load) snapshot(now time.Time) Load {
	l.expire(now)
	s := Load{
		InFlight:      l.inFlight,
		Prefilling:    l.prefilling,
		PrefillTokens: l.prefillTokens,
		Held:          len(l.held),
		Penalty:       l.penaltyNow(now),
		TTFT:          l.ttft.at(now),
	}
	for _, h := range l.held {
		s.HeldTokens += h.tokens
	}
	return s
}

func (l *load) begin(w Work) {
	l.inFlight++
	l.prefilling++
	l.prefillTokens += w.uncached
}

func (l *load) firstToken(w Work) {
	l.prefilling--
	l.prefillTokens -= w.uncached
}

// end gives back what is still counted. An attempt that never saw a token and
// whose client left goes on as held prefill.
func (l *load) end(now time.Time, w Work, sawToken, hold bool, begun time.Time) {
	l.inFlight--
	if sawToken {
		return
	}
	l.firstToken(w)
	if !hold {
		return
	}
	expires := begun.Add(l.expectedPrefill(w))
	if expires.After(now) {
		l.held = append(l.held, held{tokens: w.uncached, since: now, expires: expires})
	}
}

// expectedPrefill is how long the engine may work on a prompt before its
// first token: the slower of what its recent TTFTs and its rate per token say.
func (l *load) expectedPrefill(w Work) time.Duration {
	if l.ttft.value == 0 {
		return heldUnknown
	}
	byRate := l.prefillRate.estimate(w.uncached)
	return min(max(l.ttft.value, byRate, heldMin), heldMax)
}

func (l *load) expire(now time.Time) {
	kept := l.held[:0]
	for _, h := range l.held {
		if h.expires.After(now) {
			kept = append(kept, h)
		}
	}
	l.held = kept
}

// reconcile drops held prefill that the engine's numbers leave no room for:
// what it runs and queues, less the gateway's own requests, is the most that
// can still be work of clients that left. Only prefill abandoned before the
// scrape began is judged by it, the oldest first.
func (l *load) reconcile(s Signals) {
	busy := s.Running + s.Waiting
	if math.IsNaN(busy) {
		return
	}
	judged := 0
	for _, h := range l.held {
		if h.since.Before(s.Began) {
			judged++
		}
	}
	room := max(busy-float64(min(s.OwnInFlight, l.inFlight)), 0)
	kept := l.held[:0]
	for _, h := range l.held {
		if float64(judged) > room && h.since.Before(s.Began) {
			judged--
			continue
		}
		kept = append(kept, h)
	}
	l.held = kept
}

func (l *load) penalise(now time.Time) {
	l.penalty = l.penaltyNow(now) + 1
	l.penaltyAt = now
}

func (l *load) penaltyNow(now time.Time) float64 {
	if l.penalty == 0 {
		return 0
	}
	age := max(now.Sub(l.penaltyAt), 0) // callers' clocks may be read in another order than they get here
	p := l.penalty * math.Exp2(-age.Seconds()/penaltyHalfLife.Seconds())
	if p < 0.01 {
		return 0
	}
	return p
}

// peakEWMA is Finagle's peak-EWMA as a balancer sees it that reads it at every
// choice: a sample above the estimate replaces it; otherwise the estimate goes
// on decaying, so that a backend that was slow once is tried again.
type peakEWMA struct {
	value time.Duration // at stamp
	stamp time.Time
}

func (e *peakEWMA) observe(now time.Time, sample time.Duration) {
	if sample >= e.at(now) {
		e.value, e.stamp = sample, now
	}
}

func (e *peakEWMA) at(now time.Time) time.Duration {
	if e.value == 0 {
		return 0
	}
	age := max(now.Sub(e.stamp), 0)
	return time.Duration(float64(e.value) * math.Exp(-age.Seconds()/ttftTau.Seconds()))
}

// prefillRate is seconds of TTFT per prompt token over recent requests.
type prefillRate struct{ seconds, tokens float64 }

func (r *prefillRate) observe(ttft time.Duration, tokens int) {
	const keep = 0.95 // about the last 20 requests
	r.seconds = r.seconds*keep + ttft.Seconds()
	r.tokens = r.tokens*keep + float64(tokens)
}

func (r *prefillRate) estimate(tokens int) time.Duration {
	if r.tokens == 0 {
		return 0
	}
	return time.Duration(float64(tokens) * r.seconds / r.tokens * float64(time.Second))
}
