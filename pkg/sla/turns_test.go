package sla_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/sla"
)

// talk is n requests of each turn, whose TTFT is that of the turn, ms, give or
// take a fifth; later turns come first. It returns the drifts.
func talk(turns *sla.Turns, from time.Time, n int, ttft ...float64) (drifts []sla.TurnDrift) {
	rng := rand.New(rand.NewPCG(1, 1))
	for k := range n {
		for i, ms := range slices.Backward(ttft) {
			spread := 0.8 + 0.4*rng.Float64()
			at := from.Add(time.Duration(k) * time.Second)
			if d := turns.Observe(at, i+1, time.Duration(ms*spread*float64(time.Millisecond))); d != nil {
				drifts = append(drifts, *d)
			}
		}
	}
	return drifts
}

var (
	talkStart = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	steady    = []float64{82, 83, 84, 85, 86, 86, 87, 88, 88, 90}
	drifting  = []float64{82, 88, 94, 100, 106, 112, 118, 124, 130, 137}
)

func TestTurnDrift(t *testing.T) {
	for name, tt := range map[string]struct {
		n    int
		ttft []float64
		turn int // compared; 0: no drift
	}{
		"82 to 137":           {60, drifting, 10},
		"steady":              {600, steady, 0},
		"shorter":             {600, []float64{137, 130, 82}, 0},
		"just below":          {600, []float64{100, 120}, 0},
		"just above":          {600, []float64{100, 140}, 2},
		"five turns":          {60, []float64{82, 90, 100, 110, 125}, 5},
		"too few":             {49, drifting, 0},
		"one turn":            {600, []float64{82}, 0},
		"eleven turns and on": {60, append(append([]float64(nil), steady...), 1000, 1000), 0},
		"very long":           {60, []float64{1, 1e7}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var turns sla.Turns
			got := talk(&turns, talkStart, tt.n, tt.ttft...)
			if tt.turn == 0 && len(got) > 0 || tt.turn > 0 && len(got) != 1 {
				t.Fatalf("drifts %+v, want of turn %d", got, tt.turn)
			}
			if tt.turn == 0 {
				return
			}
			d := got[0]
			if d.Turn != tt.turn || !(d.Ratio > 1.3) || d.Counts[0] < 50 || d.Counts[1] < 50 || math.IsInf(d.Ratio, 0) {
				t.Errorf("%+v", d)
			}
			if name == "82 to 137" {
				first, later := d.First.Seconds()*1e3, d.Later.Seconds()*1e3
				if math.Abs(first/82-1) > 0.08 || math.Abs(later/137-1) > 0.08 {
					t.Errorf("from %v to %v ms, want about 82 and 137", first, later)
				}
			}
		})
	}
}

// Drift is told once an hour at most, and no more once it is over.
func TestTurnDriftIsToldOnceAnHour(t *testing.T) {
	var turns sla.Turns
	if got := talk(&turns, talkStart, 3*3600, drifting...); len(got) < 3 || len(got) > 4 || got[1].At.Sub(got[0].At) < time.Hour {
		t.Errorf("%d drifts in three hours, want one an hour", len(got))
	}
	later := talkStart.Add(3 * time.Hour)
	for _, d := range talk(&turns, later, 3*3600, steady...) {
		if d.At.After(later.Add(30 * time.Minute)) {
			t.Errorf("a drift is told %v after it was over", d.At.Sub(later))
		}
	}
}

// What was never of a turn does not count, and old requests fade.
func TestTurnsFade(t *testing.T) {
	var turns sla.Turns
	for _, turn := range []int{-1, 0, 11} {
		turns.Observe(talkStart, turn, time.Second)
	}
	turns.Observe(talkStart, 1, 0)
	turns.Observe(talkStart, 1, -time.Second)
	for turn := range 12 {
		if m, n := turns.Median(talkStart, turn); m != 0 || n != 0 {
			t.Errorf("turn %d: %v of %v", turn, m, n)
		}
	}
	for range 100 {
		turns.Observe(talkStart, 1, time.Second)
	}
	if _, n := turns.Median(talkStart.Add(10*time.Minute), 1); math.Abs(n-50) > 1 {
		t.Errorf("%v of 100 after a half-life", n)
	}
	for range 100 {
		turns.Observe(talkStart.Add(10*time.Minute), 1, 2*time.Second)
	}
	if m, _ := turns.Median(talkStart.Add(10*time.Minute), 1); m < 19*time.Second/10 {
		t.Errorf("median %v, want the newer 2 s", m)
	}
}

// A median is that of the sorted times, within 5 %.
func TestTurnMedianIsAMedian(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 200 {
		var turns sla.Turns
		var all []float64
		for range 1 + rng.IntN(200) {
			v := math.Exp(rng.NormFloat64()*2 + math.Log(200)) // ms
			v = max(v, 1)
			all = append(all, v)
			turns.Observe(talkStart, 3, time.Duration(v*float64(time.Millisecond)))
		}
		slices.Sort(all)
		low, high := all[(len(all)-1)/2], all[len(all)/2]
		m, _ := turns.Median(talkStart, 3)
		if got := m.Seconds() * 1e3; got < low*0.95 || got > high*1.05 {
			t.Fatalf("median %v of %d, want %v to %v", got, len(all), low, high)
		}
	}
}
