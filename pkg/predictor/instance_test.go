package predictor_test

import (
	"math"
	oldrand "math/rand"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"testing/quick"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// laws runs a law over fixed seeds.
func laws(t *testing.T, n uint64, law func(t *testing.T, rng *rand.Rand)) {
	t.Helper()
	for seed := range n {
		law(t, rand.New(rand.NewPCG(seed, 9)))
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

// busy lets an engine live a random life for a while: requests, tokens, ends
// and scrapes. What is still under way at the end is returned.
type busy struct {
	*script
	rng   *rand.Rand
	now   float64
	under []*predictor.Attempt
	back  bool // the clock may be put back
}

func newBusy(rng *rand.Rand, prior predictor.Speed) *busy {
	return &busy{script: newScript(prior), rng: rng}
}

func randomWork(rng *rand.Rand) predictor.Work {
	w := predictor.Work{Prompt: int(math.Exp(rng.Float64() * 10)), Max: rng.IntN(500), Turn: rng.IntN(4), Stream: rng.IntN(5) > 0}
	w.Uncached = w.Prompt
	if rng.IntN(2) == 0 {
		w.Uncached = rng.IntN(w.Prompt + 1)
	}
	if rng.IntN(3) == 0 {
		w.TPOT = 50 * time.Millisecond
	}
	return w
}

func randomScrape(rng *rand.Rand, at float64) predictor.Scrape {
	known := func(v float64) float64 {
		if rng.IntN(5) == 0 {
			return nan
		}
		return v
	}
	s := scraped(at)
	s.Running, s.Waiting = known(float64(rng.IntN(40))), known(float64(rng.IntN(10)))
	s.KVUse, s.Hit, s.CPU = known(rng.Float64()), known(rng.Float64()), known(3*rng.Float64())
	s.CacheTokens, s.Started = known(float64(1+rng.IntN(200_000))), known(float64(1+rng.IntN(2)))
	s.OwnInFlight = rng.IntN(20)
	return s
}

func (b *busy) live(events int) {
	for range events {
		b.now += b.rng.ExpFloat64() * 0.05
		if b.back && b.rng.IntN(20) == 0 {
			b.now -= 600 * b.rng.Float64()
		}
		switch k := b.rng.IntN(10); {
		case k < 2 || len(b.under) == 0:
			b.under = append(b.under, b.pool.Begin(after(b.now), b.on, randomWork(b.rng)))
		case k < 7:
			b.under[b.rng.IntN(len(b.under))].Token(after(b.now))
		case k < 9:
			b.end(b.rng.IntN(len(b.under)))
		default:
			s := randomScrape(b.rng, b.now)
			b.on.Scraped(&s)
		}
	}
}

func (b *busy) end(k int) {
	a := b.under[k]
	a.Cached(b.rng.IntN(1000))
	a.Done(after(b.now), predictor.End(b.rng.IntN(3)))
	b.under = append(b.under[:k], b.under[k+1:]...)
}

// base is the analytic estimate for w now, and leaves no trace.
func (b *busy) base(w predictor.Work) float64 { return b.features(w)[predictor.Base] }

// features of w now; the question is taken back at once.
func (b *busy) features(w predictor.Work) predictor.Features {
	a := b.pool.Begin(after(b.now), b.on, w)
	a.Done(after(b.now), predictor.Failed)
	return a.Sample().Features
}

func wantKnown(t *testing.T, f *predictor.Features) {
	t.Helper()
	for _, k := range []int{
		predictor.PendingTokens, predictor.PendingRequests, predictor.DecodeRequests, predictor.DecodeContext,
		predictor.Base, predictor.OwnShare, predictor.QueueShare, predictor.Steps, predictor.Blocked,
		predictor.BatchContext, predictor.CacheTrust,
	} {
		if !(f[k] >= 0) || math.IsInf(f[k], 0) {
			t.Errorf("%s is %v", predictor.Names()[k], f[k])
		}
	}
	if !(f[predictor.Base] > 0) {
		t.Errorf("base %v", f[predictor.Base])
	}
}

// TestForecastIsFinite: whatever an engine lives through, what is said of a
// request is a time, and the mirror's counts are counts.
func TestForecastIsFinite(t *testing.T) {
	for name, back := range map[string]bool{"time goes on": false, "the clock is put back": true} {
		t.Run(name, func(t *testing.T) {
			laws(t, 60, func(t *testing.T, rng *rand.Rand) {
				b := newBusy(rng, plain)
				b.back = back
				for range 20 {
					b.live(20)
					w := randomWork(rng)
					f := b.pool.Predict(after(b.now), b.on, w)
					wantFinite(t, f.Prediction)
					if f.TPOT <= 0 || f.Harmed < 0 || f.Pending < 0 {
						t.Errorf("%+v", f)
					}
					x := b.features(w)
					wantKnown(t, &x)
				}
			})
		})
	}
}

// TestForecastOfAnyWork: no request is too odd to be forecast.
func TestForecastOfAnyWork(t *testing.T) {
	s := play(plain, decoding(0, 3), send(0.4, "b", prompt(5000)))
	law := func(prompt, uncached, most, turn int32, stream bool) bool {
		w := predictor.Work{Prompt: int(prompt), Uncached: int(uncached), Max: int(most), Turn: int(turn), Stream: stream}
		f := s.pool.Predict(after(0.5), s.on, w)
		a := s.pool.Begin(after(0.5), s.on, w)
		a.Token(after(0.5))
		a.Done(after(0.5), predictor.Completed)
		later := s.pool.Predict(after(0.5), s.on, w)
		return f.P50 > 0 && f.P50 <= f.P95 && f.TPOT > 0 && later.P50 > 0 && later.P50 <= later.P95
	}
	if err := quick.Check(law, &quick.Config{MaxCount: 2000, Rand: oldrand.New(oldrand.NewSource(1))}); err != nil {
		t.Error(err)
	}
	wantFinite(t, s.pool.Predict(after(1), s.on, predictor.Work{Prompt: 100, Uncached: 100, Stream: true}).Prediction)
}

// TestForecastOfHostileScrapes: engines may say anything; the mirror must come
// back to its senses with the next sane scrape.
func TestForecastOfHostileScrapes(t *testing.T) {
	odd := []float64{0, -1, 1e-300, 1e9, 1e18, 1e300, math.Inf(1), math.Inf(-1), nan}
	laws(t, 300, func(t *testing.T, rng *rand.Rand) {
		any := func() float64 { return odd[rng.IntN(len(odd))] }
		s := play(plain, decoding(0, 3), send(0.4, "b", prompt(5000)))
		for k := range 6 {
			at := 0.5 + float64(k)/100
			m := scraped(at)
			m.Running, m.Waiting, m.KVUse, m.Hit, m.CPU, m.CacheTokens = any(), any(), any(), any(), any(), any()
			s.on.Scraped(&m)
			wantFinite(t, s.pool.Predict(after(at), s.on, prompt(100)).Prediction)
			a := s.pool.Begin(after(at), s.on, prompt(100))
			a.Token(after(at + 0.2))
			a.Done(after(at+0.2), predictor.Completed)
		}
		sane := scraped(10)
		sane.Running, sane.Waiting, sane.KVUse, sane.Hit, sane.CPU, sane.CacheTokens = 1, 0, 0.1, 0, 1, 1e6
		s.on.Scraped(&sane)
		x := s.ask(10, prompt(100))
		wantKnown(t, &x)
		if f := s.pool.Predict(after(10), s.on, prompt(100)); f.P95 > time.Hour {
			t.Errorf("%+v after a sane scrape", f)
		}
	})
}

// TestForecastOfHostilePriors: a profile may state any speed.
func TestForecastOfHostilePriors(t *testing.T) {
	odd := []float64{0, 1e-12, 1e-3, 1, 1e6}
	laws(t, 300, func(t *testing.T, rng *rand.Rand) {
		any := func() float64 { return odd[rng.IntN(len(odd))] }
		b := newBusy(rng, predictor.Speed{Fixed: any(), Step: any(), Token: any(), Seq: any(), Context: any(), Square: any()})
		for range 10 {
			b.live(20)
			wantFinite(t, b.pool.Predict(after(b.now), b.on, randomWork(rng)).Prediction)
		}
	})
}

// TestLongerQueueWaitsLonger: one more request ahead never makes the first
// token come earlier, nor does a longer one.
func TestLongerQueueWaitsLonger(t *testing.T) {
	laws(t, 400, func(t *testing.T, rng *rand.Rand) {
		b := newBusy(rng, plain)
		b.live(rng.IntN(150))
		ask := randomWork(rng)
		last := b.base(ask)
		for k := range 1 + rng.IntN(12) {
			ahead := randomWork(rng)
			b.pool.Begin(after(b.now), b.on, ahead)
			now := b.base(ask)
			if now < last*(1-1e-9) {
				t.Errorf("with %d more ahead, the last %+v: %v, before %v", k+1, ahead, now, last)
			}
			last = now
		}
	})
}

// TestDeeperQueueWaitsLonger: the same where more is pending than is looked at
// step by step.
func TestDeeperQueueWaitsLonger(t *testing.T) {
	laws(t, 20, func(t *testing.T, rng *rand.Rand) {
		b := newBusy(rng, generic)
		b.live(rng.IntN(50))
		roomy := scraped(b.now + 0.001) // where slots or the cache bind, what is beyond is a guess
		b.on.Scraped(&roomy)
		last := 0.0
		for k := range 80 {
			ahead := prompt(1 + rng.IntN(20_000))
			b.pool.Begin(after(b.now), b.on, ahead)
			now := b.base(prompt(60_000))
			if now < last*(1-1e-9) {
				t.Errorf("with %d more ahead, the last of %d tokens: %v, before %v", k+1, ahead.Prompt, now, last)
			}
			last = now
		}
	})
}

// TestLongerPromptTakesLonger: the request's own prompt.
func TestLongerPromptTakesLonger(t *testing.T) {
	laws(t, 300, func(t *testing.T, rng *rand.Rand) {
		b := newBusy(rng, plain)
		b.live(rng.IntN(150))
		last := 0.0
		for n := 1; n < 2_000_000; n += 1 + n/2 + rng.IntN(n) {
			now := b.base(prompt(n))
			if now < last*(1-1e-9) {
				t.Errorf("%d tokens: %v, fewer took %v", n, now, last)
			}
			last = now
		}
	})
}

// TestMoreCachedComesEarlier: of the same prompt.
func TestMoreCachedComesEarlier(t *testing.T) {
	laws(t, 300, func(t *testing.T, rng *rand.Rand) {
		b := newBusy(rng, plain)
		b.live(rng.IntN(150))
		n := 1 + rng.IntN(100_000)
		last := math.Inf(1)
		for uncached := n; uncached >= 0; uncached -= 1 + rng.IntN(n/5+1) {
			now := b.base(predictor.Work{Prompt: n, Uncached: uncached, Stream: true})
			if now > last*(1+1e-9) {
				t.Errorf("%d of %d cached: %v, with fewer %v", n-uncached, n, now, last)
			}
			last = now
		}
	})
}

// occupancy is what the mirror says of the work under way.
func occupancy(f predictor.Features) [4]float64 {
	return [4]float64{f[predictor.PendingTokens], f[predictor.PendingRequests], f[predictor.DecodeRequests], f[predictor.DecodeContext]}
}

// TestOrderOfEnds: in whatever order requests end, the same is left; and
// nothing is left when all have ended.
func TestOrderOfEnds(t *testing.T) {
	laws(t, 100, func(t *testing.T, rng *rand.Rand) {
		seed, events, leave := rng.Uint64(), rng.IntN(200), rng.IntN(3)
		var left []predictor.Features
		for range 3 {
			b := newBusy(rand.New(rand.NewPCG(seed, 0)), plain)
			b.live(events)
			ends := b.under[min(leave, len(b.under)):]
			for _, k := range rng.Perm(len(ends)) {
				ends[k].Done(after(b.now), predictor.Left)
			}
			quiet := scraped(b.now + 0.001)
			b.on.Scraped(&quiet) // no others
			left = append(left, b.features(prompt(100)))
			for _, a := range b.under {
				a.Done(after(b.now), predictor.Left)
			}
			f := b.pool.Predict(after(b.now+1), b.on, prompt(100))
			if got := occupancy(b.features(prompt(100))); got != [4]float64{} || f.Regime != predictor.Idle {
				t.Errorf("all ended: %v, %v", got, f.Regime)
			}
		}
		for _, f := range left[1:] {
			if occupancy(f) != occupancy(left[0]) || f[predictor.Base] != left[0][predictor.Base] {
				t.Errorf("another order: %v and base %v, first %v and %v",
					occupancy(f), f[predictor.Base], occupancy(left[0]), left[0][predictor.Base])
			}
		}
	})
}

// TestEndedFlightsAreSilent: after Done neither another Done nor a token nor a
// report of the cache changes anything.
func TestEndedFlightsAreSilent(t *testing.T) {
	laws(t, 100, func(t *testing.T, rng *rand.Rand) {
		b := newBusy(rng, plain)
		b.live(100)
		for _, a := range b.under {
			if rng.IntN(2) == 0 {
				a.Done(after(b.now), predictor.End(rng.IntN(3)))
				before := b.features(prompt(100))
				sample := *a.Sample()
				a.Token(after(b.now + 0.3))
				a.Done(after(b.now+0.5), predictor.Completed)
				a.Cached(7)
				if now := b.features(prompt(100)); !same(now, before) {
					t.Errorf("after a second end:\n%v\nbefore:\n%v", now, before)
				}
				if !reflect.DeepEqual(sample.TTFT, a.Sample().TTFT) || sample.Censored != a.Sample().Censored {
					t.Errorf("the sample was changed: %v, before %v", a.Sample().TTFT, sample.TTFT)
				}
			}
		}
	})
}

// same compares features, NaN being NaN.
func same(a, b predictor.Features) bool {
	for k := range a {
		if a[k] != b[k] && !(math.IsNaN(a[k]) && math.IsNaN(b[k])) {
			return false
		}
	}
	return true
}

// TestRestart: what an engine was doing is gone when it was started again;
// flights of the time before end without a trace.
func TestRestart(t *testing.T) {
	started := func(at, start float64) event {
		return scrape(at, func(s *predictor.Scrape) { s.Started, s.Running, s.Waiting, s.OwnInFlight = start, 0, 0, 0 })
	}
	life := history(started(0, 1), decoding(0, 3), send(0.42, "b", prompt(700)), send(0.43, "c", predictor.Work{Prompt: 9, Uncached: 9}))
	tests := map[string]struct {
		scrapes []event
		want    bool // a restart was seen
	}{
		"the same start":               {history(started(0.5, 1)), false},
		"a later start":                {history(started(0.5, 2)), true},
		"an unknown start":             {history(started(0.5, nan)), false},
		"a start of 0":                 {history(started(0.5, 0)), false},
		"a later one after an unknown": {history(started(0.5, nan), started(0.6, 2)), true},
		"a scrape from before":         {history(started(-1, 2)), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(plain, append(append([]event{}, life...), test.scrapes...)...)
			got := occupancy(s.ask(0.7, prompt(100)))
			if gone := got == [4]float64{}; gone != test.want {
				t.Fatalf("under way: %v; a restart seen: %v, want %v", got, gone, test.want)
			}
			s = play(plain, append(append([]event{}, life...), test.scrapes...)...)
			for _, a := range s.attempts {
				a.Token(after(0.75))
				a.Done(after(0.8), predictor.Failed)
			}
			if got := occupancy(s.ask(0.9, prompt(100))); got != [4]float64{} {
				t.Errorf("all have ended, and yet %v", got)
			}
		})
	}
}

// TestSilentAnswers: answers in one piece show nothing for a long time, and yet
// the engine takes at least a step and the prompt.
func TestSilentAnswers(t *testing.T) {
	b := newBusy(nil, plain)
	send(0, "a", predictor.Work{Prompt: 100, Uncached: 100})(b.script)
	for b.now = 1; b.now < 30; b.now++ {
		if got := b.base(prompt(100)); got < 0.2 || got > 0.32 {
			t.Errorf("after %v s: %v, want 0.21 to 0.31", b.now, got)
		}
	}
}

// TestManyAtOnce is for the race detector.
func TestManyAtOnce(t *testing.T) {
	fleet := predictor.NewFleet(&watcher{})
	pool, on := fleet.Pool("m", predictor.Rules{}), fleet.Instance("http://a", &plain)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 1))
			for k := range 300 {
				now := after(float64(k) / 50)
				a := pool.Begin(now, on, randomWork(rng))
				a.Name("a", "1")
				pool.Predict(now, on, randomWork(rng))
				for range rng.IntN(5) {
					a.Token(now)
				}
				s := randomScrape(rng, float64(k)/50)
				on.Scraped(&s)
				a.Cached(rng.IntN(100))
				a.Done(now, predictor.End(rng.IntN(3)))
				switch k % 50 {
				case 7:
					pool.SetModel(&oracle{p95: 0.1})
				case 29:
					pool.SetModel(nil)
				case 31:
					pool.Report(now)
				case 41:
					fleet.Pool("m", predictor.Rules{Dwell: time.Second})
				case 43:
					fleet.Keep(map[string]bool{"http://a": true}, map[string]bool{"m": true})
				}
			}
		})
	}
	wg.Wait()
	quiet := scraped(1000)
	on.Scraped(&quiet)
	a := pool.Begin(after(1000), on, prompt(1))
	if got := occupancy(a.Sample().Features); got != [4]float64{} {
		t.Errorf("all have ended, and yet %v", got)
	}
}
