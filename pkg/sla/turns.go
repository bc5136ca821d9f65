package sla

import (
	"math"
	"sync"
	"time"
)

// maxTurn is the last turn that is followed: what a tenth user message waits for
// its answer is what drift is stated by.
const maxTurn = 10

const (
	turnHalfLife = 10 * time.Minute // a request counts half after it
	turnSamples  = 50               // fewest, decayed, that a median is of
	turnDrift    = 1.3              // ratio of medians from which there is drift
	turnSilence  = time.Hour        // shortest time between two drifts that are told
)

// TurnDrift tells that later turns of conversations wait longer for their first
// token than first ones do: prompts grow, and what engines should still have of
// them in their caches has gone, or the requests have gone to other engines.
type TurnDrift struct {
	At     time.Time
	Turn   int           // the one compared with the first: the tenth, or the last with enough requests
	First  time.Duration // median TTFT of first turns
	Later  time.Duration // of that turn
	Ratio  float64       // Later / First
	Counts [2]float64    // requests behind them, decayed
}

// Turns follows the time to first token of one model by the turn of the
// conversation. The zero value is ready to use. It may be used by many
// goroutines at once; its memory is bounded.
type Turns struct {
	mu   sync.Mutex
	by   [maxTurn]decayed
	told time.Time
}

// Observe takes in the TTFT of a request; turn counts from 1, and one that is
// not known or past the tenth is left out. It returns a drift, at most once an
// hour.
func (t *Turns) Observe(now time.Time, turn int, ttft time.Duration) *TurnDrift {
	if turn < 1 || turn > maxTurn || ttft <= 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.by[turn-1].add(now, ttft)
	if !t.told.IsZero() && now.Sub(t.told) < turnSilence {
		return nil
	}
	d := t.drift(now)
	if d == nil || !(d.Ratio > turnDrift) {
		return nil
	}
	t.told = now
	return d
}

// Median is the decayed median of a turn's TTFT, and the decayed number of
// requests behind it; 0 where there are none.
func (t *Turns) Median(now time.Time, turn int) (ttft time.Duration, requests float64) {
	if turn < 1 || turn > maxTurn {
		return 0, 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &t.by[turn-1]
	return d.median(), d.total * d.fading(now)
}

// drift compares the last turn that has enough requests with the first; nil if
// there is none.
func (t *Turns) drift(now time.Time) *TurnDrift {
	enough := func(turn int) bool { d := &t.by[turn-1]; return d.total*d.fading(now) >= turnSamples }
	if !enough(1) {
		return nil
	}
	for turn := maxTurn; turn > 1; turn-- {
		if !enough(turn) {
			continue
		}
		first, later := &t.by[0], &t.by[turn-1]
		d := &TurnDrift{At: now, Turn: turn, First: first.median(), Later: later.median()}
		d.Ratio = float64(d.Later) / float64(d.First)
		d.Counts = [2]float64{first.total * first.fading(now), later.total * later.fading(now)}
		return d
	}
	return nil
}

// decayed is a distribution of times in which older ones count less. Its buckets
// are a sixteenth of an octave wide, from 1 ms on, so that a median is off by
// 4.5 % at most.
type decayed struct {
	at     time.Time // as of which the weights are
	total  float64
	counts [stepsPerOctave*octaves + 1]float64
}

const stepsPerOctave = 16

// fading is by what factor the weights have faded at now.
func (d *decayed) fading(now time.Time) float64 {
	if d.at.IsZero() || now.Before(d.at) {
		return 1
	}
	return math.Exp2(-float64(now.Sub(d.at)) / float64(turnHalfLife))
}

// add counts one time. The weights fade in steps, since that touches them all: a
// request counts from the last step on.
func (d *decayed) add(now time.Time, value time.Duration) {
	const step = turnHalfLife / 100
	if now.Sub(d.at) >= step {
		f := d.fading(now)
		for i := range d.counts {
			d.counts[i] *= f
		}
		d.total *= f
		d.at = now
	}
	octave := math.Log2(float64(value) / float64(time.Millisecond))
	i := int(min(max(octave, 0)*stepsPerOctave, float64(len(d.counts)-1)))
	d.counts[i]++
	d.total++
}

// median lies in the middle bucket, as far in as the half is; 0 of nothing.
func (d *decayed) median() time.Duration {
	below := 0.0
	for i, n := range d.counts {
		if n > 0 && below+n >= d.total/2 {
			octave := (float64(i) + (d.total/2-below)/n) / stepsPerOctave
			return time.Duration(math.Exp2(octave) * float64(time.Millisecond))
		}
		below += n
	}
	return 0
}
