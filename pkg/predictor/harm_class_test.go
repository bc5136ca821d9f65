package predictor_test

import (
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// due is a streamed prompt of 100 tokens whose whole answer is due so many
// seconds after it is sent.
func due(seconds float64) predictor.Work {
	w := prompt(100)
	w.E2E = span(seconds)
	return w
}

// harmed is how many answers a prompt of so many tokens harms at the end of a script.
func harmed(at float64, w predictor.Work, events ...event) int {
	s := play(plain, events...)
	return s.pool.Predict(after(at), s.on, w).Harmed
}

// TestHarmOfWholeAnswers: an answer is taken to have 200 tokens, 0.1 s each. One
// that began at 0.21 s ends at about 20.1 s; behind a second of somebody else's
// prompt at 21.1 s. One that is lost anyway can't be harmed.
func TestHarmOfWholeAnswers(t *testing.T) {
	running := func(e2e float64) []event { return history(send(0, "a", due(e2e)), token(0.21, "a")) }
	pending := func(e2e float64) []event { return history(send(0, "a", due(e2e))) }
	for name, row := range map[string]struct {
		events []event
		tokens int
		want   int
	}{
		"running, time enough":              {running(21.5), 1000, 0},
		"running, pushed past it":           {running(20.6), 1000, 1},
		"running, by a prompt that is long": {running(21.5), 2000, 1},
		"running, not by a short one":       {running(20.6), 100, 0},
		"running, lost anyway":              {running(19.5), 1000, 0},
		"running, nothing promised":         {running(0), 1000, 0},
		"pending, time enough":              {pending(21.8), 1000, 0},
		"pending, pushed past it":           {pending(20.8), 1000, 1},
		"pending, lost anyway":              {pending(19.8), 1000, 0},
		"pending, nothing promised":         {pending(0), 1000, 0},
		"two of three": {history(send(0, "a", due(20.6)), send(0, "b", due(60)), token(0.31, "a"), token(0.31, "b"),
			send(0.31, "c", due(20.8))), 1000, 2},
		"one that has ended":    {append(running(20.6), done(0.22, "a", predictor.Completed)), 1000, 0},
		"one whose client left": {append(pending(20.8), done(0.22, "a", predictor.Left)), 1000, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := harmed(0.23, prompt(row.tokens), row.events...); got != row.want {
				t.Errorf("%d harmed, want %d", got, row.want)
			}
		})
	}
}

// TestHarmOfTheLong: an answer that is longer than usual is taken to go on for a
// quarter of the usual length: of 280 tokens, once it has 400 after 40.3 s.
func TestHarmOfTheLong(t *testing.T) {
	for e2e, want := range map[float64]int{47: 0, 48: 1, 49: 0} { // its end would be after 47.3 s, or 48.3 s
		events := history(send(0, "a", due(e2e)), token(0.21, "a"), times(400, func(k int) event { return token(0.31+0.1*float64(k), "a") }))
		if got := harmed(40.22, prompt(1000), events...); got != want {
			t.Errorf("due after %v s: %d harmed, want %d", e2e, got, want)
		}
	}
}

// TestHarmIsNewOnly: as the promise of an answer grows, it is first lost anyway,
// then harmed, then safe; and the longer the prompt that comes, the more promises
// are harmed.
func TestHarmIsNewOnly(t *testing.T) {
	last := 0
	for _, tokens := range []int{0, 10, 300, 1000, 3000} {
		sequence, count := "", 0
		for tenths := range 150 {
			n := harmed(0.23, prompt(tokens), history(send(0, "a", due(15+float64(tenths)/10)), token(0.21, "a"))...)
			count += n
			if c := "-x"[n]; len(sequence) == 0 || sequence[len(sequence)-1] != c {
				sequence += string(c)
			}
		}
		if count > 0 && sequence != "-x-" || count == 0 && sequence != "-" {
			t.Errorf("%d tokens: %q", tokens, sequence)
		}
		if count < last {
			t.Errorf("%d tokens harm %d promises, fewer than a shorter prompt: %d", tokens, count, last)
		}
		if tokens == 1000 && (count < 9 || count > 11) {
			t.Errorf("a second more harms %d promises that are 0.1 s apart", count)
		}
		last = count
	}
}

// TestHarmByClass: an answer has 10 tokens after 0.9 s, and may take 0.15 s for
// each. Who matters as much, or more, may hold it up by a second: it can make up
// for that. For who matters less its next token may be the last.
func TestHarmByClass(t *testing.T) {
	for name, row := range map[string]struct {
		running, class int
		tokens, want   int
	}{
		"as critical":              {1, 1, 1000, 0},
		"more critical":            {1, 0, 1000, 0},
		"less critical":            {1, 2, 1000, 1},
		"far less critical":        {0, 9, 1000, 1},
		"less critical, but short": {1, 2, 500, 0}, // 0.9 + 0.5 + 0.1 s for 11 tokens
		"as critical, very long":   {1, 1, 12_000, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := prompt(100)
			w.TPOT, w.Class = 150*time.Millisecond, row.running
			events := history(send(0, "a", w), token(0.21, "a"), times(9, func(k int) event { return token(0.31+0.1*float64(k), "a") }))
			next := prompt(row.tokens)
			next.Class = row.class
			if got := harmed(1.12, next, events...); got != row.want {
				t.Errorf("%d harmed, want %d", got, row.want)
			}
		})
	}
}

// TestLessCriticalHarmsNoLess: a newcomer of a lower class is never less harm.
func TestLessCriticalHarmsNoLess(t *testing.T) {
	for gap := 100; gap < 400; gap += 7 {
		for tokens := 1; tokens < 10_000; tokens = tokens*3 + 1 {
			count := func(class int) int {
				w := prompt(100)
				w.TPOT, w.Class = time.Duration(gap)*time.Millisecond, 1
				next := prompt(tokens)
				next.Class = class
				return harmed(0.53, next, history(send(0, "a", w), token(0.21, "a"), token(0.31, "a"), token(0.41, "a"), token(0.51, "a"))...)
			}
			if same, lower := count(1), count(2); lower < same || count(0) != same {
				t.Errorf("%d ms, %d tokens: %d harmed by one of its class, %d by a lower one, %d by a higher one", gap, tokens, same, lower, count(0))
			}
		}
	}
}

// An answer in one piece is followed by the time since its first token should
// have come, whatever else was there.
func TestHarmOfOnePiece(t *testing.T) {
	for name, before := range map[string][]event{
		"alone":                 nil,
		"after a streamed one":  history(send(-30, "x", prompt(10)), token(-29.88, "x"), done(-29, "x", predictor.Left)),
		"beside one just begun": history(send(0, "x", prompt(10)), token(0.12, "x")),
	} {
		for e2e, want := range map[float64]int{19.5: 0, 20.6: 1, 22: 0} {
			w := due(e2e)
			w.Stream = false
			if got := harmed(0.4, prompt(1000), append(history(before...), send(0, "a", w))...); got != want {
				t.Errorf("%s, due after %v s: %d harmed, want %d", name, e2e, got, want)
			}
		}
	}
}
