package telemetry_test

import (
	"net/url"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func gather(t testing.TB, reg prometheus.Gatherer) []*dto.MetricFamily {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// series are the gathered series with their values, as name{label="value"}.
func series(t testing.TB, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, f := range gather(t, reg) {
		for _, m := range f.GetMetric() {
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			out[f.GetName()+labels(m)] = v
		}
	}
	return out
}

func labels(m *dto.Metric) string {
	var parts []string
	for _, l := range m.GetLabel() {
		parts = append(parts, l.GetName()+"="+`"`+l.GetValue()+`"`)
	}
	if len(parts) == 0 {
		return ""
	}
	sort.Strings(parts)
	return "{" + strings.Join(parts, ",") + "}"
}

// about are the series that name s in a label.
func about(t testing.TB, reg prometheus.Gatherer, s string) []string {
	t.Helper()
	var out []string
	for name := range series(t, reg) {
		if strings.Contains(name, `"`+s+`"`) {
			out = append(out, name)
		}
	}
	sort.Strings(out)
	return out
}

// reportAll reports to every series a model and its backend have.
func reportAll(m *telemetry.Metrics, model *telemetry.Model, backend *telemetry.Backend, name string) {
	model.InFlight.Inc()
	model.Request("chat.completions", 200, "ok", time.Second)
	model.TTFT("content", 3, time.Second)
	model.Held.Inc()
	model.HeldFor(time.Second)
	m.Contract("chat").Show("ttft-p95")
	m.Contract("chat").Outcome("ttft-p95", true)
	m.Shed("m", "chat", "deadline")
	m.Contract("chat").FirstToken(true)
	m.Contract("chat").OverBurst()
	m.CalledIn(name)
	m.TurnsDrifted("m")
	m.Lightened("chat", "m", "m")
	m.Violated("chat", name)
	model.Tokens(4, 3, 2, 1)
	model.Retry("engine_5xx")
	model.RetryDenied("budget")
	backend.Attempt("ok")
	backend.TTFT(time.Second)
	backend.TPOT(time.Millisecond)
	backend.Ejected("consecutive")
	backend.StaleConnection()
	backend.Unparsed(1)
	m.Probed(name, true)
	m.Scraped(name, false)
	m.PredictionSampled("m", predictor.Linear, predictor.Busy)
	m.PredictionSwitched("m", predictor.Linear, predictor.Analytic, predictor.WhyError)
	m.PredictionDrifted("m", predictor.Linear, "coverage")
}

// fleet are backends of one pool.
func fleet(names ...string) []*backends.Backend {
	spec := backends.PoolSpec{Model: "m"}
	for _, name := range names {
		spec.Backends = append(spec.Backends, backends.Spec{
			Name: name, URL: &url.URL{Scheme: "http", Host: name}, Kind: backends.VLLM, Weight: 2,
			Labels: map[string]string{"gpu": "H100", "cuda": "12.8", "team": "not a label"},
		})
	}
	return backends.NewFleet().Pools([]backends.PoolSpec{spec})[0].Backends
}

func now() time.Time { return t0 }
