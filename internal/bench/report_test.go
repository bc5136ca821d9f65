package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// served is a streamed answer with a first token, so many gaps, and its end.
func served(i int, at, ttft, gap time.Duration, gaps int) Result {
	r := Result{Index: i, Model: "m", At: at, Concurrency: 1, Streamed: true, Prompt: 10, Output: gaps + 1, Counted: true, Outcome: OK, Status: 200, Finish: "stop"}
	for k := range gaps + 1 {
		r.Tokens = append(r.Tokens, ttft+time.Duration(k)*gap)
	}
	r.E2E = r.Tokens[gaps]
	return r
}

// steadyRun sends ten requests a second, with noise.
func steadyRun(n int, ttft time.Duration, seed uint64) *Run {
	rng := rand.New(rand.NewPCG(seed, 0))
	run := &Run{Plan: Plan{Target: "http://target", Rate: 10, Law: "constant", Models: []string{"m"}}, Started: time.Unix(1e9, 0)}
	for i := range n {
		noise := func(d time.Duration) time.Duration { return time.Duration(float64(d) * (0.8 + 0.4*rng.Float64())) }
		run.Results = append(run.Results, served(i, time.Duration(i)*100*tick, noise(ttft), noise(20*tick), 10))
	}
	return run
}

func TestITLWeighsTokensAndTPOTRequests(t *testing.T) {
	run := &Run{Results: []Result{
		served(0, 0, 100*tick, 10*tick, 30),
		served(1, 0, 100*tick, 40*tick, 10),
	}}
	f := Summarise(run, Environment{}).All
	if f.ITL.Count != 40 || f.ITL.Mean != 17.5 || f.TPOT.Count != 2 || f.TPOT.Mean != 25 {
		t.Errorf("ITL %+v, TPOT %+v", f.ITL, f.TPOT)
	}
}

func TestTokensByUsageAndByChunks(t *testing.T) {
	usage := `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":4}}}`
	token := fakellm.Event(`{"choices":[{"index":0,"delta":{"content":"two words"},"finish_reason":null}]}`)
	end := fakellm.Event(`{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`)
	wait := fakellm.Wait(70 * tick)
	backend := reply(
		fakellm.Script{wait, token, wait, token, end, fakellm.Event(usage), fakellm.Done()},
		fakellm.Script{wait, token, wait, token, end, fakellm.Done()},
	)
	against(t, backend, Plan{Concurrency: 1, Requests: 2}, good(func(t *testing.T, run *Run) {
		a, b := &run.Results[0], &run.Results[1]
		if a.Output != 8 || a.Prompt != 9 || a.Cached != 4 || !a.Counted || a.TPOT() != 10*tick {
			t.Errorf("%+v", a)
		}
		if b.Output != 2 || b.Counted || b.TPOT() != 70*tick || b.Finish != "length" {
			t.Errorf("%+v", b)
		}
		notes := strings.Join(Summarise(run, Environment{}).Notes, "\n")
		if !strings.Contains(notes, "answers without usage: 1") || !strings.Contains(notes, "answers in fewer chunks than tokens: 1") {
			t.Errorf("notes %s", notes)
		}
	}))
}

func TestARunTheTargetRemembers(t *testing.T) {
	run := steadyRun(20, 100*tick, 1)
	for i := range run.Results {
		run.Results[i].Cached = 8
	}
	notes := func() string { return strings.Join(Summarise(run, Environment{}).Notes, "\n") }
	if !strings.Contains(notes(), "another --seed") {
		t.Errorf("notes %q", notes())
	}
	if run.Plan.Workload = "code-completion"; strings.Contains(notes(), "another --seed") {
		t.Errorf("a workload shares text: %q", notes())
	}
}

func TestObjective(t *testing.T) {
	backend := reply(fakellm.Tokens(3, 100*tick, 20*tick), fakellm.Tokens(3, 200*tick, 20*tick), fakellm.Tokens(3, 100*tick, 60*tick), fakellm.Status(429, nil, ""))
	plan := Plan{Concurrency: 1, Requests: 4, Objective: "ttft=150ms,tpot=50ms"}
	against(t, backend, plan, good(func(t *testing.T, run *Run) {
		f := Summarise(run, Environment{}).All
		if f.Met != .25 || !near(f.Goodput, 1/.6) || f.Refused != 1 || f.Served != 3 {
			t.Errorf("%+v", f)
		}
	}))
}

