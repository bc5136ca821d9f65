package predictor_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// wantSaid wants the same said as before, but for what the time of day does.
func wantSaid(t *testing.T, got, want [predictor.Kinds]predictor.Prediction) {
	t.Helper()
	for k := range predictor.Kinds {
		if !near(got[k].P50.Seconds(), want[k].P50.Seconds(), 0.001) || !near(got[k].P95.Seconds(), want[k].P95.Seconds(), 0.001) {
			t.Errorf("%v says %v, before %v", k, got[k], want[k])
		}
	}
}

// TestSamples: the watcher gets what was known, what everybody said and the truth.
func TestSamples(t *testing.T) {
	f := newTraffic(predictor.Rules{})
	a := f.pool.Begin(after(1), f.on, predictor.Work{Prompt: 300, Uncached: 100, Max: 50, Turn: 2, Stream: true})
	a.Name("gpu-1", "r7")
	said, by := a.Said()
	if len(f.watch.samples) != 0 {
		t.Fatal("a sample before the first token")
	}
	a.Token(after(1.5))
	a.Token(after(1.6))
	a.Done(after(1.7), predictor.Completed)
	if len(f.watch.samples) != 1 {
		t.Fatalf("%d samples of one attempt", len(f.watch.samples))
	}
	s := f.watch.samples[0]
	if !s.At.Equal(after(1)) || s.Model != "m" || s.Backend != "gpu-1" || s.Revision != "r7" {
		t.Errorf("of %v, model %q, backend %q, revision %q", s.At, s.Model, s.Backend, s.Revision)
	}
	if s.TTFT != 500*time.Millisecond || s.Censored || s.Regime != predictor.Idle {
		t.Errorf("TTFT %v, censored %v, regime %v", s.TTFT, s.Censored, s.Regime)
	}
	if s.Features[predictor.PromptTokens] != 300 || s.Features[predictor.UncachedTokens] != 100 {
		t.Errorf("features %v", s.Features)
	}
	if s.Served != linear || by != linear || s.Said[linear] != said {
		t.Errorf("served %v, said by %v %v, sample %v", s.Served, by, said, s.Said)
	}
	if s.Said[trees] != (predictor.Prediction{}) {
		t.Errorf("LightGBM said %v without a model", s.Said[trees])
	}
	wantFinite(t, s.Said[analytic])
	wantFinite(t, s.Said[linear])

	f.pool.SetModel(&oracle{p50: math.Log(2), p95: math.Log(3)})
	a = f.pool.Begin(after(100), f.on, prompt(100))
	base := a.Sample().Features[predictor.Base]
	for k := range predictor.Kinds {
		wantFinite(t, a.Sample().Said[k])
	}
	if got := a.Sample().Said[trees].P50.Seconds() / base; !near(got, 2, 0.001) {
		t.Errorf("LightGBM's P50 is %v times the base, the model said 2", got)
	}
	if got := f.pool.Predict(after(100), f.on, prompt(100)); got.Kind != linear {
		t.Errorf("%v serves at first, want linear", got.Kind)
	}
}

// TestBeginSaysWhatPredictSaid: the router's word and the sample's are one.
func TestBeginSaysWhatPredictSaid(t *testing.T) {
	laws(t, 20, func(t *testing.T, rng *rand.Rand) {
		b := newBusy(rng, plain)
		b.pool.SetModel(&oracle{p95: 0.2})
		for range 20 {
			b.live(10)
			w := randomWork(rng)
			f := b.pool.Predict(after(b.now), b.on, w)
			a := b.pool.Begin(after(b.now), b.on, w)
			b.under = append(b.under, a)
			if said, by := a.Said(); said != f.Prediction || by != f.Kind || a.Sample().Regime != f.Regime {
				t.Errorf("%v said %v in %v, and then %v %v in %v", f.Kind, f.Prediction, f.Regime, by, said, a.Sample().Regime)
			}
		}
	})
}

