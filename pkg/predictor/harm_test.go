package predictor_test

import (
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// crowding is a speed at which every sequence costs as much as the step.
var crowding = predictor.Speed{Fixed: 0.01, Step: 0.1, Token: 0.001, Seq: 0.1, Context: 1e-5, Square: 1e-12}

// TestTPOT is the gap between tokens once the request decodes with all that is there.
func TestTPOT(t *testing.T) {
	tests := map[string]struct {
		events []event
		want   float64
	}{
		"alone":                    {nil, 0.1 + 0.1 + 1e-5*(100+100)},
		"with one that is pending": {history(send(0, "a", prompt(300))), 0.1 + 2*0.1 + 1e-5*(400+100)},
		"with one that decodes":    {history(send(0, "a", prompt(300)), token(0.41, "a")), 0.1 + 2*0.1 + 1e-5*(401+100)},
		"with others":              {history(scrape(0, load(2, 0))), 0.1 + 3*0.1 + 1e-5*(2*600+200)},
		"once the other has left":  {history(send(0, "a", prompt(300)), done(0.2, "a", predictor.Left)), 0.1 + 0.1 + 1e-5*(100+100)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(crowding, test.events...)
			if got := s.pool.Predict(after(0.42), s.on, prompt(100)).TPOT.Seconds(); !near(got, test.want, 0.01) {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

// TestHarmed counts answers that keep their objective without the request and
// miss it with it.
func TestHarmed(t *testing.T) {
	running := func(tpot time.Duration, stream bool) []event {
		w := prompt(100)
		w.TPOT, w.Stream = tpot, stream
		return history(send(0, "a", w), token(0.21, "a"))
	}
	tests := map[string]struct {
		events []event
		want   int
	}{
		"nobody there":             {nil, 0},
		"no objective":             {running(0, true), 0},
		"room enough":              {running(500*time.Millisecond, true), 0},
		"would miss":               {running(250*time.Millisecond, true), 1},
		"has missed anyway":        {running(150*time.Millisecond, true), 0},
		"in one piece":             {running(250*time.Millisecond, false), 0},
		"ended":                    {append(running(250*time.Millisecond, true), done(0.22, "a", predictor.Completed)), 0},
		"still without its answer": {history(send(0, "a", predictor.Work{Prompt: 100, Uncached: 100, Stream: true, TPOT: time.Millisecond})), 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(crowding, test.events...)
			if got := s.pool.Predict(after(0.23), s.on, prompt(100)).Harmed; got != test.want {
				t.Errorf("%d, want %d", got, test.want)
			}
		})
	}
}
