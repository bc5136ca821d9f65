// Package toxics puts a bad network, made by toxiproxy, between the gateway
// and an engine, and holds the gateway to its promise: what a client gets is
// right to the byte, or says honestly that it is not.
package toxics

import (
	"flag"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// The engine's answers: long enough in events and time for a toxic to hit any
// part of them.
const (
	tokens = 30
	ttft   = 20 * time.Millisecond
	gap    = 4 * time.Millisecond
)

// TestMain runs more cases at a time than there are processors: they wait far
// more than they compute.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// toxic is one bad network, and what may come of a request over it.
type toxic struct {
	name   string
	typ    string
	stream string // upstream: towards the engine; downstream: from it
	attrs  string
	// after this many tokens of a stream the toxic strikes; 0: before the
	// request. Only streams have an after.
	after int
	// closes has the engine end streams by closing the connection.
	closes bool
	// plain and streamed are the reasons, as in log and metrics, with which a
	// request may end. "ok" means whole, right to the byte.
	plain, streamed string
}

// Reasons come from the documented list. Where a toxic leaves it open where
// it strikes, several may come of it.
var cases = []toxic{
	{name: "no toxic at all", plain: "ok", streamed: "ok"},

	{name: "latency", typ: "latency", stream: "downstream", attrs: `{"latency":60,"jitter":20}`, plain: "ok", streamed: "ok"},
	{name: "latency upstream", typ: "latency", stream: "upstream", attrs: `{"latency":60,"jitter":20}`, plain: "ok", streamed: "ok"},
	{name: "latency beyond the timeouts", typ: "latency", stream: "downstream", attrs: `{"latency":3000}`,
		plain: "response_header_timeout", streamed: "first_token_timeout"},
	{name: "latency beyond the idle timeout", typ: "latency", stream: "downstream", attrs: `{"latency":3000}`, after: 4,
		streamed: "idle_timeout"},

	{name: "bandwidth", typ: "bandwidth", stream: "downstream", attrs: `{"rate":20}`, plain: "ok", streamed: "ok"},
	{name: "bandwidth upstream", typ: "bandwidth", stream: "upstream", attrs: `{"rate":100}`, plain: "ok", streamed: "ok"},

	{name: "slicer", typ: "slicer", stream: "downstream", attrs: `{"average_size":7,"size_variation":6,"delay":10}`, plain: "ok", streamed: "ok"},
	{name: "slicer to single bytes", typ: "slicer", stream: "downstream", attrs: `{"average_size":1,"size_variation":0,"delay":0}`, plain: "ok", streamed: "ok"},
	{name: "slicer upstream", typ: "slicer", stream: "upstream", attrs: `{"average_size":700,"size_variation":600,"delay":10}`, plain: "ok", streamed: "ok"},

	{name: "slow close", typ: "slow_close", stream: "downstream", attrs: `{"delay":200}`, plain: "ok", streamed: "ok"},
	{name: "slow close that ends the stream", typ: "slow_close", stream: "downstream", attrs: `{"delay":200}`, closes: true, streamed: "ok"},

	{name: "reset at once", typ: "reset_peer", stream: "downstream", attrs: `{"timeout":0}`, plain: "connection_lost", streamed: "connection_lost"},
	{name: "reset upstream", typ: "reset_peer", stream: "upstream", attrs: `{"timeout":0}`, plain: "connection_lost", streamed: "connection_lost"},
	{name: "reset in the middle", typ: "reset_peer", stream: "downstream", attrs: `{"timeout":0}`, after: 4,
		streamed: "connection_lost stream_truncated"},

	{name: "limit before the status line ends", typ: "limit_data", stream: "downstream", attrs: `{"bytes":7}`,
		plain: "connection_lost bad_response", streamed: "connection_lost bad_response"},
	{name: "limit inside the headers", typ: "limit_data", stream: "downstream", attrs: `{"bytes":60}`,
		plain: "connection_lost bad_response", streamed: "connection_lost bad_response"},
	{name: "limit inside the first event", typ: "limit_data", stream: "downstream", attrs: `{"bytes":230}`,
		plain: "connection_lost", streamed: "connection_lost stream_truncated"},
	{name: "limit in the middle", typ: "limit_data", stream: "downstream", attrs: `{"bytes":1500}`,
		plain: "connection_lost", streamed: "connection_lost stream_truncated"},
	{name: "limit of the request", typ: "limit_data", stream: "upstream", attrs: `{"bytes":2000}`,
		plain: "connection_lost", streamed: "connection_lost"},

	{name: "silence", typ: "timeout", stream: "downstream", attrs: `{"timeout":0}`,
		plain: "response_header_timeout", streamed: "first_token_timeout"},
	{name: "silence upstream", typ: "timeout", stream: "upstream", attrs: `{"timeout":0}`,
		plain: "response_header_timeout", streamed: "first_token_timeout"},
	{name: "silence, then the end", typ: "timeout", stream: "downstream", attrs: `{"timeout":150}`,
		plain: "connection_lost", streamed: "connection_lost first_token_timeout"},
	{name: "silence in the middle", typ: "timeout", stream: "downstream", attrs: `{"timeout":0}`, after: 4,
		streamed: "idle_timeout"},
}

func TestToxics(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.plain != "" {
				t.Run("plain", func(t *testing.T) { strike(t, c, false, c.plain) })
			}
			t.Run("stream", func(t *testing.T) { strike(t, c, true, c.streamed) })
		})
	}
}

