package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/config"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	file    string
	demo    bool
	control string
	over    config.Overrides
}

func serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve --config FILE | --demo",
		Short: "Run the gateway",
		Long: `Run the gateway on the engines of a configuration file, or, with --demo, on a
simulated fleet in the same process.

SIGHUP, or a change of the file, puts a new configuration into force; a bad one
changes nothing. SIGTERM drains: readiness fails, new requests are accepted for
drain.accept, streams finish within drain.limit. SIGINT does the same without
waiting for a load balancer. A second signal ends at once.`,
		Example: `  firsttoken serve --demo
  firsttoken serve --config config.yaml
  firsttoken serve --config config.yaml --listen 127.0.0.1:9080 --telemetry-listen 127.0.0.1:9081 --log-level warn`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "config", "c", "", "configuration file (YAML)")
	flags.BoolVar(&f.demo, "demo", false, "serve a simulated fleet: ten engines, two models, three contracts")
	flags.StringVar(&f.control, "control", "", "address to slow or break the demo's engines at; off for none (default "+demoControl+", or a free port)")
	flags.StringVar(&f.over.Listen, "listen", "", "address of the data plane; overrides server.listen")
	flags.StringVar(&f.over.TelemetryListen, "telemetry-listen", "", "address of metrics and health; overrides telemetry.listen")
	flags.StringVar(&f.over.LogLevel, "log-level", "", "debug, info, warn or error; overrides telemetry.log_level")
	return cmd
}

func serve(cmd *cobra.Command, f serveFlags) error {
	if (f.file == "") == !f.demo {
		return errors.New("serve needs either --config FILE, or --demo for a simulated fleet; see firsttoken serve --help")
	}
	if f.control != "" && !f.demo {
		return errors.New("--control is for the simulated engines of --demo: leave it out")
	}
	load := func() (*config.Config, error) { return loadFile(f) }
	shipped, err := shippedModel()
	if err != nil {
		return err
	}
	opts := app.Options{Log: os.Stdout, Reload: load, Version: version, Shipped: shipped}
	var d *demo
	if f.demo {
		if d, err = startDemo(f.over, f.control); err != nil {
			return err
		}
		defer d.stop()
		load, opts.Reload, opts.Log = d.load, nil, os.Stderr
	}
	cfg, err := load()
	if err != nil {
		return err
	}
	a, err := app.New(cfg, opts)
	if err != nil {
		return err
	}
	if f.demo {
		d.greet(cmd.OutOrStdout(), os.Args[0], a)
	}
	return runUntilSignal(cmd.Context(), a)
}

// runUntilSignal runs the gateway with its signals.
func runUntilSignal(ctx context.Context, a *app.App) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	var handling sync.WaitGroup
	handling.Go(func() { handleSignals(signals, stop, a) })
	err := a.Run(ctx)
	signal.Stop(signals)
	close(signals)
	handling.Wait()
	return err
}

func loadFile(f serveFlags) (*config.Config, error) {
	cfg, err := config.Load(f.file, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	return cfg.With(f.over)
}

// handleSignals turns signals into a reload, a drain, or, the second time, an
// immediate end. It ends with the channel.
func handleSignals(signals <-chan os.Signal, stop context.CancelCauseFunc, a *app.App) {
	stopping := false
	for s := range signals {
		switch {
		case s == syscall.SIGHUP:
			_ = a.Reload() // it has logged and counted its error
		case stopping:
			fmt.Fprintln(os.Stderr, "firsttoken: stopped without draining")
			os.Exit(128 + int(s.(syscall.Signal))) // as a shell reports it
		default:
			stopping = true
			stop(app.Stop{AtOnce: s == syscall.SIGINT})
		}
	}
}
