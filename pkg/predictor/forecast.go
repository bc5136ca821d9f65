package predictor

import "math"

// forecast is the outcome of letting the mirror run on until a request's first
// token.
type forecast struct {
	seconds float64 // from now to the first token
	own     float64 // of these, computing the request's own prompt
	queue   float64 // computing prompts ahead
	steps   float64 // until then
	blocked float64 // requests that must end before it can start
	current float64 // expected length of the present step; 0 if the engine is idle
}

const (
	// forecastSteps is how many steps are looked at one by one; what is beyond
	// is taken at the pace of the last.
	forecastSteps = 512
	// late is what is left, in relation to its length, of a step that should
	// have ended: about the mean excess of 5 % noise.
	late = 0.03
	// overdueSteps is how long the present step may take, in relation to what was
	// expected of it, before the prompts in it are taken not to be in the cache.
	overdueSteps = 1.5
)

// forecast lets the mirror run from the anchor on with the request behind all
// that is pending. Called with mu held.
func (i *Instance) forecast(now float64, w Work) (out forecast) {
	out = i.run(now, w, false)
	if overdue := out.current > 0 && now-i.anchor > overdueSteps*out.current; overdue && len(i.pending) > 0 {
		out = i.run(now, w, true)
	}
	return out
}

func (i *Instance) run(now float64, w Work, doubt bool) forecast {
	v := i.runner(now, w)
	v.doubt = doubt
	v.load()
	for !v.done && v.taken < forecastSteps {
		v.next()
	}
	if !v.done {
		v.finish()
	}
	out := v.found
	out.seconds = max(v.t-now, i.lag()/2)
	return out
}

// runner is the mirror running ahead.
type runner struct {
	*Instance
	found    forecast // so far
	now, t   float64
	speed    terms
	budget   float64
	decoding float64
	context  float64
	streams  bool
	k        int     // place in pending
	left     float64 // of the prompt at that place
	foreign  float64 // prompt tokens of others still ahead
	own      Work
	doubt    bool    // prompts in the present step may not be in the cache
	kv       float64 // tokens in the engine's cache that running sequences hold
	room     float64 // of them that it has place for; +Inf if unknown
	ending   float64 // chance of a sequence to end in a step; 0: not asked for yet
	taken    int
	done     bool
}

func (i *Instance) runner(now float64, w Work) runner {
	v := runner{Instance: i, now: now, t: i.anchor, speed: i.speed.fitted, own: w, budget: i.budget}
	for k := range v.speed {
		v.speed[k] *= i.speed.factor
	}
	v.decoding = float64(i.decoding) + i.others.decoding
	v.context = i.context + i.others.context
	v.streams = i.streams > 0
	v.kv, v.room = v.context+i.computed(), i.cacheTokens()
	v.foreign = i.others.tokens
	switch {
	case i.idle() || v.t > now:
		v.t = now
	case !v.streams: // nothing tells where in a step the engine was when the first of them came
		each := terms{steps: 1, seqs: v.decoding, context: v.context}
		since := now
		if len(i.pending) > 0 {
			since = min(since, i.pending[0].sent)
		}
		if v.decoding > 0 {
			v.t = max(v.t, since-dot(&v.speed, &each)/2)
		}
	}
	return v
}

// load takes the prompt at place k into hand: a pending one, or at last the
// request's own.
func (v *runner) load() {
	if v.k < len(v.pending) {
		v.left = max(v.pending[v.k].left, 1)
		if f := v.pending[v.k]; v.doubt && f.sent+v.lag() <= v.anchor {
			v.left = max(v.left, float64(f.Prompt)-(float64(f.Uncached)-f.left))
		}
		return
	}
	v.left = float64(max(v.own.Uncached, 1))
}

func (v *runner) isOwn() bool { return v.k >= len(v.pending) }

// ready is when the prompt in hand can enter a step.
func (v *runner) ready() float64 {
	if v.isOwn() {
		return v.now + v.lag()
	}
	return v.pending[v.k].sent + v.lag()
}

func (v *runner) prompt() int {
	if v.isOwn() {
		return v.own.Prompt
	}
	return v.pending[v.k].Prompt
}

// next lets one step run.
func (v *runner) next() {
	var x terms
	ownBefore := v.found.own
	joined, joinedContext, seen := v.fill(&x)
	if x[tokens] == 0 && v.decoding == 0 {
		v.t = max(v.t, v.ready()) // nothing to do until then
		v.taken++
		return
	}
	x[steps], x[seqs], x[context] = 1, v.decoding, v.context
	length := dot(&v.speed, &x)
	began := v.t
	v.t += length
	v.taken++
	if v.taken == 1 && began <= v.now && !v.idle() {
		v.found.current = length
	}
	if v.t < v.now && (v.streams || seen) { // it should have shown by now
		v.t = v.now + late*length
	}
	if v.t > v.now {
		v.found.steps++
	} else {
		v.found.own = ownBefore
	}
	v.decoding += joined
	v.context += joinedContext
	v.grow(v.decoding)
}

