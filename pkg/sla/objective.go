package sla

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ID names an objective within its contract, such as ttft-p95 or availability.
func (o *Objective) ID() string {
	if o.Metric == Availability {
		return string(Availability)
	}
	percent := strconv.FormatFloat(float64(o.Target)*100, 'g', 6, 64)
	return string(o.Metric) + "-p" + strings.ReplaceAll(percent, ".", "-")
}

// String reads "P95 TTFT ≤ 320ms" or "availability ≥ 99.9%".
func (o *Objective) String() string {
	switch {
	case o.Metric == Availability:
		return "availability ≥ " + o.Target.String()
	case o.Percentile > 0:
		return fmt.Sprintf("P%v %s ≤ %s", o.Percentile, strings.ToUpper(string(o.Metric)), o.Threshold)
	default:
		return fmt.Sprintf("%s of %s ≤ %s", o.Target, strings.ToUpper(string(o.Metric)), o.Threshold)
	}
}

// Name is the contract's name; "" for none.
func (c *Contract) Name() string {
	if c == nil {
		return ""
	}
	return c.Metadata.Name
}

// Governing is the objective that single requests are steered and judged by
// when a metric has several percentiles: the shortest threshold among those
// from P90 up, or else the highest percentile. Nil when the metric has none.
//
// A median is no bound for one request, since half of them may exceed it; of P95
// and P99 the first has the shorter threshold, and who keeps it keeps both.
func (c *Contract) Governing(m Metric) *Objective {
	i := slices.Index(metrics[:], m)
	if c == nil || i < 0 {
		return nil
	}
	return c.governs[i]
}

// compile finds the governing objectives and the digest.
func (c *Contract) compile() {
	const tail = 0.9
	for i, m := range metrics {
		for j := range c.Spec.Objectives {
			o, best := &c.Spec.Objectives[j], c.governs[i]
			if o.Metric != m {
				continue
			}
			bothTail := best != nil && o.Target >= tail && best.Target >= tail
			if best == nil || !bothTail && o.Target > best.Target || bothTail && o.Threshold.Base < best.Threshold.Base {
				c.governs[i] = o
			}
		}
	}
	var b strings.Builder
	for _, o := range c.Spec.Objectives {
		fmt.Fprintf(&b, "%s %v %d %d %v %d\n", o.Metric, o.Percentile, o.Threshold.Base, o.Threshold.PerToken, float64(o.Target), o.Window)
	}
	c.digest = digest(b.String())
}

// digest is short enough to read and long enough to be one of a kind.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// Terms are what holds for one request: its contract, and what its own headers
// tightened. The zero Terms promise nothing. Terms are values; copy them freely.
type Terms struct {
	*Contract // nil when none matched

	ttft, tpot time.Duration // asked for; 0 is the contract's own
}

// TTFTBudget is how long the first token of an answer to a prompt of so many
// tokens may take from acceptance. False when nothing was promised.
func (t Terms) TTFTBudget(promptTokens int) (time.Duration, bool) {
	budget, ok := t.Contract.TTFTBudget(promptTokens)
	return tighter(budget, ok, t.ttft)
}

// TPOTBudget is how long a token may take on average after the first one.
// False when nothing was promised.
func (t Terms) TPOTBudget() (time.Duration, bool) {
	budget, ok := t.Contract.TPOTBudget()
	return tighter(budget, ok, t.tpot)
}

// FirstDue is how long after acceptance the first token is due: the shortest of
// the TTFT budget, the E2E budget and the visible limit. False when none of them
// was promised.
func (t Terms) FirstDue(promptTokens int) (time.Duration, bool) {
	due, ok := t.TTFTBudget(promptTokens)
	e2e, whole := t.E2EBudget(promptTokens)
	if whole {
		due, ok = tighter(due, ok, e2e)
	}
	if t.Contract != nil {
		due, ok = tighter(due, ok, t.Spec.VisibleLimit.D())
	}
	return due, ok
}

// Deadline is when the first token is due, see FirstDue.
func (t Terms) Deadline(accepted time.Time, promptTokens int) (time.Time, bool) {
	due, ok := t.FirstDue(promptTokens)
	if !ok {
		return time.Time{}, false
	}
	return accepted.Add(due), true
}

// tighter takes the shorter of a budget and what else was asked for; 0 is nothing.
func tighter(budget time.Duration, ok bool, asked time.Duration) (time.Duration, bool) {
	if asked > 0 && (!ok || asked < budget) {
		return asked, true
	}
	return budget, ok
}

// TTFTBudget is that of untightened Terms.
func (c *Contract) TTFTBudget(promptTokens int) (time.Duration, bool) {
	return c.Governing(TTFT).budget(promptTokens)
}

// TPOTBudget is that of untightened Terms.
func (c *Contract) TPOTBudget() (time.Duration, bool) { return c.Governing(TPOT).budget(0) }

// E2EBudget is how long the whole answer to a prompt of so many tokens may take
// from acceptance. False when nothing was promised.
func (c *Contract) E2EBudget(promptTokens int) (time.Duration, bool) {
	return c.Governing(E2E).budget(promptTokens)
}

// FirstDue is that of untightened Terms.
func (c *Contract) FirstDue(promptTokens int) (time.Duration, bool) {
	return Terms{Contract: c}.FirstDue(promptTokens)
}

// Deadline is that of untightened Terms.
func (c *Contract) Deadline(accepted time.Time, promptTokens int) (time.Time, bool) {
	return Terms{Contract: c}.Deadline(accepted, promptTokens)
}

// Limit is the visible limit, counted from acceptance: past it an answer is of
// no use. False when the contract has none.
func (c *Contract) Limit(accepted time.Time) (time.Time, bool) {
	if c == nil || c.Spec.VisibleLimit == 0 {
		return time.Time{}, false
	}
	return accepted.Add(c.Spec.VisibleLimit.D()), true
}

func (o *Objective) budget(promptTokens int) (time.Duration, bool) {
	if o == nil {
		return 0, false
	}
	return o.Threshold.at(promptTokens), true
}
