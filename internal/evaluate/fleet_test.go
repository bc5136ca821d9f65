package evaluate

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// A small replay from end to end, twice: all are judged, the oracle is the
// best, and the figures are the same.
func TestRunFromEndToEnd(t *testing.T) {
	t.Parallel()
	f := smallFleet(1500, 0.05)
	run, err := f.Run(0.8, 3)
	if err != nil {
		t.Fatal(err)
	}
	served, oracle := Find(run.Scores, Served, All), Find(run.Scores, Oracle, All)
	if run.Requests != 1500 || served == nil || served.Rows != 1000 || oracle == nil {
		t.Fatalf("%d requests, %+v, %+v", run.Requests, served, oracle)
	}
	if !(oracle.MAPE < served.MAPE && served.MAPE < Best(run.Scores, All, mapeOf).MAPE) {
		t.Errorf("the oracle's error is %.3f, what served %.3f, the best baseline's %.3f", oracle.MAPE, served.MAPE, Best(run.Scores, All, mapeOf).MAPE)
	}
	if run.Rank.Decisions != 50 || !(run.Rank.Tau > 0) || !(run.Rank.Regret >= 0) {
		t.Errorf("decisions: %+v", run.Rank)
	}
	again, err := f.Run(0.8, 3)
	if err != nil {
		t.Fatal(err)
	}
	one, _ := json.Marshal(run)
	two, _ := json.Marshal(again)
	if !bytes.Equal(one, two) {
		t.Errorf("two runs differ:\n%s\n%s", one, two)
	}
	r := Report{Title: "t <&>", Runs: []Run{run}}
	var table, page bytes.Buffer
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "lengths on small at 0.8") {
		t.Errorf("table: %v\n%s", err, table.String())
	}
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	if text := page.String(); strings.Count(text, "<svg") < 2 || strings.Contains(text, "http://") || strings.Contains(text, "NaN") || strings.Contains(text, "<&>") {
		t.Error("the page has not its two charts, needs another file, or shows what it should not")
	}
}

func TestThinKeepsWhatIsShown(t *testing.T) {
	t.Parallel()
	run := Run{Rows: make([]Row, 10_000)}
	if run.Thin(); len(run.Rows) == 0 || len(run.Rows) > scatterPoints {
		t.Errorf("%d rows are left", len(run.Rows))
	}
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	f := smallFleet(40, 0)
	c, err := f.FindCapacity(report.Objective{TTFT: time.Second})
	if err != nil || !(c.Multiplier > 1) || c.Slack != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	// No prompt is computed in 70 ms, but in 8 times as long all are.
	if c, err := f.FindCapacity(report.Objective{TTFT: 70 * time.Millisecond}); err != nil || c.Slack < 2 || !(c.Multiplier > 0) {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := f.FindCapacity(report.Objective{TTFT: time.Microsecond}); err == nil {
		t.Error("a microsecond is met")
	}
}

func TestKnownCapacities(t *testing.T) {
	t.Parallel()
	for _, trace := range []string{"azure2023_conv", "azure2023_code", "mooncake"} {
		for _, fleet := range []string{"equal", "mixed", "wide"} {
			if c, ok := KnownCapacity(trace, fleet); !ok || !(c.Multiplier > 0.1 && c.Multiplier < 20) || c.Slack < 1 {
				t.Errorf("%s on %s: %+v, %v", trace, fleet, c, ok)
			}
		}
	}
	if _, ok := KnownCapacity("azure2023_conv", "mine.yaml"); ok {
		t.Error("the capacity of an unknown fleet is known")
	}
	var b bytes.Buffer
	f := smallFleet(1, 0)
	if err := WriteCapacities(&b, []*Fleet{f}, []Capacity{{1.25, 2}}); err != nil || b.String() != "trace,fleet,multiplier,slack\nlengths,small,1.25,2\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// What decides the time is worth something, what does not is worth nothing.
func TestAblation(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	var rows []Row
	for i := range 2000 {
		base, kv, cv := math.Exp(rng.NormFloat64()), rng.Float64(), rng.Float64()
		r := row("a", float64(i), base*math.Exp(kv+0.02*rng.NormFloat64()))
		for k := range r.Features {
			r.Features[k] = math.NaN()
		}
		r.Features[predictor.Base], r.Features[predictor.KVUse], r.Features[predictor.ArrivalCV] = base, kv, cv
		rows = append(rows, r)
	}
	a, err := AblateLinear(rows)
	if err != nil {
		t.Fatal(err)
	}
	if a.Trained != 1000 || a.Rows != 1000 || a.MAPE > .03 {
		t.Errorf("with all features: %+v", a)
	}
	for _, f := range a.Features {
		switch decides := f.Feature == "kv_use" || f.Feature == "base"; {
		case decides && !(f.MAPE > 5 && f.Pinball > 3):
			t.Errorf("%s decides, and the error rises by %.2f and %.2f only", f.Feature, f.MAPE, f.Pinball)
		case !decides && math.Abs(float64(f.MAPE)) > .05:
			t.Errorf("%s says nothing, and the error rises by %.2f", f.Feature, f.MAPE)
		}
	}
	if m, err := AblateModel(rows, byKV{}); err != nil || m.Rows != 1000 || !(m.Features[predictor.KVUse].MAPE > 5) || m.Features[predictor.Turn].MAPE != 0 {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := AblateLinear(rows[:100]); err == nil {
		t.Error("100 rows are enough")
	}
}

// byKV is a model that knows what decides.
type byKV struct{}

func (byKV) Predict(row []float64) (p50, p95 float64, err error) {
	kv := row[predictor.KVUse]
	if math.IsNaN(kv) {
		kv = 0
	}
	return kv, kv + .05, nil
}
