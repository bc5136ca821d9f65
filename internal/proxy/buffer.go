package proxy

import "sync"

// Sizes of the buffers that answers are read through.
const (
	waitingBuffer = 2 << 10  // of a stream that mostly waits for its next event
	busyBuffer    = 16 << 10 // of one that has more ready than it can take
)

// bufferPool lends buffers of the two sizes; others come from the heap and go
// back to it. It is safe for concurrent use.
type bufferPool struct{ waiting, busy sync.Pool }

func (p *bufferPool) of(size int) *sync.Pool {
	switch size {
	case waitingBuffer:
		return &p.waiting
	case busyBuffer:
		return &p.busy
	}
	return nil
}

func (p *bufferPool) get(size int) []byte {
	if pool := p.of(size); pool != nil {
		if b, ok := pool.Get().(*[]byte); ok {
			return *b
		}
	}
	return make([]byte, size)
}

func (p *bufferPool) put(b []byte) {
	if pool := p.of(len(b)); pool != nil {
		pool.Put(&b)
	}
}
