package sla

import (
	"fmt"
	"strconv"
	"time"
)

// check adds what no single value of a contract shows, and completes it: a
// percentile sets its target, and each metric gets the objective that governs it.
func (d *decoder) check(c *Contract) {
	for i := range c.Spec.Objectives {
		d.checkObjective(&c.Spec.Objectives[i], objectivePath(i))
	}
	d.checkPairs(c.Spec.Objectives)
	c.compile()
	d.checkTogether(c)
	d.checkActions(c.Spec.AtRisk)
}

func objectivePath(i int) string { return "spec.objectives[" + strconv.Itoa(i) + "]" }

func (d *decoder) checkObjective(o *Objective, path string) {
	if o.Window.D()%time.Minute != 0 {
		d.fail(path+".window", o.Window.String()+" is not whole minutes", "write a window such as 30d, 6h or 5m")
	}
	switch {
	case o.Metric == "":
		return // reported
	case o.Metric == Availability:
		d.checkAvailability(path)
		return
	case !d.has(path + ".threshold"):
		d.fail(path, "has no threshold", `add "threshold: 320ms"`)
	case o.Metric == TPOT && o.Threshold.PerToken > 0:
		d.fail(path+".threshold.per_token", "makes no sense for the time between tokens", "remove it")
	}
	byPercentile, byTarget := d.has(path+".percentile"), d.has(path+".target")
	switch implied := shareOf(o.Percentile); {
	case !byPercentile && !byTarget:
		d.fail(path, "has no percentile", `add "percentile: 95"`)
	case byPercentile && byTarget && o.Target != implied && o.Target > 0 && o.Percentile > 0:
		d.fail(path+".target", fmt.Sprintf("%s contradicts the percentile, which says %s", o.Target, implied), "remove one of the two")
	case byPercentile:
		o.Target = implied
	}
}

func (d *decoder) checkAvailability(path string) {
	if d.has(path + ".threshold") {
		d.fail(path+".threshold", "makes no sense for availability", "remove it")
	}
	if d.has(path + ".percentile") {
		d.fail(path+".percentile", "makes no sense for availability", "write target instead")
	}
	if !d.has(path + ".target") {
		d.fail(path, "has no target", `add "target: 99.9%"`)
	}
}

// checkPairs reports objectives that say the same, or of which one makes the
// other void.
func (d *decoder) checkPairs(all []Objective) {
	for i, a := range all {
		for j, b := range all[:i] {
			if a.Metric != b.Metric || a.Metric == "" || a.Target == 0 || b.Target == 0 {
				continue
			}
			strict, loose := a, b
			if a.Target < b.Target {
				strict, loose = b, a
			}
			switch {
			case a.Metric == Availability:
				d.fail(objectivePath(i), "availability was promised already in "+objectivePath(j), "remove one of the two")
			case a.ID() == b.ID():
				d.fail(objectivePath(i), a.ID()+" was promised already in "+objectivePath(j), "remove one of the two")
			case strict.Threshold.Base < loose.Threshold.Base && strict.Threshold.PerToken <= loose.Threshold.PerToken:
				d.fail(objectivePath(i)+".threshold", fmt.Sprintf("%s within %s makes %s within %s void",
					strict.ID(), strict.Threshold, loose.ID(), loose.Threshold), "give the higher percentile the longer threshold")
			}
		}
	}
}

// checkTogether reports limits that cannot be kept together.
func (d *decoder) checkTogether(c *Contract) {
	ttft, e2e, limit := c.Governing(TTFT), c.Governing(E2E), c.Spec.VisibleLimit
	if ttft != nil && limit > 0 && limit < ttft.Threshold.Base {
		d.fail("spec.visible_limit", fmt.Sprintf("%s is shorter than the TTFT objective's %s", limit, ttft.Threshold),
			"write at least "+ttft.Threshold.Base.String())
	}
	if ttft != nil && e2e != nil && e2e.Threshold.Base < ttft.Threshold.Base && e2e.Threshold.PerToken <= ttft.Threshold.PerToken {
		d.fail("spec.objectives", fmt.Sprintf("e2e within %s is shorter than ttft within %s", e2e.Threshold, ttft.Threshold),
			"give e2e the longer threshold")
	}
	if c.Spec.JitterSensitive && c.Spec.Batchable {
		d.fail("spec.batchable", "contradicts jitter_sensitive", "remove one of the two")
	}
}

// checkActions reports actions that can't come to their turn.
func (d *decoder) checkActions(actions []Action) {
	seen := map[Remedy]bool{}
	last := Remedy("")
	for i, a := range actions {
		path := "spec.at_risk[" + strconv.Itoa(i) + "]"
		switch {
		case a.Do == "":
			continue // reported
		case seen[a.Do]:
			d.fail(path, string(a.Do)+" stands in the list twice", "remove one of the two")
		case last != "":
			d.fail(path, fmt.Sprintf("comes after %s, which is final", last), "put "+string(last)+" last")
		}
		seen[a.Do] = true
		if a.Do == ServeLate || a.Do == Shed {
			last = a.Do
		}
	}
}
