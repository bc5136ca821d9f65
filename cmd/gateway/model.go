package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/models"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// modelFlags are the flags of every model command.
type modelFlags struct {
	dir  string
	json bool
}

func (f *modelFlags) store() *models.Store {
	return models.New(f.dir, predictor.Names(), predictor.SchemaHash())
}

func modelCommand() *cobra.Command {
	f := &modelFlags{}
	cmd := &cobra.Command{Use: "model", Short: "Check, list and activate models that predict the time to first token"}
	cmd.PersistentFlags().StringVar(&f.dir, "dir", "models", "directory of published models")
	cmd.PersistentFlags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.AddCommand(modelCheckCommand(f), modelListCommand(f), modelShowCommand(f), modelActivateCommand(f), modelDeactivateCommand(f), modelRollbackCommand(f))
	return cmd
}

func modelCheckCommand(f *modelFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE|DIR",
		Short: "Check a model without publishing it",
		Long: `Check a model without publishing it. DIR is a whole model: manifest.json, p50.txt
and p95.txt, with checksums and golden rows. FILE is one text as LightGBM's
save_model writes it, of which form and features are checked.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			info, err := os.Stat(args[0])
			if err != nil {
				return err
			}
			if info.IsDir() {
				return f.checkFolder(cmd.OutOrStdout(), args[0])
			}
			if !info.Mode().IsRegular() {
				return fmt.Errorf("%s is no regular file", args[0])
			}
			return f.checkFile(cmd.OutOrStdout(), args[0])
		},
	}
}

func (f *modelFlags) checkFolder(out io.Writer, name string) error {
	b, err := trees.OpenWith(os.DirFS(name), predictor.Names(), predictor.SchemaHash())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if f.json {
		return printJSON(out, newModelView("", b, nil))
	}
	fmt.Fprintf(out, "%s: ok, model %s, %s\n", name, b.Manifest.ID, count(len(b.Manifest.Golden), "golden row"))
	return nil
}

func (f *modelFlags) checkFile(out io.Writer, name string) error {
	file, err := os.Open(name) //nolint:gosec // the file the user names
	if err != nil {
		return err
	}
	defer file.Close()
	m, err := trees.Read(file, predictor.Names())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	info := m.Info()
	if f.json {
		return printJSON(out, info)
	}
	fmt.Fprintf(out, "%s: ok, %s\n", name, headLine(info))
	return nil
}

func headLine(info trees.Info) string {
	return fmt.Sprintf("%s of at most %s, objective %s, alpha %v", count(info.Trees, "tree"), leafCount(info.MaxLeaves), info.Objective, info.Alpha)
}

func leafCount(n int) string {
	if n == 1 {
		return "1 leaf"
	}
	return fmt.Sprintf("%d leaves", n)
}

func modelListCommand(f *modelFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the published models, the newest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			entries, err := f.store().List()
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%w; name the directory of the models with --dir", err)
			}
			if err != nil {
				return err
			}
			views := make([]modelView, 0, len(entries))
			for _, e := range entries {
				v := newModelView(e.ID, e.Bundle, e.Err)
				v.Active, v.Previous = e.Active, e.Previous
				views = append(views, v)
			}
			if f.json {
				return printJSON(cmd.OutOrStdout(), views)
			}
			return printModels(cmd.OutOrStdout(), views)
		},
	}
}

func modelShowCommand(f *modelFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "show [ID]",
		Short: "Show a published model: the active one, or the one named",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, b, err := f.find(args)
			if err != nil {
				return err
			}
			if f.json {
				return printJSON(cmd.OutOrStdout(), newModelView(id, b, nil))
			}
			return printModel(cmd.OutOrStdout(), b)
		},
	}
}

func (f *modelFlags) find(args []string) (id string, b *trees.Bundle, err error) {
	if len(args) == 0 {
		return f.store().Active()
	}
	b, err = f.store().Load(args[0])
	return args[0], b, err
}

func modelActivateCommand(f *modelFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "activate ID",
		Short: "Make a published model the active one, after checking all of it",
		Example: `  firsttoken model list
  firsttoken model activate 20261202T120000-00000c --dir models`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.store().Activate(args[0]); err != nil {
				return err
			}
			return f.printActive(cmd.OutOrStdout(), args[0])
		},
	}
}

func modelDeactivateCommand(f *modelFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "deactivate",
		Short: "Make no model the active one, so that the one that ships serves",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := f.store().Deactivate()
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%w; name the directory of the models with --dir", err)
			}
			if err != nil {
				return err
			}
			if f.json {
				return printJSON(cmd.OutOrStdout(), map[string]string{"active": ""})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "no model is active; the one that ships serves")
			return err
		},
	}
}

func modelRollbackCommand(f *modelFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "rollback",
		Short: "Go back to the model that was active before",
		Long: `Go back to the model that was active before, after checking all of it. There is
one step back; name any other model with firsttoken model activate, or go back to
the one that ships with firsttoken model deactivate.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			id, err := f.store().Rollback()
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%w; name the directory of the models with --dir", err)
			}
			if err != nil {
				return err
			}
			return f.printActive(cmd.OutOrStdout(), id)
		},
	}
}

