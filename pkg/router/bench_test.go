package router_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/deploy/contracts"
	"github.com/firsttoken/firsttoken/deploy/models"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// BenchmarkClaim is one attempt's bookkeeping: claim, first token, end, over
// backends that have load, samples, a penalty and a breaker.
func BenchmarkClaim(b *testing.B) {
	for _, policy := range router.PolicyNames() {
		for _, n := range []int{4, 100} {
			b.Run(fmt.Sprintf("%s/%d", policy, n), func(b *testing.B) {
				r := testRouter(b, policy, specs(n, func(i int, s *backends.Spec) {
					s.Health.BreakerFailures = 10
					s.Health.SlowStart = 30 * time.Second
				})...)
				now := t0
				req := &router.Request{Model: "m", PromptTokens: 500}
				for i := range 2 * n {
					l := mustClaim(b, r, now, req)
					l.FirstToken(now.Add(time.Duration(i) * time.Millisecond))
					if i%2 == 0 {
						l.Done(now, backends.Outcome{Class: backends.Overloaded})
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(time.Millisecond)
					l, err := r.Claim(now, req, nil)
					if err != nil {
						b.Fatal(err)
					}
					l.FirstToken(now)
					l.Done(now, backends.Outcome{})
				}
			})
		}
	}
}

// BenchmarkDecision is one decision as the live path makes it: a request with a
// contract enters; of every engine the prefix cache is asked, first token, time
// per token and harm are predicted, compliance is looked up; admission is asked,
// and a lease comes out. Every engine decodes eight answers, has two prompts
// pending and holds half of the request's 4,096 tokens. ns/op is the median of
// that; end-ns is what the lease costs from its first token on.
func BenchmarkDecision(b *testing.B) {
	for _, kind := range []predictor.Kind{predictor.Linear, predictor.LightGBM} {
		for _, n := range []int{10, 100} {
			b.Run(fmt.Sprintf("%v/%d", kind, n), func(b *testing.B) {
				l := newLivePool(b, kind, n)
				allocs := l.allocations(b)
				var decisions, ends []time.Duration
				for b.Loop() {
					decision, end := l.step(b)
					decisions, ends = append(decisions, decision), append(ends, end)
				}
				b.ReportMetric(nanoseconds(decisions, .5), "ns/op")
				b.ReportMetric(nanoseconds(decisions, .99), "p99-ns")
				b.ReportMetric(nanoseconds(ends, .5), "end-ns")
				b.ReportMetric(allocs, "allocs/decision")
			})
		}
	}
}

// nanoseconds of the quantile q in 0..1.
func nanoseconds(values []time.Duration, q float64) float64 {
	slices.Sort(values)
	return float64(values[int(q*float64(len(values)-1))])
}

// livePool is a router over engines at work, in virtual time.
type livePool struct {
	*router.Router
	now      time.Time
	pool     *predictor.Pool
	engines  []*liveEngine
	contract *sla.Contract
	ledger   *sla.Ledger
	blocks   uint64          // the last hash given out
	waiting  []*router.Lease // decided on, no first token yet
	steps    int
}

// liveEngine is the work that others have on an engine, oldest first.
type liveEngine struct {
	*backends.Backend
	rest              []*backends.Backend // all engines but this one
	pending, decoding []*router.Lease
}

const (
	decodingEach = 8
	pendingEach  = 2
	sharedBlocks = 32 // of a request's 64
	engineStep   = 50 * time.Millisecond
)

// newLivePool is a pool of n engines that one kind of estimator serves.
func newLivePool(b *testing.B, kind predictor.Kind, n int) *livePool {
	b.Helper()
	l := &livePool{now: t0, blocks: sharedBlocks, Router: testRouter(b, router.Headroom, specs(n)...)}
	l.agree(b)
	l.foresee(b, kind)
	l.Admit(router.Admission{})
	all := l.Pool().Backends
	for i, own := range all {
		e := &liveEngine{Backend: own, rest: slices.Concat(all[:i], all[i+1:])}
		l.engines = append(l.engines, e)
		e.send(b, l, l.request())
		for range decodingEach + pendingEach {
			e.send(b, l, l.small())
		}
		l.ledger.Record(l.now, own.Name, l.contract, sla.Outcome{TTFT: 200 * time.Millisecond, TPOT: engineStep, E2E: time.Second})
	}
	for range 15 * int(time.Second/engineStep) {
		l.step(b)
	}
	if serving := l.pool.Report(l.now).Serving; serving != kind {
		b.Fatalf("%v serves instead of %v", serving, kind)
	}
	return l
}

// agree puts the shipped contracts into force.
func (l *livePool) agree(b *testing.B) {
	set, err := sla.LoadFS(contracts.Files())
	if err != nil {
		b.Fatal(err)
	}
	l.contract = set.Contract("customer-service")
	l.ledger = sla.NewLedger(set, sla.Options{})
}

// foresee gives the router the shipped model, and rules that choose the kind.
func (l *livePool) foresee(b *testing.B, kind predictor.Kind) {
	rules := predictor.Rules{LowRate: 1e9, VolatileCV: 1e9, MaxMAPE: 1e9}
	if kind == predictor.LightGBM {
		rules = predictor.Rules{VolatileCV: 1e-9, MinSamples: math.MaxInt}
	}
	l.pool = predictor.NewPool("m", rules, nil)
	l.pool.SetModel(shippedModel(b))
	speed := predictor.Speed{Fixed: 0.004, Step: 0.045, Token: 10e-6, Seq: 60e-6, Context: 60e-9, Square: 1e-9}
	f := router.Foresight{Pool: l.pool, Ledger: l.ledger}
	for range l.Pool().Backends {
		f.Instances = append(f.Instances, predictor.NewInstance(speed))
	}
	l.Foresee(f)
}

func shippedModel(b *testing.B) predictor.Model {
	files, err := models.Bootstrap()
	if err != nil {
		b.Fatal(err)
	}
	bundle, err := trees.OpenWith(files, predictor.Names(), predictor.SchemaHash())
	if err != nil {
		b.Fatal(err)
	}
	return bundle
}

// request has a prompt of 4,096 tokens whose first half the engines know.
func (l *livePool) request() *router.Request {
	req := l.small()
	for i := range uint64(sharedBlocks) {
		req.Blocks = append(req.Blocks, i+1)
	}
	for range sharedBlocks {
		l.blocks++
		req.Blocks = append(req.Blocks, l.blocks)
	}
	req.PromptTokens = len(req.Blocks) * backends.BlockTokens
	return req
}

// small has a prompt of 300 tokens that nobody knows.
func (l *livePool) small() *router.Request {
	return &router.Request{
		Model: "m", PromptTokens: 300, MaxTokens: 500, Stream: true, Turn: 2, Tenant: "shop",
		Accepted: l.now, TTFT: 2 * time.Second, TPOT: 80 * time.Millisecond, Contract: l.contract.Name(),
	}
}

// send puts more of others' work on the engine.
func (e *liveEngine) send(b *testing.B, l *livePool, req *router.Request) {
	lease, err := l.Claim(l.now, req, e.rest)
	if err != nil {
		b.Fatal(err)
	}
	e.pending = append(e.pending, lease)
}

// step lets every engine make one, and then measures a decision. A request gets
// its first token, and ends, two steps after it was decided on.
func (l *livePool) step(b *testing.B) (decision, end time.Duration) {
	l.now = l.now.Add(engineStep)
	l.steps++
	for i, e := range l.engines {
		e.step(b, l, l.now.Add(-time.Duration(1+i%7)*engineStep/10))
	}
	if len(l.waiting) > 1 {
		end = l.end()
	}
	req := l.request()
	began := time.Now()
	ticket := l.Enter(l.now, req, nil, nil)
	decision = time.Since(began)
	if ticket.Lease == nil {
		b.Fatalf("no lease; decided: %v, %v", ticket.Decided(), ticket.Err)
	}
	l.waiting = append(l.waiting, ticket.Lease)
	return decision, end
}

// end measures first token and end of the oldest lease.
func (l *livePool) end() time.Duration {
	lease := l.waiting[0]
	l.waiting = l.waiting[1:]
	began := time.Now()
	lease.FirstToken(l.now)
	lease.Done(l.now, backends.Outcome{})
	return time.Since(began)
}

// step gives each answer a token. At every other step the prompts pending begin
// to be answered, as many answers end, and as many prompts come.
func (e *liveEngine) step(b *testing.B, l *livePool, at time.Time) {
	for _, lease := range e.decoding {
		lease.Token(at)
	}
	if l.steps%20 == 0 {
		e.scrape(at)
	}
	if l.steps%2 == 0 {
		return
	}
	for _, lease := range e.pending {
		lease.FirstToken(at)
	}
	e.decoding, e.pending = append(e.decoding, e.pending...), e.pending[:0]
	for len(e.decoding) > decodingEach {
		e.decoding[0].Done(at, backends.Outcome{})
		e.decoding = e.decoding[1:]
	}
	for range pendingEach {
		e.send(b, l, l.small())
	}
}

// scrape is what the engine's metrics say.
func (e *liveEngine) scrape(at time.Time) {
	s := backends.UnknownSignals()
	s.Began, s.At = at, at
	s.Running, s.Waiting, s.OwnInFlight = decodingEach, pendingEach, decodingEach+pendingEach
	s.KVUse, s.CacheTokens = 0.3, 200_000
	e.SetSignals(s)
}

// allocations of a decision and the end of its lease.
func (l *livePool) allocations(b *testing.B) float64 {
	var requests []*router.Request
	for range 12 {
		requests = append(requests, l.request())
	}
	return testing.AllocsPerRun(10, func() {
		ticket := l.Enter(l.now, requests[0], nil, nil)
		if ticket.Lease == nil {
			b.Fatal("no lease")
		}
		ticket.Lease.FirstToken(l.now)
		ticket.Lease.Done(l.now, backends.Outcome{})
		requests = requests[1:]
	})
}
