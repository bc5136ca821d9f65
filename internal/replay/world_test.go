package replay

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

func testWorld(t *testing.T, c Config, requests ...trace.Request) (*world, Totals) {
	t.Helper()
	p := engine.Params{Step: engine.StepModel{T0: 10 * time.Millisecond, Alpha: 100, Beta: 1000}, KVBlocks: 1024}
	for len(c.Engines) < 3 {
		c.Engines = append(c.Engines, Engine{Name: string(rune('a' + len(c.Engines))), Params: p})
	}
	w, err := newWorld(c.withDefaults(), func(*Outcome) {})
	if err != nil {
		t.Fatal(err)
	}
	totals, err := w.run(trace.Of(requests...))
	if err != nil {
		t.Fatal(err)
	}
	return w, totals
}

func stream(at time.Duration, prompt, output int) trace.Request {
	return trace.Request{At: at, PromptTokens: prompt, OutputTokens: output, Stream: true}
}

// Whatever became of the requests, nothing is counted when all have ended.
func TestLeasesEnd(t *testing.T) {
	t.Parallel()
	var asks []trace.Request
	for i := range 800 {
		r := stream(time.Duration(i)*15*time.Millisecond, 100+i, 1+i%40)
		r.Stream = i%5 != 0
		asks = append(asks, r)
	}
	crash := []Fault{
		{At: time.Second, Engine: 0, Fault: engine.Fault{Kind: engine.Crash}}, {At: 3 * time.Second, Engine: 0, Fault: engine.Fault{Kind: engine.Restart}},
		{At: 2 * time.Second, Engine: 1, Fault: engine.Fault{Kind: engine.Crash}}, {At: 4 * time.Second, Engine: 1, Fault: engine.Fault{Kind: engine.Restart}},
	}
	stopAfter := func(n int) func() bool { return func() bool { n--; return n < 0 } }
	for name, c := range map[string]Config{
		"all is well": {Policy: router.LeastInFlight},
		"crashes":     {Policy: router.TokenLoad, Faults: crash, Gateways: 2},
		"stopped":     {Policy: router.RoundRobin, Stop: stopAfter(1)},
	} {
		w, totals := testWorld(t, c, asks...)
		if totals.Stopped != (name == "stopped") {
			t.Errorf("%s: stopped %v", name, totals.Stopped)
		}
		for g, gate := range w.gates {
			for i, b := range gate.targets {
				load := b.Load(w.clock())
				if load.InFlight != 0 || load.Prefilling != 0 || load.PrefillTokens != 0 || load.Held != 0 {
					t.Errorf("%s: gateway %d still counts %+v on engine %d", name, g, load, i)
				}
			}
		}
		for i, n := range w.engines {
			if len(n.slots) != 0 && name != "stopped" {
				t.Errorf("%s: engine %d still has %d requests", name, i, len(n.slots))
			}
		}
		if w.under != 0 || len(w.free) != len(w.flights) {
			t.Errorf("%s: %d requests under way, %d of %d slots free", name, w.under, len(w.free), len(w.flights))
		}
	}
}

// What a gateway knows of an engine is as old as its last scrape.
func TestSignalsAge(t *testing.T) {
	t.Parallel()
	const network = 3 * time.Millisecond
	busy := []trace.Request{stream(0, 100, 900), stream(0, 100, 900), stream(0, 100, 900), stream(9*time.Second, 1, 1)}
	for _, interval := range []time.Duration{100 * time.Millisecond, 2 * time.Second} {
		w, _ := testWorld(t, Config{Policy: router.RoundRobin, Scrape: interval, Network: network}, busy...)
		oldest := time.Duration(0)
		for i, b := range w.gates[0].targets {
			s := b.Signals()
			age := s.Age(w.clock())
			oldest = max(oldest, age)
			if age > interval*12/10+2*network {
				t.Errorf("scrape %v: signals of engine %d are %v old", interval, i, age)
			}
			if took := s.At.Sub(s.Began); took != 2*network {
				t.Errorf("scrape %v: a scrape took %v, want twice the network", interval, took)
			}
			if s.Running != 1 || s.Waiting != 0 || s.OwnInFlight != 1 || s.StartTime != float64(origin.Unix()) || !(s.KVUse > 0 && s.KVUse < 0.1) {
				t.Errorf("scrape %v: engine %d says %+v", interval, i, s)
			}
		}
		if oldest < interval/10 {
			t.Errorf("scrape %v: no signals are older than %v", interval, oldest)
		}
	}
	w, _ := testWorld(t, Config{Policy: router.RoundRobin, Scrape: -1}, busy...)
	if age := w.gates[0].targets[0].Signals().Age(w.clock()); age != 1<<63-1 {
		t.Errorf("without scrapes signals are %v old", age)
	}
}

