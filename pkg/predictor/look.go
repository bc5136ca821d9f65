package predictor

import (
	"math"
	"time"
)

// view is what an instance looks like to one request at one moment.
type view struct {
	features Features
	regime   Regime
	base     float64 // seconds
	harm     harm
	young    bool // too little was seen of the engine's speed to learn from errors
}

// youngSpans is how many spans of steps an engine's speed has to be learned
// from before an error of its base says something of the estimators.
const youngSpans = 20

// look fills in what the instance knows; the pool adds what is the pool's.
func (i *Instance) look(now time.Time, w Work, v *view) {
	i.mu.Lock()
	defer i.mu.Unlock()
	t := i.seconds(now)
	i.settleSilent(t)
	f := i.forecast(t, w)
	v.base, v.regime = f.seconds, i.regime(&f)
	v.harm, v.young = i.harm(t, w), i.speed.seen < youngSpans
	i.describe(t, w, &f, &v.features)
}

// regime of the load that a request would meet.
func (i *Instance) regime(f *forecast) Regime {
	switch {
	case f.blocked > 0 || i.scrape.KVUse >= 0.95:
		return KVFull
	case len(i.pending) > 0 || i.others.tokens > 0:
		return Queued
	case i.decoding > 0 || i.others.decoding > 0:
		return Busy
	}
	return Idle
}

func (i *Instance) describe(t float64, w Work, f *forecast, x *Features) {
	nan := math.NaN()
	x[PromptTokens], x[UncachedTokens] = float64(w.Prompt), float64(w.Uncached)
	x[MaxTokens], x[Turn], x[Streaming] = positive(w.Max), positive(w.Turn), 0
	if w.Stream {
		x[Streaming] = 1
	}
	x[Running], x[Waiting], x[KVUse], x[HitShare] = i.scrape.Running, i.scrape.Waiting, i.scrape.KVUse, i.scrape.Hit
	x[ScrapeAge] = t - i.scrapeAt
	x[PendingTokens] = i.pendingTokens()
	x[PendingRequests] = float64(len(i.pending))
	x[DecodeRequests] = float64(i.decoding) + i.others.decoding
	x[DecodeContext] = i.context + i.others.context
	x[SinceFirstToken] = t - i.firstToken
	x[TokenGap], x[SinceToken], x[Phase] = nan, nan, nan
	if i.streams > 0 {
		x[TokenGap], x[SinceToken] = i.gaps.mean(), t-i.anchor
	}
	if f.current > 0 {
		x[Phase] = (t - i.anchor) / f.current
	}
	x[BatchContext] = x[DecodeRequests] * x[DecodeContext]
	x[ResponseEntropy], x[CPUCovariance] = i.response.entropy(t), i.response.cpuCovariance()
	x[Base] = f.seconds
	x[OwnShare], x[QueueShare] = min(f.own/f.seconds, 1), min(f.queue/f.seconds, 1)
	x[Steps], x[Blocked] = f.steps, f.blocked
	x[RecentError], x[RecentSpread] = i.recent.bias(), i.recent.spread()
	x[CacheTrust] = i.trust.value
}

func positive(n int) float64 {
	if n <= 0 {
		return math.NaN()
	}
	return float64(n)
}

// pendingTokens are prompt tokens not computed yet, own and others'.
func (i *Instance) pendingTokens() float64 {
	sum := i.others.tokens
	for _, f := range i.pending {
		sum += f.left
	}
	return sum
}

// recentErrors are the last log errors of an instance's base estimate.
type recentErrors struct {
	mean, abs float64
	n         int
}

func (r *recentErrors) add(e float64) {
	e = min(max(e, -2), 2)
	r.n++
	rate := max(1/float64(r.n), 0.1)
	r.mean += (e - r.mean) * rate
	r.abs += (math.Abs(e-r.mean) - r.abs) * rate
}

func (r *recentErrors) bias() float64 {
	if r.n < 3 {
		return math.NaN()
	}
	return r.mean
}

func (r *recentErrors) spread() float64 {
	if r.n < 3 {
		return math.NaN()
	}
	return r.abs
}

// observe learns how far a base estimate was off.
func (i *Instance) observe(logError float64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.recent.add(logError)
}
