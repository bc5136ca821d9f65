package app

import (
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/rollback"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// The configuration knows every policy, and which of them predict.
func TestPolicies(t *testing.T) {
	for _, name := range router.PolicyNames() {
		text := "models: [{name: m, policy: " + name + ", backends: [{url: http://a}]}]\n"
		if _, err := config.Parse("x", []byte(text), "", nil); err != nil {
			t.Error(err)
		}
		_, err := config.Parse("x", []byte(text+"prediction: {enabled: false}"), "", nil)
		if (err != nil) != router.Foresees(name) {
			t.Errorf("%s without predictions: %v", name, err)
		}
	}
}

// An engine that was started again is a cause to be looked at; one that is new or
// was called in is not.
func TestWarmUpsThatAreCauses(t *testing.T) {
	for why, want := range map[string]int{backends.WhyRestarted: 1, backends.WhyReturned: 1, backends.WhyNew: 0, backends.WhyCalled: 0} {
		c := &causes{history: &rollback.History{}}
		c.restarted(&backends.Backend{}, backends.Warming, why)
		if got := c.history.Between(time.Time{}, time.Now()); len(got) != want {
			t.Errorf("%s: %v", why, got)
		}
	}
}
