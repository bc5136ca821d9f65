// Package trace owns where simulated and replayed requests come from: readers
// of recorded traces, arrival laws, synthetic workloads, and the transforms
// between them.
//
// Everything is a Source, a sequence of requests in order of arrival. It leaves
// to others who serves them, how they are routed and how the outcome is judged.
// Nothing here reads a clock: the same input and seed give the same requests.
package trace

import "time"

// BlockTokens is the number of tokens in one block of content.
const BlockTokens = 16

// Request is one request of a trace.
type Request struct {
	At       time.Duration // arrival, from the trace's start
	Tenant   string        // may be empty, as the next three
	Model    string
	Workload string // that made it
	Session  string
	Turn     int // of the session, from 1; 0 if unknown

	PromptTokens int // at least 1
	OutputTokens int // 0 for an embedding

	// Content is what is known of the text, from the prompt's first token on;
	// it may go on into the answer. What lies beyond it is shared with no other
	// request. It is not to be changed: turns of a session hold the same array.
	Content []Segment

	Stream bool

	// Objectives; 0 if the trace has none.
	TTFT, TPOT, E2E time.Duration
}

// Segment is a stretch of text. Wherever its ID occurs the text is the same, as
// far as both go.
type Segment struct {
	ID     uint64
	Tokens int
}

// AppendBlocks appends one id for each full block of the known content. Each id
// depends on all content before it, so two requests share blocks as far as their
// texts agree. Ids know no tenant: who must keep tenants apart salts them. The
// first PromptTokens/BlockTokens ids are the prompt's, the others the answer's.
func (r *Request) AppendBlocks(dst []uint64) []uint64 {
	room := r.PromptTokens + r.OutputTokens
	filled, chain := 0, uint64(0)
	for _, s := range r.Content {
		for at := 0; at < s.Tokens && room > 0; {
			n := min(BlockTokens-filled, s.Tokens-at, room)
			chain = mix(chain ^ mix(s.ID+mix(uint64(at))) + uint64(n))
			at, room, filled = at+n, room-n, filled+n
			if filled == BlockTokens {
				dst, filled = append(dst, chain), 0
			}
		}
	}
	return dst
}

// digest is FNV-1a.
func digest(s string) uint64 {
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
