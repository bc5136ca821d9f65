// Package bench measures a target that speaks OpenAI's API as its clients see
// it: when the first token came, the gaps between tokens, the end, and what
// went wrong.
//
// It owns the load (a closed loop of callers, or arrivals on a schedule that
// never waits for answers), the client with its clock, and the report of a run
// and of two compared. It leaves to others which requests a trace or a
// workload holds, and how streams are read.
package bench

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firsttoken/firsttoken/internal/trace"
)

// Bench runs one plan against its target, once.
type Bench struct {
	plan    Plan
	source  trace.Source
	client  *client
	counts  counts
	start   time.Time // of what is counted
	results chan Result
}

// Run is what was measured.
type Run struct {
	Plan       Plan // with the models that were asked for
	Started    time.Time
	Results    []Result // in the order of their arrival
	Unfinished int      // under way when the run was stopped; in no figure
	Stopped    bool     // before its end
}

// New checks a plan and makes its requests ready. The header is sent with each
// request. A nil transport means one of its own, whose connections a target
// that closes idle ones after 5 s (uvicorn) does not cut.
func New(plan Plan, header http.Header, transport http.RoundTripper) (*Bench, error) {
	plan, err := plan.checked()
	if err != nil {
		return nil, err
	}
	if transport == nil {
		transport = newTransport()
	}
	return &Bench{plan: plan, client: newClient(plan, header, transport)}, nil
}

func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{}, // one stream a connection
		MaxIdleConnsPerHost: 1 << 16,
		IdleConnTimeout:     4 * time.Second,
		DisableCompression:  true,
	}
}

