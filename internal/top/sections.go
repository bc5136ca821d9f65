package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/firsttoken/firsttoken/internal/admin"
)

// What deserves a colour and a word.
const (
	fewest = 20 // requests behind figures that are judged

	late, veryLate = 1.5, 2.5 // actual over predicted P50
	slow           = 3.0      // the recent peak over the mean of P95, for prompts differ in length

	// shares that are too low, and much too low
	seldom, verySeldom = 0.85, 0.7  // of first tokens within P95
	scarce, spent      = 0.25, 1e-9 // of an error budget
	uncut, cutByHalf   = 1.0, 0.5   // of a weight
)

// moodOf is by a word of the gateway.
var moodOf = map[string]mood{
	"ok": good, "at_risk": warn, "breaching": bad, "no_data": faint,
	"up": good, "probation": warn, "draining": warn, "ejected": bad, "down": bad,
	"standby": faint, "cold": warn, "warming": warn,
}

// below is for a share that is too low below the first bound, and much too low
// below the second.
func below(share, low, veryLow float64) mood {
	switch {
	case share < veryLow:
		return bad
	case share < low:
		return warn
	}
	return plain
}

// loudest is warn or bad if one of the moods is, and else plain.
func loudest(moods ...mood) mood {
	if m := slices.Max(moods); m >= warn {
		return m
	}
	return plain
}

func contracts(all []admin.Contract) section {
	if len(all) == 0 {
		return oneLine(in(faint, "CONTRACTS  none in force"))
	}
	t := table{columns: []column{
		{title: "CONTRACT"}, {title: "criticality", rank: 5}, {title: "state"}, {title: "objective"},
		{title: "within", right: true}, {title: "target", right: true, rank: 1}, {title: "budget left", right: true},
		{title: "burn 5m", right: true, rank: 3}, {title: "1h", right: true, rank: 4}, {title: "worst instance", rank: 2},
	}}
	for i := range all {
		t.contract(&all[i])
	}
	return section{want: 1 + len(t.rows), lines: t.lines}
}

// contract adds a row for each objective.
func (t *table) contract(c *admin.Contract) {
	worst := in(plain, unknown)
	if b := worstOf(c); b != nil {
		worst = in(below(b.Weight, uncut, cutByHalf), "%s %.1f%%", b.Name, 100*b.Compliance)
		if b.Weight < uncut {
			worst.text += fmt.Sprintf(", cut to %.2f", b.Weight)
		}
	}
	for i := range c.Objectives {
		o := &c.Objectives[i]
		mood, missed := moodOf[o.State], plain
		if o.Share != nil && *o.Share < o.Target {
			missed = warn
		}
		t.rows = append(t.rows, row{alarm: loudest(mood), cells: []span{
			in(plain, "%s", c.Name), in(faint, "%s", c.Criticality), in(mood, "%s", strings.ReplaceAll(o.State, "_", " ")), in(plain, "%s", o.Text),
			in(missed, "%s", percent(o.Share)), in(faint, "%.6g%%", 100*o.Target), in(below(o.BudgetLeft, scarce, spent), "%.0f%%", 100*o.BudgetLeft),
			burn(o, "5m"), burn(o, "1h"), worst,
		}})
	}
}

// worstOf is the instance that is cut most, then the one that complies least.
func worstOf(c *admin.Contract) *admin.ContractBackend {
	if len(c.Backends) == 0 {
		return nil
	}
	b := slices.MinFunc(c.Backends, func(a, b admin.ContractBackend) int {
		return cmp.Or(cmp.Compare(a.Weight, b.Weight), cmp.Compare(a.Compliance, b.Compliance))
	})
	return &b
}

func burn(o *admin.Objective, window string) span {
	rate, known := o.Burn[window]
	switch {
	case !known || o.Share == nil: // nothing was judged
		return in(plain, unknown)
	case rate > 1:
		return in(warn, "%.1f", rate)
	}
	return in(plain, "%.1f", rate)
}

// model is a heading and a row for each instance.
func model(m *admin.Model, contracts []admin.Contract) section {
	t := table{columns: []column{
		{title: "INSTANCE"}, {title: "state"}, {title: "load", right: true, rank: 5}, {title: "run/wait", right: true, rank: 9}, {title: "KV", right: true, rank: 8},
		{title: "weight", right: true, rank: 2}, {title: "P50 ms", right: true}, {title: "P95 ms", right: true, rank: 4}, {title: "actual", right: true},
		{title: "recent", right: true, rank: 6}, {title: "error", right: true, rank: 7}, {title: "in P95", right: true, rank: 3}, {title: "in SLA", right: true, rank: 7}, {title: "note", flex: true},
	}}
	for i := range m.Backends {
		t.instance(&m.Backends[i], contracts)
	}
	return section{want: 1 + min(len(t.rows), 1) + len(t.rows), lines: func(size Size) []line {
		if size.Height < 1 {
			return nil
		}
		size.Height--
		return append([]line{heading(m)}, t.lines(size)...)
	}}
}

