package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/models"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

const (
	oldModel = "20261130T120000-00000a"
	newModel = "20261201T120000-00000b"
)

// headText is a model of one tree that decides on the first feature.
func headText(alpha, low, high float64) string {
	names := predictor.Names()
	return fmt.Sprintf(`tree
version=v4
num_class=1
num_tree_per_iteration=1
max_feature_idx=%d
objective=quantile
feature_names=%s
tree_sizes=100

Tree=0
num_leaves=2
num_cat=0
split_feature=0
threshold=1000
decision_type=8
left_child=-1
right_child=-2
leaf_value=%v %v
is_linear=0
shrinkage=1


end of trees

parameters:
[objective: quantile]
[alpha: %v]

end of parameters
`, len(names)-1, strings.Join(names, " "), low, high, alpha)
}

// writeTestModel makes the folder of a valid model.
func writeTestModel(t *testing.T, id string) (folder string) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), id)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	save := func(name string, alpha, low, high float64) trees.Head {
		text := headText(alpha, low, high)
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return trees.Head{File: name, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(text))), Alpha: alpha}
	}
	day := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	m := trees.Manifest{
		Format: "firsttoken-model/1", ID: id, Created: day, Schema: predictor.SchemaHash(), Base: "analytic",
		Heads:    trees.Heads{P50: save("p50.txt", 0.5, 0, 0.25), P95: save("p95.txt", 0.95, 0.5, 1)},
		Training: trees.Training{Rows: 4321, From: day, To: day, LightGBM: "4.7.0", Source: "by hand"},
		Metrics:  map[string]trees.Metrics{"all": {Rows: 100, MAPE: 0.084, Coverage: 0.951}},
	}
	for range 8 {
		m.Golden = append(m.Golden, trees.Golden{Row: make([]trees.Number, len(predictor.Names())), P50: 0, P95: 0.5})
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "manifest.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

func wantOutput(t *testing.T, args []string, says ...string) (stdout string) {
	t.Helper()
	code, stdout, stderr := run(t, args...)
	if code != 0 || stderr != "" {
		t.Fatalf("%v: exit code %d: %s", args, code, stderr)
	}
	for _, text := range says {
		if !strings.Contains(stdout, text) {
			t.Errorf("%v says\n%s\nand not %q", args, stdout, text)
		}
	}
	return stdout
}

func wantFailure(t *testing.T, args []string, says ...string) {
	t.Helper()
	code, stdout, stderr := run(t, args...)
	if code != 1 || stdout != "" {
		t.Fatalf("%v: exit code %d, output %s", args, code, stdout)
	}
	for _, text := range says {
		if !strings.Contains(stderr, text) {
			t.Errorf("%v: %s\ndoes not say %q", args, stderr, text)
		}
	}
}

func TestModelCommands(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "models")
	store := models.New(dir, predictor.Names(), predictor.SchemaHash())
	for _, id := range []string{oldModel, newModel} {
		if _, err := store.Publish(writeTestModel(t, id)); err != nil {
			t.Fatal(err)
		}
	}
	model := func(args ...string) []string { return append([]string{"model", "--dir", dir}, args...) }

	wantFailure(t, model("show"), "no model is active")
	wantFailure(t, model("rollback"), "no model was active before")
	wantOutput(t, model("activate", oldModel), oldModel+" is active")
	wantOutput(t, model("activate", newModel), newModel+" is active")
	wantOutput(t, model("list"), "ID ", newModel+"  active ", oldModel+"  previous ", "4321", "8.4 %", "95.1 %")
	wantOutput(t, model("show"), newModel, "1 tree of at most 2 leaves, objective quantile, alpha 0.95", "4321 rows", predictor.Names()[0]+" 1", "8.4 %")
	wantOutput(t, model("show", oldModel), oldModel)
	wantOutput(t, model("rollback"), oldModel+" is active")
	wantFailure(t, model("rollback"), "no model was active before")
	wantOutput(t, model("deactivate"), "no model is active; the one that ships serves")
	wantOutput(t, model("deactivate", "--json"), `"active": ""`)
	wantFailure(t, model("show"), "no model is active")
	wantFailure(t, []string{"model", "--dir", dir + "x", "deactivate"}, "--dir")
	wantOutput(t, model("activate", oldModel), oldModel+" is active")
	wantFailure(t, model("activate", "20261202T120000-00000c"), "has no model 20261202T120000-00000c")
	wantFailure(t, model("activate", "../x"), "ids look like")

	if err := os.WriteFile(filepath.Join(dir, newModel, "p50.txt"), []byte("tree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, model("list"), newModel+" ", "end of trees: the text ends before it")
	wantFailure(t, model("activate", newModel), "p50.txt: end of trees")
	wantFailure(t, []string{"model", "--dir", dir + "x", "list"}, "--dir")
	wantFailure(t, []string{"model", "--dir", dir + "x", "rollback"}, "--dir")

	var views []struct {
		ID      string
		Active  bool
		Problem string
		P95     *trees.Info
	}
	if err := json.Unmarshal([]byte(wantOutput(t, model("list", "--json"))), &views); err != nil {
		t.Fatal(err)
	}
	if len(views) != 2 || views[0].Problem == "" || !views[1].Active || views[1].P95.Alpha != 0.95 {
		t.Errorf("--json lists %+v", views)
	}
}

func TestModelCheck(t *testing.T) {
	folder := writeTestModel(t, oldModel)
	head := filepath.Join(folder, "p95.txt")
	wantOutput(t, []string{"model", "check", folder}, "ok", oldModel, "8 golden rows")
	wantOutput(t, []string{"model", "check", "--json", folder}, `"source": "by hand"`)
	wantOutput(t, []string{"model", "check", head}, "ok", "1 tree of at most 2 leaves")
	wantOutput(t, []string{"model", "check", "--json", head}, `"alpha": 0.95`)
	wantFailure(t, []string{"model", "check", folder + "x"}, "no such file")
	wantFailure(t, []string{"model", "check", os.DevNull}, "no regular file")
	wantFailure(t, []string{"model", "check", filepath.Join("..", "..", "pkg", "predictor", "trees", "testdata", "model", "p50.txt")}, "max_feature_idx", "train on samples of this schema")

	text := strings.Replace(headText(0.95, 0.5, 1), "left_child=-1", "left_child=0", 1)
	if err := os.WriteFile(head, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	wantFailure(t, []string{"model", "check", head}, head+": tree 0: left_child: ", "publish the model again")
	wantFailure(t, []string{"model", "check", folder}, folder+": p95.txt: tree 0: left_child: ")
}
