// Command firsttoken is the gateway: one binary, one subcommand a task.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// exitCode is an error that has been told to the user already.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func main() {
	err := rootCommand().Execute()
	var code exitCode
	if errors.As(err, &code) {
		os.Exit(int(code))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "firsttoken:", err)
		os.Exit(1)
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "firsttoken",
		Short:         "A latency-aware gateway for LLM inference engines",
		Long:          "Firsttoken puts every model of a fleet of inference engines behind one OpenAI-compatible address.",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(), simCommand(), replayCommand(), benchCommand(), modelCommand(), configCommand(), versionCommand())
	root.AddCommand(contractCommand(), topCommand())
	root.AddCommand(samplesCommand(), trainCommand(), evalCommand())
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version) },
	}
}
