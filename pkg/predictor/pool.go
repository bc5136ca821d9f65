package predictor

import (
	"maps"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
)

// Model is a trained pair of heads. It gives the logarithms of P50 and P95
// over the base of a row in the order of Schema; it must say the same
// of the same row, and be safe for concurrent use.
type Model interface {
	Predict(row []float64) (p50, p95 float64, err error)
}

// Switch is a change of the estimator whose word counts.
type Switch struct {
	At       time.Time
	Pool     string
	From, To Kind
	Why      string // one of the Why constants
	Standing Standing
}

// Alarm says that an estimator's P95 has drifted: its coverage left
// [DriftLow, DriftHigh], or its error moved for good.
type Alarm struct {
	At       time.Time
	Pool     string
	Kind     Kind
	Why      string // coverage or shift
	Coverage float64
}

// Watch is told what happens in a pool. Its methods must be quick and must not
// call back; they may be called on several goroutines.
type Watch interface {
	Observed(s *Sample)
	Switched(s Switch)
	Drifted(a Alarm)
}

// Pool predicts for the instances that serve one model. It is safe for
// concurrent use.
type Pool struct {
	name  string
	rules Rules
	watch Watch // may be nil
	model atomic.Pointer[Model]

	mu         sync.Mutex
	arrivals   arrivals
	second     int64 // as of which rate and cv are
	rate, cv   float64
	linear     *linear
	calibrated [Kinds]*calibration
	judges     [Kinds][Regimes + 1]judge
	shifts     [Kinds]shift
	lately     map[*Instance]*lately
	serving    Kind
	since      time.Time // of the last switch; zero before it
	ousted     [Kinds]bool
	looked     time.Time // when the rule was last asked
	answers    map[*Instance]*answer
}

// NewPool returns a pool that begins with the linear estimator.
func NewPool(name string, rules Rules, watch Watch) *Pool {
	p := &Pool{name: name, rules: rules.withDefaults(), watch: watch, linear: newLinear(), serving: Linear,
		rate: math.NaN(), cv: math.NaN(), lately: map[*Instance]*lately{},
		answers: map[*Instance]*answer{}}
	for k := range p.calibrated {
		p.calibrated[k] = newCalibration()
	}
	return p
}

// SetModel puts a trained model into force for requests from now on; nil
// takes it away. The swap is atomic; another model begins without the
// corrections and the errors of the former.
func (p *Pool) SetModel(m Model) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.model.Load(); old == nil && m == nil || old != nil && sameModel(*old, m) {
		return
	}
	p.calibrated[LightGBM] = newCalibration()
	p.judges[LightGBM] = [Regimes + 1]judge{}
	p.shifts[LightGBM] = shift{}
	clear(p.answers)
	if m == nil {
		p.model.Store(nil)
		return
	}
	p.model.Store(&m)
}

// sameModel reports whether two models are one, as far as they can be compared.
func sameModel(a, b Model) bool {
	return b != nil && reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable() && a == b
}

// Look is what an instance looks like to one request before any estimator is
// asked, which costs more.
type Look struct {
	TPOT     time.Duration // of the request, over its whole answer there
	Own      time.Duration // computing what is not cached of its prompt
	Base     time.Duration // its first token as the mirror of the engine has it
	Decoding int           // requests past their first token there
	Harmed   int           // requests there that would newly miss for it what they were promised of their tokens
	Pending  int           // prompt tokens ahead of it
	Regime   Regime
	Young    bool // the instance's speed is not known yet

	on   *Instance
	view view
}

// Forecast is what a router is told of one request on one instance.
type Forecast struct {
	Prediction
	Look
	Kind Kind // the estimator whose word it is
}

// Look fills in what the instance looks like to w.
func (i *Instance) Look(now time.Time, w Work, l *Look) {
	v := &l.view
	i.look(now, w, v)
	l.on, l.TPOT, l.Own, l.Base = i, duration(v.harm.tpot), duration(v.harm.own), duration(v.base)
	l.Decoding, l.Harmed, l.Pending = int(v.features[DecodeRequests]), v.harm.missed, int(v.features[PendingTokens])
	l.Regime, l.Young = v.regime, v.young
}

// Foretell says what to expect of a request after a look at the instance, and by
// whose word. The look must have been at the same moment.
func (p *Pool) Foretell(now time.Time, l *Look) (Prediction, Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace(now, &l.view)
	kind := p.serving
	said, ok := p.say(kind, l.on, &l.view)
	if !ok {
		kind = Analytic
		said, _ = p.say(kind, l.on, &l.view)
	}
	return said.prediction(&l.view), kind
}

// Predict says what to expect of w on the instance.
func (p *Pool) Predict(now time.Time, i *Instance, w Work) (f Forecast) {
	i.Look(now, w, &f.Look)
	f.Prediction, f.Kind = p.Foretell(now, &f.Look)
	return f
}

