package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// ErrStopped says that the fleet has ended for good.
var ErrStopped = errors.New("fleet is stopped")

// Fleet is a set of engines on their own listeners. It is safe for concurrent
// use.
type Fleet struct {
	engines []*Engine
	detach  func() bool // from the context
}

// Listen opens a listener, as net.Listen does.
type Listen func(network, addr string) (net.Listener, error)

// StartFleet starts one engine for each spec and returns when all of them
// listen. It ends with Stop or with ctx. A nil listen means net.Listen. When
// one engine cannot start, none is left running.
func StartFleet(ctx context.Context, specs []Spec, listen Listen) (*Fleet, error) {
	if listen == nil {
		listen = net.Listen
	}
	f := &Fleet{}
	for i, spec := range specs {
		if spec.Addr == "" {
			spec.Addr = "127.0.0.1:0"
		}
		e := &Engine{spec: spec, listen: listen, addr: spec.Addr}
		if err := e.Restart(); err != nil {
			f.stopAll()
			return nil, fmt.Errorf("start engine %d (%s): %w", i, spec.Model, err)
		}
		f.engines = append(f.engines, e)
	}
	f.detach = context.AfterFunc(ctx, f.stopAll)
	return f, nil
}

// Engines gives the engines in the order of their specs.
func (f *Fleet) Engines() []*Engine { return f.engines }

// URLs gives the base URL of each engine, without a path. They stay the same
// over restarts.
func (f *Fleet) URLs() []string {
	urls := make([]string, len(f.engines))
	for i, e := range f.engines {
		urls[i] = e.URL()
	}
	return urls
}

// Stop ends all engines and waits for everything they started. Requests under
// way are cut off. It may be called again.
func (f *Fleet) Stop() {
	f.detach()
	f.stopAll()
}

func (f *Fleet) stopAll() {
	var all sync.WaitGroup
	for _, e := range f.engines {
		all.Go(e.stop)
	}
	all.Wait()
}

// Engine is one member of a fleet: an address, and a server behind it unless
// it was killed.
type Engine struct {
	spec   Spec
	listen Listen

	mu      sync.Mutex
	addr    string // of the last listener
	live    *instance
	stopped bool
	faults  map[FaultKind]Fault // that last
}

// Spec gives what was asked for.
func (e *Engine) Spec() Spec { return e.spec }

// URL gives the base URL, without a path.
func (e *Engine) URL() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return "http://" + e.addr
}

// Stats gives the engine's numbers; all zero while it is down.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.live == nil {
		return Stats{}
	}
	return e.live.server.Stats()
}

// Kill ends the engine as a crash would: its connections are reset and its port
// refuses new ones. It waits until nothing of it is left. Killing a dead engine
// does nothing.
func (e *Engine) Kill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(Fault{Kind: Crash})
	e.kill()
}

// Restart brings the engine back on its address with an empty cache. A living
// one is killed first.
func (e *Engine) Restart() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.restart()
}

func (e *Engine) restart() error {
	if e.stopped {
		return ErrStopped
	}
	e.kill()
	live, err := startInstance(e.spec, e.addr, e.listen)
	if err != nil {
		return err
	}
	e.live, e.addr = live, live.addr
	delete(e.faults, Crash)
	for _, f := range e.faults {
		if err := live.server.Inject(f); err != nil {
			return err
		}
	}
	return nil
}

// Inject makes the engine misbehave until Clear. A fault of a kind that is
// there already takes its place.
func (e *Engine) Inject(f Fault) error {
	f, err := f.Complete()
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.Kind == Restart {
		return e.restart()
	}
	if e.stopped {
		return ErrStopped
	}
	e.note(f)
	switch {
	case f.Kind == Crash:
		e.kill()
	case e.live != nil:
		return e.live.server.Inject(f)
	}
	return nil
}

func (e *Engine) note(f Fault) {
	if e.faults == nil {
		e.faults = map[FaultKind]Fault{}
	}
	e.faults[f.Kind] = f
}

// Clear ends a fault; a crashed engine comes back cold. Nothing happens when
// there is no such fault.
func (e *Engine) Clear(kind FaultKind) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.faults[kind]; !ok {
		return nil
	}
	delete(e.faults, kind)
	if kind == Crash {
		return e.restart()
	}
	if e.live != nil {
		e.live.server.Clear(kind)
	}
	return nil
}

// Faults gives what is wrong with the engine now, by kind.
func (e *Engine) Faults() []Fault {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.SortedFunc(maps.Values(e.faults), func(a, b Fault) int { return cmp.Compare(a.Kind, b.Kind) })
}

func (e *Engine) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	e.kill()
}

func (e *Engine) kill() {
	if e.live != nil {
		e.live.kill()
		e.live = nil
	}
}

// instance is one life of an engine.
type instance struct {
	addr   string
	server *Server
	http   *http.Server
	serve  sync.WaitGroup
	conns  connections
}

func startInstance(spec Spec, addr string, listen Listen) (*instance, error) {
	server, err := NewServer(spec)
	if err != nil {
		return nil, err
	}
	l, err := listen("tcp", addr)
	if err != nil {
		server.Close()
		return nil, err
	}
	in := &instance{addr: l.Addr().String(), server: server}
	in.http = &http.Server{Handler: server, ConnState: in.conns.track, ReadHeaderTimeout: 10 * time.Second}
	in.serve.Go(func() { _ = in.http.Serve(l) }) // always ends with ErrServerClosed or the listener's end
	return in, nil
}

func (in *instance) kill() {
	in.conns.abandon()
	_ = in.http.Close() // closing is best effort: the process would be gone
	in.serve.Wait()
	_ = in.http.Close() // once more for one that was just being accepted
	in.server.Close()
	in.conns.wait()
}

// connections are the open ones of one http.Server.
type connections struct {
	mu        sync.Mutex
	open      map[net.Conn]struct{}
	abandoned bool
	all       sync.WaitGroup
}

// track is an http.Server's ConnState hook.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.open == nil {
			c.open = make(map[net.Conn]struct{})
		}
		c.open[conn] = struct{}{}
		c.all.Add(1)
		if c.abandoned {
			abandon(conn)
		}
	case http.StateClosed, http.StateHijacked:
		if _, ok := c.open[conn]; ok {
			delete(c.open, conn)
			c.all.Done()
		}
	}
}

// abandon makes the close of every connection a reset.
func (c *connections) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandoned = true
	for conn := range c.open {
		abandon(conn)
	}
}

func abandon(conn net.Conn) {
	if l, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0) // a connection that is gone needs no reset
	}
}

func (c *connections) wait() { c.all.Wait() }
