package backends_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// after is t0 and some seconds.
func after(seconds float64) time.Time {
	return t0.Add(time.Duration(seconds * float64(time.Second)))
}

type option func(*backends.Spec)

func rules(r backends.HealthRules) option { return func(s *backends.Spec) { s.Health = r } }
func capped(n int) option                 { return func(s *backends.Spec) { s.MaxInFlight = n } }
func draining(s *backends.Spec)           { s.Draining = true }

func spec(name string, options ...option) backends.Spec {
	s := backends.Spec{Name: name, URL: &url.URL{Scheme: "http", Host: name + ":8000"}}
	for _, o := range options {
		o(&s)
	}
	return s
}

// specs are engines of the given names with the same options.
func specs(names string, options ...option) []backends.Spec {
	var out []backends.Spec
	for _, name := range names {
		out = append(out, spec(string(name), options...))
	}
	return out
}

func testPool(specs ...backends.Spec) *backends.Pool {
	return backends.NewFleet().Pools([]backends.PoolSpec{{Model: "m", Backends: specs}})[0]
}

// backend is the pool's backend of that name.
func backend(p *backends.Pool, name string) *backends.Backend {
	for _, b := range p.Backends {
		if b.Name == name {
			return b
		}
	}
	panic("no backend " + name)
}

// named chooses a backend by name and fails if it is no candidate.
func named(t testing.TB, name string) func([]backends.Candidate) int {
	return func(c []backends.Candidate) int {
		for i := range c {
			if c[i].Backend.Name == name {
				return i
			}
		}
		t.Fatalf("%s is no candidate of %d", name, len(c))
		return 0
	}
}

func first([]backends.Candidate) int { return 0 }

// claim claims the backend of that name.
func claim(t testing.TB, p *backends.Pool, now time.Time, name string) *backends.Claim {
	t.Helper()
	c, err := p.Claim(now, backends.Work{PromptTokens: 100}, nil, named(t, name))
	if err != nil {
		t.Fatal(err)
	}
	if c.Backend.Name != name {
		t.Fatalf("claimed %s, want %s", c.Backend.Name, name)
	}
	return c
}

// end claims the backend of that name and ends at once.
func end(t testing.TB, p *backends.Pool, now time.Time, name string, class backends.Class) backends.Ejection {
	t.Helper()
	return claim(t, p, now, name).End(now, backends.Outcome{Class: class})
}

// eject fails the backend until it is ejected, under the default rules.
func eject(t testing.TB, p *backends.Pool, now time.Time, name string) {
	t.Helper()
	for range 4 {
		if e := end(t, p, now, name, backends.Fault); e.Ejected {
			t.Fatalf("%s ejected too early: %+v", name, e)
		}
	}
	if e := end(t, p, now, name, backends.Fault); !e.Ejected || e.Reason != "consecutive" {
		t.Fatalf("%s not ejected: %+v", name, e)
	}
}

// candidates are the names that may be chosen now, in order, without probes.
func candidates(t testing.TB, p *backends.Pool, now time.Time) string {
	t.Helper()
	names := ""
	// A claim with somebody tried never probes.
	c, err := p.Claim(now, backends.Work{}, []*backends.Backend{stranger}, func(c []backends.Candidate) int {
		for i := range c {
			names += c[i].Backend.Name
		}
		return 0
	})
	if err == nil {
		c.End(now, backends.Outcome{Class: backends.Dropped})
	}
	return names
}

var stranger = testPool(spec("stranger")).Backends[0]

func wantState(t testing.TB, b *backends.Backend, now time.Time, want backends.State) {
	t.Helper()
	if got := b.Status(now).State; got != want {
		t.Fatalf("%s is %s after %v, want %s", b.Name, got, now.Sub(t0), want)
	}
}
