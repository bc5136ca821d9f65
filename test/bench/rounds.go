package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// settings of a run.
type settings struct {
	Rounds   int           `json:"rounds"`
	Duration time.Duration `json:"duration_ns"` // of one cell
	Streams  int           `json:"idle_streams"`
	Idle     int           `json:"idle_rounds"`
	Seed     uint64        `json:"seed"`
}

// cell is one measurement of a peer in a round.
type cell struct {
	kind  kind
	conns int
}

func (c cell) String() string { return fmt.Sprintf("%s c=%d", c.kind.name, c.conns) }

// cells are in the order of the table. The paced one is a stream as engines
// make it, every event on its own, on a machine that is not saturated.
var cells = []cell{{plain, 1}, {plain, 16}, {plain, 64}, {stream, 1}, {stream, 16}, {stream, 64}, {paced, 64}}

// bench is one run: the peers side by side and what they measured.
type bench struct {
	settings
	engine  *instance
	peers   []peer
	running []*instance
	dir     string
	out     io.Writer
	results results
	trouble []error
}

func runCommand(ctx context.Context, args []string) error {
	var s settings
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	gateway := flags.String("gateway", "bin/firsttoken", "the gateway's binary")
	caddy := flags.String("caddy", "caddy", "Caddy's binary")
	quick := flags.Bool("quick", false, "a rough run of about a minute")
	file := flags.String("json", "", "write every round's figures to this file")
	flags.IntVar(&s.Rounds, "rounds", 5, "interleaved rounds")
	flags.DurationVar(&s.Duration, "duration", 800*time.Millisecond, "length of one measurement")
	flags.IntVar(&s.Streams, "streams", 2000, "streams of the memory test")
	flags.IntVar(&s.Idle, "idle", 3, "repetitions of the memory test")
	flags.Uint64Var(&s.Seed, "seed", 1, "of the order of the peers")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *quick {
		s.Rounds, s.Duration, s.Idle = min(s.Rounds, 3), min(s.Duration, 250*time.Millisecond), min(s.Idle, 1)
	}
	dir, err := os.MkdirTemp("", "firsttoken-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, skipped := peers(*gateway, *caddy)
	for _, why := range skipped {
		fmt.Println("skipped", why)
	}
	b := &bench{settings: s, peers: all, dir: dir, out: os.Stdout, results: results{}}
	if err := b.run(ctx); err != nil {
		return err
	}
	b.results.print(b.out, b.peers, b.settings)
	if *file != "" {
		if err := b.results.save(*file, b.peers, b.settings); err != nil {
			return err
		}
	}
	return errors.Join(b.trouble...)
}

func (b *bench) run(ctx context.Context) error {
	if err := b.startAll(ctx); err != nil {
		b.stopAll()
		return err
	}
	err := b.rounds(ctx)
	for _, in := range b.running {
		rss, _ := in.pids.memory()
		b.record("RSS after load, MiB", in.name, rss/1024)
	}
	b.stopPeers()
	for i := 0; i < b.Idle && err == nil; i++ {
		err = b.idleStreams(ctx)
	}
	b.stopAll()
	return err
}

func (b *bench) startAll(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b.engine, err = peer{name: "mock", command: func(addr, _, _ string) (*exec.Cmd, error) {
		return exec.Command(self, "mock", "-listen", addr), nil
	}}.start(ctx, "", b.dir)
	if err != nil {
		return err
	}
	for _, p := range b.peers {
		in, err := p.start(ctx, b.engine.addr, b.dir)
		if err != nil {
			return err
		}
		b.running = append(b.running, in)
	}
	return nil
}

func (b *bench) stopPeers() {
	for _, in := range b.running {
		in.stop()
	}
	b.running = nil
}

func (b *bench) stopAll() {
	b.stopPeers()
	if b.engine != nil {
		b.engine.stop()
	}
}

// rounds visits all peers for every cell, in a new order each time, so that
// whatever else the machine does falls on all of them.
func (b *bench) rounds(ctx context.Context) error {
	order := rand.New(rand.NewPCG(b.Seed, 0))
	for round := range b.Rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, b.Rounds)
		for _, c := range cells {
			for _, i := range order.Perm(len(b.running)) {
				b.measure(ctx, b.running[i], c)
				if ctx.Err() != nil {
					return ctx.Err()
				}
			}
		}
	}
	return nil
}

func (b *bench) measure(ctx context.Context, in *instance, c cell) {
	s := load(ctx, in.addr, c.kind, c.conns, b.Duration, in.pids.cpu)
	for _, err := range s.failures[:min(len(s.failures), 3)] {
		b.trouble = append(b.trouble, fmt.Errorf("%s, %v: %w (%d of %d failed)", in.name, c, err, len(s.failures), s.count+len(s.failures)))
	}
	if s.count == 0 {
		return
	}
	record := func(metric string, v float64) { b.record(c.String()+" "+metric, in.name, v) }
	if len(in.pids) > 0 {
		record("CPU us", float64(s.cpu.Nanoseconds())/1e3/float64(s.count))
	}
	record("per second", float64(s.count)/s.elapsed.Seconds())
	record("p50 us", quantile(s.total, .5))
	record("p99 us", quantile(s.total, .99))
	if c.kind.stream {
		record("TTFT p50 us", quantile(s.first, .5))
		record("TTFT p99 us", quantile(s.first, .99))
	}
}

func (b *bench) record(metric, peer string, v float64) {
	if b.results[metric] == nil {
		b.results[metric] = map[string][]float64{}
	}
	b.results[metric][peer] = append(b.results[metric][peer], v)
}

// settle is how long memory may take to come to rest.
const settle = 500 * time.Millisecond

// idleStreams measures what a stream costs in memory while it waits: fresh
// peers, each with many streams of which only the first event has come.
func (b *bench) idleStreams(ctx context.Context) error {
	for _, p := range b.peers {
		if p.command == nil {
			continue
		}
		fmt.Fprintf(os.Stderr, "%d idle streams through %s\n", b.Streams, p.name)
		in, err := p.start(ctx, b.engine.addr, b.dir)
		if err != nil {
			return err
		}
		b.hold(in)
		in.stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (b *bench) hold(in *instance) {
	warm := newClient(in.addr, stream)
	for range 100 {
		_, _, _ = warm.do() // failures show in the rounds
	}
	warm.close()
	time.Sleep(settle)
	rss, pss := in.pids.memory()

	clients := make(chan *client)
	var opening sync.WaitGroup
	var mu sync.Mutex
	open := map[*client]bool{}
	for range 32 {
		opening.Go(func() {
			for c := range clients {
				err := c.open()
				mu.Lock()
				if err != nil {
					b.trouble = append(b.trouble, fmt.Errorf("%s, idle streams: %w", in.name, err))
				}
				open[c] = true
				mu.Unlock()
			}
		})
	}
	for range b.Streams {
		clients <- newClient(in.addr, held)
	}
	close(clients)
	opening.Wait()
	time.Sleep(settle)
	rssThen, pssThen := in.pids.memory()
	for c := range maps.Keys(open) {
		c.close()
	}
	b.record("idle stream, RSS KiB", in.name, (rssThen-rss)/float64(b.Streams))
	b.record("idle stream, PSS KiB", in.name, (pssThen-pss)/float64(b.Streams))
}

// median of the values; they are left as they are.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
