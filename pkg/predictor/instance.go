package predictor

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Instance is what the gateway knows of one engine's work and speed: a mirror
// of the engine's scheduler, driven by the gateway's own dispatches, by every
// token in its streams, and by scrapes. It is safe for concurrent use.
type Instance struct {
	mu    sync.Mutex
	epoch time.Time // of all times below, which are seconds; the first call's

	speed  speedometer
	budget float64 // tokens of a step at most
	slots  float64 // sequences at once at most; +Inf until seen to bind

	pending  []*Flight // own, no first token yet, in order of dispatch
	decoding int       // own sequences past their first token
	streams  int       // of these, streamed: their tokens tell when a step ends
	context  float64   // tokens they hold

	anchor float64 // end of the last step that was seen, or start of work
	fresh  bool    // anchor is the dispatch that ended an idle time
	step   uint64  // number of the step that began at anchor
	last   span    // the step that ended at anchor, not learned yet

	gaps       gaps      // time between steps while something decodes
	running    []*Flight // own, past their first token
	firstToken float64   // time of the last first token; NaN before it

	scrape   Scrape
	scrapeAt float64
	others   others  // work of other gateways, as of the last scrape
	full     int     // scrapes in a row with a queue and about as many running as most
	most     float64 // sequences running in these

	output   outputs
	promptOf mean // uncached tokens of a prompt
	trust    mean // cached tokens reported over those expected
	response responses
	recent   recentErrors
}

// span is a stretch of the engine's time and what was done in it.
type span struct {
	x       terms
	seconds float64
	valid   bool
}

// others is work on the engine that is not the gateway's own.
type others struct{ decoding, context, tokens float64 }

// Scrape is what an engine's metrics said, as far as the mirror needs it. What
// is not known is NaN.
type Scrape struct {
	Began, At                    time.Time // sent; answered
	Running, Waiting, KVUse, Hit float64
	CPU                          float64 // cores
	CacheTokens                  float64 // size of the KV cache
	Started                      float64 // Unix seconds; 0 or NaN: unknown
	OwnInFlight                  int     // the gateway's own attempts there when it began
}

// Work is what one attempt asks of an engine.
type Work struct {
	Prompt   int // tokens
	Uncached int // of these, not in the engine's prefix cache as far as known
	Max      int // tokens the client allows; 0 if it did not say
	Turn     int // user messages; 0 if unknown
	Stream   bool
	Class    int           // criticality: lower ones matter more
	TPOT     time.Duration // what the request's contract allows between tokens; 0 if it says nothing
	E2E      time.Duration // what is left of what it allows for the whole answer; 0 if it says nothing
}

// Flight is one attempt under way on an instance. Its methods are safe for
// concurrent use; after Done they do nothing.
type Flight struct {
	on *Instance
	Work
	sent     float64
	first    float64 // time of the first token
	left     float64 // uncached tokens not computed yet, by the mirror
	tokens   int     // seen
	step     uint64  // in which it last emitted
	due      float64 // expected first token; decides for answers in one piece
	state    flightState
	expected float64 // cached tokens believed in when it was sent
	limit    float64 // of its time between tokens; 0: none was promised
	end      float64 // when the whole answer is due; 0: never
}

type flightState uint8

const (
	pendingFlight flightState = iota
	decodingFlight
	endedFlight
)

// NewInstance returns an instance that knows nothing but its prior.
func NewInstance(prior Speed) *Instance {
	return &Instance{
		speed: newSpeedometer(prior), budget: 8192, slots: math.Inf(1),
		firstToken: math.NaN(), scrape: unknownScrape(), scrapeAt: math.NaN(),
		output: outputs{tokens: 1000, ended: 5}, promptOf: mean{value: 500, weight: 2}, trust: mean{value: 1, weight: 2000},
	}
}

// sanitise makes what can't be unknown.
func (s *Scrape) sanitise() {
	within := func(v *float64, low, high float64) {
		if !(*v >= low && *v <= high) {
			*v = math.NaN()
		}
	}
	within(&s.Running, 0, 1e5)
	within(&s.Waiting, 0, 1e6)
	within(&s.KVUse, 0, 1)
	within(&s.Hit, 0, 1)
	within(&s.CPU, 0, 1e5)
	within(&s.CacheTokens, 256, 1e10)
}

