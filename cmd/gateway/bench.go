package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/bench"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	plan             bench.Plan
	stream, noStream bool
	keyFrom          string // environment variable
	headers          []string
	telemetry        string
	json, html       string // files
	csv, windows     string
	compare          string
}

func benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench --target URL",
		Short: "Measure TTFT, ITL, TPOT and throughput of a target as its clients see them",
		Long: `Measure a target that speaks OpenAI's API: the gateway, or an engine.

Without --rate, --trace and --workload the load is a closed loop: eight callers,
each of which sends its next request when the last one has ended. With one of
them it is an open loop: requests are sent on schedule, whatever becomes of the
others.

Ctrl-C prints the report of what has ended until then; the exit code is 130. It
is 1 if no request was served.`,
		Example: `  firsttoken bench --target http://127.0.0.1:8080
  firsttoken bench --target http://127.0.0.1:8080 --rate 4 --law gamma:2 --duration 2m --objective ttft=320ms,tpot=50ms
  firsttoken bench --target http://127.0.0.1:8080 --workload chat,code,summary --duration 90s
  firsttoken bench --target http://127.0.0.1:8080 --workload code --model llama-3.1-8b --json new.json --compare old.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runBench(cmd, f) },
	}
	f.register(cmd)
	return cmd
}

func (f *benchFlags) register(cmd *cobra.Command) {
	flags, p := cmd.Flags(), &f.plan
	flags.StringVar(&p.Target, "target", "", "base URL, with or without /v1")
	flags.StringVar(&p.Endpoint, "endpoint", "chat", "chat or completions")
	flags.StringArrayVar(&p.Models, "model", nil, "model to ask for, as NAME or NAME=WEIGHT; may be repeated (default: as the trace says, else the first that the target lists for --workload, and all for others)")

	flags.IntVar(&p.Concurrency, "concurrency", 0, "closed loop of so many callers (default 8); with --trace or --workload their requests, not their arrivals")
	flags.Float64Var(&p.Rate, "rate", 0, "open loop of so many requests a second")
	flags.StringVar(&p.Law, "law", "", "law of arrivals at --rate: poisson (default), constant, gamma:CV, weibull:SHAPE")
	flags.StringVar(&p.Trace, "trace", "", "open loop of the requests of a trace file")
	flags.StringVar(&p.Workload, "workload", "", "open loop of shipped workloads, with commas between them: chat, code, summary (customer-service, code-completion, live-summarisation)")
	flags.Float64Var(&p.Multiplier, "rate-multiplier", 0, "run --trace or --workload so many times as fast")

	flags.StringVar(&p.PromptTokens, "prompt-tokens", "", "tokens of a prompt, as N or a range N-M (default 512, or as the trace says)")
	flags.StringVar(&p.OutputTokens, "output-tokens", "", "most tokens of an answer, as N or a range N-M (default 128, or as the trace says)")
	flags.BoolVar(&f.stream, "stream", false, "stream every answer (default: as the trace says, else stream)")
	flags.BoolVar(&f.noStream, "no-stream", false, "stream no answer; only E2E can be measured")
	flags.BoolVar(&p.IgnoreEOS, "ignore-eos", false, "ask the engine (vLLM, SGLang) for exactly the output tokens, whatever the model wants")

	flags.IntVar(&p.WarmUp, "warmup", 50, "requests before the first that is counted")
	flags.IntVar(&p.Requests, "requests", 0, "requests to count (default 200 in a closed loop without --duration)")
	flags.DurationVar(&p.Duration, "duration", 0, "time in which requests are sent (default 1m in an open loop without --requests or --trace)")
	flags.DurationVar(&p.Timeout, "timeout", 5*time.Minute, "limit of one request; 0 is none")
	flags.Uint64Var(&p.Seed, "seed", 1, "the same seed asks the same requests")
	flags.StringVar(&p.Objective, "objective", "", "what a request has to meet, such as ttft=320ms,tpot=50ms,e2e=5s (default: the trace's own)")

	flags.StringVar(&f.keyFrom, "api-key-env", "", "environment variable that holds the target's API key")
	flags.StringArrayVar(&f.headers, "header", nil, `header of each request, as "Name: value" or name=value; may be repeated`)
	flags.StringVar(&f.telemetry, "telemetry", "", "URL of the gateway's telemetry listener: puts its version and backends on record")

	flags.StringVar(&f.json, "json", "", "file for the whole report, also for a later --compare")
	flags.StringVar(&f.html, "html", "", "file for the report with plots")
	flags.StringVar(&f.csv, "csv", "", "file for one line a request")
	flags.StringVar(&f.windows, "windows", "", "file (CSV) for one line a second and model")
	flags.StringVar(&f.compare, "compare", "", "an older run's --json to compare with")
}

func runBench(cmd *cobra.Command, f benchFlags) error {
	header, err := f.header(os.LookupEnv)
	if err != nil {
		return err
	}
	if f.stream && f.noStream {
		return errors.New("--stream and --no-stream exclude each other: give one")
	}
	if f.stream {
		f.plan.Stream = "yes"
	}
	if f.noStream {
		f.plan.Stream = "no"
	}
	old, err := readOld(f.compare)
	if err != nil {
		return err
	}
	b, err := bench.New(f.plan, header, nil)
	if err != nil {
		return err
	}
	if err := f.writable(); err != nil {
		return err
	}
	defer b.Close()

	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal ends at once
	env, err := b.Environment(ctx, version, f.telemetry)
	if err != nil {
		return err
	}
	run, err := runWithProgress(ctx, b)
	if run == nil {
		return err
	}
	report := bench.Summarise(run, env)
	if old != nil {
		report.CompareWith(old, f.compare)
	}
	err = errors.Join(err, report.WriteTable(cmd.OutOrStdout()), f.write(report, run))
	if err == nil && run.Stopped {
		return exitCode(130)
	}
	return errors.Join(err, run.Served())
}

func (f *benchFlags) header(env func(string) (string, bool)) (http.Header, error) {
	h := http.Header{}
	for _, line := range f.headers {
		name, value, ok := cutHeader(line)
		if !ok {
			return nil, fmt.Errorf(`--header %q: give "Name: value" or name=value`, line)
		}
		h.Add(name, value)
	}
	if f.keyFrom == "" {
		return h, nil
	}
	key, ok := env(f.keyFrom)
	if !ok || key == "" {
		return nil, fmt.Errorf("--api-key-env %s: there is no such environment variable: export it first", f.keyFrom)
	}
	h.Set("Authorization", "Bearer "+key)
	return h, nil
}

func readOld(name string) (*bench.Report, error) {
	if name == "" {
		return nil, nil
	}
	file, err := os.Open(name) //nolint:gosec // the file the user names
	if err != nil {
		return nil, fmt.Errorf("--compare: %w", err)
	}
	defer file.Close()
	old, err := bench.Read(file)
	if err != nil {
		return nil, fmt.Errorf("--compare %s %w", name, err)
	}
	return old, nil
}

func (f *benchFlags) writable() error {
	return errors.Join(writable("--json", f.json), writable("--html", f.html), writable("--csv", f.csv), writable("--windows", f.windows))
}

// writable finds out before a run whether the file of a flag can be written.
func writable(flag, name string) error {
	if name == "" {
		return nil
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // a report is for everybody
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return file.Close()
}

func (f *benchFlags) write(report *bench.Report, run *bench.Run) error {
	return errors.Join(
		writeFile(f.json, report.WriteJSON),
		writeFile(f.html, func(w io.Writer) error { return report.WriteHTML(w, run) }),
		writeFile(f.csv, run.WriteCSV),
		writeFile(f.windows, report.WriteWindows),
	)
}

func writeFile(name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	file, err := os.Create(name) //nolint:gosec // the file the user names
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}

// runWithProgress shows on a terminal how far the run has come.
func runWithProgress(ctx context.Context, b *bench.Bench) (*bench.Run, error) {
	if info, err := os.Stderr.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return b.Run(ctx)
	}
	done := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() {
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fmt.Fprintf(os.Stderr, "\r\x1b[K%s", progressLine(b.Progress()))
			case <-done:
				fmt.Fprint(os.Stderr, "\r\x1b[K")
				return
			}
		}
	})
	run, err := b.Run(ctx)
	close(done)
	showing.Wait()
	return run, err
}

func progressLine(p bench.Progress) string {
	phase, of := "", ""
	if p.Warming {
		phase = "warm-up "
	}
	if p.Total > 0 {
		of = fmt.Sprintf("/%d", p.Total)
	}
	rate := 0.0
	if p.Elapsed > 0 {
		rate = float64(p.OutputTokens) / p.Elapsed.Seconds()
	}
	return fmt.Sprintf("%s%.0f s  %d%s ended, %d failed, %d in flight, %.0f output tokens/s",
		phase, p.Elapsed.Seconds(), p.Ended, of, p.Failed, p.InFlight, rate)
}
