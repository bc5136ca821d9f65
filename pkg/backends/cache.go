package backends

import (
	"sort"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// BlockTokens is the number of prompt tokens one hash of Work.Blocks stands
// for. It is coarser than engines' own blocks (16): an estimate that is a few
// tokens off changes no choice, and long prompts stay cheap to look up.
const BlockTokens = 64

// cacheBlocks bounds what is remembered of one engine: about a million tokens,
// more than the KV cache of most.
const cacheBlocks = 1 << 14

// prefixCache guesses what an engine's prefix cache holds, from what was sent
// to it. The zero value is empty.
type prefixCache struct {
	lru *simplelru.LRU[uint64, struct{}]
}

// tokens is how many of the prompt's tokens should be cached.
func (c *prefixCache) tokens(w Work) int {
	return min(c.match(w.Blocks)*BlockTokens, w.PromptTokens)
}

// match is the number of leading blocks that are known. insert keeps earlier
// blocks fresher than later ones, so whatever is known begins at the front.
func (c *prefixCache) match(blocks []uint64) int {
	if c.lru == nil || len(blocks) == 0 {
		return 0
	}
	return sort.Search(len(blocks), func(i int) bool { return !c.lru.Contains(blocks[i]) })
}

// insert notes that the engine is about to compute these blocks.
func (c *prefixCache) insert(blocks []uint64) {
	if len(blocks) == 0 {
		return
	}
	if c.lru == nil {
		c.lru, _ = simplelru.NewLRU[uint64, struct{}](cacheBlocks, nil) // fails for no size above 0
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		c.lru.Add(blocks[i], struct{}{})
	}
}

// reset forgets everything.
func (c *prefixCache) reset() {
	if c.lru != nil {
		c.lru.Purge()
	}
}
