package main

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/samples"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// samplesFolder is where samples are looked for if nothing is named.
const samplesFolder = "samples"

func samplesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "samples", Short: "Sum up or export what was predicted and what became of it"}
	cmd.AddCommand(samplesStatsCommand(), samplesExportCommand(), samplesBootstrapCommand())
	return cmd
}

func samplesStatsCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "stats [DIR|FILE]...",
		Short: "Count samples, and judge every estimator by them",
		Long: `Count the samples of a log (default ` + samplesFolder + `), and judge every estimator by them.
MAPE and median error are of P50. Coverage is the share of requests that took no
longer than P95; 95 % is right. Pinball is the mean loss of P95, of the
logarithm of the time: lower is better. Requests whose client left before the
first token are lower bounds, and count where the bound is above the prediction.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := samples.Summarise(samples.Read(paths(args)...))
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), st)
			}
			return printStats(cmd.OutOrStdout(), st)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func paths(args []string) []string {
	if len(args) == 0 {
		return []string{samplesFolder}
	}
	return args
}

func printStats(out io.Writer, st *samples.Stats) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "samples\t%d, %s to %s\n", st.Rows, st.From.Format(time.RFC3339), st.To.Format(time.RFC3339))
	fmt.Fprintf(w, "lower bounds\t%s\n", percent(trees.Number(st.Censored)))
	fmt.Fprintf(w, "schema\t%s\n", st.Schema)
	fmt.Fprintf(w, "TTFT\tP50 %s, P90 %s, P95 %s, P99 %s, longest %s\n",
		inSeconds(st.TTFT.P50), inSeconds(st.TTFT.P90), inSeconds(st.TTFT.P95), inSeconds(st.TTFT.P99), inSeconds(st.TTFT.Max))
	fmt.Fprintf(w, "models\t%s\n", counts(st.Models))
	fmt.Fprintf(w, "backends\t%s\n", counts(st.Backends))
	fmt.Fprintf(w, "regimes\t%s\n", counts(st.Regimes))
	fmt.Fprintln(w, "\nESTIMATOR\tREGIME\tROWS\tMAPE\tMEDIAN ERROR\tCOVERAGE\tPINBALL")
	for _, e := range st.Estimators {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", e.Estimator, e.Regime, e.Rows, percent(e.MAPE), percent(e.MedianError), percent(e.Coverage), decimal(e.Pinball))
	}
	return w.Flush()
}

func inSeconds(n trees.Number) string { return fmt.Sprintf("%.4g s", float64(n)) }

// counts lists what was counted, in the order of the names.
func counts(of map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, of[name]))
	}
	return strings.Join(parts, ", ")
}

func samplesExportCommand() *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use:   "export --csv FILE [DIR|FILE]...",
		Short: "Write samples as CSV",
		Long: `Write the samples of a log (default ` + samplesFolder + `) as CSV, in the order of time.
Durations are in seconds; what is not known is empty.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "-" {
				return exportCSV(cmd.OutOrStdout(), paths(args))
			}
			out, err := os.Create(file)
			if err != nil {
				return err
			}
			return errors.Join(exportCSV(out, paths(args)), out.Close())
		},
	}
	cmd.Flags().StringVar(&file, "csv", "", "file to write; - is standard output")
	_ = cmd.MarkFlagRequired("csv") // it exists
	return cmd
}

func exportCSV(out io.Writer, from []string) error {
	buffered := bufio.NewWriter(out)
	w := csv.NewWriter(buffered)
	if err := w.Write(samples.Columns()); err != nil {
		return err
	}
	for s, err := range samples.Read(from...) {
		if err != nil {
			return err
		}
		if err := w.Write(samples.Record(&s)); err != nil {
			return err
		}
	}
	w.Flush()
	return errors.Join(w.Error(), buffered.Flush())
}
