package proxy

import (
	"time"

	"github.com/firsttoken/firsttoken/pkg/sla"
)

// noPromises is where nothing was promised.
type noPromises struct{}

func (noPromises) Arrived(time.Time, *sla.Contract) bool            { return false }
func (noPromises) FirstToken(time.Time, string, int, time.Duration) {}
func (noPromises) WarmUp(string)                                    {}
func (noPromises) Record(time.Time, string, *sla.Contract, sla.Outcome) (met, judged bool) {
	return false, false
}
