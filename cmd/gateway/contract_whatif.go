package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// whatifFlags are the flags of contract whatif.
type whatifFlags struct {
	replayFlags
	old       []string
	from      string
	fleetName string
	policy    string
	asJSON    bool
}

func contractWhatifCommand() *cobra.Command {
	var f whatifFlags
	cmd := &cobra.Command{
		Use:   "whatif --contracts NEW --fleet FLEET --trace TRACE",
		Short: "Replay traffic under old and new contracts, and compare",
		Long: `Replay the same requests under the old and under the new contracts, in virtual
time, and compare: who meets the contracts, who is shed, who is served by another
engine, and what it costs. Every figure has its sample size and a 95 % bootstrap
interval: over stretches of the traffic, for costs over the seeds.

The requests come from --trace, as for firsttoken replay, or from --from, the
gateway's access log. Samples of the predictor are no source: they know neither
tenants nor the lengths of answers. Contracts match by tenant and by the model
as the fleet names it; those that ask for a header or a service tier match
nothing here, since neither is recorded. What contracts say under at_risk and
visible_limit is not replayed: who can't be in time is shed.`,
		Example: `  firsttoken contract whatif --contracts new.yaml --old shipped --fleet mixed --trace customer-service --rate-multiplier 8
  firsttoken contract whatif --contracts new.yaml --old now.yaml --fleet fleet.yaml --from access.log --seeds 5`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runWhatif(cmd, f) },
	}
	flags, d := cmd.Flags(), &f.demand
	flags.StringSliceVar(&f.contracts, "contracts", nil, "files of the new contracts, or shipped")
	flags.StringSliceVar(&f.old, "old", []string{"none"}, "files of the old contracts, or shipped, or none")
	flags.StringVar(&d.trace, "trace", "", "trace file, or the name of a workload")
	flags.StringVar(&f.from, "from", "", "the gateway's access log")
	flags.StringVar(&f.fleetName, "fleet", "mixed", "fleet file, or the name of a shipped fleet")
	flags.StringVar(&f.policy, "policy", router.Headroom, "policy that routes, as for firsttoken replay")
	flags.IntVar(&f.seeds, "seeds", 3, "runs under each")
	flags.IntVar(&d.requests, "requests", 0, "only so many requests (default all; 10000 of a workload)")
	flags.Float64Var(&d.multiplier, "rate-multiplier", 1, "run the trace so many times as fast")
	flags.StringToStringVar(&d.rename, "model-map", nil, "serve the trace's model A by the fleet's B: A=B (default: a fleet of one model serves all)")
	flags.Lookup("model-map").DefValue = "" // the text says it
	flags.StringArrayVar(&d.tenants, "tenant", nil, "draw each request's tenant, as NAME or NAME=WEIGHT")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress on a terminal")
	_ = cmd.MarkFlagRequired("contracts") // it exists
	cmd.MarkFlagsMutuallyExclusive("trace", "from")
	cmd.MarkFlagsOneRequired("trace", "from")
	return cmd
}

func runWhatif(cmd *cobra.Command, f whatifFlags) error {
	w, r, err := f.whatif()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal ends at once
	w.Config.Stop = func() bool { return ctx.Err() != nil }
	progress := f.progress()
	w.Progress = func(what string, seed int) { progress(fmt.Sprintf("%s, seed %d", what, seed+1)) }
	changes, stopped, err := w.Compare()
	progress("")
	switch {
	case err != nil:
		return err
	case stopped:
		return errors.New("stopped before its end: there is nothing to compare")
	}
	if r.Changes = changes; f.asJSON {
		return printJSON(cmd.OutOrStdout(), r)
	}
	return r.WriteTable(cmd.OutOrStdout())
}

// whatif puts the flags together.
func (f *whatifFlags) whatif() (w replay.WhatIf, r report.WhatIf, err error) {
	if f.seeds < 1 {
		return w, r, errors.New("--seeds is at least 1")
	}
	if err := f.source(); err != nil {
		return w, r, err
	}
	if w.New, err = openContracts("--contracts", f.contracts); err != nil {
		return w, r, err
	}
	if f.old[0] != "none" {
		if w.Old, err = openContracts("--old", f.old); err != nil {
			return w, r, err
		}
	}
	f.fleets, f.gateways, f.scrape = []string{f.fleetName}, 1, 300*time.Millisecond
	f.demand.law = "poisson"
	fleets, err := f.open()
	if err != nil {
		return w, r, err
	}
	w.Config = f.config(fleets[0])
	if w.Config.Policy, w.Config.Admission, err = parsePolicy(f.policy); err != nil {
		return w, r, err
	}
	for _, e := range fleets[0].Engines {
		w.Prices = append(w.Prices, e.PricePerHour)
	}
	w.Seeds = f.seeds
	w.Source, err = f.demand.source(fleets[0].Models())
	if err != nil {
		return w, r, err
	}
	r.Title = fmt.Sprintf("%s on fleet %s under %s in the place of %s", f.demand.trace, fleets[0].name, strings.Join(f.contracts, ", "), strings.Join(f.old, ", "))
	r.Notes, err = f.whatifNotes(&w)
	return w, r, err
}

// source finds the traffic; --from is the gateway's access log and nothing else.
func (f *whatifFlags) source() error {
	if f.from == "" {
		return nil
	}
	info, err := os.Stat(f.from)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--from %s: there is no such file", f.from)
	case err != nil:
		return fmt.Errorf("--from: %w", err)
	case info.IsDir(), filepath.Ext(f.from) == ".parquet":
		return fmt.Errorf("--from %s: samples know neither tenants nor the lengths of answers, so no contract can be replayed from them; give the gateway's access log", f.from)
	}
	f.demand.trace = f.from
	return nil
}

func (f *whatifFlags) whatifNotes(w *replay.WhatIf) ([]string, error) {
	out := []string{fmt.Sprintf("%s, policy %s; shed counts as missed; moved requests include those that only follow from others' moves", count(w.Seeds, "seed"), f.policy)}
	about, err := aboutContracts(w.Source(1), w.Old, w.New)
	return append(out, about...), err
}
