package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/evaluate"
	"github.com/firsttoken/firsttoken/internal/fleet"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/samples"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// evalFlags are the flags of eval.
type evalFlags struct {
	samples        []string
	traces, fleets []string
	measured       string
	loads          []float64
	requests       int
	policy, model  string
	noise          float64
	scrape         time.Duration
	change, ablate bool
	find           bool

	json, html, rows string
	quiet            bool
}

func evalCommand() *cobra.Command {
	var f evalFlags
	cmd := &cobra.Command{
		Use:   "eval --samples DIR|FILE | --trace TRACE | --measured DIR",
		Short: "Judge the predictions of the time to first token",
		Long: `Judge predictions of the time to first token, of every estimator and of the one
that served, by load regime, beside simple baselines that know the same.

--samples judges what a gateway predicted and kept. --trace sends a trace to
simulated fleets (see firsttoken replay) at some shares of their capacity, and
puts an oracle beside the predictions that knows all but the noise. Capacity is
the highest rate at which 95 % of the requests meet ` + defaultObjective + `.
--measured follows recorded runs of real engines.

docs/predict.md says what the figures mean.`,
		Example: `  firsttoken eval --samples samples --html predict.html
  firsttoken eval --trace azure2023_conv --fleet mixed --load 0.8
  firsttoken eval --trace azure2023_conv --fleet mixed --change
  firsttoken eval --measured $FIRSTTOKEN_DATA/measured --rows rows.csv`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return stopped(ctx, f.run(ctx, cmd.OutOrStdout()))
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.samples, "samples", nil, "files of samples, or directories of them")
	flags.StringArrayVar(&f.traces, "trace", nil, "trace file, or the name of a workload; may be repeated")
	flags.StringArrayVar(&f.fleets, "fleet", []string{"mixed"}, "fleet file, or the name of a shipped fleet; may be repeated")
	flags.StringVar(&f.measured, "measured", "", "folder with vllm_requests_*.csv of measured runs")
	flags.Float64SliceVar(&f.loads, "load", []float64{0.5, 0.8, 0.95, 1.1}, "shares of a fleet's capacity")
	flags.Lookup("load").DefValue = "0.5,0.8,0.95,1.1" // as one writes it
	flags.IntVar(&f.requests, "requests", 0, "only so many requests of a trace (default all; 10000 of a workload, which has no end)")
	flags.StringVar(&f.policy, "policy", router.LMetric, "policy that routes")
	flags.StringVar(&f.model, "model", "", "directory of a trained model, for the lightgbm estimator")
	flags.Float64Var(&f.noise, "noise", 0.05, "relative standard deviation of an engine's steps")
	flags.DurationVar(&f.scrape, "scrape", 500*time.Millisecond, "time between scrapes of an engine's metrics; below 0 never")
	flags.BoolVar(&f.change, "change", false, "slow one instance of the fleet half way instead, and then leave the load unchanged for an hour")
	flags.BoolVar(&f.find, "find-capacity", false, "only search what each fleet bears, and print it (CSV)")
	flags.BoolVar(&f.ablate, "ablate", false, "also tell what errors rise by without each feature")
	flags.StringVar(&f.rows, "rows", "", "write what was predicted and what came, request by request, to this file (CSV)")
	flags.StringVar(&f.json, "json", "", "write the report as JSON to this file")
	flags.StringVar(&f.html, "html", "", "write the report with plots to this file")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress on a terminal")
	return cmd
}

func (f *evalFlags) run(ctx context.Context, out io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.find {
		return f.printCapacities(ctx, out)
	}
	model, err := f.openModel()
	if err != nil {
		return err
	}
	r := evaluate.Report{Title: "Predictions of the time to first token"}
	for _, part := range []func(context.Context, predictor.Model, *evaluate.Report) error{f.judgeSamples, f.judgeFleets, f.judgeMeasured, f.ablateAll} {
		if err := part(ctx, model, &r); err != nil {
			return err
		}
	}
	writeJSON := func(w io.Writer) error { return printJSON(w, &r) }
	return errors.Join(r.WriteTable(out), writeFile(f.json, writeJSON), writeFile(f.html, r.WriteHTML),
		writeFile(f.rows, func(w io.Writer) error { return writeRows(w, &r) }))
}

func (f *evalFlags) check() error {
	if len(f.samples) == 0 && len(f.traces) == 0 && f.measured == "" {
		return errors.New("eval needs --samples, --trace or --measured")
	}
	if !slices.Contains(router.PolicyNames(), f.policy) {
		return fmt.Errorf("--policy %q is unknown: give one of %s", f.policy, strings.Join(router.PolicyNames(), ", "))
	}
	if !(f.noise >= 0 && f.noise < 1) {
		return fmt.Errorf("--noise %g: give a share from 0 to below 1", f.noise)
	}
	for _, load := range f.loads {
		if !(load > 0 && load <= 10) {
			return fmt.Errorf("--load %g: give shares of capacity above 0 and up to 10", load)
		}
	}
	if f.change && len(f.traces) == 0 {
		return errors.New("--change needs --trace: it changes a simulated fleet")
	}
	return errors.Join(writable("--rows", f.rows), writable("--json", f.json), writable("--html", f.html))
}

