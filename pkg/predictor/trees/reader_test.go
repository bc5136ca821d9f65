package trees_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// small is a model of two trees: one of three leaves and one of two.
const small = `tree
version=v4
num_class=1
num_tree_per_iteration=1
label_index=0
max_feature_idx=1
objective=quantile
feature_names=a b
feature_infos=[0:1] [0:1]
tree_sizes=200 150

Tree=0
num_leaves=3
num_cat=0
split_feature=0 1
threshold=0.5 1.5
decision_type=10 8
left_child=1 -1
right_child=-2 -3
leaf_value=1 2 3
is_linear=0
shrinkage=1


Tree=1
num_leaves=2
num_cat=0
split_feature=1
threshold=0.25
decision_type=2
left_child=-1
right_child=-2
leaf_value=10 20
is_linear=0
shrinkage=0.1


end of trees

feature_importances:
b=2
a=1

parameters:
[objective: quantile]
[alpha: 0.95]
[linear_tree: 0]

end of parameters

pandas_categorical:null
`

func TestReadSmall(t *testing.T) {
	nan := math.NaN()
	for name, text := range map[string]string{
		"as LightGBM 4 writes it":    small,
		"as LightGBM 3 wrote it":     strings.Replace(small, "v4", "v3", 1),
		"before linear trees":        strings.ReplaceAll(strings.Replace(small, "v4", "v3", 1), "is_linear=0\n", ""),
		"with the ends of Windows":   strings.ReplaceAll(small, "\n", "\r\n"),
		"without what may be absent": strings.TrimSuffix(small, "\n\npandas_categorical:null\n"),
	} {
		m := mustRead(t, text, []string{"a", "b"})
		for _, tt := range []struct{ a, b, want float64 }{
			{0, 0, 1 + 10},
			{0.5, 1.5, 1 + 20},
			{0.5, 1.6, 3 + 20},
			{0.6, 0.3, 2 + 20},
			{nan, 0.3, 1 + 20}, // missing goes left
			{nan, nan, 3 + 10}, // to the right in the first tree; in the second it counts as 0
			{math.Inf(1), math.Inf(-1), 2 + 10},
		} {
			if got, err := m.Predict([]float64{tt.a, tt.b}); err != nil || got != tt.want {
				t.Errorf("%s: Predict(%v, %v) = %v, %v, want %v", name, tt.a, tt.b, got, err, tt.want)
			}
		}
		info := m.Info()
		if info.Trees != 2 || info.MaxLeaves != 3 || info.Objective != "quantile" || info.Alpha != 0.95 || !slices.Equal(info.Splits, []int{1, 2}) {
			t.Errorf("%s: info is %+v", name, info)
		}
	}
}

func TestReadConstant(t *testing.T) {
	m := mustRead(t, testFile(t, "constant.txt"), names())
	if y, err := m.Predict(make([]float64, 5)); err != nil || y != 1 {
		t.Errorf("the constant model predicts %v, %v", y, err)
	}
}

// With one feature leaves checks no length at all.
func TestReadOneFeature(t *testing.T) {
	text := strings.NewReplacer("max_feature_idx=1", "max_feature_idx=0", "names=a b", "names=a",
		"split_feature=0 1", "split_feature=0 0", "split_feature=1", "split_feature=0").Replace(small)
	m := mustRead(t, text, []string{"a"})
	if y, err := m.Predict([]float64{1}); err != nil || y != 22 {
		t.Errorf("predicts %v, %v", y, err)
	}
	if _, err := m.Predict(nil); err == nil {
		t.Error("predicts without a row")
	}
}

// LightGBM writes an infinite threshold where it parts what is missing from
// what is not.
func TestReadInfiniteThreshold(t *testing.T) {
	m := mustRead(t, edit("threshold=0.25\ndecision_type=2", "threshold=inf\ndecision_type=8"), []string{"a", "b"})
	for b, want := range map[float64]float64{0: 11, math.MaxFloat64: 13, math.Inf(1): 13, math.Inf(-1): 11} {
		if y, err := m.Predict([]float64{0, b}); err != nil || y != want {
			t.Errorf("%v predicts %v, %v, want %v", b, y, err, want)
		}
	}
	if y, err := m.Predict([]float64{0, math.NaN()}); err != nil || y != 23 {
		t.Errorf("NaN predicts %v, %v, want 23", y, err)
	}
}

