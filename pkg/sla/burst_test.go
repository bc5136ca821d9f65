package sla

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// arrive lets requests come evenly for so long and returns when the last one did
// and how many were over.
func arrive(p *Pace, from time.Time, perSecond float64, length time.Duration, burst Share) (end time.Time, over int) {
	n := int(perSecond * length.Seconds())
	for i := range n {
		if p.Arrived(from.Add(time.Duration(float64(i)/perSecond*float64(time.Second))), burst) {
			over++
		}
	}
	return from.Add(length), over
}

func TestPace(t *testing.T) {
	for name, row := range map[string]struct {
		usual  float64       // a second
		learn  time.Duration // for so long
		then   float64
		burst  Share
		length time.Duration
		over   [2]int // at least and at most
	}{
		"as usual":                    {10, time.Hour, 10, 0.3, time.Minute, [2]int{0, 0}},
		"within the burst":            {10, time.Hour, 12.9, 0.3, time.Minute, [2]int{0, 0}},
		"twice as much":               {10, time.Hour, 20, 0.3, time.Minute, [2]int{1050, 1150}}, // all once 130 are there, after some 6 s
		"twice as much is covered":    {10, time.Hour, 20, 1, time.Minute, [2]int{0, 0}},
		"nothing more is covered":     {10, time.Hour, 15, 0, time.Minute, [2]int{880, 899}},
		"not known yet":               {10, 9 * time.Minute, 100, 0.3, 59 * time.Second, [2]int{0, 0}},
		"little traffic":              {0.01, time.Hour, 0.9, 0.3, time.Minute, [2]int{0, 0}}, // below 10 in 10 s
		"little traffic, then a lot":  {0.01, time.Hour, 10, 0.3, time.Minute, [2]int{580, 592}},
		"less than usual":             {10, time.Hour, 1, 0, time.Minute, [2]int{0, 0}},
		"what was long ago is little": {1, time.Hour, 20, 0.3, 8 * time.Hour, [2]int{60_000, 300_000}}, // the new rate is usual after some hours
	} {
		var p Pace
		now, over := arrive(&p, t0, row.usual, row.learn, 0.1)
		if over != 0 {
			t.Errorf("%s: %d over while it was usual", name, over)
		}
		if _, over = arrive(&p, now, row.then, row.length, row.burst); over < row.over[0] || over > row.over[1] {
			t.Errorf("%s: %d over, want %v", name, over, row.over)
		}
	}
}

func TestUsual(t *testing.T) {
	var p Pace
	if _, known := p.usual(t0); known {
		t.Error("known of nothing")
	}
	now, _ := arrive(&p, t0, 5, 10*time.Minute, 0)
	if rate, known := p.usual(now); !known || math.Abs(rate-5) > 0.01 {
		t.Errorf("after 10 minutes of 5/s: %v, %v", rate, known)
	}
	now, _ = arrive(&p, now, 5, 3*time.Hour, 0)
	if rate, _ := p.usual(now); math.Abs(rate-5) > 0.01 {
		t.Errorf("after hours of 5/s: %v", rate)
	}
	now, _ = arrive(&p, now, 15, time.Hour, 0)
	if rate, _ := p.usual(now); rate < 9.5 || rate > 10.8 { // halfway, a little more: the start weighs less
		t.Errorf("after an hour of 15/s: %v", rate)
	}
	if rate, _ := p.usual(now.Add(10 * time.Hour)); rate > 0.02 {
		t.Errorf("after 10 hours of nothing: %v", rate)
	}
}

// A clock that is out of order harms nothing, and neither do long pauses.
func TestPaceOutOfOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var p Pace
	now := t0
	for range 100_000 {
		now = now.Add(time.Duration(rng.NormFloat64() * float64(time.Second)))
		if rng.IntN(1000) == 0 {
			now = now.Add(time.Duration(rng.Int64N(int64(1000 * time.Hour))))
		}
		p.Arrived(now, 0.3)
		if rate, known := p.usual(now); known && !(rate >= 0 && rate < 1e9) {
			t.Fatalf("rate %v", rate)
		}
	}
	if p.Arrived(now.Add(time.Minute), 0.3) {
		t.Error("one request after a minute of nothing is over")
	}
}
