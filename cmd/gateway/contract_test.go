package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/deploy/contracts"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// TestContractDocs checks every contract of docs/contracts.md, and runs every
// command in a folder that holds those which name their file.
func TestContractDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/contracts.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	block := regexp.MustCompile("(?s)```(yaml contract|console)\n(.*?)```")
	fileName := regexp.MustCompile(`^# (\S+\.yaml)\n`)
	files, commands := 0, 0
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		if m[1] == "console" {
			commands += runConsole(t, dir, m[2])
			continue
		}
		files++
		if _, err := sla.Parse(sla.Source{Name: "docs/contracts.md", Data: []byte(m[2])}); err != nil {
			t.Errorf("%v in\n%s", err, m[2])
		}
		if name := fileName.FindStringSubmatch(m[2]); name != nil {
			saveContract(t, filepath.Join(dir, name[1]), m[2])
		}
	}
	if files < 4 || commands < 5 {
		t.Errorf("found only %d contracts and %d commands", files, commands)
	}
}

// runConsole runs the lines that begin with a dollar and compares what they
// print with the lines below them.
func runConsole(t *testing.T, dir, text string) int {
	t.Helper()
	all := strings.Split(text, "$ bin/firsttoken ")[1:]
	for _, one := range all {
		line, want, _ := strings.Cut(one, "\n")
		args := strings.Fields(line)
		for i, a := range args {
			if strings.HasSuffix(a, ".yaml") {
				args[i] = filepath.Join(dir, a)
			}
		}
		_, out, errs := run(t, args...)
		if got := out + errs; got != want {
			t.Errorf("%s prints:\n%s\nnot:\n%s", line, got, want)
		}
	}
	return len(all)
}

func saveContract(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestContractCheckReportsEverything(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	saveContract(t, bad, "apiVersion: firsttoken.dev/v1\nkind: SLAContract\nmetadata: {name: a}\nspec:\n  objectives: [{metric: ttft, threshold: 320}]\n  burst: lots\n")
	code, _, errs := run(t, "contract", "check", bad)
	for _, want := range []string{":5:42: spec.objectives[0].threshold: ", ":5:16: spec.objectives[0]: has no percentile", ":6:10: spec.burst: "} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q in:\n%s", want, errs)
		}
	}
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
}

// The contracts that a configuration names are checked with it.
func TestConfigCheckReadsContracts(t *testing.T) {
	const good = "apiVersion: firsttoken.dev/v1\nkind: SLAContract\nmetadata: {name: a}\nspec:\n  objectives: [{metric: ttft, percentile: 95, threshold: 320ms}]\n"
	for name, row := range map[string]struct {
		contracts string // the file's
		named     string // under contracts
		out, err  []string
	}{
		"good":     {good, "{files: [c.yaml]}", []string{"ok, 1 model, 1 backend, 1 contract\n"}, nil},
		"shadowed": {good + "---\n" + strings.Replace(good, "name: a", "name: b", 1), "{files: [c.yaml]}", []string{", 2 contracts\nnote: b never holds: a goes before it"}, nil},
		"shipped":  {"", "{shipped: true}", []string{", 3 contracts\n"}, nil},
		"bad": {good + "  burst: lots\n  priority: 1.5\n", "{files: [c.yaml]}", nil,
			[]string{"c.yaml:6:10: spec.burst: ", "c.yaml:7:13: spec.priority: "}},
		"twice":   {strings.Replace(good, "name: a", "name: customer-service", 1), "{files: [c.yaml], shipped: true}", nil, []string{`c.yaml:3:`, "names a contract already in shipped customer-service.yaml"}},
		"missing": {good, "{files: [d.yaml]}", nil, []string{"contracts.files[0]: ", "d.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			saveContract(t, filepath.Join(dir, "c.yaml"), row.contracts)
			file := filepath.Join(dir, "config.yaml")
			saveContract(t, file, "contracts: "+row.named+"\nmodels: [{name: m, backends: [{url: http://a}]}]\n")
			code, out, errs := run(t, "config", "check", file)
			if (code == 0) != (row.err == nil) || (out == "") != (row.err != nil) {
				t.Errorf("exit code %d, %q, %q", code, out, errs)
			}
			for _, want := range row.out {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in %q", want, out)
				}
			}
			for _, want := range row.err {
				if !strings.Contains(errs, want) {
					t.Errorf("no %q in %q", want, errs)
				}
			}
		})
	}
}

func TestContractCommandsOnShipped(t *testing.T) {
	for args, want := range map[string]string{
		"check":            "ok, 3 contracts, revision ",
		"show":             "promised  P95 TTFT ≤ 120ms over 30d\n  with      visible limit 300ms, KV reuse ≥ 70%, sensitive to jitter\n",
		"show --yaml":      "  name: live-summarisation\n",
		"export --openslo": "name: customer-service-ttft-p95\n",
		"export":           "name: customer-service-ttft-p95\n",
		"schema":           `"title": "Firsttoken contract"`,
		"match --tenant bank --header x-slo-ttft-ms=200": "first token within 200ms\n",
		"match --tenant bank --header x-slo-ttft-ms:200": "first token within 200ms\n",
		"match": "no contract holds: nothing is promised\n",
	} {
		code, out, errs := run(t, append([]string{"contract"}, strings.Fields(args)...)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, no %q in:\n%s%s", args, code, want, out, errs)
		}
	}
	for args, want := range map[string]string{
		"export --openslo=false": "there is no other format",
		"match --header x":       `--header is "x", want name=value`,
		"check nothing":          "load contracts",
	} {
		if code, _, errs := run(t, append([]string{"contract"}, strings.Fields(args)...)...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s", args, code, errs)
		}
	}
}

// The contracts that ship promise what the workloads of their names are judged
// by; a whole answer is due by the E2E objective, or else by the visible limit.
func TestShippedContractsFitTheWorkloads(t *testing.T) {
	set, err := sla.LoadFS(contracts.Files())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range trace.Workloads() {
		if _, err := fs.Stat(contracts.Files(), w.Name+".yaml"); err != nil {
			t.Error(err)
		}
		for _, tenant := range w.Tenants {
			c := set.Match(sla.Key{Tenant: tenant.Name})
			if c.Name() != w.Name {
				t.Errorf("%s of %s has contract %q", tenant.Name, w.Name, c.Name())
			}
		}
		c := set.Contract(w.Name)
		ttft, _ := c.TTFTBudget(0)
		tpot, _ := c.TPOTBudget()
		e2e, promised := c.E2EBudget(0)
		if limit, ok := c.Limit(time.Time{}); ok && !promised {
			e2e = limit.Sub(time.Time{})
		}
		if ttft != w.TTFT || tpot != w.TPOT || w.E2E > 0 && e2e != w.E2E {
			t.Errorf("%s: contract %v, %v, %v; workload %v, %v, %v", w.Name, ttft, tpot, e2e, w.TTFT, w.TPOT, w.E2E)
		}
	}
}

func TestCutHeader(t *testing.T) {
	for text, want := range map[string][3]string{
		"x-a=b":          {"x-a", "b", "true"},
		"x-a: b":         {"x-a", "b", "true"},
		"x-a:b=c":        {"x-a", "b=c", "true"},
		"x-a=http://b:1": {"x-a", "http://b:1", "true"},
		"x-a=":           {"x-a", "", "true"},
		"x-a":            {"", "", "false"},
		"":               {"", "", "false"},
		" =b":            {"", "b", "false"},
	} {
		name, value, ok := cutHeader(text)
		if got := [3]string{name, value, strconv.FormatBool(ok)}; got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
