package sla

import (
	"math"
	"testing"
	"time"
)

// fill records n requests of instance a, evenly over the ten seconds from at,
// of which bad are late, and returns the violations.
func fill(l *Ledger, c *Contract, at time.Time, n, bad int) []Violation {
	var all []Violation
	for i := range n {
		out := good
		if i < bad {
			out = late
		}
		if v := l.Record(at.Add(time.Duration(i)*10*time.Second/time.Duration(n)), "a", c, out); v != nil {
			all = append(all, *v)
		}
	}
	return all
}

func second(n int) time.Time { return t0.Add(time.Duration(n) * time.Second) }

func TestViolation(t *testing.T) {
	l, c := testLedger(t, with())
	var all []Violation
	for i := range 8 { // a window is judged when the next one begins
		all = append(all, fill(l, c, second(10*i), 20, 5)...)
	}
	if len(all) != 4 {
		t.Fatalf("%d violations: %+v", len(all), all)
	}
	first := all[0]
	if !first.At.Equal(second(30)) || !first.Since.Equal(t0) || first.Windows != 3 || first.Instance != "a" || first.Contract != "chat" ||
		first.Samples != 20 || first.Share != 0.75 || first.Weight != 0.5 || first.Objective.ID() != "ttft-p95" {
		t.Errorf("first: %+v", first)
	}
	for i, want := range []float64{0.5, 0.25, 0.125, 0.1} {
		if all[i].Weight != want || all[i].Windows != 3+i {
			t.Errorf("%d: weight %v after %d windows, want %v", i, all[i].Weight, all[i].Windows, want)
		}
	}
	if got := l.Weight(second(70), "a", "chat"); math.Abs(got-0.1) > 1e-12 {
		t.Errorf("weight %v", got)
	}
}

// What is missing from the weight halves every minute, and not during a window
// that is violated.
func TestWeightRecovers(t *testing.T) {
	l, c := testLedger(t, with())
	expect := func(at time.Time, want float64) {
		t.Helper()
		if got := l.Weight(at, "a", "chat"); math.Abs(got-want) > 1e-9 {
			t.Errorf("after %v: weight %v, want %v", at.Sub(t0), got, want)
		}
	}
	expect(t0, 1)
	for i := range 3 {
		fill(l, c, second(10*i), 20, 5)
	}
	expect(second(29), 1) // the third is not over
	fill(l, c, second(30), 20, 0)
	expect(second(30), 0.5)
	expect(second(90), 0.75)
	expect(second(150), 0.875)
	fill(l, c, second(150), 20, 5)
	fill(l, c, second(160), 20, 0)
	expect(second(160), 0.875)
	expect(second(220), 0.9375)
	if got := l.Weight(t0, "other", "chat"); got != 1 {
		t.Errorf("another instance has %v", got)
	}
}

func TestWindows(t *testing.T) {
	for _, row := range []struct {
		name string
		run  func(l *Ledger, c *Contract) []Violation
		want int
	}{
		{"met between", func(l *Ledger, c *Contract) (all []Violation) {
			for i := range 8 {
				all = append(all, fill(l, c, second(10*i), 20, 5*(i%3))...)
			}
			return all
		}, 0},
		{"at the target", func(l *Ledger, c *Contract) (all []Violation) {
			for i := range 8 {
				all = append(all, fill(l, c, second(10*i), 20, 1)...)
			}
			return all
		}, 0},
		// 4 in 10 s: three windows' worth make one that is judged.
		{"few samples", func(l *Ledger, c *Contract) (all []Violation) {
			for i := range 10 {
				all = append(all, fill(l, c, second(10*i), 4, 4)...)
			}
			return all
		}, 1},
		{"too few samples", func(l *Ledger, c *Contract) (all []Violation) {
			for i := range 60 {
				all = append(all, fill(l, c, second(10*i), 1, 1)...)
			}
			return all
		}, 0},
		{"a long silence between", func(l *Ledger, c *Contract) (all []Violation) {
			for i := range 4 {
				all = append(all, fill(l, c, second(200*i), 20, 20)...)
			}
			return all
		}, 0},
		{"one slow phase", func(l *Ledger, c *Contract) (all []Violation) {
			for i := range 5 {
				all = append(all, fill(l, c, second(10*i), 20, 20*(i/2%2))...)
			}
			return all
		}, 0},
	} {
		l, c := testLedger(t, with())
		if got := row.run(l, c); len(got) != row.want {
			t.Errorf("%s: %d violations: %+v", row.name, len(got), got)
		}
	}
}

// Law: the weight stays within [floor, 1], whatever happens.
func TestWeightLaws(t *testing.T) {
	l, c := testLedger(t, with())
	for i := range 300 {
		fill(l, c, second(10*i), 10+i%7, (i*i)%10)
		for s := range 10 {
			if got := l.Weight(second(10*i+s), "a", "chat"); !(got >= 0.1-1e-12 && got <= 1) {
				t.Fatalf("weight %v", got)
			}
		}
	}
}

// A window counts as violated when it tells of more than chance does: one or two
// late of a dozen do not.
func TestOneLateIsNoViolation(t *testing.T) {
	for _, row := range []struct {
		n, bad int
		want   bool
	}{{12, 1, false}, {12, 2, false}, {12, 3, true}, {19, 3, false}, {19, 4, true}, {100, 9, false}, {100, 10, true}} {
		l, c := testLedger(t, with())
		var all []Violation
		for i := range 4 {
			all = append(all, fill(l, c, second(10*i), row.n, row.bad)...)
		}
		if got := len(all) > 0; got != row.want {
			t.Errorf("%d of %d late in every window: violations %+v", row.bad, row.n, all)
		}
	}
}

// A row of violated windows is over once nothing was judged for a minute.
func TestRowEndsInSilence(t *testing.T) {
	l, c := testLedger(t, with())
	for i := range 4 {
		fill(l, c, second(10*i), 20, 10)
	}
	row := func(at time.Time) int {
		s, _ := l.Status(at, "chat")
		return s.Instances[0].Violated
	}
	if row(second(40)) != 3 || row(second(89)) != 3 || row(second(91)) != 0 {
		t.Errorf("violated in a row: %d, %d, %d", row(second(40)), row(second(89)), row(second(91)))
	}
}
