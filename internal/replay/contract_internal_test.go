package replay

import (
	"fmt"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

const twoContracts = `
apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: gold}
spec:
  match: {tenants: [gold]}
  criticality: critical
  objectives:
    - {metric: ttft, percentile: 95, threshold: {base: 150ms, per_token: 1ms}}
    - {metric: tpot, percentile: 90, threshold: 18ms}
    - {metric: e2e, percentile: 50, threshold: 900ms}
    - {metric: availability, target: 99%}
---
apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: bronze}
spec:
  match: {tenants: [bronze]}
  criticality: sheddable
  objectives: [{metric: e2e, percentile: 95, threshold: 1500ms}]
`

// urgentAsWell adds a sheddable contract that goes before bronze and bounds one
// request only.
const urgentAsWell = twoContracts + `---
apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: silver}
spec:
  match: {tenants: [silver]}
  criticality: sheddable
  priority: 1
  visible_limit: 700ms
  objectives: [{metric: availability, target: 99%}]
`

func contractSet(t testing.TB, text string) *sla.Set {
	t.Helper()
	set, err := sla.Parse(sla.Source{Name: "test", Data: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// contested is an engine that gets more than it can serve, from three tenants,
// of which one has no contract.
func contested(t testing.TB, n int) (Config, trace.Source) {
	params := engine.Params{Step: engine.StepModel{T0: 10 * time.Millisecond, Alpha: 100, Beta: 1000}, KVBlocks: 4096}
	var engines []Engine
	for i := range 2 {
		engines = append(engines, Engine{Name: fmt.Sprint("e", i), Model: "m", Params: params, Seed: uint64(i)})
	}
	var all []trace.Request
	for i := range n {
		all = append(all, trace.Request{
			At: time.Duration(i) * 35 * time.Millisecond, Model: "m", Tenant: [...]string{"gold", "bronze", "bronze", "other"}[i%4],
			PromptTokens: 300 + i*37%500, OutputTokens: 5 + i*53%50, Stream: i%5 > 0,
		})
	}
	return Config{Engines: engines, Policy: router.Headroom, Admission: &router.Admission{}, Contracts: contractSet(t, twoContracts), Seed: 1,
		Faults: []Fault{{At: 3 * time.Second, Engine: 1, Fault: engine.Fault{Kind: engine.Crash}, For: time.Second}}}, trace.Of(all...)
}

// The verdicts that a report counts are those that the gateway's ledger booked.
func TestLedgerIsFedAsTheReportCounts(t *testing.T) {
	t.Parallel()
	c, src := contested(t, 400)
	counted := map[string][]struct{ judged, broken int64 }{}
	ends := map[string]int{}
	w, err := newWorld(c.withDefaults(), func(o *Outcome) {
		ends[o.Reason]++
		if o.Contract == nil {
			return
		}
		rows := counted[o.Contract.Name()]
		for i, v := range kept(o) {
			if len(rows) <= i {
				rows = append(rows, struct{ judged, broken int64 }{})
			}
			if v != report.NotJudged {
				rows[i].judged++
			}
			if v == report.Broken {
				rows[i].broken++
			}
		}
		counted[o.Contract.Name()] = rows
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.run(src); err != nil {
		t.Fatal(err)
	}
	if ends[OK] < 100 || ends[OK] == 400 {
		t.Fatalf("ends %v; want many served, and some not", ends)
	}
	for name, rows := range counted {
		s, ok := w.gates[0].ledger.Status(w.clock(), name)
		if !ok || len(s.Instances) != 2 {
			t.Fatalf("%s: ledger knows %v, %d instances", name, ok, len(s.Instances))
		}
		for i, o := range s.Objectives {
			if o.Samples != rows[i].judged || o.Missed != rows[i].broken || o.Samples == 0 {
				t.Errorf("%s, %s: ledger has %d judged and %d missed, the report %d and %d", name, &o.Objective, o.Samples, o.Missed, rows[i].judged, rows[i].broken)
			}
		}
	}
}

// What the router is told of a request.
func TestPromise(t *testing.T) {
	t.Parallel()
	set := contractSet(t, urgentAsWell)
	for _, tc := range []struct {
		tenant     string
		own        report.Objective
		ttft, tpot time.Duration
		class      int
		contract   string
	}{
		{"gold", report.Objective{TTFT: time.Second}, 250 * time.Millisecond, 18 * time.Millisecond, 0, "gold"},
		{"bronze", report.Objective{TTFT: time.Second}, 1500 * time.Millisecond, 0, 3, "bronze"}, // due by its end
		{"silver", report.Objective{}, 700 * time.Millisecond, 0, 2, "silver"},
		{"other", report.Objective{TTFT: time.Second, TPOT: time.Millisecond}, time.Second, time.Millisecond, 1, ""},
		{"other", report.Objective{TTFT: 2 * time.Second, E2E: time.Second}, time.Second, 0, 1, ""},
		{"", report.Objective{}, 0, 0, 1, ""},
	} {
		r := trace.Request{Tenant: tc.tenant, PromptTokens: 100, TTFT: tc.own.TTFT, TPOT: tc.own.TPOT, E2E: tc.own.E2E}
		var ask router.Request
		promise(&ask, &r, set, match(set, &r))
		if ask.TTFT != tc.ttft || ask.TPOT != tc.tpot || ask.Class != tc.class || ask.Contract != tc.contract {
			t.Errorf("%s %+v: %v, %v, class %d, %q", tc.tenant, tc.own, ask.TTFT, ask.TPOT, ask.Class, ask.Contract)
		}
	}
}
