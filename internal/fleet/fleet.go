package fleet

import (
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// Fleet is a fleet file, checked and expanded to single engines. It is plain
// data.
type Fleet struct {
	Engines []Engine
	Faults  []Fault // in order of time
	// Network is the delay of one way between gateway and engines.
	Network time.Duration
}

// Engine is one engine of the fleet.
type Engine struct {
	// Name is unique in the fleet.
	Name string
	// Model is the name it is served under.
	Model string
	// Profile it was made from, with the profile's own parameters.
	Profile engine.Profile
	// Params are what it runs with.
	Params engine.Params
	// Seed of its noise.
	Seed uint64
	// PricePerHour in USD.
	PricePerHour float64
	// Port on loopback; 0 is a free one.
	Port int
}

// Fault is something that happens to one engine.
type Fault struct {
	At     time.Duration
	Engine int // index into Engines
	engine.Fault
	// For is how long it lasts; 0 is to the end.
	For time.Duration
}

// PricePerHour of the whole fleet, in USD.
func (f *Fleet) PricePerHour() (sum float64) {
	for _, e := range f.Engines {
		sum += e.PricePerHour
	}
	return sum
}

// Models gives the served names in the order of their first engines.
func (f *Fleet) Models() []string {
	var models []string
	seen := map[string]bool{}
	for _, e := range f.Engines {
		if !seen[e.Model] {
			seen[e.Model] = true
			models = append(models, e.Model)
		}
	}
	return models
}
