package engine

import (
	"errors"
	"testing"
	"time"
)

func TestColdRequestsPay(t *testing.T) {
	p := plain()
	p.MaxBatchedTokens = 1000
	p.Cold = Cold{Tables: ms(42), Cache: ms(3), Requests: 2}
	s := newSim(t, p)
	at := time.Duration(0)
	for i, c := range []struct{ tokens, penalty int }{
		{20, 45}, {128, 3}, {100, 0}, // one class: tables and cache, cache, warm
		{129, 45}, {256, 3}, {200, 0},
		{300, 45}, {1, 0},
	} {
		submit(t, s, at, Request{Ref: i, PromptTokens: c.tokens, OutputTokens: 1})
		want := ms(float64(5 + 10 + c.tokens + c.penalty))
		if got := ttft(drain(s), i) - at; got != want {
			t.Errorf("request %d, %d tokens: TTFT %v, want %v", i, c.tokens, got, want)
		}
		at += time.Minute
	}
	if got := s.Stats().ColdRequests; got != 5 {
		t.Errorf("%d cold requests, want 5", got)
	}

	// Whoever shares the step waits as well.
	s = newSim(t, p)
	submit(t, s, 0, Request{Ref: 0, PromptTokens: 20, OutputTokens: 1})
	submit(t, s, 0, Request{Ref: 1, PromptTokens: 200, OutputTokens: 1})
	if got, want := ttft(drain(s), 0), ms(5+10+220+2*45); got != want {
		t.Errorf("two cold requests in a step: TTFT %v, want %v", got, want)
	}
}

func TestStartUp(t *testing.T) {
	p := plain()
	p.StartUp = 30 * time.Second
	s := newSim(t, p)
	submit(t, s, 0, Request{PromptTokens: 1, OutputTokens: 1}) // never told to start: ready
	drain(s)

	s = newSim(t, p)
	s.Start(10 * time.Second)
	if got := s.ReadyAt(); got != 40*time.Second {
		t.Errorf("ready at %v, want 40s", got)
	}
	r := Request{PromptTokens: 20, OutputTokens: 1}
	if _, err := s.Submit(40*time.Second-1, r); !errors.Is(err, ErrStarting) {
		t.Errorf("before it is ready: %v, want ErrStarting", err)
	}
	submit(t, s, 40*time.Second, r)
	if got, want := ttft(drain(s), 0), 40*time.Second+ms(35); got != want {
		t.Errorf("first token at %v, want %v", got, want)
	}
}

func TestSlow(t *testing.T) {
	s := newSim(t, plain())
	submit(t, s, 0, Request{PromptTokens: 20, OutputTokens: 3})
	s.Advance(ms(10)) // in the first step, which keeps its length
	s.Slow(ms(10), 3)
	s.Advance(ms(40))
	s.Slow(ms(40), 1)
	var got []int64
	for _, e := range s.Advance(ms(1000)) {
		if e.Kind == Token {
			got = append(got, e.At.Milliseconds())
		}
	}
	if len(got) != 2 || got[0] != 35+36 || got[1] != 71+12 {
		t.Errorf("tokens at %v ms, want 71 and 83", got)
	}
	for _, nonsense := range []float64{0, -1} {
		s.Slow(0, nonsense)
		if s.slow != 1 {
			t.Errorf("a factor of %v slows by %v", nonsense, s.slow)
		}
	}
}

// A sequence gets (1 - a^(k+1)) / (1 - a) tokens a step, and a step pays for
// the guesses.
func TestSpeculativeDecoding(t *testing.T) {
	for _, c := range []struct {
		k    int
		a    float64
		want float64 // tokens a step
	}{{0, 0.9, 1}, {3, 0, 1}, {3, 1, 4}, {3, 0.7, 2.533}, {5, 0.8, 3.689}} {
		p := plain()
		p.KVBlocks, p.Speculative = 2000, Speculative{DraftTokens: c.k, Acceptance: c.a}
		s := newSim(t, p)
		submit(t, s, 0, Request{PromptTokens: 1, OutputTokens: 20001, Quiet: true})
		events := drain(s)
		st := s.Stats()
		if st.GeneratedTokens != 20001 || events[len(events)-1].Tokens != 20001 {
			t.Fatalf("k %d, a %v: %d tokens", c.k, c.a, st.GeneratedTokens)
		}
		if got := 20000 / float64(st.Steps-1); got < 0.98*c.want || got > 1.02*c.want {
			t.Errorf("k %d, a %v: %.3f tokens a step, want %.3f", c.k, c.a, got, c.want)
		}
		// 10 ms and 2 a sequence, 1 for each of k guesses; the first step is the prompt's.
		want := time.Duration(st.Steps-1)*ms(12) + time.Duration(st.DraftTokens)*ms(1) + ms(11)
		if st.Busy != want || (c.k > 0) != (st.Drafts > 0) || st.AcceptedTokens > st.DraftTokens {
			t.Errorf("k %d, a %v: busy %v, want %v; %+v", c.k, c.a, st.Busy, want, st)
		}
	}
}

// Guesses take room in the budget and never go past the end.
func TestSpeculativeLimits(t *testing.T) {
	p := plain()
	p.MaxBatchedTokens, p.Speculative = 4, Speculative{DraftTokens: 8, Acceptance: 1}
	s := newSim(t, p)
	submit(t, s, 0, Request{PromptTokens: 1, OutputTokens: 7})
	var tokens []int
	for _, e := range drain(s) {
		if e.Kind == Token {
			tokens = append(tokens, e.Tokens)
		}
	}
	if len(tokens) != 2 || tokens[0] != 5 || tokens[1] != 7 {
		t.Errorf("tokens after each step %v, want 5 (3 guessed by the budget) and 7 (the end)", tokens)
	}
}
