// Command bench is the yardstick behind `make bench`: it drives the gateway,
// a minimal relay, nginx, HAProxy and Caddy in interleaved rounds in front of
// one mock engine and prints what each costs, and what the gateway's default
// policy costs over its cheapest. It owns the mock, the relay, the load and
// the tables; test/bench/run owns installing the peers.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want one of: run, routing, mock, relay, load")
	}
	switch name, args := args[0], args[1:]; name {
	case "run":
		return runCommand(ctx, args)
	case "routing":
		return routingCommand(ctx, args)
	case "mock":
		return mockCommand(ctx, args)
	case "relay":
		return relayCommand(ctx, args)
	case "load":
		return loadCommand(ctx, args)
	default:
		return fmt.Errorf("unknown command %q", name)
	}
}