// heading leaves out what is not known.
func heading(m *admin.Model) line {
	l := line{in(strong, "%s", m.Name), in(plain, "  %s", m.Policy)}
	if m.Estimator != nil {
		l = append(l, in(plain, "  %s", *m.Estimator))
	}
	add := func(m mood, format string, x *float64, factor float64) {
		if x != nil {
			l = append(l, in(m, "%s", number(format, x, factor)))
		}
	}
	add(plain, ": MAPE %.1f%%", m.P50MAPE, 100)
	add(coverMood(m.P95Coverage), ", %.1f%% in P95", m.P95Coverage, 100)
	add(plain, "  %.1f/s", m.ArrivalRate, 1)
	add(plain, ", CV %.2f", m.ArrivalCV, 1)
	held := plain
	if m.Held > 0 {
		held = warn
	}
	return append(l, in(plain, "  %d in flight", m.InFlight), in(held, ", %d held", m.Held))
}

func coverMood(share *float64) mood {
	if share == nil {
		return plain
	}
	return below(*share, seldom, verySeldom)
}

// instance adds a row. Whatever is coloured is also said, in the state or in the note.
func (t *table) instance(b *admin.Backend, contracts []admin.Contract) {
	h, v, state := held(b, contracts), judge(b), stateOf(b)
	notes := v.notes
	if h.weight < uncut {
		notes = append(notes, fmt.Sprintf("cut to %.2f for %s", h.weight, h.by))
	} else if h.violated > 0 {
		notes = append(notes, "violates "+h.by)
	}
	if b.Breaker != "closed" && b.Breaker != "" {
		notes = append(notes, "breaker "+b.Breaker)
	}
	weight := below(h.weight, uncut, cutByHalf)
	loud := loudest(state.mood, v.actual, v.recent, v.within, weight)
	t.rows = append(t.rows, row{alarm: loud, cells: []span{
		in(loud, "%s", b.Name), state, in(plain, "%d", b.InFlight),
		in(plain, "%s/%s", number("%.0f", b.Running, 1), number("%.0f", b.Waiting, 1)), in(plain, "%s", number("%.0f%%", b.KVUse, 100)), in(weight, "%.2f", b.Weight*h.weight),
		in(plain, "%s", ms(b.PredictedP50MS)), in(plain, "%s", ms(b.PredictedP95MS)), in(v.actual, "%s", ms(b.ActualMS)), in(v.recent, "%s", ms(b.TTFTMS)),
		in(plain, "%s", percent(b.P50Error)), in(v.within, "%s", percent(b.WithinP95)), in(plain, "%s", percent(h.compliance)),
		in(loud, "%s", strings.Join(notes, ", ")),
	}})
}

// verdict is what to think of a backend's times.
type verdict struct {
	actual, recent, within mood
	notes                  []string
}

func judge(b *admin.Backend) verdict {
	var v verdict
	if b.Requests < fewest {
		return v
	}
	if ratio := value(b.TTFTMS) / max(value(b.PredictedP95MS), 0.001); ratio >= slow {
		v.recent = warn
		v.notes = append(v.notes, fmt.Sprintf("just now %s ms", ms(b.TTFTMS)))
	}
	if ratio := value(b.ActualMS) / max(value(b.PredictedP50MS), 0.001); ratio >= late {
		v.actual = warn
		if ratio >= veryLate {
			v.actual = bad
		}
		v.notes = append(v.notes, fmt.Sprintf("%.1f× predicted", ratio))
	}
	if v.within = coverMood(b.WithinP95); v.within != plain {
		v.notes = append(v.notes, "often late")
	}
	return v
}

// stateOf is whether a backend takes requests: up, or what keeps it from them.
func stateOf(b *admin.Backend) span {
	state := b.State
	if state == "up" && b.Readiness != "ready" {
		state = b.Readiness
	}
	return in(moodOf[state], "%s", state)
}

// standing is how a backend serves the contract that it serves worst.
type standing struct {
	by         string
	weight     float64
	violated   int
	compliance *float64
}

func held(b *admin.Backend, contracts []admin.Contract) standing {
	s := standing{weight: 1}
	for i := range contracts {
		for _, c := range contracts[i].Backends {
			if c.Name != b.Name {
				continue
			}
			if c.Weight < s.weight || (c.Weight == s.weight && c.ViolatedWindows > s.violated) {
				s.by, s.weight, s.violated = contracts[i].Name, c.Weight, c.ViolatedWindows
			}
			if s.compliance == nil || c.Compliance < *s.compliance {
				s.compliance = &c.Compliance
			}
		}
	}
	return s
}

// fieldOrder puts what an event is about before the rest.
func fieldOrder(fields map[string]string) []string {
	order := make([]string, 0, len(fields))
	for _, key := range []string{"contract", "model", "backend", "instance"} {
		if _, ok := fields[key]; ok {
			order = append(order, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(order, key) {
			order = append(order, key)
		}
	}
	return order
}
