// Package memnet is a TCP-like network in memory, made for tests that run real
// HTTP servers and clients in a testing/synctest bubble.
//
// It owns listeners, dialing and connections with a bounded buffer, deadlines,
// half-close, reset and an optional delay. Every wait is durably blocking, so
// virtual time moves as soon as all parties wait for the network. A Network
// belongs to the bubble it was made in; it also works outside of any bubble.
//
// It leaves to others: name resolution (an address is a label, compared as a
// string), loss and bandwidth, TLS and HTTP.
package memnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	defaultWindow = 64 << 10
	backlogSize   = 1024
)

// Network connects dialers with listeners by address. Its methods may be
// called from several goroutines. A new Network has no latency.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	latency   time.Duration
	window    int
	dials     int
}

// New returns an empty network.
func New() *Network {
	return &Network{listeners: map[string]*listener{}, window: defaultWindow}
}

// SetLatency delays bytes, ends and resets by d in each direction on the
// connections dialed from now on; their dialing takes 2d. Bytes in flight count
// against the window.
func (n *Network) SetLatency(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.latency = d
}

// SetWindow sets how many unread bytes each direction holds before a Write
// blocks (64 KiB unless set, at least 1) on the connections dialed from now on.
func (n *Network) SetWindow(bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.window = max(1, bytes)
}

// Listen takes addr, any "host:port" label, until the listener is closed. The
// error wraps EADDRINUSE when the label is taken.
func (n *Network) Listen(addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: label(addr), Err: syscall.EADDRINUSE}
	}
	l := &listener{
		network: n,
		addr:    label(addr),
		backlog: make(chan *Conn, backlogSize),
		closed:  make(chan struct{}),
	}
	n.listeners[addr] = l
	return l, nil
}

// DialContext connects to the listener of addr; it fits
// http.Transport.DialContext. As with TCP the connection stands before it is
// accepted. The error is a *net.OpError that wraps ECONNREFUSED when nobody
// listens or 1024 connections wait to be accepted, or the error of ctx. The
// net.Conn is a *Conn.
func (n *Network) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	err := n.handshake(ctx)
	if err == nil {
		var c *Conn
		if c, err = n.connect(addr); err == nil {
			return c, nil
		}
	}
	return nil, &net.OpError{Op: "dial", Net: network, Addr: label(addr), Err: err}
}

// handshake waits for one round trip.
func (n *Network) handshake(ctx context.Context) error {
	n.mu.Lock()
	roundTrip := 2 * n.latency
	n.mu.Unlock()
	if roundTrip == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	timer := time.NewTimer(roundTrip)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *Network) connect(addr string) (*Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[addr]
	if l == nil {
		return nil, refused()
	}
	client, server := newPair(n.clientAddr(), l.addr, n.window, n.latency)
	select {
	case l.backlog <- server:
		n.dials++
		return client, nil
	default:
		return nil, refused()
	}
}

// clientAddr is unique for a connection and parses as an IP address and port.
func (n *Network) clientAddr() label {
	const ports = 60000
	return label(fmt.Sprintf("192.0.2.%d:%d", 1+n.dials/ports%250, 1024+n.dials%ports))
}

func refused() error { return newSyscallError("connect", syscall.ECONNREFUSED) }

// listener hands out the server ends of dialed connections.
type listener struct {
	network *Network
	addr    label
	backlog chan *Conn
	closed  chan struct{}
}

// Accept waits for a connection; the error wraps net.ErrClosed after Close.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.backlog:
		return c, nil
	case <-l.closed:
		return nil, l.closedError("accept")
	}
}

// Close frees the address and resets the connections nobody accepted.
func (l *listener) Close() error {
	waiting, err := l.unlisten()
	for _, c := range waiting {
		err = errors.Join(err, c.Reset())
	}
	return err
}

func (l *listener) unlisten() (waiting []*Conn, err error) {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	if l.network.listeners[string(l.addr)] != l {
		return nil, l.closedError("close")
	}
	delete(l.network.listeners, string(l.addr))
	close(l.closed)
	for len(l.backlog) > 0 {
		select {
		case c := <-l.backlog:
			waiting = append(waiting, c)
		default: // Accept was quicker
		}
	}
	return waiting, nil
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) closedError(op string) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
}

// label is a "host:port" that nothing resolves.
type label string

func (label) Network() string  { return "tcp" }
func (l label) String() string { return string(l) }