// TestSwitchOnError: when the error of who serves passes the limit and a shadow
// is better, the pool switches within one window; the switch is told with its numbers.
func TestSwitchOnError(t *testing.T) {
	f := newTraffic(predictor.Rules{})
	model := &oracle{p95: 0.1}
	f.pool.SetModel(model)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		f.serve(1)
	}
	if len(f.watch.switches) != 0 {
		t.Fatalf("switched without a reason: %+v", f.watch.switches)
	}
	passed := time.Time{}
	for range 1000 {
		off := rng.NormFloat64() * 0.5 // the model knows, the others don't
		model.say(off, off+0.1, nil)
		f.serve(math.Exp(off))
		r := f.pool.Report(after(f.now))
		if passed.IsZero() && r.Scores[linear][predictor.Regimes].MAPE > 0.12 {
			passed = after(f.now)
		}
		if len(f.watch.switches) > 0 {
			break
		}
	}
	if passed.IsZero() || len(f.watch.switches) != 1 {
		t.Fatalf("limit passed at %v, switches %+v", passed, f.watch.switches)
	}
	s := f.watch.switches[0]
	if late := s.At.Sub(passed); late > 5*time.Second {
		t.Errorf("switched %v after the error passed the limit", late)
	}
	if s.From != linear || s.To != trees || s.Why != predictor.WhyError || s.Pool != "m" {
		t.Errorf("switch %+v", s)
	}
	if own, next := s.Standing.Scores[linear].MAPE, s.Standing.Scores[trees].MAPE; own <= 0.12 || next >= own {
		t.Errorf("standing: the error was %v, the successor's %v", own, next)
	}
	if got := f.pool.Predict(after(f.now), f.on, prompt(100)).Kind; got != trees || f.pool.Report(after(f.now)).Serving != trees {
		t.Errorf("%v serves after the switch", got)
	}
	if _, by := f.serve(1).Said(); by != trees {
		t.Errorf("%v counts after the switch", by)
	}
	for range 1000 { // the rate is low, but the linear one is as bad as it was
		off := rng.NormFloat64() * 0.5
		model.say(off, off+0.1, nil)
		f.serve(math.Exp(off))
	}
	if n := len(f.watch.switches); n != 1 {
		t.Errorf("%d switches, the last %+v", n, f.watch.switches[n-1])
	}
	model.say(0, 0.1, nil)
	for range 1000 {
		f.serve(1)
	}
	if n := len(f.watch.switches); n != 2 || f.watch.switches[1].To != linear || f.watch.switches[1].Why != predictor.WhyLowRate {
		t.Errorf("the linear one is good again, and the rate low: %d switches", n)
	}
}

// TestNoFlapping: an hour of even traffic with errors on both sides of the
// limit switches a few times at most.
func TestNoFlapping(t *testing.T) {
	f := newTraffic(predictor.Rules{})
	f.gap = 0.3
	f.pool.SetModel(&oracle{p95: 0.3})
	rng := rand.New(rand.NewPCG(5, 1))
	for f.now < 3600 {
		f.serve(math.Exp(rng.NormFloat64() * 0.15)) // a MAPE of about 12 % for everybody
	}
	if n := len(f.watch.switches); n > 3 {
		t.Errorf("%d switches in an hour of unchanged load", n)
	}
}

// TestVolatileTraffic: bursts take LightGBM.
func TestVolatileTraffic(t *testing.T) {
	f := newTraffic(predictor.Rules{MaxMAPE: 10})
	f.pool.SetModel(&oracle{p95: 0.1})
	for second := range 120 {
		f.now = float64(second)
		for range second / 5 % 2 * 4 { // none for 5 s, then four a second
			f.gap = 0
			f.serve(0.1)
		}
	}
	if n := len(f.watch.switches); n == 0 || f.watch.switches[0].To != trees || f.watch.switches[0].Why != predictor.WhyVolatile {
		t.Errorf("switches %+v", f.watch.switches)
	}
}

// TestSetModel: a model is in force with the next request and gone with the next.
func TestSetModel(t *testing.T) {
	f := newTraffic(predictor.Rules{MaxMAPE: 10, VolatileCV: 1e-9, LowRate: 1e-9, Dwell: time.Nanosecond})
	f.pool.SetModel(&oracle{p50: 1, p95: 1.5})
	for range 20 {
		f.now = math.Ceil(f.now)
		f.serve(1)
		f.serve(1)
		f.now += 1.1
	}
	kind := func() predictor.Kind { return f.pool.Predict(after(f.now), f.on, prompt(100)).Kind }
	if kind() != trees {
		t.Fatalf("%v serves volatile traffic", kind())
	}
	f.pool.SetModel(nil)
	if kind() != analytic {
		t.Errorf("%v serves without a model", kind())
	}
	a := f.serve(1)
	if said, by := a.Said(); by != analytic || said != a.Sample().Said[analytic] || a.Sample().Said[trees] != (predictor.Prediction{}) {
		t.Errorf("%v says %v; sample %v", by, said, a.Sample().Said)
	}
	f.pool.SetModel(&oracle{p50: 1, p95: 1.5})
	if kind() != trees {
		t.Errorf("%v serves with a model again", kind())
	}
}

