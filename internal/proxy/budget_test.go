package proxy

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestBudgetLimits(t *testing.T) {
	now := time.Unix(1000, 0)
	b := NewBudget(0.2, 3)
	begin := func(n int) {
		for range n {
			b.begin(now)
		}
	}
	takes := func(want int) {
		t.Helper()
		n := 0
		for n < 1000 && b.take(now, false) {
			n++
		}
		if n != want {
			t.Errorf("%d retries, want %d", n, want)
		}
	}
	begin(1)
	takes(3) // the minimum
	begin(99)
	takes(17) // a fifth of 100
	takes(0)
	if b.take(now, true) {
		t.Error("a second retry of a request goes beyond the share of the last ten seconds")
	}
	for range 20 {
		b.end(true)
	}
	takes(0) // they were taken within these ten seconds
	now = now.Add(11 * time.Second)
	takes(16) // a fifth of the 80 still in flight
	for range 16 {
		b.end(true)
	}
	now = now.Add(11 * time.Second)
	begin(200)
	for range 254 {
		b.end(false)
	}
	takes(3) // lately there were 200, but only 10 are in flight
}

// However requests come and go, retries stay within the share.
func TestBudgetLaw(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 1))
		ratio, minimum := rng.Float64(), 1+rng.IntN(5)
		b := NewBudget(ratio, minimum)
		type request struct{ retried bool }
		var flying []request
		var begun, taken []time.Time
		now := time.Unix(1000, 0)
		for range 1000 {
			now = now.Add(time.Duration(rng.IntN(40)) * time.Millisecond)
			switch k := rng.IntN(3); {
			case k == 0 || len(flying) == 0:
				b.begin(now)
				begun = append(begun, now)
				flying = append(flying, request{})
			case k == 1:
				i := rng.IntN(len(flying))
				if b.take(now, flying[i].retried) {
					flying[i].retried = true
					taken = append(taken, now)
					share := max(minimum, int(ratio*float64(max(since(begun, now, 10*time.Second), len(flying)))))
					if n := since(taken, now, 9*time.Second); n > share {
						t.Fatalf("seed %d: %d retries within 9 s, want at most %d", seed, n, share)
					}
				}
			default:
				i := rng.IntN(len(flying))
				b.end(flying[i].retried)
				flying = append(flying[:i], flying[i+1:]...)
			}
			retrying := 0
			for _, r := range flying {
				if r.retried {
					retrying++
				}
			}
			if b.active != len(flying) || b.retrying != retrying {
				t.Fatalf("seed %d: counts %d and %d, want %d and %d", seed, b.active, b.retrying, len(flying), retrying)
			}
		}
	}
}

// since counts the times within d before now.
func since(times []time.Time, now time.Time, d time.Duration) int {
	n := 0
	for _, at := range times {
		if now.Sub(at) < d {
			n++
		}
	}
	return n
}

func TestBudgetSet(t *testing.T) {
	now := time.Unix(1000, 0)
	b := NewBudget(0, 1)
	b.begin(now)
	if !b.take(now, false) || b.take(now, false) {
		t.Error("want one retry")
	}
	b.Set(0, 3)
	for i, want := range []bool{true, true, false} {
		if got := b.take(now, false); got != want {
			t.Errorf("retry %d after the limit rose: %v, want %v", i+1, got, want)
		}
	}
	b.end(true)
	if b.active != 0 || b.retrying != 2 {
		t.Errorf("counts %d and %d", b.active, b.retrying)
	}
}
