package replay

import (
	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// Misfits are the requests of a trace that a fleet can't serve, whatever the
// load.
type Misfits struct {
	TooLong []Misfit // for the context or the cache of every engine of their model
	Partly  []Misfit // for some of them, which refuse them if they get them
	Unknown []Misfit // of a model that no engine serves
}

// Misfit is one request and its place in the trace, from 0.
type Misfit struct {
	Index int
	trace.Request
}

// FindMisfits reads a trace to its end.
func FindMisfits(engines []Engine, src trace.Source) (Misfits, error) {
	limits, err := limitsOf(engines)
	if err != nil {
		return Misfits{}, err
	}
	var m Misfits
	index := 0
	for r, err := range src {
		if err != nil {
			return m, err
		}
		l, known := limits[r.Model]
		if tokens := r.PromptTokens + r.OutputTokens; !known {
			m.Unknown = append(m.Unknown, Misfit{index, r})
		} else if tokens > l.most {
			m.TooLong = append(m.TooLong, Misfit{index, r})
		} else if tokens > l.least {
			m.Partly = append(m.Partly, Misfit{index, r})
		}
		index++
	}
	return m, nil
}

// limits are the tokens of a request that fit the narrowest and the widest
// engine of a model.
type limits struct{ least, most int }

func limitsOf(engines []Engine) (map[string]limits, error) {
	by := map[string]limits{}
	for _, e := range engines {
		sim, err := engine.New(e.Params, 0)
		if err != nil {
			return nil, err
		}
		n := sim.Params().MaxModelLen
		l, known := by[e.Model]
		if !known {
			l.least = n
		}
		by[e.Model] = limits{least: min(l.least, n), most: max(l.most, n)}
	}
	return by, nil
}
