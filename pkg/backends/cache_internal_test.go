package backends

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// paged is a prefix cache as engines have one, written to be plainly right: it
// looks everything up in lists.
type paged struct {
	size int
	idle []uint64 // blocks, least recently used first; 0 has unknown content
	held map[uint64]int
	used int // blocks in use, those of unknown content included
}

// begin gives the blocks found and takes all of a prompt; ok is false where the
// engine would let it wait.
func (p *paged) begin(blocks []uint64, rest int) (found int, ok bool) {
	for found < len(blocks) && (p.held[blocks[found]] > 0 || slices.Contains(p.idle, blocks[found])) {
		found++
	}
	fresh := rest
	for _, b := range blocks {
		if p.held[b] == 0 {
			fresh++
		}
	}
	if p.used+fresh > p.size {
		return 0, false
	}
	for _, b := range blocks {
		if p.held[b] == 0 {
			if i := slices.Index(p.idle, b); i >= 0 {
				p.idle = slices.Delete(p.idle, i, i+1)
			}
			p.used++
		}
		p.held[b]++
	}
	p.used += rest
	p.fit()
	return found, true
}

func (p *paged) end(blocks []uint64, rest int) {
	p.used -= rest
	p.idle = append(p.idle, make([]uint64, rest)...)
	for i := len(blocks) - 1; i >= 0; i-- {
		p.held[blocks[i]]--
		if p.held[blocks[i]] == 0 {
			p.used--
			p.idle = append(p.idle, blocks[i])
		}
	}
}

func (p *paged) fit() {
	if over := p.used + len(p.idle) - p.size; over > 0 {
		p.idle = slices.Delete(p.idle, 0, over)
	}
}

// chat is a prompt: a start that some share, and an end of its own. As in real
// chains a hash stands for all that comes before it.
func chat(rng *rand.Rand) []uint64 {
	blocks := make([]uint64, 1+rng.IntN(12))
	chain := uint64(1 + rng.IntN(6))
	for i := range blocks {
		turn := uint64(1)
		if rng.IntN(6) == 0 {
			turn += uint64(1 + rng.IntN(2))
		}
		chain = chain*1_000_003 + turn
		blocks[i] = chain
	}
	return blocks
}

func prompt(blocks []uint64, rest int) Work {
	return Work{PromptTokens: (len(blocks) + rest) * BlockTokens, Blocks: blocks}
}

// sized is a mirror that was told a size in blocks.
func sized(blocks int) *prefixCache {
	c := &prefixCache{}
	s := UnknownSignals()
	s.CacheTokens = float64(blocks * BlockTokens)
	c.learn(&s)
	return c
}

// check looks at the mirror from every side.
func (c *prefixCache) check(t *testing.T, holds []*hold) {
	t.Helper()
	idle, tokens := 0, 0
	if c.pieces != nil {
		for i := c.oldest(); i != 0; i = c.pieces[i].next {
			p := &c.pieces[i]
			if p.refs != 0 || p.tokens <= 0 || p.end > c.ends {
				t.Fatalf("an idle piece is %+v", *p)
			}
			if p.by != 0 && c.index[p.hash] != i {
				t.Fatalf("an idle block can't be found: %+v", *p)
			}
			idle++
			tokens += p.tokens
		}
	}
	refs := map[uint64]int{}
	for _, h := range holds {
		if h.life != c.life || c.off {
			continue
		}
		tokens += h.rest + h.answer
		for _, b := range h.blocks {
			if refs[b] == 0 {
				tokens += BlockTokens
			}
			refs[b]++
		}
	}
	for b, n := range refs {
		if i, ok := c.index[b]; !ok || c.pieces[i].refs != n {
			t.Fatalf("block %x in use by %d is not", b, n)
		}
	}
	if idle != c.idle || tokens != c.used {
		t.Fatalf("%d idle pieces, counted %d; %d tokens, counted %d", idle, c.idle, tokens, c.used)
	}
	if c.idle > 0 && c.used > c.room.tokens() {
		t.Fatalf("%d tokens are remembered, some of them idle; room is for %d", c.used, c.room.tokens())
	}
	if len(c.pieces) > 0 && len(c.pieces) != 1+len(c.spare)+len(c.index)+idle-c.idleBlocks() {
		t.Fatalf("%d pieces, %d spare, %d known", len(c.pieces), len(c.spare), len(c.index))
	}
}

