package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/fleet"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// replayFlags are the flags of replay.
type replayFlags struct {
	fleet, trace     string
	policies         []string
	seeds, first     int
	rate             float64
	from, to         time.Duration
	models           map[string]string
	objective        string
	gateways         int
	scrape, network  time.Duration
	goodput          bool
	target           float64
	jsonFile, htmlTo string
	quiet            bool
}

func replayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay --fleet FLEET --trace TRACE",
		Short: "Judge policies on a simulated fleet, in virtual time",
		Long: `Send a trace through the gateway's own routing code to simulated engines, in
virtual time: hours of traffic in seconds, the same outcome for the same seed.

FLEET is a fleet file or the name of a shipped one (` + strings.Join(fleet.Names(), ", ") + `).
TRACE is a file (Azure CSV, Mooncake JSONL, ServeGen, the gateway's access log),
a shipped workload (` + strings.Join(workloadNames(), ", ") + `), or the
start of a file's name in $FIRSTTOKEN_DATA/traces.

Ctrl-C prints the report of what has ended until then; the exit code is 130.`,
		Example: `  firsttoken replay --fleet mixed --trace customer-service --first 5000
  firsttoken replay --fleet equal --trace azure2023_conv --policy round-robin,least-inflight,lmetric --html report.html
  firsttoken replay --fleet mixed --trace azure2023_conv --find-goodput`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runReplay(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.fleet, "fleet", "", "fleet file, or the name of a shipped fleet")
	flags.StringVar(&f.trace, "trace", "", "trace file, or the name of a workload")
	flags.StringSliceVar(&f.policies, "policy", router.PolicyNames(), "policies to compare; differences are to the first")
	flags.IntVar(&f.seeds, "seeds", 1, "runs of each policy; two or more give intervals")
	flags.IntVar(&f.first, "first", 0, "only so many requests of the trace (default all; 10000 of a workload, which has no end)")
	flags.Float64Var(&f.rate, "rate", 1, "multiply the trace's rate")
	flags.DurationVar(&f.from, "from", 0, "leave out what arrives before")
	flags.DurationVar(&f.to, "to", 0, "leave out what arrives after; 0 is to the end")
	flags.StringToStringVar(&f.models, "model-map", nil, "serve the trace's model A by the fleet's B: A=B (default: a fleet of one model serves all)")
	flags.StringVar(&f.objective, "objective", "ttft=400ms,ttft-per-token=250us,tpot=80ms", "what a request is meant to meet")
	flags.IntVar(&f.gateways, "gateways", 1, "replicas that do not see each other")
	flags.DurationVar(&f.scrape, "scrape", 300*time.Millisecond, "time between scrapes of an engine's metrics; below 0 never")
	flags.DurationVar(&f.network, "network", 0, "one way between gateway and engine (default: the fleet's)")
	flags.BoolVar(&f.goodput, "find-goodput", false, "search the highest rate at which enough requests meet the objective")
	flags.Float64Var(&f.target, "target", 0.95, "share that is enough, for --find-goodput")
	flags.StringVar(&f.jsonFile, "json", "", "write the report as JSON to this file; - is standard output, instead of the table")
	flags.StringVar(&f.htmlTo, "html", "", "write the report with plots to this file")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress on a terminal")
	_ = cmd.MarkFlagRequired("fleet") // both exist
	_ = cmd.MarkFlagRequired("trace")
	return cmd
}

func workloadNames() []string {
	var out []string
	for _, w := range trace.Workloads() {
		out = append(out, w.Name)
	}
	return out
}

