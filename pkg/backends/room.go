package backends

import "math"

const (
	// defaultRoom is the size assumed of an engine's cache that is not told:
	// about a million tokens, more than most have.
	defaultRoom = 1 << 20
	// maxRoom bounds what is remembered of one engine, in tokens.
	maxRoom = 1 << 23
)

// room estimates how many tokens of an engine's cache are filled by this
// gateway's requests: the size that the engine tells, times the gateway's part of
// all prompt tokens, or less where the engine turns out to have lost what should
// have fitted. The zero value knows nothing.
type room struct {
	told    float64 // by the engine; 0: not
	own     float64 // prompt tokens sent, over the last few times what the cache holds
	all     float64 // prompt tokens that the engine looked up meanwhile, other gateways' included
	learned float64 // 0: nothing speaks against the above

	queries, hits float64 // the engine's counters at the last scrape
	primed        bool
	sent          traffic // since then
	window        traffic // since hits were last judged
}

// traffic is what was sent to an engine, and what its counters made of it.
type traffic struct {
	requests, reports int     // reports: of these, whose hits were told one by one
	prompt, expected  float64 // tokens; expected to be hits
	queries, hits     float64 // tokens
}

// tokens is the room there is, at least 1.
func (r *room) tokens() int {
	size := r.size()
	if r.learned > 0 {
		size = min(size, r.learned)
	}
	return int(max(size, 1))
}

// size is what is left of the cache's size for this gateway. Prompts are counted
// as the gateway estimates them, which may be more than the engine counts.
func (r *room) size() float64 {
	size := float64(defaultRoom)
	if r.told > 0 {
		size = min(r.told, maxRoom)
	}
	if r.all > 0 {
		size *= min(max(r.own/r.all, 0.05), 1.25)
	}
	return size
}

// send counts a request.
func (r *room) send(prompt, expected int) {
	r.sent.requests++
	r.sent.prompt += float64(prompt)
	r.sent.expected += float64(expected)
}

// report counts a request of which the engine told the hits.
func (r *room) report() { r.sent.reports++ }

// kept takes in that the engine still had what it was expected to have.
func (r *room) kept() { r.grow(1.005) }

// lost takes in that the engine had no room for more than so many tokens.
func (r *room) lost(tokens int) { r.shrink(float64(tokens)) }

func (r *room) shrink(tokens float64) { r.learned = max(min(float64(r.tokens()), tokens), 1) }

func (r *room) grow(factor float64) {
	if r.learned *= factor; r.learned >= r.size() {
		r.learned = 0
	}
}

// scraped takes in the size and the counters of the engine.
func (r *room) scraped(s *Signals) {
	if s.CacheTokens > 0 {
		r.told = s.CacheTokens
	}
	sent := r.sent
	r.sent = traffic{}
	sent.queries, sent.hits = s.prefixQueries-r.queries, s.prefixHits-r.hits
	primed := r.primed && sent.queries >= 0 && sent.hits >= 0 // else it was started again
	r.primed = !math.IsNaN(s.prefixQueries) && !math.IsNaN(s.prefixHits)
	r.queries, r.hits = s.prefixQueries, s.prefixHits
	if primed && r.primed {
		r.split(&sent)
		r.judge(&sent)
	}
}

// split keeps the gateway's part of the traffic, over the last one to two times
// what the cache holds.
func (r *room) split(t *traffic) {
	size := float64(defaultRoom)
	if r.told > 0 {
		size = r.told
	}
	if r.all == 0 {
		r.own, r.all = size, size
	}
	r.own, r.all = r.own+t.prompt, r.all+t.queries
	if r.all > 2*size {
		r.own, r.all = r.own*size/r.all, size
	}
}

// judge compares the share of hits with what was expected, over some requests: a
// request may be looked up after the scrape that follows it. It is for engines
// that don't tell the hits of each request.
func (r *room) judge(t *traffic) {
	w := &r.window
	w.requests, w.reports = w.requests+t.requests, w.reports+t.reports
	w.prompt, w.expected = w.prompt+t.prompt, w.expected+t.expected
	w.queries, w.hits = w.queries+t.queries, w.hits+t.hits
	if w.requests < 50 || w.queries == 0 || w.prompt == 0 {
		return
	}
	expected, hits := w.expected/w.prompt, w.hits/w.queries
	if w.reports == 0 && hits < 0.8*expected {
		r.shrink(float64(r.tokens()) * max(hits/expected, 0.5))
	} else if w.reports == 0 && hits > 0.95*expected {
		r.grow(1.1)
	}
	*w = traffic{}
}
