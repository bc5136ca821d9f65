package trees_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

func TestOpenWith(t *testing.T) {
	b, err := trees.OpenWith(os.DirFS("testdata/model"), names(), schemaHash)
	if err != nil {
		t.Fatal(err)
	}
	m := b.Manifest
	if m.ID != "20261130T120000-ab12cd" || m.Training.Rows != 2000 || m.Training.LightGBM != "4.7.0" || len(m.Golden) != 10 {
		t.Errorf("the manifest is %+v", m)
	}
	if !math.IsNaN(float64(m.Golden[0].Row[0])) || !math.IsNaN(float64(m.Metrics["kv_full"].MAPE)) || m.Metrics["all"].Coverage != 0.95 {
		t.Errorf("null is not read as unknown: %+v", m)
	}
	for _, e := range expectations(t) {
		p50, p95, err := b.Predict(e.row)
		if err != nil || math.Abs(p50-e.p50) > 1e-9 || math.Abs(p95-e.p95) > 1e-9 {
			t.Fatalf("%v: got %v, %v, %v", e.row, p50, p95, err)
		}
	}
}

func TestOpenWithRefuses(t *testing.T) {
	golden := `"golden": [{"row": [null, null, null, null, null]`
	for name, tt := range map[string]struct {
		change func(fs fstest.MapFS)
		says   []string
	}{
		"no manifest":        {remove("manifest.json"), []string{"manifest.json", "not exist"}},
		"no head":            {remove("p95.txt"), []string{"p95.txt", "not exist"}},
		"a folder":           {folder("p95.txt"), []string{"p95.txt", "no regular file"}},
		"not JSON":           {manifest("{", "["), []string{"manifest.json"}},
		"cut":                {manifest("}\n}", "}\n"), []string{"manifest.json", "EOF"}},
		"more than one":      {manifest("}\n}", "}\n}{}"), []string{"manifest.json", "something follows"}},
		"an unknown field":   {manifest(`"base"`, `"bass"`), []string{"manifest.json", "bass"}},
		"a number as text":   {manifest(`"rows": 2000`, `"rows": "2000"`), []string{"manifest.json", "rows"}},
		"a large manifest":   {manifest("synthetic rows", strings.Repeat("x", 1<<20)), []string{"manifest.json", "over 1 MiB"}},
		"another format":     {manifest("firsttoken-model/1", "firsttoken-model/2"), []string{"manifest.json: format", "firsttoken-model/1"}},
		"a path as id":       {manifest("20261130T120000-ab12cd", "../../../etc"), []string{"manifest.json: id", "ids look like"}},
		"no time":            {manifest("2026-11-30T12:00:00Z", "0001-01-01T00:00:00Z"), []string{"manifest.json: created"}},
		"another base":       {manifest("analytic", "linear"), []string{"manifest.json: base", "analytic"}},
		"another schema":     {manifest(schemaHash, "fedcba9876543210"), []string{"manifest.json: schema", schemaHash, "train"}},
		"another file":       {manifest("p95.txt", "../p95.txt"), []string{"heads.p95.file", "p95.txt"}},
		"another alpha":      {manifest(`"alpha": 0.95`, `"alpha": 0.9`), []string{"heads.p95.alpha", "0.95"}},
		"a false checksum":   {manifest(`"sha256": "`, `"sha256": "0`), []string{"p50.txt: sha256", "publish"}},
		"a changed head":     {change("p95.txt", "shrinkage=0.2", "shrinkage=0.3"), []string{"p95.txt: sha256", "publish"}},
		"a broken head":      {change("p95.txt", "num_leaves=6", "num_leaves=7"), []string{"p95.txt: tree 0: ", "values instead of"}},
		"a median as p95":    {swap, []string{"p50.txt: alpha", "alpha 0.95", "alpha=0.5"}},
		"few golden rows":    {fewGolden, []string{"golden", "7 rows", "at least 8"}},
		"a short golden row": {manifest(golden, strings.Replace(golden, "null, ", "", 1)), []string{"golden: row 0", "4 features"}},
		"a false golden row": {manifest(golden, strings.Replace(golden, "null", "5000", 1)), []string{"golden: row 0", "instead of"}},
		"a false golden p50": {golden0(func(g *trees.Golden) { g.P50 += 1e-8 }), []string{"golden: row 0", "instead of"}},
		"a false golden p95": {golden0(func(g *trees.Golden) { g.P95 -= 1e-8 }), []string{"golden: row 0", "instead of"}},
		"no rows":            {manifest(`"rows": 2000`, `"rows": 0`), []string{"training"}},
		"an odd window":      {manifest("2026-11-29", "2026-12-29"), []string{"training"}},
		"no metrics":         {manifest(`"all"`, `"idle"`), []string{"metrics", `"all" is missing`}},
		"an unknown regime":  {manifest(`"kv_full"`, `"kv-full"`), []string{"metrics", "no regime"}},
	} {
		t.Run(name, func(t *testing.T) {
			model := testModel(t)
			tt.change(model)
			b, err := trees.OpenWith(model, names(), schemaHash)
			if err == nil || b != nil {
				t.Fatalf("it was opened: %v", b)
			}
			for _, text := range tt.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%v\ndoes not say %s", err, text)
				}
			}
		})
	}
}