// pace fills in the pool's own features.
func (p *Pool) pace(now time.Time, v *view) {
	if second := now.Unix(); second != p.second {
		p.second = second
		p.rate, _ = p.arrivals.rate(second, 60)
		_, p.cv = p.arrivals.rate(second, 300)
	}
	v.features[ArrivalRate], v.features[ArrivalCV] = p.rate, p.cv
}

// saying is an estimator's word as logarithms over the base, raw and corrected.
type saying struct{ rawP50, rawP95, p50, p95 float64 }

func (s *saying) prediction(v *view) Prediction {
	return Prediction{P50: duration(v.base * math.Exp(s.p50)), P95: duration(v.base * math.Exp(s.p95))}
}

// duration turns seconds into a finite time above 0.
func duration(seconds float64) time.Duration {
	const most = 24 * 3600
	if math.IsNaN(seconds) {
		seconds = most
	}
	return time.Duration(min(max(seconds, 1e-6), most) * float64(time.Second))
}

// analyticSpread is the logarithm of P95 over P50 before anything was seen.
const analyticSpread = 0.25

// youngSpread is the same of an engine whose speed is not known yet.
const youngSpread = 1.0

// say asks one estimator; ok is false if it has nothing to say.
func (p *Pool) say(k Kind, i *Instance, v *view) (s saying, ok bool) {
	switch k {
	case Analytic:
		s.rawP95 = analyticSpread
	case Linear:
		s.rawP50, s.rawP95 = p.linear.predict(&v.features, v.regime)
	case LightGBM:
		if s.rawP50, s.rawP95, ok = p.ask(i, v); !ok {
			return s, false
		}
	}
	s.p50, s.p95 = p.calibrated[k].apply(i, v.regime, s.rawP50, s.rawP95)
	if v.young {
		s.p95 = max(s.p95, s.p50+youngSpread)
	}
	return s, true
}

// answer is what the trained model said last of an instance. A request that is
// sent was asked about just before, when the instance was chosen.
type answer struct {
	row      Features
	p50, p95 float64
	ok       bool
}

// ask evaluates the trained model; called with mu held.
func (p *Pool) ask(i *Instance, v *view) (p50, p95 float64, ok bool) {
	m := p.model.Load()
	if m == nil {
		return 0, 0, false
	}
	a := p.answers[i]
	if a == nil {
		a = &answer{}
		p.answers[i] = a
	} else if a.row.same(&v.features) {
		return a.p50, a.p95, a.ok
	}
	a.row = v.features
	a.p50, a.p95, a.ok = evaluate(*m, a.row[:])
	return a.p50, a.p95, a.ok
}

// evaluate asks a model. What is not a number, or further from the base than any
// model should be, is nothing.
func evaluate(m Model, row []float64) (p50, p95 float64, ok bool) {
	p50, p95, err := m.Predict(row)
	if err != nil || !(math.Abs(p50) < 5) || !(math.Abs(p95) < 5) {
		return 0, 0, false
	}
	return p50, max(p95, p50), true
}

// Attempt is a flight with what was predicted of it. Its methods are safe for
// concurrent use, but for Sample.
type Attempt struct {
	pool   *Pool
	on     *Instance
	flight Flight
	view   view
	said   [Kinds]saying
	spoke  [Kinds]bool

	mu     sync.Mutex
	ended  bool // a first token was seen, or it is done
	sample Sample
}

// Begin notes that w is sent to the instance now, and what every estimator
// says of it.
func (p *Pool) Begin(now time.Time, i *Instance, w Work) *Attempt {
	a := &Attempt{pool: p, on: i}
	i.look(now, w, &a.view)
	p.mu.Lock()
	p.pace(now, &a.view)
	p.arrivals.add(now.Unix())
	a.sample = Sample{At: now, Model: p.name, Features: a.view.features, Regime: a.view.regime, Served: p.serving}
	for k := range Kinds {
		if a.said[k], a.spoke[k] = p.say(k, i, &a.view); a.spoke[k] {
			a.sample.Said[k] = a.said[k].prediction(&a.view)
		}
	}
	if !a.spoke[p.serving] {
		a.sample.Served = Analytic
	}
	p.mu.Unlock()
	i.send(now, w, &a.flight)
	return a
}

// Said is the prediction that counts, and whose it is.
func (a *Attempt) Said() (Prediction, Kind) { return a.sample.Said[a.sample.Served], a.sample.Served }

// Sample is what is recorded of the attempt; complete once a first token was
// seen or it is done, and not to be changed.
func (a *Attempt) Sample() *Sample { return &a.sample }

// Name labels the attempt's sample with its engine and revision. To be called
// before the first token.
func (a *Attempt) Name(backend, revision string) {
	a.sample.Backend, a.sample.Revision = backend, revision
}

// Token notes a token of a streamed answer. The first is the truth that the
// prediction is judged by.
func (a *Attempt) Token(now time.Time) {
	a.flight.Token(now)
	if a.end() {
		a.pool.observe(now, a, now.Sub(a.sample.At), false)
	}
}

// end reports whether this is the first call.
func (a *Attempt) end() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	a.ended = true
	return true
}

