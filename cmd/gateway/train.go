package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/models"
	"github.com/firsttoken/firsttoken/internal/samples"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// watchInterval is how often the sample log is looked at for drift.
const watchInterval = 15 * time.Second

// trainFlags are the flags of train.
type trainFlags struct {
	samples, models string
	every           time.Duration
	once, onDrift   bool
	window          time.Duration
	minRows, seed   int
	trainer         python
}

func trainCommand() *cobra.Command {
	var f trainFlags
	cmd := &cobra.Command{
		Use:   "train --samples DIR --models DIR",
		Short: "Train a model of the time to first token on the sample log",
		Long: `Train a model of the time to first token on the gateway's sample log, and publish
it. The model is a challenger: it becomes the active one only if it beats the
active one on the newest samples, which neither was trained on. Its loss has to
be lower in total, no more than 5 % higher in any load regime with 200 samples,
and its P95 has to cover 90 to 98.5 % of them. Otherwise the active model stays;
firsttoken model lists both. Where no model is active yet, the one in
this program has to be beaten.

Training runs in Python 3.11 or later with LightGBM. If --python does not have
the pinned packages, they are installed into a virtual environment in --cache.
A training that is interrupted, or killed, changes nothing.`,
		Example: `  firsttoken train --samples samples --models models
  firsttoken train --samples samples --models models --every 6h --on-drift`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			f.trainer.out = cmd.OutOrStdout()
			return stopped(ctx, f.run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.samples, "samples", samplesFolder, "folder of the sample log")
	flags.StringVar(&f.models, "models", "models", "folder of published models")
	flags.BoolVar(&f.once, "once", false, "train once and end (the default)")
	flags.DurationVar(&f.every, "every", 0, "train now and then at this interval, such as 6h")
	flags.BoolVar(&f.onDrift, "on-drift", false, "train when P95 no longer covers 90 to 98.5 % of the last 500 samples on disk")
	flags.DurationVar(&f.window, "window", 24*time.Hour, "train on so much of the newest samples")
	flags.IntVar(&f.minRows, "min-rows", 2000, "fewest usable samples")
	flags.IntVar(&f.seed, "seed", 1, "the same seed and samples give the same model")
	flags.StringVar(&f.trainer.program, "python", "python3", "Python to train with, or to make a virtual environment with")
	flags.StringVar(&f.trainer.cache, "cache", filepath.Join(".cache", "trainer"), "folder for the virtual environment")
	flags.StringVar(&f.trainer.source, "trainer", "", "folder of another train.py and requirements.txt (default: the ones in this program)")
	cmd.MarkFlagsMutuallyExclusive("once", "every")
	cmd.MarkFlagsMutuallyExclusive("once", "on-drift")
	return cmd
}

func (f *trainFlags) run(ctx context.Context, out, problems io.Writer) error {
	if f.every < 0 || f.window <= 0 || f.minRows < 1 {
		return errors.New("--every, --window and --min-rows cannot be below 0 or empty")
	}
	if f.every == 0 && !f.onDrift {
		return f.train(ctx, out)
	}
	return f.keep(ctx, out, problems)
}

// keep trains whenever it is time to, until ctx ends. A training that fails is
// told, and the next one waited for.
func (f *trainFlags) keep(ctx context.Context, out, problems io.Writer) error {
	due := f.due()
	for {
		why, err := due(time.Now())
		if err == nil && why != "" {
			fmt.Fprintf(out, "%s: training: %s\n", time.Now().UTC().Format(time.RFC3339), why)
			err = f.train(ctx, out)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			fmt.Fprintln(problems, "firsttoken:", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}

// due returns what says why it is time to train, or nothing. It looks at the
// samples only when there are new files.
func (f *trainFlags) due() func(now time.Time) (why string, err error) {
	var next, judged time.Time
	seen := ""
	return func(now time.Time) (string, error) {
		if f.every > 0 && !now.Before(next) {
			next = now.Add(f.every)
			return "it is time", nil
		}
		if !f.onDrift {
			return "", nil
		}
		newest, err := samples.Newest(f.samples)
		if err != nil || newest == seen {
			return "", err
		}
		seen = newest
		d, err := samples.FindDrift(samples.Read(f.samples), judged)
		if err != nil || !d.Drifted {
			return "", err
		}
		judged = d.To // the samples that told of it do not tell again
		return fmt.Sprintf("P95 covers %.1f %% of the last samples", 100*d.Coverage), nil
	}
}

// train trains, publishes and, if the model deserves it, activates.
func (f *trainFlags) train(ctx context.Context, out io.Writer) error {
	store := models.New(f.models, predictor.Names(), predictor.SchemaHash())
	active, champion, err := findChampion(store, out)
	if err != nil {
		return err
	}
	folder, remove, err := f.trainer.train(ctx, f.arguments(active))
	if err != nil {
		return err
	}
	defer remove()
	id, err := store.Publish(folder)
	if err != nil {
		return err
	}
	challenger, err := store.Load(id)
	if err != nil {
		return err
	}
	verdict, err := challenge(samples.Read(f.samples), champion, challenger)
	if err != nil {
		return err
	}
	if err := printVerdict(out, verdict); err != nil {
		return err
	}
	if !verdict.Accepted() {
		_, err := fmt.Fprintf(out, "\n%s is published and not active: %s\n", id, strings.Join(verdict.Against, "; "))
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := store.Activate(id); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\n%s is active\n", id)
	return err
}

// findChampion is the model that serves: the active one, or else the one in the
// binary, which has no ID.
func findChampion(store *models.Store, out io.Writer) (id string, champion *trees.Bundle, err error) {
	id, champion, err = store.Active()
	if err == nil {
		return id, champion, nil
	}
	if !errors.Is(err, models.ErrNoActive) {
		fmt.Fprintf(out, "the active model cannot serve, so the one in the binary is the champion: %v\n", err)
	}
	champion, err = shippedModel()
	return "", champion, err
}

// arguments are those of the trainer, but for where to write.
func (f *trainFlags) arguments(active string) []string {
	args := []string{"--samples", f.samples, "--window", strconv.Itoa(int(max(f.window.Seconds(), 1))) + "s",
		"--min-rows", strconv.Itoa(f.minRows), "--seed", strconv.Itoa(f.seed)}
	if active != "" {
		args = append(args, "--champion", filepath.Join(f.models, active))
	}
	return args
}

// challenge judges on the samples that are newer than what both were trained on.
func challenge(from samples.Sequence, champion, challenger *trees.Bundle) (*samples.Verdict, error) {
	after := challenger.Manifest.Training.To
	if to := champion.Manifest.Training.To; to.After(after) {
		after = to
	}
	return samples.Challenge(from, after, samples.Trees(champion), samples.Trees(challenger))
}

func printVerdict(out io.Writer, v *samples.Verdict) error {
	fmt.Fprintln(out, "\nThe champion (>) and its challenger on samples neither was trained on; the loss is of both quantiles:")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nREGIME\tROWS\t> LOSS\tLOSS\t> MAPE\tMAPE\t> COVERAGE\tCOVERAGE")
	for _, c := range v.Contests {
		if a, b := c.Champion, c.Challenger; b.Rows > 0 {
			fmt.Fprintf(w, "%s\t%d\t%.4f\t%.4f\t%s\t%s\t%s\t%s\n", c.Regime, b.Rows, a.Loss, b.Loss,
				percent(a.MAPE), percent(b.MAPE), percent(a.Coverage), percent(b.Coverage))
		}
	}
	return w.Flush()
}
