package main

import (
	"encoding/csv"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/samples"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// sampleLog is a log of one file: n samples a second apart, of which P95
// covers those that are not in exceeded.
func sampleLog(t *testing.T, dir, name string, from time.Time, n int, exceeded func(i int) bool) string {
	t.Helper()
	var all []predictor.Sample
	for i := range n {
		s := predictor.Sample{At: from.Add(time.Duration(i) * time.Second), Model: "llama", Backend: "gpu", Revision: "1", TTFT: 100 * time.Millisecond}
		s.Said[predictor.Analytic] = predictor.Prediction{P50: 100 * time.Millisecond, P95: 200 * time.Millisecond}
		if exceeded(i) {
			s.TTFT = 400 * time.Millisecond
		}
		all = append(all, s)
	}
	file := filepath.Join(dir, name)
	if err := samples.WriteFile(file, slices.Values(all)); err != nil {
		t.Fatal(err)
	}
	return file
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestSamplesStats(t *testing.T) {
	dir := t.TempDir()
	file := sampleLog(t, dir, "a.parquet", noon, 20, func(i int) bool { return i == 7 })
	for _, path := range []string{dir, file} {
		code, out, errs := run(t, "samples", "stats", path)
		for _, want := range []string{"20, 2026-11-30T12:00:00Z to 2026-11-30T12:00:19Z", "P50 0.1 s", "llama 20", "idle 20", "analytic   all     20", "95.0 %"} {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("code %d, %s: output\n%s\nlacks %q", code, errs, out, want)
			}
		}
	}
	code, out, errs := run(t, "samples", "stats", "--json", dir)
	var st samples.Stats
	if err := json.Unmarshal([]byte(out), &st); code != 0 || err != nil || st.Rows != 20 || st.Backends["gpu"] != 20 {
		t.Errorf("code %d, %s: %v, %+v", code, errs, err, st)
	}
}

func TestSamplesExport(t *testing.T) {
	dir := t.TempDir()
	sampleLog(t, dir, "a.parquet", noon, 20, func(int) bool { return false })
	code, out, errs := run(t, "samples", "export", "--csv", "-", dir)
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if code != 0 || err != nil || len(rows) != 21 || rows[0][0] != "at" || rows[1][0] != "2026-11-30T12:00:00Z" {
		t.Errorf("code %d, %s: %v, %d rows:\n%s", code, errs, err, len(rows), out)
	}
}

func TestSamplesSaysWhatIsMissing(t *testing.T) {
	for want, args := range map[string][]string{
		"there are no samples": {"stats", t.TempDir()},
		"no such file":         {"stats", filepath.Join(t.TempDir(), "none")},
		"csv":                  {"export"},
		"no file of samples, or one that is not complete": {"export", "--csv", "-", "samples_test.go"},
	} {
		code, out, errs := run(t, append([]string{"samples"}, args...)...)
		if code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: code %d, %s%s; want %q", args, code, out, errs, want)
		}
	}
}
