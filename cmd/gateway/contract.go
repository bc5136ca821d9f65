package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/textproto"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/firsttoken/firsttoken/deploy/contracts"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

func contractCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "contract",
		Short: "Check, explain and export contracts: what was promised to whom",
		Long: `Contracts say what was promised to whom. Each subcommand takes contract files
(YAML); without any it takes the three that ship.`,
	}
	cmd.AddCommand(contractCheckCommand(), contractMatchCommand(), contractShowCommand(), contractExportCommand(), contractSchemaCommand(), contractWhatifCommand())
	return cmd
}

// loadContracts reads files, or the shipped ones when there are none.
func loadContracts(files []string) (*sla.Set, error) {
	if len(files) == 0 {
		return sla.LoadFS(contracts.Files())
	}
	return sla.Load(files...)
}

func contractCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE...]",
		Short: "Check contract files and report everything wrong with them",
		Example: `  firsttoken contract check
  firsttoken contract check acme.yaml tiers.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := loadContracts(args)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "ok, %s, revision %s\n", count(len(set.Contracts()), "contract"), set.Revision())
			noteShadowed(out, set)
			return nil
		},
	}
}

// noteShadowed names the contracts that can never hold.
func noteShadowed(out io.Writer, set *sla.Set) {
	shadowed := set.Shadowed()
	for _, name := range slices.Sorted(maps.Keys(shadowed)) {
		fmt.Fprintf(out, "note: %s never holds: %s goes before it and matches all that it matches\n", name, shadowed[name])
	}
}

// matchFlags describe a request.
type matchFlags struct {
	tenant, model, tier string
	headers             []string
	prompt              int
}

func contractMatchCommand() *cobra.Command {
	var f matchFlags
	cmd := &cobra.Command{
		Use:   "match [FILE...] --tenant T --model M --header K=V --service-tier S",
		Short: "Tell which contract holds for a request, and why",
		Long: `Tell which contract holds for a request, and why.

Of the contracts that match, the first in this order holds: the higher match
priority; then who names a tenant, a header, a service tier, a model; more
headers; the name. All contracts are listed in that order.`,
		Example: `  firsttoken contract match --tenant bank
  firsttoken contract match acme.yaml --tenant acme --model llama-3.1-70b --header "x-slo-ttft-ms: 200"`,
		RunE: func(cmd *cobra.Command, args []string) error { return matchContract(cmd.OutOrStdout(), args, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.tenant, "tenant", "", "the request's tenant")
	flags.StringVar(&f.model, "model", "", "the model that it asks for")
	flags.StringArrayVar(&f.headers, "header", nil, "a header as name=value or \"name: value\" (may be repeated); x-slo-ttft-ms and x-slo-tpot-ms tighten")
	flags.StringVar(&f.tier, "service-tier", "", "its service_tier")
	flags.IntVar(&f.prompt, "prompt-tokens", 1000, "tokens of its prompt, for budgets that grow with it")
	return cmd
}

func matchContract(out io.Writer, files []string, f matchFlags) error {
	set, err := loadContracts(files)
	if err != nil {
		return err
	}
	headers, err := parseHeaders(f.headers)
	if err != nil {
		return err
	}
	key := sla.Key{Tenant: f.tenant, Model: f.model, ServiceTier: f.tier, Header: headers.Get}
	c := set.Match(key)
	terms, err := c.TightenBy(headers.Get)
	if err != nil {
		return err
	}
	if c == nil {
		fmt.Fprintln(out, "no contract holds: nothing is promised")
	} else {
		fmt.Fprintf(out, "%s holds\n", c.Name())
	}
	printTerms(out, terms, f.prompt)
	printCandidates(out, set.Candidates(key))
	return nil
}

func parseHeaders(pairs []string) (textproto.MIMEHeader, error) {
	headers := textproto.MIMEHeader{}
	for _, pair := range pairs {
		name, value, ok := cutHeader(pair)
		if !ok {
			return nil, fmt.Errorf("--header is %q, want name=value", pair)
		}
		headers.Add(name, value)
	}
	return headers, nil
}

// cutHeader reads a header as name=value or as name: value. A name has neither
// sign, so the first of them decides.
func cutHeader(text string) (name, value string, ok bool) {
	i := strings.IndexAny(text, "=:")
	if i < 0 {
		return "", "", false
	}
	name, value = strings.TrimSpace(text[:i]), strings.TrimSpace(text[i+1:])
	return name, value, name != ""
}

// printTerms prints what a request may take.
func printTerms(out io.Writer, t sla.Terms, promptTokens int) {
	line := func(what string, budget time.Duration, ok bool) {
		if ok {
			fmt.Fprintf(out, "  %s within %s\n", what, sla.Duration(budget))
		}
	}
	ttft, ok := t.TTFTBudget(promptTokens)
	line("first token", ttft, ok)
	tpot, ok := t.TPOTBudget()
	line("each further token", tpot, ok)
	e2e, ok := t.E2EBudget(promptTokens)
	line("whole answer", e2e, ok)
}

func printCandidates(out io.Writer, all []sla.Candidate) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nCONTRACT\tPRIORITY\tMATCHES\tWHY")
	for _, c := range all {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", c.Contract.Name(), c.Contract.Spec.Match.Priority, yesNo(c.Matches), c.Reason)
	}
	_ = w.Flush() // to a terminal or a buffer
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func contractShowCommand() *cobra.Command {
	var asYAML bool
	cmd := &cobra.Command{
		Use:   "show [FILE...]",
		Short: "Print contracts in order of precedence, with every default filled in",
		Example: `  firsttoken contract show
  firsttoken contract show --yaml acme.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := loadContracts(args)
			if err != nil {
				return err
			}
			if asYAML {
				return printText(cmd.OutOrStdout(), set.Save)
			}
			for _, c := range set.Contracts() {
				showContract(cmd.OutOrStdout(), c)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asYAML, "yaml", false, "print one contract file")
	return cmd
}

