package backends

import (
	"net/url"
	"testing"
	"time"
)

// TestEjectedOnce: of two outcomes that call for ejection at the same time,
// the second finds the backend out, and the deadline stays the later one even
// if its caller had read the clock earlier.
func TestEjectedOnce(t *testing.T) {
	t0 := time.Unix(1_900_000_000, 0)
	rules := HealthRules{Ejection: 10 * time.Second, MaxEjection: 10 * time.Second, MaxEjected: 1, MinHosts: 1}
	spec := Spec{Name: "a", URL: &url.URL{Scheme: "http", Host: "a"}, Health: rules}
	p := NewFleet().Pools([]PoolSpec{{Model: "m", Backends: []Spec{spec}}})[0]
	b := p.Backends[0]
	if !p.eject(t0.Add(5*time.Second), b) || p.eject(t0.Add(6*time.Second), b) || b.health.ejections != 1 {
		t.Errorf("ejected %d times, want once", b.health.ejections)
	}
	b.eject(t0) // as after a failed probe
	if want := t0.Add(15 * time.Second); !b.health.ejectedUntil.Equal(want) {
		t.Errorf("ejected until %v, want %v", b.health.ejectedUntil, want)
	}
}

// TestProbedOnce: of two models that find the same probation due, one sends
// the request.
func TestProbedOnce(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	p := NewFleet().Pools([]PoolSpec{{Model: "m", Backends: []Spec{{Name: "a", URL: &url.URL{Scheme: "http", Host: "a"}}}}})[0]
	b := p.Backends[0]
	if p.take(now, Work{}, b, true) != nil {
		t.Error("a probe of a backend in rotation")
	}
	b.eject(now)
	now = now.Add(time.Minute)
	if p.take(now, Work{}, b, true) == nil || p.take(now, Work{}, b, true) != nil {
		t.Error("not exactly one probe")
	}
}