// Windows hold all that the whole holds.
func TestWindowsAddUp(t *testing.T) {
	run := steadyRun(57, 900*tick, 1)
	run.Results[7].Outcome, run.Results[9].Outcome = TimedOut, Refused429
	for i := range run.Results {
		run.Results[i].Model = []string{"a", "b"}[i%2]
	}
	r := Summarise(run, Environment{})
	for _, want := range append([]Figures{r.All}, r.ByModel...) {
		var got Figures
		tokens, busy := 0.0, 0.0
		for _, w := range r.Windows {
			if w.Model != want.Model {
				continue
			}
			got.Requests, got.Served, got.Failed = got.Requests+w.Sent, got.Served+w.Served, got.Failed+w.Failed
			got.TTFT.Count, got.ITL.Count = got.TTFT.Count+w.TTFT.Count, got.ITL.Count+w.ITL.Count
			tokens, busy = tokens+w.OutputTokens, busy+w.InFlight
		}
		if got.Requests != want.Requests || got.Served != want.Served || got.Failed != want.Failed+want.Refused ||
			got.TTFT.Count != want.TTFT.Count || got.ITL.Count != want.ITL.Count || !near(tokens, float64(want.OutputTokens)) || !near(busy, want.InFlight*r.Seconds) {
			t.Errorf("model %q: windows hold %+v, %v tokens, %v s; want %+v", want.Model, got, tokens, busy, want)
		}
	}
}

func TestWindowOfEachEvent(t *testing.T) {
	run := &Run{Results: []Result{served(0, 500*tick, 700*tick, 400*tick, 3)}} // tokens at 1.2, 1.6, 2.0, 2.4 s
	w := Summarise(run, Environment{}).Windows
	if len(w) != 3 || w[0].Sent != 1 || w[0].OutputTokens != 0 || w[1].TTFT.Count != 1 || w[1].OutputTokens != 2 || w[1].ITL.Count != 1 ||
		w[2].ITL.Count != 2 || w[2].E2E.Mean != 1900 || w[2].Served != 1 || !near(w[0].InFlight, .5) || w[1].InFlight != 1 || !near(w[2].InFlight, .4) {
		t.Errorf("%+v", w)
	}
}

func TestJSONRoundTrip(t *testing.T) {
	r := Summarise(steadyRun(100, 100*tick, 1), Environment{Gateway: "v1", Backends: []Backend{{Name: "a", GPU: "H100"}}, CPUs: 2})
	r.CompareWith(r, "itself")
	var first, second bytes.Buffer
	if err := r.WriteJSON(&first); err != nil {
		t.Fatal(err)
	}
	text := first.String()
	read, err := Read(&first)
	if err != nil {
		t.Fatal(err)
	}
	if err := read.WriteJSON(&second); err != nil || second.String() != text {
		t.Errorf("%v\n%s\n%s", err, text, &second)
	}
}

func TestAReportOfNothing(t *testing.T) {
	run := &Run{Results: []Result{{Model: "m", Outcome: Refused429, Error: "busy"}}}
	for _, r := range []*Report{Summarise(&Run{}, Environment{}), Summarise(run, Environment{})} {
		r.CompareWith(r, "itself")
		var out bytes.Buffer
		if err := r.WriteTable(&out); err != nil || strings.Contains(out.String(), "NaN") {
			t.Errorf("%v %s", err, &out)
		}
		if err := r.WriteJSON(&out); err != nil {
			t.Error(err)
		}
		if err := r.WriteHTML(&out, run); err != nil {
			t.Error(err)
		}
	}
}

