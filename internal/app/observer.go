package app

import (
	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/internal/samples"
	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// observer is told what becomes of predictions. It is safe for concurrent use.
type observer struct {
	metrics *telemetry.Metrics
	log     *zap.Logger
	samples *samples.Log // nil: none are kept
}

// Observed counts and keeps a sample.
func (o *observer) Observed(s *predictor.Sample) {
	o.metrics.PredictionSampled(s.Model, s.Served, s.Regime)
	if o.samples != nil {
		o.samples.Write(s)
	}
}

// Switched counts and logs that another estimator's word counts now.
func (o *observer) Switched(s predictor.Switch) {
	o.metrics.PredictionSwitched(s.Pool, s.From, s.To, s.Why)
	from, to := s.Standing.Scores[s.From], s.Standing.Scores[s.To]
	o.log.Info("estimator switched", zap.String("model", s.Pool), zap.Stringer("from", s.From), zap.Stringer("to", s.To), zap.String("why", s.Why),
		zap.Float64("rate", s.Standing.Rate), zap.Float64("cv", s.Standing.CV),
		zap.Float64("error_from", from.MAPE), zap.Int("rows_from", from.Rows),
		zap.Float64("error_to", to.MAPE), zap.Int("rows_to", to.Rows))
}

// Drifted counts and logs that an estimator's P95 is to be trusted less.
func (o *observer) Drifted(a predictor.Alarm) {
	o.metrics.PredictionDrifted(a.Pool, a.Kind, a.Why)
	o.log.Warn("estimator drifted; its P95 is corrected", zap.String("model", a.Pool), zap.Stringer("estimator", a.Kind),
		zap.String("why", a.Why), zap.Float64("coverage", a.Coverage))
}