func showContract(out io.Writer, c *sla.Contract) {
	fmt.Fprintf(out, "%s (%s)\n", c.Name(), c.Spec.Criticality)
	if c.Spec.Description != "" {
		fmt.Fprintf(out, "  %s\n", strings.Join(strings.Fields(c.Spec.Description), " "))
	}
	fmt.Fprintf(out, "  for       %s\n", describeMatch(&c.Spec.Match))
	for _, o := range c.Spec.Objectives {
		fmt.Fprintf(out, "  promised  %s over %s\n", &o, o.Window)
	}
	if extras := describeExtras(&c.Spec); extras != "" {
		fmt.Fprintf(out, "  with      %s\n", extras)
	}
	if len(c.Spec.AtRisk) > 0 {
		fmt.Fprintf(out, "  at risk   %s\n", joinStrings(c.Spec.AtRisk, ", then "))
	}
}

func describeMatch(m *sla.Match) string {
	var parts []string
	add := func(what string, names []string) {
		if len(names) > 0 {
			parts = append(parts, what+" "+strings.Join(names, " or "))
		}
	}
	add("tenant", m.Tenants)
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		add("header "+name+":", m.Headers[name])
	}
	add("service tier", m.ServiceTier)
	add("model", m.Models)
	if len(parts) == 0 {
		parts = append(parts, "every request")
	}
	if m.Priority != 0 {
		parts = append(parts, fmt.Sprintf("match priority %d", m.Priority))
	}
	return strings.Join(parts, ", ")
}

func describeExtras(s *sla.Spec) string {
	var parts []string
	add := func(is bool, what string) {
		if is {
			parts = append(parts, what)
		}
	}
	add(s.VisibleLimit > 0, "visible limit "+s.VisibleLimit.String())
	add(s.Burst > 0, "burst "+s.Burst.String())
	add(s.MinKVReuse > 0, "KV reuse ≥ "+s.MinKVReuse.String())
	add(s.JitterSensitive, "sensitive to jitter")
	add(s.Batchable, "may be batched")
	add(s.Priority != 0, fmt.Sprintf("priority %d", s.Priority))
	return strings.Join(parts, ", ")
}

func joinStrings[T fmt.Stringer](all []T, separator string) string {
	words := make([]string, len(all))
	for i, one := range all {
		words[i] = one.String()
	}
	return strings.Join(words, separator)
}

func contractExportCommand() *cobra.Command {
	var openSLO bool
	cmd := &cobra.Command{
		Use:   "export [FILE...]",
		Short: "Print contracts as OpenSLO v1 documents, one SLO an objective",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !openSLO {
				return errors.New("--openslo=false: there is no other format; leave it out")
			}
			set, err := loadContracts(args)
			if err != nil {
				return err
			}
			return printText(cmd.OutOrStdout(), set.OpenSLO)
		},
	}
	cmd.Flags().BoolVar(&openSLO, "openslo", true, "OpenSLO v1 (openslo.com), the one format there is")
	return cmd
}

func contractSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of a contract",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return printText(cmd.OutOrStdout(), sla.Schema) },
	}
}

// printText prints what text gives.
func printText(out io.Writer, text func() ([]byte, error)) error {
	data, err := text()
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}