func TestFilesThatAreNoReport(t *testing.T) {
	for text, want := range map[string]string{"": "is no report", "[]": "is no report", `{"format":"x/2"}`: `has format "x/2"`} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestCompare(t *testing.T) {
	old := Summarise(steadyRun(400, 100*tick, 1), Environment{})
	same := Summarise(steadyRun(400, 100*tick, 2), Environment{})
	slower := Summarise(steadyRun(400, 150*tick, 3), Environment{})
	same.CompareWith(old, "old.json")
	slower.CompareWith(old, "old.json")
	if len(same.Comparison.Warnings) != 0 || same.Comparison.Unit != "1-s windows" {
		t.Errorf("%+v", same.Comparison)
	}
	of := func(r *Report, figure string) Ratio {
		for _, x := range r.Comparison.Ratios {
			if x.Figure == figure {
				return x
			}
		}
		t.Errorf("no ratio of %s", figure)
		return Ratio{}
	}
	for _, figure := range []string{"TTFT mean", "TTFT p50", "TTFT p95", "TTFT p99", "TPOT mean", "E2E p95", "ITL mean", "output tokens/s", "requests/s"} {
		x := of(same, figure)
		if !(x.Low <= x.Ratio+.02 && x.Ratio <= x.High+.02 && x.Ratio > .9 && x.Ratio < 1.1) {
			t.Errorf("%+v", x)
		}
	}
	if x := of(same, "TTFT mean"); x.Sure() {
		t.Errorf("two runs of the same differ: %+v", x)
	}
	if x := of(slower, "TTFT mean"); !x.Sure() || x.Low < 1.4 || x.High > 1.6 || x.Old != old.All.TTFT.Mean || x.New != slower.All.TTFT.Mean {
		t.Errorf("%+v", x)
	}
	slower.CompareWith(old, "old.json")
	again := Summarise(steadyRun(400, 150*tick, 3), Environment{})
	again.CompareWith(old, "old.json")
	if fmt.Sprint(again.Comparison) != fmt.Sprint(slower.Comparison) {
		t.Error("the intervals of the same runs differ")
	}
}

// Requests that queue together are no independent samples: windows drawn whole
// must give a wider interval than requests.
func TestWindowsAreDrawnWhole(t *testing.T) {
	run := steadyRun(400, 100*tick, 1)
	for i := range run.Results { // every other second is slow
		if i/10%2 == 0 {
			at := run.Results[i].At
			run.Results[i] = served(i, at, 500*tick, 20*tick, 10)
		}
	}
	c := Summarise(run, Environment{}).Requests
	width := func(b blocks) float64 {
		d := b.sorted(c.TTFT)
		r := ratios("", d, d, Summarise(run, Environment{}).All.TTFT, Summarise(run, Environment{}).All.TTFT)[0]
		return r.High - r.Low
	}
	if w, q := width(blocksBySecond(&c)), width(blocksByRequest(&c)); w < 2*q {
		t.Errorf("interval over windows %v wide, over requests %v", w, q)
	}
}

func TestShortRunsAreComparedByRequest(t *testing.T) {
	r := Summarise(steadyRun(20, 100*tick, 1), Environment{})
	r.CompareWith(r, "itself")
	if c := r.Comparison; c.Unit != "requests" || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "too short") {
		t.Errorf("%+v", c)
	}
}

func TestDifferencesAreNamed(t *testing.T) {
	before, after := steadyRun(200, 100*tick, 1), steadyRun(200, 100*tick, 1)
	after.Plan.Rate, after.Plan.Models, after.Plan.Seed = 20, []string{"m", "n"}, 7
	old := Summarise(before, Environment{CPUs: 2, Backends: []Backend{{Name: "a", GPU: "L40S", CUDA: "12.4"}, {Name: "b"}}})
	now := Summarise(after, Environment{CPUs: 8, Gateway: "v2", Backends: []Backend{{Name: "a", GPU: "H100", CUDA: "12.4", Quantization: "fp8"}}})
	now.CompareWith(old, "old.json")
	got := strings.Join(now.Comparison.Warnings, "\n")
	want := `environment.backends[a].gpu: "L40S", now "H100"
environment.backends[a].quantization: not given, now "fp8"
environment.backends[b].backend: "b", now not given
environment.client_cpus: 2, now 8
environment.gateway: not given, now "v2"
plan.models: ["m"], now ["m","n"]
plan.rate: 10, now 20`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	var table bytes.Buffer
	if err := now.WriteTable(&table); err != nil || !strings.Contains(table.String(), `warning: environment.backends[a].gpu: "L40S", now "H100"`) {
		t.Errorf("%v %s", err, &table)
	}
}

func TestOtherCachesAreNamed(t *testing.T) {
	cachedRun := func(share float64) *Report {
		r := Summarise(steadyRun(200, 100*tick, 1), Environment{})
		r.All.CachedTokens = int(share * float64(r.All.PromptTokens))
		return r
	}
	for _, c := range []struct {
		old, now *Report
		want     string
	}{
		{cachedRun(.2), cachedRun(.6), "prompt tokens cached: 20.0 %, now 60.0 %"},
		{cachedRun(.6), cachedRun(0), "prompt tokens cached: 60.0 %, now 0.0 %"},
		{cachedRun(.2), cachedRun(.251), "20.0 %, now 25.1 %"},
		{cachedRun(.2), cachedRun(.249), ""},
		{Summarise(&Run{Plan: cachedRun(0).Plan}, Environment{}), cachedRun(1), ""}, // nothing was served
	} {
		c.now.CompareWith(c.old, "old.json")
		got := strings.Join(c.now.Comparison.Warnings, "\n")
		if c.want == "" && strings.Contains(got, "cached") || !strings.Contains(got, c.want) {
			t.Errorf("warnings %q, want %q", got, c.want)
		}
	}
}

// Without an objective nothing is met.
func TestMetNeedsAnObjective(t *testing.T) {
	for objective, want := range map[string]string{"": "–", "ttft=1s": "100.0%"} {
		run := steadyRun(20, 100*tick, 1)
		run.Plan.Objective = objective
		var out bytes.Buffer
		if err := Summarise(run, Environment{}).WriteTable(&out); err != nil {
			t.Fatal(err)
		}
		if got := lastCell(&out, "met"); got != want {
			t.Errorf("objective %q: met %q, want %q", objective, got, want)
		}
	}
}

