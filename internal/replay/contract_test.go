package replay_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// contract is one of one tenant.
func contract(tenant, criticality, ttft string) string {
	return fmt.Sprintf(`---
apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: %[1]s}
spec:
  match: {tenants: [%[1]s]}
  criticality: %[2]s
  objectives: [{metric: ttft, percentile: 95, threshold: %[3]s}]
`, tenant, criticality, ttft)
}

func set(t testing.TB, text ...string) *sla.Set {
	t.Helper()
	s, err := sla.Parse(sla.Source{Name: "test", Data: []byte(strings.Join(text, ""))})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// crowd is a burst from tenants in turn, more than one engine can take at once.
func crowd(n int, tenants ...string) trace.Source {
	all := many(n, 5*time.Millisecond, 800, 20)
	for i := range all {
		all[i].Tenant = tenants[i%len(tenants)]
	}
	return trace.Of(all...)
}

// Those of a critical contract are let in before the others.
func TestCriticalContractsGoFirst(t *testing.T) {
	t.Parallel()
	c := replay.Config{Engines: fleet(plain), Policy: router.Headroom, Admission: &router.Admission{},
		Contracts: set(t, contract("gold", "critical", "8s"), contract("bronze", "sheddable", "8s"))}
	outcomes, _ := run(t, c, crowd(60, "bronze", "gold"))
	held := map[string]time.Duration{}
	for _, o := range outcomes {
		if o.Contract == nil || o.Contract.Name() != o.Request.Tenant {
			t.Fatalf("request of %s is under %s", o.Request.Tenant, o.Contract.Name())
		}
		held[o.Request.Tenant] += o.Held
	}
	if held["bronze"] < 2*held["gold"] || held["bronze"] == 0 {
		t.Errorf("held %v in all; want bronze to wait far longer", held)
	}
}

// What is shed says why, and counts by contract.
func TestShedIsCountedByReason(t *testing.T) {
	t.Parallel()
	one := replay.Trial{
		Source: func(uint64) trace.Source { return crowd(100, "gold", "bronze") },
		Variants: []replay.Variant{{Name: "v", Config: replay.Config{Engines: fleet(plain), Policy: router.Headroom, Admission: &router.Admission{},
			Contracts: set(t, contract("gold", "critical", "1s"), contract("bronze", "sheddable", "300ms"))}}},
	}
	runs, _, _, err := one.Compare()
	if err != nil {
		t.Fatal(err)
	}
	r := runs[0]
	if r.All.Shed == 0 || r.All.Refused != 0 || r.Reasons["shed_deadline"] != r.All.Shed || r.Held.Count == 0 || r.Prediction == nil {
		t.Errorf("shed %d, refused %d, reasons %v, held %+v, predictions %+v", r.All.Shed, r.All.Refused, r.Reasons, r.Held, r.Prediction)
	}
	if len(r.ByContract) != 2 || r.ByContract[0].Name != "bronze" || r.ByContract[0].Shed["shed_deadline"] == 0 {
		t.Fatalf("by contract %+v", r.ByContract)
	}
	a := r.ByContract[0].Objectives[0]
	if a.Name != "P95 TTFT ≤ 300ms" || a.Target != 0.95 || a.Judged != 50 || a.Share != r.ByContract[0].Met || a.Kept() {
		t.Errorf("bronze's objective %+v, met %v", a, r.ByContract[0].Met)
	}
}

func TestContractsAreDeterministic(t *testing.T) {
	t.Parallel()
	c := replay.Config{Engines: fleet(plain, slow()), Policy: router.Headroom, Admission: &router.Admission{}, Gateways: 2,
		Contracts: set(t, contract("gold", "critical", "400ms"), contract("bronze", "sheddable", "300ms"))}
	first, _ := run(t, c, crowd(80, "gold", "bronze", "bronze"))
	again, _ := run(t, c, crowd(80, "gold", "bronze", "bronze"))
	for i := range first {
		first[i].Foreseen, again[i].Foreseen = nil, nil
	}
	if !reflect.DeepEqual(first, again) {
		t.Error("the same replay came out otherwise")
	}
}

func whatIf(old, now *sla.Set) replay.WhatIf {
	return replay.WhatIf{
		Config: replay.Config{Engines: fleet(plain, slow()), Policy: router.Headroom, Admission: &router.Admission{}},
		Prices: []float64{2, 1}, Old: old, New: now, Seeds: 2,
		Source: func(uint64) trace.Source { return crowd(120, "gold", "bronze") },
	}
}

// The same contracts change nothing.
func TestWhatIfOfTheSame(t *testing.T) {
	t.Parallel()
	same := set(t, contract("gold", "critical", "400ms"), contract("bronze", "sheddable", "300ms"))
	changes, stopped, err := whatIf(same, same).Compare()
	if err != nil || stopped || len(changes) != 3*5+2 {
		t.Fatalf("%d changes, stopped %v, error %v", len(changes), stopped, err)
	}
	for _, c := range changes {
		moved := c.What == "moved to another engine"
		if c.Old != c.New || c.Low != 0 || c.High != 0 || c.Sure() || moved && c.New != 0 {
			t.Errorf("%+v", c)
		}
	}
}

// Who gives way to gold is shed and moved, and gold meets more.
func TestWhatIf(t *testing.T) {
	t.Parallel()
	old := set(t, contract("gold", "sheddable", "900ms"), contract("bronze", "sheddable", "900ms"))
	now := set(t, contract("gold", "critical", "900ms"), contract("bronze", "sheddable", "500ms"))
	changes, _, err := whatIf(old, now).Compare()
	if err != nil {
		t.Fatal(err)
	}
	find := func(of, what string) report.Change {
		for _, c := range changes {
			if c.Of == of && strings.HasPrefix(c.What, what) {
				return c
			}
		}
		t.Fatalf("no %s of %s in %+v", what, of, changes)
		return report.Change{}
	}
	if c := find("gold", "met the new"); c.New <= c.Old || c.N != 120 {
		t.Errorf("gold gains nothing: %+v", c)
	}
	met, missed := find("gold", "met the new"), find("gold", "missed the new")
	if diff := met.New + missed.New - 1; diff > 1e-9 || diff < -1e-9 {
		t.Errorf("met and missed are no whole: %v, %v", met.New, missed.New)
	}
	if c := find("bronze", "shed"); c.New <= c.Old {
		t.Errorf("bronze does not give way: %+v", c)
	}
	if c := find("all", "moved"); c.New <= 0 || c.Old != 0 {
		t.Errorf("nothing moved: %+v", c)
	}
	if c := find("all", "cost of the time"); c.New <= 0 || c.N != 2 {
		t.Errorf("no cost: %+v", c)
	}
}

// Without old contracts only the new ones judge.
func TestWhatIfOfNothing(t *testing.T) {
	t.Parallel()
	w := whatIf(nil, set(t, contract("gold", "critical", "400ms")))
	changes, _, err := w.Compare()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if c.What == "met the old contracts" || c.What == "met the new contracts" && c.N != 120 {
			t.Errorf("%+v", c)
		}
	}
	w.Config.Stop = func() bool { return true }
	if _, stopped, err := w.Compare(); !stopped || err != nil {
		t.Errorf("stopped %v, error %v", stopped, err)
	}
}
