package main

import (
	"fmt"
	"iter"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/evaluate"
	"github.com/firsttoken/firsttoken/internal/fleet"
	"github.com/firsttoken/firsttoken/internal/samples"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// samplesBootstrapCommand makes the samples that the shipped model is trained on.
func samplesBootstrapCommand() *cobra.Command {
	b := evaluate.Bootstrap{}
	cmd := &cobra.Command{
		Use:   "bootstrap DIR",
		Short: "Simulate fleets of many kinds and write samples of them",
		Long: `Simulate fleets of many kinds, loads and lengths, and write a sample for each of
their requests: what the shipped model is trained on. The profiles of the fleets
equal, mixed and wide are left out, so that these can judge the model.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			left, err := evaluationProfiles()
			if err != nil {
				return err
			}
			b.LeaveOut = left
			rows := 0
			var failed error
			err = samples.WriteFile(filepath.Join(args[0], "bootstrap.parquet"), counted(b.Samples(), &rows, &failed))
			if failed != nil {
				err = failed
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d samples of %d fleets\n", rows, b.Runs)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&b.Runs, "runs", 100, "fleets to simulate")
	flags.IntVar(&b.Requests, "requests", 1200, "requests of each")
	flags.Uint64Var(&b.Seed, "seed", 1, "of all draws")
	return cmd
}

// evaluationProfiles are those of the fleets that judge predictions.
func evaluationProfiles() (map[string]bool, error) {
	known := map[string]bool{}
	for _, name := range []string{"equal", "mixed", "wide"} {
		f, err := fleet.Shipped(name)
		if err != nil {
			return nil, err
		}
		for _, e := range f.Engines {
			for _, p := range engine.Profiles() {
				if p.Params.Step == e.Params.Step {
					known[p.Name] = true
				}
			}
		}
	}
	return known, nil
}

// counted passes samples on until the first error.
func counted(all iter.Seq2[predictor.Sample, error], rows *int, failed *error) iter.Seq[predictor.Sample] {
	return func(yield func(predictor.Sample) bool) {
		for s, err := range all {
			if err != nil {
				*failed = err
				return
			}
			*rows++
			if !yield(s) {
				return
			}
		}
	}
}
