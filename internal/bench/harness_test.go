package bench

import (
	"context"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/memnet"
)

// tick is a millisecond.
const tick = time.Millisecond

// against runs a plan against a backend in virtual time.
func against(t *testing.T, backend *fakellm.Backend, plan Plan, check func(t *testing.T, run *Run, err error)) {
	t.Helper()
	inBubble(t, backend, func(t *testing.T, transport *http.Transport) {
		run, err := measured(t, plan, transport)
		check(t, run, err)
	})
}

// inBubble serves a backend at http://target in virtual time.
func inBubble(t *testing.T, backend *fakellm.Backend, test func(*testing.T, *http.Transport)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		l, err := network.Listen("target:80")
		if err != nil {
			t.Fatal(err)
		}
		server := fakellm.Serve(l, backend)
		defer server.Close()
		transport := &http.Transport{DialContext: network.DialContext, MaxIdleConnsPerHost: 1000}
		defer transport.CloseIdleConnections()
		test(t, transport)
	})
}

func measured(t *testing.T, plan Plan, transport *http.Transport) (*Run, error) {
	t.Helper()
	plan.Target = "http://target"
	if plan.Models == nil {
		plan.Models = []string{"m"}
	}
	b, err := New(plan, nil, transport)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	return b.Run(context.Background())
}

// good fails the test on an error of the run.
func good(check func(*testing.T, *Run)) func(*testing.T, *Run, error) {
	return func(t *testing.T, run *Run, err error) {
		if err != nil {
			t.Fatal(err)
		}
		check(t, run)
	}
}

// near leaves room for rounding.
func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*math.Abs(want) }

// reply gives the n-th request the n-th script, and the last to all others.
func reply(scripts ...fakellm.Script) *fakellm.Backend {
	return &fakellm.Backend{Script: fakellm.Sequence(scripts...)}
}

// transportTest gives a test a bench with a key.
func transportTest(test func(*testing.T, *Bench)) func(*testing.T, *http.Transport) {
	return func(t *testing.T, transport *http.Transport) {
		b, err := New(Plan{Target: "http://target", Models: []string{"m"}}, http.Header{"Authorization": {"Bearer key"}}, transport)
		if err != nil {
			t.Fatal(err)
		}
		test(t, b)
	}
}
