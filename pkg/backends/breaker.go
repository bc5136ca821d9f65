package backends

import (
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"
)

// breaker is the circuit breaker of one engine. Ejection compares a backend
// with its pool and never takes the last one; the breaker stands alone and
// protects even a pool of one. The zero value lets everything through.
type breaker struct {
	two      *gobreaker.TwoStepCircuitBreaker[struct{}]
	failures int
	open     time.Duration
}

var (
	errFault   = errors.New("backend fault")
	errDropped = errors.New("outcome dropped")
)

// configure builds the breaker, or rebuilds it when its rules changed.
func (br *breaker) configure(name string, r HealthRules) {
	if r.BreakerFailures == br.failures && r.BreakerOpen == br.open {
		return
	}
	br.failures, br.open, br.two = r.BreakerFailures, r.BreakerOpen, nil
	if r.BreakerFailures == 0 {
		return
	}
	br.two = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        name,
		MaxRequests: 1,
		Timeout:     r.BreakerOpen,
		ReadyToTrip: func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= r.BreakerFailures },
		IsExcluded:  func(err error) bool { return errors.Is(err, errDropped) },
	})
}

func (br *breaker) state() string {
	if br.two == nil {
		return gobreaker.StateClosed.String()
	}
	return br.two.State().String()
}

func (br *breaker) isOpen() bool {
	return br.two != nil && br.two.State() == gobreaker.StateOpen
}

// allow admits one attempt; done must be called with its class. ok is false
// when the breaker is open or its one half-open probe is out.
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
