package predictor

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func says(p50, p95 float64) Prediction { return Prediction{P50: duration(p50), P95: duration(p95)} }

func closeTo(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(b)) }

func sameScore(a, b Score) bool {
	return a.Rows == b.Rows && closeTo(a.MAPE, b.MAPE) && closeTo(a.Coverage, b.Coverage) && closeTo(a.Pinball, b.Pinball) && closeTo(a.Bias, b.Bias)
}

// TestJudge: a score reckoned by hand.
func TestJudge(t *testing.T) {
	j := &judge{}
	if got := j.score(epoch); got != (Score{}) {
		t.Errorf("of nothing: %+v", got)
	}
	j.add(judged(epoch, says(1, 2), 1))     // right
	j.add(judged(epoch, says(1, 2), 2))     // twice as long, just covered
	j.add(judged(epoch, says(1, 2), 4))     // not covered
	j.add(judged(epoch, says(0.5, 1), 0.4)) // faster
	want := Score{
		Rows: 4, MAPE: (0 + 0.5 + 0.75 + 0.25) / 4, Coverage: 0.75,
		Pinball: (0.05*1 + 0 + 0.95*2 + 0.05*0.6) / 4,
		Bias:    (0 + math.Log(2) + math.Log(4) + math.Log(0.8)) / 4,
	}
	if got := j.score(epoch); !sameScore(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestJudgeForgets what is older than its window or beyond its number of rows.
func TestJudgeForgets(t *testing.T) {
	at := func(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }
	j := &judge{}
	for k := range 10 {
		j.add(judged(at(float64(k)), says(1, 1), 2))
	}
	tests := []struct {
		seconds float64
		rows    int
	}{{9, 10}, {300, 10}, {300.5, 9}, {304.5, 5}, {309.5, 0}, {4000, 0}}
	for _, test := range tests {
		got := j.score(at(test.seconds))
		if got.Rows != test.rows || test.rows > 0 && !closeTo(got.MAPE, 0.5) || test.rows == 0 && got != (Score{}) {
			t.Errorf("after %v s: %+v, want %d rows", test.seconds, got, test.rows)
		}
	}
	for k := range 2 * scoreRows {
		truth := 2.0
		if k >= scoreRows {
			truth = 1
		}
		j.add(judged(at(5000), says(1, 1), truth))
	}
	if got := j.score(at(5000)); got.Rows != scoreRows || !closeTo(got.MAPE, 0) || !closeTo(got.Coverage, 1) {
		t.Errorf("%+v, want the last %d, which were right", got, scoreRows)
	}
}

// TestJudgeAddsUp: after a million rows, in and out, the sums are those of the
// rows there are.
func TestJudgeAddsUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	j := &judge{}
	now := epoch
	for k := range 1_000_000 {
		now = now.Add(time.Duration(rng.ExpFloat64() * 0.8 * float64(time.Second)))
		truth := math.Exp(rng.NormFloat64() * 2)
		j.add(judged(now, says(truth*math.Exp(rng.NormFloat64()), truth*2), truth))
		if k%9973 != 0 {
			continue
		}
		got := j.score(now)
		fresh := &judge{}
		for n := range j.n {
			fresh.add(j.ring[(j.first+n)%scoreRows])
		}
		if want := fresh.score(now); !sameScore(got, want) {
			t.Fatalf("after %d rows: %+v, of the rows there are %+v", k, got, want)
		}
	}
}

// TestShift is the alarm on its own.
func TestShift(t *testing.T) {
	good := Score{Rows: scoreRows, Coverage: 0.95}
	few := Score{Rows: scoreRows - 1, Coverage: 0.5}
	tests := map[string]struct {
		move  float64 // of the error after 1000, in units of its noise
		score Score
		want  string
	}{
		"nothing happens":              {0, good, ""},
		"a little up":                  {0.2, good, ""},
		"up":                           {1.5, good, "shift"},
		"down":                         {-1.5, good, "shift"},
		"covers too few":               {0, Score{Rows: scoreRows, Coverage: 0.899}, "coverage"},
		"covers just enough":           {0, Score{Rows: scoreRows, Coverage: DriftLow}, ""},
		"covers too many":              {0, Score{Rows: scoreRows, Coverage: 0.99}, "coverage"},
		"covers just not too many":     {0, Score{Rows: scoreRows, Coverage: DriftHigh}, ""},
		"too few rows to know of that": {0, few, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(2, 2))
			s := &shift{}
			for range 1000 {
				if why := s.add(0.1*rng.NormFloat64(), good); why != "" {
					t.Fatalf("alarm %q on noise", why)
				}
			}
			for k := range 150 {
				why := s.add(0.1*(rng.NormFloat64()+test.move), test.score)
				if why == "" {
					continue
				}
				if why != test.want {
					t.Fatalf("alarm %q after %d, want %q", why, k+1, test.want)
				}
				for n := range alarmPause {
					if why := s.add(0.1*rng.NormFloat64()+5, Score{Rows: scoreRows}); why != "" {
						t.Fatalf("alarm %q %d after the first", why, n+1)
					}
				}
				if why := s.add(0, Score{Rows: scoreRows}); why != "coverage" {
					t.Errorf("%q though it is as bad after the pause", why)
				}
				return
			}
			if test.want != "" {
				t.Errorf("no alarm, want %q", test.want)
			}
		})
	}
}

// TestNoAlarmsOnNoise: in ten thousand requests of an unchanged load.
func TestNoAlarmsOnNoise(t *testing.T) {
	for name, draw := range map[string]func(*rand.Rand) float64{
		"even":   func(rng *rand.Rand) float64 { return rng.NormFloat64() },
		"skewed": func(rng *rand.Rand) float64 { return rng.ExpFloat64() },
	} {
		alarms := 0
		for seed := range uint64(20) {
			rng := rand.New(rand.NewPCG(seed, 3))
			s := &shift{}
			for range 10_000 {
				if s.add(draw(rng), Score{Rows: scoreRows, Coverage: 0.95}) != "" {
					alarms++
				}
			}
		}
		if alarms > 2 {
			t.Errorf("%s: %d alarms in 20 × 10,000 requests", name, alarms)
		}
	}
}
