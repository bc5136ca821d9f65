package backends

import (
	"math"
	"sort"
)

// BlockTokens is the number of prompt tokens one hash of Work.Blocks stands
// for. It is coarser than engines' own blocks (16): an estimate that is a few
// tokens off changes no choice, and long prompts stay cheap to look up.
const BlockTokens = 64

// maxPieces bounds the idle pieces of a cache: answers leave small ones.
const maxPieces = 2 * maxRoom / BlockTokens

// prefixCache mirrors what an engine's prefix cache holds, from what was sent to
// it and what became of that. Like the engine's it has room for so many tokens.
// What is in use stays; what is not is idle, in the order in which requests
// ended, the end of a prompt before its start, and leaves in that order when room
// is needed. So whatever is known of a prompt begins at its front. The zero value
// is empty.
type prefixCache struct {
	room   room
	off    bool // the engine reuses nothing
	used   int  // tokens of all pieces and of what is under way
	idle   int  // pieces in the idle queue
	claims uint64
	ends   uint64
	life   int // counts resets: holds of a former life hold nothing

	index  map[uint64]int32 // of pieces by hash
	pieces []piece          // 0 is the sentinel of the idle queue
	spare  []int32

	output mean
}

// piece is one block of known content, or what a request left that nobody can
// ask for: the rest of its prompt and its answer.
type piece struct {
	hash       uint64
	tokens     int
	refs       int
	by         uint64 // number of the claim that brought it; 0: unknown content, not in the index
	end        uint64 // when it was last let go, counted in ends
	prev, next int32  // idle queue
}

// hold is what one request keeps in use.
type hold struct {
	blocks   []uint64
	prompt   int // tokens
	expected int // tokens that were thought to be cached
	claim    uint64
	life     int
	end      uint64 // when the last of these had been let go; 0: it was in use, or there was none
	rest     int    // tokens of the prompt beyond the blocks
	answer   int    // tokens of the answer so far, or what is assumed

	told, corrected bool // the engine's tokens were told: of the answer, of its cache
}

// tokens is how many of the prompt's tokens should be cached.
func (c *prefixCache) tokens(w Work) int {
	return min(c.match(w.Blocks)*BlockTokens, w.PromptTokens)
}

// match is the number of leading blocks that are known.
func (c *prefixCache) match(blocks []uint64) int {
	if len(c.index) == 0 || c.off {
		return 0
	}
	return sort.Search(len(blocks), func(i int) bool { _, ok := c.index[blocks[i]]; return !ok })
}

// begin notes that the engine is about to compute a prompt.
func (c *prefixCache) begin(w Work) hold {
	c.claims++
	h := hold{blocks: w.Blocks, prompt: w.PromptTokens, claim: c.claims, life: c.life}
	if c.off {
		h.blocks = nil
		return h
	}
	if c.index == nil {
		c.index, c.pieces = map[uint64]int32{}, make([]piece, 1)
	}
	n := c.match(w.Blocks)
	h.expected = min(n*BlockTokens, w.PromptTokens)
	if n > 0 {
		if p := &c.pieces[c.index[w.Blocks[n-1]]]; p.refs == 0 {
			h.end = p.end
		}
	}
	c.room.send(w.PromptTokens, h.expected)
	for _, hash := range w.Blocks {
		c.pin(hash, h.claim)
	}
	h.rest = max(w.PromptTokens-len(w.Blocks)*BlockTokens, 0)
	c.used += h.rest
	c.fit()
	return h
}

// pin puts a block in use.
func (c *prefixCache) pin(hash, claim uint64) {
	i, ok := c.index[hash]
	if !ok {
		i = c.add(piece{hash: hash, tokens: BlockTokens, by: claim})
		c.index[hash] = i
		c.used += BlockTokens
	} else if c.pieces[i].refs == 0 {
		c.dequeue(i)
	}
	c.pieces[i].refs++
}

// answering notes that an answer has begun. Until told how long it is, it counts
// as one of average length.
func (c *prefixCache) answering(h *hold) {
	if !h.told {
		c.grow(h, int(c.output.value()))
	}
}