// strike sends a request over the toxic, to the model "alone" that has only
// the engine behind it, and meanwhile some to "pair", which has another engine
// as well, and to "other", which has only that one. Then it takes the toxic
// away and waits until the engine serves again.
func strike(t *testing.T, c toxic, stream bool, reasons string) {
	b := startBench(t, patient, timeoutsFor(c, reasons))
	b.closes, b.pauseAt = c.closes, c.after
	strikes := sync.OnceFunc(func() {
		b.poison(c)
		close(b.goOn)
	})
	if c.after == 0 {
		strikes()
	}
	var meanwhile sync.WaitGroup
	meanwhile.Go(func() { b.checkOther(t, b.askAll(3, "other", stream)) })
	meanwhile.Go(func() { b.checkPair(t, b.askAll(4, "pair", stream)) })

	got := b.ask("alone", stream, func(event int) {
		if event == 1+c.after { // the first is the role
			strikes()
		}
	})
	strikes() // if it has come to nothing, the others must go on
	if !strings.Contains(" "+reasons+" ", " "+got.reason+" ") {
		t.Errorf("the request ended with %q, want %q; status %d, body %q", got.reason, reasons, got.status, got.body)
	}
	b.check(t, got)
	meanwhile.Wait()

	b.cure(t)
	b.awaitServed(t, "alone", "poisoned")
	b.finish(t)
}

func timeoutsFor(c toxic, reasons string) string {
	switch {
	case !strings.Contains(reasons, "timeout"):
		return slow
	case c.after > 0:
		return quickIdle
	}
	return quick
}

// checkOther: who does not touch the bad network does not notice it.
func (b *bench) checkOther(t *testing.T, answers []answer) {
	for _, a := range answers {
		b.check(t, a)
		if a.reason != "ok" {
			t.Errorf("a request to an engine without the toxic ended with %q", a.reason)
		}
	}
}

// checkPair: with another engine to ask, only what had begun can break.
func (b *bench) checkPair(t *testing.T, answers []answer) {
	for _, a := range answers {
		b.check(t, a)
		if a.reason != "ok" && !a.begun() {
			t.Errorf("with another engine to ask, a request ended with %q before its first event", a.reason)
		}
	}
}

// TestLongAnswerCutShort is an unstreamed answer too long to be held back:
// part of it has gone out when the engine is lost, so it must end as broken,
// never as if it were whole.
func TestLongAnswerCutShort(t *testing.T) {
	t.Parallel()
	b := startBench(t, patient, slow)
	b.answer = `{"object":"list","data":["` + strings.Repeat("x", 2<<20) + `"]}`
	b.poison(toxic{name: "limit", typ: "limit_data", stream: "downstream", attrs: `{"bytes":1500000}`})
	got := b.ask("alone", false, nil)
	if got.status != http.StatusOK || !got.broken {
		t.Errorf("status %d, ended cleanly %v; want a 200 whose body breaks off", got.status, !got.broken)
	}
	if !strings.HasPrefix(b.answer, got.body) {
		t.Errorf("what did arrive is not the beginning of the answer")
	}
	b.finish(t)
}

// TestEjection has an engine go silent under load: it is taken out, everybody
// is served by the other, and it is back when the network is.
func TestEjection(t *testing.T) {
	t.Parallel()
	b := startBench(t, strict, quick)
	b.poison(toxic{name: "silence", typ: "timeout", stream: "downstream", attrs: `{"timeout":0}`})
	for range 3 {
		for _, got := range b.askAll(8, "pair", true) {
			if got.reason != "ok" {
				t.Errorf("a request ended with %q: %q", got.reason, got.body)
			}
		}
	}
	if n := b.gateway.Metrics().Sum("firsttoken_ejections_total", "backend", "poisoned"); n < 1 {
		t.Errorf("the silent engine was not ejected")
	}
	b.cure(t)
	b.awaitServed(t, "pair", "poisoned")
	b.finish(t)
}