func unknownScrape() Scrape {
	nan := math.NaN()
	return Scrape{Running: nan, Waiting: nan, KVUse: nan, Hit: nan, CPU: nan, CacheTokens: nan}
}

// seconds is now on the instance's own clock.
func (i *Instance) seconds(now time.Time) float64 {
	if i.epoch.IsZero() {
		i.epoch = now
	}
	return now.Sub(i.epoch).Seconds()
}

// Send notes that an attempt is on its way.
func (i *Instance) Send(now time.Time, w Work) *Flight {
	f := &Flight{}
	i.send(now, w, f)
	return f
}

// send fills in f and puts it in the queue.
func (i *Instance) send(now time.Time, w Work, f *Flight) {
	i.mu.Lock()
	defer i.mu.Unlock()
	t := i.seconds(now)
	i.settleSilent(t)
	*f = Flight{
		on: i, Work: w, sent: t, left: float64(max(w.Uncached, 1)), expected: float64(w.Prompt - w.Uncached), limit: w.TPOT.Seconds(),
	}
	if w.E2E != 0 {
		f.end = t + w.E2E.Seconds()
	}
	f.due = t + i.forecast(t, w).seconds
	if i.idle() {
		i.startWork(t)
	}
	i.pending = append(i.pending, f)
	i.promptOf.add(float64(w.Uncached), 0.98)
}

func (i *Instance) idle() bool { return len(i.pending) == 0 && i.decoding == 0 }

// startWork puts the anchor at the end of an idle time.
func (i *Instance) startWork(t float64) {
	i.anchor, i.fresh = t, true
	i.last.valid = false
}

// Token notes one token of the answer, the first included.
func (f *Flight) Token(now time.Time) {
	i := f.on
	i.mu.Lock()
	defer i.mu.Unlock()
	if f.state == endedFlight {
		return
	}
	t := i.seconds(now)
	if i.beginsStep(t, f) {
		i.endStep(t, f)
	}
	f.step = i.step
	if f.state == pendingFlight {
		i.begin(t, f)
	}
	f.tokens++
	i.context++
	i.output.tokens++
}

// beginsStep reports whether a token belongs to another step than the last
// one seen: tokens of one step come close together, and no step is much
// shorter than one at rest.
func (i *Instance) beginsStep(t float64, f *Flight) bool {
	since := t - i.anchor
	rest := i.speed.fitted[steps] * i.speed.factor
	return i.fresh || since > 0.3*rest || f.step == i.step && since > 0.05*rest
}

// endStep ends the step, or the steps, that ran since the anchor.
func (i *Instance) endStep(t float64, f *Flight) {
	i.learnLast()
	i.settleSilent(t)
	s := span{seconds: t - i.anchor, valid: true}
	if i.fresh {
		s.x[fixed] = 1
	}
	if i.streams > 0 { // their tokens show every step
		i.work(&s, i.anchor)
	} else {
		i.workUntil(&s, f)
	}
	if i.streams > 0 {
		i.gaps.add(s.seconds)
	}
	i.last = s
	i.anchor, i.fresh = t, false
	i.step++
}

// work lets one step take its share of the prompts that had arrived by t.
func (i *Instance) work(s *span, t float64) {
	n := float64(i.decoding) + i.others.decoding
	room := max(i.budget-n, 1)
	for _, f := range i.pending {
		if room <= 0 || f.sent+i.lag() > t {
			break
		}
		if f.left <= 0 { // it should have had its first token: the mirror is ahead
			s.valid = false
			f.left = 1
		}
		take := min(f.left, room)
		if i.missed(s, f, n, take) {
			break
		}
		room -= take
		i.compute(s, f, take)
	}
	i.addSteps(s, 1, n)
}

// missed reports whether a prompt that could just have entered the step did not:
// the step was too short for it.
func (i *Instance) missed(s *span, f *Flight, n, take float64) bool {
	if i.speed.seen <= firstSpans || f.left < float64(f.Uncached) {
		return false
	}
	x := s.x
	x[tokens] += take
	x[steps], x[seqs], x[context] = 1, n, i.context+i.others.context
	const tooShort = 0.6
	return s.seconds < tooShort*i.speed.expect(&x)
}

