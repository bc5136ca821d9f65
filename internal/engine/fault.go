package engine

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// FaultKind names what can be wrong with an engine.
type FaultKind string

// The faults. Restart is over as soon as it is done; the others last until they
// are cleared, also over restarts (but for Crash, which a restart ends).
const (
	Crash        FaultKind = "crash"         // connections are reset, the port refuses new ones
	Restart      FaultKind = "restart"       // ends and comes back cold
	Hang         FaultKind = "hang"          // accepts requests, answers none; running ones stand still
	Slow         FaultKind = "slow"          // every step takes Factor times as long
	Cut          FaultKind = "cut"           // answers break off half way
	Errors       FaultKind = "errors"        // answers 500 at once
	Reject       FaultKind = "reject"        // answers 429 at once, and looks healthy
	StallMetrics FaultKind = "stall-metrics" // /metrics goes on showing the numbers of that moment
)

// FaultKinds gives all kinds.
func FaultKinds() []FaultKind {
	return []FaultKind{Crash, Restart, Hang, Slow, Cut, Errors, Reject, StallMetrics}
}

// Fault is one thing that is wrong with an engine.
type Fault struct {
	Kind FaultKind `json:"kind"`
	// Factor of Slow, above 0. 0 means 4.
	Factor float64 `json:"factor,omitempty"`
	// Rate is the share of requests that Cut, Errors and Reject strike, up to
	// 1. 0 means all.
	Rate float64 `json:"rate,omitempty"`
}

// Complete fills the defaults in and reports what makes no sense.
func (f Fault) Complete() (Fault, error) {
	if !slices.Contains(FaultKinds(), f.Kind) {
		return f, fmt.Errorf("unknown fault kind %q, want one of %s", f.Kind, kindList())
	}
	if f.Factor < 0 || math.IsNaN(f.Factor) || math.IsInf(f.Factor, 0) || f.Factor != 0 && f.Kind != Slow {
		return f, fmt.Errorf("factor is %v, want a number above 0, for slow alone", f.Factor)
	}
	hasRate := f.Kind == Cut || f.Kind == Errors || f.Kind == Reject
	if f.Rate < 0 || f.Rate > 1 || math.IsNaN(f.Rate) || f.Rate != 0 && !hasRate {
		return f, fmt.Errorf("rate is %v, want a share up to 1, for cut, errors and reject alone", f.Rate)
	}
	if f.Kind == Slow {
		f.Factor = cmp.Or(f.Factor, 4)
	}
	if hasRate {
		f.Rate = cmp.Or(f.Rate, 1)
	}
	return f, nil
}

func kindList() string {
	var names []string
	for _, k := range FaultKinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// faults are those of one Server that its handlers look at.
type faults struct {
	mu      sync.Mutex
	rates   map[FaultKind]float64
	drawn   uint64        // requests judged, so that a rate strikes the same ones in every run
	resumed chan struct{} // closed when a hang ends; nil when there is none
}

func (f *faults) set(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fault.Kind == Hang {
		if f.resumed == nil {
			f.resumed = make(chan struct{})
		}
		return
	}
	if f.rates == nil {
		f.rates = map[FaultKind]float64{}
	}
	f.rates[fault.Kind] = fault.Rate
}

func (f *faults) clear(kind FaultKind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kind == Hang && f.resumed != nil {
		close(f.resumed)
		f.resumed = nil
	}
	delete(f.rates, kind)
}

// strikes tells whether a request is hit.
func (f *faults) strikes(kind FaultKind) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	rate, ok := f.rates[kind]
	if !ok {
		return false
	}
	f.drawn++
	return float64(mix(f.drawn)>>11)/(1<<53) < rate
}

func (f *faults) hang() chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resumed
}

// Inject makes the server misbehave until Clear. Crash and Restart are not a
// server's but its Engine's.
func (s *Server) Inject(fault Fault) error {
	fault, err := fault.Complete()
	if err != nil {
		return err
	}
	switch fault.Kind {
	case Crash, Restart:
		return fmt.Errorf("a server cannot %s itself", fault.Kind)
	case Slow:
		s.slow(fault.Factor)
	case StallMetrics:
		s.metrics.stall()
	case Hang:
		s.faults.set(fault)
		s.freeze(true)
	default:
		s.faults.set(fault)
	}
	return nil
}

// Clear ends a fault; nothing happens when there is none.
func (s *Server) Clear(kind FaultKind) {
	switch kind {
	case Slow:
		s.slow(1)
	case StallMetrics:
		s.metrics.resume()
	case Hang:
		s.freeze(false)
		s.faults.clear(kind)
	default:
		s.faults.clear(kind)
	}
}

func (s *Server) slow(factor float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sim.Slow(s.now(), factor)
	s.poke()
}

// misbehave answers in place of the API, or holds the request up, when a fault
// says so. It reports whether the request is dealt with.
func (s *Server) misbehave(w http.ResponseWriter, r *http.Request) bool {
	if resumed := s.faults.hang(); resumed != nil {
		select {
		case <-resumed:
		case <-r.Context().Done():
			return true
		case <-s.closing:
			panic(http.ErrAbortHandler)
		}
	}
	if r.Method != http.MethodPost {
		return false
	}
	switch {
	case s.faults.strikes(Errors):
		writeError(w, &apiError{status: http.StatusInternalServerError, Message: "CUDA error: an illegal memory access was encountered", Type: "InternalServerError"})
	case s.faults.strikes(Reject):
		w.Header().Set("Retry-After", "1")
		writeError(w, &apiError{status: http.StatusTooManyRequests, Message: "The engine takes no more requests.", Type: "rate_limit_error"})
	default:
		return false
	}
	return true
}