// Cached notes how many prompt tokens the engine found in its cache.
func (a *Attempt) Cached(tokens int) { a.flight.Cached(tokens) }

// End says how an attempt ended.
type End uint8

// The ends of an attempt.
const (
	Completed End = iota // the answer came to its end
	Left                 // the client left, or the gateway ended it
	Failed               // the engine's fault: teaches nothing
)

// Done ends the attempt. One whose client left before a first token is a lower
// bound for what it would have taken.
func (a *Attempt) Done(now time.Time, how End) {
	a.flight.Done(now, how == Completed)
	if a.end() && how == Left && a.flight.Stream {
		a.pool.observe(now, a, now.Sub(a.sample.At), true)
	}
}

// observe learns what became of an attempt.
func (p *Pool) observe(now time.Time, a *Attempt, ttft time.Duration, censored bool) {
	if ttft <= 0 {
		return
	}
	a.sample.TTFT, a.sample.Censored = ttft, censored
	p.mu.Lock()
	truth := ttft.Seconds()
	switched, alarms := p.learn(now, a, truth, censored)
	p.mu.Unlock()
	if !censored {
		a.on.observe(math.Log(truth / a.view.base))
	}
	if p.watch == nil {
		return
	}
	p.watch.Observed(&a.sample)
	if switched != nil {
		p.watch.Switched(*switched)
	}
	for _, alarm := range alarms {
		p.watch.Drifted(alarm)
	}
}

// learn moves every estimator, calibration and judge. A lower bound teaches
// only those who had predicted less. Called with mu held.
func (p *Pool) learn(now time.Time, a *Attempt, truth float64, censored bool) (*Switch, []Alarm) {
	y := math.Log(truth / a.view.base)
	if !censored {
		p.remember(now, a, truth)
	}
	var alarms []Alarm
	for k := range Kinds {
		if !a.spoke[k] || censored && y < a.said[k].p95 {
			continue
		}
		if !a.view.young {
			p.calibrated[k].observe(a.on, a.view.regime, a.said[k].rawP50, a.said[k].rawP95, y)
		}
		v := judged(now, a.sample.Said[k], truth)
		p.judges[k][a.view.regime].add(v)
		p.judges[k][Regimes].add(v)
		score := p.judges[k][Regimes].score(now)
		if why := p.shifts[k].add(v.bias, score); why != "" {
			if score.Coverage > DriftHigh {
				p.calibrated[k].narrow()
			} else {
				p.calibrated[k].widen()
			}
			alarms = append(alarms, Alarm{At: now, Pool: p.name, Kind: k, Why: why, Coverage: score.Coverage})
		}
	}
	if !a.view.young && (!censored || y > a.said[Linear].p50) {
		p.linear.observe(&a.view.features, a.view.regime, y)
	}
	return p.reconsider(now), alarms
}

// reconsider asks the rule, once a second at most.
func (p *Pool) reconsider(now time.Time) *Switch {
	if now.Sub(p.looked) < time.Second {
		return nil
	}
	p.looked = now
	s := p.standing(now)
	for k := range Kinds {
		if p.ousted[k] && s.Scores[k].Rows >= p.rules.MinSamples && s.Scores[k].MAPE <= p.rules.MaxMAPE*(1-p.rules.Margin) {
			p.ousted[k] = false
		}
	}
	s.Ousted = p.ousted
	next, why := p.rules.Choose(s)
	if next == p.serving {
		return nil
	}
	if why == WhyError {
		p.ousted[p.serving] = true
	}
	p.ousted[next] = false
	from := p.serving
	p.serving, p.since = next, now
	return &Switch{At: now, Pool: p.name, From: from, To: next, Why: why, Standing: s}
}

func (p *Pool) standing(now time.Time) Standing {
	s := Standing{Incumbent: p.serving, Since: math.MaxInt64, Rate: p.rate, CV: p.cv, Ousted: p.ousted}
	if !p.since.IsZero() {
		s.Since = now.Sub(p.since)
	}
	for k := range Kinds {
		s.Scores[k] = p.judges[k][Regimes].score(now)
		s.Ready[k] = k != LightGBM || p.model.Load() != nil
	}
	return s
}

// keep forgets what was learned of instances that are gone.
func (p *Pool) keep(alive map[*Instance]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calibrated {
		c.keep(alive)
	}
	maps.DeleteFunc(p.lately, func(i *Instance, _ *lately) bool { return !alive[i] })
	maps.DeleteFunc(p.answers, func(i *Instance, _ *answer) bool { return !alive[i] })
}

// Report is a pool's state for metrics and operators.
type Report struct {
	Serving  Kind
	Rate, CV float64
	Scores   [Kinds][Regimes + 1]Score // the last: over all regimes
}

// Report sums up how good the estimators are at now.
func (p *Pool) Report(now time.Time) Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Report{Serving: p.serving, Rate: p.rate, CV: p.cv}
	for k := range p.judges {
		for g := range p.judges[k] {
			r.Scores[k][g] = p.judges[k][g].score(now)
		}
	}
	return r
}
