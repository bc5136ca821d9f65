package sla

import "slices"

// Rank orders the requests that wait for the same engines: lower ones are let in
// first. Critical goes before standard before sheddable, within one of them the
// higher priority first, at the same priority what may be batched after the
// others, and what a contract's burst does not cover after all of its criticality. c is of this set, or nil: without a contract a
// request is standard, of priority 0. Ranks of one set are 0, 1, 2 and so on. A
// nil Set is one without contracts.
func (s *Set) Rank(c *Contract, overBurst bool) int {
	if s == nil {
		return 0
	}
	rank, _ := slices.BinarySearch(s.standings, c.standing(overBurst))
	return rank
}

// rankAll notes the standings that requests of the set may have, in order.
func (s *Set) rankAll() {
	s.standings = []int{(*Contract)(nil).standing(false)}
	for _, c := range s.contracts {
		s.standings = append(s.standings, c.standing(false))
		if c.Spec.Burst > 0 {
			s.standings = append(s.standings, c.standing(true))
		}
	}
	slices.Sort(s.standings)
	s.standings = slices.Compact(s.standings)
}

// criticalities lists them, the most critical first.
var criticalities = [...]Criticality{Critical, Standard, Sheddable}

// standing is a number for each criticality, priority, and batchable or not, and
// for what is over the burst of a criticality, in the order in which they are let in.
func (c *Contract) standing(overBurst bool) int {
	const most, perCriticality = 1000, 1 << 13 // most is of the tag of Spec.Priority
	criticality, priority, batchable := Standard, 0, false
	if c != nil {
		criticality, priority, batchable = c.Spec.Criticality, c.Spec.Priority, c.Spec.Batchable
	}
	place := 2 * (most - priority)
	switch {
	case overBurst:
		place = 2*(2*most) + 2
	case batchable:
		place++
	}
	return perCriticality*slices.Index(criticalities[:], criticality) + place
}
