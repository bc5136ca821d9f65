package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/deploy/contracts"
	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/fleet"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// replayFlags are the flags of replay.
type replayFlags struct {
	fleets, add     []string
	policies        []string
	demand          demand
	seeds           int
	objective       string
	gateways        int
	scrape, network time.Duration
	goodput         bool
	target          float64
	contracts       []string
	json, html      string
	decisions       string
	quiet           bool
}

// defaultObjective judges requests whose trace sets none.
const defaultObjective = "ttft=400ms,ttft-per-token=250us,tpot=80ms"

func replayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay --trace TRACE --fleet FLEET",
		Short: "Judge policies and fleets by a trace, in virtual time",
		Long: `Send a trace through the gateway's own routing code to simulated engines, in
virtual time: hours of traffic in seconds, the same outcome for the same seed.

FLEET is a fleet file or the name of a shipped one (` + strings.Join(fleet.Names(), ", ") + `).
TRACE is a file (Azure CSV, Mooncake JSONL, ServeGen, lengths, the gateway's
access log), a shipped workload (` + strings.Join(workloadNames(), ", ") + `),
or the start of a file's name in $FIRSTTOKEN_DATA/traces.

POLICY is one of ` + strings.Join(router.PolicyNames(), ", ") + `.
Headroom holds and sheds requests that nobody can serve in time; headroom+direct
sends them all at once, and weighted+hold or argmin+hold hold them too.

With several policies or fleets the report compares them; with --seeds it says
which differences are sure. Ctrl-C prints the report of what has ended until
then; the exit code is 130.`,
		Example: `  firsttoken replay --fleet mixed --trace customer-service --requests 5000
  firsttoken replay --fleet equal --trace azure2023_conv --policy round-robin,lmetric --seeds 5 --html report.html
  firsttoken replay --fleet mixed --add h100-llama-3.1-70b-fp8-tp4 --trace azure2023_conv --policy lmetric
  firsttoken replay --fleet mixed --trace azure2023_conv --find-goodput
  firsttoken replay --fleet mixed --trace customer-service --rate-multiplier 7 --contracts shipped --policy lmetric,headroom,headroom+direct`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runReplay(cmd, f) },
	}
	cmd.AddCommand(targetsCommand())
	flags, d := cmd.Flags(), &f.demand
	flags.StringArrayVar(&f.fleets, "fleet", []string{"equal", "mixed"}, "fleet file, or the name of a shipped fleet; may be repeated to compare")
	flags.StringArrayVar(&f.add, "add", nil, "compare the fleet with itself and one more engine of this profile (built-in, or a file); may be repeated")
	flags.StringSliceVar(&f.policies, "policy", router.PolicyNames(), "policies to compare; differences are to the first")
	flags.IntVar(&f.seeds, "seeds", 1, "runs of each; two or more give intervals of the differences")

	flags.StringVar(&d.trace, "trace", "", "trace file, or names of workloads with commas between them, also as chat, code, summary")
	flags.IntVar(&d.requests, "requests", 0, "only so many requests (default all; 10000 of a workload, which has no end)")
	flags.DurationVar(&d.from, "from", 0, "leave out what arrives before")
	flags.DurationVar(&d.to, "to", 0, "leave out what arrives after; 0 is to the end")
	flags.Float64Var(&d.multiplier, "rate-multiplier", 1, "run the trace so many times as fast")
	flags.Float64Var(&d.rate, "rate", 0, "so many requests a second in place of the trace's arrivals")
	flags.StringVar(&d.law, "law", "poisson", "law of arrivals at --rate: poisson, constant, gamma:CV, weibull:SHAPE")
	flags.StringVar(&d.shape, "shape", "", "let the rate swing: step:AT:FACTOR, sine:DEPTH:PERIOD, burst:DEPTH:PERIOD")
	flags.StringToStringVar(&d.rename, "model-map", nil, "serve the trace's model A by the fleet's B: A=B (default: a fleet of one model serves all)")
	flags.Lookup("model-map").DefValue = "" // the text says it
	flags.StringArrayVar(&d.models, "model", nil, "draw each request's model, as NAME or NAME=WEIGHT; may be repeated (default: as the trace says)")
	flags.StringArrayVar(&d.tenants, "tenant", nil, "draw each request's tenant, as NAME or NAME=WEIGHT; tenants share no cache")

	flags.StringVar(&f.objective, "objective", "", "what every request is to meet (default: its own, of the trace; else "+defaultObjective+")")
	flags.StringSliceVar(&f.contracts, "contracts", nil, "contract files, or shipped; where one holds it is what counts, and its criticality decides who is let in first")
	flags.IntVar(&f.gateways, "gateways", 1, "replicas that do not see each other")
	flags.DurationVar(&f.scrape, "scrape", 300*time.Millisecond, "time between scrapes of an engine's metrics; below 0 never")
	flags.DurationVar(&f.network, "network", 0, "one way between gateway and engine (default: the fleet's)")
	flags.BoolVar(&f.goodput, "find-goodput", false, "search the highest rate at which enough requests meet the objective")
	flags.Float64Var(&f.target, "target", 0.95, "share that is enough, for --find-goodput")

	flags.StringVar(&f.json, "json", "", "write the report as JSON to this file; - is standard output, instead of the table")
	flags.StringVar(&f.decisions, "decisions", "", "write each request's end to this file, with what was predicted of it: JSON lines")
	flags.StringVar(&f.html, "html", "", "write the report with plots to this file")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress on a terminal")
	_ = cmd.MarkFlagRequired("trace") // it exists
	return cmd
}

