package router

import (
	"math"
	"time"
)

// tenants is what each tenant was given lately, in prompt tokens that decay, so
// that one with many requests does not push the others out. The zero value is
// empty; it is bounded by forgetting who had little.
type tenants struct {
	used map[string]float64
	at   time.Time
}

const (
	// tenantMemory is the time over which what a tenant was given is forgotten.
	tenantMemory = 30 * time.Second
	// tenantSlack is by how many prompt tokens one tenant may be ahead of another
	// that waits.
	tenantSlack = 4000
)

// charge counts a request that was let in.
func (t *tenants) charge(now time.Time, req *Request) {
	if t.used == nil {
		t.used = map[string]float64{}
	}
	t.decay(now)
	t.used[req.Tenant] += float64(req.PromptTokens)
}

// decay lets time pass, once a second.
func (t *tenants) decay(now time.Time) {
	passed := now.Sub(t.at)
	if passed < time.Second {
		return
	}
	t.at = now
	keep := math.Exp(-passed.Seconds() / tenantMemory.Seconds())
	for name, tokens := range t.used {
		if tokens *= keep; tokens < 1 {
			delete(t.used, name)
			continue
		}
		t.used[name] = tokens
	}
}

// share is what tenants with requests among the held may have had.
func (t *tenants) share(now time.Time, held []*Ticket) float64 {
	t.decay(now)
	least := math.Inf(1)
	for _, k := range held {
		if !k.isLost(now) {
			least = min(least, t.used[k.req.Tenant])
		}
	}
	return least + tenantSlack
}

// within reports whether the ticket's tenant has had no more than that.
func (t *tenants) within(k *Ticket, share float64) bool { return t.used[k.req.Tenant] <= share }