// The engine speaks as of the middle of the scrape, not of its end.
func TestSignalsAreOfTheEnginesMoment(t *testing.T) {
	t.Parallel()
	p := engine.Params{Step: engine.StepModel{T0: time.Second}, KVBlocks: 64}
	w, err := newWorld(Config{Engines: []Engine{{Params: p}}, Policy: router.Random, Network: 100 * time.Millisecond, Scrape: -1}.withDefaults(), func(*Outcome) {})
	if err != nil {
		t.Fatal(err)
	}
	w.Scrape = time.Hour
	w.queue.push(150*time.Millisecond, scrapeSent, 0, 0) // read at 250 ms, seen at 350 ms
	if _, err := w.run(trace.Of(stream(100*time.Millisecond, 1, 1), stream(160*time.Millisecond, 1, 1))); err != nil {
		t.Fatal(err)
	}
	// The first request reaches the engine at 200 ms, the second at 260 ms.
	s := w.gates[0].targets[0].Signals()
	if s.Running+s.Waiting != 1 || s.OwnInFlight != 1 {
		t.Errorf("running %v, waiting %v, own %d", s.Running, s.Waiting, s.OwnInFlight)
	}
	if at := s.At.Sub(origin); at != 350*time.Millisecond {
		t.Errorf("signals are of %v", at)
	}
}

// Metrics that stand still are read, and look fresh.
func TestStalledMetrics(t *testing.T) {
	t.Parallel()
	long := stream(2*time.Second, 1, 900)
	w, _ := testWorld(t, Config{Policy: router.RoundRobin, Faults: []Fault{{At: time.Second, Fault: engine.Fault{Kind: engine.StallMetrics}}}},
		stream(0, 1, 1), stream(0, 1, 1), stream(0, 1, 1), long, long, long)
	for i, b := range w.gates[0].targets {
		s, want := b.Signals(), 1.0
		if i == 0 {
			want = 0
		}
		if age := s.Age(w.clock()); s.Running != want || s.OwnInFlight != 1 || age > time.Second {
			t.Errorf("engine %d: %v running, %d of our own, %v old; want %v running", i, s.Running, s.OwnInFlight, age, want)
		}
	}
}

// A restart shows in the signals, so that what the old process had cached is forgotten.
func TestRestartShowsInSignals(t *testing.T) {
	t.Parallel()
	w, _ := testWorld(t, Config{Policy: router.RoundRobin, Faults: []Fault{{At: time.Second, Fault: engine.Fault{Kind: engine.Crash}}, {At: 2 * time.Second, Fault: engine.Fault{Kind: engine.Restart}}}},
		stream(0, 1, 1), stream(5*time.Second, 1, 1))
	for i, b := range w.gates[0].targets {
		want := float64(origin.Unix())
		if i == 0 {
			want++
		}
		if got := b.Signals().StartTime; got != want {
			t.Errorf("engine %d started at %v, want %v", i, got, want)
		}
	}
}

func TestQueueOrder(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	var q queue
	var want, got []event
	for range 5000 {
		if rng.IntN(3) > 0 || len(q.heap) == 0 {
			q.push(time.Duration(rng.IntN(50)), wake, len(want), 0)
			want = append(want, event{at: q.heap[len(q.heap)-1].at})
			continue
		}
		got = append(got, q.pop())
	}
	tail := len(got)
	for len(q.heap) > 0 {
		got = append(got, q.pop())
	}
	rest := got[tail:]
	if !slices.IsSortedFunc(rest, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) }) {
		t.Error("events come out of order")
	}
	slices.SortFunc(got, func(a, b event) int { return cmp.Compare(a.seq, b.seq) })
	for i, e := range got {
		if e.seq != uint64(i+1) || int(e.a) != i {
			t.Fatalf("event %d is %+v", i, e)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d events came of %d", len(got), len(want))
	}
}

func TestGatewayBlocksAreThePromptsOwn(t *testing.T) {
	t.Parallel()
	const per = backends.BlockTokens / engine.BlockTokens
	hashes := make([]uint64, 100)
	for i := range hashes {
		hashes[i] = uint64(i)
	}
	for _, c := range []struct{ known, prompt, want int }{
		{0, 1000, 0}, {100, 63, 0}, {100, 64, 1}, {100, 130, 2}, {9, 1000, 2}, {100, 100 * 16, 25},
	} {
		got := gatewayBlocks(nil, hashes[:c.known], c.prompt)
		if len(got) != c.want {
			t.Errorf("%d blocks known of a prompt of %d tokens: %d, want %d", c.known, c.prompt, len(got), c.want)
		}
		for i, h := range got {
			if h != uint64((i+1)*per-1) {
				t.Errorf("block %d is %d", i, h)
			}
		}
	}
}
