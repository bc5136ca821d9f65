package sla

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkMatch is one request among so many contracts, each of its tenants
// and model, and one for everybody.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		texts := []string{named("any", "")}
		for i := range n - 1 {
			texts = append(texts, named(fmt.Sprintf("c%d", i), fmt.Sprintf("tenants: [t%d], models: [m], headers: {x-workload: [chat]}", i)))
		}
		set := mustParse(b, texts...)
		for name, key := range map[string]Key{
			"hit":  {Tenant: "t1", Model: "m", ServiceTier: "auto", Header: headers("X-Workload", "chat")},
			"miss": {Tenant: "unknown", Model: "m", ServiceTier: "auto", Header: headers()},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					set.Match(key)
				}
			})
		}
	}
}

func BenchmarkTerms(b *testing.B) {
	c := mustParse(b, withObjectives(everything)).Contract("chat")
	header := headers(TTFTHeader, "250", TPOTHeader, "40")
	for name, header := range map[string]func(string) string{"plain": headers(), "tightened": header} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				terms, err := c.TightenBy(header)
				if err != nil {
					b.Fatal(err)
				}
				terms.Deadline(t0, 1000)
				terms.TPOTBudget()
			}
		})
	}
}

// BenchmarkLedger is of 100 instances under a contract of four objectives.
func BenchmarkLedger(b *testing.B) {
	l, c := testLedger(b, withObjectives(everything))
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprintf("gpu-%d", i)
		l.Record(t0, names[i], c, late)
	}
	at := t0.Add(time.Second)
	for name, run := range map[string]func(instance string){
		"Compliance": func(instance string) { l.Compliance(at, instance, "chat") },
		"Weight":     func(instance string) { l.Weight(at, instance, "chat") },
		"Record":     func(instance string) { at = at.Add(ms); l.Record(at, instance, c, good) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				run(names[i%100])
				i++
			}
		})
	}
}

// The hot path allocates nothing.
func TestNoAllocations(t *testing.T) {
	l, c := testLedger(t, withObjectives(everything))
	set := mustParse(t, precedenceFiles...)
	key := Key{Tenant: "x", Model: "m", ServiceTier: "flex", Header: headers("X-A", "2")}
	l.Record(t0, "a", c, good)
	none := headers()
	for name, run := range map[string]func(){
		"Match":      func() { set.Match(key) },
		"Compliance": func() { l.Compliance(t0, "a", "chat") },
		"Weight":     func() { l.Weight(t0, "a", "chat") },
		"Record":     func() { l.Record(t0, "a", c, good) },
		"Deadline": func() {
			terms, _ := c.TightenBy(none)
			terms.Deadline(t0, 1000)
		},
	} {
		if n := testing.AllocsPerRun(100, run); n > 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
