package engine

// Chain makes the hashes of the KV blocks of one request: each depends on all
// content before it and on the salt, so two requests share blocks as far as
// their prefixes agree, and never across salts (a tenant each).
type Chain uint64

// NewChain starts a chain for a tenant's salt.
func NewChain(salt string) Chain { return Chain(mix(digest(salt))) }

// Next adds the block whose content is identified by the number and gives the
// block's hash, which is never 0.
func (c *Chain) Next(content uint64) uint64 {
	h := mix(uint64(*c) ^ mix(content))
	if h == 0 {
		h = 1
	}
	*c = Chain(h)
	return h
}

// hashText gives one hash for each full block of text, at bytesPerToken bytes
// a token.
func hashText(salt string, text []byte) []uint64 {
	const size = BlockTokens * bytesPerToken
	chain := NewChain(salt)
	hashes := make([]uint64, 0, len(text)/size)
	for ; len(text) >= size; text = text[size:] {
		hashes = append(hashes, chain.Next(digest(text[:size])))
	}
	return hashes
}

// digest is FNV-1a: the same number on every run and machine.
func digest[T string | []byte](s T) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mix spreads a number over all 64 bits (the finaliser of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
