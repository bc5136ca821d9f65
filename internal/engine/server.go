package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Spec says which engine to serve.
type Spec struct {
	// Model is the name it is served under.
	Model  string
	Params Params
	// Seed of the noise, if there is any.
	Seed uint64
	// Speed is how many times faster than real the engine runs, for
	// time-compressed tests; every time and metric seen from outside shrinks
	// with it. Default 1.
	Speed float64
	// Addr is where a Fleet listens for it. Default a free loopback port.
	Addr string
}

// Server is one engine behind the OpenAI API, in real time. Create it with
// NewServer and end it with Close. It is safe for concurrent use.
type Server struct {
	spec    Spec
	limits  Params // with defaults
	mux     *http.ServeMux
	metrics *metrics
	start   time.Time
	ids     atomic.Uint64
	faults  faults

	mu     sync.Mutex // guards the next six
	sim    *Sim
	calls  map[int]*call
	ref    int
	closed bool
	frozen bool
	lost   time.Duration // real time since start spent frozen; while frozen, up to when it began

	wake     chan struct{} // the driver has something new to look at
	closing  chan struct{}
	driver   sync.WaitGroup
	handlers sync.WaitGroup
}

// NewServer starts an engine with an empty cache.
func NewServer(spec Spec) (*Server, error) {
	if spec.Speed == 0 {
		spec.Speed = 1
	}
	if spec.Model == "" || !(spec.Speed > 0) || math.IsInf(spec.Speed, 0) {
		return nil, fmt.Errorf("engine spec: need a model name and a positive speed, have %q and %v", spec.Model, spec.Speed)
	}
	sim, err := New(spec.Params, spec.Seed)
	if err != nil {
		return nil, err
	}
	s := &Server{
		spec:    spec,
		limits:  sim.Params(),
		start:   time.Now(),
		sim:     sim,
		calls:   make(map[int]*call),
		wake:    make(chan struct{}, 1),
		closing: make(chan struct{}),
	}
	sim.Start(0)
	s.metrics = newMetrics(s)
	s.mux = s.routes()
	s.driver.Go(s.drive)
	return s, nil
}

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	mux.HandleFunc("POST /v1/completions", s.completions)
	mux.HandleFunc("POST /v1/responses", s.responses)
	mux.HandleFunc("POST /v1/embeddings", s.embeddings)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /v1/models/{id...}", s.model)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("GET /metrics", s.metrics.handler())
	return mux
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		writeError(w, unavailable("The engine is shutting down."))
		return
	}
	defer s.handlers.Done()
	switch {
	case s.misbehave(w, r):
	case !s.ready():
		writeError(w, unavailable("The engine is loading the model."))
	default:
		s.mux.ServeHTTP(w, r)
	}
}

func (s *Server) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now() >= s.sim.ReadyAt()
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.handlers.Add(1)
	return true
}

// Close ends the engine: requests under way are cut off, later ones get 503.
// It waits for all handlers and the driver, and may be called again.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	s.handlers.Wait()
	s.driver.Wait()
}

// Stats gives the engine's counters and gauges as of now. Its times are the
// engine's own, not scaled by Speed.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sim.Stats()
}

// drive lets the engine's time pass until Close.
func (s *Server) drive() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(s.step())
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.closing:
			return
		}
	}
}

// step delivers what has happened and gives the time until the next event.
func (s *Server) step() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.sim.Advance(s.now()) {
		s.deliver(e)
	}
	next, ok := s.sim.NextEvent()
	if !ok || s.frozen {
		return time.Hour
	}
	return max(s.real(next)-s.passed(), 1)
}

// now is the engine's time.
func (s *Server) now() time.Duration {
	if s.spec.Speed == 1 {
		return s.passed()
	}
	return time.Duration(float64(s.passed()) * s.spec.Speed)
}

// passed is the real time since the start that was not spent frozen.
func (s *Server) passed() time.Duration {
	if s.frozen {
		return s.lost
	}
	return time.Since(s.start) - s.lost
}

// freeze stops the engine's time or lets it go on from where it stopped.
func (s *Server) freeze(frozen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if frozen == s.frozen {
		return
	}
	if frozen {
		s.lost = s.passed()
	} else {
		s.lost = time.Since(s.start) - s.lost
	}
	s.frozen = frozen
	s.poke()
}

