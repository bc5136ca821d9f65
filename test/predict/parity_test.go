package predict

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

const (
	numFeatures = 15
	numRows     = 10_000
	tolerance   = 1e-9
)

func TestPredictsAsLightGBM(t *testing.T) {
	folder := t.TempDir()
	train(t, folder)
	rows := floats(t, filepath.Join(folder, "rows.f64"), numRows*numFeatures)
	for _, name := range []string{"p50", "p95", "no_nan_in_training", "zero_as_missing", "mean"} {
		t.Run(name, func(t *testing.T) {
			m := read(t, filepath.Join(folder, name+".txt"))
			if info := m.Info(); info.Trees != 200 || info.MaxLeaves != 31 {
				t.Errorf("%d trees of at most %d leaves instead of 200 of 31", info.Trees, info.MaxLeaves)
			}
			worst := 0.0
			for i, want := range floats(t, filepath.Join(folder, name+".f64"), numRows) {
				row := rows[i*numFeatures : (i+1)*numFeatures]
				got, err := m.Predict(row)
				if err != nil {
					t.Fatalf("row %d: %v", i, err)
				}
				worst = max(worst, math.Abs(got-want))
				if !(math.Abs(got-want) <= tolerance) {
					t.Fatalf("row %d: %v: got %v, LightGBM says %v", i, row, got, want)
				}
			}
			t.Logf("largest difference over %d rows: %g", numRows, worst)
		})
	}
}

// train makes the models with LightGBM's own package.
func train(t *testing.T, folder string) {
	t.Helper()
	tools := os.Getenv("FIRSTTOKEN_PREDICT")
	if tools == "" {
		t.Skip("LightGBM is not installed: start these tests with test/predict/run")
	}
	if reason, err := os.ReadFile(filepath.Join(tools, "skip")); err == nil {
		t.Skip(string(reason))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	python := filepath.Join(tools, "python", "bin", "python")
	if out, err := exec.CommandContext(ctx, python, "train.py", folder).CombinedOutput(); err != nil {
		t.Fatalf("train.py: %v\n%s", err, out)
	}
}

func read(t *testing.T, name string) *trees.Model {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	names := make([]string, numFeatures)
	for i := range names {
		names[i] = fmt.Sprintf("feature_%d", i)
	}
	m, err := trees.Read(file, names)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// floats reads n numbers.
func floats(t *testing.T, name string, n int) []float64 {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	values := make([]float64, n)
	if err := binary.Read(file, binary.LittleEndian, values); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return values
}
