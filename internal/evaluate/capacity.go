package evaluate

import (
	_ "embed" // the capacities
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// capacities of shipped fleets under public traces, by policy lmetric and
// without predictions; firsttoken eval --find-capacity prints them anew.
//
//go:embed capacity.csv
var capacities string

// Capacity is the rate that a fleet bears: the highest multiple of a trace's
// recorded rate, to 1 %, at which 95 % of the requests meet the objective.
type Capacity struct {
	Multiplier float64
	Slack      int // how many times as long the objective is; above 1 where the fleet does not meet it at any rate
}

const (
	capacityTarget = 0.95
	maxSlack       = 64
)

// KnownCapacity is that of a shipped fleet under a public trace; ok is false
// for any other.
func KnownCapacity(trace, fleet string) (c Capacity, ok bool) {
	rows, err := csv.NewReader(strings.NewReader(capacities)).ReadAll()
	if err != nil {
		return c, false
	}
	for _, row := range rows {
		if row[0] != trace || row[1] != fleet {
			continue
		}
		multiplier, bad := strconv.ParseFloat(row[2], 64)
		slack, worse := strconv.Atoi(row[3])
		return Capacity{multiplier, slack}, bad == nil && worse == nil
	}
	return c, false
}

// WriteCapacities prints capacities as KnownCapacity reads them.
func WriteCapacities(w io.Writer, fleets []*Fleet, found []Capacity) error {
	table := csv.NewWriter(w)
	err := table.Write([]string{"trace", "fleet", "multiplier", "slack"})
	for i, f := range fleets {
		if err == nil {
			err = table.Write([]string{f.Trace, f.Name, strconv.FormatFloat(found[i].Multiplier, 'g', 4, 64), strconv.Itoa(found[i].Slack)})
		}
	}
	table.Flush()
	if err != nil {
		return err
	}
	return table.Error()
}

// FindCapacity searches it, under the fleet's policy.
func (f *Fleet) FindCapacity(o report.Objective) (Capacity, error) {
	v := replay.Variant{Name: f.Name, Config: f.Config}
	for slack := 1; slack <= maxSlack; slack *= 2 {
		t := replay.Trial{Variants: []replay.Variant{v}, Objective: longer(o, slack), Source: func(uint64) trace.Source { return f.Source }}
		g, err := t.FindGoodput(v, capacityTarget)
		if err != nil || g.Multiplier > 0 {
			return Capacity{g.Multiplier, slack}, err
		}
	}
	return Capacity{}, fmt.Errorf("fleet %s does not bear %s at any rate; choose a larger one", f.Name, f.Trace)
}

func longer(o report.Objective, times int) report.Objective {
	k := time.Duration(times)
	return report.Objective{TTFT: k * o.TTFT, TTFTPerToken: k * o.TTFTPerToken, TPOT: k * o.TPOT, E2E: k * o.E2E}
}
