package proxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// admit finds a backend for the first attempt: at once, after waiting at the
// gateway, or as the request's contract says for one that can't be in time.
func (x *exchange) admit(ctx context.Context) (*router.Lease, *failure) {
	lease, err := x.enter(ctx, x.patience())
	shed := (*router.Shed)(nil)
	switch {
	case err == nil && x.isUseless(time.Now()):
		lease.Done(time.Now(), backends.Outcome{Class: backends.Dropped})
		return nil, x.notAdmitted(ctx, useless())
	case err == nil && x.isLate(lease):
		return x.hasten(ctx, lease), nil
	case err == nil:
		return lease, nil
	case errors.As(err, &shed) && shed.Reason == router.ShedDeadline:
		return x.atRisk(ctx, shed)
	case ctx.Err() == nil && x.wantsMore():
		x.h.promises.WarmUp(x.model.Name)
	}
	return nil, x.notAdmitted(ctx, err)
}

// wantsMore reports whether the contract asks for a further instance where its
// request can't be served.
func (x *exchange) wantsMore() bool {
	return slices.ContainsFunc(x.actions(), func(a sla.Action) bool { return a.Do == sla.WarmUp })
}

// notAdmitted is the failure of a request that got no backend.
func (x *exchange) notAdmitted(ctx context.Context, err error) *failure {
	shed, f := (*router.Shed)(nil), (*failure)(nil)
	switch {
	case errors.As(err, &shed):
		x.h.metrics.Shed(x.model.Name, x.terms.Name(), shed.Reason)
		f = shedFor(shed)
	case ctx.Err() != nil:
		return x.explain(ctx, err)
	default:
		f = noBackend(err)
	}
	x.refusal = x.model.Router.Refused(time.Now(), &x.ask, x.tried, x.held, f.reason)
	return f
}

// shedFor is the failure of a request that is refused for load.
func shedFor(s *router.Shed) *failure {
	reason, told := reasonShedDeadline, "no engine can answer in the time that was promised"
	switch s.Reason {
	case router.ShedFull:
		reason, told = reasonShedFull, "too many requests are waiting for this model"
	case shedVisibleLimit:
		reason, told = reasonShedVisibleLimit, "no engine can answer before it is of no use"
	}
	f := neutral(reason, &openai.Error{Status: http.StatusTooManyRequests, Code: reason,
		Message: told + "; try again later", RetryAfter: s.RetryAfter}, s)
	f.shed = s.Reason
	return f
}

// useless is the error of a request whose visible limit has passed, or surely would.
func useless() *router.Shed {
	return &router.Shed{Reason: shedVisibleLimit, RetryAfter: time.Second}
}

// isUseless reports whether a first token at t would be past the visible limit.
func (x *exchange) isUseless(t time.Time) bool {
	limit, ok := x.terms.Limit(x.accepted)
	return ok && t.After(limit)
}

// firstTokenOf is when the backend that was claimed should answer; now, where
// nothing is predicted.
func firstTokenOf(l *router.Lease) time.Time {
	p, _, _ := l.Prediction()
	return time.Now().Add(p.P50)
}

// isLate reports whether the backend that was claimed will probably answer too late.
func (x *exchange) isLate(l *router.Lease) bool {
	if x.due.IsZero() {
		return false
	}
	_, _, ok := l.Prediction()
	return ok && firstTokenOf(l).After(x.due)
}

// hasten does for a request that will be late what its contract says for that,
// short of refusing it: a backend is open to it, so that it takes nothing from
// anybody. It returns the lease to go on with.
func (x *exchange) hasten(ctx context.Context, lease *router.Lease) *router.Lease {
	for _, action := range x.actions() {
		switch action.Do {
		case sla.WarmUp:
			x.h.promises.WarmUp(x.model.Name)
		case sla.LighterModel:
			lighter := x.lighten(ctx, action.Model, false)
			if lighter == nil {
				continue
			}
			lease.Done(time.Now(), backends.Outcome{Class: backends.Dropped})
			return lighter
		case sla.ServeLate, sla.Shed:
			return lease
		}
	}
	return lease
}

// atRisk does with a request that waited in vain what its contract says for
// that, in order. It has waited, so wait is done; where nothing final is said
// it is served late, and so is one without a contract.
func (x *exchange) atRisk(ctx context.Context, shed *router.Shed) (*router.Lease, *failure) {
	if x.isUseless(time.Now()) {
		shed = &router.Shed{Reason: shedVisibleLimit, RetryAfter: shed.RetryAfter}
	}
	for _, action := range x.actions() {
		switch action.Do {
		case sla.WarmUp:
			x.h.promises.WarmUp(x.model.Name)
		case sla.LighterModel:
			if lease := x.lighten(ctx, action.Model, true); lease != nil {
				return lease, nil
			}
		case sla.Shed:
			return nil, x.notAdmitted(ctx, shed)
		case sla.ServeLate:
			return x.serveLate(ctx)
		}
	}
	return x.serveLate(ctx)
}