func runReplay(cmd *cobra.Command, f replayFlags) error {
	fl, err := fleet.Open(f.fleet)
	if err != nil {
		return err
	}
	trial, err := f.trial(fl)
	if err != nil {
		return err
	}
	var stopped atomic.Bool
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
	defer stop()
	go func() { <-ctx.Done(); stopped.Store(true) }() // ends with the command
	trial.Config.Stop = stopped.Load
	if !f.quiet && isTerminal(os.Stderr) {
		trial.Progress = func(policy string, seed int) { fmt.Fprintf(os.Stderr, "\r\033[K%s, seed %d", policy, seed+1) }
		defer fmt.Fprint(os.Stderr, "\r\033[K")
	}
	if f.goodput {
		return f.findGoodput(cmd.OutOrStdout(), trial)
	}
	r := report.Report{Title: fmt.Sprintf("%s on fleet %s", f.trace, f.fleet), Objective: f.objective}
	if r.Notes, err = notes(fl, trial); err != nil {
		return err
	}
	if r.Runs, r.Differences, r.Partial, err = trial.Compare(); err != nil {
		return err
	}
	if err := f.write(cmd.OutOrStdout(), &r); err != nil {
		return err
	}
	if r.Partial {
		return exitCode(130)
	}
	return nil
}

// trial puts the flags together.
func (f *replayFlags) trial(fl *fleet.Fleet) (replay.Trial, error) {
	objective, err := report.ParseObjective(f.objective)
	if err != nil {
		return replay.Trial{}, fmt.Errorf("--%w", err)
	}
	if !(f.rate > 0) || math.IsInf(f.rate, 0) {
		return replay.Trial{}, fmt.Errorf("--rate %g: write a number above 0", f.rate)
	}
	if f.gateways < 1 || f.seeds < 1 || f.first < 0 {
		return replay.Trial{}, errors.New("--gateways and --seeds are at least 1, --first at least 0")
	}
	source, err := f.source(fl.Models())
	if err != nil {
		return replay.Trial{}, err
	}
	faults, err := replayFaults(fl)
	if err != nil {
		return replay.Trial{}, err
	}
	c := replay.Config{Gateways: f.gateways, Scrape: f.scrape, Network: cmp.Or(f.network, fl.Network), Faults: faults}
	for _, e := range fl.Engines {
		c.Engines = append(c.Engines, replay.Engine{Name: e.Name, Model: e.Model, Params: e.Params, Seed: e.Seed})
	}
	return replay.Trial{Config: c, Policies: f.policies, Seeds: f.seeds, Objective: objective, Source: source}, nil
}

// replayFaults are the fleet's faults as far as a replay knows them.
func replayFaults(fl *fleet.Fleet) ([]replay.Fault, error) {
	var out []replay.Fault
	for _, f := range fl.Faults {
		switch f.Kind {
		case engine.Crash:
			out = append(out, replay.Fault{At: f.At, Engine: f.Engine, Kind: replay.Crash})
			if f.For > 0 {
				out = append(out, replay.Fault{At: f.At + f.For, Engine: f.Engine, Kind: replay.Restart})
			}
		case engine.Restart:
			out = append(out, replay.Fault{At: f.At, Engine: f.Engine, Kind: replay.Crash},
				replay.Fault{At: f.At, Engine: f.Engine, Kind: replay.Restart})
		default:
			return nil, fmt.Errorf("fault %q of engine %s: a replay knows crash and restart; run the fleet by firsttoken sim for the others",
				f.Kind, fl.Engines[f.Engine].Name)
		}
	}
	return out, nil
}

// source gives the requests of a seed, mapped to the fleet's models.
func (f *replayFlags) source(models []string) (func(uint64) trace.Source, error) {
	open, err := openTrace(f.trace)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, m := range models {
		known[m] = true
	}
	for from, to := range f.models {
		if !known[to] {
			return nil, fmt.Errorf("--model-map %s=%s: the fleet serves %s", from, to, strings.Join(models, ", "))
		}
	}
	return func(seed uint64) trace.Source {
		src, workload := open(seed)
		if f.from > 0 || f.to > 0 {
			src = src.Window(f.from, f.to)
		}
		if first := f.first; first > 0 || workload {
			src = src.First(cmp.Or(first, 10_000))
		}
		if f.rate != 1 {
			src = src.Rate(f.rate)
		}
		return src.Each(func(r *trace.Request) {
			if to := f.models[r.Model]; to != "" {
				r.Model = to
			} else if len(models) == 1 {
				r.Model = models[0]
			}
		})
	}, nil
}