// workUntil lets as many steps run as the prompts up to f's need.
func (i *Instance) workUntil(s *span, f *Flight) {
	n := float64(i.decoding) + i.others.decoding
	room := max(i.budget-n, 1)
	total := 0.0
	for _, p := range i.pending {
		total += p.left
		i.compute(s, p, p.left)
		if p == f {
			break
		}
	}
	i.addSteps(s, max(math.Ceil(total/room), 1), n)
}

// addSteps counts steps with n sequences decoding.
func (i *Instance) addSteps(s *span, k, n float64) {
	s.x[steps] += k
	s.x[seqs] += k * n
	s.x[context] += k * (i.context + i.others.context)
}

// compute takes tokens off a prompt.
func (i *Instance) compute(s *span, f *Flight, take float64) {
	to := float64(f.Prompt) - f.left + take
	s.x[tokens] += take
	s.x[square] += squares(int(to-take), int(to))
	f.left -= take
}

// lag is how long after its dispatch a request can enter a step.
func (i *Instance) lag() float64 { return i.speed.fitted[fixed] }

// begin is a first token: whatever was ahead of it has been computed.
func (i *Instance) begin(t float64, f *Flight) {
	if f.left > 0 { // more was done in this step than the mirror thought
		i.compute(&i.last, f, f.left)
	}
	i.firstToken = t
	i.pending = without(i.pending, f)
	f.state, f.first = decodingFlight, t
	i.running = append(i.running, f)
	i.decoding++
	if f.Stream {
		i.streams++
	}
	i.context += float64(f.Prompt)
}

// without takes f out of the flights, which keep their order.
func without(flights []*Flight, f *Flight) []*Flight {
	if k := slices.Index(flights, f); k >= 0 {
		return slices.Delete(flights, k, k+1)
	}
	return flights
}

// learnLast teaches the speedometer the step that ended at the anchor. It
// waits until the next step's first token, since the first tokens of a step
// tell what the step computed.
func (i *Instance) learnLast() {
	if !i.last.valid {
		return
	}
	i.last.valid = false
	i.speed.observe(&i.last.x, i.last.seconds)
}

// settleSilent moves answers that come in one piece on to decoding when their
// first token is due: nothing tells when it was.
func (i *Instance) settleSilent(t float64) {
	for k := 0; k < len(i.pending); {
		f := i.pending[k]
		if f.Stream || f.due > t {
			k++
			continue
		}
		f.left = 0
		i.begin(i.firstToken, f)
		f.first = f.due
	}
}

// Done ends the flight. completed says that the answer came to its end;
// working that the engine may still be computing the prompt.
func (f *Flight) Done(now time.Time, completed bool) {
	i := f.on
	i.mu.Lock()
	defer i.mu.Unlock()
	if f.state == endedFlight {
		return
	}
	t := i.seconds(now)
	i.settleSilent(t)
	if completed && f.tokens > 0 {
		i.output.end()
	}
	if completed {
		i.response.add(t, t-f.sent)
	}
	switch f.state {
	case pendingFlight:
		i.pending = without(i.pending, f)
	case decodingFlight:
		i.running = without(i.running, f)
		i.decoding--
		if f.Stream {
			i.streams--
		}
		i.context -= float64(f.Prompt + f.tokens)
	}
	f.state = endedFlight
	if i.idle() {
		i.learnLast()
		i.context = 0
	}
}

// Cached notes how many prompt tokens the engine says it found in its cache.
func (f *Flight) Cached(reported int) {
	f.on.mu.Lock()
	defer f.on.mu.Unlock()
	if f.state == endedFlight || f.expected <= 0 && reported <= 0 {
		return
	}
	w := max(f.expected, float64(reported))
	f.on.trust.addWeighted(min(float64(reported)/max(f.expected, 1), 2), w, math.Exp(-w/50_000))
}

