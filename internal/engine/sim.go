package engine

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// ErrTooLong says that a request can never run: prompt and output are beyond
// the context window.
var ErrTooLong = errors.New("request exceeds the context window")

// ErrStarting says that the engine is not ready yet.
var ErrStarting = errors.New("engine is starting")

// ErrEmpty says that a request has no prompt.
var ErrEmpty = errors.New("request has no prompt tokens")

// Sim is one engine in virtual time. Time is a Duration since an origin the
// caller chooses; it comes in as an argument and must not go back (an earlier
// time counts as the latest one seen).
//
// What happens depends on the calls of Submit and Cancel and their times only,
// not on how often Advance is called in between: a call made at the very
// instant of a step's end takes effect after the engine has gone on. The same
// parameters, seed and calls give the same events.
//
// A Sim is not safe for concurrent use.
type Sim struct {
	p     Params
	draws rand.PCG
	rng   *rand.Rand // over draws
	kv    blockPool
	now   time.Duration

	seqs    []seq // every sequence, by slot
	spare   []int32
	waiting queue
	running []int32 // in order of arrival

	busy    bool // a step is under way
	stepAt  time.Duration
	stepEnd time.Duration // end of the step under way, or of the last one
	load    load
	budget  int
	stall   time.Duration // of the step being planned: cold penalties
	slow    float64       // factor on every step's time
	readyAt time.Duration
	warmed  [classes]int // requests seen by class of prompt length

	events []Event
	steps  []Emission // of the Stepped events in events
	told   int        // emissions of events that are gone
	handed bool       // the caller has seen events

	stepped int // place of the Stepped event of the step being finished
	stats   Stats
}

// ID names a sequence of one Sim. It is not used again after its end.
type ID uint64

// Request is one prompt and the output it will get.
type Request struct {
	// Ref is the caller's own number, given back in every event.
	Ref int
	// PromptTokens is at least 1.
	PromptTokens int
	// OutputTokens is how many tokens are generated; 0 ends with the prefill
	// (an embedding).
	OutputTokens int
	// Hashes are the chained hashes of the full blocks of the prompt, from its
	// start. They may go on into the output, which makes the finished answer a
	// prefix that a next turn hits. Not to be changed before the end.
	Hashes []uint64
	// Quiet leaves the events of the tokens after the first to one Stepped for
	// the whole step.
	Quiet bool
}

// EventKind says what happened to a sequence.
type EventKind uint8

// The life of a sequence: scheduled, first token, tokens, finished. A preempted
// one is scheduled again and goes on where it was. With speculative decoding
// one Token event may stand for several tokens. Stepped is about no sequence but
// about a step in which quiet ones got tokens after their first; it comes before
// the ends of those.
const (
	Scheduled EventKind = iota + 1
	Preempted
	FirstToken
	Token
	Finished
	Stepped
)

// Event is something that happened to one sequence at an exact time.
type Event struct {
	At     time.Duration
	ID     ID
	Ref    int
	Kind   EventKind
	Tokens int // generated so far, with this one; Stepped: how many sequences got some
	Cached int // Scheduled: prompt tokens found in the prefix cache

	from int // Stepped: its first emission, counted from the engine's first
}

// Emission is what a step gave to one quiet sequence.
type Emission struct {
	ID     ID
	Ref    int
	Tokens int // generated so far
}

// Stats are the counters and gauges of an engine as of the last call.
type Stats struct {
	Running, Waiting    int
	KVUsed, KVTotal     int // blocks
	PrefixQueries       int // prompt tokens looked up, once a request
	PrefixHits          int // of these found
	PromptTokens        int // of requests whose prefill is done
	ComputedTokens      int // prefilled, with recomputation
	GeneratedTokens     int
	Submitted           int
	Finished, Cancelled int
	Preemptions         int
	ColdRequests        int // that paid for what was built on first use
	Drafts              int // checks of guessed tokens, one a sequence and step
	DraftTokens         int // guessed
	AcceptedTokens      int // of these kept
	Steps               int
	Busy                time.Duration // time in steps
}

type seqState uint8

const (
	free seqState = iota
	queued
	running
)

