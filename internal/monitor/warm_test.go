package monitor_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/monitor"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

// steps remembers the changes of readiness.
type steps struct {
	mu   sync.Mutex
	seen []string
}

func (s *steps) changed(b *backends.Backend, to backends.Readiness, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf("%s %s: %s", b.Name, to, why))
}

func (s *steps) want(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.seen, want) {
		t.Errorf("steps %q, want %q", s.seen, want)
	}
}

// cold is a scraped target of that name that is to be warmed.
func (b *bench) cold(name string, s *steps) monitor.Target {
	target := b.scraped(name)
	target.Backend = engines(backends.Spec{Name: name, Model: "served", WarmUp: true, AuthHeader: "X-Key", AuthValue: "s3cret"})[0]
	target.WarmUp = &monitor.WarmUp{MaxPrompt: 600, Repeat: 2, Prefixes: []string{"You are helpful."}, Timeout: 5 * time.Second, Changed: s.changed}
	return target
}

// born is the metrics of an engine that started then.
func born(at time.Time) fakellm.Script {
	return fakellm.Status(200, nil, fmt.Sprintf("%sprocess_start_time_seconds %d\n", gauges, at.Unix()))
}

// prompts are the lengths of what was asked, in characters, by path.
func prompts(t *testing.T, requests []*fakellm.Request) (chats, completions []int) {
	t.Helper()
	for _, r := range requests {
		var body struct {
			Model     string
			Prompt    string
			MaxTokens int `json:"max_tokens"`
			Stream    bool
			Messages  []struct{ Role, Content string }
		}
		if err := json.Unmarshal(r.Body, &body); err != nil {
			t.Fatal(err)
		}
		if body.Model != "served" || body.MaxTokens != 1 || body.Stream || r.Header.Get("X-Key") != "s3cret" {
			t.Errorf("%s %s with %v", r.Path, r.Body, r.Header)
		}
		if strings.HasSuffix(r.Path, "/chat/completions") {
			chats = append(chats, len(body.Messages[len(body.Messages)-1].Content))
		} else {
			completions = append(completions, len(body.Prompt))
		}
	}
	return chats, completions
}

// TestWarmUp: a young engine is sent prompts of rising length, one after the
// other, then the prefixes; a restart does it again.
func TestWarmUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var mu sync.Mutex
		start := time.Now()
		fake := &fakellm.Backend{
			Script:  func(*fakellm.Request) fakellm.Script { return fakellm.Reply(1, 100*time.Millisecond, 0) },
			Metrics: func(*fakellm.Request) fakellm.Script { mu.Lock(); defer mu.Unlock(); return born(start) },
		}
		b.serve(t, "a", fake)
		var s steps
		target := b.cold("a", &s)
		b.Watch([]monitor.Target{target})
		time.Sleep(800 * time.Millisecond)
		synctest.Wait()
		if got := target.Backend.Readiness(); got != backends.Warming {
			t.Errorf("%s while prompts are under way", got)
		}
		run(0.9)
		got := fake.Requests()
		chats, completions := prompts(t, got)
		if len(chats) != 9 || completions != nil {
			t.Fatalf("%v %v, want 2 of each of 64, 128, 256 and 512, and a prefix", chats, completions)
		}
		for i, tokens := range []int{64, 64, 128, 128, 256, 256, 512, 512} {
			if n := chats[i]; n < 4*tokens || n > 6*tokens {
				t.Errorf("prompt %d has %d characters, want those of about %d tokens", i, n, tokens)
			}
			if i > 0 && got[i].Received.Sub(got[i-1].Received) < 100*time.Millisecond {
				t.Errorf("prompt %d is sent before the end of the one before it", i)
			}
			if i > 0 && string(got[i].Body[:100]) == string(got[i-1].Body[:100]) {
				t.Errorf("prompt %d begins as the one before it does: the cache spares the work", i)
			}
		}
		if !strings.Contains(string(got[8].Body), `{"role":"system","content":"You are helpful."}`) {
			t.Errorf("the prefix: %s", got[8].Body)
		}
		if load := target.Backend.Load(time.Now()); load.InFlight != 0 || load.TTFT != 0 {
			t.Errorf("the warm-up counts as load: %+v", load)
		}
		s.want(t, "a warming: new", "a ready: warm")
		mu.Lock()
		start = time.Now()
		mu.Unlock()
		run(3)
		s.want(t, "a warming: new", "a ready: warm", "a warming: restarted", "a ready: warm")
		if fake.Count() != 18 {
			t.Errorf("%d prompts after a restart, want 18 in all", fake.Count())
		}
	})
}

