package proxy

import (
	"sync"
	"time"
)

// Budget bounds the retries of one model so that an outage is not made worse
// by them: at any moment retries are at most a share of the requests in
// flight, and over ten seconds at most the same share of the requests that
// were begun or, where that is more, are in flight; a small number is always
// allowed. It outlives revisions and is safe for concurrent use.
type Budget struct {
	mu       sync.Mutex
	ratio    float64
	min      int
	active   int // requests in flight
	retrying int // of these, requests on a retry
	slices   [budgetSlices]budgetSlice
}

type budgetSlice struct {
	second            int64
	requests, retries int
}

const budgetSlices = 10 // seconds

// NewBudget returns a budget of ratio (0..1) with at least min retries.
func NewBudget(ratio float64, minimum int) *Budget {
	b := &Budget{}
	b.Set(ratio, minimum)
	return b
}

// Set changes the limits; counts stay.
func (b *Budget) Set(ratio float64, minimum int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ratio, b.min = ratio, minimum
}

// begin counts a request; end must follow.
func (b *Budget) begin(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.active++
	b.slice(now).requests++
}

// end counts a request out; retried says that it had taken a retry.
func (b *Budget) end(retried bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.active--
	if retried {
		b.retrying--
	}
}

// take asks for one retry. again says that the request holds one already.
func (b *Budget) take(now time.Time, again bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	retrying := b.retrying
	if again {
		retrying--
	}
	requests, retries := b.recent(now)
	if retrying >= b.allowance(b.active) || retries >= b.allowance(max(requests, b.active)) {
		return false
	}
	b.slice(now).retries++
	if !again {
		b.retrying++
	}
	return true
}

func (b *Budget) allowance(of int) int {
	return max(b.min, int(b.ratio*float64(of)))
}

func (b *Budget) slice(now time.Time) *budgetSlice {
	second := now.Unix()
	s := &b.slices[(second%budgetSlices+budgetSlices)%budgetSlices]
	if s.second != second {
		*s = budgetSlice{second: second}
	}
	return s
}

func (b *Budget) recent(now time.Time) (requests, retries int) {
	oldest := now.Unix() - budgetSlices
	for _, s := range b.slices {
		if s.second > oldest {
			requests += s.requests
			retries += s.retries
		}
	}
	return requests, retries
}
