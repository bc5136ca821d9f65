package app

import (
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// The counters of outcomes and the ledger judge alike.
func TestJudgeAsLedger(t *testing.T) {
	set, err := sla.Parse(sla.Source{Name: "all.yaml", Data: []byte(`
apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: all}
spec:
  objectives:
    - {metric: ttft, percentile: 95, threshold: {base: 100ms, per_token: 1ms}}
    - {metric: tpot, percentile: 95, threshold: 20ms}
    - {metric: e2e, percentile: 95, threshold: 1s}
    - {metric: availability, target: 99%}
`)})
	if err != nil {
		t.Fatal(err)
	}
	c, now := set.Contract("all"), time.Unix(1_000_000, 0)
	times := []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 21 * time.Millisecond, 110 * time.Millisecond, 111 * time.Millisecond, time.Second, time.Second + 1}
	for _, end := range []sla.End{sla.Served, sla.Failed, sla.Refused, sla.Left} {
		for _, ttft := range times {
			for _, e2e := range times {
				for _, tpot := range times {
					out := sla.Outcome{End: end, PromptTokens: 10, TTFT: ttft, E2E: e2e, TPOT: tpot}
					ledger := sla.NewLedger(set, sla.Options{})
					ledger.Record(now, "a", c, out)
					status, _ := ledger.Status(now, "all")
					for i, o := range status.Objectives {
						within, counts := judge(&c.Spec.Objectives[i], &out)
						if counts != (o.Samples == 1) || counts && within != (o.Missed == 0) {
							t.Fatalf("%s of %+v: %v, %v; the ledger has %d judged, %d missed", c.Spec.Objectives[i].ID(), out, within, counts, o.Samples, o.Missed)
						}
					}
				}
			}
		}
	}
}

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
