package app

import (
	"errors"
	"strconv"
	"time"

	"github.com/firsttoken/firsttoken/internal/models"
	"github.com/firsttoken/firsttoken/internal/proxy"
	"github.com/firsttoken/firsttoken/internal/rollback"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// causes look for what a violated contract comes from: they note what is
// changed, and evaluate.
type causes struct {
	*rollback.Evaluator
	history *rollback.History

	// What is in force; touched by New and reloads only.
	revision  int64
	contracts string
}

// findCauses begins with it. It comes before the first revision is in force.
func (a *App) findCauses() {
	h := &rollback.History{}
	a.causes = &causes{history: h, Evaluator: rollback.New(rollback.Options{
		History: h, Watch: a.predictions.recent, Load: a.predictions.load, Store: a.predictions, Log: a.logs.Events,
		Applied: func(string) { a.predictions.lookAtModels() },
	})}
	a.predictions.onModel = func(from, to string) {
		h.Add(rollback.Change{At: time.Now(), Kind: rollback.Model, From: from, To: to})
	}
	a.compile.onReadiness = a.causes.restarted
	a.OnViolation(a.causes.Violated)
}

// enforce notes what a table changes that is put into force.
func (c *causes) enforce(t *proxy.Table) {
	now, before := time.Now(), *c
	c.revision, c.contracts = t.Revision, t.Contracts.Revision()
	if before.revision == 0 {
		return // the first
	}
	c.history.Add(rollback.Change{
		At: now, Kind: rollback.Config, From: strconv.FormatInt(before.revision, 10), To: strconv.FormatInt(c.revision, 10),
	})
	if before.contracts != c.contracts {
		c.history.Add(rollback.Change{At: now, Kind: rollback.Contract, From: before.contracts, To: c.contracts})
	}
}

// restarted notes that an engine was started again, or may have been.
func (c *causes) restarted(b *backends.Backend, to backends.Readiness, why string) {
	if to == backends.Warming && why != backends.WhyNew && why != backends.WhyCalled {
		c.history.Add(rollback.Change{At: time.Now(), Kind: rollback.Instance, Subject: b.Name, To: why})
	}
}

// Evaluations gives the last violations whose causes were looked for, the newest
// first.
func (a *App) Evaluations() []rollback.Record { return a.causes.Records() }

// overheard are promises whose outcomes the causes are told of.
type overheard struct {
	*promises
	causes *causes
}

// Record passes an outcome on.
func (o overheard) Record(now time.Time, backend string, c *sla.Contract, out sla.Outcome) (met, judged bool) {
	met, judged = o.promises.Record(now, backend, c, out)
	if judged {
		o.causes.Served(rollback.Outcome{At: now, Instance: backend, Contract: c.Name(), Met: met})
	}
	return met, judged
}

// errNoModels says that there is nothing to roll back.
var errNoModels = errors.New("prediction.models names no folder")

// store is the folder of trained models.
func (p *predictions) store() (*models.Store, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir == "" {
		return nil, errNoModels
	}
	return models.New(p.dir, predictor.Names(), predictor.SchemaHash()), nil
}

// Rollback makes the trained model active again that was so before; of the first
// one it leads back to the one that ships.
func (p *predictions) Rollback() (id string, err error) {
	s, err := p.store()
	if err != nil {
		return "", err
	}
	id, err = s.Rollback()
	if errors.Is(err, models.ErrNoPrevious) && p.followsShipped() {
		return p.shipped.Manifest.ID, s.Deactivate()
	}
	return id, err
}

// followsShipped reports whether the shipped model served before the one in force.
func (p *predictions) followsShipped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shipped != nil && p.former == p.shipped.Manifest.ID
}

// load opens a trained model by its ID, or the one that ships.
func (p *predictions) load(id string) (predictor.Model, error) {
	if p.shipped != nil && p.shipped.Manifest.ID == id {
		return p.shipped, nil
	}
	s, err := p.store()
	if err != nil {
		return nil, err
	}
	b, err := s.Load(id)
	if err != nil {
		return nil, err
	}
	return b, nil
}
