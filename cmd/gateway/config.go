package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/config"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check a configuration file, or print its schema"}
	cmd.AddCommand(&cobra.Command{
		Use:     "check FILE",
		Short:   "Check a configuration file and its contracts, and report everything wrong with them",
		Example: "  firsttoken config check config.yaml",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return checkConfig(cmd.OutOrStdout(), args[0]) },
	}, &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			schema, err := config.Schema()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(schema)
			return err
		},
	})
	return cmd
}

func checkConfig(out io.Writer, file string) error {
	cfg, err := config.Load(file, os.LookupEnv)
	if err != nil {
		return err
	}
	set, err := app.LoadContracts(cfg.Contracts)
	if err != nil {
		return err
	}
	backends := 0
	for _, m := range cfg.Models {
		backends += len(m.Backends)
	}
	fmt.Fprintf(out, "%s: ok, %s, %s", file, count(len(cfg.Models), "model"), count(backends, "backend"))
	if n := len(set.Contracts()); n > 0 {
		fmt.Fprintf(out, ", %s", count(n, "contract"))
	}
	fmt.Fprintln(out)
	noteShadowed(out, set)
	return nil
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