func runReplay(cmd *cobra.Command, f replayFlags) error {
	if f.goodput && f.decisions != "" {
		return errors.New("--decisions: a search for goodput is many runs; give one of the two flags")
	}
	fleets, err := f.open()
	if err != nil {
		return err
	}
	trial, err := f.trial(fleets)
	if err != nil {
		return err
	}
	if err := f.writable(); err != nil {
		return err
	}
	log, err := openDecisions(f.decisions)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal ends at once
	r := report.Report{Title: f.title(), Objective: f.judgedBy(trial)}
	if r.Notes, err = f.notes(fleets, trial); err != nil {
		return err
	}
	for i := range trial.Variants {
		trial.Variants[i].Stop = func() bool { return ctx.Err() != nil }
	}
	progress := f.progress()
	trial.Progress = func(variant string, seed int) {
		progress(fmt.Sprintf("%s, seed %d", variant, seed+1))
		log.begin(variant, seed+1)
	}
	trial.Seen = log.write
	if f.goodput {
		r.Goodput, r.Partial, err = f.search(trial)
	} else {
		r.Runs, r.Differences, r.Partial, err = trial.Compare()
	}
	progress("")
	if err := errors.Join(err, log.close()); err != nil {
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

func (f *replayFlags) title() string {
	what := f.demand.trace
	if f.demand.multiplier != 1 {
		what += fmt.Sprintf(", %g times as fast", f.demand.multiplier)
	}
	title := what + " on fleet " + strings.Join(f.fleets, ", ")
	if f.goodput {
		title = fmt.Sprintf("%s: highest rate at which %g %% of the requests meet their objective", title, 100*f.target)
	}
	return title
}

// judgedBy says which objectives hold.
func (f *replayFlags) judgedBy(t replay.Trial) string {
	if len(f.contracts) > 0 {
		return "the contract's that holds; without one " + cmp.Or(f.objective, "the trace's own, or "+defaultObjective)
	}
	if f.objective != "" {
		return f.objective
	}
	for r, err := range t.Source(1).First(1) {
		if err == nil && (r.TTFT > 0 || r.TPOT > 0 || r.E2E > 0) {
			return "each request's own, of the trace"
		}
	}
	return defaultObjective
}

// progress shows one line that is written over on a terminal.
func (f *replayFlags) progress() func(line string) {
	if info, err := os.Stderr.Stat(); f.quiet || err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return func(string) {}
	}
	return func(line string) { fmt.Fprintf(os.Stderr, "\r\x1b[K%s", line) }
}

// search finds the highest rate each variant sustains. When it is stopped it
// gives those that were found.
func (f *replayFlags) search(t replay.Trial) (found []report.Goodput, partial bool, err error) {
	for _, v := range t.Variants {
		t.Progress(v.Name, 0)
		g, err := t.FindGoodput(v, f.target)
		if errors.Is(err, replay.ErrStopped) {
			return found, true, nil
		}
		if err != nil {
			return nil, false, err
		}
		found = append(found, g)
	}
	return found, false, nil
}

func (f *replayFlags) writable() error {
	if f.json == "-" { // standard output
		return writable("--html", f.html)
	}
	return errors.Join(writable("--json", f.json), writable("--html", f.html))
}

func (f *replayFlags) write(w io.Writer, r *report.Report) error {
	writeJSON := func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	if f.json == "-" {
		return errors.Join(writeJSON(w), writeFile(f.html, r.WriteHTML))
	}
	return errors.Join(r.WriteTable(w), writeFile(f.json, writeJSON), writeFile(f.html, r.WriteHTML))
}

// namedFleet is one of the fleets compared.
type namedFleet struct {
	*fleet.Fleet
	name string
}

// open reads the fleets; --add makes one more of each.
func (f *replayFlags) open() ([]namedFleet, error) {
	var all []namedFleet
	for _, ref := range f.fleets {
		one, err := fleet.Open(ref)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(ref), filepath.Ext(ref))
		all = append(all, namedFleet{one, name})
		if len(f.add) == 0 {
			continue
		}
		more, err := withMore(one, f.add)
		if err != nil {
			return nil, err
		}
		all = append(all, namedFleet{more, name + " + " + strings.Join(f.add, " + ")})
	}
	for _, other := range all[1:] {
		if a, b := all[0].Models(), other.Models(); !slices.Equal(sorted(a), sorted(b)) {
			return nil, fmt.Errorf("--fleet: %s serves %s, %s serves %s; fleets to compare serve the same models",
				all[0].name, strings.Join(a, ", "), other.name, strings.Join(b, ", "))
		}
	}
	return all, nil
}

