package rollback_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/models"
	"github.com/firsttoken/firsttoken/internal/rollback"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

var t0 = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// after is t0 and some seconds.
func after(seconds float64) time.Time {
	return t0.Add(time.Duration(seconds * float64(time.Second)))
}

// constant is a model that says the same of every row: logarithms over the base.
type constant struct{ p50, p95 float64 }

func (c constant) Predict([]float64) (p50, p95 float64, err error) { return c.p50, c.p95, nil }

// shelf is models by ID.
type shelf map[string]constant

func (s shelf) load(id string) (predictor.Model, error) {
	m, ok := s[id]
	if !ok {
		return nil, errors.New("no model " + id)
	}
	return m, nil
}

// sample is one whose truth is e^y times the base, 100 ms.
func sample(at time.Time, y float64) predictor.Sample {
	s := predictor.Sample{At: at, Model: "m", Backend: "a", TTFT: time.Duration(math.Exp(y) * 1e8)}
	s.Features[predictor.Base] = 0.1
	return s
}

// around are n samples, ten a second, whose truth scatters about e^y times the base.
func around(from time.Time, n int, y float64) (all []predictor.Sample) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		all = append(all, sample(from.Add(time.Duration(i)*100*time.Millisecond), y+0.1*rng.NormFloat64()))
	}
	return all
}

// violation is one of that time.
func violation(at time.Time) sla.Violation {
	return sla.Violation{
		At: at, Since: at.Add(-30 * time.Second), Instance: "a", Contract: "chat", Windows: 3,
		Objective: sla.Objective{Metric: sla.TTFT, Percentile: 95, Target: 0.95}, Samples: 20, Share: 0.5, Weight: 0.5,
	}
}

// served are n outcomes of an instance, ten a second, of which a share met the
// contract.
func served(instance string, from time.Time, n int, share float64) (all []rollback.Outcome) {
	met := 0
	for i := range n {
		ok := float64(met) < share*float64(i+1)
		if ok {
			met++
		}
		all = append(all, rollback.Outcome{At: from.Add(time.Duration(i) * 100 * time.Millisecond), Instance: instance, Contract: "chat", Met: ok})
	}
	return all
}

const (
	goodID = "20261130T120000-000001"
	badID  = "20261130T130000-000002"
)

// publish makes a model that says the same of every row, and puts it into the store.
func publish(t *testing.T, s *models.Store, id string, p50, p95 float64) {
	t.Helper()
	folder := t.TempDir()
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	head := func(name string, alpha, leaf float64) trees.Head {
		names := predictor.Names()
		text := fmt.Sprintf("tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx=%d\nobjective=quantile\nfeature_names=%s\ntree_sizes=100\n\n"+
			"Tree=0\nnum_leaves=2\nnum_cat=0\nsplit_feature=0\nthreshold=1000\ndecision_type=8\nleft_child=-1\nright_child=-2\nleaf_value=%v %v\nis_linear=0\nshrinkage=1\n\n\n"+
			"end of trees\n\nparameters:\n[objective: quantile]\n[alpha: %v]\n\nend of parameters\n", len(names)-1, strings.Join(names, " "), leaf, leaf, alpha)
		write(name, []byte(text))
		return trees.Head{File: name, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(text))), Alpha: alpha}
	}
	day := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	m := trees.Manifest{
		Format: "firsttoken-model/1", ID: id, Created: day, Schema: predictor.SchemaHash(), Base: "analytic",
		Heads:    trees.Heads{P50: head("p50.txt", 0.5, p50), P95: head("p95.txt", 0.95, p95)},
		Training: trees.Training{Rows: 100, From: day, To: day, LightGBM: "4.6.0", Source: "by hand"},
		Metrics:  map[string]trees.Metrics{"all": {Rows: 100}},
	}
	for range 8 {
		m.Golden = append(m.Golden, trees.Golden{Row: make([]trees.Number, len(predictor.Names())), P50: p50, P95: p95})
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	write("manifest.json", text)
	if got, err := s.Publish(folder); err != nil || got != id {
		t.Fatalf("publish %s: %s, %v", id, got, err)
	}
	if err := s.Activate(id); err != nil {
		t.Fatal(err)
	}
}

// contract promises a P95 of the TTFT of 320 ms.
func contract(t *testing.T) *sla.Set {
	t.Helper()
	set, err := sla.Parse(sla.Source{Name: "chat.yaml", Data: []byte(`apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: chat}
spec:
  match: {models: [m]}
  objectives: [{metric: ttft, percentile: 95, threshold: 320ms, window: 1h}]
`)})
	if err != nil {
		t.Fatal(err)
	}
	return set
}
