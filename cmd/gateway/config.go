package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/config"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check a configuration file, or print its schema"}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file and report everything wrong with it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(args[0], os.LookupEnv)
			if err != nil {
				return err
			}
			backends := 0
			for _, m := range cfg.Models {
				backends += len(m.Backends)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: ok, %s, %s\n", args[0], count(len(cfg.Models), "model"), count(backends, "backend"))
			return nil
		},
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

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
