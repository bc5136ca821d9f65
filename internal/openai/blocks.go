package openai

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// AppendBlocks appends a chained hash for each whole block of the prompt, of
// blockTokens tokens at four bytes each: two requests share the first n hashes
// if their prompts agree in the first n blocks. It hashes the JSON text of the
// messages, so that a conversation's next turn, sent by the same client,
// begins with the blocks of the last. Embeddings have no prefix to reuse.
func (r *Request) AppendBlocks(dst []uint64, blockTokens int) []uint64 {
	if r.Endpoint == Embeddings {
		return dst
	}
	var link [16]byte // the chain so far, and the hash of the next block
	seed := xxhash.Sum64(r.body[r.head.from:r.head.to])
	binary.LittleEndian.PutUint64(link[:8], seed^xxhash.Sum64String(r.Model))
	size := blockTokens * bytesPerToken
	for text := r.body[r.prompt.from:r.prompt.to]; len(text) >= size; text = text[size:] {
		binary.LittleEndian.PutUint64(link[8:], xxhash.Sum64(text[:size]))
		chained := xxhash.Sum64(link[:])
		dst = append(dst, chained)
		binary.LittleEndian.PutUint64(link[:8], chained)
	}
	return dst
}