// answer notes how long an answer is by now.
func (c *prefixCache) answer(h *hold, tokens int) {
	if h.told {
		tokens = max(tokens, h.answer)
	}
	h.told = true
	c.grow(h, max(tokens, 0))
}

func (c *prefixCache) grow(h *hold, answer int) {
	if c.holds(h) {
		c.used += answer - h.answer
		h.answer = answer
		c.fit()
	}
}

// holds reports whether h is of this life of the engine.
func (c *prefixCache) holds(h *hold) bool { return h.life == c.life && !c.off }

// end lets go of what a request held. Undone says that the engine never worked
// on it.
func (c *prefixCache) end(h *hold, undone bool) {
	if !c.holds(h) {
		return
	}
	c.ends++
	left := h.rest + h.answer
	if undone {
		c.used -= left
	} else if left > 0 {
		c.enqueue(c.add(piece{tokens: left}))
	}
	if h.told && !undone {
		c.output.observe(float64(h.answer))
	}
	for k := len(h.blocks) - 1; k >= 0; k-- {
		i := c.index[h.blocks[k]]
		p := &c.pieces[i]
		p.refs--
		if p.refs > 0 {
			continue
		}
		c.enqueue(i)
		if undone && p.by == h.claim {
			c.drop(i)
		}
	}
	c.fit()
}

// correct takes in how much of the prompt the engine says it had. What it no
// longer had it has computed anew; but it had then lost all that was let go
// before that as well.
func (c *prefixCache) correct(h *hold, cached int) {
	if !c.holds(h) || h.corrected {
		return
	}
	h.corrected = true
	c.room.report()
	if h.end == 0 {
		return // nothing was expected, or what nobody could have lost
	}
	if h.expected-cached < max(BlockTokens, h.expected/20) {
		c.room.kept()
		return
	}
	for c.idle > 0 && c.pieces[c.oldest()].end <= h.end {
		c.drop(c.oldest())
	}
	c.room.lost(c.used)
}

// learn takes in what the engine says of its cache.
func (c *prefixCache) learn(s *Signals) {
	if off := s.prefixCaching == 0; off != c.off && !math.IsNaN(s.prefixCaching) {
		c.off = off
		c.reset()
	}
	c.room.scraped(s)
	c.fit()
}

// fit makes room by what is idle for longest. A piece goes whole: what would be
// left of it is what goes next.
func (c *prefixCache) fit() {
	for size := c.room.tokens(); c.idle > 0 && (c.used > size || c.idle > maxPieces); {
		c.drop(c.oldest())
	}
}

// reset forgets what is cached.
func (c *prefixCache) reset() {
	*c = prefixCache{room: c.room, off: c.off, life: c.life + 1, output: c.output}
}

func (c *prefixCache) add(p piece) int32 {
	if n := len(c.spare); n > 0 {
		i := c.spare[n-1]
		c.spare = c.spare[:n-1]
		c.pieces[i] = p
		return i
	}
	c.pieces = append(c.pieces, p)
	return int32(len(c.pieces) - 1)
}

// drop forgets an idle piece.
func (c *prefixCache) drop(i int32) {
	c.dequeue(i)
	p := &c.pieces[i]
	c.used -= p.tokens
	if p.by != 0 {
		delete(c.index, p.hash)
	}
	c.spare = append(c.spare, i)
}

// oldest is the idle piece to leave first.
func (c *prefixCache) oldest() int32 { return c.pieces[0].next }

func (c *prefixCache) enqueue(i int32) {
	last := c.pieces[0].prev
	c.pieces[i].end, c.pieces[i].prev, c.pieces[i].next = c.ends, last, 0
	c.pieces[last].next, c.pieces[0].prev = i, i
	c.idle++
}

func (c *prefixCache) dequeue(i int32) {
	p := &c.pieces[i]
	c.pieces[p.prev].next, c.pieces[p.next].prev = p.next, p.prev
	c.idle--
}

// mean is an average over about the last fifty values.
type mean struct{ sum, weight float64 }

func (m *mean) observe(v float64) {
	const keep = 0.98
	m.sum, m.weight = keep*m.sum+v, keep*m.weight+1
}

func (m *mean) value() float64 {
	if m.weight == 0 {
		return 0
	}
	return m.sum / m.weight
}
