package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
)

const ms = time.Millisecond

var update = flag.Bool("update", false, "rewrite testdata/table.txt")

// served is a request that was.
func served(at, ttft, tpot, e2e time.Duration) report.Sample {
	return report.Sample{At: at, Reason: report.OK, Engine: "a", Busy: -1, TTFT: ttft, TPOT: tpot, E2E: e2e}
}

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*max(1, math.Abs(want)) }

// Values as NumPy's percentile gives them.
func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sorted  []float64
		q, want float64
	}{
		{[]float64{7}, 0, 7},
		{[]float64{7}, 0.5, 7},
		{[]float64{7}, 1, 7},
		{[]float64{1, 2}, 0.5, 1.5},
		{[]float64{1, 2, 3, 4}, 0.25, 1.75},
		{[]float64{1, 2, 3, 4}, 0.95, 3.85},
		{[]float64{1, 2, 3, 4}, 1, 4},
		{[]float64{3, 6, 7, 8, 8, 10, 13, 15, 16, 20}, 0.9, 16.4},
		{[]float64{3, 6, 7, 8, 8, 10, 13, 15, 16, 20}, 0.99, 19.64},
		{[]float64{5, 5, 5}, 0.37, 5},
	} {
		if got := report.Quantile(c.sorted, c.q); !near(got, c.want) {
			t.Errorf("%g of %v is %v, want %v", c.q, c.sorted, got, c.want)
		}
	}
	if q := report.Quantile(nil, 0.5); !math.IsNaN(q) {
		t.Errorf("a quantile of nothing is %v", q)
	}
}