func TestReadRefuses(t *testing.T) {
	cut := func(text string) string { return small[:strings.Index(small, text)] }
	for name, tt := range map[string]struct {
		text  string
		tree  int
		field string
		says  string
	}{
		"nothing":                {"", -1, "tree", "no LightGBM model"},
		"JSON":                   {`{"tree": 1}`, -1, "tree", "no LightGBM model"},
		"header cut":             {cut("tree_sizes"), -1, "end of trees", "ends before"},
		"trees cut":              {cut("Tree=1"), -1, "tree_sizes", "lists 2 trees"},
		"tree cut":               {cut("leaf_value=10"), 1, "end of trees", "ends before"},
		"end of trees cut":       {cut("end of trees"), -1, "tree_sizes", "instead of end of trees"},
		"parameters cut":         {cut("parameters:"), -1, "parameters", "is missing"},
		"parameters' end cut":    {cut("end of parameters"), -1, "parameters", "ends inside"},
		"version 2":              {edit("version=v4", "version=v2"), -1, "version", "train with LightGBM 3 or 4"},
		"version 5":              {edit("version=v4", "version=v5"), -1, "version", "train with LightGBM 3 or 4"},
		"no version":             {edit("version=v4\n", ""), -1, "version", `is ""`},
		"two classes":            {edit("num_class=1", "num_class=2"), -1, "num_class", "train a regression"},
		"two trees at a time":    {edit("per_iteration=1", "per_iteration=2"), -1, "num_tree_per_iteration", "train a regression"},
		"random forest":          {edit("feature_names", "average_output\nfeature_names"), -1, `"average_output"`, "not a field"},
		"unknown in the header":  {edit("feature_infos", "feature_minds"), -1, `"feature_minds"`, "not a field"},
		"twice in the header":    {edit("version=v4", "version=v4\nversion=v4"), -1, "version", "twice"},
		"more features":          {edit("max_feature_idx=1", "max_feature_idx=2"), -1, "max_feature_idx", "train on samples of this schema"},
		"more names":             {edit("names=a b", "names=a b c"), -1, "feature_names", "has 3 names, the schema has 2"},
		"other names":            {edit("names=a b", "names=a c"), -1, "feature_names", `name 1 is "c", the schema says "b"`},
		"names in another order": {edit("names=a b", "names=b a"), -1, "feature_names", `name 0 is "b", the schema says "a"`},
		"a link function":        {edit("objective=quantile", "objective=poisson"), -1, "objective", "train with objective=quantile"},
		"square roots":           {edit("objective=quantile", "objective=regression sqrt"), -1, "objective", "train with objective=quantile"},
		"no objective":           {edit("objective=quantile\n", ""), -1, "objective", `is ""`},
		"other parameters":       {edit("[objective: quantile]", "[objective: huber]"), -1, "objective", `is "huber" instead of quantile`},
		"no alpha":               {edit("[alpha: 0.95]\n", ""), -1, "alpha", "is missing"},
		"odd alpha":              {edit("[alpha: 0.95]", "[alpha: nan]"), -1, "alpha", "not a finite number"},
		"two alphas":             {edit("[alpha: 0.95]", "[alpha: 0.95]\n[alpha: 0.5]"), -1, "alpha", "twice"},
		"no sizes":               {edit("tree_sizes=200 150\n", ""), -1, "tree_sizes", "lists 0 trees"},
		"one size":               {edit("tree_sizes=200 150", "tree_sizes=200"), -1, "tree_sizes", "lists 1 trees"},
		"three sizes":            {edit("tree_sizes=200 150", "tree_sizes=200 150 100"), -1, "tree_sizes", "where tree 2 should"},
		"sizes that are none":    {edit("tree_sizes=200 150", "tree_sizes=200 x"), -1, "tree_sizes", "not an integer"},
		"a million sizes":        {edit("tree_sizes=200 150", "tree_sizes=1"+strings.Repeat(" 1", 1e6)), -1, "tree_sizes", "lists 1000001 trees"},
		"trees in another order": {edit("Tree=1", "Tree=0"), -1, "tree_sizes", "where tree 1 should"},
		"no leaves":              {edit("num_leaves=3", "num_leaves=0"), 0, "num_leaves", "not one of 1 to 4096"},
		"fewer leaves":           {edit("num_leaves=3", "num_leaves=2"), 0, "split_feature", "has 2 values instead of 1"},
		"one leaf":               {edit("num_leaves=2", "num_leaves=1"), 1, "split_feature", "has 1 values instead of 0"},
		"2e9 leaves":             {edit("num_leaves=3", "num_leaves=2000000000"), 0, "num_leaves", "not one of 1 to 4096"},
		"1e30 leaves":            {edit("num_leaves=3", "num_leaves=1000000000000000000000000000000"), 0, "num_leaves", "not an integer"},
		"leaves not said":        {edit("num_leaves=3\n", ""), 0, "num_leaves", "is missing"},
		"num_leaves twice":       {edit("num_leaves=3", "num_leaves=3\nnum_leaves=3"), 0, "num_leaves", "twice"},
		"categorical":            {edit("num_cat=0", "num_cat=1"), 0, "num_cat", "without categorical"},
		"categorical node":       {edit("decision_type=10 8", "decision_type=10 9"), 0, "decision_type", "without categorical"},
		"categories":             {edit("is_linear=0", "cat_threshold=1\nis_linear=0"), 0, "cat_threshold", "train with neither"},
		"linear":                 {edit("is_linear=0", "is_linear=1"), 0, "is_linear", "linear_tree=false"},
		"coefficients":           {edit("is_linear=0", "leaf_coeff=1 2 3\nis_linear=0"), 0, "leaf_coeff", "train with neither"},
		"unknown in a tree":      {edit("leaf_value=1", "leaf_magic=1"), 0, `"leaf_magic"`, "not a field"},
		"a missing type":         {edit("decision_type=10 8", "decision_type=10 12"), 0, "decision_type", "not one of 0 to 11"},
		"a feature too high":     {edit("split_feature=0 1", "split_feature=0 2"), 0, "split_feature", "value 1 is 2, not one of 0 to 1"},
		"a feature below 0":      {edit("split_feature=0 1", "split_feature=0 -1"), 0, "split_feature", "not one of 0 to 1"},
		"NaN threshold":          {edit("threshold=0.5 1.5", "threshold=0.5 nan"), 0, "threshold", `value 1 is "nan", not a finite number`},
		"threshold below all":    {edit("threshold=0.25", "threshold=-inf"), 1, "threshold", "not a finite number"},
		"a leaf too large":       {edit("leaf_value=10 20", "leaf_value=10 1e999"), 1, "leaf_value", "not a finite number"},
		"NaN leaf":               {edit("leaf_value=10 20", "leaf_value=NaN 20"), 1, "leaf_value", "not a finite number"},
		"long number":            {edit("leaf_value=10 20", "leaf_value=10 0."+strings.Repeat("1", 1e5)), 1, "leaf_value", "bytes long"},
		"too many leaves":        {edit("leaf_value=10 20", "leaf_value=10 20 30"), 1, "leaf_value", "has 3 values instead of 2"},
		"a space at the end":     {edit("leaf_value=10 20", "leaf_value=10 20 "), 1, "leaf_value", "has 3 values"},
		"two spaces":             {edit("leaf_value=10 20", "leaf_value=10  20"), 1, "leaf_value", "has 3 values"},
		"too few weights":        {edit("leaf_value=10 20", "leaf_value=10 20\nleaf_weight=1"), 1, "leaf_weight", "has 1 values instead of 2"},
		"leaves by the thousand": {grown(17, 4096, []string{"a", "b"}), 16, "num_leaves", "more than 65536 leaves"},
		"no children":            {edit("left_child=1 -1\n", ""), 0, "left_child", "is missing"},
		"a child too high":       {edit("left_child=1 -1", "left_child=2 -1"), 0, "left_child", "not one of -3 to 1"},
		"a leaf too high":        {edit("left_child=1 -1", "left_child=1 -4"), 0, "left_child", "not one of -3 to 1"},
		"a leaf twice":           {edit("right_child=-2 -3", "right_child=-2 -2"), 0, "right_child", "another way leads already"},
		"the root again":         {edit("left_child=1 -1", "left_child=1 0"), 0, "left_child", "another way leads already"},
		"a node leads to itself": {edit("left_child=1 -1", "left_child=1 1"), 0, "left_child", "another way leads already"},
		"a cycle apart":          {edit("left_child=1 -1", "left_child=-1 1"), 0, "left_child", "no way leads from the root to node 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := trees.Read(strings.NewReader(tt.text), []string{"a", "b"})
			var wrong *trees.FormatError
			if !errors.As(err, &wrong) {
				t.Fatalf("got %v, not a FormatError", err)
			}
			if wrong.Tree != tt.tree || wrong.Field != tt.field || !strings.Contains(wrong.Problem, tt.says) {
				t.Errorf("got tree %d, field %s: %s\nwant tree %d, field %s: ...%s", wrong.Tree, wrong.Field, wrong.Problem, tt.tree, tt.field, tt.says)
			}
			if len(err.Error()) > 300 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
		})
	}
}

