package backends

import (
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"
)

// breaker is the circuit breaker of one engine under one set of rules.
// Ejection needs a pool to compare with; the breaker stands alone and protects
// even a pool of one. It is guarded by the engine's mu.
type breaker struct {
	two  *gobreaker.TwoStepCircuitBreaker[struct{}] // nil: everything passes
	last gobreaker.State                            // as of the last call
}

// breakerRules tell two breakers of one engine apart.
type breakerRules struct {
	failures int
	open     time.Duration
}

var (
	errFault   = errors.New("backend fault")
	errDropped = errors.New("outcome dropped")
)

func newBreaker(r breakerRules) *breaker {
	br := &breaker{}
	if r.failures == 0 {
		return br
	}
	br.two = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:   1,
		Timeout:       r.open,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= r.failures },
		IsExcluded:    func(err error) bool { return errors.Is(err, errDropped) },
		OnStateChange: func(_ string, _, to gobreaker.State) { br.last = to },
	})
	return br
}

// state moves on from open to half-open when the time has come. A closed
// breaker changes by outcomes only, so that it costs nothing to ask.
func (br *breaker) state() gobreaker.State {
	if br.two != nil && br.last != gobreaker.StateClosed {
		return br.two.State()
	}
	return gobreaker.StateClosed
}

func (br *breaker) halfOpen() bool { return br.state() == gobreaker.StateHalfOpen }

// refuses reports whether allow would fail: the breaker is open, or half-open
// with its one probe out.
func (br *breaker) refuses() bool {
	switch br.state() {
	case gobreaker.StateOpen:
		return true
	case gobreaker.StateHalfOpen:
		c := br.two.Counts()
		return c.Requests > c.TotalExclusions
	}
	return false
}

// allow admits one attempt; done, if not nil, must be called with its verdict.
func (br *breaker) allow() (done func(error), ok bool) {
	if br.two == nil {
		return nil, true
	}
	done, err := br.two.Allow()
	return done, err == nil
}

// verdict is the error by which the breaker judges a class.
func verdict(c Class) error {
	switch c {
	case Fault:
		return errFault
	case Served:
		return nil
	default:
		return errDropped
	}
}
