package trace

import (
	"fmt"
	"math"
	"sort"
)

// Weighted is a name and how often it is drawn, relative to the others.
type Weighted struct {
	Name   string
	Weight float64
}

// Tenants draws the tenant of each request by weight. What belongs together
// stays with one tenant: requests of a session or, where there is none, those
// that share more than their first segment. Nothing to draw from leaves it empty.
func (s Source) Tenants(among []Weighted, seed uint64) Source {
	return s.draw("tenants", among, seed, func(r *Request, name string) { r.Tenant = name })
}

// Models draws the model of each request, as Tenants does the tenant. To rename
// models instead use Each.
func (s Source) Models(among []Weighted, seed uint64) Source {
	return s.draw("models", among, seed, func(r *Request, name string) { r.Model = name })
}

func (s Source) draw(what string, among []Weighted, seed uint64, set func(*Request, string)) Source {
	l, err := newLottery(among)
	if err != nil {
		return fail(fmt.Errorf("%s: %w", what, err))
	}
	return func(yield func(Request, error) bool) {
		n := uint64(0)
		s.Each(func(r *Request) {
			n++
			set(r, l.pick(mix(r.family(n)^mix(seed^digest(what)))))
		})(yield)
	}
}

// family is a number that requests which belong together have in common;
// request n of a trace may be a family of its own.
func (r *Request) family(n uint64) uint64 {
	if r.Session != "" {
		return digest(r.Session)
	}
	if len(r.Content) > 1 {
		return r.Content[1].ID
	}
	return mix(n)
}

// lottery draws names by weight.
type lottery struct {
	names []string
	upTo  []float64 // sums of the weights
}

// newLottery of no names at all draws "".
func newLottery(among []Weighted) (*lottery, error) {
	if len(among) == 0 {
		among = []Weighted{{Weight: 1}}
	}
	l, sum := &lottery{}, 0.0
	for _, w := range among {
		if !(w.Weight >= 0) || math.IsInf(w.Weight, 0) {
			return nil, fmt.Errorf("weight %v of %q: give a number of at least 0", w.Weight, w.Name)
		}
		sum += w.Weight
		l.names, l.upTo = append(l.names, w.Name), append(l.upTo, sum)
	}
	if !(sum > 0) || math.IsInf(sum, 0) {
		return nil, fmt.Errorf("the weights of %d names sum up to %v: give at least one above 0", len(among), sum)
	}
	return l, nil
}

// pick is the name a number stands for.
func (l *lottery) pick(n uint64) string {
	x := share(n) * l.upTo[len(l.upTo)-1]
	i := sort.Search(len(l.upTo)-1, func(i int) bool { return x < l.upTo[i] })
	return l.names[i]
}

// share spreads a number's values evenly over [0, 1).
func share(n uint64) float64 { return float64(n>>11) / (1 << 53) }