func (c *prefixCache) idleBlocks() (n int) {
	for i := c.oldest(); i != 0; i = c.pieces[i].next {
		if c.pieces[i].by != 0 {
			n++
		}
	}
	return n
}

// A mirror that is told all agrees with the engine on every prompt.
func TestLawMirrorIsTheEngines(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		engine := &paged{size: 30 + rng.IntN(60), held: map[uint64]int{}}
		c := sized(engine.size)
		type running struct {
			blocks []uint64
			rest   int
			hold   hold
		}
		var under []*running
		hits := 0
		for range 300 {
			if len(under) > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(len(under))
				r := under[i]
				under = slices.Delete(under, i, i+1)
				engine.end(r.blocks, r.rest)
				c.end(&r.hold, false)
			} else {
				r := &running{blocks: chat(rng), rest: rng.IntN(3)}
				want, ok := engine.begin(r.blocks, r.rest)
				if !ok {
					continue
				}
				w := prompt(r.blocks, r.rest)
				got := c.tokens(w)
				if got != want*BlockTokens {
					t.Fatalf("seed %d: the engine has %d blocks, the mirror %d tokens", seed, want, got)
				}
				hits += want
				r.hold = c.begin(w)
				under = append(under, r)
			}
			var holds []*hold
			for _, r := range under {
				holds = append(holds, &r.hold)
			}
			c.check(t, holds)
		}
		if hits == 0 {
			t.Fatalf("seed %d: nothing was ever cached", seed)
		}
	}
}

// Whatever an engine says, and whatever becomes of requests: the books balance,
// memory is bounded, and what is known of a prompt begins at its front.
func TestLawMirrorKeepsItsBooks(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		drive(t, func() int { return rng.IntN(256) }, 400)
	}
}

func FuzzPrefixCache(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		drive(t, func() (b int) {
			if len(data) > 0 {
				b, data = int(data[0]), data[1:]
			}
			return b
		}, len(data))
	})
}

// drive does what the bytes say.
func drive(t *testing.T, next func() int, steps int) {
	t.Helper()
	c := &prefixCache{}
	var holds []*hold
	engine := UnknownSignals()
	for range steps {
		switch op := next() % 16; {
		case op < 6:
			rng := rand.New(rand.NewPCG(uint64(next()), 3))
			blocks := chat(rng)
			if op == 0 { // no engine's hashes
				blocks = []uint64{0, 7, 7, 0}
			}
			w := prompt(blocks, rng.IntN(3))
			if op == 1 {
				w.PromptTokens = next()
			}
			if got := c.tokens(w); got < 0 || got > w.PromptTokens {
				t.Fatalf("%d tokens cached of a prompt of %d", got, w.PromptTokens)
			}
			h := c.begin(w)
			holds = append(holds, &h)
		case op < 11 && len(holds) > 0:
			i := next() % len(holds)
			c.end(holds[i], op == 6)
			holds = slices.Delete(holds, i, i+1)
		case op == 11 && len(holds) > 0:
			c.correct(holds[next()%len(holds)], next()*10-100)
		case op == 12 && len(holds) > 0:
			c.answering(holds[next()%len(holds)])
		case op == 13 && len(holds) > 0:
			c.answer(holds[next()%len(holds)], next()*10-100)
		case op == 14:
			engine.CacheTokens = float64(next()*20) - 100
			engine.prefixCaching = []float64{math.NaN(), 1, 1, 0}[next()%4]
			engine.prefixQueries += float64(next() * 100)
			engine.prefixHits = engine.prefixQueries * float64(next()) / 256
			if next() < 128 || math.IsNaN(engine.prefixQueries) {
				engine.prefixQueries, engine.prefixHits = float64(next()), 0
			}
			c.learn(&engine)
		case op == 15:
			c.reset()
		}
		c.check(t, holds)
		if s := c.room.tokens(); s < 1 || s > maxRoom*5/4 {
			t.Fatalf("room for %d tokens", s)
		}
	}
	for _, h := range holds {
		c.end(h, false)
	}
	c.check(t, nil)
	if c.used > max(c.room.tokens(), 0) {
		t.Fatalf("%d tokens are kept at the end, room is for %d", c.used, c.room.tokens())
	}
}