func sorted(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return names
}

// withMore is the fleet with one more engine of each profile.
func withMore(f *fleet.Fleet, profiles []string) (*fleet.Fleet, error) {
	more := *f
	more.Engines = slices.Clone(f.Engines)
	for i, name := range profiles {
		p, err := profile(name)
		if err != nil {
			return nil, err
		}
		e := fleet.Engine{Name: fmt.Sprintf("added-%d", i+1), Model: p.Model, Profile: p, Params: p.Params,
			PricePerHour: p.PricePerHour, Seed: uint64(len(more.Engines))}
		switch models := f.Models(); {
		case len(models) == 1:
			e.Model = models[0]
		case !slices.Contains(models, e.Model):
			return nil, fmt.Errorf("--add %s: it serves %s, the fleet %s; write a fleet file to serve it under another name", name, e.Model, strings.Join(models, ", "))
		}
		more.Engines = append(more.Engines, e)
	}
	return &more, nil
}

// profile finds a profile by its built-in name or its file.
func profile(ref string) (engine.Profile, error) {
	if p, ok := engine.LookupProfile(ref); ok {
		return p, nil
	}
	p, err := fleet.LoadProfile(ref)
	if errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("--add %s: no such profile and no such file; firsttoken sim profiles lists the built-in ones", ref)
	}
	return p, err
}

// trial puts the flags together.
func (f *replayFlags) trial(fleets []namedFleet) (replay.Trial, error) {
	t := replay.Trial{Seeds: f.seeds}
	if f.gateways < 1 || f.seeds < 1 {
		return t, errors.New("--gateways and --seeds are at least 1")
	}
	if !(f.target > 0 && f.target <= 1) {
		return t, fmt.Errorf("--target %g: give a share above 0 and up to 1", f.target)
	}
	var err error
	if t.Objective, err = report.ParseObjective(f.objective); err != nil {
		return t, fmt.Errorf("--objective %w", err)
	}
	if t.Default, err = report.ParseObjective(defaultObjective); err != nil {
		return t, err
	}
	if t.Source, err = f.demand.source(fleets[0].Models()); err != nil {
		return t, err
	}
	if t.Variants, err = f.variants(fleets); err != nil || len(f.contracts) == 0 {
		return t, err
	}
	set, err := openContracts("--contracts", f.contracts)
	for i := range t.Variants {
		t.Variants[i].Contracts = set
	}
	return t, err
}

// variants is every policy on every fleet, named by what differs.
func (f *replayFlags) variants(fleets []namedFleet) ([]replay.Variant, error) {
	var out []replay.Variant
	seen := map[string]bool{}
	for _, fl := range fleets {
		c := f.config(fl)
		for _, policy := range f.policies {
			v := replay.Variant{Name: policy, Config: c}
			var err error
			if v.Policy, v.Admission, err = parsePolicy(policy); err != nil {
				return nil, err
			}
			switch {
			case len(fleets) > 1 && len(f.policies) > 1:
				v.Name = fl.name + ": " + policy
			case len(fleets) > 1:
				v.Name = fl.name
			}
			if seen[v.Name] {
				return nil, fmt.Errorf("%q would be compared with itself: give each policy and fleet once, and files different names", v.Name)
			}
			seen[v.Name] = true
			out = append(out, v)
		}
	}
	return out, nil
}

