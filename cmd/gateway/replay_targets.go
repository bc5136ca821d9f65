package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/replay/targets"
)

// targetFlags are the flags of replay targets.
type targetFlags struct {
	options     targets.Options
	quick, full bool
	json        bool
	quiet       bool
}

func targetsCommand() *cobra.Command {
	var f targetFlags
	cmd := &cobra.Command{
		Use:   "targets",
		Short: "Hold the default policy against the best known rules",
		Long: `Hold the default policy, headroom with admission, against the best known rules:
what a fleet bears within its contracts, past capacity, with old signals, slow
engines and wrong predictions. The parts are ` + strings.Join(targets.Parts(), ", ") + `.

Recorded traces are looked for in $FIRSTTOKEN_DATA/traces; cells of one that is
not there are left out. --quick is one seed of the first 1,500 requests of each
trace, to see whether anything broke; --full is five seeds and takes hours.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runTargets(cmd, f) },
	}
	flags, o := cmd.Flags(), &f.options
	flags.IntVar(&o.Seeds, "seeds", 2, "runs of each figure")
	flags.IntVar(&o.Requests, "requests", 6000, "of each trace, the first ones")
	flags.StringSliceVar(&o.Only, "only", nil, "parts to measure (default all)")
	flags.StringSliceVar(&o.Fleets, "fleet", nil, "shipped fleets to find the goodput on (default mixed, wide, equal)")
	flags.StringSliceVar(&o.Traces, "trace", nil, "loads to find it under, of "+strings.Join(targets.Traces(), ", ")+" (default all)")
	flags.IntVar(&o.Workers, "workers", runtime.NumCPU(), "cells at once")
	flags.BoolVar(&f.quick, "quick", false, "one seed of 1500 requests")
	flags.BoolVar(&f.full, "full", false, "five seeds")
	flags.BoolVar(&f.json, "json", false, "print JSON lines, one a table")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress on standard error")
	cmd.MarkFlagsMutuallyExclusive("quick", "full")
	return cmd
}

func runTargets(cmd *cobra.Command, f targetFlags) error {
	o := f.options
	switch {
	case f.quick:
		o.Seeds, o.Requests = 1, 1500
	case f.full:
		o.Seeds = 5
	}
	if o.Seeds < 1 || o.Requests < 1 || o.Workers < 1 {
		return errors.New("--seeds, --requests and --workers are at least 1")
	}
	if data := os.Getenv("FIRSTTOKEN_DATA"); data != "" {
		o.Data = filepath.Join(data, "traces")
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o.Stop = func() bool { return ctx.Err() != nil }
	context.AfterFunc(ctx, stop)
	show, mu := (&replayFlags{quiet: f.quiet}).progress(), sync.Mutex{}
	o.Progress = func(what string) {
		mu.Lock()
		defer mu.Unlock()
		show(what)
	}
	err := targets.Measure(o, func(t targets.Table) error {
		o.Progress("")
		if f.json {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(t)
		}
		return t.Write(cmd.OutOrStdout())
	})
	if errors.Is(err, replay.ErrStopped) {
		fmt.Fprintln(cmd.ErrOrStderr(), "stopped: the tables above are complete, the others are missing")
		return exitCode(130)
	}
	return err
}
