package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/engine/calibrate"
	"github.com/firsttoken/firsttoken/internal/fleet"
)

// dataFolder is the environment variable that names the measured data.
const dataFolder = "FIRSTTOKEN_DATA"

func simValidateCommand() *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Hold the simulated engines against measured ones",
		Long: `Hold the simulated engines against measured ones, in the folder that
` + dataFolder + ` names: single requests of two vLLM runs, and the rate at which an H100
is full. --all also fits every configuration of a table of 899 closed loops to
half of its points and predicts the other half; that takes minutes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir := os.Getenv(dataFolder)
			if dir == "" {
				return errors.New(dataFolder + " is not set: it names the folder with measured/*.csv that sim validate compares with")
			}
			if _, err := os.Stat(filepath.Join(dir, "measured")); err != nil { //nolint:gosec // the folder the user names
				return fmt.Errorf("%s has no measured data: %w", dataFolder, err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return stopped(ctx, simValidate(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), dir, all))
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also fit and predict the closed loops")
	return cmd
}

// stopped says so when it was Ctrl-C that ended the work.
func stopped(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("stopped before the end")
	}
	return err
}

// simValidate prints each table as soon as it is there.
func simValidate(ctx context.Context, out, progress io.Writer, dir string, all bool) error {
	runs, err := calibrate.CheckRuns(dir)
	if err != nil {
		return err
	}
	if err := calibrate.PrintRuns(out, runs); err != nil {
		return err
	}
	knees, err := calibrate.CheckKnees(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Fprintln(out)
	if err := calibrate.PrintKnees(out, knees); err != nil {
		return err
	}
	if !all {
		return nil
	}
	fits, err := calibrate.CheckLoops(ctx, dir, func(done, of int) { fmt.Fprintf(progress, "\rfitted %d of %d", done, of) })
	fmt.Fprint(progress, "\r\n")
	if err != nil {
		return err
	}
	fmt.Fprintln(out)
	return calibrate.PrintFits(out, fits)
}

// fitFlags are the flags of sim fit.
type fitFlags struct {
	measured []string
	profile  string
	only     string
	out      string
	loops    calibrate.Loops
}

func simFitCommand() *cobra.Command {
	f := fitFlags{loops: calibrate.InferenceX()}
	cmd := &cobra.Command{
		Use:   "fit --measured FILE",
		Short: "Fit step models to measurements",
		Long: `Fit step models to measurements: to half of them, with the error on the other
half. FILE is either what firsttoken bench --csv wrote against one engine (give
--measured once for each run, and --profile for the engine's limits), or a table
of means by concurrency with the columns system, model_path, backend, isl, osl,
concurrency, tp_size, silicon_ttft_ms and silicon_tpot_ms.

--out writes a profile, fitted to all points, for use in a fleet file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return stopped(ctx, simFit(ctx, cmd.OutOrStdout(), f))
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.measured, "measured", nil, "file of measurements (CSV); may be repeated for runs of requests")
	flags.StringVar(&f.profile, "profile", "", "profile to take limits and the start of the search from: a built-in one or a file")
	flags.StringVar(&f.only, "only", "", "of a table, fit only configurations whose name contains this")
	flags.StringVar(&f.out, "out", "", "write a profile to this file (YAML)")
	flags.Float64Var(&f.loops.Shortest, "shortest", f.loops.Shortest, "of a table: the shortest lengths as a share of the nominal ones")
	flags.IntVar(&f.loops.PerUser, "prompts-per-user", f.loops.PerUser, "of a table: prompts that each user sent")
	return cmd
}

// subject is one thing to fit: a configuration, or runs of requests.
type subject struct {
	profile engine.Profile // what --out writes, but for the step model
	fit     func(ctx context.Context, all bool) (calibrate.Fit, error)
}

func simFit(ctx context.Context, out io.Writer, f fitFlags) error {
	subjects, err := f.subjects()
	if err != nil {
		return err
	}
	if f.out != "" && len(subjects) != 1 {
		return fmt.Errorf("--out writes one profile, and there are %d configurations; choose one with --only", len(subjects))
	}
	var fits []calibrate.Fit
	for _, s := range subjects {
		fit, err := s.fit(ctx, false)
		if err != nil {
			return err
		}
		fits = append(fits, fit)
	}
	if err := calibrate.PrintFits(out, fits); err != nil || f.out == "" {
		return err
	}
	return f.write(ctx, subjects[0])
}

func (f *fitFlags) write(ctx context.Context, s subject) error {
	fit, err := s.fit(ctx, true)
	if err != nil {
		return err
	}
	p := s.profile
	p.Params.Step = fit.Step
	p.Source = fmt.Sprintf("fit to all points of %s; mean error over them: TTFT %.1f %%, TPOT %.1f %%. Use the numbers together.",
		strings.Join(f.measured, ", "), 50*(fit.Fitted.TTFT+fit.Held.TTFT), 50*(fit.Fitted.TPOT+fit.Held.TPOT))
	return fleet.SaveProfile(f.out, p)
}

func (f *fitFlags) subjects() ([]subject, error) {
	if len(f.measured) == 0 {
		return nil, errors.New("sim fit needs --measured FILE")
	}
	var base *engine.Profile
	if f.profile != "" {
		p, err := fleet.FindProfile(f.profile)
		if err != nil {
			return nil, err
		}
		base = &p
	}
	var runs [][]calibrate.Request
	for _, file := range f.measured {
		m, err := calibrate.Read(file)
		switch {
		case err != nil:
			return nil, err
		case m.Requests != nil:
			runs = append(runs, m.Requests)
		case m.Configurations != nil && len(f.measured) == 1:
			return f.configurations(m.Configurations, base)
		default:
			return nil, fmt.Errorf("%s: sim fit takes one table of means by concurrency, or runs of requests", file)
		}
	}
	if base == nil {
		return nil, errors.New("runs of requests need --profile: it names the engine's limits; see firsttoken sim profiles")
	}
	return []subject{{profile: *base, fit: func(ctx context.Context, all bool) (calibrate.Fit, error) {
		return calibrate.FitRequests(ctx, strings.Join(f.measured, ", "), base.Params, runs, all)
	}}}, nil
}

// configurations are the subjects of a table.
func (f *fitFlags) configurations(all []calibrate.Configuration, base *engine.Profile) ([]subject, error) {
	var subjects []subject
	for _, c := range all {
		if !strings.Contains(c.Name, f.only) || len(c.Unsaturated()) < 2 {
			continue
		}
		p := c.Profile()
		if base != nil {
			p.Params = base.Params
		}
		subjects = append(subjects, subject{profile: p, fit: func(ctx context.Context, all bool) (calibrate.Fit, error) {
			return calibrate.FitLoops(ctx, c, f.loops, all)
		}})
	}
	if subjects == nil {
		return nil, fmt.Errorf("no configuration with at least 2 unsaturated points has a name that contains %q", f.only)
	}
	return subjects, nil
}
