package top

import (
	"context"
	"sync"
	"time"
)

// redraw is how often the frame is drawn between answers, for a terminal that
// changed its size and for the time since the last answer.
const redraw = 250 * time.Millisecond

// Screen shows frames.
type Screen interface {
	// Size is that of the screen now.
	Size() Size
	// Show replaces the frame that is there.
	Show(frame string) error
}

// Loop shows a gateway until it is told to stop.
type Loop struct {
	// Fetch asks the gateway. There is one call at a time, and Run waits for it.
	Fetch    func(context.Context) (Snapshot, error)
	Screen   Screen
	Keys     <-chan byte // the bytes that are typed; nil if there is no keyboard
	Style    Style
	Model    string        // as View.Model
	Interval time.Duration // between questions; one that is still open is not asked again
}

// answer is what came of a fetch.
type answer struct {
	snapshot Snapshot
	err      error
}

// Run starts with what was fetched already, and ends with the context, a q or
// Ctrl-C, or a screen that fails. An answer that fails is shown over the last
// good one, and the next is asked for as ever.
func (l *Loop) Run(ctx context.Context, first Snapshot) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ask, draw := time.NewTicker(l.Interval), time.NewTicker(redraw)
	defer ask.Stop()
	defer draw.Stop()

	var answers <-chan answer // to the question that is open; nil: none is
	keys := l.Keys
	view, answered, shown := View{Snapshot: first, Model: l.Model}, time.Now(), ""
	for {
		view.Silent = time.Since(answered)
		if frame := Draw(view, l.Screen.Size(), l.Style); frame != shown {
			if err := l.Screen.Show(frame); err != nil {
				return err
			}
			shown = frame
		}
		select {
		case <-ctx.Done():
			return nil
		case <-draw.C:
		case key, ok := <-keys:
			if isQuit(key) {
				return nil
			}
			if !ok {
				keys = nil
			}
		case <-ask.C:
			if answers == nil {
				answers = l.ask(ctx, &asking)
			}
		case a := <-answers:
			answers, view.Lost = nil, a.err
			if a.err == nil {
				view.Snapshot, answered = a.snapshot, time.Now()
			}
		}
	}
}

// ask asks in the background.
func (l *Loop) ask(ctx context.Context, asking *sync.WaitGroup) <-chan answer {
	answers := make(chan answer, 1)
	asking.Go(func() {
		s, err := l.Fetch(ctx)
		answers <- answer{s, err}
	})
	return answers
}

// isQuit knows q, and Ctrl-C and Ctrl-D of a terminal that hands them over.
func isQuit(key byte) bool { return key == 'q' || key == 'Q' || key == 3 || key == 4 }
