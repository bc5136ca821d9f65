package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/fleet"
)

// simFlags are the flags of sim.
type simFlags struct {
	fleet   string
	gateway string
	control string
	speed   float64
}

func simCommand() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "sim --config FLEET",
		Short: "Run simulated engines on loopback ports",
		Long: `Run the engines of a fleet file, each on its own loopback port, until Ctrl-C.
They speak the OpenAI API and vLLM's metrics and take as long as the measured
engines of their profiles. FLEET is a file, or a shipped fleet: ` + strings.Join(fleet.Names(), ", ") + `.

What is printed is the models section of a gateway configuration. Faults happen
by the fleet file's schedule, or by hand through the control address:

  curl -X POST   http://CONTROL/engines/NAME/faults -d '{"kind":"slow","factor":3,"for":"30s"}'
  curl -X DELETE http://CONTROL/engines/NAME/faults
  curl           http://CONTROL/engines`,
		Example: `  firsttoken sim --config mixed --gateway-config gateway.yaml --control 127.0.0.1:9000
  firsttoken sim --config fleet.yaml --speed 10`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return sim(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.fleet, "config", "c", "", "fleet file (YAML), or the name of a shipped fleet")
	flags.StringVar(&f.gateway, "gateway-config", "", "also write the gateway configuration to this file")
	flags.StringVar(&f.control, "control", "127.0.0.1:0", "address to inject faults at; off for none")
	flags.Float64Var(&f.speed, "speed", 1, "run so many times faster than real")
	cmd.AddCommand(simProfilesCommand(), simFitCommand(), simValidateCommand())
	return cmd
}

func sim(cmd *cobra.Command, f simFlags) error {
	if f.fleet == "" {
		return errors.New("sim needs --config FLEET: a file, or one of " + strings.Join(fleet.Names(), ", "))
	}
	if f.speed <= 0 {
		return fmt.Errorf("--speed is %v, want a number above 0", f.speed)
	}
	spec, err := fleet.Open(f.fleet)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	running, err := spec.Start(context.WithoutCancel(ctx), f.speed, nil)
	if err != nil {
		return err
	}
	defer running.Stop()
	control, err := startControl(f.control, running.Control())
	if err != nil {
		return err
	}
	defer control.stop()
	if f.gateway != "" {
		if err := os.WriteFile(f.gateway, []byte(running.GatewayConfig()), 0o644); err != nil { //nolint:gosec // simulated engines have no secrets
			return fmt.Errorf("write the gateway configuration: %w", err)
		}
	}
	announce(cmd.OutOrStdout(), spec, running, control)
	<-ctx.Done()
	return nil
}

// announce prints a gateway configuration, with what else there is to know in
// comments.
func announce(w io.Writer, spec *fleet.Fleet, running *fleet.Running, control *control) {
	fmt.Fprintf(w, "# %s, %.2f USD an hour; Ctrl-C stops\n", count(len(spec.Engines), "simulated engine"), spec.PricePerHour())
	if control.addr != "" {
		fmt.Fprintf(w, "# control: http://%s/engines\n", control.addr)
	}
	fmt.Fprint(w, running.GatewayConfig())
}

// control is the listener of the control face; the zero value is none.
type control struct {
	addr  string
	http  *http.Server
	serve sync.WaitGroup
}

func startControl(addr string, handler http.Handler) (*control, error) {
	c := &control{}
	if addr == "off" {
		return c, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on --control: %w", err)
	}
	c.addr = l.Addr().String()
	c.http = &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	c.serve.Go(func() { _ = c.http.Serve(l) }) // ends with stop
	return c, nil
}

func (c *control) stop() {
	if c.http == nil {
		return
	}
	_ = c.http.Close() // what is under way is of no interest any more
	c.serve.Wait()
}

func simProfilesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "profiles",
		Short: "List the built-in engine profiles",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "PROFILE\tMODEL\tGPU\tTP\tSOFTWARE\tUSD/HOUR\tKV TOKENS\tESTIMATED")
			for _, p := range engine.Profiles() {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%.2f\t%d\t%s\n", p.Name, p.Model, p.GPU, p.TP, p.Software,
					p.PricePerHour, p.Params.KVBlocks*engine.BlockTokens, strings.Join(sortedKeys(p.Estimated), ", "))
			}
			return w.Flush()
		},
	}
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