// restart forgets the work of an engine that was started again, and trusts
// its own past speed less.
func (i *Instance) restart() {
	for _, f := range i.pending {
		f.state = endedFlight
	}
	for _, f := range i.running {
		f.state = endedFlight
	}
	i.pending, i.running = nil, nil
	i.decoding, i.streams, i.context = 0, 0, 0
	i.last.valid, i.others, i.full = false, others{}, 0
	i.slots = math.Inf(1)
	i.scrape, i.scrapeAt = unknownScrape(), math.NaN()
	i.speed.sums[0].forget(0.2)
	i.speed.sums[1].forget(0.2)
	i.speed.setPace(0)
}

// Scraped takes what the engine's metrics said, unless it was told before.
func (i *Instance) Scraped(s *Scrape) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !s.At.After(i.scrape.At) {
		return
	}
	if s.Started > i.scrape.Started && i.scrape.Started > 0 {
		i.restart()
	}
	i.take(*s)
}

func (i *Instance) take(s Scrape) {
	s.sanitise()
	if !(s.Started > 0) { // not told this time
		s.Started = i.scrape.Started
	}
	i.scrape, i.scrapeAt = s, i.seconds(s.At)
	i.noteOthers(&s)
	i.noteSlots(&s)
	i.response.cpu(s.CPU)
}

// noteOthers takes what runs and waits beyond the gateway's own as the work of
// others, each like the gateway's own on average.
func (i *Instance) noteOthers(s *Scrape) {
	busy := s.Running + s.Waiting
	i.others = others{}
	extra := busy - float64(s.OwnInFlight)
	if !(extra > 0.5) || math.IsNaN(extra) {
		return
	}
	i.others.decoding = extra * s.Running / busy
	i.others.tokens = extra * s.Waiting / busy * i.promptOf.value
	each := i.promptOf.value + i.output.mean()/2
	if i.decoding > 0 {
		each = i.context / float64(i.decoding)
	}
	i.others.context = i.others.decoding * each
}

// noteSlots finds the engine's limit of sequences: a queue beside about the same
// number running, three scrapes in a row, room in the cache, and no prompt of
// our own that merely waits its turn.
func (i *Instance) noteSlots(s *Scrape) {
	const fewest, about = 2, 0.97
	full := s.Waiting > 0 && s.Running >= fewest && !(s.KVUse >= 0.9) && i.overdue(i.scrapeAt)
	switch {
	case s.Running > i.slots:
		i.slots, i.most, i.full = math.Inf(1), s.Running, 0
	case !full:
		i.full = 0
	case s.Running > i.most || s.Running < about*i.most:
		i.most, i.full = s.Running, 1
	default:
		i.full++
	}
	if i.full >= 3 {
		i.slots = i.most
	}
}

// overdue reports whether the first token of the oldest prompt pending was due
// before t, if there is one.
func (i *Instance) overdue(t float64) bool { return len(i.pending) == 0 || i.pending[0].due < t }

// computed are the tokens of pending prompts that are in the cache already.
func (i *Instance) computed() float64 {
	sum := 0.0
	for _, f := range i.pending {
		if f.left < float64(f.Uncached) {
			sum += float64(f.Prompt) - f.left
		}
	}
	return sum
}

// cacheTokens is the size of the engine's KV cache; +Inf if unknown.
func (i *Instance) cacheTokens() float64 {
	if c := i.scrape.CacheTokens; c > 0 {
		return c
	}
	return math.Inf(1)
}

// outputs are how long answers are: tokens seen over answers ended, the
// estimate for lengths without memory that does not favour the short ones,
// which end first.
type outputs struct{ tokens, ended float64 }

// end counts an answer; the last 50 or so weigh most.
func (o *outputs) end() {
	const keep = 0.98
	o.tokens *= keep
	o.ended = o.ended*keep + 1
}

// mean is in tokens, at least 1.
func (o *outputs) mean() float64 { return max(o.tokens/o.ended, 1) }

// mean is a decayed average.
type mean struct{ value, weight float64 }

// add takes a value of weight 1 in, after the past has shrunk by keep.
func (m *mean) add(v, keep float64) { m.addWeighted(v, 1, keep) }

func (m *mean) addWeighted(v, w, keep float64) {
	m.weight = m.weight*keep + w
	m.value += (v - m.value) * w / m.weight
}