// serveLate takes a backend without waiting for one that is open, unless the
// answer would be of no use: then the request is shed.
func (x *exchange) serveLate(ctx context.Context) (*router.Lease, *failure) {
	lease, err := x.claimLate(x.model.Router, x.tried)
	if err != nil {
		return nil, x.notAdmitted(ctx, err)
	}
	return lease, nil
}

// claimLate claims a backend for an answer that is late already. The error is
// useless where it would come past the visible limit.
func (x *exchange) claimLate(r *router.Router, tried []*backends.Backend) (*router.Lease, error) {
	now := time.Now()
	if x.isUseless(now.Add(r.ExpectedTTFT(now))) {
		return nil, useless()
	}
	lease, err := r.Claim(now, &x.ask, tried)
	if err == nil && x.isUseless(firstTokenOf(lease)) {
		lease.Done(time.Now(), backends.Outcome{Class: backends.Dropped})
		return nil, useless()
	}
	return lease, err
}

func (x *exchange) actions() []sla.Action {
	if x.terms.Contract == nil {
		return nil
	}
	return x.terms.Spec.AtRisk
}

// lighten moves the request to a lighter model and claims a backend there. Too
// late an answer of the lighter model is worth something only if late says so.
// nil, and the request stays where it was, if there is none.
func (x *exchange) lighten(ctx context.Context, name string, late bool) *router.Lease {
	from, to := x.model, x.table.byName[name]
	if to == nil || to == from {
		return nil
	}
	x.moveTo(to)
	lease, err := x.enterIfInTime(ctx)
	if err == nil && !late && x.isLate(lease) {
		lease.Done(time.Now(), backends.Outcome{Class: backends.Dropped})
		err = errTooLate
	}
	if err != nil && late && ctx.Err() == nil {
		lease, err = x.claimLate(to.Router, nil)
	}
	if err != nil {
		x.moveTo(from)
		return nil
	}
	x.h.metrics.Lightened(x.terms.Name(), from.Name, to.Name)
	x.w.Header()["X-Firsttoken-Model-Served"] = []string{to.Name}
	return lease
}

var errTooLate = errors.New("too late")

// enterIfInTime enters as long as the first token is not overdue.
func (x *exchange) enterIfInTime(ctx context.Context) (*router.Lease, error) {
	if !time.Now().Before(x.due) {
		return nil, errTooLate
	}
	return x.enter(ctx, time.Time{})
}

// moveTo makes the request one of another model.
func (x *exchange) moveTo(m *Model) {
	x.model.Budget.end(x.retried)
	x.model.Metrics.InFlight.Dec()
	x.model, x.ask.Model = m, m.Name
	m.Metrics.InFlight.Inc()
	m.Budget.begin(time.Now())
}

// patience is until when to wait for the request's own model: as long as a
// lighter one can still be in time, should it take a quarter longer than it did
// of late. Zero is as long as the router holds it.
func (x *exchange) patience() time.Time {
	if x.due.IsZero() {
		return time.Time{}
	}
	for _, action := range x.actions() {
		if to := x.table.byName[action.Model]; action.Do == sla.LighterModel && to != nil {
			return x.due.Add(-to.Router.ExpectedTTFT(time.Now()) * 5 / 4)
		}
	}
	return time.Time{}
}

// enter asks for a backend and waits at the gateway while the router holds the
// request, at the longest until patience, if it is not zero. Then the error is
// as if the router had shed it.
func (x *exchange) enter(ctx context.Context, patience time.Time) (*router.Lease, error) {
	now := time.Now()
	if !x.model.Holds {
		return x.model.Router.Claim(now, &x.ask, x.tried)
	}
	decided := make(chan struct{}, 1) // a ticket is decided once
	t := x.model.Router.Enter(now, &x.ask, x.tried, func() { decided <- struct{}{} })
	select {
	case <-decided:
		return t.Lease, t.Err
	default:
	}
	return x.wait(ctx, now, t, decided, patience)
}

// wait is a request held at the gateway.
func (x *exchange) wait(ctx context.Context, now time.Time, t *router.Ticket, decided <-chan struct{}, patience time.Time) (*router.Lease, error) {
	m := x.model
	m.Metrics.Held.Inc()
	x.h.pump.begin(m.Router)
	defer func() {
		x.h.pump.end(m.Router)
		m.Metrics.Held.Dec()
		held := time.Since(now)
		m.Metrics.HeldFor(held)
		x.held += held
	}()
	var enough <-chan time.Time
	if !patience.IsZero() {
		timer := time.NewTimer(patience.Sub(now))
		defer timer.Stop()
		enough = timer.C
	}
	err := error(nil)
	select {
	case <-decided:
		return t.Lease, t.Err
	case <-enough:
		err = &router.Shed{Reason: router.ShedDeadline, RetryAfter: time.Second}
	case <-ctx.Done():
		err = ctx.Err()
	}
	m.Router.Leave(time.Now(), t)
	return nil, err
}
