package sla

import (
	"bytes"
	"fmt"
	"maps"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// OutcomesMetric is the counter that exported SLOs query: judged requests by
// contract, objective (Objective.ID) and met ("true" or "false").
const OutcomesMetric = "firsttoken_contract_outcomes_total"

// OpenSLO writes the contracts as OpenSLO v1 documents, one SLO an objective:
// good are the requests that met it, total are all that were judged. What
// OpenSLO has no words for (matching, actions, limits) is left out.
func (s *Set) OpenSLO() ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	for _, c := range s.contracts {
		for i := range c.Spec.Objectives {
			if err := enc.Encode(s.openSLO(c, &c.Spec.Objectives[i])); err != nil {
				return nil, fmt.Errorf("export contract %q: %w", c.Name(), err)
			}
		}
	}
	err := enc.Close()
	return out.Bytes(), err
}

// openSLO documents follow https://github.com/OpenSLO/OpenSLO (openslo/v1).
type openSLO struct {
	APIVersion string          `yaml:"apiVersion"`
	Kind       string          `yaml:"kind"`
	Metadata   openSLOMetadata `yaml:"metadata"`
	Spec       openSLOSpec     `yaml:"spec"`
}

type openSLOMetadata struct {
	Name        string            `yaml:"name"`
	DisplayName string            `yaml:"displayName,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

type openSLOSpec struct {
	Description     string             `yaml:"description,omitempty"`
	Service         string             `yaml:"service"`
	Indicator       openSLOIndicator   `yaml:"indicator"`
	TimeWindow      []openSLOWindow    `yaml:"timeWindow"`
	BudgetingMethod string             `yaml:"budgetingMethod"`
	Objectives      []openSLOObjective `yaml:"objectives"`
}

type openSLOIndicator struct {
	Metadata openSLOMetadata `yaml:"metadata"`
	Spec     struct {
		RatioMetric openSLORatio `yaml:"ratioMetric"`
	} `yaml:"spec"`
}

type openSLORatio struct {
	Counter bool          `yaml:"counter"`
	Good    openSLOMetric `yaml:"good"`
	Total   openSLOMetric `yaml:"total"`
}

type openSLOMetric struct {
	MetricSource openSLOSource `yaml:"metricSource"`
}

type openSLOSource struct {
	Type string            `yaml:"type"`
	Spec map[string]string `yaml:"spec"`
}

type openSLOWindow struct {
	Duration  string `yaml:"duration"`
	IsRolling bool   `yaml:"isRolling"`
}

type openSLOObjective struct {
	DisplayName string  `yaml:"displayName"`
	Target      float64 `yaml:"target"`
}

func (s *Set) openSLO(c *Contract, o *Objective) openSLO {
	name := c.Name() + "-" + o.ID()
	notes := maps.Clone(c.Metadata.Annotations)
	if notes == nil {
		notes = map[string]string{}
	}
	notes["firsttoken.dev/contract"], notes["firsttoken.dev/revision"] = c.Name(), s.revision
	doc := openSLO{
		APIVersion: "openslo/v1", Kind: "SLO",
		Metadata: openSLOMetadata{Name: name, DisplayName: c.Name() + ": " + o.String(), Labels: c.Metadata.Labels, Annotations: notes},
		Spec: openSLOSpec{
			Description: c.Spec.Description, Service: c.Name(),
			TimeWindow:      []openSLOWindow{{shorthand(o.Window.D()), true}},
			BudgetingMethod: "Occurrences",
			Objectives:      []openSLOObjective{{o.String(), float64(o.Target)}},
		},
	}
	labels := fmt.Sprintf("contract=%q,objective=%q", c.Name(), o.ID())
	doc.Spec.Indicator.Metadata.Name = name
	doc.Spec.Indicator.Spec.RatioMetric = openSLORatio{
		Counter: true,
		Good:    prometheus(labels + `,met="true"`),
		Total:   prometheus(labels),
	}
	return doc
}

func prometheus(labels string) openSLOMetric {
	query := "sum(" + OutcomesMetric + "{" + labels + "})"
	return openSLOMetric{openSLOSource{Type: "Prometheus", Spec: map[string]string{"query": query}}}
}

// shorthand writes a window as OpenSLO does: one number and one unit.
func shorthand(d time.Duration) string {
	switch {
	case d%day == 0:
		return strconv.FormatInt(int64(d/day), 10) + "d"
	case d%time.Hour == 0:
		return strconv.FormatInt(int64(d/time.Hour), 10) + "h"
	default:
		return strconv.FormatInt(int64(d/time.Minute), 10) + "m"
	}
}
