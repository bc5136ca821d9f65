package engine

import (
	"encoding/csv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestEveryProfileMakesAnEngine(t *testing.T) {
	all := Profiles()
	if len(all) < 18 {
		t.Errorf("%d profiles, want those of 18 calibrations at least", len(all))
	}
	for _, p := range all {
		if err := p.Check(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if p.Model == "" || p.GPU == "" || p.TP < 1 || p.Software == "" || p.Source == "" || p.Measured == "" {
			t.Errorf("%s: not fully described: %+v", p.Name, p)
		}
		if p.PricePerHour <= 0 || p.Estimated["price_per_hour"] == "" {
			t.Errorf("%s: a price must be there, and said to be an estimate", p.Name)
		}
		if got, ok := LookupProfile(strings.ToUpper(p.Name)); !ok || !reflect.DeepEqual(got, p) {
			t.Errorf("LookupProfile(%q) = %q, %v", p.Name, got.Name, ok)
		}
	}
	for _, name := range []string{"abacus", "", "../profiles/h100-llama-3.1-70b-fp8-tp4"} {
		if _, ok := LookupProfile(name); ok {
			t.Errorf("LookupProfile found %q", name)
		}
	}
}

// On an empty engine a prompt costs h, a fixed part for each step it needs and
// its own tokens.
func TestIdleTTFTIsTheCalibratedOne(t *testing.T) {
	for _, p := range Profiles() {
		for _, prompt := range []int{1, 128, 1024, 2048, 8192} {
			if prompt >= p.Params.MaxModelLen {
				continue
			}
			steps := (prompt + p.Params.MaxBatchedTokens - 1) / p.Params.MaxBatchedTokens
			m := p.Params.Step
			want := m.H + time.Duration(steps)*m.T0 + time.Duration(1000*m.Alpha*float64(prompt))
			if prompt > squareFrom {
				want += time.Duration(1000 * m.Alpha2 * float64(prompt*prompt-squareFrom*squareFrom))
			}
			s := newSim(t, p.Params)
			submit(t, s, 0, Request{PromptTokens: prompt, OutputTokens: 1})
			got := ttft(drain(s), 0)
			if d := got - want; d < -time.Microsecond || d > time.Microsecond {
				t.Errorf("%s, %d tokens: TTFT %v, want %v", p.Name, prompt, got, want)
			}
		}
	}
}

// Published means of vLLM on H100 TP4 and H200 TP1 with Llama-3.1-70B fp8
// under closed-loop load (ai-dynamo/aiconfigurator silicon_sample.csv): users
// start within milliseconds, 10 prompts each, lengths 0.8 to 1.0 of nominal, 1,024 output.
func TestClosedLoopMatchesMeasuredServers(t *testing.T) {
	for _, c := range []struct {
		profile     string
		isl, users  int
		ttft, tpot  float64 // ms
		ttftE, tpoE float64 // tolerated relative error
	}{
		{"h100-llama-3.1-70b-fp8-tp4", 1024, 4, 80, 11.8, 0.10, 0.05},
		{"h100-llama-3.1-70b-fp8-tp4", 1024, 16, 121, 13.2, 0.10, 0.05},
		{"h100-llama-3.1-70b-fp8-tp4", 8192, 4, 453, 13.3, 0.10, 0.05},
		{"h200-llama-3.1-70b-fp8-tp1", 1024, 4, 203, 21.5, 0.10, 0.05},
		{"h200-llama-3.1-70b-fp8-tp1", 1024, 16, 316, 24.7, 0.10, 0.05},
		{"h200-llama-3.1-70b-fp8-tp1", 8192, 8, 1660, 33.1, 0.10, 0.05},
	} {
		p, _ := LookupProfile(c.profile)
		ttft, tpot := closedLoop(t, p.Params, c.users, c.isl, 1024)
		if e := math.Abs(ttft/c.ttft - 1); e > c.ttftE {
			t.Errorf("%s %d tokens %d users: mean TTFT %.1f ms, measured %.1f (%.0f %% off)", c.profile, c.isl, c.users, ttft, c.ttft, 100*e)
		}
		if e := math.Abs(tpot/c.tpot - 1); e > c.tpoE {
			t.Errorf("%s %d tokens %d users: mean TPOT %.2f ms, measured %.1f (%.0f %% off)", c.profile, c.isl, c.users, tpot, c.tpot, 100*e)
		}
	}
}

// closedLoop gives mean TTFT and TPOT in ms.
func closedLoop(t *testing.T, p Params, users, isl, osl int) (ttft, tpot float64) {
	t.Helper()
	s := newSim(t, p)
	rng := rand.New(rand.NewPCG(7, 7))
	nominal := func(n int) int { return int(float64(n) * (0.8 + 0.2*rng.Float64())) }
	type call struct{ sent, first time.Duration }
	var calls []call
	send := func(now time.Duration) {
		if len(calls) == 10*users {
			return
		}
		submit(t, s, now, Request{Ref: len(calls), PromptTokens: nominal(isl), OutputTokens: nominal(osl), Quiet: true})
		calls = append(calls, call{sent: now})
	}
	for u := range users {
		send(time.Duration(u) * time.Millisecond)
	}
	for at, ok := s.NextEvent(); ok; at, ok = s.NextEvent() {
		for _, e := range slices.Clone(s.Advance(at)) {
			c := &calls[e.Ref]
			switch e.Kind {
			case FirstToken:
				c.first = e.At
				ttft += (e.At - c.sent).Seconds() * 1000
			case Finished:
				tpot += (e.At - c.first).Seconds() * 1000 / float64(e.Tokens-1)
				send(e.At)
			}
		}
	}
	n := float64(len(calls))
	return ttft / n, tpot / n
}

// The two per-request runs that the 8B profiles were fitted to, arrivals and
// lengths as measured.
func TestReplayMatchesMeasuredRequests(t *testing.T) {
	for _, c := range []struct{ profile, file string }{
		{"rtx4090-llama-3.1-8b-bf16", "vllm_requests_rtx4090_llama31-8b_tp1.csv"},
		{"rtxpro6000-llama-3.1-8b-bf16", "vllm_requests_rtxpro6000_llama31-8b_tp1.csv"},
	} {
		t.Run(c.profile, func(t *testing.T) {
			run := readRun(t, c.file)
			p, _ := LookupProfile(c.profile)
			s := newSim(t, p.Params)
			var events []Event
			for i, r := range run {
				events = append(events, s.Advance(r.arrival)...)
				submit(t, s, r.arrival, Request{Ref: i, PromptTokens: r.prompt, OutputTokens: r.output, Quiet: true, Hashes: namedBlocks(strconv.Itoa(i), r.prompt+r.output)})
			}
			events = append(events, drain(s)...)

			var errs, got, want []float64
			for i, r := range run {
				sim := (ttft(events, i) - r.arrival).Seconds()
				got, want = append(got, sim), append(want, r.ttft)
				errs = append(errs, math.Abs(sim/r.ttft-1))
			}
			t.Logf("median error %.2f %%; mean %.2f s, measured %.2f; p50 %.2f, %.2f; p90 %.2f, %.2f; preemptions %d",
				100*quantile(errs, 0.5), mean(got), mean(want), quantile(got, 0.5), quantile(want, 0.5),
				quantile(got, 0.9), quantile(want, 0.9), s.Stats().Preemptions)
			if e := quantile(errs, 0.5); e > 0.03 {
				t.Errorf("median error of a request's TTFT is %.1f %%, want at most 3 %%", 100*e)
			}
			if e := math.Abs(mean(got)/mean(want) - 1); e > 0.03 {
				t.Errorf("mean TTFT %.2f s, measured %.2f", mean(got), mean(want))
			}
			if e := math.Abs(quantile(got, 0.9)/quantile(want, 0.9) - 1); e > 0.03 {
				t.Errorf("P90 of TTFT %.2f s, measured %.2f", quantile(got, 0.9), quantile(want, 0.9))
			}
		})
	}
}

type measured struct {
	arrival        time.Duration
	prompt, output int
	ttft           float64 // seconds
}

func readRun(t *testing.T, name string) []measured {
	t.Helper()
	dir := os.Getenv("FIRSTTOKEN_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	f, err := os.Open(filepath.Join(dir, "measured", name))
	if err != nil {
		t.Skipf("measured data not here (set FIRSTTOKEN_DATA): %v", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := func(row []string, name string) float64 {
		v, err := strconv.ParseFloat(row[slices.Index(rows[0], name)], 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return v
	}
	var run []measured
	for _, row := range rows[1:] {
		run = append(run, measured{
			arrival: ms(1000*column(row, "arrival_s") + 10), // some are just below 0
			prompt:  int(column(row, "input_toks")),
			output:  int(column(row, "output_toks")),
			ttft:    column(row, "ttft_ms") / 1000,
		})
	}
	slices.SortStableFunc(run, func(a, b measured) int { return int(a.arrival - b.arrival) })
	return run
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

func quantile(v []float64, q float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[int(q*float64(len(v)-1)+0.5)]
}
