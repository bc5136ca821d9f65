package sla

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// ranked is a contract file of these criticalities, priorities and bursts.
func ranked(rows ...string) string {
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "---\napiVersion: %s\nkind: %s\nmetadata: {name: c%d}\nspec: {%s, match: {tenants: [t%d]}, objectives: [{metric: ttft, percentile: 95, threshold: 1s}]}\n",
			Version, Kind, i, row, i)
	}
	return b.String()
}

func TestRank(t *testing.T) {
	set := mustParse(t, ranked(
		"criticality: sheddable, priority: 1000",
		"criticality: standard, priority: -1000, burst: 30%",
		"criticality: critical",
		"criticality: critical, priority: 10",
		"criticality: standard, priority: 1",
		"criticality: critical, priority: 10",
		"criticality: critical, priority: -1, burst: 0%",
		"criticality: sheddable, priority: 1000, batchable: true",
	))
	for name, want := range map[string]int{"c3": 0, "c5": 0, "c2": 1, "c6": 2, "c4": 3, "": 4, "c1": 5, "c0": 7, "c7": 8} {
		if got := set.Rank(set.Contract(name), false); got != want {
			t.Errorf("%q ranks %d, want %d", name, got, want)
		}
	}
	if got := set.Rank(set.Contract("c1"), true); got != 6 {
		t.Errorf("over its burst c1 ranks %d, want 6: after all that are standard, before all that are sheddable", got)
	}
	for _, none := range []*Set{nil, {}} {
		if got := none.Rank(nil, false); got != 0 {
			t.Errorf("without contracts everybody ranks %d", got)
		}
	}
}

// The order of files changes no rank.
func TestRankOrder(t *testing.T) {
	rows := []string{"criticality: critical, priority: 3", "criticality: sheddable, priority: -7, burst: 10%", "criticality: standard, priority: 5"}
	want := map[string]int{}
	for range 2 {
		set := mustParse(t, ranked(rows...))
		for i, row := range rows {
			got := set.Rank(set.Contract(fmt.Sprintf("c%d", i)), false)
			if before, ok := want[row]; ok && before != got {
				t.Errorf("%s ranks %d, and %d otherwise", row, got, before)
			}
			want[row] = got
		}
		slices.Reverse(rows)
	}
}
