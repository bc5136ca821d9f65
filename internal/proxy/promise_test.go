package proxy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// noPromises is where nothing was promised.
type noPromises struct{}

func (noPromises) Arrived(time.Time, *sla.Contract) bool            { return false }
func (noPromises) FirstToken(time.Time, string, int, time.Duration) {}
func (noPromises) WarmUp(string)                                    {}
func (noPromises) Record(time.Time, string, *sla.Contract, sla.Outcome) (met, judged bool) {
	return false, false
}

// Of a client's word the router keeps little.
func TestLongTenant(t *testing.T) {
	for tenant, want := range map[string]string{"shop": "shop", strings.Repeat("x", 60_000): strings.Repeat("x", 64)} {
		x := &exchange{
			r:     &http.Request{Header: http.Header{"X-Tenant": {tenant}}},
			table: &Table{TenantHeader: "x-tenant", Contracts: &sla.Set{}}, req: &openai.Request{Model: "m"},
		}
		if bad := x.promise(); bad != nil || x.ask.Tenant != want {
			t.Errorf("of %d bytes %d are kept, %v", len(tenant), len(x.ask.Tenant), bad)
		}
	}
}
