package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/models"
	"github.com/firsttoken/firsttoken/internal/rollback"
	"github.com/firsttoken/firsttoken/internal/samples"
	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// predictions are what outlives revisions of all that predicts: what was
// learned of engines and models, the trained model in force, the log of samples.
type predictions struct {
	fleet    *predictor.Fleet
	ledger   router.Ledger
	observer *observer
	recent   *rollback.Watch // before the observer
	log      *zap.Logger

	onModel func(from, to string) // another trained model is in force; "" is none. Set before the first revision is in force

	mu     sync.Mutex
	pools  []foreseen    // of the revision in force
	dir    string        // of trained models; "" for none
	seen   digest        // of what dir said when it was last read
	model  *trees.Bundle // in force; nil: none
	former string        // ID of the one before it; "": none, or not known

	shipped *trees.Bundle // serves where none is active; nil: none
}

// foreseen is a pool whose requests are predicted.
type foreseen struct {
	model string
	*predictor.Pool
}

func newPredictions(m *telemetry.Metrics, l router.Ledger, log *zap.Logger, shipped *trees.Bundle) *predictions {
	o := &observer{metrics: m, log: log}
	recent := rollback.NewWatch(o)
	return &predictions{
		fleet: predictor.NewFleet(recent), ledger: l, observer: o, recent: recent, log: log, shipped: shipped,
		onModel: func(string, string) {},
	}
}

// keepSamples begins the log of samples, if there is to be one. It comes before
// the first request.
func (p *predictions) keepSamples(cfg config.Samples) error {
	if cfg.Dir == "" {
		return nil
	}
	log, err := samples.Open(cfg.Dir, samples.Limits{
		MaxFileRows: cfg.MaxFileRows, MaxFileAge: cfg.MaxAge.D(), MaxFiles: cfg.MaxFiles, MaxBytes: int64(cfg.MaxBytes),
	}, p.log)
	if err != nil {
		return fmt.Errorf("prediction.samples.dir %q: %w", cfg.Dir, err)
	}
	p.observer.samples = log
	return nil
}

// close writes out the last samples.
func (p *predictions) close() {
	if p.observer.samples != nil {
		p.observer.samples.Close()
	}
}

// foresee lets the router of a pool predict.
func (p *predictions) foresee(rules predictor.Rules, m config.Model, r *router.Router) foreseen {
	f := router.Foresight{Pool: p.fleet.Pool(m.Name, rules), Ledger: p.ledger}
	for _, b := range m.Backends { // the pool's order
		f.Instances = append(f.Instances, p.fleet.Instance(b.URL, prior(b.Profile)))
	}
	r.Foresee(f)
	return foreseen{m.Name, f.Pool}
}

func predictionRules(c config.Prediction) predictor.Rules {
	return predictor.Rules{
		LowRate:    cmp.Or(c.LowRate, -1), // the file's 0 switches the rule off
		VolatileCV: c.VolatileCV, MaxMAPE: c.MaxError, MinSamples: c.MinSamples, Dwell: c.Dwell.D(),
	}
}

// least is what a step costs at least where a profile says nothing of a price:
// the predictor learns in relation to where it starts.
var least = predictor.Speed{Fixed: 1e-3, Step: 1e-3, Token: 1e-6, Seq: 5e-6, Context: 1e-9, Square: 1e-10}

// prior is the speed of an engine by its profile, nil without one.
func prior(profile string) *predictor.Speed {
	p, ok := engine.LookupProfile(profile)
	if !ok {
		return nil
	}
	const perMicrosecond = 1e-6
	s := p.Params.Step
	return &predictor.Speed{
		Fixed:   max(s.H.Seconds(), least.Fixed),
		Step:    max((s.T0 + s.Experts).Seconds(), least.Step), // a prompt's step reads all experts
		Token:   max(s.Alpha*perMicrosecond, least.Token),
		Seq:     max(s.Beta*perMicrosecond, least.Seq),
		Context: max(s.Gamma*perMicrosecond, least.Context),
		Square:  max(s.Alpha2*perMicrosecond, least.Square),
	}
}

// enforce follows a revision that was put into force.
func (p *predictions) enforce(cfg *config.Config, pools []foreseen) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools = pools
	urls, names := map[string]bool{}, map[string]bool{}
	for _, m := range cfg.Models {
		for _, b := range m.Backends {
			urls[b.URL] = cfg.Prediction.Enabled
		}
		names[m.Name] = cfg.Prediction.Enabled
	}
	p.fleet.Keep(urls, names)
	p.dir, p.seen = cfg.Prediction.Models, digest{}
	p.readModel()
	p.setModel()
}

// watchModel takes up the trained model that is made the active one.
func (p *predictions) watchModel(ctx context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.lookAtModels()
	}
}

func (p *predictions) lookAtModels() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readModel() {
		p.setModel()
	}
}

// readModel reads the active model if another was made so, and reports whether
// that changes what is in force: not if it can't serve. Called with mu held.
func (p *predictions) readModel() bool {
	if p.dir == "" {
		return p.take(p.shipped)
	}
	active := filepath.Join(p.dir, "active.json")
	now := digests([]string{active})[active]
	if now == p.seen {
		return false
	}
	p.seen = now
	id, model, err := models.New(p.dir, predictor.Names(), predictor.SchemaHash()).Active()
	switch {
	case errors.Is(err, models.ErrNoActive):
		return p.take(p.shipped)
	case err != nil:
		p.log.Error("trained model not loaded; what was in force stays", zap.String("model", id), zap.Error(err))
		return false
	}
	return p.take(model)
}

// take makes a model the one in force; nil is none.
func (p *predictions) take(m *trees.Bundle) bool {
	switch {
	case m == nil && p.model == nil, m != nil && p.model != nil && m.Manifest.ID == p.model.Manifest.ID:
		return false
	case m == nil:
		p.log.Info("trained model taken away", zap.String("model", p.model.Manifest.ID))
	default:
		p.log.Info("trained model loaded", zap.String("model", m.Manifest.ID), zap.Int("rows", m.Manifest.Training.Rows), zap.Time("trained_to", m.Manifest.Training.To))
	}
	if p.model != nil {
		p.onModel(idOf(p.model), idOf(m))
	}
	p.former, p.model = idOf(p.model), m
	return true
}

// idOf is the ID of a model; "" of none.
func idOf(m *trees.Bundle) string {
	if m == nil {
		return ""
	}
	return m.Manifest.ID
}

// setModel hands the model in force to all pools. Called with mu held.
func (p *predictions) setModel() {
	var m predictor.Model
	if p.model != nil {
		m = p.model
	}
	for _, pool := range p.pools {
		pool.SetModel(m)
	}
}

// report is what a scrape is told.
func (p *predictions) report(now time.Time) telemetry.Predictions {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out telemetry.Predictions
	for _, pool := range p.pools {
		out.Pools = append(out.Pools, telemetry.PoolReport{Model: pool.model, Report: pool.Report(now)})
	}
	if p.model != nil {
		m := &p.model.Manifest
		out.Model = &telemetry.ModelInfo{ID: m.ID, Schema: m.Schema, LightGBM: m.Training.LightGBM}
	}
	if p.observer.samples != nil {
		out.Dropped = p.observer.samples.Dropped()
	}
	return out
}
