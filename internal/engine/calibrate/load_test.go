package calibrate

import (
	"math"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

func known() engine.StepModel {
	return engine.StepModel{T0: 10 * time.Millisecond, Alpha: 50, Beta: 40, Gamma: 0.03, H: 8 * time.Millisecond}
}

func within(t *testing.T, what string, got, want time.Duration, share float64) {
	t.Helper()
	if relative(got, want) > share {
		t.Errorf("%s: %v, want %v within %.0f %%", what, got, want, 100*share)
	}
}

func TestOneUserPaysNothingForOthers(t *testing.T) {
	m := known()
	m.Gamma = 0
	f, err := ClosedLoop{Users: 1, Prompt: 1000, Output: 11, Shortest: 1, PerUser: 5}.Run(engine.Params{Step: m, KVBlocks: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if want := 68 * time.Millisecond; f.TTFT != want {
		t.Errorf("TTFT %v, want h + t0 + 1000 alpha = %v", f.TTFT, want)
	}
	if want := 10040 * time.Microsecond; f.TPOT != want {
		t.Errorf("TPOT %v, want t0 + beta = %v", f.TPOT, want)
	}
}

func TestFewRoundsStandForAll(t *testing.T) {
	p := engine.Params{Step: known(), MaxBatchedTokens: 8192, KVBlocks: 40000}
	load := ClosedLoop{Users: 16, Prompt: 1024, Output: 512, Shortest: 0.8, PerUser: 10}
	all, err := load.Run(p)
	if err != nil {
		t.Fatal(err)
	}
	load.Rounds = 3
	few, err := load.Run(p)
	if err != nil {
		t.Fatal(err)
	}
	within(t, "TTFT", few.TTFT, all.TTFT, 0.08)
	within(t, "TPOT", few.TPOT, all.TPOT, 0.03)
}

func TestMoreUsersNeverFaster(t *testing.T) {
	p := engine.Params{Step: known(), MaxBatchedTokens: 8192, KVBlocks: 100000}
	last := Figures{}
	for _, users := range []int{1, 4, 16, 64} {
		f, err := ClosedLoop{Users: users, Prompt: 1024, Output: 128, Shortest: 0.8, PerUser: 4}.Run(p)
		if err != nil {
			t.Fatal(err)
		}
		if f.TTFT < last.TTFT || f.TPOT < last.TPOT {
			t.Errorf("%d users: %v, fewer users %v", users, f, last)
		}
		last = f
	}
}

func TestOpenLoop(t *testing.T) {
	m := engine.StepModel{T0: 10 * time.Millisecond}
	p := engine.Params{Step: m, MaxSeqs: 8, KVBlocks: 1000}
	load := OpenLoop{Rate: 10, Requests: 500, InFlight: 20, Prompt: 32, Output: 10}
	f, served, err := load.Run(p)
	if err != nil {
		t.Fatal(err)
	}
	if served < 8.5 || served > 11.5 || f.TTFT < 10*time.Millisecond || f.TTFT > 30*time.Millisecond {
		t.Errorf("at 10 requests/s: served %.1f, TTFT %v", served, f.TTFT)
	}
	// 8 at a time, 10 steps of 10 ms each: 80 requests/s.
	load.Rate = 500
	f, served, err = load.Run(p)
	if err != nil {
		t.Fatal(err)
	}
	if served < 75 || served > 81 {
		t.Errorf("past its knee: served %.1f, want about 80", served)
	}
	// The client holds back all but 20: 12 wait for 8 places.
	within(t, "TTFT past the knee", f.TTFT, 150*time.Millisecond, 0.15)
}

func TestSharedPrefixIsCached(t *testing.T) {
	p := engine.Params{Step: engine.StepModel{T0: time.Millisecond, Alpha: 100}, KVBlocks: 1000}
	load := OpenLoop{Rate: 1, Requests: 50, InFlight: 20, Prompt: 200, Output: 2}
	plain, _, err := load.Run(p)
	if err != nil {
		t.Fatal(err)
	}
	load.Shared = 128
	shared, _, err := load.Run(p)
	if err != nil {
		t.Fatal(err)
	}
	saved := (plain.TTFT - shared.TTFT).Seconds() * 1000
	if want := 12.8 * 49 / 50; math.Abs(saved-want) > 0.2 {
		t.Errorf("the prefix saves %.2f ms, want %.2f", saved, want)
	}
}

func TestReplayTellsEachRequest(t *testing.T) {
	m := known()
	m.Gamma = 0
	p := engine.Params{Step: m, KVBlocks: 1000}
	figures, err := Replay(p, []Request{{Prompt: 1000, Output: 3}, {Arrival: time.Minute, Prompt: 100, Output: 1}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Figures{{TTFT: 68 * time.Millisecond, TPOT: 10040 * time.Microsecond}, {TTFT: 23 * time.Millisecond}}
	if figures[0] != want[0] || figures[1] != want[1] {
		t.Errorf("got %v, want %v", figures, want)
	}
	if _, err := Replay(p, []Request{{Prompt: 1 << 20, Output: 1}}); err == nil {
		t.Error("a prompt beyond the cache was accepted")
	}
}
