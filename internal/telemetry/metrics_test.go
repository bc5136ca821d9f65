package telemetry_test

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

var update = flag.Bool("update", false, "write testdata/metrics.txt")

// TestNames compares every metric with the list that dashboards and alerts
// are written by: name, type, labels, help.
func TestNames(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := telemetry.NewMetrics(reg)
	model := m.Model("m")
	reportAll(m, model, model.Backend("a"), "a")
	m.Reloaded(t0, true, 1)
	m.EdgeRejected("invalid_json")
	b := fleet("a")
	scrapeTwice(t, b[0])
	reg.MustRegister(telemetry.NewFleetCollector(func() []*backends.Backend { return b }, now),
		telemetry.NewPredictionCollector(predictions, now), telemetry.NewContractCollector(contracts, now), telemetry.BuildInfo("v"))

	var got strings.Builder
	for _, f := range gather(t, reg) {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		fmt.Fprintf(&got, "%s %s (%s)\n    %s\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())
	}
	const file = "testdata/metrics.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("metrics differ from %s; if that is meant, run with -update and tell users:\n%s", file, diff(string(want), got.String()))
	}
}

// diff lists the lines of one text that the other has not.
func diff(want, got string) string {
	var out strings.Builder
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for _, line := range w {
		if !slices.Contains(g, line) {
			fmt.Fprintln(&out, "-", line)
		}
	}
	for _, line := range g {
		if !slices.Contains(w, line) {
			fmt.Fprintln(&out, "+", line)
		}
	}
	return out.String()
}

