package calibrate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// synthetic is a configuration measured on the engine itself.
func synthetic(t *testing.T, m engine.StepModel) Configuration {
	t.Helper()
	c := Configuration{Name: "synthetic", Replicas: 1}
	for _, prompt := range []int{512, 4096} {
		for _, users := range []int{2, 4, 8, 16} {
			p := Point{Users: users, Prompt: prompt, Output: 64}
			f, err := c.run(m, p, InferenceX(), 0)
			if err != nil {
				t.Fatal(err)
			}
			p.Measured = f
			c.Points = append(c.Points, p)
		}
	}
	return c
}

func TestFitFindsTheEngineAgain(t *testing.T) {
	m := known()
	m.Gamma = 0.3 // else it does not show
	fit, err := FitLoops(t.Context(), synthetic(t, m), InferenceX(), false)
	if err != nil {
		t.Fatal(err)
	}
	if fit.Fitted.Points != 4 || fit.Held.Points != 4 {
		t.Errorf("%d points fitted, %d held back, want 4 each", fit.Fitted.Points, fit.Held.Points)
	}
	if fit.Held.TTFT > 0.05 || fit.Held.TPOT > 0.03 {
		t.Errorf("held back: TTFT %.1f %%, TPOT %.1f %% off (%+v)", 100*fit.Held.TTFT, 100*fit.Held.TPOT, fit.Step)
	}
	within(t, "t0", fit.Step.T0, m.T0, 0.1)
}

func TestFitOfRequestsFindsTheEngineAgain(t *testing.T) {
	m := known()
	p := engine.Params{Step: m, KVBlocks: 4000}
	rng := rand.New(rand.NewPCG(1, 2))
	var requests []Request
	at := time.Duration(0)
	for range 120 {
		at += time.Duration(rng.ExpFloat64() * float64(200*time.Millisecond))
		requests = append(requests, Request{Arrival: at, Prompt: 50 + rng.IntN(2000), Output: 2 + rng.IntN(100)})
	}
	figures, err := Replay(p, requests)
	if err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		requests[i].Measured = figures[i]
	}
	p.Step = engine.StepModel{T0: 15 * time.Millisecond, Alpha: 80, Beta: 20, Gamma: 0.01, H: 2 * time.Millisecond}
	fit, err := FitRequests(t.Context(), "synthetic", p, [][]Request{requests}, false)
	if err != nil {
		t.Fatal(err)
	}
	if fit.Held.Points != 60 || fit.Held.TTFT > 0.10 || fit.Held.TPOT > 0.03 {
		t.Errorf("held back: %+v; %+v", fit.Held, fit.Step)
	}
	within(t, "t0", fit.Step.T0, m.T0, 0.05)
}

func TestFitStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := FitLoops(ctx, synthetic(t, known()), InferenceX(), false); err == nil {
		t.Error("a fit that was stopped gave no error")
	}
}

func TestFitNeedsPoints(t *testing.T) {
	if _, err := FitLoops(t.Context(), Configuration{Name: "c", Replicas: 1}, InferenceX(), false); err == nil {
		t.Error("fitted to nothing")
	}
	if _, err := FitRequests(t.Context(), "r", engine.Params{Step: known(), KVBlocks: 100}, [][]Request{make([]Request, 3)}, false); err == nil {
		t.Error("fitted to 3 requests")
	}
}

func dataDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("FIRSTTOKEN_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared", "data")
	}
	if _, err := os.Stat(filepath.Join(dir, "measured")); err != nil {
		t.Skipf("measured data not here (set FIRSTTOKEN_DATA): %v", err)
	}
	return dir
}

// The two per-request runs that the 8B profiles were fitted to, arrivals and
// lengths as measured.
func TestProfilesMatchMeasuredRequests(t *testing.T) {
	checks, err := CheckRuns(dataDir(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(checks) != 2 {
		t.Fatalf("%d runs, want 2", len(checks))
	}
	for _, c := range checks {
		if c.MedianError > targetRun {
			t.Errorf("%s: median error of a request's TTFT is %.1f %%, want at most 3 %%", c.Profile, 100*c.MedianError)
		}
		within(t, c.Profile+": mean TTFT", c.Simulate.Mean, c.Measured.Mean, targetRun)
		within(t, c.Profile+": P90 of TTFT", c.Simulate.P90, c.Measured.P90, targetRun)
	}
	var text strings.Builder
	if err := PrintRuns(&text, checks); err != nil || strings.Count(text.String(), " met\n") != 2 {
		t.Errorf("%v in\n%s", err, &text)
	}
}

// A sample of the published closed loops (ai-dynamo/aiconfigurator), on the
// profiles fitted to them; the last three are saturated and were not fitted.
func TestProfilesMatchMeasuredServers(t *testing.T) {
	const tp4, tp1, tp2 = "h100-llama-3.1-70b-fp8-tp4", "h200-llama-3.1-70b-fp8-tp1", "h100-llama-3.1-70b-fp8-tp2"
	for _, c := range []struct {
		profile    string
		isl, users int
		ttft, tpot float64 // ms
	}{
		{tp4, 1024, 4, 80, 11.8}, {tp4, 1024, 16, 121, 13.2}, {tp4, 8192, 4, 453, 13.3},
		{tp1, 1024, 4, 203, 21.5}, {tp1, 1024, 16, 316, 24.7}, {tp1, 8192, 8, 1660, 33.1},
		{tp2, 8192, 32, 6518, 52.4}, {tp2, 8192, 64, 59175, 52.4}, {tp1, 8192, 64, 39807, 107},
	} {
		p, _ := engine.LookupProfile(c.profile)
		f, err := ClosedLoop{Users: c.users, Prompt: c.isl, Output: 1024, Shortest: 0.8, PerUser: 10}.Run(p.Params)
		if err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("%s, %d tokens, %d users: ", c.profile, c.isl, c.users)
		within(t, what+"TTFT", f.TTFT, time.Duration(c.ttft*1e6), 0.10)
		within(t, what+"TPOT", f.TPOT, time.Duration(c.tpot*1e6), 0.05)
	}
}

// The rate at which an H100 is full was not fitted (kubernetes-sigs/inference-perf).
func TestProfileIsFullAtTheMeasuredRate(t *testing.T) {
	p, _ := engine.LookupProfile("h100-llama-3.1-8b-bf16")
	p.Params.NoPrefixCache = true
	load := OpenLoop{Rate: 183.4, Requests: 3000, InFlight: 440, Prompt: 204, Output: 62}
	_, served, err := load.Run(p.Params)
	if err != nil {
		t.Fatal(err)
	}
	if measured := 103.1; served < 0.9*measured || served > 1.1*measured {
		t.Errorf("served %.1f requests/s, measured %.1f", served, measured)
	}
}