func (f *modelFlags) printActive(out io.Writer, id string) error {
	if f.json {
		return printJSON(out, map[string]string{"active": id})
	}
	_, err := fmt.Fprintf(out, "%s is active\n", id)
	return err
}

// modelView is a model as --json prints it.
type modelView struct {
	ID       string          `json:"id"`
	Active   bool            `json:"active"`
	Previous bool            `json:"previous"`
	Problem  string          `json:"problem,omitempty"` // why it cannot serve
	Manifest *trees.Manifest `json:"manifest,omitempty"`
	P50      *trees.Info     `json:"p50,omitempty"`
	P95      *trees.Info     `json:"p95,omitempty"`
}

func newModelView(id string, b *trees.Bundle, err error) modelView {
	if err != nil {
		return modelView{ID: id, Problem: err.Error()}
	}
	p50, p95 := b.P50.Info(), b.P95.Info()
	return modelView{ID: b.Manifest.ID, Manifest: &b.Manifest, P50: &p50, P95: &p95}
}

func (v *modelView) state() string {
	switch {
	case v.Active:
		return "active"
	case v.Previous:
		return "previous"
	}
	return ""
}

func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func printModels(out io.Writer, views []modelView) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTATE\tCREATED\tROWS\tMAPE\tCOVERAGE\tPROBLEM")
	for _, v := range views {
		if v.Problem != "" {
			fmt.Fprintf(w, "%s\t%s\t\t\t\t\t%s\n", v.ID, v.state(), v.Problem)
			continue
		}
		all := v.Manifest.Metrics["all"]
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t\n", v.ID, v.state(), v.Manifest.Created.Format(time.RFC3339),
			v.Manifest.Training.Rows, percent(all.MAPE), percent(all.Coverage))
	}
	return w.Flush()
}

func printModel(out io.Writer, b *trees.Bundle) error {
	m, p50, p95 := b.Manifest, b.P50.Info(), b.P95.Info()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "model\t%s\n", m.ID)
	fmt.Fprintf(w, "created\t%s\n", m.Created.Format(time.RFC3339))
	fmt.Fprintf(w, "schema\t%s\n", m.Schema)
	fmt.Fprintf(w, "predicts\tlog(TTFT / %s estimate)\n", m.Base)
	fmt.Fprintf(w, "p50\t%s\n", headLine(p50))
	fmt.Fprintf(w, "p95\t%s\n", headLine(p95))
	fmt.Fprintf(w, "trained on\t%d rows, %s to %s, LightGBM %s\n", m.Training.Rows,
		m.Training.From.Format(time.RFC3339), m.Training.To.Format(time.RFC3339), m.Training.LightGBM)
	fmt.Fprintf(w, "source\t%s\n", m.Training.Source)
	fmt.Fprintf(w, "splits, p50\t%s\n", mostSplits(p50))
	fmt.Fprintf(w, "splits, p95\t%s\n", mostSplits(p95))
	fmt.Fprintln(w, "\nREGIME\tROWS\tMAPE\tMEDIAN ERROR\tCOVERAGE\tPINBALL")
	for _, regime := range []string{"all", "idle", "busy", "queued", "kv_full"} {
		x, ok := m.Metrics[regime]
		if !ok {
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", regime, x.Rows, percent(x.MAPE), percent(x.MedianError), percent(x.Coverage), decimal(x.Pinball))
	}
	return w.Flush()
}

// mostSplits names the features that decide most nodes.
func mostSplits(info trees.Info) string {
	names := predictor.Names()
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(info.Splits[b], info.Splits[a]) })
	var most []string
	for _, i := range order[:min(5, len(order))] {
		if info.Splits[i] > 0 {
			most = append(most, fmt.Sprintf("%s %d", names[i], info.Splits[i]))
		}
	}
	return strings.Join(most, ", ")
}

func percent(n trees.Number) string {
	if math.IsNaN(float64(n)) {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n))
}

func decimal(n trees.Number) string {
	if math.IsNaN(float64(n)) {
		return "-"
	}
	return fmt.Sprintf("%.4f", float64(n))
}
