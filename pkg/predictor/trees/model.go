package trees

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/dmitryikh/leaves"
)

// Model is one head: trees whose sum is the prediction. It never changes and
// is safe for concurrent use.
type Model struct {
	ensemble *leaves.Ensemble
	info     Info
	outputs  sync.Pool // of *[1]float64: leaves writes to a slice, which would be allocated
}

// Info describes a model.
type Info struct {
	Trees     int     `json:"trees"`
	MaxLeaves int     `json:"max_leaves"` // of the largest tree
	Objective string  `json:"objective"`
	Alpha     float64 `json:"alpha"`  // the quantile, if the objective is quantile
	SHA256    string  `json:"sha256"` // of the text, in hex
	Splits    []int   `json:"splits"` // by feature: how many nodes decide on it
}

// Info describes the model. The caller may keep and change it.
func (m *Model) Info() Info {
	info := m.info
	info.Splits = slices.Clone(info.Splits)
	return info
}

// Predict evaluates the trees on one row of features, NaN where unknown, in
// the order of the names that the model was read with. The result is finite
// unless there is an error. It allocates nothing; the row itself should come
// from a buffer that is used again, since leaves makes it escape to the heap.
func (m *Model) Predict(row []float64) (y float64, err error) {
	if len(row) != len(m.info.Splits) {
		return 0, fmt.Errorf("the row has %d features, the model %d", len(row), len(m.info.Splits))
	}
	defer guard(&err)
	out, ok := m.outputs.Get().(*[1]float64)
	if !ok {
		out = new([1]float64)
	}
	defer m.outputs.Put(out)
	if err := m.ensemble.Predict(row, 0, out[:]); err != nil {
		return 0, fmt.Errorf("leaves: %w", err)
	}
	if y = out[0]; math.IsNaN(y) || math.IsInf(y, 0) {
		return 0, fmt.Errorf("the trees add up to %v", y)
	}
	return y, nil
}
