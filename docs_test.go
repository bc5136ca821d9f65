package firsttoken_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/firsttoken/firsttoken/internal/config"
)

// TestDocsExamples checks every YAML example of the documentation as a user
// would: with the configuration reader.
func TestDocsExamples(t *testing.T) {
	fence := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "l40s.key"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range pages(t) {
		for _, m := range fence.FindAllStringSubmatch(read(t, page), -1) {
			found++
			if _, err := config.Parse(page, []byte(m[1]), dir, os.LookupEnv); err != nil {
				t.Errorf("%s: example is refused: %v\n%s", page, err, m[1])
			}
		}
	}
	if found < 5 {
		t.Errorf("found only %d YAML examples", found)
	}
}

// TestDocsLinks checks that links between pages lead somewhere.
func TestDocsLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

// TestDocsMetrics checks that every metric the documentation names exists, and
// that the page for operators names every one.
func TestDocsMetrics(t *testing.T) {
	name := regexp.MustCompile(`firsttoken_[a-z_]+`)
	all := name.FindAllString(read(t, "internal/telemetry/testdata/metrics.txt"), -1)
	for _, page := range pages(t) {
		for _, metric := range name.FindAllString(read(t, page), -1) {
			if !slices.Contains(all, metric) {
				t.Errorf("%s names the metric %s, which does not exist", page, metric)
			}
		}
	}
	named := name.FindAllString(read(t, "docs/operate.md"), -1)
	for _, metric := range all {
		if !slices.Contains(named, metric) {
			t.Errorf("docs/operate.md does not name the metric %s", metric)
		}
	}
}

func pages(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("no documentation pages: %v", err)
	}
	return append(docs, "README.md", "ARCHITECTURE.md", "CHANGELOG.md")
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