func TestReports(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := telemetry.NewMetrics(reg)
	model := m.Model("m")
	a := model.Backend("a")
	if m.Model("m") != model || model.Backend("a") != a {
		t.Error("the same name gives other series")
	}
	reportAll(m, model, a, "a")
	reportAll(m, model, a, "a")
	model.Request("chat.completions", 200, "truncated", time.Second)
	model.Tokens(0, 0, 0, 0)
	a.Attempt("dial_failed")
	a.Unparsed(0)
	m.EdgeRejected("invalid_json")
	m.Panicked()
	m.Reloaded(t0.Add(500*time.Millisecond), true, 7)
	m.Reloaded(t0.Add(time.Hour), false, 7)
	want := map[string]float64{
		`firsttoken_requests_in_flight{model="m"}`:                                                       2,
		`firsttoken_requests_total{code="200",endpoint="chat.completions",model="m",reason="ok"}`:        2,
		`firsttoken_requests_total{code="200",endpoint="chat.completions",model="m",reason="truncated"}`: 1,
		`firsttoken_request_duration_seconds{endpoint="chat.completions",model="m"}`:                     3,
		`firsttoken_ttft_seconds{kind="content",model="m"}`:                                              2,
		`firsttoken_ttft_by_turn_seconds{model="m",turn="3-5"}`:                                          2,
		`firsttoken_held_requests{model="m"}`:                                                            2,
		`firsttoken_held_seconds{model="m"}`:                                                             2,
		`firsttoken_shed_total{contract="chat",model="m",reason="deadline"}`:                             2,
		`firsttoken_lighter_model_total{contract="chat",from="m",to="m"}`:                                2,
		`firsttoken_violations_total{backend="a",contract="chat"}`:                                       2,
		`firsttoken_contract_outcomes_total{contract="chat",met="true",objective="ttft-p95"}`:            2,
		`firsttoken_contract_outcomes_total{contract="chat",met="false",objective="ttft-p95"}`:           0,
		`firsttoken_ttft_turn_drifts_total{model="m"}`:                                                   2,
		`firsttoken_contract_first_tokens_total{contract="chat",within_limit="true"}`:                    2,
		`firsttoken_contract_over_burst_total{contract="chat"}`:                                          2,
		`firsttoken_standby_calls_total{backend="a"}`:                                                    2,
		`firsttoken_tokens_total{kind="prompt",model="m"}`:                                               8,
		`firsttoken_tokens_total{kind="cached",model="m"}`:                                               6,
		`firsttoken_tokens_total{kind="completion",model="m"}`:                                           4,
		`firsttoken_tokens_total{kind="reasoning",model="m"}`:                                            2,
		`firsttoken_retries_total{model="m",reason="engine_5xx"}`:                                        2,
		`firsttoken_retries_denied_total{model="m",why="budget"}`:                                        2,
		`firsttoken_attempts_total{backend="a",model="m",reason="ok"}`:                                   2,
		`firsttoken_attempts_total{backend="a",model="m",reason="dial_failed"}`:                          1,
		`firsttoken_upstream_ttft_seconds{backend="a",model="m"}`:                                        2,
		`firsttoken_tpot_seconds{backend="a",model="m"}`:                                                 2,
		`firsttoken_ejections_total{backend="a",reason="consecutive"}`:                                   2,
		`firsttoken_health_probes_total{backend="a",result="ok"}`:                                        2,
		`firsttoken_engine_scrapes_total{backend="a",result="failed"}`:                                   2,
		`firsttoken_stale_connections_total{backend="a"}`:                                                2,
		`firsttoken_unparsed_events_total{backend="a"}`:                                                  2,
		`firsttoken_prediction_samples_total{estimator="linear",model="m",regime="busy"}`:                2,
		`firsttoken_prediction_switches_total{from="linear",model="m",reason="error",to="analytic"}`:     2,
		`firsttoken_prediction_drift_total{estimator="linear",model="m",reason="coverage"}`:              2,
		`firsttoken_edge_rejections_total{code="invalid_json"}`:                                          1,
		`firsttoken_panics_total`:                                                                        1,
		`firsttoken_config_reloads_total{result="ok"}`:                                                   1,
		`firsttoken_config_reloads_total{result="failed"}`:                                               1,
		`firsttoken_config_last_reload_successful`:                                                       0,
		`firsttoken_config_last_reload_success_timestamp_seconds`:                                        float64(t0.Unix()) + .5,
		`firsttoken_config_revision`:                                                                     7,
	}
	if got := series(t, reg); !reflect.DeepEqual(got, want) {
		for name, v := range got {
			if w, ok := want[name]; !ok || w != v {
				t.Errorf("%s is %v, want %v (%v)", name, v, w, ok)
			}
			delete(want, name)
		}
		for name := range want {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestLabelsAreBounded: whatever status an engine makes up, its series are few.
func TestLabelsAreBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	model := telemetry.NewMetrics(reg).Model("m")
	for _, code := range []int{-1, 0, 1, 99, 600, 999, 1 << 40} {
		model.Request("chat.completions", code, "ok", 0)
	}
	for _, code := range []int{100, 200, 499, 599} {
		model.Request("chat.completions", code, "ok", 0)
	}
	var codes []string
	for _, f := range gather(t, reg) {
		if f.GetName() == "firsttoken_requests_total" {
			for _, m := range f.GetMetric() {
				codes = append(codes, fmt.Sprint(m.GetLabel()[0].GetValue(), "×", m.GetCounter().GetValue()))
			}
		}
	}
	if want := []string{"100×1", "200×1", "499×1", "599×1", "other×7"}; !slices.Equal(codes, want) {
		t.Errorf("codes %v, want %v", codes, want)
	}
}

// keep is Keep by "model: backends" of a revision.
func keep(m *telemetry.Metrics, revision map[string][]string) {
	models, byBackend := map[string]bool{}, map[string]map[string]bool{}
	for model, names := range revision {
		models[model] = true
		for _, b := range names {
			if byBackend[b] == nil {
				byBackend[b] = map[string]bool{}
			}
			byBackend[b][model] = true
		}
	}
	m.Keep(models, byBackend)
}

func TestKeep(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := telemetry.NewMetrics(reg)
	report := func(model, backend string) {
		reportAll(m, m.Model(model), m.Model(model).Backend(backend), backend)
		m.TurnsDrifted(model)
	}
	want := func(name string, n int) {
		t.Helper()
		if got := about(t, reg, name); len(got) != n {
			t.Errorf("%d series about %s, want %d:\n%s", len(got), name, n, strings.Join(got, "\n"))
		}
	}
	const (
		ofModel   = 14 // in flight, requests, TTFT, TTFT by turn, its drift, duration, 4 tokens, 2 retries, 2 held
		ofPair    = 3  // attempts, upstream TTFT, TPOT
		ofBackend = 7
	)
	report("x", "a")
	report("x", "b")
	report("y", "b")
	report("y", "c")
	keep(m, map[string][]string{"x": {"a", "b"}, "y": {"b", "c"}}) // nothing went
	want("x", ofModel+2*ofPair)
	want("y", ofModel+2*ofPair)
	want("a", ofPair+ofBackend)
	want("b", 2*ofPair+ofBackend)

	keep(m, map[string][]string{"x": {"a"}, "y": {"b", "c"}}) // b serves y only
	want("x", ofModel+ofPair)
	want("b", ofPair+ofBackend)

	keep(m, map[string][]string{"x": {"a"}}) // y is gone, with b and c
	for _, gone := range []string{"y", "b", "c"} {
		want(gone, 0)
	}
	want("a", ofPair+ofBackend)
	before := series(t, reg)
	report("x", "a")
	if got, was := series(t, reg), before; got[`firsttoken_requests_in_flight{model="x"}`] != was[`firsttoken_requests_in_flight{model="x"}`]+1 {
		t.Error("what stayed does not count on")
	}

	keep(m, map[string][]string{"x": {"a"}, "y": {"b"}})
	report("y", "b") // they come back, from zero
	want("y", ofModel+ofPair)
	want("b", ofPair+ofBackend)
	if got := series(t, reg)[`firsttoken_requests_in_flight{model="y"}`]; got != 1 {
		t.Errorf("in flight %v after a return, want 1", got)
	}
	keep(m, nil)
	for _, gone := range []string{"x", "y", "a", "b", "c"} {
		want(gone, 0)
	}
}

// TestLateReports: a request that ends after the reload that took its model or
// backend away does not bring the series back, whether they existed or not.
func TestLateReports(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("reported before %v", early), func(t *testing.T) {
			reg := prometheus.NewRegistry()
			m := telemetry.NewMetrics(reg)
			model := m.Model("x")
			a, b := model.Backend("a"), model.Backend("b")
			if early {
				reportAll(m, model, a, "a")
			}
			keep(m, map[string][]string{"x": {"b"}})
			reportAll(m, model, a, "a")
			a.Attempt("never_seen")
			if got := about(t, reg, "a"); len(got) != 0 {
				t.Errorf("the backend is back: %v", got)
			}
			if got := about(t, reg, "x"); len(got) == 0 {
				t.Error("the model that stayed is silent")
			}
			keep(m, nil)
			reportAll(m, model, b, "b")
			reportAll(m, model, model.Backend("c"), "c")
			m.Model("new").Backend("d")
			for _, gone := range []string{"x", "a", "b", "c"} {
				if got := about(t, reg, gone); len(got) != 0 {
					t.Errorf("%s is back: %v", gone, got)
				}
			}
			if again := m.Model("x"); again == model {
				t.Error("a model that comes back gets its dropped series")
			}
		})
	}
}

