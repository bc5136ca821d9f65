package sla

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// What OpenSLO v1 demands of an SLO (github.com/OpenSLO/OpenSLO, README): known
// keys only, names by RFC 1123, exactly one rolling window in shorthand, a
// target in [0, 1), a ratio of good and total.
func TestOpenSLO(t *testing.T) {
	set := mustParse(t, goodFiles[5], strings.Replace(goodFiles[6], "chat", "other", 1), strings.Replace(goodFiles[8], "name: a", "name: "+strings.Repeat("n", 48), 1))
	text, err := set.OpenSLO()
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	window := regexp.MustCompile(`^[1-9][0-9]*[mhdwMQY]$`)
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	seen := map[string]openSLO{}
	for {
		var doc openSLO
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		s := doc.Spec
		if doc.APIVersion != "openslo/v1" || doc.Kind != "SLO" || !name.MatchString(doc.Metadata.Name) || !name.MatchString(s.Service) || !name.MatchString(s.Indicator.Metadata.Name) {
			t.Errorf("%+v", doc)
		}
		if len(s.TimeWindow) != 1 || !s.TimeWindow[0].IsRolling || !window.MatchString(s.TimeWindow[0].Duration) || s.BudgetingMethod != "Occurrences" {
			t.Errorf("%+v", s)
		}
		if len(s.Objectives) != 1 || s.Objectives[0].Target < 0 || s.Objectives[0].Target >= 1 {
			t.Errorf("%+v", s.Objectives)
		}
		seen[doc.Metadata.Name] = doc
	}
	if len(seen) != 6 {
		t.Fatalf("%d documents:\n%s", len(seen), text)
	}
	p999 := seen["chat-ttft-p99-9"]
	good := p999.Spec.Indicator.Spec.RatioMetric.Good.MetricSource
	if p999.Spec.Objectives[0].Target != 0.999 || p999.Spec.TimeWindow[0].Duration != "14d" || good.Type != "Prometheus" ||
		good.Spec["query"] != `sum(firsttoken_contract_outcomes_total{contract="chat",objective="ttft-p99-9",met="true"})` {
		t.Errorf("%+v", p999)
	}
	if seen["other-tpot-p90"].Spec.Objectives[0].DisplayName != "90% of TPOT ≤ 80ms" || seen["other-availability"].Spec.TimeWindow[0].Duration != "90d" {
		t.Errorf("%s", text)
	}
}
