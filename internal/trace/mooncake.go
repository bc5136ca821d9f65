package trace

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// mooncakeBlock is the number of tokens one hash id stands for.
	mooncakeBlock = 512
	// mooncakeGrid is the grid the trace's arrivals were rounded to.
	mooncakeGrid = 3 * time.Second
)

// readMooncake reads a trace of Kimi's production. Requests that bear the same
// timestamp are spread at random, in their order, over the time to the next
// timestamp, three seconds at most.
func readMooncake(f file, o Options) Source {
	return func(yield func(Request, error) bool) {
		b := bunch{gap: mooncakeGrid, rng: newRand(o.Seed, "spread"), yield: yield}
		salt := mix(o.Seed)
		err := f.lines(func(l *lines) bool {
			r := mooncakeRequest(l, salt)
			if len(b.requests) > 0 && r.At < b.requests[0].At {
				l.fault("timestamp", "is before the line above", "sort the file by timestamp")
			}
			return l.err == nil && b.add(r)
		})
		if b.left {
			return
		}
		if b.flush() && err != nil {
			yield(Request{}, err)
		}
	}
}

func mooncakeRequest(l *lines, salt uint64) Request {
	var row struct {
		Timestamp *float64 `json:"timestamp"` // ms
		Input     int      `json:"input_length"`
		Output    int      `json:"output_length"`
		Hashes    []uint64 `json:"hash_ids"`
	}
	l.decode(&row)
	l.tokens("input_length", row.Input, 1)
	l.tokens("output_length", row.Output, 0)
	if row.Timestamp == nil {
		l.fault("timestamp", "is missing", "give milliseconds from the start")
	} else if *row.Timestamp < 0 || *row.Timestamp > float64(maxTime.Milliseconds()) {
		l.fault("timestamp", fmt.Sprintf("%g is out of range", *row.Timestamp), "give milliseconds from the start")
	}
	if l.err != nil {
		return Request{}
	}
	r := Request{
		At:           seconds(*row.Timestamp / 1e3),
		PromptTokens: row.Input,
		OutputTokens: row.Output,
		Stream:       true,
		Content:      make([]Segment, 0, len(row.Hashes)),
	}
	left := row.Input
	for _, id := range row.Hashes {
		n := min(left, mooncakeBlock)
		if n == 0 {
			break
		}
		r.Content = append(r.Content, Segment{ID: mix(id ^ salt), Tokens: n})
		left -= n
	}
	return r
}

// bunch is the requests of one timestamp.
type bunch struct {
	requests []Request
	offsets  []time.Duration
	gap      time.Duration // to the next timestamp; in the last bunch that of the one before
	rng      *rand.Rand
	yield    func(Request, error) bool
	left     bool // the consumer wants no more
}

// add takes one more request; a new timestamp hands on what is held.
func (b *bunch) add(r Request) bool {
	if len(b.requests) > 0 && r.At > b.requests[0].At {
		b.gap = min(r.At-b.requests[0].At, mooncakeGrid)
		if !b.flush() {
			return false
		}
	}
	b.requests = append(b.requests, r)
	return true
}

func (b *bunch) flush() bool {
	b.offsets = b.offsets[:0]
	for range b.requests {
		b.offsets = append(b.offsets, time.Duration(b.rng.Int64N(int64(b.gap))))
	}
	slices.Sort(b.offsets)
	for i, r := range b.requests {
		if len(b.requests) > 1 {
			r.At += b.offsets[i]
		}
		if !b.yield(r, nil) {
			b.left = true
			return false
		}
	}
	clear(b.requests)
	b.requests = b.requests[:0]
	return true
}
