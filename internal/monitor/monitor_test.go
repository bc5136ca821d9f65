package monitor_test

import (
	"cmp"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/memnet"
	"github.com/firsttoken/firsttoken/internal/monitor"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// result is one report to the recorder.
type result struct {
	after   time.Duration // since the start
	backend string
	ok      bool
}

type recorder struct {
	start time.Time

	mu              sync.Mutex
	probes, scrapes []result
}

func (r *recorder) Probed(backend string, ok bool)  { r.add(&r.probes, backend, ok) }
func (r *recorder) Scraped(backend string, ok bool) { r.add(&r.scrapes, backend, ok) }

func (r *recorder) add(to *[]result, backend string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*to = append(*to, result{time.Since(r.start), backend, ok})
}

func (r *recorder) take(from *[]result) []result {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := *from
	*from = nil
	return out
}

// bench is a monitor over an in-memory network.
type bench struct {
	*recorder
	*monitor.Monitor
	net       *memnet.Network
	transport *http.Transport
	logs      *observer.ObservedLogs
}

// inBubble runs test in virtual time; loops that Stop leaves behind make it fail.
func inBubble(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		b := &bench{recorder: &recorder{start: time.Now()}, net: memnet.New(), logs: logs}
		b.transport = &http.Transport{DialContext: b.net.DialContext}
		b.Monitor = monitor.New(zap.New(core), b)
		defer b.transport.CloseIdleConnections()
		defer b.Stop()
		test(t, b)
	})
}

// serve runs an engine until stop is called or the test ends.
func (b *bench) serve(t *testing.T, name string, engine *fakellm.Backend) (stop func()) {
	t.Helper()
	l, err := b.net.Listen(name + ":80")
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(fakellm.Serve(l, engine).Close)
	t.Cleanup(stop)
	return stop
}

const (
	interval = 10 * time.Second
	timeout  = time.Second
)

// probed and scraped are targets of that name.
func (b *bench) probed(name string) monitor.Target {
	return monitor.Target{
		Backend: engine(name), Transport: b.transport,
		ProbePath: "/health", ProbeInterval: interval, ProbeTimeout: timeout,
	}
}

func (b *bench) scraped(name string) monitor.Target {
	return monitor.Target{
		Backend: engine(name), Transport: b.transport,
		MetricsPath: "/metrics", MetricsInterval: interval, MetricsTimeout: timeout,
	}
}

func engine(name string) *backends.Backend {
	return engines(backends.Spec{Name: name})[0]
}

func engines(s backends.Spec) []*backends.Backend {
	s.URL, s.Kind = &url.URL{Scheme: "http", Host: s.Name + ":80"}, backends.VLLM
	return backends.NewFleet().Pools([]backends.PoolSpec{{Model: "m", Backends: []backends.Spec{s}}})[0].Backends
}

// run lets n rounds begin and end: the last begins n-1 intervals after the
// first, give or take a fifth.
func run(n float64) {
	time.Sleep(time.Duration(n * float64(interval)))
	synctest.Wait()
}

func status(code int) fakellm.Script { return fakellm.Status(code, nil, "") }

func always(s fakellm.Script) func(*fakellm.Request) fakellm.Script { return fakellm.Sequence(s) }

// verdicts are the results as a string of + and -.
func verdicts(rs []result) string {
	var s strings.Builder
	for _, r := range rs {
		s.WriteString(map[bool]string{true: "+", false: "-"}[r.ok])
	}
	return s.String()
}

func TestProbeThresholds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		up, bad := status(200), status(503)
		fake := &fakellm.Backend{Health: fakellm.Sequence(up, bad, bad, up, bad, bad, bad, bad, up, bad, up, up, up)}
		b.serve(t, "a", fake)
		target := b.probed("a")
		b.Watch([]monitor.Target{target})
		seen, states := "", ""
		for len(seen) < 13 {
			run(0.1)
			for range b.take(&b.probes) {
				up := target.Backend.Status(time.Now()).Up
				seen += "x"
				states += map[bool]string{true: "+", false: "-"}[up]
			}
		}
		if want := "++++++-----++"; states != want {
			t.Errorf("up %s, want %s", states, want)
		}
		var logged []string
		for _, l := range b.logs.All() {
			if l.ContextMap()["backend"] != "a" {
				t.Errorf("%q does not name the backend", l.Message)
			}
			logged = append(logged, l.Level.String()+": "+l.Message)
		}
		if want := []string{"warn: backend is down", "info: backend is healthy again"}; !slices.Equal(logged, want) {
			t.Errorf("logged %q, want %q: changes only", logged, want)
		}
		if cause := b.logs.FilterMessage("backend is down").All()[0].ContextMap()["error"]; cause != "GET /health answered 503" {
			t.Errorf("cause %v", cause)
		}
	})
}

