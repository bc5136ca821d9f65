package main

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/internal/evaluate"
)

func TestEvalSamples(t *testing.T) {
	dir := t.TempDir()
	sampleLog(t, dir, "a.parquet", noon, 700, func(i int) bool { return i >= 500 && i%20 == 0 })
	page, table, text := filepath.Join(dir, "p.html"), filepath.Join(dir, "p.csv"), filepath.Join(dir, "p.json")
	code, out, errs := run(t, "eval", "--samples", dir, "--html", page, "--rows", table, "--json", text)
	for _, want := range []string{"700 samples, the first 500 not judged", "analytic", "peak-ewma", "0.950"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("code %d, %s: output\n%s\nlacks %q", code, errs, out, want)
		}
	}
	var r evaluate.Report
	if err := json.Unmarshal([]byte(readFile(t, text)), &r); err != nil {
		t.Fatal(err)
	}
	// 10 of 200 took 0.4 s where P50 said 0.1 s: errors of 75 %, and all others of none.
	if s := evaluate.Find(r.Runs[0].Scores, "analytic", evaluate.All); s.Rows != 200 || s.Coverage != .95 || s.MAPE < .0374 || s.MAPE > .0376 {
		t.Errorf("%+v", s)
	}
	rows, err := csv.NewReader(strings.NewReader(readFile(t, table))).ReadAll()
	if err != nil || len(rows) != 701 || rows[0][0] != "run" || rows[1][0] != "samples" {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	if !strings.Contains(readFile(t, page), "<svg") {
		t.Error("the page has no plots")
	}
	if code, _, errs := run(t, "eval", "--samples", dir, "--ablate"); code != 1 || !strings.Contains(errs, "an ablation needs") {
		t.Errorf("code %d: %s", code, errs) // they have no base
	}
}

func TestEvalFleet(t *testing.T) {
	code, out, errs := run(t, "eval", "--trace", "code-completion", "--fleet", "quickstart", "--requests", "900", "--load", "0.8", "--quiet")
	for _, want := range []string{"capacity of quickstart under code-completion", "code-completion on quickstart at 0.8", "Kendall's tau", "oracle"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("code %d, %s: output\n%s\nlacks %q", code, errs, out, want)
		}
	}
}

func TestEvalErrors(t *testing.T) {
	empty := t.TempDir()
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "needs --samples, --trace or --measured"},
		{[]string{"--trace", "nowhere.csv"}, "--trace nowhere.csv"},
		{[]string{"--trace", "code-completion", "--fleet", "nowhere"}, "nowhere"},
		{[]string{"--trace", "code-completion", "--policy", "best"}, `--policy "best" is unknown`},
		{[]string{"--trace", "code-completion", "--load", "0"}, "--load 0"},
		{[]string{"--trace", "code-completion", "--noise", "2"}, "--noise 2"},
		{[]string{"--samples", empty, "--change"}, "--change needs --trace"},
		{[]string{"--samples", empty}, "0 requests"},
		{[]string{"--measured", empty}, "--measured " + empty},
		{[]string{"--measured", empty, "--model", empty}, "--model " + empty},
		{[]string{"--measured", empty, "--json", filepath.Join(empty, "no", "x.json")}, "--json"},
	} {
		if code, _, errs := run(t, append([]string{"eval"}, c.args...)...); code != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%v: code %d, %s; want %q", c.args, code, errs, c.want)
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
