package predictor_test

import (
	"math"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// What an instance's predictions came to is the mean of what was said and of
// what came true, of the last 100 within 5 minutes.
func TestLately(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	p := predictor.NewPool("m", predictor.Rules{}, nil)
	i := predictor.NewInstance(predictor.Speed{Fixed: 0.004, Step: 0.02, Token: 100e-6, Seq: 60e-6, Context: 60e-9, Square: 1e-9})
	other := predictor.NewInstance(predictor.Speed{Fixed: 1, Step: 1})
	if got := p.Lately(now, i); got != (predictor.Lately{}) {
		t.Errorf("of nothing: %+v", got)
	}
	type row struct{ p50, p95, ttft float64 }
	var rows []row
	for k := range 130 {
		a := p.Begin(now, i, predictor.Work{Prompt: 100, Uncached: 100, Stream: true})
		ttft := 50 * time.Millisecond
		if k%10 == 0 {
			ttft = time.Second
		}
		now = now.Add(ttft)
		said, _ := a.Said()
		a.Token(now)
		a.Done(now, predictor.Completed)
		rows = append(rows, row{said.P50.Seconds(), said.P95.Seconds(), ttft.Seconds()})
	}
	left := p.Begin(now, i, predictor.Work{Prompt: 100, Uncached: 100, Stream: true})
	left.Done(now.Add(time.Hour), predictor.Left) // a lower bound is no truth
	want := predictor.Lately{Rows: 100}
	var p50, p95, ttft float64
	for _, r := range rows[30:] {
		p50, p95, ttft = p50+r.p50, p95+r.p95, ttft+r.ttft
		want.MAPE += math.Abs(r.p50-r.ttft) / r.ttft / 100
		if r.ttft <= r.p95 {
			want.Coverage += 0.01
		}
	}
	got := p.Lately(now, i)
	near := func(a time.Duration, seconds float64) bool { return math.Abs(a.Seconds()-seconds/100) < 1e-6 }
	if got.Rows != 100 || !near(got.P50, p50) || !near(got.P95, p95) || !near(got.Actual, ttft) ||
		math.Abs(got.MAPE-want.MAPE) > 1e-9 || math.Abs(got.Coverage-want.Coverage) > 1e-9 {
		t.Errorf("%+v, want %+v and sums %v, %v, %v", got, want, p50, p95, ttft)
	}
	if got.Actual != 145*time.Millisecond {
		t.Errorf("actual mean %v, want 145ms", got.Actual)
	}
	if got := p.Lately(now, other); got.Rows != 0 {
		t.Errorf("of another instance: %+v", got)
	}
	if got := p.Lately(now.Add(5*time.Minute), i); got.Rows != 1 {
		t.Errorf("%d rows after 5 minutes, want 1: the last", got.Rows)
	}
}