// TestFirstReportIsLate: a series that never existed does not come up late.
func TestFirstReportIsLate(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := telemetry.NewMetrics(reg)
	model := m.Model("x")
	a := model.Backend("a")
	keep(m, nil)
	reportAll(m, model, a, "a")
	for _, gone := range []string{"x", "a"} {
		if got := about(t, reg, gone); len(got) != 0 {
			t.Errorf("%s is there: %v", gone, got)
		}
	}
}

// TestKeepRaces reports from many goroutines while models and backends come
// and go; at the end nothing is left.
func TestKeepRaces(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := telemetry.NewMetrics(reg)
	stop := make(chan struct{})
	var reporters sync.WaitGroup
	for i := range 4 {
		reporters.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprint("b", (i+n)%3)
				model := m.Model(fmt.Sprint("m", n%2))
				reportAll(m, model, model.Backend(name), name)
			}
		})
	}
	for i := range 100 {
		revision := map[string][]string{"m0": {"b0", fmt.Sprint("b", i%3)}}
		if i%2 == 0 {
			revision["m1"] = []string{"b1"}
		}
		keep(m, revision)
		if i%10 == 0 {
			gather(t, reg)
		}
	}
	close(stop)
	held := m.Model("m0")
	b := held.Backend("b0")
	reporters.Wait()
	keep(m, nil)
	reportAll(m, held, b, "b0")
	for name := range series(t, reg) {
		if strings.Contains(name, "model=") || strings.Contains(name, "backend=") {
			t.Errorf("%s is left", name)
		}
	}
}

// BenchmarkRequest is what one streamed request reports.
func BenchmarkRequest(b *testing.B) {
	m := telemetry.NewMetrics(prometheus.NewRegistry())
	model := m.Model("m")
	backend := model.Backend("a")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			model.InFlight.Inc()
			backend.TTFT(30 * time.Millisecond)
			model.TTFT("content", 1, 40*time.Millisecond)
			backend.Attempt("ok")
			backend.Unparsed(0)
			backend.TPOT(5 * time.Millisecond)
			model.InFlight.Dec()
			model.Request("chat.completions", 200, "ok", time.Second)
			model.Tokens(100, 50, 20, 0)
		}
	})
}
