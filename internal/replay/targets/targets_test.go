package targets

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
)

var update = flag.Bool("update", false, "rewrite testdata")

// The tables of made-up figures, as they are printed.
func TestTablesAsPrinted(t *testing.T) {
	t.Parallel()
	b := &bench{Options: Options{Seeds: 3}.withDefaults(), cells: []*cell{
		{fleet: "mixed", trace: "conv"}, {fleet: "wide", trace: "mooncake"}, {fleet: "equal", trace: "conv"},
	}}
	all := []wins{
		{names: []string{"lmetric"}, base: []float64{4, 5, 6}, ours: []float64{8, 7, 9}, oracle: []float64{8, 8, 9}},
		{names: []string{"p2c", "lmetric"}, base: []float64{0.1, 0.1, 0.1}, ours: []float64{1, 1, 1}, oracle: []float64{1, 1, 1}},
		{names: []string{"lmetric"}, base: []float64{10, 10, 10}, ours: []float64{9, 9, 9}, oracle: []float64{9, 9, 9}},
	}
	goodput := goodputTable(b, all)
	goodput.Name = "goodput"
	crowds := [][]crowd{{
		{rate: []float64{4}, ours: []float64{1}, direct: []float64{1}, weighted: []float64{0.8}, shed: []float64{0}, best: []float64{0.99}, bestName: "lmetric"},
		{rate: []float64{8}, ours: []float64{0.95}, direct: []float64{0.9}, weighted: []float64{0.2}, shed: []float64{0.01}, best: []float64{0.5}, bestName: "lmetric"},
		{rate: []float64{12}, ours: []float64{0.8}, direct: []float64{0.3}, weighted: []float64{0.1}, shed: []float64{0.1}, best: []float64{0.1}, bestName: "p2c"},
		{rate: []float64{16}, ours: []float64{0.4}, direct: []float64{0.1}, weighted: []float64{0}, shed: []float64{0.5}, best: []float64{0}, bestName: "lmetric"},
	}}
	overload := overloadTable(b.cells[:1], crowds)
	overload.Name = "overload"
	var out bytes.Buffer
	for _, table := range []Table{goodput, overload} {
		if err := table.Write(&out); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "tables.txt", out.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("not as in %s; if it is meant: go test -update\n%s", file, got)
	}
}

// A tiny measurement of every part that needs no recorded trace, twice.
func TestMeasureIsDeterministic(t *testing.T) {
	t.Parallel()
	measure := func(workers int) string {
		var out strings.Builder
		o := Options{Requests: 50, Fleets: []string{"mixed"}, Traces: []string{"customer-service"}, Only: []string{"goodput", "slow"}, Workers: workers}
		err := Measure(o, func(t Table) error {
			return json.NewEncoder(&out).Encode(t)
		})
		if err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	one := measure(1)
	if two := measure(3); one != two {
		t.Errorf("with three workers otherwise:\n%s\n%s", one, two)
	}
	if strings.Count(one, "\n") != 2 || !strings.Contains(one, "not measured") || !strings.Contains(one, `"what":"mixed fleets`) {
		t.Errorf("tables:\n%s", one)
	}
}

func TestPartsAreChecked(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{Only: []string{"goodpt"}}, {Fleets: []string{"none"}}, {Traces: []string{"none"}}} {
		if err := Measure(o, func(Table) error { return nil }); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// An engine is back when three buckets in a row are well.
func TestRecovery(t *testing.T) {
	t.Parallel()
	var r recovery
	for k := range 40 {
		at := time.Duration(k)*slowBucket + time.Second
		for i := range 100 {
			met := at < slowAt || at >= slowAt+20*time.Second || i < 50
			s := report.Sample{At: at, Reason: report.Lost}
			if met {
				s.Reason = report.OK
			}
			r.add(&s)
		}
	}
	if back, ok := r.back(); !ok || back != 20*time.Second || r.before() != 1 || r.share(0, 20*time.Second) != 0.5 {
		t.Errorf("back after %v (%v), before %v, then %v", back, ok, r.before(), r.share(0, 20*time.Second))
	}
}