// seq is one request inside the engine. It lives in a slot that is used again.
type seq struct {
	Request
	gen        uint32
	state      seqState
	seen       bool // was scheduled before
	ready      time.Duration
	output     int // tokens generated
	computed   int // tokens whose KV is in blocks
	chunk      int // tokens being computed in this step
	draft      int // guessed tokens being checked in this step
	blocks     []int32
	prev, next int32 // waiting queue
}

// tokens that must be computed before the next one comes out.
func (q *seq) tokens() int { return q.PromptTokens + q.output }

// New makes an idle engine with an empty cache.
func New(p Params, seed uint64) (*Sim, error) {
	p, err := p.complete()
	if err != nil {
		return nil, fmt.Errorf("engine parameters: %w", err)
	}
	s := &Sim{
		p:       p,
		draws:   *rand.NewPCG(seed, mix(seed)),
		kv:      newBlockPool(p.KVBlocks),
		slow:    1,
		waiting: queue{first: none, last: none},
		running: make([]int32, 0, p.MaxSeqs),
	}
	s.rng = rand.New(&s.draws)
	return s, nil
}

// Params gives the parameters with their defaults filled in.
func (s *Sim) Params() Params { return s.p }

// Start lets the engine's start-up begin now. An engine that is never told to
// start is ready from the beginning.
func (s *Sim) Start(now time.Duration) {
	s.run(now)
	s.readyAt = s.now + s.p.StartUp
}

// ReadyAt gives the time from which on the engine takes requests.
func (s *Sim) ReadyAt() time.Duration { return s.readyAt }

// Slow makes every step planned from now on take factor times as long; 1 is
// the engine's own speed. A factor that is not above 0 counts as 1.
func (s *Sim) Slow(now time.Duration, factor float64) {
	s.run(now)
	s.slow = 1
	if factor > 0 && !math.IsInf(factor, 0) {
		s.slow = factor
	}
}

// Quieten takes the noise out of all steps from now on, and out of the rest of
// the one under way: it ends when its load says, or at once if that has passed.
func (s *Sim) Quieten(now time.Duration) {
	s.run(now)
	s.p.Noise = 0
	if s.busy {
		s.stepEnd = max(s.stepAt+s.expected(), s.now)
	}
}

// expected is how long the step under way takes without noise.
func (s *Sim) expected() time.Duration {
	ns := s.p.Step.time(&s.load)*s.slow + float64(s.stall)
	return max(time.Duration(math.Round(ns)), 1)
}

// Clone is a copy that goes its own way from here: the same calls give the same
// events in both. Events not yet taken are left out.
func (s *Sim) Clone() *Sim {
	dst := &Sim{}
	s.CloneInto(dst)
	return dst
}

// CloneInto makes dst, which may be the zero value, what Clone would give. It
// uses dst's room again, so once that is large enough nothing is allocated. The
// requests' Hashes are shared.
func (s *Sim) CloneInto(dst *Sim) {
	room := *dst
	*dst = *s
	if dst.rng = room.rng; dst.rng == nil {
		dst.rng = rand.New(&dst.draws)
	}
	dst.kv = room.kv
	s.kv.copyInto(&dst.kv)
	dst.seqs = room.seqs[:0]
	for i := range s.seqs {
		dst.seqs = appendSeq(dst.seqs, &s.seqs[i])
	}
	dst.spare = append(room.spare[:0], s.spare...)
	dst.running = append(room.running[:0], s.running...)
	dst.told += len(s.steps)
	dst.events, dst.steps, dst.handed = room.events[:0], room.steps[:0], true
}

// appendSeq appends a copy of q, in the room for blocks that is there.
func appendSeq(seqs []seq, q *seq) []seq {
	var blocks []int32
	if n := len(seqs); n < cap(seqs) {
		blocks = seqs[:n+1][n].blocks
	}
	seqs = append(seqs, *q)
	seqs[len(seqs)-1].blocks = append(blocks[:0], q.blocks...)
	return seqs
}

// Submit lets a request arrive. It fails with ErrTooLong, ErrEmpty, or
// ErrStarting before the engine is ready.
func (s *Sim) Submit(now time.Duration, r Request) (ID, error) {
	if err := s.p.fits(r.PromptTokens, r.OutputTokens); err != nil {
		return 0, err
	}
	if max(s.now, now) < s.readyAt {
		return 0, ErrStarting
	}
	s.run(now)
	slot := s.slot()
	q := &s.seqs[slot]
	*q = seq{Request: r, gen: q.gen, state: queued, ready: s.now + s.p.Step.H, blocks: q.blocks[:0]}
	s.waiting.pushBack(s.seqs, slot)
	s.stats.Submitted++
	return q.id(slot), nil
}