// lastCell is the last one of the line after that which ends in the title.
func lastCell(table *bytes.Buffer, title string) string {
	_, rest, _ := strings.Cut(table.String(), " "+title+"\n")
	line, _, _ := strings.Cut(rest, "\n")
	cells := strings.Fields(line)
	return cells[len(cells)-1]
}

func TestCSV(t *testing.T) {
	run := steadyRun(3, 100*tick, 1)
	run.Results[1] = served(1, 100*tick, 100*tick, 20*tick, 10)
	run.Results[2].Outcome, run.Results[2].Error = Broken, "a \"quoted\", message"
	var out bytes.Buffer
	if err := run.WriteCSV(&out); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(rows) != 4 {
		t.Fatalf("%v %v", rows, err)
	}
	cell := func(row int, name string) string {
		for i, n := range rows[0] {
			if n == name {
				return rows[row][i]
			}
		}
		t.Fatalf("no column %s", name)
		return ""
	}
	for name, want := range map[string]string{"request": "1", "model": "m", "arrival_s": "0.100000", "prompt_tokens": "10", "output_tokens": "11",
		"ttft_ms": "100.000", "tpot_ms": "20.000", "itl_mean_ms": "20.000", "e2e_ms": "300.000", "concurrency": "1", "outcome": "ok", "late_ms": ""} {
		if got := cell(2, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if cell(3, "outcome") != "broken_stream" || cell(3, "error") != run.Results[2].Error {
		t.Errorf("%v", rows[3])
	}
	out.Reset()
	if err := Summarise(run, Environment{}).WriteWindows(&out); err != nil {
		t.Fatal(err)
	}
	rows, err = csv.NewReader(&out).ReadAll()
	if err != nil || len(rows) != 2 || cell(1, "sent") != "3" || cell(1, "served") != "2" || cell(1, "ttft_p50_ms") == "" {
		t.Errorf("%v %v", rows, err)
	}
}

func TestEnvironmentOfTheGateway(t *testing.T) {
	var e Environment
	err := e.read([]byte(`# TYPE firsttoken_build_info gauge
firsttoken_build_info{version="v1.2"} 1
# TYPE firsttoken_backend_info gauge
firsttoken_backend_info{backend="b",engine="vllm",gpu="H100",cuda="12.8",quantization="fp8",topology="tp1"} 1
firsttoken_backend_info{backend="a",engine="sglang",gpu="",cuda="",quantization="",topology=""} 1
`))
	if err != nil || e.Gateway != "v1.2" || fmt.Sprint(e.Backends) != "[{a sglang    } {b vllm H100 12.8 fp8 tp1}]" {
		t.Errorf("%+v, %v", e, err)
	}
	for _, text := range []string{"", "up 1\n", "<html>"} {
		if err := e.read([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestEnvironmentIsReadFromTelemetry(t *testing.T) {
	backend := reply(fakellm.Tokens(1, tick, 0))
	backend.Metrics = func(*fakellm.Request) fakellm.Script {
		return fakellm.Status(200, nil, "firsttoken_build_info{version=\"v3\"} 1\n")
	}
	inBubble(t, backend, transportTest(func(t *testing.T, b *Bench) {
		env, err := b.Environment(t.Context(), "v4", "http://target/")
		if err != nil || env.Gateway != "v3" || env.Client != "v4" || env.CPUs < 1 || !strings.HasPrefix(env.Go, "go") {
			t.Errorf("%+v, %v", env, err)
		}
		if got := backend.Probes()[0].Header.Get("Authorization"); got != "" {
			t.Errorf("the target's key %q went to the telemetry listener", got)
		}
		if _, err := b.Environment(t.Context(), "v4", "http://other"); err == nil || !strings.Contains(err.Error(), "--telemetry: read http://other/metrics") {
			t.Errorf("error %v", err)
		}
	}))
}

func TestSparksStayWithinTheirLine(t *testing.T) {
	for _, n := range []int{40, 600, 3000} {
		var out bytes.Buffer
		if err := Summarise(steadyRun(n, 100*tick, 1), Environment{}).WriteTable(&out); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), "█"); got == 0 || got > 4*sparks {
			t.Errorf("%s requests: %d full blocks", strconv.Itoa(n), got)
		}
	}
}

// The report is plain data: no figure that JSON cannot hold.
func TestNoFigureIsNaN(t *testing.T) {
	for n := range 4 {
		r := Summarise(steadyRun(n, 100*tick, 1), Environment{})
		r.CompareWith(Summarise(steadyRun(300, 100*tick, 1), Environment{}), "old")
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("%d requests: %v", n, err)
		}
	}
}