// TestModelIsAskedOnce: what the choice was told of an instance is what the
// attempt there is told, and the model is not asked again; but it is when
// anything has changed, itself included.
func TestModelIsAskedOnce(t *testing.T) {
	f := newTraffic(predictor.Rules{MaxMAPE: 10, VolatileCV: 1e-9, LowRate: 1e-9, Dwell: time.Nanosecond})
	model := &oracle{p50: 1, p95: 1.5}
	f.pool.SetModel(model)
	for range 20 {
		f.now = math.Ceil(f.now)
		f.serve(1)
		f.serve(1)
		f.now += 1.1
	}
	other := predictor.NewInstance(plain)
	predict := func(at float64, on *predictor.Instance, tokens int) predictor.Forecast {
		return f.pool.Predict(after(at), on, prompt(tokens))
	}
	model.asked = 0
	told := predict(f.now, f.on, 100)
	predict(f.now, other, 100)
	if a := f.pool.Begin(after(f.now), f.on, prompt(100)); a.Sample().Said[trees] != told.Prediction || told.Kind != trees {
		t.Errorf("the attempt is told %v, the choice was told %v by %v", a.Sample().Said[trees], told.Prediction, told.Kind)
	}
	if model.asked != 2 {
		t.Errorf("asked %d times of two instances", model.asked)
	}
	predict(f.now, f.on, 100) // the attempt is pending there now
	predict(f.now, other, 101)
	predict(f.now+0.1, other, 101)
	if model.asked != 5 {
		t.Errorf("asked %d times of five things", model.asked)
	}
	f.pool.SetModel(&oracle{p50: 2, p95: 2.5})
	if again := predict(f.now+0.1, other, 101); again.Kind != trees || again.P50 < time.Second {
		t.Errorf("another model says %v by %v", again.P50, again.Kind)
	}
}

// TestBadModels: what a model can't say falls back to the analytic estimator,
// and teaches nothing.
func TestBadModels(t *testing.T) {
	tests := map[string]struct {
		p50, p95 float64
		err      error
		ok       bool
	}{
		"sane":                  {0.1, 0.3, nil, true},
		"P95 below P50":         {0.3, 0.1, nil, true},
		"fails":                 {0, 0, errors.New("no"), false},
		"P50 not a number":      {nan, 0, nil, false},
		"P95 not a number":      {0, nan, nil, false},
		"infinite":              {0, math.Inf(1), nil, false},
		"infinitely fast":       {math.Inf(-1), 0, nil, false},
		"beyond what a base is": {6, 6, nil, false},
		"beyond, below":         {-6, 0, nil, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newTraffic(predictor.Rules{})
			f.pool.SetModel(&oracle{p50: test.p50, p95: test.p95, err: test.err})
			a := f.serve(1)
			got := a.Sample().Said[trees]
			if !test.ok {
				if got != (predictor.Prediction{}) || f.pool.Report(after(f.now)).Scores[trees][predictor.Regimes].Rows != 0 {
					t.Errorf("said %v, and was judged by it", got)
				}
				return
			}
			wantFinite(t, got)
			if f.pool.Report(after(f.now)).Scores[trees][predictor.Regimes].Rows != 1 {
				t.Error("was not judged")
			}
		})
	}
}

