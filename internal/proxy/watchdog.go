package proxy

import (
	"context"
	"errors"
	"time"
)

// The causes by which an attempt is cancelled. Each timeout has its own, so
// that metrics and error codes can tell them apart.
var (
	errDialTimeout   = errors.New("dial timeout")
	errHeaderTimeout = errors.New("response header timeout")
	errFirstToken    = errors.New("first token timeout")
	errIdle          = errors.New("idle timeout")
	errTotal         = errors.New("total timeout")
	errClientWrite   = errors.New("client write timeout")
	errStreamOver    = errors.New("stream over")
	errAttemptOver   = errors.New("attempt over")

	// ErrDraining cancels what still runs when the drain limit is reached.
	ErrDraining = errors.New("gateway is shutting down")
)

// watchdog cancels an attempt when the phase it is in takes too long. One
// timer serves all phases. It belongs to one goroutine.
type watchdog struct {
	cancel context.CancelCauseFunc
	timer  *time.Timer
	cause  error // of the running phase
}

func newWatchdog(cancel context.CancelCauseFunc) *watchdog {
	return &watchdog{cancel: cancel}
}

// arm starts a phase of at most limit; 0 is no limit.
func (d *watchdog) arm(limit time.Duration, cause error) {
	if limit <= 0 {
		d.pause()
		return
	}
	if d.timer != nil && d.cause == cause { //nolint:errorlint // the same phase, not one like it
		d.timer.Reset(limit)
		return
	}
	d.pause()
	d.cause = cause
	d.timer = time.AfterFunc(limit, func() { d.cancel(cause) })
}

// pause stops the clock, while the client is the one who is waited for.
func (d *watchdog) pause() {
	if d.timer != nil {
		d.timer.Stop()
	}
}
