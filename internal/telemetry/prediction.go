package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// Predictions are the state of what predicts, at a scrape.
type Predictions struct {
	Pools   []PoolReport
	Model   *ModelInfo // nil: no trained model is in force
	Dropped uint64     // samples that the log of samples lost
}

// PoolReport is how good the predictions for one model are.
type PoolReport struct {
	Model string
	predictor.Report
}

// ModelInfo names a trained model.
type ModelInfo struct {
	ID       string
	Schema   string // hash of the features it was trained on
	LightGBM string // version of LightGBM that trained it
}

// predictionCollector reads the predictions at the moment of a scrape.
type predictionCollector struct {
	read func(now time.Time) Predictions
	now  func() time.Time

	mape, coverage, pinball, serving, model, dropped *prometheus.Desc
}

// NewPredictionCollector exposes what read returns.
func NewPredictionCollector(read func(now time.Time) Predictions, now func() time.Time) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("firsttoken_"+name, help, labels, nil)
	}
	return &predictionCollector{
		read: read, now: now,
		mape: desc("prediction_error_ratio",
			"Mean relative error of an estimator's P50 over its last 500 requests of the last 5 minutes; 0.12 is 12 %.", "model", "estimator", "regime"),
		coverage: desc("prediction_coverage_ratio",

			"Share of an estimator's last 500 requests of the last 5 minutes whose first token came within its P95; 0.95 is right.", "model", "estimator", "regime"),
		pinball: desc("prediction_pinball_seconds",
			"Mean pinball loss of an estimator's P95 over its last 500 requests of the last 5 minutes.", "model", "estimator", "regime"),
		serving: desc("prediction_estimator_info", "The estimator whose word counts; always 1.", "model", "estimator"),
		model:   desc("prediction_model_info", "The trained model that lightgbm uses; always 1.", "id", "schema", "lightgbm"),
		dropped: desc("prediction_samples_dropped_total", "Samples that were not written because the disk was too slow or failed."),
	}
}

func (c *predictionCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.mape, c.coverage, c.pinball, c.serving, c.model, c.dropped} {
		ch <- d
	}
}

func (c *predictionCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	p := c.read(c.now())
	for _, pool := range p.Pools {
		gauge(c.serving, 1, pool.Model, pool.Serving.String())
		for k := range pool.Scores {
			for r, s := range pool.Scores[k] {
				if s.Rows == 0 {
					continue
				}
				labels := []string{pool.Model, predictor.Kind(k).String(), predictor.Regime(r).String()}
				gauge(c.mape, s.MAPE, labels...)
				gauge(c.coverage, s.Coverage, labels...)
				gauge(c.pinball, s.Pinball, labels...)
			}
		}
	}
	if m := p.Model; m != nil {
		gauge(c.model, 1, m.ID, m.Schema, m.LightGBM)
	}
	ch <- prometheus.MustNewConstMetric(c.dropped, prometheus.CounterValue, float64(p.Dropped))
}

type sampleKey struct {
	by     predictor.Kind
	regime predictor.Regime
}

type switchKey struct {
	from, to predictor.Kind
	reason   string
}

type driftKey struct {
	of     predictor.Kind
	reason string
}

// PredictionSampled counts a prediction that was compared with the truth.
func (m *Metrics) PredictionSampled(model string, by predictor.Kind, r predictor.Regime) {
	if c := m.known(model); c != nil {
		c.predicted.inc(sampleKey{by, r})
	}
}

// PredictionSwitched counts a change of the estimator whose word counts.
func (m *Metrics) PredictionSwitched(model string, from, to predictor.Kind, reason string) {
	if c := m.known(model); c != nil {
		c.switched.inc(switchKey{from, to, reason})
	}
}

// PredictionDrifted counts an alarm about an estimator.
func (m *Metrics) PredictionDrifted(model string, of predictor.Kind, reason string) {
	if c := m.known(model); c != nil {
		c.drifted.inc(driftKey{of, reason})
	}
}

// known is the series of a model that a reload has not taken away, or nil.
func (m *Metrics) known(model string) *Model {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.models[model]
}