// Quantiles are values in the order of q, whatever the values.
func TestQuantileLaws(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		values := make([]float64, 1+rng.IntN(40))
		for i := range values {
			values[i] = math.Exp(5 * rng.NormFloat64())
		}
		slices.Sort(values)
		last := values[0]
		for q := 0.0; q <= 1; q += 0.01 {
			v := report.Quantile(values, q)
			if v < last-1e-12*last || v > values[len(values)-1] {
				t.Fatalf("%g of %v is %v after %v", q, values, v, last)
			}
			last = v
		}
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	got := report.Describe([]float64{2, 4, 4, 4, 5, 5, 7, 9})
	want := report.Spread{Count: 8, Mean: 5, StdDev: math.Sqrt(32.0 / 7), P50: 4.5, P90: 7.6, P95: 8.3, P99: 8.86, Max: 9}
	for _, p := range []struct{ got, want float64 }{
		{got.Mean, want.Mean}, {got.StdDev, want.StdDev}, {got.P50, want.P50}, {got.P90, want.P90}, {got.P95, want.P95}, {got.P99, want.P99}, {got.Max, want.Max},
	} {
		if !near(p.got, p.want) || got.Count != 8 {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if got := report.Describe(nil); got != (report.Spread{}) {
		t.Errorf("of nothing: %+v", got)
	}
	if got, want := report.Describe([]float64{3}), (report.Spread{Count: 1, Mean: 3, P50: 3, P90: 3, P95: 3, P99: 3, Max: 3}); got != want {
		t.Errorf("of one: %+v", got)
	}
}

func TestSummarise(t *testing.T) {
	t.Parallel()
	goal := report.Objective{TTFT: 100 * ms, TPOT: 20 * ms}
	a, b, c := served(2*time.Second, 50*ms, 10*ms, 500*ms), served(3*time.Second, 150*ms, 30*ms, 2*time.Second), served(4*time.Second, 100*ms, 20*ms, time.Second)
	one := served(5*time.Second, 60*ms, 0, 60*ms) // a single token: no TPOT
	one.Engine = "b"
	refused := report.Sample{At: 6 * time.Second, Reason: report.Refused, Busy: -1}
	long := report.Sample{At: 6 * time.Second, Reason: report.TooLong, E2E: ms, Busy: 3}
	unknown := report.Sample{At: 6 * time.Second, Reason: report.UnknownModel, Busy: -1}
	lost := report.Sample{At: 6 * time.Second, Reason: report.Lost, TTFT: 7 * ms, E2E: 4 * time.Second, Busy: 3}
	open := report.Sample{At: 6 * time.Second, Reason: report.Unfinished, E2E: 90 * time.Second}
	samples := []report.Sample{a, b, c, one, refused, long, unknown, lost, open}
	for i := range samples {
		samples[i].Objective = goal
	}
	engines := []report.EngineUse{{Name: "a", Share: 0.75}, {Name: "b", Share: 0.25}}
	r := report.Summarise("p", samples, engines)
	switch g := r.All; {
	case r.Name != "p" || r.Seconds != 8 || r.Unfinished != 1 || len(r.Engines) != 2:
		t.Errorf("run %+v", r)
	case g.Requests != 8 || g.Refused != 3 || g.Failed != 1:
		t.Errorf("%d requests, %d refused, %d failed", g.Requests, g.Refused, g.Failed)
	case g.TTFT.Count != 4 || !near(g.TTFT.Mean, 90) || g.TTFT.Max != 150:
		t.Errorf("TTFT %+v", g.TTFT)
	case g.TPOT.Count != 3 || !near(g.TPOT.Mean, 20):
		t.Errorf("TPOT %+v", g.TPOT)
	case g.E2E.Count != 4 || !near(g.E2E.Mean, 890):
		t.Errorf("E2E %+v", g.E2E)
	case !near(g.Met, 3.0/8) || !near(r.Goodput, 3.0/8):
		t.Errorf("met %v, goodput %v", g.Met, r.Goodput)
	}
	if want := map[string]int{"ok": 4, "refused": 1, "too_long": 1, "unknown_model": 1, "lost": 1, "unfinished": 1}; !reflect.DeepEqual(r.Reasons, want) {
		t.Errorf("reasons %v", r.Reasons)
	}
	if !slices.Equal(r.TTFTs, []float64{50, 60, 100, 150}) {
		t.Errorf("TTFTs %v", r.TTFTs)
	}
}

// Curves hold every arrival, and all the time that requests were in flight.
func TestCurves(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		var samples []report.Sample
		busy, horizon := 0.0, time.Duration(1+rng.IntN(2000))*time.Second
		for range 1 + rng.IntN(100) {
			s := served(time.Duration(rng.Int64N(int64(horizon))), ms, ms, time.Duration(rng.Int64N(int64(20*time.Second))))
			samples = append(samples, s)
			busy += s.E2E.Seconds()
		}
		r := report.Summarise("", samples, nil)
		width := max(1, (time.Duration(r.Seconds*1e9)/300 + 1).Seconds())
		arrivals, inFlight := 0.0, 0.0
		for _, p := range r.Arrivals {
			arrivals += p.Y * width
		}
		for _, p := range r.InFlight {
			inFlight += p.Y * width
		}
		if math.Abs(arrivals-float64(len(samples))) > 1e-3 || math.Abs(inFlight-busy) > 1e-3*busy || len(r.Arrivals) > 301 {
			t.Fatalf("%d requests with %v s: the curves have %v and %v in %d slices", len(samples), busy, arrivals, inFlight, len(r.Arrivals))
		}
	}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	var samples []report.Sample
	for i, n := range []int{9, 1, 40, 12, 0, 10, 2, 31, 32, 7, 8} {
		s := served(time.Duration(i)*time.Second, time.Duration(n+1)*ms, ms, time.Second)
		s.Turn, s.Busy, s.Model = n, n, []string{"x", "y"}[n%2]
		samples = append(samples, s)
	}
	unsent := report.Sample{Reason: report.Refused, Busy: -1, Model: "x"}
	samples = append(samples, unsent)
	r := report.Summarise("p", samples, nil)
	names := func(gs []report.Group) (out []string) {
		for _, g := range gs {
			out = append(out, g.Name)
		}
		return out
	}
	for _, c := range []struct {
		groups []report.Group
		names  string
		counts []int
	}{
		{r.ByModel, "x,y", []int{8, 4}},
		{r.ByTurn, "turn 1,turn 2,turn 7,turn 8,turn 9,turn 10+", []int{1, 1, 1, 1, 1, 5}},
		{r.ByRegime, "in flight 0,in flight 1-7,in flight 8-31,in flight 32+", []int{1, 3, 5, 2}},
	} {
		if got := strings.Join(names(c.groups), ","); got != c.names {
			t.Errorf("groups %s, want %s", got, c.names)
			continue
		}
		for i, n := range c.counts {
			if c.groups[i].Requests != n {
				t.Errorf("%s: %d requests, want %d", c.groups[i].Name, c.groups[i].Requests, n)
			}
		}
	}
	if g := r.ByModel[0]; g.Refused != 1 || g.TTFT.Count != 7 {
		t.Errorf("model x: %+v", g)
	}
	if one := report.Summarise("p", samples[:1], nil); one.ByModel != nil || one.ByTurn != nil || one.ByRegime != nil {
		t.Errorf("a single group says nothing new: %+v", one)
	}
}

// reports are odd ones.
func reports() map[string]*report.Report {
	rng := rand.New(rand.NewPCG(5, 6))
	full := func(name string, n int) report.Run {
		var samples []report.Sample
		for i := range n {
			s := served(time.Duration(i)*500*ms, time.Duration(20+rng.IntN(400))*ms, time.Duration(10+rng.IntN(20))*ms, time.Duration(500+rng.IntN(5000))*ms)
			s.Turn, s.Busy, s.Model = 1+i%12, i%40, []string{"m", "n"}[i%2]
			s.Objective = report.Objective{TTFT: 300 * ms}
			if i%17 == 0 {
				s.Reason, s.TTFT, s.TPOT = report.Lost, 0, 0
			}
			samples = append(samples, s)
		}
		return report.Summarise(name, samples, []report.EngineUse{{Name: "a", Share: 0.7, Utilisation: 0.9, CacheHits: 0.2, Preemptions: 3}, {Name: "b", Share: 0.3}})
	}
	a, b := full("round-robin", 120), full("least-inflight", 120)
	many := &report.Report{Title: "many"}
	for i := range 40 {
		many.Runs = append(many.Runs, full(strings.Repeat("long ", i), 5))
		for k := range 40 {
			many.Runs[i].Engines = append(many.Runs[i].Engines, report.EngineUse{Name: strings.Repeat("e", k), Share: 0.02})
		}
	}
	nothing := report.Summarise("nothing served", []report.Sample{{Reason: report.Refused, Busy: -1}, {At: time.Second, Reason: report.Refused, Busy: -1}}, []report.EngineUse{{Name: "a"}})
	return map[string]*report.Report{
		"full": {
			Title: "chats on fleet four", Objective: "ttft=300ms", Notes: []string{"1 gateway", "4 engines"}, Runs: []report.Run{a, b},
			Differences: []report.Difference{{Name: "least-inflight", Metric: "TTFT mean", Ratio: 0.8, Low: 0.7, High: 0.9, Seeds: 6}, {Name: "least-inflight", Metric: "goodput", Ratio: 1, Low: 0.9, High: 1.2, Seeds: 6}, {Name: "least-inflight", Metric: "E2E mean", Ratio: 0.5, Low: 0.5, High: 0.5, Seeds: 2}},
		},
		"goodput":        {Title: "highest rate", Goodput: []report.Goodput{{Name: "random", Multiplier: 2.125, Requests: 11.5, Met: 0.951}, {Name: "p2c"}}},
		"empty":          {},
		"no requests":    {Title: "none", Runs: []report.Run{report.Summarise("p", nil, nil), report.Summarise("q", nil, nil)}},
		"stopped":        {Title: "stopped", Partial: true, Runs: []report.Run{report.Summarise("p", []report.Sample{{Reason: report.Unfinished, E2E: time.Second}}, nil)}},
		"one request":    {Title: "one", Runs: []report.Run{full("p", 2), report.Summarise("q", []report.Sample{served(0, ms, 0, ms)}, nil)}},
		"nothing served": {Title: "refused", Runs: []report.Run{nothing}},
		"no time passes": {Title: "at once", Runs: []report.Run{report.Summarise("p", []report.Sample{served(0, 0, 0, 0), served(0, 0, 0, 0)}, nil)}},
		"odd names": {
			Title: `<script>"&'`, Notes: []string{"</pre><b>"}, Objective: "<i>",
			Runs: []report.Run{report.Summarise(`"><script>alert(1)</script>`, []report.Sample{served(0, ms, ms, ms), served(time.Second, 9*ms, ms, time.Second)}, []report.EngineUse{{Name: `</title><img src=x onerror=y>`, Share: 1}})},
		},
		"many": many,
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	all := reports()
	var got bytes.Buffer
	for _, name := range []string{"full", "goodput", "nothing served", "stopped"} {
		if err := all[name].WriteTable(&got); err != nil {
			t.Fatal(err)
		}
		got.WriteString("----\n")
	}
	file := filepath.Join("testdata", "table.txt")
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("not as in %s; if it is meant: go test -run Table -update\n%s", file, &got)
	}
}

// No output holds what is no number, in no case.
func TestNumbersAreNumbers(t *testing.T) {
	t.Parallel()
	for name, r := range reports() {
		var text, page bytes.Buffer
		encoded, err := json.Marshal(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.WriteTable(&text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.WriteHTML(&page); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, out := range []string{string(encoded), text.String(), page.String()} {
			if strings.Contains(out, "NaN") || strings.Contains(out, "Inf") || strings.Contains(out, "%!") {
				t.Errorf("%s: not a number in\n%s", name, out)
			}
		}
	}
}

// What is written as JSON reads back, but for what plots are made of.
func TestJSONRoundTrip(t *testing.T) {
	t.Parallel()
	for name, r := range reports() {
		first, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back report.Report
		if err := json.Unmarshal(first, &back); err != nil {
			t.Fatal(err)
		}
		want := *r
		want.Runs = slices.Clone(r.Runs)
		for i := range want.Runs {
			want.Runs[i].TTFTs, want.Runs[i].Arrivals, want.Runs[i].InFlight = nil, nil, nil
		}
		if !reflect.DeepEqual(&back, &want) {
			t.Errorf("%s: %+v, want %+v", name, back, want)
		}
	}
}