// fits says whether a request of that size can ever run.
func (p *Params) fits(prompt, output int) error {
	if prompt < 1 || output < 0 {
		return ErrEmpty
	}
	if prompt+output > p.MaxModelLen {
		return fmt.Errorf("%w: %d prompt and %d output tokens, at most %d together", ErrTooLong, prompt, output, p.MaxModelLen)
	}
	return nil
}

// Cancel ends a sequence at once and frees its blocks; a step under way keeps
// its length. It reports false when the sequence has ended already.
func (s *Sim) Cancel(now time.Duration, id ID) bool {
	s.run(now)
	slot := int32(id)
	if int(slot) >= len(s.seqs) {
		return false
	}
	q := &s.seqs[slot]
	if q.state == free || q.id(slot) != id {
		return false
	}
	s.remove(slot)
	s.end(slot)
	s.stats.Cancelled++
	return true
}

// NextEvent gives the time to call Advance next when nothing is submitted or
// cancelled before; false when the engine is idle.
func (s *Sim) NextEvent() (time.Duration, bool) {
	if len(s.events) > 0 && !s.handed {
		return s.now, true
	}
	if s.busy {
		return s.stepEnd, true
	}
	_, due, ok := s.nextStart()
	return due, ok
}

// Advance moves to now and gives everything that happened since the last
// Advance, in order of time. The slice is valid until the next call of Submit,
// Cancel or Advance.
func (s *Sim) Advance(now time.Duration) []Event {
	s.run(now)
	s.handed = true
	return s.events
}

// Emitted lists what a Stepped event is about. The slice is valid as long as the
// event's.
func (s *Sim) Emitted(e Event) []Emission {
	from := e.from - s.told
	if e.Kind != Stepped || from < 0 || from+e.Tokens > len(s.steps) {
		return nil
	}
	return s.steps[from : from+e.Tokens]
}

// Stats gives the state as of the last call.
func (s *Sim) Stats() Stats {
	st := s.stats
	st.Running, st.Waiting = len(s.running), s.waiting.len
	st.KVUsed, st.KVTotal = s.kv.used(), s.kv.total()
	return st
}

// run does everything due up to now.
func (s *Sim) run(now time.Duration) {
	if s.handed {
		s.told += len(s.steps)
		s.events, s.steps, s.handed = s.events[:0], s.steps[:0], false
	}
	s.now = max(s.now, now)
	for {
		if s.busy {
			if s.stepEnd > s.now {
				return
			}
			s.finishStep()
		}
		at, due, ok := s.nextStart()
		if !ok || due > s.now {
			return
		}
		s.startStep(at, due)
	}
}

// nextStart gives when the next step begins and when it can be planned. A step
// takes the requests that were ready before it is planned. After another step
// that is its own start; on an idle engine it is one tick later, so that
// requests of the same instant share the step whatever is called in between.
func (s *Sim) nextStart() (at, due time.Duration, ok bool) {
	if len(s.running) > 0 {
		return s.stepEnd, s.stepEnd, true
	}
	if s.waiting.first == none {
		return 0, 0, false
	}
	ready := s.seqs[s.waiting.first].ready
	if ready < s.stepEnd {
		return s.stepEnd, s.stepEnd, true
	}
	return ready, ready + 1, true
}

// startStep plans one forward pass: first what runs, then new requests, then
// how long it takes.
func (s *Sim) startStep(at, due time.Duration) {
	s.stepAt = at
	s.load, s.stall = load{}, 0
	s.budget = s.p.MaxBatchedTokens
	if s.continueRunning() {
		s.admit(due)
	}
	ns := s.p.Step.time(&s.load)
	if sigma := s.p.Noise; sigma > 0 {
		ns *= math.Exp(sigma*s.rng.NormFloat64() - sigma*sigma/2)
	}
	ns = ns*s.slow + float64(s.stall)
	s.stepEnd = at + max(time.Duration(math.Round(ns)), 1)
	s.busy = true
}