// openTrace finds a trace by its file, as a workload, or among the data. The
// function it returns says whether the trace is without an end.
func openTrace(name string) (func(seed uint64) (trace.Source, bool), error) {
	if w, err := trace.Shipped(name); err == nil {
		return func(seed uint64) (trace.Source, bool) { return w.Source(seed), true }, nil
	}
	path := name
	if _, err := os.Stat(path); err != nil {
		found, _ := filepath.Glob(filepath.Join(os.Getenv("FIRSTTOKEN_DATA"), "traces", name+"*"))
		if len(found) == 0 {
			return nil, fmt.Errorf("--trace %s: no such file, and no workload of that name; workloads are %s", name, strings.Join(workloadNames(), ", "))
		}
		path = found[0]
	}
	src, err := trace.Open(path, trace.Options{Seed: 1})
	if err != nil {
		return nil, err
	}
	return func(uint64) (trace.Source, bool) { return src, false }, nil // a recording is what it is
}

// notes say what a reader of the report has to know.
func notes(fl *fleet.Fleet, t replay.Trial) ([]string, error) {
	out := []string{fmt.Sprintf("%d engines, %d gateway(s), scrape %v, network %v", len(t.Config.Engines), t.Config.Gateways, t.Config.Scrape, t.Config.Network)}
	if price := fl.PricePerHour(); price > 0 {
		out = append(out, fmt.Sprintf("price %.2f an hour", price))
	}
	misfits, err := replay.FindMisfits(t.Config.Engines, t.Source(1))
	if err != nil {
		return nil, err
	}
	if n := len(misfits.TooLong); n > 0 {
		first := misfits.TooLong[0]
		out = append(out, fmt.Sprintf("%d requests fit no engine's context or cache and are refused as an engine would; the first, number %d at %v, has %d prompt and %d output tokens",
			n, first.Index+1, first.At.Round(time.Millisecond), first.PromptTokens, first.OutputTokens))
	}
	if n := len(misfits.Unknown); n > 0 {
		out = append(out, fmt.Sprintf("%d requests name a model the fleet does not serve, %q first; map it by --model-map", n, misfits.Unknown[0].Model))
	}
	estimated := map[string]bool{}
	for _, e := range fl.Engines {
		for what := range e.Profile.Estimated {
			if name := e.Profile.Name + ": " + what; !estimated[name] {
				estimated[name] = true
			}
		}
	}
	if len(estimated) > 0 {
		out = append(out, fmt.Sprintf("%d parameters of the profiles are estimated, not measured; see their files", len(estimated)))
	}
	return out, nil
}

func (f *replayFlags) write(w io.Writer, r *report.Report) error {
	switch f.jsonFile {
	case "-":
		if err := writeReportJSON(w, r); err != nil {
			return err
		}
	case "":
		if err := r.WriteTable(w); err != nil {
			return err
		}
	default:
		if err := toFile(f.jsonFile, func(out io.Writer) error { return writeReportJSON(out, r) }); err != nil {
			return err
		}
		if err := r.WriteTable(w); err != nil {
			return err
		}
	}
	if f.htmlTo != "" {
		return toFile(f.htmlTo, r.WriteHTML)
	}
	return nil
}

// isTerminal reports whether a person may be looking.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func writeReportJSON(w io.Writer, r *report.Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

func toFile(name string, write func(io.Writer) error) error {
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(out), out.Close())
}

// findGoodput prints the highest rate each policy sustains.
func (f *replayFlags) findGoodput(w io.Writer, t replay.Trial) error {
	fmt.Fprintf(w, "%s on fleet %s: highest rate at which %g %% of requests meet %s\n\n", f.trace, f.fleet, 100*f.target, f.objective)
	fmt.Fprintf(w, "%-16s  %10s  %12s  %6s\n", "policy", "multiplier", "goodput/s", "met")
	for _, p := range f.policies {
		g, err := t.FindGoodput(p, f.target)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%-16s  %10.2f  %12.2f  %5.1f%%\n", g.Policy, g.Multiplier, g.Requests, 100*g.Met)
	}
	return nil
}