// real turns a span of the engine's time into real time, rounded up.
func (s *Server) real(d time.Duration) time.Duration {
	if s.spec.Speed == 1 {
		return d
	}
	return time.Duration(math.Ceil(float64(d) / s.spec.Speed))
}

func (s *Server) deliver(e Event) {
	c := s.calls[e.Ref]
	if c == nil {
		return // cancelled
	}
	if e.Kind == Scheduled && !c.scheduled {
		c.scheduled, c.cached, c.times.scheduled = true, e.Cached, e.At
	}
	s.metrics.observe(c, e)
	switch e.Kind {
	case FirstToken, Token:
		c.tokens.Store(int64(e.Tokens))
	case Finished:
		delete(s.calls, e.Ref)
		c.finished.Store(true)
	default:
		return
	}
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// call is one sequence as its handler sees it.
type call struct {
	server  *Server
	id      ID
	request Request
	reason  string // why it will end: stop, length

	scheduled bool
	cached    int // prompt tokens; set before the first token and not again
	cut       int // tokens after which the answer breaks off; 0: it does not
	times     times
	tokens    atomic.Int64
	finished  atomic.Bool
	news      chan struct{} // something changed since it was last looked at
}

// begin hands a request to the engine.
func (s *Server) begin(r Request, reason string) (*call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ref++
	r.Ref = s.ref
	now := s.now()
	id, err := s.sim.Submit(now, r)
	if err != nil {
		return nil, err
	}
	c := &call{server: s, id: id, request: r, reason: reason, news: make(chan struct{}, 1)}
	if r.OutputTokens > 1 && s.faults.strikes(Cut) {
		c.cut = r.OutputTokens / 2
	}
	c.times.submitted = now
	s.calls[r.Ref] = c
	s.poke()
	return c, nil
}

var (
	errClosing = errors.New("engine closed")
	errCut     = errors.New("answer cut off by a fault")
)

// wait blocks until there are more than seen tokens or the end. A client that
// leaves cancels the sequence at once.
func (c *call) wait(ctx context.Context, seen int) (tokens int, finished bool, err error) {
	for {
		finished = c.finished.Load() // before tokens: the last one is counted first
		tokens = int(c.tokens.Load())
		if c.cut > 0 && tokens >= c.cut {
			return c.untilCut(seen)
		}
		if finished || tokens > seen {
			return tokens, finished, nil
		}
		select {
		case <-c.news:
		case <-ctx.Done():
			c.cancel()
			return tokens, false, context.Cause(ctx)
		case <-c.server.closing:
			return tokens, false, errClosing
		}
	}
}

// untilCut gives the tokens before the cut, then the cut.
func (c *call) untilCut(seen int) (tokens int, finished bool, err error) {
	if seen < c.cut {
		return c.cut, false, nil
	}
	return c.cut, false, errCut
}

// waitFinished blocks until the end.
func (c *call) waitFinished(ctx context.Context) error {
	for seen := 0; ; {
		tokens, finished, err := c.wait(ctx, seen)
		if finished || err != nil {
			return err
		}
		seen = tokens
	}
}

// cancel takes the sequence out of the engine. Nothing happens after its end.
func (c *call) cancel() {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.request.Ref] == nil {
		return
	}
	delete(s.calls, c.request.Ref)
	if s.sim.Cancel(s.now(), c.id) {
		s.metrics.aborted()
	}
	s.poke()
}

// newID makes an identifier for an answer.
func (s *Server) newID(prefix string) string {
	return prefix + strconv.FormatUint(mix(uint64(s.start.UnixNano())^s.ids.Add(1)), 16)
}

// poke tells the driver that the next event may have changed.
func (s *Server) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{s.card()}})
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	if id := r.PathValue("id"); id != s.spec.Model {
		writeError(w, unknownModel(id))
		return
	}
	writeJSON(w, http.StatusOK, s.card())
}

func (s *Server) card() map[string]any {
	return map[string]any{
		"id": s.spec.Model, "object": "model", "created": s.start.Unix(), "owned_by": "vllm",
		"root": s.spec.Model, "parent": nil, "max_model_len": s.limits.MaxModelLen,
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