func TestProbeVerdicts(t *testing.T) {
	late := fakellm.Script{fakellm.Wait(timeout - 1), status(200).Play}
	for name, tt := range map[string]struct {
		answer fakellm.Script
		want   string
		after  time.Duration
	}{
		"200":              {status(200), "+", 0},
		"204":              {status(204), "+", 0},
		"404":              {status(404), "-", 0},
		"a redirect":       {fakellm.Status(302, http.Header{"Location": {"/"}}, ""), "-", 0},
		"just in time":     {late, "+", timeout - 1},
		"silence":          {fakellm.Script{fakellm.Hang()}, "-", timeout},
		"a reset":          {fakellm.Script{fakellm.Reset()}, "-", 0},
		"an endless body":  {fakellm.Script{fakellm.Send("ok"), fakellm.Hang()}, "+", timeout},
		"an endless error": {fakellm.Script{fakellm.Header(500, nil), fakellm.Send("no"), fakellm.Hang()}, "-", timeout},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.serve(t, "a", &fakellm.Backend{Health: always(tt.answer)})
				b.Watch([]monitor.Target{b.probed("a")})
				run(0.5)
				got := b.take(&b.probes)
				if len(got) != 1 || verdicts(got) != tt.want || got[0].after != tt.after || got[0].backend != "a" {
					t.Errorf("got %v, want %s after %v", got, tt.want, tt.after)
				}
			})
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) {
			b.Watch([]monitor.Target{b.probed("a")})
			run(0.5)
			if got := verdicts(b.take(&b.probes)); got != "-" {
				t.Errorf("got %s", got)
			}
		})
	})
}

// TestIntervals: the first round comes at once, the others jittered by a
// fifth at most, and not in step.
func TestIntervals(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.serve(t, "a", &fakellm.Backend{})
		b.serve(t, "b", &fakellm.Backend{})
		b.Watch([]monitor.Target{b.probed("a"), b.scraped("b")})
		run(200)
		for name, rs := range map[string][]result{"probes": b.take(&b.probes), "scrapes": b.take(&b.scrapes)} {
			if len(rs) < 190 || len(rs) > 211 || rs[0].after != 0 {
				t.Fatalf("%d %s in 200 intervals, the first after %v", len(rs), name, rs[0].after)
			}
			least, most := time.Hour, time.Duration(0)
			for i := range rs[1:] {
				gap := rs[i+1].after - rs[i].after
				least, most = min(least, gap), max(most, gap)
			}
			if least < interval*8/10 || most > interval*12/10 || most-least < interval*3/10 {
				t.Errorf("%s: gaps from %v to %v, want %v and a fifth around it", name, least, most, interval)
			}
		}
	})
}

func TestRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		fake := &fakellm.Backend{}
		b.serve(t, "a", fake)
		both := b.scraped("a")
		both.ProbePath, both.ProbeInterval = "/v1/models", interval
		both.Backend = engines(backends.Spec{Name: "a", AuthHeader: "Authorization", AuthValue: "Bearer s3cret"})[0]
		b.Watch([]monitor.Target{both})
		run(0.5)
		if fake.Count() != 0 {
			t.Error("a completion was sent")
		}
		got := fake.Probes()
		slices.SortFunc(got, func(a, b *fakellm.Request) int { return cmp.Compare(a.Path, b.Path) })
		if len(got) != 2 || got[0].Path != "/metrics" || got[1].Path != "/v1/models" {
			t.Fatalf("%d requests", len(got))
		}
		for _, r := range got {
			if r.Method != "GET" || r.Host != "a:80" || r.Header.Get("Authorization") != "Bearer s3cret" || r.Header.Get("User-Agent") != "firsttoken" {
				t.Errorf("%s %s%s with %v", r.Method, r.Host, r.Path, r.Header)
			}
		}
		b.Stop()
		for _, l := range b.logs.All() {
			for _, v := range l.ContextMap() {
				if s, _ := v.(string); strings.Contains(s, "s3cret") {
					t.Errorf("the log tells the secret: %v", l)
				}
			}
		}
	})
	t.Run("below a path, without credentials", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) {
			fake := &fakellm.Backend{Script: always(status(200))}
			b.serve(t, "a", fake)
			target := b.probed("a")
			target.Backend.URL.Path = "/engines/a"
			b.Watch([]monitor.Target{target})
			run(0.5)
			if r := fake.Requests(); len(r) != 1 || r[0].Path != "/engines/a/health" || r[0].Header.Get("Authorization") != "" {
				t.Errorf("got %v", r)
			}
		})
	})
	t.Run("one connection", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) {
			fake := &fakellm.Backend{Health: fakellm.Sequence(status(200), status(500), status(200))}
			b.serve(t, "a", fake)
			b.Watch([]monitor.Target{b.probed("a")})
			run(3.7)
			for _, r := range fake.Probes() {
				if r.RemoteAddr != fake.Probes()[0].RemoteAddr {
					t.Error("a probe opened a new connection")
				}
			}
		})
	})
}

