package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/fleet"
)

// demo is a simulated fleet, what serves it, and where to break it.
type demo struct {
	fleet   *fleet.Running
	control *control
	note    string // about the address of the control
	over    config.Overrides
}

// demoControl is where the demo's engines are slowed and broken, unless it is
// taken or --control names another address.
const demoControl = "127.0.0.1:8082"

// startDemo starts the simulated fleet. The engines are reached over HTTP like
// any others.
func startDemo(over config.Overrides, controlAddr string) (*demo, error) {
	quickstart, err := fleet.Shipped("quickstart")
	if err != nil {
		return nil, err
	}
	running, err := quickstart.Start(context.Background(), 1, nil)
	if err != nil {
		return nil, fmt.Errorf("start the simulated fleet: %w", err)
	}
	d := &demo{fleet: running, over: over}
	if err := d.startControl(controlAddr, running.Control()); err != nil {
		running.Stop()
		return nil, err
	}
	return d, nil
}

// startControl takes a free port only where nobody asked for a certain one.
func (d *demo) startControl(addr string, handler http.Handler) (err error) {
	d.control, err = startControl(cmp.Or(addr, demoControl), handler)
	if err != nil && addr == "" {
		d.note = "  (" + demoControl + " is taken)"
		d.control, err = startControl("127.0.0.1:0", handler)
	}
	return err
}

func (d *demo) stop() {
	d.control.stop()
	d.fleet.Stop()
}

// load is the configuration that serves the fleet.
func (d *demo) load() (*config.Config, error) {
	text := "server: {listen: \"127.0.0.1:8080\", debug_headers: true}\ntelemetry: {explain: true}\ncontracts: {shipped: true}\n" + d.fleet.GatewayConfig()
	cfg, err := config.Parse("demo", []byte(text), ".", os.LookupEnv)
	if err != nil {
		return nil, err
	}
	return cfg.With(d.over)
}

// greet tells a new user what to do next, with the program as it was called.
func (d *demo) greet(w io.Writer, program string, a *app.App) {
	base, metrics, watch := "http://"+a.Addr().String(), "http://"+a.OperatorAddr().String(), program+" top"
	if metrics != defaultTopURL {
		watch += " --url " + metrics
	}
	fmt.Fprintf(w, `
Firsttoken serves a simulated fleet: ten engines, two models, three contracts.

  base URL   %[1]s/v1
  models     llama-3.1-70b, llama-3.1-8b
  metrics    %[2]s/metrics
`, base, metrics)
	if d.control.addr != "" {
		fmt.Fprintf(w, "  faults     http://%s/engines%s\n", d.control.addr, d.note)
	}
	fmt.Fprintf(w, `
Try it from another shell:

  curl -N %[1]s/v1/chat/completions \
    -H 'content-type: application/json' \
    -d '{"model":"llama-3.1-8b","stream":true,"messages":[{"role":"user","content":"Hello!"}]}'

Give it work for the three contracts, and watch it:

  %[2]s bench --target %[1]s --workload chat,code,summary
  %[3]s
`, base, program, watch)
	if d.control.addr != "" {
		fmt.Fprintf(w, `
Slow an engine, and see requests go elsewhere:

  curl http://%s/engines/h100-tp4-1/faults -d '{"kind":"slow","factor":6,"for":"30s"}'
`, d.control.addr)
	}
	fmt.Fprint(w, "\nCtrl-C stops it.\n\n")
}
