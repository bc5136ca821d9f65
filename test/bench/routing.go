package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"
)

// The peers of the routing comparison: one gateway in front of ten engines,
// with the cheapest policy, and with the default one under a contract while
// either estimator serves.
const (
	nameLeast  = "least-inflight"
	nameLinear = "headroom, linear"
	nameTrees  = "headroom, lightgbm"

	routedEngines = 10
)

// long is a stream with a prompt of about 4,000 tokens.
var long = kind{name: "long", stream: true, body: `{"model":"bench","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"` +
	strings.Repeat("word and ", 1780) + `"}]}`}

// routing is one run of the comparison. One client asks all peers in turn, so
// that whatever else the machine does falls on all of them.
type routing struct {
	rounds, requests int
	order            *rand.Rand
	running          []*instance
	clients          []*client
	first            results // metric → peer → one value a round
}

func routingCommand(ctx context.Context, args []string) error {
	r := routing{first: results{}}
	flags := flag.NewFlagSet("routing", flag.ContinueOnError)
	gateway := flags.String("gateway", "bin/firsttoken", "the gateway's binary")
	quick := flags.Bool("quick", false, "a rough run of half a minute")
	flags.IntVar(&r.rounds, "rounds", 5, "rounds of requests to all")
	flags.IntVar(&r.requests, "requests", 1000, "requests of a round to each")
	seed := flags.Uint64("seed", 1, "of the order of the peers")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *quick {
		r.rounds, r.requests = min(r.rounds, 3), min(r.requests, 300)
	}
	r.order = rand.New(rand.NewPCG(*seed, 0))
	dir, err := os.MkdirTemp("", "firsttoken-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer r.stop()
	if err := r.start(ctx, *gateway, dir); err != nil {
		return err
	}
	if err := r.warmUp(ctx); err != nil {
		return err
	}
	for range r.rounds {
		if err := r.round(ctx); err != nil {
			return err
		}
	}
	r.print(os.Stdout)
	return nil
}

// start serves the engines until ctx ends, and starts the peers.
func (r *routing) start(ctx context.Context, gateway, dir string) error {
	var engines []string
	for range routedEngines {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go func() { _ = newMock().accept(ctx, ln) }() // ends with ctx
		engines = append(engines, ln.Addr().String())
	}
	for _, p := range routedPeers(gateway, engines) {
		in, err := p.start(ctx, engines[0], dir)
		if err != nil {
			return err
		}
		r.running = append(r.running, in)
		r.clients = append(r.clients, newClient(in.addr, long))
	}
	return nil
}

func (r *routing) stop() {
	for _, c := range r.clients {
		c.close()
	}
	for _, in := range r.running {
		in.stop()
	}
}

// routedPeers are all alike but for the policy, and for who predicts.
func routedPeers(gateway string, engines []string) []peer {
	routed := func(policy, prediction string) func(addr, _, dir string) (*exec.Cmd, error) {
		return func(addr, _, dir string) (*exec.Cmd, error) {
			file, err := writeRouted(addr, dir, policy, prediction, engines)
			return exec.Command(gateway, "serve", "--config", file), err
		}
	}
	return []peer{
		{name: nameDirect},
		{name: nameLeast, command: routed("least-inflight", linearServes)},
		{name: nameLinear, command: routed("headroom", linearServes)},
		{name: nameTrees, command: routed("headroom", treesServe)},
	}
}

// What makes either estimator serve, whatever the traffic and the errors are.
const (
	linearServes = "{low_rate: 1e9, volatile_cv: 1e9, max_error: 1e9}"
	treesServe   = "{low_rate: 0, volatile_cv: 1e-6, max_error: 1e9, min_samples: 500}"
)

func writeRouted(addr, dir, policy, prediction string, engines []string) (string, error) {
	contract, err := writeFile(dir, "contract.yaml", `
apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: bench}
spec:
  objectives:
    - {metric: ttft, percentile: 95, threshold: 320ms}
    - {metric: tpot, percentile: 95, threshold: 80ms}
`)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `
server: {listen: %q, debug_headers: true}
telemetry: {listen: "127.0.0.1:0"}
drain: {accept: off}
warm_up: {enabled: false}
contracts: {files: [%q]}
prediction: %s
models:
  - name: bench
    policy: %s
    backends:
`, addr, contract, prediction, policy)
	for i, e := range engines {
		fmt.Fprintf(&b, "      - {name: mock-%d, url: \"http://%s\", engine: generic}\n", i, e)
	}
	return writeFile(dir, "firsttoken.yaml", b.String())
}

// warmUp sends some requests a second until every gateway has learned what it
// can of the engines, and the estimator serves that should.
func (r *routing) warmUp(ctx context.Context) error {
	for range 400 {
		if _, err := r.askAll(); err != nil {
			return err
		}
		if by, err := servedBy(ctx, r.running[len(r.running)-1].addr); err != nil || by == "lightgbm" {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return errors.New("lightgbm did not come to serve within 40 s")
}

// servedBy is the estimator whose word counts at a gateway.
func servedBy(ctx context.Context, addr string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", bytes.NewReader([]byte(plain.body)))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.Header.Get("X-Firsttoken-Estimator"), err
}

// askAll sends one request to every peer, in a new order, and returns the times
// to first token in the order of the peers.
func (r *routing) askAll() ([]time.Duration, error) {
	out := make([]time.Duration, len(r.clients))
	for _, i := range r.order.Perm(len(r.clients)) {
		first, _, err := r.clients[i].do()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.running[i].name, err)
		}
		out[i] = first
	}
	return out, nil
}

func (r *routing) round(ctx context.Context) error {
	first := make([][]time.Duration, len(r.clients))
	for range r.requests {
		got, err := r.askAll()
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		for i := range got {
			first[i] = append(first[i], got[i])
		}
	}
	for i, in := range r.running {
		for metric, q := range map[string]float64{"p50": .5, "p95": .95} {
			if r.first[metric] == nil {
				r.first[metric] = map[string][]float64{}
			}
			r.first[metric][in.name] = append(r.first[metric][in.name], quantile(first[i], q))
		}
	}
	return nil
}

// mostOver is what the default policy may add to the median, in microseconds.
const mostOver = 150

func (r *routing) print(w io.Writer) {
	fmt.Fprintf(w, "\nrouting: one client, %d idle engines, prompts of about 4,000 tokens, %d rounds of %d requests to each in turn.\n",
		routedEngines, r.rounds, r.requests)
	fmt.Fprintf(w, "Added time to first token in us: over direct, and of that over %s; medians over rounds.\n\n", nameLeast)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tp50\tp95\tp50 over\tp95 over\tp50 ratio\tp95 ratio\t")
	p50, p95 := r.first.added("p50"), r.first.added("p95")
	for _, name := range []string{nameLeast, nameLinear, nameTrees} {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, number(p50[name]), number(p95[name]),
			number(over(p50[name], p50[nameLeast])), number(over(p95[name], p95[nameLeast])),
			number(ratios(p50[name], p50[nameLeast])), number(ratios(p95[name], p95[nameLeast])))
	}
	_ = t.Flush() // to standard output
	var targets []target
	for _, name := range []string{nameLinear, nameTrees} {
		targets = append(targets, target{name + ", p50 over", over(p50[name], p50[nameLeast]), mostOver})
	}
	printTargets(w, targets)
}
