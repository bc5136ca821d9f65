package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/fleet"
)

// startDemo starts the simulated fleet and returns the configuration that
// serves it. The engines are reached over HTTP like any others.
func startDemo(over config.Overrides) (*fleet.Running, func() (*config.Config, error), error) {
	quickstart, err := fleet.Shipped("quickstart")
	if err != nil {
		return nil, nil, err
	}
	running, err := quickstart.Start(context.Background(), 1, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("start the simulated fleet: %w", err)
	}
	text := "server: {listen: \"127.0.0.1:8080\", debug_headers: true}\ntelemetry: {explain: true}\ncontracts: {shipped: true}\n" + running.GatewayConfig()
	load := func() (*config.Config, error) {
		cfg, err := config.Parse("demo", []byte(text), ".", os.LookupEnv)
		if err != nil {
			return nil, err
		}
		return cfg.With(over)
	}
	return running, load, nil
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

Three contracts are in force. Add -i -H 'x-tenant: shop' to be a customer-service
chat (95 %% begin within 320 ms), or web, or meetings, for the other two.

Ctrl-C stops it.

`, base, a.OperatorAddr())
}
