package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/internal/report"
)

const testContract = `apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: NAME}
spec:
  match: {tenants: [NAME]}
  criticality: CRITICALITY
  objectives: [{metric: ttft, percentile: 95, threshold: TTFT}, {metric: e2e, percentile: 90, threshold: 3s}]
`

// contractFiles are those of replayFiles and contracts of two tenants.
func contractFiles(t *testing.T) string {
	t.Helper()
	dir := replayFiles(t)
	write := func(file, goldTTFT, bronzeTTFT string) {
		var parts []string
		for _, c := range [][]string{{"gold", "critical", goldTTFT}, {"bronze", "sheddable", bronzeTTFT}} {
			parts = append(parts, strings.NewReplacer("NAME", c[0], "CRITICALITY", c[1], "TTFT", c[2]).Replace(testContract))
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strings.Join(parts, "---\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old.yaml", "500ms", "500ms")
	write("new.yaml", "500ms", "100ms")
	log := strings.Repeat(`{"level":"info","time":"2026-01-02T03:04:05Z","msg":"request","endpoint":"chat_completions","duration_ms":100,"tenant":"gold","model":"m","status":200,"stream":true,"prompt_tokens":900,"completion_tokens":50}`+"\n"+
		`{"level":"info","time":"2026-01-02T03:04:06Z","msg":"request","endpoint":"chat_completions","duration_ms":100,"tenant":"bronze","model":"m","status":200,"stream":true,"prompt_tokens":900,"completion_tokens":50}`+"\n", 30)
	if err := os.WriteFile(filepath.Join(dir, "tenants.log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// whatifIn runs firsttoken contract whatif in a folder.
func whatifIn(t *testing.T, dir, args string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"contract", "whatif"}, strings.Fields(args)...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), beMain+"=1", "FIRSTTOKEN_DATA=")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the code says it
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestReplayOfContracts(t *testing.T) {
	t.Parallel()
	dir := contractFiles(t)
	code, stdout, stderr := replayIn(t, dir, "--fleet two.yaml --trace tenants.log --contracts new.yaml --policy lmetric,headroom,headroom+direct,argmin+hold --decisions d.jsonl")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, stderr %s", code, stderr)
	}
	for _, want := range []string{"objective: the contract's that holds", "error of P50", "headroom+direct", "bronze", "P95 TTFT ≤ 100ms", "shed_deadline", "deadline "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "d.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var last decision
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || len(lines) != 4*60 ||
		last.Run != "argmin+hold" || last.Contract != last.Tenant || last.P50 <= 0 || last.P95 < last.P50 || last.Upstream <= 0 {
		t.Errorf("%d decisions, the last %+v, %v", len(lines), last, err)
	}
}

func TestReplayPolicies(t *testing.T) {
	t.Parallel()
	dir := replayFiles(t)
	for policy, want := range map[string]string{
		"headrom":         `"headrom" is unknown`,
		"headroom+later":  "after the + write hold or direct",
		"lmetric+hold":    "predicts nothing",
		"headroom+direct": "",
		"weighted+hold":   "",
		"lmetric+direct":  "",
	} {
		code, _, stderr := replayIn(t, dir, "--fleet two.yaml --trace trace.csv --requests 5 --policy "+policy)
		if (code == 0) != (want == "") || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stderr %s", policy, code, stderr)
		}
	}
}

func TestContractWhatif(t *testing.T) {
	t.Parallel()
	dir := contractFiles(t)
	code, stdout, stderr := whatifIn(t, dir, "--contracts new.yaml --old old.yaml --fleet two.yaml --from tenants.log --seeds 2 --json")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, stderr %s", code, stderr)
	}
	var r report.WhatIf
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	found := map[string]report.Change{}
	for _, c := range r.Changes {
		found[c.Of+" "+c.What] = c
	}
	if c := found["bronze met the new contracts"]; c.N != 60 || c.Low > c.New-c.Old || c.High < c.New-c.Old {
		t.Errorf("bronze: %+v", c)
	}
	if c := found["bronze shed"]; c.New <= c.Old {
		t.Errorf("bronze's 100 ms shed nobody: %+v", c)
	}
	if c := found["all cost of the time engines compute, USD"]; c.New <= 0 || c.N != 2 || !c.USD {
		t.Errorf("cost: %+v", c)
	}
	_, again, _ := whatifIn(t, dir, "--contracts new.yaml --old old.yaml --fleet two.yaml --from tenants.log --seeds 2 --json")
	if again != stdout {
		t.Error("the same comparison came out otherwise")
	}
	code, stdout, _ = whatifIn(t, dir, "--contracts shipped --fleet two.yaml --trace customer-service --requests 50")
	if code != 0 || !strings.Contains(stdout, "shipped in the place of none") || !strings.Contains(stdout, "met the new contracts") || strings.Contains(stdout, "met the old") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
}

func TestContractWhatifMistakes(t *testing.T) {
	t.Parallel()
	dir := contractFiles(t)
	for args, want := range map[string]string{
		"--contracts new.yaml --from . --fleet two.yaml":                        "give the gateway's access log",
		"--contracts new.yaml --from nothing.log --fleet two.yaml":              "no such file",
		"--contracts new.yaml --fleet two.yaml":                                 "trace",
		"--from tenants.log --fleet two.yaml":                                   "contracts",
		"--contracts absent.yaml --from tenants.log --fleet two.yaml":           "--contracts",
		"--contracts new.yaml --old x.yaml --from tenants.log --fleet two.yaml": "--old",
		"--contracts new.yaml --from tenants.log --fleet two.yaml --seeds 0":    "--seeds",
	} {
		if code, _, stderr := whatifIn(t, dir, args); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stderr %s", args, code, stderr)
		}
	}
}