// fill puts prompts into the step that begins at t, and says how many
// sequences it completes and whether their first token would be seen.
func (v *runner) fill(x *terms) (joined, joinedContext float64, seen bool) {
	room := max(v.budget-v.decoding, 1)
	if v.foreign > 0 {
		take := min(v.foreign, room)
		v.foreign -= take
		room -= take
		v.charge(x, take, 0, 0)
	}
	for room > 0 && !v.done && v.ready() <= v.t {
		if v.left == float64(max(v.uncached(), 1)) { // it has not begun
			v.enter(joined)
		}
		take := min(v.left, room)
		room -= take
		to := v.prompt() - int(v.left) + int(take)
		v.charge(x, take, to-int(take), to)
		v.left -= take
		if v.left > 0 {
			break
		}
		joined++
		joinedContext += float64(v.prompt())
		if v.isOwn() {
			v.done = true
			return joined, joinedContext, true
		}
		seen = seen || v.pending[v.k].Stream
		v.k++
		v.load()
	}
	return joined, joinedContext, seen
}

func (v *runner) uncached() int {
	if v.isOwn() {
		return v.own.Uncached
	}
	return v.pending[v.k].Uncached
}

// charge adds prompt tokens from..to to a step.
func (v *runner) charge(x *terms, take float64, from, to int) {
	sq := squares(from, to)
	x[tokens] += take
	x[square] += sq
	cost := take*v.speed[tokens] + sq*v.speed[square]
	if v.isOwn() {
		v.found.own += cost
	} else {
		v.found.queue += cost
	}
}

// enter waits until there is a slot and room in the cache for the prompt in
// hand, and takes them.
func (v *runner) enter(joined float64) {
	need := float64(v.prompt())
	for v.decoding > 0 && (v.decoding+joined+1 > v.slots || v.kv+need > v.room) {
		v.wait()
	}
	v.kv += need
}

// wait lets one sequence end. Until then all have grown by a token a step.
func (v *runner) wait() {
	v.found.blocked++
	v.t += v.untilOneEnds()
	v.grow(1 / v.ending)
	each := v.context / v.decoding
	v.kv -= each
	v.context -= each
	v.decoding--
}

// grow lets the sequences decoding get so many tokens, all together.
func (v *runner) grow(tokens float64) {
	v.context += tokens
	v.kv += tokens
}

// untilOneEnds is the mean time until one of the sequences decoding ends.
func (v *runner) untilOneEnds() float64 {
	if v.ending == 0 {
		v.ending = v.endingShare()
	}
	x := terms{steps: 1, seqs: v.decoding, context: v.context}
	return dot(&v.speed, &x) / (v.ending * v.decoding)
}

// endingShare is the chance of a running sequence to end in a step: one in the
// mean length of their answers, which is the usual one, or what the client
// allows.
func (i *Instance) endingShare() float64 {
	usual := i.output.mean()
	if len(i.running) == 0 {
		return 1 / usual
	}
	sum := 0.0
	for _, f := range i.running {
		length := usual
		if f.Max > 0 {
			length = min(usual, float64(f.Max))
		}
		sum += length
	}
	return float64(len(i.running)) / sum
}

// finish takes what is beyond the steps looked at in one go.
func (v *runner) finish() {
	total, sq, count := 0.0, 0.0, 0.0
	for ; !v.isOwn(); v.load() {
		total += v.left
		sq += squares(v.prompt()-int(v.left), v.prompt())
		count++
		v.k++
	}
	ahead := total*v.speed[tokens] + sq*v.speed[square]
	total += v.left
	sq += squares(v.prompt()-int(v.left), v.prompt())
	room := max(v.budget-v.decoding, 1)
	x := terms{steps: math.Ceil(total / room), tokens: total, square: sq}
	x[seqs] = x[steps] * (v.decoding + count/2)
	x[context] = x[steps] * v.context
	over := max(v.decoding+count+1-v.slots, (v.kv+total-v.room)/max(v.context/max(v.decoding, 1), 1))
	if over > 0 && v.decoding > 0 {
		v.found.blocked += over
		v.t += over * v.untilOneEnds()
	}
	v.t = max(v.t, v.now) + dot(&v.speed, &x)
	v.found.steps += x[steps]
	v.found.queue += ahead
	v.found.own += total*v.speed[tokens] + sq*v.speed[square] - ahead
	v.done = true
}
