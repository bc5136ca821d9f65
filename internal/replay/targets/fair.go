package targets

import (
	"fmt"
	"math"
	"sort"
	"strings"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// ranks are a contract that is kept first and one that gives way.
const ranks = `
apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: gold}
spec:
  match: {tenants: [gold]}
  objectives:
    - {metric: ttft, percentile: 95, threshold: {base: 400ms, per_token: 250us}}
    - {metric: tpot, percentile: 95, threshold: 80ms}
  criticality: critical
---
apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: bronze}
spec:
  match: {tenants: [bronze]}
  objectives:
    - {metric: ttft, percentile: 95, threshold: {base: 400ms, per_token: 250us}}
    - {metric: tpot, percentile: 95, threshold: 80ms}
  criticality: sheddable
`

// priority is a critical contract beside one that may be shed, past capacity.
func (b *bench) priority() (Table, error) {
	t := Table{
		Title:   "a critical contract (30 % of the requests) beside a sheddable one, past capacity",
		Columns: []string{"trace", "load", "contract", "requests", "met", "held", "held p99 ms", "shed", "for"},
	}
	tenants := []trace.Weighted{{Name: "gold", Weight: 3}, {Name: "bronze", Weight: 7}}
	return t, b.contested(&t, ranks, tenants, func(of string, load float64, by map[string]*fate) {
		t.atLeast(fmt.Sprintf("%s at %g: share met of gold", of, load), "%.3f", by["gold"].met(), target)
	})
}

// tenants is one that floods beside a quiet one, under the same contract.
func (b *bench) tenants() (Table, error) {
	t := Table{
		Title:   "a tenant that floods (90 % of the requests) beside a quiet one, past capacity",
		Columns: []string{"trace", "load", "tenant", "requests", "met", "held", "held p99 ms", "shed", "for"},
	}
	tenants := []trace.Weighted{{Name: "quiet", Weight: 1}, {Name: "flood", Weight: 9}}
	return t, b.contested(&t, promise, tenants, func(of string, load float64, by map[string]*fate) {
		t.atLeast(fmt.Sprintf("%s at %g: share met of quiet over flood's", of, load), "%.2f", by["quiet"].met()/by["flood"].met(), 0.95)
	})
}

// fate is what became of a tenant's requests, of all seeds.
type fate struct {
	requests, kept int
	held           []float64
	shed           map[string]int
}

func (f *fate) met() float64 {
	if f == nil || f.requests == 0 {
		return math.NaN()
	}
	return float64(f.kept) / float64(f.requests)
}

// contested runs two tenants past capacity.
func (b *bench) contested(t *Table, contracts string, among []trace.Weighted, judge func(of string, load float64, by map[string]*fate)) error {
	set, err := sla.Parse(sla.Source{Name: "targets", Data: []byte(contracts)})
	if err != nil {
		return err
	}
	for _, name := range []string{"conv", "mooncake"} {
		c, err := b.mixed(name)
		if err != nil {
			return err
		}
		capacity, err := c.goodput(ours, 1)
		if err != nil {
			return err
		}
		dealt := &cell{Options: c.Options, fleet: c.fleet, trace: c.trace, engines: c.engines, contracts: set,
			source: func(seed uint64) trace.Source { return c.source(seed).Tenants(among, seed) }}
		results := make([]map[string]*fate, 2)
		at := []float64{1.5, 2}
		err = b.each(len(at), func(i int) (err error) {
			results[i], err = dealt.fates(at[i] * capacity.Multiplier)
			return err
		})
		if err != nil {
			return err
		}
		for i, load := range at {
			for _, w := range among {
				f := results[i][w.Name]
				t.row(name, fmt.Sprintf("%g", load), w.Name, fmt.Sprint(f.requests), share(f.met()), fmt.Sprint(len(f.held)),
					ms(report.Describe(f.held).P99), fmt.Sprint(f.sheds()), f.reasons())
			}
			judge(name, load, results[i])
		}
	}
	return nil
}

func (c *cell) fates(rate float64) (map[string]*fate, error) {
	by := map[string]*fate{}
	for _, seed := range c.seeds() {
		_, err := c.watch(c.config(ours), rate, seed, func(s *report.Sample, o *replay.Outcome) {
			f := by[o.Request.Tenant]
			if f == nil {
				f = &fate{shed: map[string]int{}}
				by[o.Request.Tenant] = f
			}
			f.add(s)
		})
		if err != nil {
			return nil, err
		}
	}
	for _, f := range by {
		sort.Float64s(f.held)
	}
	return by, nil
}

func (f *fate) add(s *report.Sample) {
	f.requests++
	if s.Objective.Met(s) {
		f.kept++
	}
	if s.Held > 0 {
		f.held = append(f.held, s.Held.Seconds()*1e3)
	}
	if s.Shed() {
		f.shed[strings.TrimPrefix(s.Reason, report.Shed+"_")]++
	}
}

func (f *fate) sheds() (n int) {
	for _, k := range f.shed {
		n += k
	}
	return n
}

func (f *fate) reasons() string {
	var parts []string
	for reason, n := range f.shed {
		parts = append(parts, fmt.Sprintf("%s %d", reason, n))
	}
	sort.Strings(parts)
	return strings.Join(parts, ", ")
}