func TestReplayTargets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	code, stdout, stderr := replayIn(t, dir, "targets --only goodput,slow --fleet mixed --trace customer-service --requests 40 --seeds 1")
	if code != 0 || !strings.Contains(stdout, "== goodput") || !strings.Contains(stdout, "== slow") || !strings.Contains(stdout, "set FIRSTTOKEN_DATA") {
		t.Errorf("exit code %d, %s\n%s", code, stderr, stdout)
	}
	if code, _, stderr := replayIn(t, dir, "targets --only speed"); code == 0 || !strings.Contains(stderr, `no part "speed"`) {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// What a replay can't show of the contracts is said at its head.
func TestReplaySaysWhatContractsLack(t *testing.T) {
	t.Parallel()
	dir := contractFiles(t)
	const left = "note: at_risk and visible_limit are not replayed"
	contract := strings.NewReplacer("CRITICALITY", "standard", "TTFT", "1s").Replace(testContract)
	for name, row := range map[string]struct {
		text string
		want []string
		not  string
	}{
		"shed":    {strings.ReplaceAll(contract, "NAME", "gold") + "  at_risk: [wait, shed]\n", nil, left},
		"default": {strings.ReplaceAll(contract, "NAME", "gold"), []string{left}, "warning"},
		"warm_up": {strings.ReplaceAll(contract, "NAME", "gold") + "  at_risk: [warm_up, shed]\n", []string{left}, "warning"},
		"visible": {strings.ReplaceAll(contract, "NAME", "gold") + "  visible_limit: 2s\n  at_risk: [shed]\n", []string{left}, "warning"},
		"silver": {strings.ReplaceAll(contract, "NAME", "silver") + "  at_risk: [shed]\n",
			[]string{"warning: contract silver holds for none of 60 requests; its tenants are silver, the traffic's are gold, bronze"}, left},
		"model": {strings.NewReplacer("NAME", "gold", "match: {", "match: {models: [n], ").Replace(contract) + "  at_risk: [shed]\n",
			[]string{"its tenants are gold, the traffic's are gold, bronze; its models are n, the traffic's are m"}, left},
		"tier": {strings.NewReplacer("NAME", "gold", "match: {", "match: {service_tier: [flex], ").Replace(contract) + "  at_risk: [shed]\n",
			[]string{"contract gold asks for a header or a service tier"}, "warning"},
	} {
		file := name + ".yaml"
		if err := os.WriteFile(filepath.Join(dir, file), []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, replayed, errs := replayIn(t, dir, "--fleet two.yaml --trace tenants.log --policy headroom --contracts "+file)
		_, compared, more := whatifIn(t, dir, "--fleet two.yaml --from tenants.log --seeds 1 --contracts "+file)
		for _, out := range []string{replayed, compared} {
			head, _, _ := strings.Cut(out, "\n\n")
			for _, want := range row.want {
				if !strings.Contains(head, want) {
					t.Errorf("%s: no %q in\n%s%s%s", name, want, head, errs, more)
				}
			}
			if strings.Contains(head, row.not) {
				t.Errorf("%s: too much in\n%s", name, head)
			}
		}
	}
}
