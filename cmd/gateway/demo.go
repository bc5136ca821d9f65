package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/engine"
)

// startDemo starts the simulated fleet and returns the configuration that
// serves it. The engines are reached over HTTP like any others.
func startDemo(over config.Overrides) (*engine.Fleet, func() (*config.Config, error), error) {
	specs := engine.Quickstart()
	fleet, err := engine.StartFleet(context.Background(), specs, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("start the simulated fleet: %w", err)
	}
	text := demoConfig(specs, fleet.URLs())
	load := func() (*config.Config, error) {
		cfg, err := config.Parse("demo", []byte(text), ".", os.LookupEnv)
		if err != nil {
			return nil, err
		}
		return cfg.With(over)
	}
	return fleet, load, nil
}

// demoConfig is the fleet as a configuration file.
func demoConfig(specs []engine.Spec, urls []string) string {
	var b strings.Builder
	b.WriteString("server: {listen: \"127.0.0.1:8080\", debug_headers: true}\nmodels:\n")
	last := ""
	for i, s := range specs {
		if s.Model != last {
			fmt.Fprintf(&b, "  - name: %s\n    backends:\n", s.Model)
			last = s.Model
		}
		fmt.Fprintf(&b, "      - {name: sim-%d, url: %q, engine: vllm}\n", i+1, urls[i])
	}
	return b.String()
}

// greet tells a new user what to do next.
func greet(w io.Writer, a *app.App) {
	base := "http://" + a.Addr().String()
	fmt.Fprintf(w, `
Firsttoken serves a simulated fleet: four engines, two models.

  base URL   %[1]s/v1
  models     llama-3.1-8b, llama-3.3-70b
  metrics    http://%[2]s/metrics

Try it from another shell:

  curl -N %[1]s/v1/chat/completions \
    -H 'content-type: application/json' \
    -d '{"model":"llama-3.1-8b","stream":true,"messages":[{"role":"user","content":"Hello!"}]}'

Ctrl-C stops it.

`, base, a.OperatorAddr())
}