// continueRunning schedules what runs already. It reports false when blocks
// ran out: then nothing new is admitted in this step.
func (s *Sim) continueRunning() bool {
	before := s.stats.Preemptions
	for i := 0; i < len(s.running) && s.budget > 0; i++ {
		q := &s.seqs[s.running[i]]
		n := min(q.tokens()-q.computed, s.budget)
		q.draft = s.drafts(q, n)
		if to := q.computed + n + q.draft; to > len(q.blocks)*BlockTokens && !s.makeRoom(i, to) {
			break
		}
		s.schedule(q, n)
	}
	return s.stats.Preemptions == before
}

// drafts gives how many tokens a sequence guesses ahead in a step in which it
// computes n.
func (s *Sim) drafts(q *seq, n int) int {
	if s.p.Speculative.DraftTokens == 0 || n != 1 || q.output == 0 {
		return 0
	}
	return max(0, min(s.p.Speculative.DraftTokens, q.OutputTokens-q.output-1, s.budget-1))
}

// makeRoom gets blocks for the i-th running sequence, from the latest arrivals
// if need be. It reports false when that sequence had to go itself.
func (s *Sim) makeRoom(i, tokens int) bool {
	q := &s.seqs[s.running[i]]
	for {
		var ok bool
		if q.blocks, ok = s.kv.grow(q.blocks, tokens); ok {
			return true
		}
		last := len(s.running) - 1
		s.preempt(last)
		if last == i {
			return false
		}
	}
}

// preempt takes the latest running sequence back to the head of the queue. All
// it has computed is computed again, as far as the cache has lost it.
func (s *Sim) preempt(last int) {
	slot := s.running[last]
	s.running = s.running[:last]
	q := &s.seqs[slot]
	s.kv.release(q.blocks)
	q.blocks, q.computed, q.draft, q.state = q.blocks[:0], 0, 0, queued
	s.waiting.pushFront(s.seqs, slot)
	s.stats.Preemptions++
	s.emit(s.stepAt, slot, Preempted, 0)
}

// admit takes requests from the queue, first come first served, as long as
// there are tokens, places and blocks.
func (s *Sim) admit(due time.Duration) {
	for s.budget > 0 && len(s.running) < s.p.MaxSeqs {
		slot := s.waiting.first
		if slot == none || s.seqs[slot].ready >= due || !s.place(slot) {
			return
		}
	}
}

// place starts a request if blocks for all of its prompt are there, though
// they are taken chunk by chunk.
func (s *Sim) place(slot int32) bool {
	if s.waiting.blocked && !s.kv.changed {
		return false
	}
	q := &s.seqs[slot]
	hit, idle := 0, 0
	if !s.p.NoPrefixCache {
		hit, idle = s.kv.match(q.Hashes, (q.tokens()-1)/BlockTokens)
	}
	if blocksFor(q.tokens())-hit > s.kv.idle-idle {
		s.waiting.blocked, s.kv.changed = true, false
		return false
	}
	s.waiting.remove(s.seqs, slot)
	s.running = append(s.running, slot)
	q.state = running
	q.blocks = s.kv.share(q.blocks, q.Hashes[:hit])
	q.computed = hit * BlockTokens
	s.countFirst(q)
	s.emit(s.stepAt, slot, Scheduled, q.computed)

	n := min(q.tokens()-q.computed, s.budget)
	q.blocks, _ = s.kv.grow(q.blocks, q.computed+n)
	s.schedule(q, n)
	return true
}

// countFirst counts what happens once a request, when it is scheduled for the
// first time: the lookup in the cache, and what was not built yet.
func (s *Sim) countFirst(q *seq) {
	if q.seen {
		return
	}
	q.seen = true
	s.stats.PrefixQueries += q.PromptTokens
	s.stats.PrefixHits += q.computed
	before := &s.warmed[class(q.PromptTokens)]
	if penalty := s.p.Cold.penalty(*before); penalty > 0 {
		s.stall += penalty
		s.stats.ColdRequests++
	}
	*before++
}

// schedule puts n tokens of a sequence into the step. Full blocks can be found
// by others from here on: within a step the work is done in this order.
func (s *Sim) schedule(q *seq, n int) {
	to := q.computed + n
	q.chunk = n
	s.budget -= n + q.draft
	if n == 1 && q.output > 0 {
		s.load.addDecode(to)
		s.load.draft += q.draft
	} else {
		s.load.addPrefill(q.computed, to)
	}
	s.remember(q, q.computed, to)
}

