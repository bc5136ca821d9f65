package router_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// specs are n engines, each changed by the options.
func specs(n int, options ...func(i int, s *backends.Spec)) []backends.Spec {
	var out []backends.Spec
	for i := range n {
		name := fmt.Sprintf("b%d", i)
		s := backends.Spec{Name: name, URL: &url.URL{Scheme: "http", Host: name + ":8000"}}
		for _, o := range options {
			o(i, &s)
		}
		out = append(out, s)
	}
	return out
}

func testRouter(t testing.TB, policy string, specs ...backends.Spec) *router.Router {
	t.Helper()
	pool := backends.NewFleet().Pools([]backends.PoolSpec{{Model: "m", Backends: specs}})[0]
	return router.New(pool, policy, testPolicy(t, policy, 1))
}

func testPolicy(t testing.TB, name string, seed uint64) router.Policy {
	t.Helper()
	p, err := router.NewPolicy(name, rand.NewPCG(seed, 2))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustClaim(t testing.TB, r *router.Router, now time.Time, req *router.Request) *router.Lease {
	t.Helper()
	l, err := r.Claim(now, req, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
