package replay_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// h100s are measured engines: Llama 3.1 70B on four H100 each.
func h100s(t testing.TB, n int) []replay.Engine {
	p, ok := engine.LookupProfile("h100-llama-3.1-70b-fp8-tp4")
	if !ok {
		t.Fatal("no such profile")
	}
	engines := make([]replay.Engine, n)
	for i := range engines {
		engines[i] = replay.Engine{Model: "m", Params: p.Params, Seed: uint64(i)}
	}
	return engines
}

// BenchmarkAzure is half an hour of Azure's conversations on 8 engines. The
// target is 5 s an operation, 2,000 requests/s.
func BenchmarkAzure(b *testing.B) {
	src, err := trace.Open(data(b, "azure2023_conv_00-30min.csv"), trace.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for _, policy := range []string{router.LeastInFlight, router.LMetric} {
		b.Run(policy, func(b *testing.B) { measure(b, replay.Config{Engines: h100s(b, 8), Policy: policy}, src) })
	}
}

// BenchmarkChats is prefixes shared over many turns on 8 engines.
func BenchmarkChats(b *testing.B) {
	src, err := trace.Open(data(b, "mooncake_conversation_00-30min.jsonl"), trace.Options{})
	if err != nil {
		b.Fatal(err)
	}
	measure(b, replay.Config{Engines: h100s(b, 8), Policy: router.PrefixAffinity}, src)
}

// BenchmarkLargeFleet is 100,000 requests on 100 engines. The target is three
// minutes and 1 GiB.
func BenchmarkLargeFleet(b *testing.B) {
	w := trace.CustomerService()
	w.Rate = 200
	measure(b, replay.Config{Engines: h100s(b, 100), Policy: router.LMetric}, w.Source(1).First(100_000))
}

func measure(b *testing.B, c replay.Config, src trace.Source) {
	src = src.Each(func(r *trace.Request) { r.Model = "m" })
	requests, took := 0, time.Duration(0)
	for b.Loop() {
		start := time.Now()
		totals, err := replay.Run(c, src, func(*replay.Outcome) {})
		if err != nil {
			b.Fatal(err)
		}
		requests, took = requests+totals.Requests, took+time.Since(start)
	}
	b.ReportMetric(float64(requests)/took.Seconds(), "requests/s")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys)/(1<<20), "MiB")
}