// testModel is the bundle in testdata, to be changed. Its manifest is compact.
func testModel(t *testing.T) fstest.MapFS {
	t.Helper()
	model := fstest.MapFS{}
	for _, name := range trees.Files() {
		model[name] = &fstest.MapFile{Data: []byte(testFile(t, "model/"+name))}
	}
	text := string(model["manifest.json"].Data)
	row := strings.NewReplacer("[\n    ", "[", ",\n    ", ", ", "\n   ]", "]", "[\n  {\n   \"row\"", `[{"row"`)
	model["manifest.json"].Data = []byte(row.Replace(text))
	return model
}

func change(name, old, with string) func(fstest.MapFS) {
	return func(model fstest.MapFS) {
		text := string(model[name].Data)
		if !strings.Contains(text, old) {
			panic(name + " has no " + old)
		}
		model[name].Data = []byte(strings.Replace(text, old, with, 1))
	}
}

func manifest(old, with string) func(fstest.MapFS) { return change("manifest.json", old, with) }

func remove(name string) func(fstest.MapFS) {
	return func(model fstest.MapFS) { delete(model, name) }
}

func folder(name string) func(fstest.MapFS) {
	return func(model fstest.MapFS) { model[name] = &fstest.MapFile{Mode: fs.ModeDir} }
}

// swap gives each head the other's text, with true checksums.
func swap(model fstest.MapFS) {
	model["p50.txt"], model["p95.txt"] = model["p95.txt"], model["p50.txt"]
	rewrite(model, func(m *trees.Manifest) {
		m.Heads.P50.SHA256 = fmt.Sprintf("%x", sha256.Sum256(model["p50.txt"].Data))
		m.Heads.P95.SHA256 = fmt.Sprintf("%x", sha256.Sum256(model["p95.txt"].Data))
	})
}

// golden0 changes the first golden row.
func golden0(change func(g *trees.Golden)) func(fstest.MapFS) {
	return func(model fstest.MapFS) {
		rewrite(model, func(m *trees.Manifest) { change(&m.Golden[0]) })
	}
}

func fewGolden(model fstest.MapFS) {
	rewrite(model, func(m *trees.Manifest) { m.Golden = m.Golden[:7] })
}

// rewrite changes the manifest, which also holds writing to reading.
func rewrite(model fstest.MapFS, change func(m *trees.Manifest)) {
	var m trees.Manifest
	if err := json.Unmarshal(model["manifest.json"].Data, &m); err != nil {
		panic(err)
	}
	change(&m)
	text, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	model["manifest.json"].Data = text
}

func TestManifestIsReadAsWritten(t *testing.T) {
	model := testModel(t)
	rewrite(model, func(*trees.Manifest) {})
	if _, err := trees.OpenWith(model, names(), schemaHash); err != nil {
		t.Error(err)
	}
}

func TestCheckID(t *testing.T) {
	for id, good := range map[string]bool{
		"20261130T120000-ab12cd":     true,
		"20261130T120000-000000":     true,
		"":                           false,
		".":                          false,
		"..":                         false,
		"20261130T120000":            false,
		"20261130T120000-":           false,
		"20261130T120000-AB12CD":     false,
		"20261130T120000-ab12c":      false,
		"20261130T120000-ab12cd00":   false,
		"20261330T120000-ab12cd":     false,
		"20261130T120000-ab12cd/":    false,
		"../20261130T120000-ab12cd":  false,
		"20261130T120000.5-ab12cd":   false,
		".tmp-20261130T120000-ab12c": false,
	} {
		if err := trees.CheckID(id); (err == nil) != good {
			t.Errorf("%q: %v", id, err)
		}
	}
}
