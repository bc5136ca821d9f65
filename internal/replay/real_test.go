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
	for policy, tolerance := range map[string]float64{
		router.RoundRobin:     0.002, // no draws: request by request the same
		router.LeastInFlight:  0.05,  // ties are drawn
		router.LMetric:        0.05,
		router.PrefixAffinity: 0.05,
	} {
		t.Run(policy, func(t *testing.T) {
			engines := fleet(plain, slow(), plain)
			for i := range engines {
				engines[i].Params.Step.Alpha *= 2
			}
			file := filepath.Join("testdata", "chats.jsonl")
			src, err := trace.Open(file, trace.Options{Seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			simulated, _ := run(t, replay.Config{Engines: engines, Policy: policy, Network: -1}, src.Each(func(r *trace.Request) { r.Model = "m" }))
			var real []bench.Result
			synctest.Test(t, func(t *testing.T) { real = throughGateway(t, engines, policy, file) })

			var a, b []float64
			for i, o := range simulated {
				if !o.OK() || !real[i].OK() || real[i].Prompt != o.Request.PromptTokens {
					t.Fatalf("request %d: simulated %s, real %s %s, %d prompt tokens of %d", i, o.Reason, real[i].Outcome, real[i].Error, real[i].Prompt, o.Request.PromptTokens)
				}
				a, b = append(a, o.TTFT.Seconds()), append(b, real[i].TTFT().Seconds())
			}
			slices.Sort(a)
			slices.Sort(b)
			for _, q := range []float64{.5, .95} {
				sim, got := report.Quantile(a, q), report.Quantile(b, q)
				t.Logf("TTFT p%g: replay %.1f ms, gateway %.1f ms, %+.2f %%", 100*q, 1e3*sim, 1e3*got, 100*(sim/got-1))
				if sim/got-1 > tolerance || got/sim-1 > tolerance {
					t.Errorf("TTFT p%g: replay says %.1f ms, the gateway %.1f ms", 100*q, 1e3*sim, 1e3*got)
				}
			}
		})
	}
}

// throughGateway sends the trace through a gateway to served engines.
func throughGateway(t *testing.T, engines []replay.Engine, policy, file string) []bench.Result {
	network := memnet.New()
	var text strings.Builder
	fmt.Fprintf(&text, "server: {listen: \"gateway:80\"}\ntelemetry: {listen: \"operator:81\"}\nmodels:\n  - {name: m, policy: %s, backends: [", policy)
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
	return measured.Results
}
