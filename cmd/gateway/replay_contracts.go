package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// aboutContracts says what of some sets of contracts a replay of these
// requests can't show: what is not replayed, and who is not among them.
func aboutContracts(src trace.Source, sets ...*sla.Set) ([]string, error) {
	sets = slices.DeleteFunc(sets, func(s *sla.Set) bool { return s == nil })
	if len(sets) == 0 {
		return nil, nil
	}
	var out []string
	if slices.ContainsFunc(sets, leavesOut) {
		out = append(out, "note: at_risk and visible_limit are not replayed: who can't be in time is shed")
	}
	t, err := trafficUnder(src.First(looked), sets)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		for _, c := range set.Contracts() {
			if warning := t.idle(c); warning != "" && !slices.Contains(out, warning) {
				out = append(out, warning)
			}
		}
	}
	return out, nil
}

// leavesOut reports whether the gateway would do something else than a replay
// for requests at risk: a replay lets them wait, then sheds them.
func leavesOut(set *sla.Set) bool {
	more := func(a sla.Action) bool { return a.Do != sla.Wait && a.Do != sla.Shed }
	return slices.ContainsFunc(set.Contracts(), func(c *sla.Contract) bool {
		sheds := slices.ContainsFunc(c.Spec.AtRisk, func(a sla.Action) bool { return a.Do == sla.Shed })
		return !sheds || c.Spec.VisibleLimit > 0 || slices.ContainsFunc(c.Spec.AtRisk, more)
	})
}

// traffic is who sends the requests, and which contracts hold for them.
type traffic struct {
	requests        int
	tenants, models []string // in the order in which they come
	held            map[*sla.Contract]bool
}

func trafficUnder(src trace.Source, sets []*sla.Set) (traffic, error) {
	t := traffic{held: map[*sla.Contract]bool{}}
	add := func(names *[]string, name string) {
		if name != "" && !slices.Contains(*names, name) {
			*names = append(*names, name)
		}
	}
	for r, err := range src {
		if err != nil {
			return t, err
		}
		t.requests++
		add(&t.tenants, r.Tenant)
		add(&t.models, r.Model)
		for _, set := range sets {
			t.held[set.Match(sla.Key{Tenant: r.Tenant, Model: r.Model})] = true
		}
	}
	return t, nil
}

// idle warns of a contract that holds for none of the requests.
func (t *traffic) idle(c *sla.Contract) string {
	m := &c.Spec.Match
	switch {
	case t.held[c] || t.requests == 0:
		return ""
	case len(m.Headers)+len(m.ServiceTier) > 0:
		return fmt.Sprintf("contract %s asks for a header or a service tier, which traffic does not record: it matches nothing here", c.Name())
	}
	var why []string
	differ := func(what string, wanted, there []string) {
		if len(wanted) > 0 {
			why = append(why, fmt.Sprintf("its %s are %s, the traffic's are %s", what, firstFew(wanted), cmp.Or(firstFew(there), "not recorded")))
		}
	}
	differ("tenants", m.Tenants, t.tenants)
	differ("models", m.Models, t.models)
	if len(why) == 0 {
		why = append(why, "others go before it")
	}
	return fmt.Sprintf("warning: contract %s holds for none of %s; %s", c.Name(), count(t.requests, "request"), strings.Join(why, "; "))
}

// firstFew names the first five.
func firstFew(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
