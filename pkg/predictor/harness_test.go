package predictor_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

var (
	t0  = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	nan = math.NaN()
)

// after is t0 and some seconds.
func after(seconds float64) time.Time { return t0.Add(span(seconds)) }

func span(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// plain is the speed of an engine that is easy to reckon with: 10 ms to get
// there, 100 ms a step, 1 ms a prompt token.
var plain = predictor.Speed{Fixed: 0.01, Step: 0.1, Token: 0.001, Seq: 1e-9, Context: 1e-9, Square: 1e-12}

// prompt is a streamed request, nothing of which is cached.
func prompt(tokens int) predictor.Work {
	return predictor.Work{Prompt: tokens, Uncached: tokens, Stream: true}
}

// script is a history of one engine under a pool.
type script struct {
	pool     *predictor.Pool
	on       *predictor.Instance
	attempts map[string]*predictor.Attempt
}

func newScript(prior predictor.Speed) *script {
	return &script{
		pool: predictor.NewPool("m", predictor.Rules{}, nil), on: predictor.NewInstance(prior),
		attempts: map[string]*predictor.Attempt{},
	}
}

// event is one thing that happens in a script.
type event func(*script)

func send(at float64, name string, w predictor.Work) event {
	return func(s *script) { s.attempts[name] = s.pool.Begin(after(at), s.on, w) }
}

func token(at float64, name string) event {
	return func(s *script) { s.attempts[name].Token(after(at)) }
}

func done(at float64, name string, how predictor.End) event {
	return func(s *script) { s.attempts[name].Done(after(at), how) }
}

func cached(name string, tokens int) event {
	return func(s *script) { s.attempts[name].Cached(tokens) }
}

func scrape(at float64, change func(*predictor.Scrape)) event {
	return func(s *script) {
		m := scraped(at)
		change(&m)
		s.on.Scraped(&m)
	}
}

// scraped is a scrape that says nothing yet.
func scraped(at float64) predictor.Scrape {
	return predictor.Scrape{
		Began: after(at), At: after(at), Running: nan, Waiting: nan, KVUse: nan, Hit: nan, CPU: nan, CacheTokens: nan,
	}
}

// load is what a scrape says of an engine where nothing is the gateway's own.
func load(running, waiting float64) func(*predictor.Scrape) {
	return func(s *predictor.Scrape) { s.Running, s.Waiting = running, waiting }
}

// answer is a request on its own whose first token takes factor times the base
// and that ends with it.
func answer(at float64, factor float64) event {
	return func(s *script) {
		a := s.pool.Begin(after(at), s.on, prompt(100))
		end := after(at + factor*a.Sample().Features[predictor.Base])
		a.Token(end)
		a.Done(end, predictor.Completed)
	}
}

// whole is an answer that took so long from its sending to its end, without
// telling of a first token.
func whole(at, seconds float64) event {
	return func(s *script) {
		a := s.pool.Begin(after(at), s.on, predictor.Work{Prompt: 1, Uncached: 1})
		a.Done(after(at+seconds), predictor.Completed)
	}
}

// arrivals are so many requests in each of the seconds, which fail at once.
func arrivals(perSecond ...int) event {
	return func(s *script) {
		for second, n := range perSecond {
			for range n {
				s.pool.Begin(after(float64(second)), s.on, prompt(1)).Done(after(float64(second)), predictor.Failed)
			}
		}
	}
}

func times(n int, e func(k int) event) event {
	return func(s *script) {
		for k := range n {
			e(k)(s)
		}
	}
}

// ask are the features of w at the end of the script.
func (s *script) ask(at float64, w predictor.Work) predictor.Features {
	return s.pool.Begin(after(at), s.on, w).Sample().Features
}

func play(prior predictor.Speed, events ...event) *script {
	s := newScript(prior)
	for _, e := range events {
		e(s)
	}
	return s
}

// near reports whether got is want within a relative tolerance; NaN is NaN.
func near(got, want, tolerance float64) bool {
	if math.IsNaN(want) || math.IsNaN(got) {
		return math.IsNaN(want) && math.IsNaN(got)
	}
	return math.Abs(got-want) <= tolerance*max(math.Abs(want), 1e-3)
}

// oracle is a model that says what the test tells it.
type oracle struct {
	mu       sync.Mutex
	p50, p95 float64 // logarithms over the base
	err      error
	asked    int
}

func (o *oracle) say(p50, p95 float64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.p50, o.p95, o.err = p50, p95, err
}

func (o *oracle) Predict([]float64) (p50, p95 float64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked++
	return o.p50, o.p95, o.err
}

// watcher remembers what a pool tells.
type watcher struct {
	mu       sync.Mutex
	samples  []predictor.Sample
	switches []predictor.Switch
	alarms   []predictor.Alarm
}

func (w *watcher) Observed(s *predictor.Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples = append(w.samples, *s)
}

func (w *watcher) Switched(s predictor.Switch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.switches = append(w.switches, s)
}

func (w *watcher) Drifted(a predictor.Alarm) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alarms = append(w.alarms, a)
}

// traffic is requests one after another on engines of their own.
type traffic struct {
	pool  *predictor.Pool
	on    *predictor.Instance
	watch *watcher
	now   float64 // seconds after t0
	gap   float64 // between an answer and the next request
}

func newTraffic(rules predictor.Rules) *traffic {
	w := &watcher{}
	return &traffic{pool: predictor.NewPool("m", rules, w), on: predictor.NewInstance(plain), watch: w, gap: 0.01}
}

// serve lets one request see its first token after factor times the base.
func (f *traffic) serve(factor float64) *predictor.Attempt {
	a := f.pool.Begin(after(f.now), f.on, prompt(100))
	f.now += factor * a.Sample().Features[predictor.Base]
	a.Token(after(f.now))
	a.Done(after(f.now), predictor.Completed)
	f.now += f.gap
	return a
}

// leave lets one client go after factor times the base without a first token.
func (f *traffic) leave(factor float64, how predictor.End) *predictor.Attempt {
	a := f.pool.Begin(after(f.now), f.on, prompt(100))
	f.now += factor * a.Sample().Features[predictor.Base]
	a.Done(after(f.now), how)
	f.now += f.gap
	return a
}

// said is what every estimator says now, without a trace of the question: it fails.
func (f *traffic) said() [predictor.Kinds]predictor.Prediction {
	a := f.pool.Begin(after(f.now), f.on, prompt(100))
	a.Done(after(f.now), predictor.Failed)
	return a.Sample().Said
}

func wantFinite(t testing.TB, p predictor.Prediction) {
	t.Helper()
	if p.P50 <= 0 || p.P95 < p.P50 || p.P95 > 24*time.Hour {
		t.Fatalf("P50 %v, P95 %v", p.P50, p.P95)
	}
}
