package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// sample is what one cell of a round measured.
type sample struct {
	count    int
	elapsed  time.Duration
	cpu      time.Duration // of the peer's processes
	first    []time.Duration
	total    []time.Duration
	failures []error
}

// load drives a peer with a number of connections, each sending its next
// request when it has the answer of the last, for about the given time. A
// request under way at the end is finished and counted.
func load(ctx context.Context, addr string, k kind, conns int, length time.Duration, cpu func() time.Duration) sample {
	clients := make([]*client, conns)
	for i := range clients {
		clients[i] = newClient(addr, k)
		defer clients[i].close()
	}
	each(clients, func(c *client) sample { return c.repeat(ctx, 0) }) // connects
	began, cpuBegan := time.Now(), cpu()
	s := each(clients, func(c *client) sample { return c.repeat(ctx, length) })
	s.elapsed, s.cpu = time.Since(began), cpu()-cpuBegan
	return s
}

// each runs do for all clients at once and merges what they measured.
func each(clients []*client, do func(*client) sample) sample {
	parts := make([]sample, len(clients))
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() { parts[i] = do(c) })
	}
	all.Wait()
	var s sample
	for _, p := range parts {
		s.count += p.count
		s.first = append(s.first, p.first...)
		s.total = append(s.total, p.total...)
		s.failures = append(s.failures, p.failures...)
	}
	return s
}

// repeat sends requests until length is over, at least one. Paced streams
// begin spread out, so that their events do not come in step.
func (c *client) repeat(ctx context.Context, length time.Duration) sample {
	if c.kind.paced && length > 0 {
		time.Sleep(rand.N(events * pace))
	}
	s := sample{first: make([]time.Duration, 0, 1<<10), total: make([]time.Duration, 0, 1<<10)}
	for end := time.Now().Add(length); ; {
		first, total, err := c.do()
		if err != nil {
			s.failures = append(s.failures, err)
		} else {
			s.count++
			s.first, s.total = append(s.first, first), append(s.total, total)
		}
		if ctx.Err() != nil || !time.Now().Before(end) || len(s.failures) > 100 {
			return s
		}
	}
}

// quantile takes q in 0..1 and returns microseconds.
func quantile(values []time.Duration, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return float64(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].Nanoseconds()) / 1e3
}

// loadCommand drives any address by hand, e.g. while a profile is taken.
func loadCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	to := flags.String("to", "127.0.0.1:8080", "address")
	name := flags.String("kind", stream.name, "json, stream or paced")
	conns := flags.Int("c", 16, "connections")
	length := flags.Duration("duration", 10*time.Second, "how long")
	pid := flags.Int("pid", 0, "process whose CPU time to report")
	if err := flags.Parse(args); err != nil {
		return err
	}
	kinds := []kind{plain, stream, paced}
	at := slices.IndexFunc(kinds, func(k kind) bool { return k.name == *name })
	if at < 0 {
		return fmt.Errorf("unknown kind %q", *name)
	}
	s := load(ctx, *to, kinds[at], *conns, *length, processes{*pid}.cpu)
	fmt.Printf("%d answers, %.0f/s, CPU %.1f us each; total p50 %.0f p99 %.0f us; first token p50 %.0f p99 %.0f us\n",
		s.count, float64(s.count)/s.elapsed.Seconds(), float64(s.cpu.Nanoseconds())/1e3/float64(cmp.Or(s.count, 1)),
		quantile(s.total, .5), quantile(s.total, .99), quantile(s.first, .5), quantile(s.first, .99))
	return errors.Join(s.failures...)
}
