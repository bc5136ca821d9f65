package sla

import (
	"math"
	"sync"
	"time"
)

const (
	usualHalfLife = time.Hour        // a request counts half of the usual rate after it
	usualLearned  = 10 * time.Minute // shortest time over which a rate is usual
	burstSeconds  = 10               // over which the present rate is counted
	burstFloor    = 10               // requests in that time that are covered always
)

// Pace follows how often requests of one contract come, and tells which of them
// are more than its usual rate and burst cover. The zero value is ready to use. It
// may be used by many goroutines at once, and its size is fixed.
//
//	usual = Σ 2^(-age / 1 h) / ∫₀ᵀ 2^(-t / 1 h) dt, T since the first request
//
// The integral is what one request a second would have come to by now, so that
// the rate is right from the start and forgets within hours.
type Pace struct {
	mu    sync.Mutex
	begun time.Time // first request; zero: none
	at    time.Time // as of which the weight is
	sum   float64   // weights of all requests

	lately [burstSeconds]int32 // requests by second
	second int64               // of the last one, since begun
}

// Arrived counts a request, and reports whether with it more came within the last
// 10 s than usual × (1 + burst) × 10 s. 10 requests are always covered, and so is
// everything within the first 10 minutes: what is usual is not known yet.
func (p *Pace) Arrived(now time.Time, burst Share) (over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun.IsZero() {
		p.begun, p.at = now, now
	}
	usual, known := p.usual(now)
	p.sum = p.faded(now) + 1
	if now.After(p.at) {
		p.at = now
	}
	n := p.count(now)
	return known && n > burstFloor && float64(n) > usual*(1+float64(burst))*burstSeconds
}

// usual is the usual rate in requests a second; false until it is known.
func (p *Pace) usual(now time.Time) (rate float64, known bool) {
	passed := now.Sub(p.begun)
	if p.begun.IsZero() || passed < usualLearned {
		return 0, false
	}
	halfLife := usualHalfLife.Seconds()
	return p.faded(now) / (halfLife / math.Ln2 * (1 - math.Exp2(-passed.Seconds()/halfLife))), true
}

// faded is the sum of weights as of now.
func (p *Pace) faded(now time.Time) float64 {
	if !now.After(p.at) {
		return p.sum
	}
	return p.sum * math.Exp2(-now.Sub(p.at).Seconds()/usualHalfLife.Seconds())
}

// count adds a request to its second and returns how many came within the last
// 10, this one included.
func (p *Pace) count(now time.Time) (n int) {
	second := max(p.second, int64(now.Sub(p.begun)/time.Second))
	for s := max(p.second+1, second-burstSeconds+1); s <= second; s++ {
		p.lately[s%burstSeconds] = 0
	}
	p.second = second
	p.lately[second%burstSeconds]++
	for _, k := range p.lately {
		n += int(k)
	}
	return n
}