// remember makes the blocks that are filled by these tokens findable.
func (s *Sim) remember(q *seq, from, to int) {
	if s.p.NoPrefixCache {
		return
	}
	for b := from / BlockTokens; b < min(to/BlockTokens, len(q.Hashes)); b++ {
		s.kv.remember(q.blocks[b], q.Hashes[b])
	}
}

// finishStep takes the results of the step: a token for every sequence whose
// tokens are all computed.
func (s *Sim) finishStep() {
	s.busy = false
	s.stats.Steps++
	s.stats.Busy += s.stepEnd - s.stepAt
	s.stats.ComputedTokens += s.load.prefill
	s.stepped = none
	kept := s.running[:0]
	for _, slot := range s.running {
		q := &s.seqs[slot]
		q.computed += q.chunk
		produced := q.chunk > 0 && q.computed == q.tokens()
		q.chunk = 0
		if produced && s.produce(q, slot, s.accept(q)) {
			s.end(slot)
			continue
		}
		kept = append(kept, slot)
	}
	s.running = kept
}

// accept gives how many of the guessed tokens were right.
func (s *Sim) accept(q *seq) int {
	if q.draft == 0 {
		return 0
	}
	n := 0
	for n < q.draft && s.rng.Float64() < s.p.Speculative.Acceptance {
		n++
	}
	s.stats.Drafts++
	s.stats.DraftTokens += q.draft
	s.stats.AcceptedTokens += n
	q.draft = 0
	return n
}

// produce gives a sequence its next token, after the guessed ones that were
// right, and reports whether it is finished.
func (s *Sim) produce(q *seq, slot int32, guessed int) (finished bool) {
	if q.output == 0 {
		s.stats.PromptTokens += q.PromptTokens
	}
	if guessed > 0 {
		s.remember(q, q.computed, q.computed+guessed)
		q.computed += guessed
		q.output += guessed
		s.stats.GeneratedTokens += guessed
	}
	if q.OutputTokens > 0 {
		q.output++
		s.stats.GeneratedTokens++
		if q.output == 1 {
			s.emit(s.stepEnd, slot, FirstToken, 0)
		} else if q.Quiet {
			s.tell(q, slot)
		} else {
			s.emit(s.stepEnd, slot, Token, 0)
		}
	}
	if q.output < q.OutputTokens {
		return false
	}
	s.stats.Finished++
	s.emit(s.stepEnd, slot, Finished, 0)
	return true
}

func (s *Sim) emit(at time.Duration, slot int32, kind EventKind, cached int) {
	q := &s.seqs[slot]
	s.events = append(s.events, Event{At: at, ID: q.id(slot), Ref: q.Ref, Kind: kind, Tokens: q.output, Cached: cached})
}

// tell notes a quiet sequence's tokens in the step's one event.
func (s *Sim) tell(q *seq, slot int32) {
	if s.stepped == none {
		s.stepped = len(s.events)
		s.events = append(s.events, Event{At: s.stepEnd, Kind: Stepped, from: s.told + len(s.steps)})
	}
	s.steps = append(s.steps, Emission{ID: q.id(slot), Ref: q.Ref, Tokens: q.output})
	s.events[s.stepped].Tokens++
}

// slot finds a place for a new sequence.
func (s *Sim) slot() int32 {
	if n := len(s.spare); n > 0 {
		slot := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return slot
	}
	s.seqs = append(s.seqs, seq{})
	return int32(len(s.seqs) - 1)
}

// remove takes a sequence out of the queue or the batch.
func (s *Sim) remove(slot int32) {
	if s.seqs[slot].state == queued {
		s.waiting.remove(s.seqs, slot)
		return
	}
	for i, r := range s.running {
		if r == slot {
			s.running = append(s.running[:i], s.running[i+1:]...)
			return
		}
	}
}

// end frees what a sequence held and its slot.
func (s *Sim) end(slot int32) {
	q := &s.seqs[slot]
	s.kv.release(q.blocks)
	q.blocks = q.blocks[:0]
	q.Hashes = nil
	q.state = free
	q.gen++
	s.spare = append(s.spare, slot)
}

func (q *seq) id(slot int32) ID { return ID(q.gen)<<32 | ID(slot) }