// TestLowerBounds: a client that left says how long it would have taken at
// least, and never that it was fast.
func TestLowerBounds(t *testing.T) {
	steady := func() *traffic {
		f := newTraffic(predictor.Rules{})
		f.pool.SetModel(&oracle{p95: 0.1})
		rng := rand.New(rand.NewPCG(2, 2))
		for range 100 {
			f.serve(math.Exp(rng.NormFloat64() * 0.1))
		}
		return f
	}
	relative := func(f *traffic, of func(predictor.Prediction) time.Duration) (out [predictor.Kinds]float64) {
		base := f.pool.Begin(after(f.now), f.on, prompt(100))
		base.Done(after(f.now), predictor.Failed)
		for k := range predictor.Kinds {
			out[k] = of(base.Sample().Said[k]).Seconds() / base.Sample().Features[predictor.Base]
		}
		return out
	}
	p50 := func(p predictor.Prediction) time.Duration { return p.P50 }
	p95 := func(p predictor.Prediction) time.Duration { return p.P95 }

	t.Run("below the prediction they teach nothing", func(t *testing.T) {
		f := steady()
		before := f.said()
		for range 200 {
			f.leave(0.3, predictor.Left)
		}
		wantSaid(t, f.said(), before)
	})
	t.Run("above it they teach slow", func(t *testing.T) {
		f := steady()
		low, high := relative(f, p50), relative(f, p95)
		for range 60 {
			f.leave(3, predictor.Left)
		}
		for k := range predictor.Kinds {
			if got := relative(f, p95)[k]; got < high[k]*1.5 {
				t.Errorf("%v: P95 went from %v to %v times the base", k, high[k], got)
			}
			if got := relative(f, p50)[k]; got < low[k] {
				t.Errorf("%v: P50 went from %v down to %v times the base", k, low[k], got)
			}
		}
	})
	t.Run("never fast, whenever the client leaves", func(t *testing.T) {
		for leave := 0.5; leave < 2; leave += 0.05 {
			f := steady()
			low, high := relative(f, p50), relative(f, p95)
			for range 100 {
				f.leave(leave, predictor.Left)
			}
			for k := range predictor.Kinds {
				if got := relative(f, p50)[k]; got < low[k]*0.999 {
					t.Errorf("left at %.2f: %v: P50 went from %v down to %v times the base", leave, k, low[k], got)
				}
				if got := relative(f, p95)[k]; got < high[k]*0.999 {
					t.Errorf("left at %.2f: %v: P95 went from %v down to %v times the base", leave, k, high[k], got)
				}
			}
		}
	})
	t.Run("their sample says so", func(t *testing.T) {
		f := steady()
		n := len(f.watch.samples)
		a := f.leave(0.5, predictor.Left)
		s := f.watch.samples[len(f.watch.samples)-1]
		if len(f.watch.samples) != n+1 || !s.Censored || s.TTFT <= 0 || s.TTFT != a.Sample().TTFT {
			t.Errorf("%d samples, the last %+v", len(f.watch.samples)-n, s)
		}
	})
	t.Run("after the first token there is no bound", func(t *testing.T) {
		f := steady()
		n := len(f.watch.samples)
		a := f.pool.Begin(after(f.now), f.on, prompt(100))
		a.Token(after(f.now + 0.2))
		a.Done(after(f.now+0.3), predictor.Left)
		if len(f.watch.samples) != n+1 || f.watch.samples[n].Censored {
			t.Errorf("%d samples, the last %+v", len(f.watch.samples)-n, f.watch.samples[n])
		}
	})
	t.Run("an answer in one piece has none", func(t *testing.T) {
		f := steady()
		n := len(f.watch.samples)
		a := f.pool.Begin(after(f.now), f.on, predictor.Work{Prompt: 100, Uncached: 100})
		a.Done(after(f.now+5), predictor.Left)
		if len(f.watch.samples) != n {
			t.Errorf("a sample of nothing that was seen: %+v", f.watch.samples[n])
		}
	})
}

// TestFailuresTeachNothing: least of all that an engine is fast.
func TestFailuresTeachNothing(t *testing.T) {
	f := newTraffic(predictor.Rules{})
	for range 100 {
		f.serve(1.1)
	}
	before, n := f.said(), len(f.watch.samples)
	scores := f.pool.Report(after(f.now)).Scores
	for range 100 {
		f.leave(0.01, predictor.Failed)
		f.leave(9, predictor.Failed)
	}
	wantSaid(t, f.said(), before)
	if len(f.watch.samples) != n {
		t.Errorf("%d samples of failures", len(f.watch.samples)-n)
	}
	if got := f.pool.Report(after(f.now)).Scores[linear][predictor.Regimes].Rows; got > scores[linear][predictor.Regimes].Rows {
		t.Error("failures were judged")
	}
}

// TestDrift: an error that moves for good, or a P95 that covers too few, raises
// an alarm, gives P95 more room, and then there is a pause.
func TestDrift(t *testing.T) {
	f := newTraffic(predictor.Rules{})
	rng := rand.New(rand.NewPCG(4, 4))
	noise := func() float64 { return math.Exp(rng.NormFloat64() * 0.05) }
	for range 1500 {
		f.serve(noise())
	}
	if len(f.watch.alarms) != 0 {
		t.Fatalf("alarms on an unchanged load: %+v", f.watch.alarms)
	}
	first := 0
	for k := range 300 {
		f.serve(1.3 * noise())
		if len(f.watch.alarms) > 0 {
			first = k + 1
			break
		}
	}
	if first == 0 {
		t.Fatal("no alarm though the error moved by 30 %")
	}
	a := f.watch.alarms[0]
	if a.Why != "shift" || a.Pool != "m" || !(a.Coverage > 0 && a.Coverage < 1) {
		t.Errorf("alarm %+v", a)
	}
	var last [predictor.Kinds]time.Time
	served := map[predictor.Kind]int{}
	for _, a := range f.watch.alarms {
		served[a.Kind]++
		last[a.Kind] = a.At
	}
	for range 400 {
		f.serve(1.3 * noise())
	}
	again := map[predictor.Kind]int{}
	for _, a := range f.watch.alarms {
		again[a.Kind]++
	}
	for k, n := range again {
		if n > 1 {
			t.Errorf("%v: %d alarms within the pause, the first at %v", k, n, last[k])
		}
	}
}

