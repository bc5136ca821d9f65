package top

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeScreen keeps the frames that were shown.
type fakeScreen struct {
	broken error

	mu     sync.Mutex
	size   Size
	frames []string
}

func (s *fakeScreen) Size() Size {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size
}

func (s *fakeScreen) Show(frame string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frames = append(s.frames, frame)
	return s.broken
}

func (s *fakeScreen) resize(size Size) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size = size
}

// last is the frame that is on the screen, and how many there were.
func (s *fakeScreen) last() (frame string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frames[len(s.frames)-1], len(s.frames)
}

// fakeGateway answers after a while, and counts.
type fakeGateway struct {
	takes time.Duration

	mu          sync.Mutex
	err         error
	asked, open int
	most        int // open at once
}

func (g *fakeGateway) fetch(ctx context.Context) (Snapshot, error) {
	g.begin()
	defer g.end()
	select {
	case <-time.After(g.takes):
	case <-ctx.Done():
		return Snapshot{}, context.Cause(ctx)
	}
	asked, _, _, err := g.seen()
	s := busy().Snapshot
	s.State.Revision = int64(asked)
	return s, err
}

func (g *fakeGateway) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	g.open++
	g.most = max(g.most, g.open)
}

func (g *fakeGateway) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}

func (g *fakeGateway) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

func (g *fakeGateway) seen() (asked, open, most int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked, g.open, g.most, g.err
}

// start runs a loop in the bubble; stop ends it and waits.
func start(t *testing.T, g *fakeGateway, s *fakeScreen) (stop func() error) {
	t.Helper()
	l := Loop{Fetch: g.fetch, Screen: s, Interval: time.Second}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx, busy().Snapshot) }()
	t.Cleanup(cancel)
	return func() error { cancel(); return <-done }
}

// after lets the bubble run for a while, and half a redraw more.
func after(d time.Duration) {
	time.Sleep(d + redraw/2)
	synctest.Wait()
}

func TestLoopAsksOnceAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := &fakeGateway{}, &fakeScreen{size: Size{120, 40}}
		stop := start(t, g, s)
		after(10 * time.Second)
		if asked, _, _, _ := g.seen(); asked != 10 {
			t.Errorf("asked %d times in 10 s, want 10", asked)
		}
		frame, n := s.last()
		if !strings.Contains(frame, "revision 10 ") {
			t.Errorf("the last answer is not shown:\n%s", frame)
		}
		if n != 11 {
			t.Errorf("%d frames for 11 different states", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestSlowAnswersDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := &fakeGateway{takes: 12500 * time.Millisecond}, &fakeScreen{size: Size{120, 40}}
		stop := start(t, g, s)
		after(11 * time.Second)
		asked, _, _, _ := g.seen()
		if frame, _ := s.last(); asked != 1 || !strings.Contains(frame, "NO ANSWER for 11s") {
			t.Errorf("asked %d times, shown:\n%s", asked, frame)
		}
		after(18 * time.Second)
		asked, _, most, _ := g.seen()
		if frame, _ := s.last(); asked != 3 || most != 1 || strings.Contains(frame, "NO ANSWER") {
			t.Errorf("asked %d times, %d at once, shown:\n%s", asked, most, frame)
		}
		if err := stop(); err != nil { // while a question is open
			t.Error(err)
		}
		if _, open, _, _ := g.seen(); open != 0 {
			t.Error("Run did not wait for its question")
		}
	})
}

func TestLostGatewayIsShownUntilItIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := &fakeGateway{}, &fakeScreen{size: Size{120, 40}}
		stop := start(t, g, s)
		after(2 * time.Second)
		g.fail(errors.New("connection refused"))
		after(5 * time.Second)
		if f, _ := s.last(); !strings.Contains(f, "NO ANSWER for 5s, still asking: connection refused") || !strings.Contains(f, "h100-2") {
			t.Errorf("a lost gateway is shown as:\n%s", f)
		}
		g.fail(nil)
		after(time.Second)
		if f, _ := s.last(); strings.Contains(f, "NO ANSWER") {
			t.Errorf("a gateway that is back is shown as:\n%s", f)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestNewSizeIsDrawnBeforeTheNextAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := &fakeGateway{}, &fakeScreen{size: Size{120, 40}}
		stop := start(t, g, s)
		after(0)
		s.resize(Size{60, 10})
		after(redraw)
		asked, _, _, _ := g.seen()
		if frame, _ := s.last(); asked != 0 || strings.Count(frame, "\n") >= 10 {
			t.Errorf("asked %d times, shown:\n%s", asked, frame)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestLoopEnds(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		key   byte
		quits bool
	}{"q": {'q', true}, "Ctrl-C": {3, true}, "Ctrl-D": {4, true}, "x": {'x', false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				keys := make(chan byte, 1)
				l := Loop{Fetch: (&fakeGateway{}).fetch, Screen: &fakeScreen{size: Size{80, 24}}, Keys: keys, Interval: time.Second}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				keys <- c.key
				close(keys) // a keyboard that is gone is no reason to end
				began := time.Now()
				if err := l.Run(ctx, Snapshot{}); err != nil {
					t.Error(err)
				}
				if quit := time.Since(began) == 0; quit != c.quits {
					t.Errorf("ended after %v", time.Since(began))
				}
			})
		})
	}
	l := Loop{Fetch: (&fakeGateway{}).fetch, Screen: &fakeScreen{broken: broken}, Interval: time.Second}
	if err := l.Run(t.Context(), Snapshot{}); !errors.Is(err, broken) {
		t.Errorf("a broken screen ends the loop with %v", err)
	}
}
