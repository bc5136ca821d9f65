package backends_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoClock holds the promise of everything under pkg: the time comes in as
// an argument, so that replay runs the same code in virtual time.
func TestNoClock(t *testing.T) {
	clock := map[string]string{
		"time":    " Now Since Until Sleep After AfterFunc Tick NewTimer NewTicker ",
		"context": " WithTimeout WithTimeoutCause WithDeadline WithDeadlineCause ",
	}
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		imported := map[string]string{} // local name → package
		for _, i := range f.Imports {
			pkg := strings.Trim(i.Path.Value, `"`)
			if clock[pkg] == "" {
				continue
			}
			name := pkg
			if i.Name != nil {
				name = i.Name.Name
			}
			if name == "." {
				t.Errorf("%s: dot import of %s", path, pkg)
			}
			imported[name] = pkg
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if ok && strings.Contains(clock[imported[x.Name]], " "+sel.Sel.Name+" ") {
				t.Errorf("%s: %s.%s reads the clock", fset.Position(n.Pos()), x.Name, sel.Sel.Name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Fatal("no file seen")
	}
}