// TestNoWarmUp: engines that were up before the gateway are left alone.
func TestNoWarmUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		old := &fakellm.Backend{Metrics: always(born(time.Now().Add(-2 * time.Minute)))}
		unknown := &fakellm.Backend{}
		b.serve(t, "a", old)
		b.serve(t, "b", unknown)
		var s steps
		b.Watch([]monitor.Target{b.cold("a", &s), b.cold("b", &s)})
		run(3)
		s.want(t)
		if old.Count()+unknown.Count() != 0 {
			t.Error("prompts were sent")
		}
	})
}

// TestWarmUpAnswers: what an engine says to the prompts.
func TestWarmUpAnswers(t *testing.T) {
	ok, limit := fakellm.Reply(1, 0, 0), 2000
	tooLong := func(r *fakellm.Request) fakellm.Script {
		if len(r.Body) > limit {
			return status(400)
		}
		return ok
	}
	noChat := func(r *fakellm.Request) fakellm.Script {
		if r.Path == "/v1/chat/completions" {
			return status(404)
		}
		return ok
	}
	for name, tt := range map[string]struct {
		script             func(*fakellm.Request) fakellm.Script
		chats, completions int
		end                []string
	}{
		"too long":       {tooLong, 6 + 1 + 1, 0, []string{"a ready: warm"}}, // 512 tokens are, once; then the prefix
		"no chats":       {noChat, 1, 9, []string{"a ready: warm"}},
		"neither":        {always(status(404)), 1, 1 + 1, []string{"a ready: warm"}},
		"errors":         {always(status(500)), 3, 0, []string{"a cold: failed", "a warming: new", "a cold: failed", "a warming: new", "a ready: failed"}},
		"silence":        {always(fakellm.Script{fakellm.Hang()}), 3, 0, []string{"a cold: failed", "a warming: new", "a cold: failed", "a warming: new", "a ready: failed"}},
		"too slow":       {fakellm.Sequence(ok, ok, ok, fakellm.Script{fakellm.Hang()}, ok), 5, 0, []string{"a ready: warm"}},
		"well the third": {fakellm.Sequence(status(503), status(503), ok), 2 + 9, 0, []string{"a cold: failed", "a warming: new", "a cold: failed", "a warming: new", "a ready: warm"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				fake := &fakellm.Backend{Script: tt.script, Metrics: always(born(time.Now()))}
				b.serve(t, "a", fake)
				var s steps
				target := b.cold("a", &s)
				b.Watch([]monitor.Target{target})
				run(6)
				s.want(t, append([]string{"a warming: new"}, tt.end...)...)
				chats, completions := prompts(t, fake.Requests())
				if len(completions) != tt.completions || len(chats) != tt.chats {
					t.Errorf("%v chats and %v completions, want %d and %d", chats, completions, tt.chats, tt.completions)
				}
			})
		})
	}
}

// TestWarmUpGoesOnAfterReload: what a new set of engines interrupts begins anew.
func TestWarmUpGoesOnAfterReload(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		fake := &fakellm.Backend{Script: always(fakellm.Reply(1, time.Second, 0)), Metrics: always(born(time.Now()))}
		b.serve(t, "a", fake)
		var s steps
		target := b.cold("a", &s)
		b.Watch([]monitor.Target{target})
		time.Sleep(2500 * time.Millisecond)
		b.Watch([]monitor.Target{target})
		run(2)
		s.want(t, "a warming: new", "a warming: new", "a ready: warm")
		if target.Backend.Readiness() != backends.Ready {
			t.Errorf("%s", target.Backend.Readiness())
		}
	})
}
