package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/firsttoken/firsttoken/internal/top"
)

// topFlags are the flags of top.
type topFlags struct {
	url, model string
	interval   time.Duration
	once, json bool
}

// defaultTopURL is where a gateway answers that was not told otherwise.
const defaultTopURL = "http://127.0.0.1:8081"

// shortestInterval keeps a slip of the pen from becoming load.
const shortestInterval = 100 * time.Millisecond

func topCommand() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch a running gateway: contracts, instances, predictions, events",
		Long: `Watch a running gateway in the terminal: how its contracts stand, what its
instances do, what was predicted and what came, and what happened last.

q or Ctrl-C ends it. Where the output is no terminal it prints one frame, as
with --once. NO_COLOR in the environment switches colours off.`,
		Example: `  firsttoken top
  firsttoken top --url http://127.0.0.1:9081 --model llama-3.1-8b
  firsttoken top --json | jq .state.contracts`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runTop(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.url, "url", defaultTopURL, "URL of the gateway's telemetry listener (telemetry.listen)")
	flags.DurationVar(&f.interval, "interval", time.Second, "time between two looks")
	flags.BoolVar(&f.once, "once", false, "print one frame, as plain text, and end")
	flags.BoolVar(&f.json, "json", false, "print what a frame is made of as JSON, and end")
	flags.StringVar(&f.model, "model", "", "show the instances of this model only")
	return cmd
}

func runTop(cmd *cobra.Command, f topFlags) error {
	if f.interval < shortestInterval {
		return fmt.Errorf("--interval %v is too short: give %v or more", f.interval, shortestInterval)
	}
	client, err := top.NewClient(f.url)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	first, err := client.Fetch(ctx)
	if err != nil {
		return err
	}
	if err := f.knows(first.Models()); err != nil {
		return err
	}
	out, isFile := cmd.OutOrStdout().(*os.File)
	isTerminal := isFile && term.IsTerminal(int(out.Fd()))
	switch {
	case f.json:
		return printJSON(cmd.OutOrStdout(), first)
	case f.once, !isTerminal, os.Getenv("TERM") == "dumb":
		size := top.Size{}
		if isTerminal {
			size.Width = top.SizeOf(out).Width
		}
		return f.printFrame(cmd.OutOrStdout(), first, size)
	}
	return f.watch(ctx, client, first, out)
}

// knows checks that the gateway has the model that is asked for.
func (f *topFlags) knows(models []string) error {
	if f.model == "" || slices.Contains(models, f.model) {
		return nil
	}
	return fmt.Errorf("--model %q: the gateway has no such model; it has: %q", f.model, models)
}

func (f *topFlags) printFrame(w io.Writer, s top.Snapshot, size top.Size) error {
	_, err := fmt.Fprintln(w, top.Draw(top.View{Snapshot: s, Model: f.model}, size, top.Style{Zone: time.Local}))
	return err
}

// watch takes the terminal, and gives it back however it ends.
func (f *topFlags) watch(ctx context.Context, client *top.Client, first top.Snapshot, out *os.File) (err error) {
	screen, err := top.Open(os.Stdin, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, screen.Close()) }()
	loop := top.Loop{
		Fetch: client.Fetch, Screen: screen, Keys: screen.Keys(), Model: f.model, Interval: f.interval,
		Style: top.Style{Colour: os.Getenv("NO_COLOR") == "", Zone: time.Local},
	}
	return loop.Run(ctx, first)
}
