package app

import (
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// Whatever a profile leaves out, learning can start from it.
func TestPriors(t *testing.T) {
	if prior("") != nil {
		t.Error("no profile is a prior")
	}
	for _, name := range engine.ProfileNames() {
		s := prior(name)
		if s == nil || !(s.Fixed > 0 && s.Step > 0 && s.Token > 0 && s.Seq > 0 && s.Context > 0 && s.Square > 0) {
			t.Errorf("%s: %+v", name, s)
			continue
		}
		now := time.Unix(1_000_000, 0)
		pool, i := predictor.NewPool("m", predictor.Rules{}, nil), predictor.NewInstance(*s)
		for range 200 {
			a := pool.Begin(now, i, predictor.Work{Prompt: 100, Uncached: 100, Stream: true})
			for range 3 {
				now = now.Add(30 * time.Millisecond)
				a.Token(now)
			}
			a.Done(now, predictor.Completed)
		}
		f := pool.Predict(now, i, predictor.Work{Prompt: 100, Uncached: 100, Stream: true})
		if off := f.P50 - 30*time.Millisecond; off.Abs() > 5*time.Millisecond {
			t.Errorf("%s: after 200 requests of 30 ms, P50 is %v", name, f.P50)
		}
	}
}
