package telemetry_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// predictions are those of one model, judged in one regime.
func predictions(time.Time) telemetry.Predictions {
	r := predictor.Report{Serving: predictor.Linear}
	s := predictor.Score{Rows: 4, MAPE: .125, Coverage: .75, Pinball: .5}
	r.Scores[predictor.Linear][predictor.Busy], r.Scores[predictor.Linear][predictor.Regimes] = s, s
	return telemetry.Predictions{
		Pools:   []telemetry.PoolReport{{Model: "m", Report: r}},
		Model:   &telemetry.ModelInfo{ID: "20261130T120000-ab12cd", Schema: "0a", LightGBM: "4.6.0"},
		Dropped: 3,
	}
}

func TestPredictionCollector(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(telemetry.NewPredictionCollector(predictions, now))
	got := series(t, reg)
	want := map[string]float64{
		`firsttoken_prediction_error_ratio{estimator="linear",model="m",regime="busy"}`:              .125,
		`firsttoken_prediction_error_ratio{estimator="linear",model="m",regime="all"}`:               .125,
		`firsttoken_prediction_coverage_ratio{estimator="linear",model="m",regime="busy"}`:           .75,
		`firsttoken_prediction_coverage_ratio{estimator="linear",model="m",regime="all"}`:            .75,
		`firsttoken_prediction_pinball_seconds{estimator="linear",model="m",regime="busy"}`:          .5,
		`firsttoken_prediction_pinball_seconds{estimator="linear",model="m",regime="all"}`:           .5,
		`firsttoken_prediction_estimator_info{estimator="linear",model="m"}`:                         1,
		`firsttoken_prediction_model_info{id="20261130T120000-ab12cd",lightgbm="4.6.0",schema="0a"}`: 1,
		`firsttoken_prediction_samples_dropped_total`:                                                3,
	}
	for name, v := range want {
		if g, ok := got[name]; !ok || g != v {
			t.Errorf("%s is %v, want %v", name, g, v)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s: a value that is not known is exposed", name)
	}
}

// A late word about a model that a reload took away brings nothing back.
func TestPredictionsOfDroppedModel(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := telemetry.NewMetrics(reg)
	report := func() {
		m.PredictionSampled("m", predictor.Linear, predictor.Idle)
		m.PredictionSwitched("m", predictor.Linear, predictor.LightGBM, predictor.WhyVolatile)
		m.PredictionDrifted("m", predictor.Linear, "shift")
	}
	m.Model("m")
	report()
	if n := len(about(t, reg, "m")); n < 3 {
		t.Errorf("%d series", n)
	}
	m.Keep(nil, nil)
	report()
	if left := about(t, reg, "m"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
