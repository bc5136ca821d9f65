package fakellm_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// outcomes plays n requests against a chaos backend, one by one.
func outcomes(t *testing.T, chaos fakellm.Chaos, n int) (statuses []int, times []time.Duration) {
	inBubble(t, &fakellm.Backend{Script: chaos.Script}, func(t *testing.T, c client) {
		for range n {
			start := time.Now()
			statuses = append(statuses, c.post(t.Context(), "/v1/chat/completions", stream).status)
			times = append(times, time.Since(start))
		}
	})
	return statuses, times
}

func TestChaosIsItsSeed(t *testing.T) {
	chaos := fakellm.Chaos{
		Seed: 1, Tokens: 4,
		TTFT:   fakellm.Latency{P50: 200 * ms, P99: 2 * time.Second},
		Gap:    fakellm.Latency{P50: 20 * ms, P99: 100 * ms},
		Faults: []fakellm.Fault{{0.2, fakellm.Status(500, nil, "")}, {0.1, fakellm.Script{fakellm.Reset()}}},
	}
	statuses, times := outcomes(t, chaos, 50)
	again, timesAgain := outcomes(t, chaos, 50)
	if !reflect.DeepEqual(statuses, again) || !reflect.DeepEqual(times, timesAgain) {
		t.Error("the same seed gave other outcomes")
	}
	chaos.Seed = 2
	if _, other := outcomes(t, chaos, 50); reflect.DeepEqual(times, other) {
		t.Error("another seed gave the same outcomes")
	}
}

func TestChaosFaultShares(t *testing.T) {
	const n = 2000
	statuses, _ := outcomes(t, fakellm.Chaos{Seed: 7, Faults: []fakellm.Fault{
		{0.2, fakellm.Status(500, nil, "")},
		{0.1, fakellm.Status(429, nil, "")},
	}}, n)
	count := map[int]int{}
	for _, s := range statuses {
		count[s]++
	}
	for status, share := range map[int]float64{500: 0.2, 429: 0.1, 200: 0.7} {
		if got := float64(count[status]) / n; math.Abs(got-share) > 0.03 {
			t.Errorf("status %d: share %.3f, want %.2f", status, got, share)
		}
	}
}

func TestLatencyHasItsQuantiles(t *testing.T) {
	const n = 50_000
	l := fakellm.Latency{P50: 100 * ms, P99: time.Second}
	rng := rand.New(rand.NewPCG(1, 2))
	draws := make([]time.Duration, n)
	for i := range draws {
		draws[i] = l.Draw(rng)
	}
	slices.Sort(draws)
	for q, want := range map[float64]time.Duration{0.5: l.P50, 0.99: l.P99} {
		if got := draws[int(q*n)]; math.Abs(float64(got)/float64(want)-1) > 0.05 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	if got := (fakellm.Latency{P50: ms}).Draw(rng); got != ms {
		t.Errorf("constant latency drew %v", got)
	}
}
