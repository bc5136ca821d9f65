package router_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// BenchmarkClaim is one attempt's bookkeeping: claim, first token, end, over
// backends that have load, samples, a penalty and a breaker.
func BenchmarkClaim(b *testing.B) {
	for _, policy := range router.PolicyNames() {
		for _, n := range []int{4, 100} {
			b.Run(fmt.Sprintf("%s/%d", policy, n), func(b *testing.B) {
				r := testRouter(b, policy, specs(n, func(i int, s *backends.Spec) {
					s.Health.BreakerFailures = 10
					s.Health.SlowStart = 30 * time.Second
				})...)
				now := t0
				req := &router.Request{Model: "m", PromptTokens: 500}
				for i := range 2 * n {
					l := mustClaim(b, r, now, req)
					l.FirstToken(now.Add(time.Duration(i) * time.Millisecond))
					if i%2 == 0 {
						l.Done(now, backends.Outcome{Class: backends.Overloaded})
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(time.Millisecond)
					l, err := r.Claim(now, req, nil)
					if err != nil {
						b.Fatal(err)
					}
					l.FirstToken(now)
					l.Done(now, backends.Outcome{})
				}
			})
		}
	}
}
