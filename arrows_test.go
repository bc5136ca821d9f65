// Package firsttoken_test holds the whole repository to its own structure.
package firsttoken_test

import (
	"encoding/json"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/firsttoken/firsttoken/"

// arrows lists what each package may import of ours. Imports point one way:
// cmd → app → proxy → router → {predictor, backends, sla}; whatever is not named here is a leaf.
var arrows = map[string][]string{
	"cmd/gateway":               {"deploy/contracts", "deploy/models", "deploy/trainer", "internal/app", "internal/bench", "internal/config", "internal/engine", "internal/engine/calibrate", "internal/evaluate", "internal/fleet", "internal/models", "internal/replay", "internal/replay/targets", "internal/report", "internal/samples", "internal/top", "internal/trace", "pkg/predictor", "pkg/predictor/trees", "pkg/router", "pkg/sla"},
	"internal/app":              {"deploy/contracts", "internal/admin", "internal/config", "internal/edge", "internal/engine", "internal/models", "internal/monitor", "internal/proxy", "internal/rollback", "internal/samples", "internal/telemetry", "pkg/backends", "pkg/predictor", "pkg/predictor/trees", "pkg/router", "pkg/sla"},
	"internal/proxy":            {"internal/edge", "internal/openai", "internal/telemetry", "pkg/backends", "pkg/predictor", "pkg/router", "pkg/sla"},
	"internal/admin":            {"internal/rollback", "pkg/router"},
	"internal/bench":            {"internal/openai", "internal/report", "internal/trace"},
	"internal/config":           {"deploy/profiles"},
	"internal/engine":           {"deploy/profiles"},
	"internal/engine/calibrate": {"internal/engine"},
	"internal/evaluate":         {"internal/engine", "internal/replay", "internal/report", "internal/trace", "pkg/predictor", "pkg/predictor/trees", "pkg/router"},
	"internal/fleet":            {"deploy/fleets", "internal/config", "internal/engine"},
	"internal/models":           {"pkg/predictor/trees"},
	"internal/monitor":          {"pkg/backends"},
	"internal/replay":           {"internal/engine", "internal/report", "internal/trace", "pkg/backends", "pkg/predictor", "pkg/router", "pkg/sla"},
	"internal/replay/targets":   {"deploy/contracts", "internal/engine", "internal/fleet", "internal/replay", "internal/report", "internal/trace", "pkg/predictor", "pkg/router", "pkg/sla"},
	"internal/rollback":         {"internal/samples", "pkg/predictor", "pkg/predictor/trees", "pkg/sla"},
	"internal/samples":          {"pkg/predictor", "pkg/predictor/trees"},
	"internal/telemetry":        {"pkg/backends", "pkg/predictor", "pkg/sla"},
	"internal/top":              {"internal/admin"},
	"pkg/router":                {"pkg/backends", "pkg/predictor"},
}

type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
	Deps       []string
}

func TestArrows(t *testing.T) {
	for _, p := range list(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		for _, imported := range p.Imports {
			ours, isOurs := strings.CutPrefix(imported, module)
			if isOurs && !slices.Contains(arrows[name], ours) {
				t.Errorf("%s imports %s, against the arrows", name, ours)
			}
		}
		for _, dep := range p.Deps {
			if strings.HasPrefix(name, "pkg/") && strings.HasPrefix(dep, module+"internal/") {
				t.Errorf("%s depends on %s: packages under pkg/ stand without internal/", name, dep)
			}
		}
	}
}

func TestPackageCommentsSayWhatIsOwned(t *testing.T) {
	for _, p := range list(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		longest := ""
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil && len(f.Doc.Text()) > len(longest) {
				longest = f.Doc.Text()
			}
		}
		if len(longest) < 60 {
			t.Errorf("%s: the package comment %q does not say what the package owns", p.ImportPath, longest)
		}
	}
}

// list is go list -deps of our own packages.
func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,Deps", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	if len(packages) < 5 {
		t.Fatalf("go list found only %d packages", len(packages))
	}
	return packages
}
