package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
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
	e.kill()
}

// Restart brings the engine back on its address with an empty cache. A living
// one is killed first.
func (e *Engine) Restart() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return ErrStopped
	}
	e.kill()
	live, err := startInstance(e.spec, e.addr, e.listen)
	if err != nil {
		return err
	}
	e.live, e.addr = live, live.addr
	return nil
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
	in.http = &http.Server{Handler: server, ConnState: in.conns.track}
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

// Quickstart is a small fleet that needs no configuration: two models, each on
// a slower and a faster engine. The 70B profiles were measured with Llama 3.1;
// 3.3 has the same shape.
func Quickstart() []Spec {
	spec := func(model, profile string) Spec {
		p, _ := LookupProfile(profile)
		return Spec{Model: model, Params: p.Params}
	}
	return []Spec{
		spec("llama-3.1-8b", "rtx4090-llama-3.1-8b-bf16"),
		spec("llama-3.1-8b", "rtxpro6000-llama-3.1-8b-bf16"),
		spec("llama-3.3-70b", "h200-llama-3.1-70b-fp8-tp1"),
		spec("llama-3.3-70b", "h100-llama-3.1-70b-fp8-tp4"),
	}
}