// openModel reads the trained model, the shipped one if none is named.
func (f *evalFlags) openModel() (predictor.Model, error) {
	if f.model == "" {
		return shippedModel()
	}
	b, err := trees.OpenWith(os.DirFS(f.model), predictor.Names(), predictor.SchemaHash())
	if err != nil {
		return nil, fmt.Errorf("--model %s: %w", f.model, err)
	}
	return b, nil
}

func (f *evalFlags) judgeSamples(_ context.Context, _ predictor.Model, r *evaluate.Report) error {
	if len(f.samples) == 0 {
		return nil
	}
	run := evaluate.Run{Trace: "samples"}
	for s, err := range samples.Read(f.samples...) {
		if err != nil {
			return err
		}
		run.Rows = append(run.Rows, evaluate.Row{Sample: s})
	}
	run.Requests = len(run.Rows)
	if run.Scores = evaluate.Judge(run.Rows, evaluate.Warmup); len(run.Scores) == 0 {
		return fmt.Errorf("--samples: %d requests; the first %d are not judged, since the baselines have to learn", run.Requests, evaluate.Warmup)
	}
	r.Notes = append(r.Notes, fmt.Sprintf("%d samples, the first %d not judged", run.Requests, evaluate.Warmup))
	r.Runs = append(r.Runs, run)
	return nil
}

func (f *evalFlags) judgeMeasured(_ context.Context, model predictor.Model, r *evaluate.Report) error {
	if f.measured == "" {
		return nil
	}
	runs, err := evaluate.MeasuredRuns(f.measured)
	if err != nil {
		return fmt.Errorf("--measured %w", err)
	}
	for i := range runs {
		r.Measured = append(r.Measured, runs[i].Predict(model, predictor.Rules{}))
	}
	return nil
}

// ratedFleet is one fleet under one trace, and what it can bear.
type ratedFleet struct {
	evaluate.Fleet
	capacity evaluate.Capacity
}

func (f *evalFlags) judgeFleets(ctx context.Context, model predictor.Model, r *evaluate.Report) error {
	fleets, err := f.open(ctx, model)
	if err != nil || len(fleets) == 0 {
		return err
	}
	progress := (&replayFlags{quiet: f.quiet}).progress()
	defer progress("")
	if err := f.rate(ctx, fleets, progress); err != nil {
		return err
	}
	r.Notes = append(r.Notes, fmt.Sprintf("policy %s, noise %g %%, scrapes every %v; the first %d requests of a run are not judged", f.policy, 100*f.noise, f.scrape, evaluate.Warmup))
	for _, s := range fleets {
		r.Notes = append(r.Notes, s.note())
	}
	if f.change {
		return f.changes(ctx, fleets, r)
	}
	r.Runs = make([]evaluate.Run, len(fleets)*len(f.loads))
	return atOnce(ctx, len(r.Runs), func(k int) (err error) {
		s, load := fleets[k/len(f.loads)], f.loads[k%len(f.loads)]
		progress(fmt.Sprintf("%s on %s at %g", s.Trace, s.Name, load))
		r.Runs[k], err = s.Run(load, load*s.capacity.Multiplier)
		if f.rows == "" && !f.ablate {
			r.Runs[k].Thin()
		}
		return err
	})
}

// rate finds out what each fleet bears.
func (f *evalFlags) rate(ctx context.Context, fleets []ratedFleet, progress func(string)) error {
	objective, err := report.ParseObjective(defaultObjective)
	if err != nil {
		return err
	}
	return atOnce(ctx, len(fleets), func(i int) (err error) {
		s := &fleets[i]
		if known, ok := evaluate.KnownCapacity(s.Trace, s.Name); ok && !f.find && f.policy == router.LMetric && f.requests == 0 {
			s.capacity = known
			return nil
		}
		progress("capacity of " + s.Name + " under " + s.Trace)
		s.capacity, err = s.FindCapacity(objective)
		return err
	})
}

func (r *ratedFleet) note() string {
	note := fmt.Sprintf("capacity of %s under %s: %.3g times the recorded rate", r.Name, r.Trace, r.capacity.Multiplier)
	if r.capacity.Slack > 1 {
		note += fmt.Sprintf(", for an objective %d times as long: it does not meet the other at any rate", r.capacity.Slack)
	}
	return note
}

