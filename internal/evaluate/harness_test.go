package evaluate

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// row is an attempt that was sent to a backend at a second and took so long.
func row(backend string, sent, took float64) Row {
	return Row{Sample: predictor.Sample{At: instant(sent), Backend: backend, TTFT: seconds(took), Served: predictor.Analytic}}
}

// said adds what an estimator foresaw, in seconds.
func (r Row) said(k predictor.Kind, p50, p95 float64) Row {
	r.Said[k] = predictor.Prediction{P50: seconds(p50), P95: seconds(p95)}
	return r
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * float64(time.Second))) }

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*max(math.Abs(want), 1) || math.IsNaN(got) != math.IsNaN(want) {
		t.Errorf("%s is %v instead of %v", what, got, want)
	}
}

// smallFleet is two engines and requests that arrive at random, two a second.
func smallFleet(requests int, noise float64) *Fleet {
	p := engine.Params{
		Step:  engine.StepModel{T0: 10 * time.Millisecond, Alpha: 100, Beta: 1000, H: 2 * time.Millisecond},
		Noise: noise, KVBlocks: 4096,
	}
	c := replay.Config{Policy: "lmetric", Scrape: 500 * time.Millisecond, Seed: 1}
	for i, name := range []string{"a", "b"} {
		c.Engines = append(c.Engines, replay.Engine{Name: name, Model: "m", Params: p, Seed: uint64(i)})
	}
	lengths := trace.Source(func(yield func(trace.Request, error) bool) {
		for i := range requests {
			if !yield(trace.Request{Model: "m", PromptTokens: 200 + 37*(i%50), OutputTokens: 20 + i%30, Stream: true}, nil) {
				return
			}
		}
	})
	return &Fleet{Trace: "lengths", Name: "small", Config: c, Source: lengths.Retimed(trace.Poisson(2), 1)}
}

// measuredFolder is where the measured runs are, which are no part of the repository.
func measuredFolder(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("FIRSTTOKEN_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	dir = filepath.Join(dir, "measured")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("%s is not there; set FIRSTTOKEN_DATA to the folder of the data sets", dir)
	}
	return dir
}
