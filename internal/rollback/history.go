package rollback

import (
	"slices"
	"sync"
	"time"
)

// Kind is what was changed.
type Kind string

// The kinds of changes.
const (
	Model    Kind = "model"    // of the predictor; From and To are IDs
	Contract Kind = "contract" // revisions of the contracts in force
	Config   Kind = "config"   // revisions of the configuration
	Instance Kind = "instance" // an engine was started again, or is of another version
)

// Change is one thing that was changed.
type Change struct {
	At      time.Time `json:"at"`
	Kind    Kind      `json:"kind"`
	Subject string    `json:"subject,omitempty"` // the instance; "" where all are concerned
	From    string    `json:"from,omitempty"`
	To      string    `json:"to,omitempty"`
	// Rollback says that this package made it.
	Rollback bool `json:"rollback,omitempty"`
}

// same reports whether both tell of one change.
func (c *Change) same(other *Change) bool {
	return c.Kind == other.Kind && c.Subject == other.Subject && c.From == other.From && c.To == other.To
}

// maxChanges that are remembered.
const maxChanges = 256

// History is the last changes, in the order in which they were added. The zero
// value is empty. It is safe for concurrent use.
type History struct {
	mu      sync.Mutex
	changes []Change
}

// Add notes a change. One that is told twice in a row, by who made it and by who
// saw it, is noted once.
func (h *History) Add(c Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range slices.Backward(h.changes) {
		last := &h.changes[i]
		if last.Kind != c.Kind || last.Subject != c.Subject {
			continue
		}
		if last.same(&c) && c.Kind == Model {
			last.Rollback = last.Rollback || c.Rollback
			return
		}
		break
	}
	if len(h.changes) == maxChanges {
		h.changes = slices.Delete(h.changes, 0, 1)
	}
	h.changes = append(h.changes, c)
}

// Between gives the changes after from, up to and with to; the newest first.
func (h *History) Between(from, to time.Time) []Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []Change
	for _, c := range slices.Backward(h.changes) {
		if c.At.After(from) && !c.At.After(to) {
			found = append(found, c)
		}
	}
	return found
}
