package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// plain is an engine whose times can be added up in the head: 10 ms a step,
// 1 ms a prompt token, 2 ms a decoding sequence, 5 ms a request.
func plain() Params {
	return Params{
		Step:             StepModel{T0: ms(10), Alpha: 1000, Beta: 2000, H: ms(5)},
		MaxSeqs:          4,
		MaxBatchedTokens: 100,
		KVBlocks:         100,
	}
}

// cramped is an engine that runs out of everything.
func cramped() Params {
	return Params{
		Step:             StepModel{T0: ms(10), Alpha: 50, Beta: 300, Gamma: 2, H: ms(3)},
		MaxSeqs:          6,
		MaxBatchedTokens: 64,
		KVBlocks:         24,
	}
}

func TestStepTimes(t *testing.T) {
	type want struct {
		at   int // ms
		kind EventKind
		ref  int
		n    int
	}
	for _, c := range []struct {
		name     string
		params   func(*Params)
		requests []Request
		want     []want
	}{
		{
			name:     "one request: h, prefill, decode",
			requests: []Request{{PromptTokens: 20, OutputTokens: 3}},
			want: []want{
				{5, Scheduled, 0, 0}, {35, FirstToken, 0, 1}, {47, Token, 0, 2}, {59, Token, 0, 3}, {59, Finished, 0, 3},
			},
		},
		{
			name:     "a long prompt goes in chunks of the budget",
			requests: []Request{{PromptTokens: 250, OutputTokens: 1}},
			want:     []want{{5, Scheduled, 0, 0}, {285, FirstToken, 0, 1}, {285, Finished, 0, 1}},
		},
		{
			name:     "requests of one instant share a step, in their order",
			requests: []Request{{PromptTokens: 20, OutputTokens: 1}, {PromptTokens: 30, OutputTokens: 1}},
			want: []want{
				{5, Scheduled, 0, 0}, {5, Scheduled, 1, 0},
				{65, FirstToken, 0, 1}, {65, Finished, 0, 1}, {65, FirstToken, 1, 1}, {65, Finished, 1, 1},
			},
		},
		{
			name:     "decoding comes before new prompts in the budget",
			params:   func(p *Params) { p.MaxBatchedTokens = 20 },
			requests: []Request{{PromptTokens: 20, OutputTokens: 2}, {PromptTokens: 20, OutputTokens: 1}},
			want: []want{
				{5, Scheduled, 0, 0}, {35, FirstToken, 0, 1}, // 20 tokens
				{35, Scheduled, 1, 0}, {66, Token, 0, 2}, {66, Finished, 0, 2}, // 1 + 19
				{77, FirstToken, 1, 1}, {77, Finished, 1, 1}, // the last one
			},
		},
		{
			name:     "the sequence cap makes others wait for an end",
			params:   func(p *Params) { p.MaxSeqs = 1 },
			requests: []Request{{PromptTokens: 20, OutputTokens: 2}, {PromptTokens: 20, OutputTokens: 1}},
			want: []want{
				{5, Scheduled, 0, 0}, {35, FirstToken, 0, 1}, {47, Token, 0, 2}, {47, Finished, 0, 2},
				{47, Scheduled, 1, 0}, {77, FirstToken, 1, 1}, {77, Finished, 1, 1},
			},
		},
		{
			name:     "no output: ends with the prefill",
			requests: []Request{{PromptTokens: 20}},
			want:     []want{{5, Scheduled, 0, 0}, {35, Finished, 0, 0}},
		},
		{
			name:     "quiet: after the first token steps are told",
			requests: []Request{{PromptTokens: 20, OutputTokens: 3, Quiet: true}},
			want: []want{
				{5, Scheduled, 0, 0}, {35, FirstToken, 0, 1}, {47, Stepped, 0, 1}, {59, Stepped, 0, 1}, {59, Finished, 0, 3},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plain()
			if c.params != nil {
				c.params(&p)
			}
			s := newSim(t, p)
			for i, r := range c.requests {
				r.Ref = i
				submit(t, s, 0, r)
			}
			var got []want
			for _, e := range drain(s) {
				got = append(got, want{int(e.At.Milliseconds()), e.Kind, e.Ref, e.Tokens})
				if e.At%time.Millisecond != 0 {
					t.Errorf("event at %v, want whole milliseconds", e.At)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}

func TestStepModel(t *testing.T) {
	m := StepModel{T0: ms(10), Alpha: 2, Beta: 100, Gamma: 0.5, Alpha2: 0.001, Experts: ms(8), Active: 0.5}
	for _, c := range []struct {
		name string
		fill func(*load)
		want float64 // µs
	}{
		{"empty", func(*load) {}, 10000},
		{"prefill touches all experts", func(l *load) { l.addPrefill(0, 1000) }, 12000 + 8000},
		{"decode", func(l *load) { l.addDecode(600); l.addDecode(400) }, 10700 + 6000},
		{"guessed tokens", func(l *load) { l.addDecode(1000); l.draft = 2 }, 10604 + 7000},
		{"up to 4k there is no square", func(l *load) { l.addPrefill(0, 4096) }, 18192 + 8000},
		{"beyond 4k", func(l *load) { l.addPrefill(0, 8192) }, 18000 + 16384 + 0.001*(8192*8192-4096*4096)},
		{"chunks add up to the same", func(l *load) { l.addPrefill(0, 3000); l.addPrefill(3000, 5000); l.addPrefill(5000, 8192) }, 18000 + 16384 + 0.001*(8192*8192-4096*4096)},
	} {
		var l load
		c.fill(&l)
		if got := m.time(&l) / 1000; got < c.want-1e-6 || got > c.want+1e-6 {
			t.Errorf("%s: %v µs, want %v", c.name, got, c.want)
		}
	}
}

func TestNewRejectsNonsense(t *testing.T) {
	for name, change := range map[string]func(*Params){
		"no cache":        func(p *Params) { p.KVBlocks = 0 },
		"negative cost":   func(p *Params) { p.Step.Alpha = -1 },
		"negative cap":    func(p *Params) { p.MaxSeqs = -1 },
		"negative budget": func(p *Params) { p.MaxBatchedTokens = -1 },
		"negative noise":  func(p *Params) { p.Noise = -1 },
	} {
		p := plain()
		change(&p)
		if _, err := New(p, 1); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestSubmitRejectsWhatCanNeverRun(t *testing.T) {
	p := plain()
	p.KVBlocks, p.MaxModelLen = 10, 1000 // 160 tokens fit
	s := newSim(t, p)
	for _, c := range []struct {
		prompt, output int
		want           error
	}{
		{100, 60, nil}, {160, 0, nil}, {100, 61, ErrTooLong}, {161, 0, ErrTooLong}, {0, 5, ErrEmpty}, {5, -1, ErrEmpty},
	} {
		if _, err := s.Submit(0, Request{PromptTokens: c.prompt, OutputTokens: c.output}); !errors.Is(err, c.want) {
			t.Errorf("%d + %d tokens: %v, want %v", c.prompt, c.output, err, c.want)
		}
	}
	if ended := count(drain(s), Finished); ended != 2 {
		t.Errorf("%d finished, want the 2 accepted", ended)
	}
}

// A longer queue never gives an earlier first token.
func TestLawLongerQueueNeverEarlier(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := cramped()
		p.NoPrefixCache = true
		p.KVBlocks = 200 // without preemption
		queue := make([]Request, rng.IntN(12))
		for i := range queue {
			queue[i] = Request{PromptTokens: 1 + rng.IntN(150), OutputTokens: 1 + rng.IntN(40)}
		}
		last := Request{Ref: 1, PromptTokens: 1 + rng.IntN(150), OutputTokens: 5}
		before := time.Duration(-1)
		for n := range len(queue) + 1 {
			s := newSim(t, p)
			for _, r := range queue[:n] {
				submit(t, s, 0, r)
			}
			submit(t, s, 0, last)
			got := ttft(drain(s), 1)
			if got < before {
				t.Fatalf("seed %d: first token at %v behind %d requests, at %v behind %d", seed, got, n, before, n-1)
			}
			before = got
		}
	}
}

// A request whose prefix is cached never gets its first token later than one
// that shares nothing, in the same traffic.
func TestLawHitNeverCostsMore(t *testing.T) {
	hits := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 4))
		p := cramped()
		p.KVBlocks = 300 // no preemption
		p.Cold = Cold{Tables: ms(42), Cache: ms(3), Requests: 2}
		others := make([]Request, 1+rng.IntN(10))
		for i := range others {
			others[i] = Request{Ref: 2 + i, PromptTokens: 1 + rng.IntN(150), OutputTokens: 1 + rng.IntN(40)}
			others[i].Hashes = family(i%2, others[i].PromptTokens/BlockTokens, 9, i)
		}
		tokens, ahead := 33+rng.IntN(150), rng.IntN(len(others))
		run := func(name string) time.Duration {
			s := newSim(t, p)
			for _, r := range others {
				submit(t, s, 0, r)
			}
			drain(s)
			at := ms(60_000)
			for _, r := range others[:ahead] {
				r.Hashes = nil
				submit(t, s, at, r)
			}
			submit(t, s, at, Request{Ref: 1, PromptTokens: tokens, OutputTokens: 5, Hashes: namedBlocks(name, tokens)})
			got := ttft(drain(s), 1)
			if name == "0" && s.Stats().PrefixHits > 0 {
				hits++
			}
			return got
		}
		if hit, miss := run("0"), run("unheard of"); hit > miss {
			t.Fatalf("seed %d: first token at %v with a hit, at %v without", seed, hit, miss)
		}
	}
	if hits < 20 {
		t.Errorf("only %d of 60 scripts had a hit", hits)
	}
}

func namedBlocks(name string, tokens int) []uint64 {
	chain := NewChain(name)
	hashes := make([]uint64, tokens/BlockTokens)
	for b := range hashes {
		hashes[b] = chain.Next(uint64(b))
	}
	return hashes
}

// action is one call into the engine.
type action struct {
	at     time.Duration
	cancel int // index of the submit to cancel, -1 to submit
	req    Request
}

// randomScript makes calls that share prefixes, run out of room and cancel.
func randomScript(seed uint64) []action {
	rng := rand.New(rand.NewPCG(seed, 2))
	var script []action
	var at time.Duration
	submits := 0
	for range 60 {
		if rng.IntN(3) > 0 { // else at the same instant
			at += time.Duration(rng.IntN(60)) * time.Millisecond
		}
		if submits > 0 && rng.IntN(5) == 0 {
			script = append(script, action{at: at, cancel: rng.IntN(submits)})
			continue
		}
		r := Request{Ref: submits, PromptTokens: 1 + rng.IntN(200), OutputTokens: rng.IntN(100)}
		r.Hashes = family(rng.IntN(4), (r.PromptTokens+r.OutputTokens)/BlockTokens, rng.IntN(12), submits)
		script = append(script, action{at: at, cancel: -1, req: r})
		submits++
	}
	return script
}

// family gives hashes that share their first blocks with others of the family.
func family(name, blocks, shared, own int) []uint64 {
	chain := NewChain(fmt.Sprint(name))
	hashes := make([]uint64, blocks)
	for b := range hashes {
		content := uint64(b)
		if b >= shared {
			content = uint64(1000*own + b)
		}
		hashes[b] = chain.Next(content)
	}
	return hashes
}

// play runs a script. look is called after each call and each Advance; extra
// gives times between two calls at which Advance is called as well.
func play(t testing.TB, s *Sim, script []action, extra func(from, to time.Duration) []time.Duration, look func()) (events []Event, cancelled map[int]bool) {
	t.Helper()
	cancelled = map[int]bool{}
	var ids []ID
	var now time.Duration
	for _, a := range script {
		for _, at := range extra(now, a.at) {
			events = append(events, s.Advance(at)...)
			look()
		}
		now = a.at
		if a.cancel < 0 {
			ids = append(ids, submit(t, s, now, a.req))
		} else if s.Cancel(now, ids[a.cancel]) {
			cancelled[a.cancel] = true
		}
		look()
		events = append(events, s.Advance(now)...)
	}
	for at, ok := s.NextEvent(); ok; at, ok = s.NextEvent() {
		events = append(events, s.Advance(at)...)
		look()
	}
	return events, cancelled
}

func noExtra(time.Duration, time.Duration) []time.Duration { return nil }

// Tokens and blocks are conserved whatever happens, and every request that is
// not cancelled finishes.
func TestLawConservation(t *testing.T) {
	guessing := cramped()
	guessing.Speculative = Speculative{DraftTokens: 4, Acceptance: 0.7}
	for name, p := range map[string]Params{"plain": cramped(), "speculative": guessing} {
		t.Run(name, func(t *testing.T) { checkConservation(t, p) })
	}
}

func checkConservation(t *testing.T, p Params) {
	var total Stats
	for seed := range uint64(25) {
		s := newSim(t, p)
		script := randomScript(seed)
		events, cancelled := play(t, s, script, noExtra, func() { checkBlocks(t, s) })
		checkLives(t, script, events, cancelled, 1+p.Speculative.DraftTokens)

		st := s.Stats()
		if st.Running != 0 || st.Waiting != 0 || st.KVUsed != 0 {
			t.Fatalf("seed %d: left over after the end: %+v", seed, st)
		}
		if st.Finished+st.Cancelled != st.Submitted {
			t.Fatalf("seed %d: %d finished and %d cancelled of %d", seed, st.Finished, st.Cancelled, st.Submitted)
		}
		if p.Speculative.DraftTokens > 0 && (st.AcceptedTokens == 0 || st.AcceptedTokens >= st.DraftTokens) {
			t.Fatalf("seed %d: %d of %d guessed tokens kept", seed, st.AcceptedTokens, st.DraftTokens)
		}
		if st.PrefixHits > st.PrefixQueries {
			t.Fatalf("seed %d: more hits than queries: %+v", seed, st)
		}
		total.Preemptions += st.Preemptions
		total.PrefixHits += st.PrefixHits
		total.Cancelled += st.Cancelled
	}
	if total.Preemptions == 0 || total.PrefixHits == 0 || total.Cancelled == 0 {
		t.Errorf("the scripts do not reach what they are for: %+v", total)
	}
}

// checkBlocks looks at the cache from every side.
func checkBlocks(t *testing.T, s *Sim) {
	t.Helper()
	refs := make([]int32, s.kv.total())
	for _, slot := range s.running {
		q := &s.seqs[slot]
		if len(q.blocks) < blocksFor(q.computed) {
			t.Fatalf("sequence with %d tokens computed holds %d blocks", q.computed, len(q.blocks))
		}
		for _, b := range q.blocks {
			refs[b]++
		}
	}
	if !slices.Equal(refs, s.kv.ref) {
		t.Fatalf("references %v, held %v", s.kv.ref, refs)
	}
	idle, end := 0, int32(s.kv.total())
	for b := s.kv.next[end]; b != end; b = s.kv.next[b] {
		if s.kv.ref[b] != 0 {
			t.Fatalf("block %d is idle and held", b)
		}
		idle++
	}
	if idle != s.kv.idle || s.kv.used()+idle != s.kv.total() {
		t.Fatalf("%d used, %d idle (counted %d), %d in all", s.kv.used(), s.kv.idle, idle, s.kv.total())
	}
	checkIndex(t, &s.kv)
	if len(s.running) > s.p.MaxSeqs {
		t.Fatalf("%d sequences run, cap %d", len(s.running), s.p.MaxSeqs)
	}
}

// checkIndex wants every block that holds something found, and nothing else.
func checkIndex(t *testing.T, p *blockPool) {
	t.Helper()
	holding, indexed := 0, 0
	for b, h := range p.hash {
		if h == 0 {
			continue
		}
		holding++
		if got, ok := p.find(h); !ok || got != int32(b) {
			t.Fatalf("block %d holds %x, which is found in %d (%v)", b, h, got, ok)
		}
	}
	for _, b := range p.index {
		if b != 0 {
			indexed++
		}
	}
	if holding != indexed {
		t.Fatalf("%d blocks hold something, %d are indexed", holding, indexed)
	}
}

// checkLives follows every request through its events, each of which tells at
// most so many new tokens.
func checkLives(t *testing.T, script []action, events []Event, cancelled map[int]bool, most int) {
	t.Helper()
	type life struct {
		running, finished bool
		tokens            int
	}
	lives := map[int]*life{}
	want := map[int]Request{}
	for _, a := range script {
		if a.cancel < 0 {
			lives[a.req.Ref], want[a.req.Ref] = &life{}, a.req
		}
	}
	var last time.Duration
	for _, e := range events {
		if e.At < last {
			t.Fatalf("time goes back: %+v after %v", e, last)
		}
		last = e.At
		l := lives[e.Ref]
		ok := !l.finished
		switch e.Kind {
		case Scheduled:
			ok = ok && !l.running
			l.running = true
		case Preempted:
			ok = ok && l.running
			l.running = false
		case FirstToken, Token:
			n := e.Tokens - l.tokens
			ok = ok && l.running && n >= 1 && n <= most && (e.Kind == FirstToken) == (e.Tokens == 1)
			l.tokens = e.Tokens
		case Finished:
			ok = ok && l.running && e.Tokens == l.tokens && l.tokens == want[e.Ref].OutputTokens
			l.finished = true
		}
		if !ok {
			t.Fatalf("event %+v does not follow from %+v", e, *l)
		}
	}
	for ref, l := range lives {
		if l.finished == cancelled[ref] {
			t.Fatalf("request %d: finished %v, cancelled %v", ref, l.finished, cancelled[ref])
		}
	}
}

func TestLawSameSeedSameEvents(t *testing.T) {
	p := cramped()
	p.Noise = 0.2
	run := func(seed uint64) []Event {
		s, err := New(p, seed)
		if err != nil {
			t.Fatal(err)
		}
		events, _ := play(t, s, randomScript(5), noExtra, func() {})
		return events
	}
	if !reflect.DeepEqual(run(1), run(1)) {
		t.Error("the same seed gave other events")
	}
	if reflect.DeepEqual(run(1), run(2)) {
		t.Error("another seed gave the same events")
	}
}

// Steps tell of quiet sequences what their tokens would have told, before their
// ends.
func TestLawStepsTellTheTokens(t *testing.T) {
	p := cramped()
	p.Speculative = Speculative{DraftTokens: 3, Acceptance: 0.5}
	type token struct {
		at        time.Duration
		ref, upTo int
	}
	for seed := range uint64(40) {
		script := randomScript(seed)
		var loud []token
		events, _ := play(t, newSim(t, p), script, noExtra, func() {})
		for _, e := range events {
			if e.Kind == Token {
				loud = append(loud, token{e.At, e.Ref, e.Tokens})
			}
		}
		for i := range script {
			script[i].req.Quiet = true
		}
		var told []token
		s := newSim(t, p)
		ended := map[int]bool{}
		takeAll(t, s, script, func(e Event) {
			ended[e.Ref] = ended[e.Ref] || e.Kind == Finished
			for _, m := range s.Emitted(e) {
				if ended[m.Ref] {
					t.Fatalf("seed %d: request %d gets a token after its end", seed, m.Ref)
				}
				told = append(told, token{e.At, m.Ref, m.Tokens})
			}
		})
		if !slices.Equal(told, loud) {
			t.Fatalf("seed %d: steps tell\n%v, tokens\n%v", seed, told, loud)
		}
	}
}

// takeAll plays a script and sees each event while it is valid.
func takeAll(t testing.TB, s *Sim, script []action, see func(Event)) {
	t.Helper()
	var ids []ID
	for _, a := range script {
		for _, e := range s.Advance(a.at) {
			see(e)
		}
		if a.cancel < 0 {
			ids = append(ids, submit(t, s, a.at, a.req))
		} else {
			s.Cancel(a.at, ids[a.cancel])
		}
		for _, e := range s.Advance(a.at) {
			see(e)
		}
	}
	for at, ok := s.NextEvent(); ok; at, ok = s.NextEvent() {
		for _, e := range s.Advance(at) {
			see(e)
		}
	}
}

// A clone goes on as the engine it was made of, whatever the room was used for,
// and neither disturbs the other.
func TestLawCloneGoesOnTheSame(t *testing.T) {
	p := cramped()
	p.Noise = 0.2
	p.Speculative = Speculative{DraftTokens: 3, Acceptance: 0.5}
	p.Cold = Cold{Tables: ms(42), Cache: ms(3), Requests: 2}
	var room Sim
	for seed := range uint64(40) {
		script := randomScript(seed)
		cut := len(script) / 2
		s := newSim(t, p)
		for _, a := range script[:cut] {
			if a.cancel < 0 {
				submit(t, s, a.at, a.req)
			}
		}
		s.CloneInto(&room)
		fresh := s.Clone()
		rest := func(s *Sim) []Event {
			for _, a := range script[cut:] {
				if a.cancel < 0 {
					submit(t, s, a.at, a.req)
				}
			}
			return drain(s)
		}
		reused := rest(&room)
		checkIndex(t, &room.kv)
		if got := rest(fresh); !slices.Equal(got, reused) {
			t.Fatalf("seed %d: a fresh clone and one in used room differ", seed)
		}
		s.Advance(s.now) // a clone leaves these out
		if want := rest(s); !slices.Equal(reused, want) {
			t.Fatalf("seed %d: the clone's events\n%v\nwant\n%v", seed, reused, want)
		}
	}
}

// BenchmarkClone copies a full engine into room that is there.
func BenchmarkClone(b *testing.B) {
	p, _ := LookupProfile("h100-llama-3.1-70b-fp8-tp4")
	s := newSim(b, p.Params)
	for i := range 64 {
		submit(b, s, 0, Request{Ref: i, PromptTokens: 4096, OutputTokens: 200, Hashes: family(i, 256, 0, i)})
	}
	s.Advance(time.Second)
	var room Sim
	b.ReportAllocs()
	for b.Loop() {
		s.CloneInto(&room)
	}
}

// How often Advance is called changes nothing.
func TestLawAdvanceInAnyChunks(t *testing.T) {
	p := cramped()
	p.Noise = 0.1
	p.Speculative = Speculative{DraftTokens: 3, Acceptance: 0.5}
	p.Cold = Cold{Tables: ms(42), Cache: ms(3), Requests: 2}
	for seed := range uint64(40) {
		script := randomScript(seed)
		want, _ := play(t, newSim(t, p), script, noExtra, func() {})

		s, rng := newSim(t, p), rand.New(rand.NewPCG(seed, 3))
		got, _ := play(t, s, script, func(from, to time.Duration) []time.Duration {
			var times []time.Duration
			for range rng.IntN(4) {
				times = append(times, from+time.Duration(rng.Int64N(int64(to-from)+1)))
			}
			if at, ok := s.NextEvent(); ok && at <= to {
				times = append(times, at)
			}
			slices.Sort(times)
			return append(times, to)
		}, func() {})
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: other events when advanced in other chunks", seed)
		}
	}
}

func TestCancelFreesBlocks(t *testing.T) {
	s := newSim(t, plain())
	a := submit(t, s, 0, Request{PromptTokens: 64, OutputTokens: 50})
	b := submit(t, s, 0, Request{PromptTokens: 32, OutputTokens: 50})
	s.Advance(ms(200))
	if used := s.Stats().KVUsed; used < 6 {
		t.Fatalf("%d blocks used while two run, want at least 6", used)
	}
	if !s.Cancel(ms(200), a) {
		t.Error("a running sequence could not be cancelled")
	}
	if st := s.Stats(); st.Running != 1 || st.KVUsed > 3 {
		t.Errorf("after the cancel: %+v", st)
	}
	if s.Cancel(ms(200), a) {
		t.Error("cancelled twice")
	}
	c := submit(t, s, ms(200), Request{PromptTokens: 10, OutputTokens: 1})
	if a == c || s.Cancel(ms(200), a) {
		t.Error("an old ID reaches a new sequence")
	}
	if !s.Cancel(ms(200), c) || s.Stats().Waiting != 0 {
		t.Error("a waiting sequence could not be cancelled")
	}
	s.Cancel(ms(200), b)
	if st := s.Stats(); st.KVUsed != 0 || st.Cancelled != 3 {
		t.Errorf("after all are cancelled: %+v", st)
	}
	if events := drain(s); len(events) != 0 {
		t.Errorf("events after all are cancelled: %v", events)
	}
	if s.Cancel(ms(300), 12345) {
		t.Error("cancelled what never was")
	}
}

func TestPrefixCache(t *testing.T) {
	text := make([]byte, 100*bytesPerToken)
	for i := range text {
		text[i] = byte(i * 7)
	}
	run := func(p Params, first, second Request) (a, b time.Duration, st Stats) {
		s := newSim(t, p)
		second.Ref = 1
		submit(t, s, 0, first)
		drain(s)
		submit(t, s, ms(10000), second)
		b = ttft(drain(s), 1) - ms(10000)
		return ms(5 + 10 + 100), b, s.Stats()
	}
	hot := Request{PromptTokens: 100, OutputTokens: 1, Hashes: hashText("a", text)}
	other := hot
	other.Hashes = hashText("b", text)

	cold, warm, st := run(plain(), hot, hot)
	if want := ms(5 + 10 + 100 - 96); warm != want || st.PrefixHits != 96 || st.PrefixQueries != 200 {
		t.Errorf("same prompt again: TTFT %v, want %v (%+v)", warm, want, st)
	}
	if _, got, st := run(plain(), hot, other); got != cold || st.PrefixHits != 0 {
		t.Errorf("another tenant's salt: TTFT %v, want %v; %d hits", got, cold, st.PrefixHits)
	}
	off := plain()
	off.NoPrefixCache = true
	if _, got, st := run(off, hot, hot); got != cold || st.PrefixHits != 0 {
		t.Errorf("cache off: TTFT %v, want %v; %d hits", got, cold, st.PrefixHits)
	}

	short := Request{PromptTokens: 96, OutputTokens: 1, Hashes: hot.Hashes}
	if _, got, st := run(plain(), hot, short); got != ms(5+10+16) || st.PrefixHits != 80 {
		t.Errorf("a whole hit still computes its last block: TTFT %v, %d hits", got, st.PrefixHits)
	}
	turn := Request{PromptTokens: 40, OutputTokens: 61, Hashes: hot.Hashes}
	if _, got, st := run(plain(), turn, hot); got != warm || st.PrefixHits != 96 {
		t.Errorf("the answer is part of the next turn's prefix: TTFT %v, want %v; %d hits", got, warm, st.PrefixHits)
	}
}

// The least recently used content goes first, and of one prompt its end.
func TestPrefixCacheEvictsOldest(t *testing.T) {
	p := plain()
	p.KVBlocks = 10
	s := newSim(t, p)
	hits := func(family string, tokens int) int {
		before := s.Stats().PrefixHits
		chain := NewChain(family)
		r := Request{PromptTokens: tokens, OutputTokens: 1}
		for b := range tokens / BlockTokens {
			r.Hashes = append(r.Hashes, chain.Next(uint64(b)))
		}
		submit(t, s, s.now, r)
		drain(s)
		return s.Stats().PrefixHits - before
	}
	hits("a", 70) // 4 full blocks of 5
	hits("b", 70)
	hits("a", 70) // used again, so b is the oldest
	hits("c", 30) // 2 blocks
	if got := hits("b", 70); got != 3*BlockTokens {
		t.Errorf("b has %d tokens left, want its first 48", got)
	}
	if got := hits("a", 70); got == 0 {
		t.Error("a was evicted before b")
	}
}

func TestPreemptionTakesTheLatest(t *testing.T) {
	p := plain()
	p.KVBlocks, p.NoPrefixCache = 8, true
	s := newSim(t, p)
	for i := range 3 {
		submit(t, s, time.Duration(i), Request{Ref: i, PromptTokens: 32, OutputTokens: 40})
	}
	events := drain(s)
	var victims []int
	for _, e := range events {
		if e.Kind == Preempted {
			victims = append(victims, e.Ref)
		}
	}
	if len(victims) == 0 || victims[0] != 2 || slices.Contains(victims, 0) {
		t.Errorf("preempted %v, want the latest first and the first never", victims)
	}
	if got := count(events, Finished); got != 3 {
		t.Errorf("%d finished, want all 3", got)
	}
	st := s.Stats()
	if st.Preemptions != len(victims) || st.ComputedTokens <= 3*32 || st.PromptTokens != 3*32 || st.GeneratedTokens != 120 {
		t.Errorf("stats %+v", st)
	}
}

func TestNoiseHasMeanOne(t *testing.T) {
	p := plain()
	p.Noise = 0.3
	p.KVBlocks = 2000
	s := newSim(t, p)
	submit(t, s, 0, Request{PromptTokens: 1, OutputTokens: 20001, Quiet: true})
	drain(s)
	st := s.Stats()
	if got, want := st.Busy.Seconds()/float64(st.Steps), 0.012; got < 0.99*want || got > 1.01*want {
		t.Errorf("mean step %v s, want about %v", got, want)
	}
}

func TestStepLoopDoesNotAllocate(t *testing.T) {
	s := newSim(t, Params{Step: StepModel{T0: ms(10)}, KVBlocks: 10000})
	for i := range 50 {
		submit(t, s, 0, Request{PromptTokens: 100, OutputTokens: 3000, Hashes: family(i, 193, 193, 0)})
	}
	at := ms(1000)
	s.Advance(at)
	if n := testing.AllocsPerRun(100, func() {
		at += ms(20)
		s.Advance(at)
	}); n > 0.5 { // the blocks of a sequence grow now and then
		t.Errorf("%v allocations for two steps", n)
	}
}

func count(events []Event, kind EventKind) (n int) {
	for _, e := range events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// BenchmarkAdvance replays steady traffic; an operation is one step of a busy
// engine.
func BenchmarkAdvance(b *testing.B) {
	p, _ := LookupProfile("h100-llama-3.1-70b-fp8-tp4")
	for _, quiet := range []bool{false, true} {
		b.Run(fmt.Sprintf("quiet=%v", quiet), func(b *testing.B) {
			s := newSim(b, p.Params)
			hashes := make([][]uint64, 64)
			for i := range hashes {
				hashes[i] = family(i%8, 75, 32, i)
			}
			sent := 0
			send := func(at time.Duration) {
				submit(b, s, at, Request{Ref: sent, PromptTokens: 1024, OutputTokens: 200, Hashes: hashes[sent%64], Quiet: quiet})
				sent++
			}
			for range 64 {
				send(0)
			}
			b.ReportAllocs()
			b.ResetTimer()
			var ended []time.Duration
			for s.Stats().Steps < b.N {
				at, _ := s.NextEvent()
				ended = ended[:0]
				for _, e := range s.Advance(at) {
					if e.Kind == Finished {
						ended = append(ended, e.At)
					}
				}
				for _, at := range ended {
					send(at)
				}
			}
			b.ReportMetric(float64(s.Stats().GeneratedTokens)/b.Elapsed().Seconds(), "tokens/s")
			b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