const gauges = "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"

func TestScrape(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.net.SetLatency(20 * time.Millisecond)
		slow := fakellm.Script{fakellm.Wait(100 * time.Millisecond), fakellm.Status(200, nil, gauges).Play}
		b.serve(t, "a", &fakellm.Backend{Metrics: always(slow)})
		target := b.scraped("a")
		pool := backends.NewFleet().Pools([]backends.PoolSpec{{Model: "m", Backends: []backends.Spec{target.Backend.Spec}}})[0]
		target.Backend = pool.Backends[0]
		for range 4 {
			if _, err := pool.Claim(time.Now(), backends.Work{}, nil, func([]backends.Candidate) int { return 0 }); err != nil {
				t.Fatal(err)
			}
		}
		b.Watch([]monitor.Target{target})
		run(0.5)
		s := target.Backend.Signals()
		if s.Running != 3 || s.Waiting != 2 || s.KVUse != .5 || !math.IsNaN(s.CPU) || s.OwnInFlight != 4 {
			t.Errorf("got %+v", s)
		}
		// dial, request and answer, 20 ms each way, and the engine's own time
		if took := s.At.Sub(s.Began); s.Began != b.start || took != 180*time.Millisecond {
			t.Errorf("began after %v, took %v", s.Began.Sub(b.start), took)
		}
		if got, want := s.Age(time.Now()), interval/2-180*time.Millisecond; got != want {
			t.Errorf("age %v, want %v", got, want)
		}
		if got := verdicts(b.take(&b.scrapes)); got != "+" {
			t.Errorf("scrapes %s", got)
		}
	})
}

// TestScrapeFails: what was known stays, and grows old.
func TestScrapeFails(t *testing.T) {
	for name, bad := range map[string]fakellm.Script{
		"404":           status(404),
		"HTML":          fakellm.Status(200, nil, "<html>not here</html>\n"),
		"broken":        fakellm.Status(200, nil, "vllm:num_requests_running many\n"),
		"silence":       {fakellm.Hang()},
		"a stuck body":  {fakellm.Send(gauges), fakellm.Hang()},
		"half a body":   {fakellm.Send("vllm:num_requests_running 9\n"), fakellm.CutDirty("vllm:num_req")},
		"a lost engine": {fakellm.Reset()},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.serve(t, "a", &fakellm.Backend{Metrics: fakellm.Sequence(fakellm.Status(200, nil, gauges), bad)})
				target := b.scraped("a")
				b.Watch([]monitor.Target{target})
				run(1.5)
				if got := verdicts(b.take(&b.scrapes)); got != "+-" {
					t.Fatalf("scrapes %s", got)
				}
				s := target.Backend.Signals()
				if s.Running != 3 || s.Waiting != 2 || s.KVUse != .5 || s.Age(time.Now()) != interval*3/2 {
					t.Errorf("got %+v, age %v", s, s.Age(time.Now()))
				}
				if !target.Backend.Status(time.Now()).Up {
					t.Error("a scrape took the backend out")
				}
			})
		})
	}
}

func TestNothingToDo(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.serve(t, "a", &fakellm.Backend{})
		off, noPath := b.probed("a"), b.scraped("a")
		off.ProbeInterval, noPath.MetricsPath = 0, ""
		b.Watch([]monitor.Target{off, noPath})
		run(5)
		if p, s := b.take(&b.probes), b.take(&b.scrapes); len(p)+len(s) != 0 {
			t.Errorf("probes %v, scrapes %v", p, s)
		}
	})
}

