package backends_test

import (
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

func standby(s *backends.Spec) { s.Standby, s.WarmUp = true, true }

// called is the name of who is called in; "" for nobody.
func called(p *backends.Pool, seconds float64) string {
	if b := p.CallIn(after(seconds)); b != nil {
		return b.Name
	}
	return ""
}

func warm(t *testing.T, b *backends.Backend, seconds float64, why string) {
	t.Helper()
	w := b.BeginWarmUp(after(seconds))
	if w == nil || w.Why != why {
		t.Fatalf("warm-up %+v of %s, which is %s", w, b.Name, b.Readiness())
	}
	w.End(after(seconds), backends.WarmedUp)
}

// One that stands by gets nothing until it was called in and is warm, and
// nothing once it is not wanted any more.
func TestStandby(t *testing.T) {
	p := testPool(spec("a", warmed), spec("b", standby))
	a, b := p.Backends[0], p.Backends[1]
	want := func(seconds float64, names string, r backends.Readiness) {
		t.Helper()
		if got := candidates(t, p, after(seconds)); got != names || b.Readiness() != r {
			t.Fatalf("after %v s %q may be chosen and b is %s, want %q and %s", seconds, got, b.Readiness(), names, r)
		}
	}
	probe(b, 0, "-+") // it is new
	want(2, "a", backends.StandingBy)
	if w := b.BeginWarmUp(after(2)); w != nil {
		t.Fatal("it is warmed up before anybody wants it")
	}
	if got := called(p, 3); got != "b" {
		t.Fatalf("%q is called in", got)
	}
	want(3, "a", backends.Cold)
	warm(t, b, 4, backends.WhyCalled)
	want(4, "ab", backends.Ready)
	if got := called(p, 600); got != "" {
		t.Fatalf("%q is called in again", got)
	}
	if b.Dismiss(after(600+599), 10*time.Minute) || a.Dismiss(after(1e6), 0) {
		t.Fatal("dismissed too early, or by no right")
	}
	running := claim(t, p, after(1200), "b")
	if !b.Dismiss(after(1200), 10*time.Minute) || b.Dismiss(after(1200), 0) {
		t.Fatal("not dismissed, or twice")
	}
	want(1200, "a", backends.StandingBy)
	running.End(after(1300), backends.Outcome{Class: backends.Served})
	if got := called(p, 1300); got != "b" {
		t.Fatalf("%q is called in", got)
	}
	warm(t, b, 1301, backends.WhyCalled) // again: what it had cached may be gone
}

// One is called in at a time, and the next when it has had the time to help.
func TestCallInOneByOne(t *testing.T) {
	p := testPool(spec("a"), spec("b", standby, draining), spec("c", standby), spec("d", standby), spec("e", standby))
	probe(backend(p, "c"), 0, "---")
	for _, step := range []struct {
		at   float64
		want string
	}{{10, "d"}, {10, ""}, {50, ""}} { // it is not warm before 60
		if got := called(p, step.at); got != step.want {
			t.Errorf("%v s: %q is called in, want %q", step.at, got, step.want)
		}
	}
	warm(t, backend(p, "d"), 60, backends.WhyCalled)
	probe(backend(p, "c"), 61, "++")
	for _, step := range []struct {
		at   float64
		want string
	}{{70, "c"}, {71, ""}} {
		if got := called(p, step.at); got != step.want {
			t.Errorf("%v s: %q is called in, want %q", step.at, got, step.want)
		}
	}
	warm(t, backend(p, "c"), 75, backends.WhyCalled)
	if got := called(p, 99.9); got != "" {
		t.Errorf("%q is called in although one came just now", got)
	}
	if got := called(p, 100); got != "e" {
		t.Errorf("%q is called in, want e", got)
	}
}

// One that is ejected is not called in, nor is another kept waiting for it; once
// its time is over it can come again.
func TestNoEjectedIsCalledIn(t *testing.T) {
	p := testPool(spec("a"), spec("b", standby), spec("c", standby))
	b := backend(p, "b")
	if got := called(p, 0); got != "b" {
		t.Fatalf("%q is called in", got)
	}
	warm(t, b, 1, backends.WhyCalled)
	eject(t, p, after(2), "b")
	if got := called(p, 3); got != "c" {
		t.Errorf("%q is called in beside b, which is ejected; want c", got)
	}
	warm(t, backend(p, "c"), 4, backends.WhyCalled)
	if !b.Dismiss(after(4), 0) || b.Status(after(4)).State != backends.Ejected {
		t.Fatalf("b is %s", b.Status(after(4)).State)
	}
	if got := called(p, 5); got != "" {
		t.Errorf("%q is called in, which is ejected", got)
	}
	if got := called(p, 500); got != "b" {
		t.Errorf("%q is called in, want b", got)
	}
}

// When nobody else is left, who stands by serves, and not those that are down
// beside it; they do when it is down as well.
func TestStandbyWhenNobodyIsLeft(t *testing.T) {
	p := testPool(spec("a"), spec("b", standby))
	probe(backend(p, "a"), 0, "---")
	if got := candidates(t, p, after(5)); got != "b" {
		t.Errorf("%q may be chosen", got)
	}
	probe(backend(p, "b"), 5, "---")
	if got := candidates(t, p, after(10)); got != "ab" {
		t.Errorf("with b down as well %q may be chosen", got)
	}
}

// Who stands by makes no room for ejections.
func TestStandbyIsNoHost(t *testing.T) {
	three := backends.HealthRules{MinHosts: 3}
	p := testPool(spec("a", rules(three)), spec("b", rules(three)), spec("c", standby, rules(three)))
	for range 10 {
		if e := end(t, p, t0, "a", backends.Fault); e.Ejected {
			t.Fatal("a is ejected of two, where it takes three")
		}
	}
}
