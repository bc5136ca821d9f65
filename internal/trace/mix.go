package trace

import (
	"fmt"
	"slices"
	"strings"
)

// Mix is workloads that go on at the same time.
type Mix []Workload

// ParseMix reads names of shipped workloads, or their short ones, with commas
// between them.
func ParseMix(names string) (Mix, error) {
	var m Mix
	for name := range strings.SplitSeq(names, ",") {
		w, err := Shipped(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(m, func(other Workload) bool { return other.Name == w.Name }) {
			return nil, fmt.Errorf("%q: %s is there twice; write it once", names, w.Name)
		}
		m = append(m, w)
	}
	return m, nil
}

// Source is the requests of all workloads in order of arrival.
func (m Mix) Source(seed uint64) Source {
	sources := make([]Source, 0, len(m))
	for _, w := range m {
		sources = append(sources, w.Source(seed))
	}
	return Merge(sources...)
}

// AtRate is the mix with so many requests a second, all workloads together,
// each with the share it had.
func (m Mix) AtRate(rate float64) Mix {
	sum := 0.0
	for _, w := range m {
		sum += w.Rate
	}
	scaled := slices.Clone(m)
	for i := range scaled {
		scaled[i].Rate *= rate / sum
	}
	return scaled
}
