package replay

import "time"

// kind is what an event is about.
type kind uint8

const (
	arrive      kind = iota // the next request of the trace reaches a gateway
	dispatch                // an attempt reaches its engine
	wake                    // an engine has something to tell
	tokenSeen               // a gateway sees an attempt's first token
	stepSeen                // gateways see the further tokens of an engine's step
	endSeen                 // a gateway sees an attempt's end
	lostSeen                // a gateway sees that an attempt's engine is gone
	refusalSeen             // a gateway sees that an engine won't ever serve it
	scrapeSent              // a gateway asks an engine for its metrics
	scrapeRead              // the engine answers
	scrapeSeen              // the gateway has the answer
	probeSent               // a gateway probes an engine
	rejectSeen              // a gateway sees that an engine takes no more for now
	faultBegins             // something goes wrong with an engine
	faultEnds               // it is well again
	admitted                // a request held at a gateway has its backend, or is turned away
	pumpDue                 // a gateway looks again at the requests it holds
	promptSent              // a warm-up prompt reaches its engine
	promptSeen              // a gateway sees the end of its answer
	promptLost              // a gateway sees that there will be none
)

// event is one entry of the queue. What a and b mean depends on the kind.
type event struct {
	at   time.Duration
	seq  uint64 // order of creation breaks ties
	a, b int32
	kind kind
}

// queue is a binary heap of events by time, then order of creation.
type queue struct {
	heap []event
	seq  uint64
}

func (q *queue) push(at time.Duration, k kind, a, b int) {
	q.seq++
	q.heap = append(q.heap, event{at: at, seq: q.seq, a: int32(a), b: int32(b), kind: k})
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !q.less(i, up) {
			break
		}
		q.heap[i], q.heap[up] = q.heap[up], q.heap[i]
		i = up
	}
}

func (q *queue) pop() event {
	top := q.heap[0]
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for _, c := range [2]int{2*i + 1, 2*i + 2} {
			if c < last && q.less(c, least) {
				least = c
			}
		}
		if least == i {
			return top
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}

func (q *queue) less(i, j int) bool {
	a, b := &q.heap[i], &q.heap[j]
	if a.at != b.at {
		return a.at < b.at
	}
	return a.seq < b.seq
}
