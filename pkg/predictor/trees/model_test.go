package trees_test

import (
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

func TestPredictAsLightGBM(t *testing.T) {
	p50 := mustRead(t, testFile(t, "model/p50.txt"), names())
	p95 := mustRead(t, testFile(t, "model/p95.txt"), names())
	all := expectations(t)
	if len(all) < 100 {
		t.Fatalf("only %d rows", len(all))
	}
	for _, e := range all {
		for head, want := range map[*trees.Model]float64{p50: e.p50, p95: e.p95} {
			got, err := head.Predict(e.row)
			if err != nil || math.Abs(got-want) > 1e-9 {
				t.Errorf("%v: got %v, %v, want %v", e.row, got, err, want)
			}
		}
	}
}

func TestPredictRefusesOtherRows(t *testing.T) {
	m := mustRead(t, small, []string{"a", "b"})
	for _, row := range [][]float64{nil, {1}, {1, 2, 3}} {
		if y, err := m.Predict(row); err == nil {
			t.Errorf("a row of %d features predicts %v", len(row), y)
		}
	}
}

// Finite leaves can add up to what is not.
func TestPredictRefusesInfinity(t *testing.T) {
	text := strings.Replace(edit("leaf_value=1 2 3", "leaf_value=1 1.7e308 3"), "leaf_value=10 20", "leaf_value=10 1.7e308", 1)
	m := mustRead(t, text, []string{"a", "b"})
	if y, err := m.Predict([]float64{0, 0}); err != nil || y != 11 {
		t.Errorf("small leaves: got %v, %v", y, err)
	}
	if y, err := m.Predict([]float64{1, 1}); err == nil {
		t.Errorf("large leaves: got %v", y)
	}
}

func TestPredictAllocatesNothing(t *testing.T) {
	m := mustRead(t, testFile(t, "model/p50.txt"), names())
	row := expectations(t)[10].row
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := m.Predict(row); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Predict allocates %v times", n)
	}
}

func TestPredictConcurrently(t *testing.T) {
	m := mustRead(t, testFile(t, "model/p50.txt"), names())
	all := expectations(t)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for _, e := range all {
				if got, err := m.Predict(e.row); err != nil || math.Abs(got-e.p50) > 1e-9 {
					t.Errorf("got %v, %v, want %v", got, err, e.p50)
				}
			}
		})
	}
	callers.Wait()
}

func TestInfoIsTheCallersOwn(t *testing.T) {
	m := mustRead(t, small, []string{"a", "b"})
	m.Info().Splits[0] = 99
	if m.Info().Splits[0] == 99 {
		t.Error("the model's info was changed from outside")
	}
}

func BenchmarkPredict(b *testing.B) {
	m := mustRead(b, grown(200, 31, fifteen()), fifteen())
	rows := make([][]float64, 64)
	for i := range rows {
		rows[i] = make([]float64, 15)
		for j := range rows[i] {
			rows[i][j] = math.Sin(float64(17*i + 5*j)) // spread over the thresholds
		}
		rows[i][i%15] = math.NaN()
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := m.Predict(rows[i%len(rows)]); err != nil {
			b.Fatal(err)
		}
	}
}