// printCapacities is all that --find-capacity does.
func (f *evalFlags) printCapacities(ctx context.Context, out io.Writer) error {
	fleets, err := f.open(ctx, nil)
	if err != nil {
		return err
	}
	if err := f.rate(ctx, fleets, func(string) {}); err != nil {
		return err
	}
	var of []*evaluate.Fleet
	var found []evaluate.Capacity
	for i := range fleets {
		of, found = append(of, &fleets[i].Fleet), append(found, fleets[i].capacity)
	}
	return evaluate.WriteCapacities(out, of, found)
}

// changeLoad is the share of capacity at which --change runs.
const changeLoad = 0.8

// changes slows each fleet's first engine half way, and runs each fleet at an
// unchanged load.
func (f *evalFlags) changes(ctx context.Context, fleets []ratedFleet, r *evaluate.Report) error {
	r.Notes = append(r.Notes, fmt.Sprintf("at %g of capacity", changeLoad))
	r.Changes, r.Steady = make([]evaluate.Change, len(fleets)), make([]evaluate.Steady, len(fleets))
	return atOnce(ctx, 2*len(fleets), func(k int) error {
		s, multiplier := &fleets[k/2], changeLoad*fleets[k/2].capacity.Multiplier
		rate, long, err := s.Pace()
		if err != nil {
			return err
		}
		if k%2 == 0 {
			half := time.Duration(float64(long) / multiplier / 2)
			r.Changes[k/2], err = s.Slow(multiplier, 0, half, 1.5)
			return err
		}
		r.Steady[k/2], err = s.Steady(rate*multiplier, time.Hour)
		return err
	})
}

// open takes every trace on every fleet.
func (f *evalFlags) open(ctx context.Context, model predictor.Model) (all []ratedFleet, err error) {
	for _, name := range f.traces {
		for _, ref := range f.fleets {
			fl, err := fleet.Open(ref)
			if err != nil {
				return nil, err
			}
			d := demand{trace: name, requests: f.requests, multiplier: 1, law: "poisson"}
			source, err := d.source(fl.Models())
			if err != nil {
				return nil, err
			}
			rf := replayFlags{gateways: 1, scrape: f.scrape}
			c := rf.config(namedFleet{fl, ref})
			c.Policy, c.Seed = f.policy, 1
			c.Stop = func() bool { return ctx.Err() != nil }
			for i := range c.Engines {
				c.Engines[i].Params.Noise = f.noise
			}
			all = append(all, ratedFleet{Fleet: evaluate.Fleet{
				Trace: brief(name), Name: brief(ref), Config: c, Model: model,
				Source: source(1).Each(func(q *trace.Request) { q.Stream = true }),
			}})
		}
	}
	return all, nil
}

// brief is a file's name without folder and ending.
func brief(file string) string { return strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)) }

// atOnce does n things, as many at a time as there are processors, and ends at
// the first error.
func atOnce(ctx context.Context, n int, do func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := 0; i < n && ctx.Err() == nil; i++ {
		room <- struct{}{}
		wait.Go(func() {
			defer func() { <-room }()
			if err := do(i); err != nil {
				cancel(err)
			}
		})
	}
	wait.Wait()
	return context.Cause(ctx)
}

func (f *evalFlags) ablateAll(_ context.Context, model predictor.Model, r *evaluate.Report) error {
	if !f.ablate {
		return nil
	}
	var rows []evaluate.Row
	for i := range r.Runs {
		rows = append(rows, r.Runs[i].Rows...)
	}
	linear, err := evaluate.AblateLinear(rows)
	if err != nil {
		return err
	}
	r.Ablations = append(r.Ablations, linear)
	if model == nil {
		return nil
	}
	trained, err := evaluate.AblateModel(rows, model)
	r.Ablations = append(r.Ablations, trained)
	return err
}

// writeRows prints every request: its run, its sample, the oracle's word and what
// was cached.
func writeRows(w io.Writer, r *evaluate.Report) error {
	table := csv.NewWriter(w)
	err := table.Write(append(append([]string{"run"}, samples.Columns()...), "oracle", "cached"))
	write := func(run *evaluate.Run) {
		for i := range run.Rows {
			oracle := ""
			if o := run.Rows[i].Oracle; o > 0 {
				oracle = strconv.FormatFloat(o.Seconds(), 'g', -1, 64)
			}
			err = errors.Join(err, table.Write(append(append([]string{run.Name()}, samples.Record(&run.Rows[i].Sample)...), oracle, strconv.Itoa(run.Rows[i].Cached))))
		}
	}
	for i := range r.Runs {
		write(&r.Runs[i])
	}
	for i := range r.Measured {
		write(&r.Measured[i].Run)
	}
	table.Flush()
	return errors.Join(err, table.Error())
}