// parsePolicy reads a policy and how it lets requests in: +hold and +direct
// say it, otherwise headroom holds and the others don't.
func parsePolicy(text string) (policy string, admission *router.Admission, err error) {
	policy, how, given := strings.Cut(text, "+")
	hold := &router.Admission{}
	switch {
	case !slices.Contains(router.PolicyNames(), policy):
		return "", nil, fmt.Errorf("--policy %q is unknown: give some of %s", policy, strings.Join(router.PolicyNames(), ", "))
	case given && how != "hold" && how != "direct":
		return "", nil, fmt.Errorf("--policy %q: after the + write hold or direct", text)
	case how == "hold" && !router.Foresees(policy):
		return "", nil, fmt.Errorf("--policy %q: %s predicts nothing, so it can't tell whom to hold; write %s", text, policy, policy)
	case how == "hold", !given && policy == router.Headroom:
		return policy, hold, nil
	}
	return policy, nil, nil
}

// openContracts reads contract files; shipped stands for those of the program.
func openContracts(flag string, files []string) (*sla.Set, error) {
	if len(files) == 1 && files[0] == "shipped" {
		return sla.LoadFS(contracts.Files())
	}
	set, err := sla.Load(files...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return set, nil
}

// config is the replay of one fleet.
func (f *replayFlags) config(fl namedFleet) replay.Config {
	c := replay.Config{Gateways: f.gateways, Scrape: f.scrape, Network: cmp.Or(f.network, fl.Network)}
	for _, e := range fl.Engines {
		c.Engines = append(c.Engines, replay.Engine{Name: e.Name, Model: e.Model, Params: e.Params, Seed: e.Seed})
	}
	for _, fault := range fl.Faults {
		c.Faults = append(c.Faults, replay.Fault{At: fault.At, Engine: fault.Engine, Fault: fault.Fault, For: fault.For})
	}
	return c
}

// notes say what a reader of the report has to know.
func (f *replayFlags) notes(fleets []namedFleet, t replay.Trial) ([]string, error) {
	first := t.Variants[0].Config
	out := []string{fmt.Sprintf("%s, scrapes every %v, network %v one way", count(first.Gateways, "gateway"), first.Scrape, first.Network)}
	if f.seeds > 1 && f.demand.isRecording() {
		out = append(out, "a recording is the same for every seed: the intervals are of the policies' draws and the engines' noise alone")
	}
	for i, fl := range fleets {
		about := fmt.Sprintf("fleet %s: %d engines", fl.name, len(fl.Engines))
		if price := fl.PricePerHour(); price > 0 {
			about += fmt.Sprintf(", %.2f USD an hour", price)
		}
		if n := estimated(fl.Fleet); n > 0 {
			about += fmt.Sprintf("; %d parameters of its profiles are estimated, not measured: see firsttoken sim profiles", n)
		}
		out = append(out, about)
		misfits, err := replay.FindMisfits(t.Variants[i*len(t.Variants)/len(fleets)].Engines, t.Source(1).First(looked))
		if err != nil {
			return nil, err
		}
		out = append(out, aboutMisfits(misfits)...)
	}
	about, err := aboutContracts(t.Source(1), first.Contracts)
	return append(out, about...), err
}

// looked is how many requests are looked at before the first run. More than a
// recording has, but workloads have no end.
const looked = 200_000

// estimated counts the parameters that nobody measured, once a profile.
func estimated(fl *fleet.Fleet) int {
	seen := map[string]bool{}
	for _, e := range fl.Engines {
		for what := range e.Profile.Estimated {
			seen[e.Profile.Name+" "+what] = true
		}
	}
	return len(seen)
}

func aboutMisfits(m replay.Misfits) (out []string) {
	about := func(requests []replay.Misfit, what string) {
		if len(requests) > 0 {
			out = append(out, fmt.Sprintf("%d requests %s: %s", len(requests), what, examples(requests)))
		}
	}
	about(m.TooLong, "fit no engine's context or cache and are refused as an engine would")
	about(m.Partly, "fit only some engines and are refused by the others")
	about(m.Unknown, "ask for a model the fleet does not serve and are refused (see --model-map)")
	return out
}

// examples names the first few.
func examples(requests []replay.Misfit) string {
	const most = 3
	var parts []string
	for _, r := range requests[:min(len(requests), most)] {
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("request %d at %v with %d and %d tokens %s", r.Index+1, r.At.Round(time.Millisecond), r.PromptTokens, r.OutputTokens, r.Model)))
	}
	if more := len(requests) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, ", ")
}