// TestDriftWidens: after an alarm P95 has more room than without.
func TestDriftWidens(t *testing.T) {
	f := newTraffic(predictor.Rules{})
	rng := rand.New(rand.NewPCG(4, 4))
	for range 600 {
		f.serve(math.Exp(rng.NormFloat64() * 0.05))
	}
	for k := 0; len(f.watch.alarms) == 0 && k < 300; k++ {
		before := f.said()[analytic]
		f.serve(1.3 * math.Exp(rng.NormFloat64()*0.05))
		if len(f.watch.alarms) == 0 || f.watch.alarms[0].Kind != analytic {
			continue
		}
		now := f.said()[analytic]
		if room, had := now.P95.Seconds()/now.P50.Seconds(), before.P95.Seconds()/before.P50.Seconds(); room < had*1.05 {
			t.Errorf("P95 is %v times P50 after the alarm, before %v", room, had)
		}
		return
	}
	t.Fatalf("alarms %+v", f.watch.alarms)
}

// TestYoungEngines: while little is known of an engine's speed, P95 keeps its
// distance, and how wrong the base was teaches nothing of the others.
func TestYoungEngines(t *testing.T) {
	f := newTraffic(predictor.Rules{})
	wide := func(a *predictor.Attempt) bool {
		p, _ := a.Said()
		return p.P95.Seconds() > 2.7*p.P50.Seconds()
	}
	for k := range 40 {
		if a := f.serve(1); wide(a) != (k < 20) && k != 20 { // a span is learned with the next
			t.Errorf("request %d: %v", k+1, a.Sample().Said)
		}
	}
	before := f.said()
	old := f.on
	f.on = predictor.NewInstance(plain)
	for range 15 {
		f.serve(3)
	}
	f.on = old
	wantSaid(t, f.said(), before)
}

// TestCoverageOfPool: what the pool says is exceeded by one request in twenty.
func TestCoverageOfPool(t *testing.T) {
	f := newTraffic(predictor.Rules{})
	f.pool.SetModel(&oracle{p95: 0.02})
	rng := rand.New(rand.NewPCG(6, 6))
	for range 4000 {
		f.serve(1.2 * math.Exp(rng.NormFloat64()*0.2) * (1 + rng.ExpFloat64()*0.1))
	}
	for k := range predictor.Kinds {
		covered := 0
		last := f.watch.samples[1000:]
		for _, s := range last {
			if s.TTFT <= s.Said[k].P95 {
				covered++
			}
		}
		if share := float64(covered) / float64(len(last)); math.Abs(share-0.95) > 0.02 {
			t.Errorf("%v: P95 covers %.3f", k, share)
		}
	}
}

// TestPredictAllocates: nothing.
func TestPredictAllocates(t *testing.T) {
	b := newBusy(rand.New(rand.NewPCG(8, 8)), plain)
	b.live(300)
	tests := map[predictor.Kind]predictor.Rules{
		linear:   {MaxMAPE: 100},
		analytic: {MaxMAPE: 1e-9, MinSamples: 1, Dwell: time.Nanosecond, Margin: 1e-9},
	}
	for kind, rules := range tests {
		t.Run(kind.String(), func(t *testing.T) {
			f := newTraffic(rules)
			rng := rand.New(rand.NewPCG(3, 3))
			serving := func() predictor.Kind { return f.pool.Predict(after(f.now), f.on, prompt(1)).Kind }
			for k := 0; k < 100 || serving() != kind && k < 3000; k++ {
				f.serve(math.Exp(rng.NormFloat64()))
			}
			if got := serving(); got != kind {
				t.Fatalf("%v serves", got)
			}
			now, w := after(b.now), prompt(1000)
			if n := testing.AllocsPerRun(500, func() { f.pool.Predict(now, b.on, w) }); n != 0 {
				t.Errorf("%v allocations a prediction", n)
			}
		})
	}
}
