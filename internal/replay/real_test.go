package replay_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/bench"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/memnet"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// The same trace through the gateway as it is, over HTTP to engines that run
// in real time, gives the times that a replay foretells. The clock and the
// network are the bubble's, so that both are exact.
func TestReplayForetellsTheGateway(t *testing.T) {
	engines := fleet(plain, slow(), plain)
	for i := range engines {
		engines[i].Params.Step.Alpha *= 2
	}
	file := filepath.Join("testdata", "chats.jsonl")
	src, err := trace.Open(file, trace.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	src = src.Each(func(r *trace.Request) { r.Model = "m" })
	for _, policy := range []string{router.RoundRobin, router.LMetric, router.PrefixAffinity} {
		t.Run(policy, func(t *testing.T) {
			var real []time.Duration
			synctest.Test(t, func(t *testing.T) { real = throughGateway(t, engines, policy, file) })
			// Policies draw ties, the gateway by a seed of its own: it has to be
			// among the outcomes of many seeds.
			low, high := [2]float64{1e9, 1e9}, [2]float64{}
			quantiles := func(ttfts []time.Duration) (q [2]float64) {
				var ms []float64
				for _, d := range ttfts {
					ms = append(ms, d.Seconds()*1e3)
				}
				slices.Sort(ms)
				return [2]float64{report.Quantile(ms, .5), report.Quantile(ms, .95)}
			}
			c := replay.Config{Engines: engines, Policy: policy, Network: -1}
			if policy == router.RoundRobin { // no draws: request by request the same
				for i, simulated := range ttfts(t, c, src) {
					if d := simulated - real[i]; d.Abs() > time.Microsecond {
						t.Fatalf("request %d: replay %v, gateway %v", i, simulated, real[i])
					}
				}
				return
			}
			c.Scrape, c.Probe = -1, -1 // these policies don't look at them
			for c.Seed = range uint64(60) {
				simulated := ttfts(t, c, src)
				for k, q := range quantiles(simulated) {
					low[k], high[k] = min(low[k], q), max(high[k], q)
				}
			}
			for k, q := range quantiles(real) {
				t.Logf("TTFT p%d: gateway %.1f ms, replay %.1f to %.1f ms", []int{50, 95}[k], q, low[k], high[k])
				if q < 0.9*low[k] || q > 1.1*high[k] {
					t.Errorf("TTFT p%d: gateway %.1f ms, replay %.1f to %.1f ms", []int{50, 95}[k], q, low[k], high[k])
				}
			}
		})
	}
}

// ttfts are those of a replay in which all are served.
func ttfts(t *testing.T, c replay.Config, src trace.Source) (all []time.Duration) {
	t.Helper()
	got, _ := run(t, c, src)
	for i, o := range got {
		if !o.OK() {
			t.Fatalf("request %d: %s", i, o.Reason)
		}
		all = append(all, o.TTFT)
	}
	return all
}

// throughGateway sends the trace through a gateway to served engines.
func throughGateway(t *testing.T, engines []replay.Engine, policy, file string) (ttfts []time.Duration) {
	network := memnet.New()
	var text strings.Builder
	fmt.Fprintf(&text, "server: {listen: \"gateway:80\"}\ntelemetry: {listen: \"operator:81\"}\nwarm_up: {enabled: false}\nmodels:\n  - {name: m, policy: %s, backends: [", policy)
	for _, e := range engines {
		addr := e.Name + ":80"
		fmt.Fprintf(&text, "{name: %s, url: \"http://%s\", engine: vllm},", e.Name, addr)
		server, err := engine.NewServer(engine.Spec{Model: e.Model, Params: e.Params, Seed: e.Seed})
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		l, err := network.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		defer fakellm.Serve(l, server).Close()
	}
	text.WriteString("]}\n")
	cfg, err := config.Parse("test.yaml", []byte(text.String()), ".", os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := app.New(cfg, app.Options{
		Log: io.Discard, Version: "test", Reload: func() (*config.Config, error) { return cfg, nil },
		Listen: func(_, addr string) (net.Listener, error) { return network.Listen(addr) },
		Dial:   network.DialContext,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- gateway.Run(ctx) }()
	defer func() {
		stop(app.Stop{AtOnce: true})
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	transport := &http.Transport{DialContext: network.DialContext, MaxIdleConnsPerHost: 1000}
	defer transport.CloseIdleConnections()
	b, err := bench.New(bench.Plan{Target: "http://gateway", Endpoint: "completions", Models: []string{"m"}, Trace: file, IgnoreEOS: true, Seed: 1, Timeout: time.Hour}, nil, transport)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	measured, err := b.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i := range measured.Results {
		r := &measured.Results[i]
		if !r.OK() {
			t.Fatalf("request %d: %s %s", i, r.Outcome, r.Error)
		}
		ttfts = append(ttfts, r.TTFT())
	}
	return ttfts
}