// Close gives up idle connections.
func (b *Bench) Close() {
	if t, ok := b.client.http.Transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// Run discovers the models if the plan names none, warms the target up,
// measures, and waits for every request it sent. When ctx ends it gives what
// was measured until then. The error is about the plan, its trace, or a target
// that served no warm-up request.
func (b *Bench) Run(ctx context.Context) (*Run, error) {
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	if err := b.warmUp(ctx); err != nil {
		return nil, err
	}
	results, err := b.measure(ctx)
	run := &Run{Plan: b.plan, Started: b.start, Results: results, Stopped: ctx.Err() != nil}
	run.dropUnfinished()
	return run, err
}

func (b *Bench) prepare(ctx context.Context) error {
	if b.plan.needsModels() {
		found, err := b.client.models(ctx)
		if err != nil {
			return err
		}
		if b.plan.Workload != "" {
			found = found[:1] // an application asks one model
		}
		b.plan.Models = found
	}
	source, total, err := b.plan.source()
	b.source = source
	b.counts.total.Store(int64(total))
	return err
}

// warmUp sends the first requests of the plan with text of their own and in
// nobody's name, then the past of the conversations that a workload begins in
// the midst of, several at a time, and counts none of them.
func (b *Bench) warmUp(ctx context.Context) error {
	n := b.plan.WarmUp
	if n == 0 {
		return nil
	}
	warm, err := b.source.First(n).Each(func(r *trace.Request) { r.Content, r.Session, r.Tenant = nil, "", "" }).Collect()
	if err != nil {
		return err
	}
	if b.plan.Workload != "" {
		if warm, err = appendPasts(warm, b.source); err != nil {
			return err
		}
	}
	b.counts.warm(len(warm))
	b.begin()
	results, err := b.collect(func() error {
		return b.closedLoop(ctx, trace.Of(warm...), cmp.Or(b.plan.Concurrency, defaultConcurrency), b.plan.Seed^warmUpSeed, 0)
	})
	b.counts.reset()
	if err != nil || ctx.Err() != nil || len(results) == 0 {
		return err
	}
	for i := range results {
		if results[i].OK() {
			return nil
		}
	}
	return fmt.Errorf("%s served none of %d warm-up requests: %s: %s; --warmup 0 measures all the same",
		b.plan.Target, len(results), results[0].Outcome, results[0].Error)
}

// warmUpSeed keeps the text of the warm-up apart from what is measured.
const warmUpSeed = 0x77a5

func (b *Bench) measure(ctx context.Context) ([]Result, error) {
	results, err := b.collect(func() error {
		if b.plan.Open() {
			return b.openLoop(ctx)
		}
		b.begin()
		return b.closedLoop(ctx, b.source, b.plan.Concurrency, b.plan.Seed, b.plan.Duration)
	})
	byArrival(results)
	return results, err
}

func (b *Bench) begin() {
	now := time.Now()
	b.start = now
	b.counts.start.Store(&now)
}

// collect gathers the results of a load, which returns when all its requests
// have ended.
func (b *Bench) collect(load func() error) ([]Result, error) {
	b.results = make(chan Result, 64)
	var all []Result
	var gathering sync.WaitGroup
	gathering.Go(func() {
		for r := range b.results {
			all = append(all, r)
		}
	})
	err := load()
	close(b.results)
	gathering.Wait()
	return all, err
}

// closedLoop keeps so many callers busy: each sends its next request when the
// last one has ended. No request is sent later than limit after the start; 0 is
// no limit.
func (b *Bench) closedLoop(ctx context.Context, source trace.Source, callers int, seed uint64, limit time.Duration) error {
	questions := make(chan *question)
	var busy sync.WaitGroup
	for range callers {
		busy.Go(func() {
			for q := range questions {
				q.at = time.Since(b.start)
				b.ask(ctx, q)
			}
		})
	}
	over, stop := ctx, context.CancelFunc(func() {})
	if limit > 0 {
		over, stop = context.WithDeadline(ctx, b.start.Add(limit))
	}
	defer stop()
	err := b.client.each(source, seed, func(q *question) bool {
		select {
		case questions <- q:
			return true
		case <-over.Done():
			return false
		}
	})
	close(questions)
	busy.Wait()
	return err
}

// ahead is how many requests of an open loop are made ready before their time.
const ahead = 128

// openLoop sends each request at its time, whatever became of the others. The
// clock starts when the first requests are ready.
func (b *Bench) openLoop(ctx context.Context) error {
	ready, stop := make(chan *question, ahead), make(chan struct{})
	var err error
	var making, busy sync.WaitGroup
	making.Go(func() {
		defer close(ready)
		err = b.client.each(b.source, b.plan.Seed, func(q *question) bool {
			select {
			case ready <- q:
				return true
			case <-stop:
				return false
			}
		})
	})
	first, more := <-ready
	b.begin()
	for q := first; more && b.wait(ctx, q.at); q, more = <-ready {
		busy.Go(func() { b.ask(ctx, q) })
	}
	close(stop)
	making.Wait()
	busy.Wait()
	return err
}

// wait waits for a time of the schedule; it reports false when ctx ends.
func (b *Bench) wait(ctx context.Context, at time.Duration) bool {
	timer := time.NewTimer(at - time.Since(b.start))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (b *Bench) ask(ctx context.Context, q *question) {
	r := Result{Index: q.index, Model: q.Model, Workload: q.Workload, At: q.at, Concurrency: b.counts.sent()}
	r.Late = max(time.Since(b.start)-q.at, 0)
	b.client.ask(ctx, q, &r)
	b.counts.ended(&r)
	b.results <- r
}

// dropUnfinished leaves out what stopping the run cut off.
func (r *Run) dropUnfinished() {
	kept := r.Results[:0]
	for i := range r.Results {
		if r.Results[i].Outcome == Interrupted {
			r.Unfinished++
			continue
		}
		kept = append(kept, r.Results[i])
	}
	r.Results = kept
}

// Served reports whether at least one request was.
func (r *Run) Served() error {
	for i := range r.Results {
		if r.Results[i].OK() {
			return nil
		}
	}
	if len(r.Results) == 0 {
		return errors.New("no request ended before the run was stopped")
	}
	return fmt.Errorf("none of %d requests was served: %s: %s", len(r.Results), r.Results[0].Outcome, r.Results[0].Error)
}

// Progress is how far a run has come.
type Progress struct {
	Warming       bool          // the requests are those of the warm-up
	Elapsed       time.Duration // since the first of them
	Total         int           // how many there will be; 0 unknown
	Ended, Failed int
	InFlight      int
	OutputTokens  int // of the ended
}

// counts are what Progress shows.
type counts struct {
	start                                 atomic.Pointer[time.Time]
	warming                               atomic.Int64 // requests of the warm-up that goes on; 0 none does
	total, inFlight, done, failed, tokens atomic.Int64
}

func (c *counts) warm(requests int) { c.warming.Store(int64(requests)) }

func (c *counts) sent() int { return int(c.inFlight.Add(1)) }

func (c *counts) ended(r *Result) {
	c.inFlight.Add(-1)
	c.done.Add(1)
	c.tokens.Add(int64(r.Output))
	if !r.OK() {
		c.failed.Add(1)
	}
}

func (c *counts) reset() {
	c.warming.Store(0)
	c.done.Store(0)
	c.failed.Store(0)
	c.tokens.Store(0)
}

// Progress may be called at any time, from any goroutine.
func (b *Bench) Progress() Progress {
	c := &b.counts
	p := Progress{
		Warming: c.warming.Load() > 0, Total: int(c.total.Load()), InFlight: int(c.inFlight.Load()),
		Ended: int(c.done.Load()), Failed: int(c.failed.Load()), OutputTokens: int(c.tokens.Load()),
	}
	if p.Warming {
		p.Total = int(c.warming.Load())
	}
	if start := c.start.Load(); start != nil {
		p.Elapsed = time.Since(*start)
	}
	return p
}
