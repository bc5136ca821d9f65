package engine

import "math/bits"

// BlockTokens is the number of tokens in one block of the KV cache.
const BlockTokens = 16

// blockPool is the paged KV cache. A block is held by one or more sequences
// (ref > 0) or idle; idle blocks wait in one queue, least recently used first,
// and keep what was computed in them until they are taken again. Nothing here
// allocates after newBlockPool, and a copy is a few flat ones.
type blockPool struct {
	ref  []int32
	hash []uint64 // content of the block, 0 = not to be found again
	prev []int32  // idle queue; the last element is its sentinel
	next []int32
	// index finds blocks by their hash: block + 1, or 0 where nothing is. It is
	// open addressing with linear probing, never more than half full.
	index []int32
	idle  int
	// changed says that room or cached content may have appeared since it was
	// last cleared.
	changed bool
}

func newBlockPool(n int) blockPool {
	p := blockPool{
		ref:   make([]int32, n),
		hash:  make([]uint64, n),
		prev:  make([]int32, n+1),
		next:  make([]int32, n+1),
		index: make([]int32, 2<<bits.Len(uint(n))),
	}
	p.prev[n], p.next[n] = int32(n), int32(n)
	for b := range int32(n) {
		p.enqueue(b)
	}
	return p
}

func (p *blockPool) total() int { return len(p.ref) }
func (p *blockPool) used() int  { return len(p.ref) - p.idle }

// blocksFor gives the blocks that so many tokens fill.
func blocksFor(tokens int) int { return (tokens + BlockTokens - 1) / BlockTokens }

// match follows the chain of hashes as far as it is cached, for at most limit
// blocks. It gives the number of blocks found and how many of them are idle.
func (p *blockPool) match(hashes []uint64, limit int) (found, idle int) {
	for _, h := range hashes[:min(limit, len(hashes))] {
		b, ok := p.find(h)
		if !ok {
			break
		}
		found++
		if p.ref[b] == 0 {
			idle++
		}
	}
	return found, idle
}

// share appends the cached blocks of these hashes to held. Each must be there.
func (p *blockPool) share(held []int32, hashes []uint64) []int32 {
	for _, h := range hashes {
		b, _ := p.find(h)
		if p.ref[b] == 0 {
			p.dequeue(b)
		}
		p.ref[b]++
		held = append(held, b)
	}
	return held
}

// grow appends blocks to held until they are enough for so many tokens. When
// that is more than there are, nothing changes and ok is false.
func (p *blockPool) grow(held []int32, tokens int) (_ []int32, ok bool) {
	need := blocksFor(tokens) - len(held)
	if need > p.idle {
		return held, false
	}
	for range need {
		b := p.next[p.total()]
		p.dequeue(b)
		p.forget(b)
		p.ref[b] = 1
		held = append(held, b)
	}
	return held, true
}

// remember makes a block findable by the hash of its content. The first block
// with that content stays the one to be found.
func (p *blockPool) remember(b int32, h uint64) {
	if _, dup := p.find(h); dup || h == 0 {
		return
	}
	p.forget(b)
	p.hash[b] = h
	p.index[p.probe(h)] = b + 1
	p.changed = true
}

// forget makes a block unfindable.
func (p *blockPool) forget(b int32) {
	if p.hash[b] == 0 {
		return
	}
	p.close(p.probe(p.hash[b]))
	p.hash[b] = 0
}

// find gives the block with that content.
func (p *blockPool) find(h uint64) (b int32, ok bool) {
	b = p.index[p.probe(h)] - 1
	return b, b >= 0
}

// probe gives the place in the index where the hash is or would be.
func (p *blockPool) probe(h uint64) int {
	mask := len(p.index) - 1
	i := int(h) & mask
	for p.index[i] != 0 && p.hash[p.index[i]-1] != h {
		i = (i + 1) & mask
	}
	return i
}

// close empties a place of the index and moves what follows up, so that no
// probe ends too early.
func (p *blockPool) close(i int) {
	mask := len(p.index) - 1
	for j := (i + 1) & mask; p.index[j] != 0; j = (j + 1) & mask {
		home := int(p.hash[p.index[j]-1]) & mask
		if (j-home)&mask >= (j-i)&mask {
			p.index[i], i = p.index[j], j
		}
	}
	p.index[i] = 0
}

// copyInto makes dst the same as p, in the room that dst has.
func (p *blockPool) copyInto(dst *blockPool) {
	room := *dst
	*dst = *p
	dst.ref = append(room.ref[:0], p.ref...)
	dst.hash = append(room.hash[:0], p.hash...)
	dst.prev = append(room.prev[:0], p.prev...)
	dst.next = append(room.next[:0], p.next...)
	dst.index = append(room.index[:0], p.index...)
}

// release gives blocks back. The end of a sequence is queued before its start,
// so that a prefix outlives what followed it.
func (p *blockPool) release(held []int32) {
	for i := len(held) - 1; i >= 0; i-- {
		b := held[i]
		p.ref[b]--
		if p.ref[b] == 0 {
			p.enqueue(b)
		}
	}
	p.changed = true
}

func (p *blockPool) enqueue(b int32) {
	end := int32(p.total())
	last := p.prev[end]
	p.next[last], p.prev[b] = b, last
	p.next[b], p.prev[end] = end, b
	p.idle++
}

func (p *blockPool) dequeue(b int32) {
	p.next[p.prev[b]] = p.next[b]
	p.prev[p.next[b]] = p.prev[b]
	p.idle--
}
