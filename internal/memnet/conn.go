package memnet

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// Conn is one end of a connection. Like *net.TCPConn it may be used from
// several goroutines, and its errors but io.EOF are *net.OpError.
//
// It differs from TCP in one point: a Write to a peer that has closed fails
// once the close has arrived, not one Write later.
type Conn struct {
	in, out       *pipe
	local, remote label
}

// newPair returns the two ends of a new connection.
func newPair(client, server label, window int, latency time.Duration) (*Conn, *Conn) {
	up, down := newPipe(window, latency), newPipe(window, latency)
	return &Conn{in: down, out: up, local: client, remote: server},
		&Conn{in: up, out: down, local: server, remote: client}
}

// Read waits for bytes, the end (io.EOF), a reset (ECONNRESET), the read
// deadline (os.ErrDeadlineExceeded) or Close (net.ErrClosed). Bytes that came
// before an end or a reset are read first.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	return n, c.opError("read", err)
}

// Write returns when all of b is in the window, or the peer has left (EPIPE,
// ECONNRESET), the write deadline passed (os.ErrDeadlineExceeded) or the
// connection was closed (net.ErrClosed).
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.out.write(b)
	return n, c.opError("write", err)
}

// Close ends both directions; blocked calls return. The peer reads what was
// written and then io.EOF, or ECONNRESET when this end left bytes unread.
func (c *Conn) Close() error { return c.shut("close", false) }

// Reset closes so that the peer reads what was written and then ECONNRESET, as
// a TCP connection does after SetLinger(0) and Close.
func (c *Conn) Reset() error { return c.shut("reset", true) }

func (c *Conn) shut(op string, reset bool) error {
	unread, err := c.in.closeRead(reset)
	if err != nil {
		return c.opError(op, err)
	}
	end := io.EOF
	if reset || unread {
		end = syscall.ECONNRESET
	}
	_ = c.out.closeWrite(net.ErrClosed, end) // closed for writing already is as good
	return nil
}

// CloseWrite ends this direction only: the peer reads io.EOF and can still
// write.
func (c *Conn) CloseWrite() error {
	return c.opError("close", c.out.closeWrite(syscall.EPIPE, io.EOF))
}

// LocalAddr is the address of this end.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the address of the other end.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines; the zero time means none.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline bounds present and future calls of Read.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.opError("set", c.in.setReadDeadline(t))
}

// SetWriteDeadline bounds present and future calls of Write.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.opError("set", c.out.setWriteDeadline(t))
}

func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: newSyscallError(op, err)}
}

// newSyscallError dresses an errno as package net does and leaves others alone.
func newSyscallError(call string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return os.NewSyscallError(call, err)
	}
	return err
}
