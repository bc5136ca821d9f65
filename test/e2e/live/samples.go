package live

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Samples are one scrape of a metrics page, by name.
type Samples map[string]*dto.MetricFamily

// Scrape reads a metrics page.
func Scrape(t testing.TB, url string) Samples {
	t.Helper()
	s, err := scrape(url)
	if err != nil {
		t.Fatalf("scrape %s: %v", url, err)
	}
	return s
}

func scrape(url string) (Samples, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answer %s", resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(resp.Body)
}

// Sum adds up the series of a counter or gauge whose labels have the given
// values, as pairs of name and value; of a histogram it adds the counts.
func (s Samples) Sum(name string, labels ...string) float64 {
	sum := 0.0
	for _, m := range s[name].GetMetric() {
		if matches(m, labels) {
			sum += valueOf(m)
		}
	}
	return sum
}

// Has reports whether there is a series of the name with these labels.
func (s Samples) Has(name string, labels ...string) bool {
	for _, m := range s[name].GetMetric() {
		if matches(m, labels) {
			return true
		}
	}
	return false
}

// By adds up the series of a counter or gauge for each value of the label.
func (s Samples) By(name, label string) map[string]float64 {
	sums := map[string]float64{}
	for _, m := range s[name].GetMetric() {
		sums[labelOf(m, label)] += valueOf(m)
	}
	return sums
}

func matches(m *dto.Metric, labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		if labelOf(m, labels[i]) != labels[i+1] {
			return false
		}
	}
	return true
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	}
	return m.Untyped.GetValue()
}

// load are the gauges of work that must be zero when nothing runs.
var load = [...]string{
	"firsttoken_requests_in_flight", "firsttoken_backend_in_flight", "firsttoken_backend_prefilling",
	"firsttoken_backend_prefill_tokens", "firsttoken_backend_held_prefills",
}

// AwaitIdle waits until every gauge of work of the gateway is back to zero. It
// fails the test if that takes longer than the limit, or if a gauge is missing.
func AwaitIdle(t testing.TB, operatorURL string, limit time.Duration) {
	t.Helper()
	Await(t, limit, func() string {
		samples, err := scrape(operatorURL + "/metrics")
		if err != nil {
			return err.Error()
		}
		for _, name := range load {
			if !samples.Has(name) {
				return name + " is missing"
			}
			for _, m := range samples[name].GetMetric() {
				if v := valueOf(m); v != 0 {
					return fmt.Sprintf("%s{%v} is %v", name, m.GetLabel(), v)
				}
			}
		}
		return ""
	})
}

// Await polls until unmet gives "", and fails the test with what it last gave
// when that takes longer than the limit.
func Await(t testing.TB, limit time.Duration, unmet func() string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		why := unmet()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", limit, why)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