// TestWatchReplaces: whoever is not in the new set is not asked any more, and
// an answer that was under way counts for nothing.
func TestWatchReplaces(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		old, fresh := &fakellm.Backend{Health: always(fakellm.Script{fakellm.Hang()})}, &fakellm.Backend{}
		b.serve(t, "old", old)
		b.serve(t, "new", fresh)
		b.Watch([]monitor.Target{b.probed("old"), b.probed("new")})
		synctest.Wait()
		before := time.Now()
		b.Watch([]monitor.Target{b.probed("new")})
		if waited := time.Since(before); waited != 0 {
			t.Errorf("waited %v for a probe that is of no use", waited)
		}
		synctest.Wait()
		if got := old.Probes(); len(got) != 1 || got[0].Cancelled() != before {
			t.Errorf("the old probe was not cancelled at once")
		}
		run(10)
		if got := len(old.Probes()); got != 1 {
			t.Errorf("the old engine was asked %d times", got)
		}
		for _, r := range b.take(&b.probes) {
			if r.backend != "new" || !r.ok {
				t.Errorf("reported %+v", r)
			}
		}
	})
}

func TestStop(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.Stop() // before anything was watched
		fake := &fakellm.Backend{Health: always(fakellm.Script{fakellm.Hang()})}
		b.serve(t, "a", fake)
		target := b.probed("a")
		target.ProbeTimeout = 0 // for ever
		b.Watch([]monitor.Target{target})
		synctest.Wait()
		var stops sync.WaitGroup
		for range 3 {
			stops.Go(b.Stop)
		}
		stops.Wait()
		b.Stop()
		run(5)
		if n, rs := len(fake.Probes()), b.take(&b.probes); n != 1 || len(rs) != 0 {
			t.Errorf("%d probes, reported %v", n, rs)
		}
		b.Watch([]monitor.Target{b.probed("a")}) // and on again
		run(0.5)
		if got := verdicts(b.take(&b.probes)); got != "-" {
			t.Errorf("after the stop: %q", got)
		}
	})
}

// stubborn is a transport that does not heed cancellation.
type stubborn time.Duration

func (s stubborn) RoundTrip(*http.Request) (*http.Response, error) {
	time.Sleep(time.Duration(s))
	return nil, http.ErrServerClosed
}

// TestStopWaits: when Stop or Watch returns, the loops of before have ended.
func TestStopWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		target := b.probed("a")
		target.Transport = stubborn(time.Second)
		for name, end := range map[string]func(){"Stop": b.Stop, "Watch": func() { b.Watch(nil) }} {
			b.Watch([]monitor.Target{target})
			synctest.Wait()
			before := time.Now()
			end()
			if waited := time.Since(before); waited != time.Second {
				t.Errorf("%s waited %v for a probe of one second", name, waited)
			}
		}
		if got := b.take(&b.probes); len(got) != 0 {
			t.Errorf("reported %v", got)
		}
	})
}

// TestRestart: an engine that dies is taken out and comes back by itself, with
// counters that begin anew.
func TestRestart(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		metrics := func(hits, queries string) *fakellm.Backend {
			text := "vllm:prefix_cache_hits_total " + hits + "\nvllm:prefix_cache_queries_total " + queries + "\n"
			return &fakellm.Backend{Metrics: always(fakellm.Status(200, nil, text))}
		}
		stop := b.serve(t, "a", metrics("100", "1000"))
		target := b.scraped("a")
		target.ProbePath, target.ProbeInterval = "/health", interval
		up := func() bool { return target.Backend.Status(time.Now()).Up }
		b.Watch([]monitor.Target{target})
		run(2)
		stop()
		run(5)
		if up() {
			t.Fatal("up although nobody listens")
		}
		if s := target.Backend.Signals(); s.PrefixHitRatio != .1 || s.Age(time.Now()) < 4*interval {
			t.Errorf("hits %v, age %v", s.PrefixHitRatio, s.Age(time.Now()))
		}
		b.serve(t, "a", metrics("5", "10"))
		run(3)
		if s := target.Backend.Signals(); !up() || s.PrefixHitRatio != .5 || s.Age(time.Now()) > 2*interval {
			t.Errorf("up %v, hits %v, age %v", up(), s.PrefixHitRatio, s.Age(time.Now()))
		}
	})
}