// edit is the small model with one change.
func edit(old, with string) string {
	if !strings.Contains(small, old) {
		panic("the small model has no " + old)
	}
	return strings.Replace(small, old, with, 1)
}

func TestReadRefusesOthersOfLightGBM(t *testing.T) {
	for name, want := range map[string]string{
		"linear.txt":      "tree 0: is_linear: ",
		"categorical.txt": "tree 0: num_cat: ",
		"poisson.txt":     "objective: ",
	} {
		_, err := trees.Read(strings.NewReader(testFile(t, name)), names())
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}

func TestReadTellsTheReadersError(t *testing.T) {
	broken := errors.New("broken disk")
	if _, err := trees.Read(io.MultiReader(strings.NewReader(small), failing{broken}), []string{"a", "b"}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if _, err := trees.Read(strings.NewReader(small), nil); err == nil {
		t.Error("a model without features was read")
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A cut model is refused, unless only what follows the parameters is gone.
func TestReadTruncated(t *testing.T) {
	text := testFile(t, "model/p95.txt")
	whole := strings.Index(text, "end of parameters") + len("end of parameters")
	for at := 0; at < len(text); at += 7 {
		_, err := trees.Read(strings.NewReader(text[:at]), names())
		if refused := err != nil; refused != (at < whole) {
			t.Fatalf("cut at byte %d of %d (parameters end at %d): %v", at, len(text), whole, err)
		}
	}
}

func TestReadMutated(t *testing.T) {
	text := testFile(t, "model/p95.txt")
	r := rand.New(rand.NewPCG(3, 4))
	read := 0
	for range 1000 {
		b := []byte(text)
		for range 1 + r.IntN(3) {
			b[r.IntN(len(b))] = byte(r.IntN(256))
		}
		if m, err := trees.Read(strings.NewReader(string(b)), names()); err == nil {
			read++
			checkPredicts(t, m, len(names()))
		}
	}
	if read == 0 || read == 1000 {
		t.Errorf("%d of 1000 mutated models were read: the test has no two sides", read)
	}
}

// checkPredicts holds predictions to being finite, or to an error.
func checkPredicts(t *testing.T, m *trees.Model, n int) {
	t.Helper()
	for _, v := range []float64{0, 1, -1, math.NaN(), math.Inf(1), math.Inf(-1), 1e-40, math.MaxFloat64} {
		row := slices.Repeat([]float64{v}, n)
		y, err := m.Predict(row)
		if err == nil && (math.IsNaN(y) || math.IsInf(y, 0)) {
			t.Fatalf("a row of %v predicts %v", v, y)
		}
	}
}

// What a text can make Read allocate is bounded, and with it the work: there is
// nothing that grows faster than what is allocated or than the text.
func TestReadIsBounded(t *testing.T) {
	const most = 64 << 20
	ab := []string{"a", "b"}
	fill := func(prefix, unit, suffix string) string {
		return prefix + strings.Repeat(unit, (8<<20-len(prefix)-len(suffix))/len(unit)) + suffix
	}
	full := grown(16, 4096, ab)
	head, tail, _ := strings.Cut(small, "Tree=0")
	stumps := strings.Replace(head, "200 150", strings.TrimSuffix(strings.Repeat("9 ", 4096), " "), 1)
	for i := range 4096 {
		stumps += fmt.Sprintf("Tree=%d\nnum_leaves=1\nnum_cat=0\nleaf_value=1\n\n", i)
	}
	_, end, _ := strings.Cut(small, "end of trees")
	for name, text := range map[string]io.Reader{
		"an endless text":           endless{},
		"one line":                  strings.NewReader(fill("tree\nversion=", "4", "")),
		"blank lines":               strings.NewReader(fill("tree", "\n", "")),
		"blank lines for a tree":    strings.NewReader(fill(head, "\n", "Tree=0"+tail)),
		"spaces for names":          strings.NewReader(fill("tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx=1\nfeature_names=", " ", "\n\n")),
		"spaces for sizes":          strings.NewReader(fill(head[:strings.Index(head, "200")], " ", "\n\nTree=0")),
		"equal signs":               strings.NewReader(fill("tree\n", "=", "\n\n")),
		"fields":                    strings.NewReader(fill("tree\n", "a=\n", "\n\n")),
		"leaves":                    strings.NewReader(fill(head+"Tree=0\nnum_leaves=4096\nnum_cat=0\nleaf_value=0", " 0", "\n\n")),
		"2e9 leaves":                strings.NewReader(edit("num_leaves=3", "num_leaves=2000000000")),
		"parameters":                strings.NewReader(fill(strings.TrimSuffix(small, "\nend of parameters\n\npandas_categorical:null\n"), "[a: 1]\n", "")),
		"trees of one leaf":         strings.NewReader(stumps + "end of trees" + end),
		"as many leaves as may be":  strings.NewReader(full),
		"as many trees as may be":   strings.NewReader(grown(4096, 16, ab)),
		"long numbers":              strings.NewReader(strings.ReplaceAll(full, "0.", "0.000000000")),
		"a long text after the end": strings.NewReader(fill(small, "x", "")),
	} {
		t.Run(name, func(t *testing.T) {
			counted := &counter{r: text}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := trees.Read(counted, ab)
			runtime.ReadMemStats(&after)
			took := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d MiB in %d pieces for %.1f MiB of text: %v", took>>20, after.Mallocs-before.Mallocs, float64(counted.n)/(1<<20), err)
			if took > most {
				t.Errorf("allocates %d bytes", took)
			}
			if pieces := after.Mallocs - before.Mallocs; pieces > 250_000 {
				t.Errorf("allocates %d times", pieces)
			}
			if counted.n > 8<<20+1 {
				t.Errorf("reads %d bytes", counted.n)
			}
		})
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

type counter struct {
	r io.Reader
	n int
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

func FuzzRead(f *testing.F) {
	f.Add(small)
	f.Add(strings.ReplaceAll(small, "\n", "\r\n"))
	f.Add(edit("left_child=1 -1", "left_child=1 0"))
	f.Add(edit("leaf_value=10 20", "leaf_value=1e308 1e308"))
	f.Add("tree\nversion=v4\n\n")
	f.Add(grown(1, 40, []string{"a", "b"}))
	f.Fuzz(func(t *testing.T, text string) {
		m, err := trees.Read(strings.NewReader(text), []string{"a", "b"})
		if err == nil {
			checkPredicts(t, m, 2)
			return
		}
		var wrong *trees.FormatError
		if !errors.As(err, &wrong) || wrong.Field == "" || wrong.Problem == "" {
			t.Errorf("not a FormatError that names field and problem: %v", err)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	text := grown(200, 31, fifteen())
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		mustRead(b, text, fifteen())
	}
}
