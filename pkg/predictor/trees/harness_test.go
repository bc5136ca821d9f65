package trees_test

import (
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// schemaHash is what the manifest in testdata says.
const schemaHash = "0123456789abcdef"

func names() []string { return []string{"prompt", "waiting", "kv", "age", "rate"} }

func testFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func mustRead(t testing.TB, text string, names []string) *trees.Model {
	t.Helper()
	m, err := trees.Read(strings.NewReader(text), names)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// expectation is a row and what LightGBM's own package predicts for it.
type expectation struct {
	row      []float64
	p50, p95 float64
}

func expectations(t testing.TB) []expectation {
	t.Helper()
	records, err := csv.NewReader(strings.NewReader(testFile(t, "expected.csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var all []expectation
	for _, record := range records[1:] {
		values := make([]float64, len(record))
		for i, s := range record {
			if values[i], err = strconv.ParseFloat(s, 64); err != nil {
				t.Fatal(err)
			}
		}
		n := len(names())
		all = append(all, expectation{values[:n], values[n], values[n+1]})
	}
	return all
}

// grown is the text of a model as LightGBM writes it, of random trees.
func grown(nTrees, nLeaves int, names []string) string {
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	fmt.Fprintf(&b, "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx=%d\nobjective=quantile\nfeature_names=%s\ntree_sizes=%s\n\n",
		len(names)-1, strings.Join(names, " "), strings.TrimSuffix(strings.Repeat("100 ", nTrees), " "))
	for i := range nTrees {
		fmt.Fprintf(&b, "Tree=%d\nnum_leaves=%d\nnum_cat=0\n", i, nLeaves)
		writeTree(&b, r, nLeaves, len(names))
		b.WriteString("is_linear=0\nshrinkage=0.1\n\n\n")
	}
	b.WriteString("end of trees\n\nparameters:\n[objective: quantile]\n[alpha: 0.95]\n\nend of parameters\n")
	return b.String()
}

// writeTree splits a random leaf until there are enough.
func writeTree(b *strings.Builder, r *rand.Rand, nLeaves, nFeatures int) {
	left, right := make([]int, nLeaves-1), make([]int, nLeaves-1)
	at := make([]*int, nLeaves) // what refers to each leaf
	for node := range left {
		leaf := r.IntN(node + 1)
		if at[leaf] != nil {
			*at[leaf] = node
		}
		left[node], right[node] = ^leaf, ^(node + 1)
		at[leaf], at[node+1] = &left[node], &right[node]
	}
	integer := func(low, high int) func(int) string {
		return func(int) string { return strconv.Itoa(low + r.IntN(high-low)) }
	}
	real := func(int) string { return strconv.FormatFloat(r.NormFloat64(), 'g', 17, 64) }
	brief := func(int) string { return strconv.FormatFloat(r.NormFloat64(), 'g', 6, 64) }
	line := func(key string, n int, value func(int) string) {
		values := make([]string, n)
		for i := range values {
			values[i] = value(i)
		}
		fmt.Fprintf(b, "%s=%s\n", key, strings.Join(values, " "))
	}
	line("split_feature", nLeaves-1, integer(0, nFeatures))
	line("split_gain", nLeaves-1, brief)
	line("threshold", nLeaves-1, real)
	line("decision_type", nLeaves-1, func(int) string { return []string{"2", "8", "10"}[r.IntN(3)] })
	line("left_child", nLeaves-1, func(i int) string { return strconv.Itoa(left[i]) })
	line("right_child", nLeaves-1, func(i int) string { return strconv.Itoa(right[i]) })
	line("leaf_value", nLeaves, real)
	line("leaf_weight", nLeaves, integer(20, 5000))
	line("leaf_count", nLeaves, integer(20, 5000))
	line("internal_value", nLeaves-1, brief)
	line("internal_weight", nLeaves-1, integer(20, 5000))
	line("internal_count", nLeaves-1, integer(20, 5000))
}

// fifteen are the features of the model that speed is measured with.
func fifteen() []string {
	all := make([]string, 15)
	for i := range all {
		all[i] = fmt.Sprintf("feature_%d", i)
	}
	return all
}
