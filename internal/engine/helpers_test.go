package engine

import (
	"testing"
	"time"
)

func newSim(t testing.TB, p Params) *Sim {
	t.Helper()
	s, err := New(p, 1)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func submit(t testing.TB, s *Sim, at time.Duration, r Request) ID {
	t.Helper()
	id, err := s.Submit(at, r)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// drain runs the engine until nothing is left to do.
func drain(s *Sim) []Event {
	var all []Event
	for at, ok := s.NextEvent(); ok; at, ok = s.NextEvent() {
		all = append(all, s.Advance(at)...)
	}
	return all
}

// ttft is the time of a request's first token, -1 if there was none.
func ttft(events []Event, ref int) time.Duration {
	for _, e := range events {
		if e.Ref == ref && e.Kind == FirstToken {
			return e.At
		}
	}
	return -1
}

func ms(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