// What an engine says of a request never makes the guess for the same prompt,
// sent again at once, worse, even where engine and mirror are of other sizes.
func TestLawCorrectionHelps(t *testing.T) {
	helped := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 4))
		engine := &paged{size: 20 + rng.IntN(80), held: map[uint64]int{}}
		size := 20 + rng.IntN(80)
		told, silent := sized(size), sized(size)
		send := func(blocks []uint64) (off, blind int) {
			w := prompt(blocks, 0)
			truth, ok := engine.begin(blocks, 0)
			if !ok {
				t.Fatalf("seed %d: no room for one prompt", seed)
			}
			engine.end(blocks, 0)
			off, blind = told.tokens(w)-truth*BlockTokens, silent.tokens(w)-truth*BlockTokens
			h, s := told.begin(w), silent.begin(w)
			told.correct(&h, truth*BlockTokens)
			told.end(&h, false)
			silent.end(&s, false)
			return max(off, -off), max(blind, -blind)
		}
		sum, sumBlind := 0, 0
		for range 100 {
			blocks := chat(rng)
			off, blind := send(blocks)
			sum, sumBlind = sum+off, sumBlind+blind
			if off, blind := send(blocks); off > blind {
				t.Fatalf("seed %d: sent again, the guess is off by %d tokens, without the correction by %d", seed, off, blind)
			}
		}
		if size > engine.size && sum < sumBlind {
			helped++
		}
		if size > engine.size && sum > sumBlind {
			t.Errorf("seed %d: off by %d tokens in all, without corrections by %d", seed, sum, sumBlind)
		}
	}
	if helped < 50 {
		t.Errorf("corrections helped in %d of the runs", helped)
	}
}

// An engine that tells its size is mirrored in it; one that does not is found out
// by what it says of requests, or else by its counters, and believed again later.
func TestRoomIsLearned(t *testing.T) {
	const truth = 40
	for name, c := range map[string]struct{ reports, counters, tells bool }{
		"told":     {tells: true},
		"reports":  {reports: true},
		"counters": {counters: true},
	} {
		rng := rand.New(rand.NewPCG(1, 5))
		engine := &paged{size: truth, held: map[uint64]int{}}
		mirror := &prefixCache{}
		s := UnknownSignals()
		if c.tells {
			s.CacheTokens = truth * BlockTokens
		}
		if c.counters {
			s.prefixQueries, s.prefixHits = 0, 0
		}
		off, tokens := 0, 0
		for k := range 6000 {
			blocks := chat(rng)
			w := prompt(blocks, 0)
			hit, _ := engine.begin(blocks, 0)
			engine.end(blocks, 0)
			if k > 3000 {
				off += max(mirror.tokens(w)-hit*BlockTokens, hit*BlockTokens-mirror.tokens(w))
				tokens += w.PromptTokens
			}
			h := mirror.begin(w)
			if c.reports {
				mirror.correct(&h, hit*BlockTokens)
			}
			mirror.end(&h, false)
			s.prefixQueries += float64(w.PromptTokens)
			s.prefixHits += float64(hit * BlockTokens)
			mirror.learn(&s)
		}
		most := 0.06
		if c.tells {
			most = 0
		}
		if share := float64(off) / float64(tokens); share > most {
			t.Errorf("%s: off by %.3f of the prompt's tokens", name, share)
		}
	}
}

// A gateway that sends half of the traffic has half of the cache.
func TestRoomIsShared(t *testing.T) {
	var r room
	s := UnknownSignals()
	s.CacheTokens, s.prefixQueries, s.prefixHits = 100_000, 5_000_000, 0
	r.scraped(&s)
	if got := r.tokens(); got != 100_000 {
		t.Errorf("room for %d tokens before anything was sent", got)
	}
	for range 2000 {
		r.send(1000, 0)
		s.prefixQueries += 2000
		r.scraped(&s)
	}
	if got := r.tokens(); got < 45_000 || got > 55_000 {
		t.Errorf("room for %d tokens at half of the traffic", got)
	}
	s.prefixQueries = 0 // started again
	r.scraped(&s)
	if got := r.tokens(); got < 45_000 || got > 55_000 {
		t.Errorf("room for %d tokens after a restart", got)
	}
	for range 2000 {
		r.send(1000, 0)
		s.prefixQueries += 1000
		r.scraped(&s)
	}
	if got := r.tokens(); got < 95_000 || got > 105_000 {
		t.Errorf("room for %d tokens alone", got)
	}
}
