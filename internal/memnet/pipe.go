package memnet

import (
	"bytes"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// pipe carries the bytes of one direction.
type pipe struct {
	window  int
	latency time.Duration

	mu      sync.Mutex
	changed *sync.Cond   // broadcast at any change of what follows
	unread  bytes.Buffer // written and not read, at most window bytes
	arrived int          // how many of unread have travelled the latency
	writing bool         // a Write is under way; others wait for it

	readClosed  bool  // the reader closed its end
	writeClosed error // why the writer's own end refuses bytes
	end         error // what the reader gets after the last byte
	broken      error // what the writer gets since the reader left

	readBy, writeBy deadline
}

func newPipe(window int, latency time.Duration) *pipe {
	p := &pipe{window: window, latency: latency}
	p.changed = sync.NewCond(&p.mu)
	return p
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.readClosed:
			return 0, net.ErrClosed
		case p.readBy.expired:
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case p.arrived > 0:
			n, _ := p.unread.Read(b[:min(len(b), p.arrived)])
			p.arrived -= n
			p.changed.Broadcast()
			return n, nil
		case p.end != nil && p.unread.Len() == 0:
			return 0, p.end
		}
		p.changed.Wait()
	}
}

func (p *pipe) write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.writing && p.writeError() == nil {
		p.changed.Wait()
	}
	if err := p.writeError(); err != nil {
		return 0, err
	}
	p.writing = true
	defer func() {
		p.writing = false
		p.changed.Broadcast()
	}()
	for {
		if err := p.writeError(); err != nil {
			return n, err
		}
		n += p.send(b[n:])
		if n == len(b) {
			return n, nil
		}
		p.changed.Wait()
	}
}

func (p *pipe) writeError() error {
	switch {
	case p.writeClosed != nil:
		return p.writeClosed
	case p.writeBy.expired:
		return os.ErrDeadlineExceeded
	}
	return p.broken
}

// send puts as much of b into the window as fits. Bytes for a reader that has
// left get lost.
func (p *pipe) send(b []byte) int {
	if p.readClosed {
		return len(b)
	}
	n := min(len(b), p.window-p.unread.Len())
	if n > 0 {
		p.unread.Write(b[:n])
		p.deliver(func() { p.arrived += n })
	}
	return n
}

// deliver makes change happen to the other end, after the latency. Changes due
// at the same instant may come in any order, so that they must commute.
func (p *pipe) deliver(change func()) {
	if p.latency == 0 {
		change()
		p.changed.Broadcast()
		return
	}
	time.AfterFunc(p.latency, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		change()
		p.changed.Broadcast()
	})
}

// closeRead is the reader leaving; it says whether bytes stayed unread.
func (p *pipe) closeRead(reset bool) (unread bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readClosed {
		return false, net.ErrClosed
	}
	unread = p.unread.Len() > 0
	broken := syscall.EPIPE
	if reset || unread {
		broken = syscall.ECONNRESET
	}
	p.readClosed = true
	p.readBy.stop()
	p.unread.Reset()
	p.deliver(func() { p.broken = broken })
	p.changed.Broadcast()
	return unread, nil
}

// closeWrite is the writer's last word: its Writes fail with refuse and the
// reader gets end after the last byte.
func (p *pipe) closeWrite(refuse, end error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(p.writeClosed, net.ErrClosed) {
		return net.ErrClosed
	}
	p.writeClosed = refuse
	p.writeBy.stop()
	p.deliver(func() {
		if p.end == nil || errors.Is(end, syscall.ECONNRESET) {
			p.end = end
		}
	})
	p.changed.Broadcast()
	return nil
}

func (p *pipe) setReadDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readClosed {
		return net.ErrClosed
	}
	p.setDeadline(&p.readBy, t)
	return nil
}

func (p *pipe) setWriteDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(p.writeClosed, net.ErrClosed) {
		return net.ErrClosed
	}
	p.setDeadline(&p.writeBy, t)
	return nil
}

// deadline is when one kind of call fails. The pipe's lock guards it.
type deadline struct {
	timer   *time.Timer
	expired bool
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

func (p *pipe) setDeadline(d *deadline, t time.Time) {
	d.stop()
	wait := time.Until(t)
	d.expired = !t.IsZero() && wait <= 0
	if wait > 0 {
		var timer *time.Timer
		timer = time.AfterFunc(wait, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if d.timer == timer { // not replaced while waiting for the lock
				d.expired = true
				p.changed.Broadcast()
			}
		})
		d.timer = timer
	}
	p.changed.Broadcast()
}
