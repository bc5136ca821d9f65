package trace

import (
	"fmt"
	"iter"
	"time"
)

// Source is a sequence of requests in order of arrival; range over it. Each
// range starts anew and gives the same requests. An error comes last, with a
// request that means nothing. A Source may be endless: bound it with First or
// Window. Several goroutines may each range over it.
type Source func(yield func(Request, error) bool)

// Of is a source of these requests, which are in order of arrival.
func Of(requests ...Request) Source {
	return func(yield func(Request, error) bool) {
		for _, r := range requests {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// Collect gives all requests, those before an error included.
func (s Source) Collect() ([]Request, error) {
	var all []Request
	for r, err := range s {
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
	return all, nil
}

// First ends the source after n requests.
func (s Source) First(n int) Source {
	return func(yield func(Request, error) bool) {
		if n <= 0 {
			return
		}
		left := n
		for r, err := range s {
			left--
			if !yield(r, err) || left == 0 {
				return
			}
		}
	}
}

// Window keeps the arrivals of [from, to) and makes from the new start. With
// to = 0 it goes to the end.
func (s Source) Window(from, to time.Duration) Source {
	return func(yield func(Request, error) bool) {
		for r, err := range s {
			if err == nil {
				if r.At < from {
					continue
				}
				if to > 0 && r.At >= to {
					return
				}
				r.At -= from
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// Rate makes the trace run k times as fast: k times the requests a second, in a
// k-th of the time.
func (s Source) Rate(k float64) Source {
	if !(k > 0) {
		return fail(fmt.Errorf("rate multiplier %v: must be above 0", k))
	}
	return s.Each(func(r *Request) { r.At = seconds(r.At.Seconds() / k) })
}

// Each changes every request. The order of arrival must stay.
func (s Source) Each(change func(*Request)) Source {
	return func(yield func(Request, error) bool) {
		for r, err := range s {
			if err == nil {
				change(&r)
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// Merge is all requests of the sources in order of arrival; ties go in the
// order of the sources. It ends with the first error of any.
func Merge(sources ...Source) Source {
	return func(yield func(Request, error) bool) {
		var heads queue[head]
		for i, s := range sources {
			next, stop := iter.Pull2(iter.Seq2[Request, error](s))
			defer stop()
			r, err, ok := next()
			if err != nil {
				yield(Request{}, err)
				return
			}
			if ok {
				heads.push(head{r, i, next})
			}
		}
		for len(heads) > 0 {
			h := &heads[0]
			if !yield(h.Request, nil) {
				return
			}
			r, err, ok := h.next()
			if err != nil {
				yield(Request{}, err)
				return
			}
			if !ok {
				heads.pop()
				continue
			}
			h.Request = r
			heads.fix()
		}
	}
}

// head is the next request of one of several sources.
type head struct {
	Request
	source int
	next   func() (Request, error, bool)
}

func (h head) due() (time.Duration, int) { return h.At, h.source }

// fail is a source of nothing but an error.
func fail(err error) Source {
	return func(yield func(Request, error) bool) { yield(Request{}, err) }
}
