package trees

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dmitryikh/leaves"
)

// Limits of a model. A larger one would take milliseconds for a prediction.
const (
	maxSize   = 8 << 20 // bytes of text
	maxTrees  = 4096
	maxLeaves = 4096    // of one tree
	maxTotal  = 1 << 16 // leaves of all trees
	maxNumber = 32      // bytes; LightGBM writes 24 at most
)

// Read reads the text of a LightGBM model (save_model, version 3 or 4) whose
// features are names, in this order. What it does not understand it refuses
// with a *FormatError; other errors are r's. It takes at most a few tens of
// milliseconds and 64 MiB, whatever r holds.
func Read(r io.Reader, names []string) (*Model, error) {
	if len(names) == 0 {
		return nil, errors.New("read a model: the schema has no features")
	}
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read a model: %w", err)
	}
	if len(data) > maxSize {
		return nil, &FormatError{Tree: -1, Field: "size", Problem: fmt.Sprintf("is over %d MiB; train fewer or smaller trees", maxSize>>20)}
	}
	p := parser{
		text:  text{string(data)},
		names: names,
		block: block{tree: -1},
		info:  Info{Splits: make([]int, len(names))},
	}
	p.checked.Grow(len(data))
	for _, step := range []func() error{p.header, p.trees, p.parameters} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	ensemble, err := load(p.checked.String())
	if err != nil {
		return nil, p.block.wrong("leaves", "refuses the model: %v"+damaged, err)
	}
	sum := sha256.Sum256(data)
	p.info.SHA256 = hex.EncodeToString(sum[:])
	return &Model{ensemble: ensemble, info: p.info}, nil
}

// parser checks a text from its beginning to its end.
type parser struct {
	text    text
	names   []string
	block   block           // the present one
	checked strings.Builder // text for leaves: what was checked, and nothing else
	info    Info
}

func (p *parser) header() error {
	if first, _ := p.text.line(); first != "tree" {
		return p.block.wrong("tree", "the first line is %s instead of tree: this is no LightGBM model"+foreign, short(first))
	}
	b := &p.block
	if err := b.read(&p.text, -1, headerKind); err != nil {
		return err
	}
	for _, step := range []func() error{p.shape, p.features, p.objective} {
		if err := step(); err != nil {
			return err
		}
	}
	sizes, _ := b.get("tree_sizes")
	p.info.Trees = length(sizes)
	if p.info.Trees < 1 || p.info.Trees > maxTrees {
		return b.wrong("tree_sizes", "lists %d trees; 1 to %d are possible", p.info.Trees, maxTrees)
	}
	if _, err := b.integers("tree_sizes", p.info.Trees, 1, maxSize); err != nil {
		return err
	}
	fmt.Fprintf(&p.checked, "tree\nversion=v3\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx=%d\ntree_sizes=1%s\n\n",
		len(p.names)-1, strings.Repeat(" 1", p.info.Trees-1))
	return nil
}

// shape checks that there is one class, in a format that is understood.
func (p *parser) shape() error {
	b := &p.block
	if v, _ := b.get("version"); v != "v3" && v != "v4" {
		return b.wrong("version", "is %s instead of v3 or v4"+foreign, short(v))
	}
	if err := b.is("num_class", "1", "; train a regression"); err != nil {
		return err
	}
	return b.is("num_tree_per_iteration", "1", "; train a regression")
}

// features checks that the model wants what the caller has, in its order.
func (p *parser) features() error {
	const fix = "; train on samples of this schema"
	b := &p.block
	if err := b.is("max_feature_idx", strconv.Itoa(len(p.names)-1), fix); err != nil {
		return err
	}
	list, _ := b.get("feature_names")
	if n := length(list); n != len(p.names) {
		return b.wrong("feature_names", "has %d names, the schema has %d"+fix, n, len(p.names))
	}
	i := 0
	for name := range strings.SplitSeq(list, " ") {
		if name != p.names[i] {
			return b.wrong("feature_names", "name %d is %s, the schema says %q"+fix, i, short(name), p.names[i])
		}
		i++
	}
	return nil
}

// objective checks that the sum of the trees is the prediction.
func (p *parser) objective() error {
	b := &p.block
	identity := []string{"quantile", "regression", "regression_l1", "huber", "fair", "mape"}
	p.info.Objective, _ = b.get("objective")
	if !slices.Contains(identity, p.info.Objective) {
		return b.wrong("objective", "is %s instead of one of %s; train with objective=quantile",
			short(p.info.Objective), strings.Join(identity, ", "))
	}
	return nil
}

func (p *parser) trees() error {
	total := 0
	for i := range p.info.Trees {
		if err := p.begin(i); err != nil {
			return err
		}
		n, err := p.tree()
		if err != nil {
			return err
		}
		p.info.MaxLeaves = max(p.info.MaxLeaves, n)
		if total += n; total > maxTotal {
			return p.block.wrong("num_leaves", "makes more than %d leaves in all; train fewer or smaller trees", maxTotal)
		}
	}
	p.block.tree = -1
	if line, _ := p.text.filled(); line != "end of trees" {
		return p.block.wrong("tree_sizes", "lists %d trees, and %s follows them instead of end of trees"+damaged, p.info.Trees, short(line))
	}
	return nil
}

// begin finds the first line of tree i and reads its fields.
func (p *parser) begin(i int) error {
	if line, _ := p.text.filled(); line != "Tree="+strconv.Itoa(i) {
		p.block.tree = -1
		return p.block.wrong("tree_sizes", "lists %d trees, and %s stands where tree %d should"+damaged, p.info.Trees, short(line), i)
	}
	return p.block.read(&p.text, i, treeKind)
}

// tree checks one tree, writes it for leaves, and returns its leaves.
func (p *parser) tree() (int, error) {
	b := &p.block
	if err := p.numeric(); err != nil {
		return 0, err
	}
	size, err := b.integers("num_leaves", 1, 1, maxLeaves)
	if err != nil {
		return 0, err
	}
	nLeaves, nNodes := size[0], size[0]-1
	if err := p.lengths(nLeaves); err != nil {
		return 0, err
	}
	if err := b.numbers("leaf_value", nLeaves, math.MaxFloat64); err != nil {
		return 0, err
	}
	p.write("num_leaves", "num_cat", "leaf_value")
	if nNodes > 0 {
		if err := p.nodes(nNodes); err != nil {
			return 0, err
		}
		p.write("split_feature", "threshold", "decision_type", "left_child", "right_child")
	}
	p.checked.WriteByte('\n')
	return nLeaves, nil
}

// numeric refuses trees that leaves does not evaluate as LightGBM does.
func (p *parser) numeric() error {
	b := &p.block
	if err := b.is("num_cat", "0", "; train without categorical features"); err != nil {
		return err
	}
	// LightGBM before 3.2 knows no linear trees.
	if _, ok := b.get("is_linear"); ok {
		if err := b.is("is_linear", "0", "; train with linear_tree=false"); err != nil {
			return err
		}
	}
	for _, f := range b.fields {
		if treeKind(f.key) == unserved {
			return b.wrong(f.key, "belongs to a categorical or linear tree; train with neither")
		}
	}
	return nil
}

// lengths holds every list of the tree to its number of leaves, those included
// that no prediction needs: a list of another length is a sign of damage.
func (p *parser) lengths(nLeaves int) error {
	b := &p.block
	for _, f := range b.fields {
		n := nLeaves
		switch treeKind(f.key) {
		case scalar:
			continue
		case perNode:
			n--
		}
		// LightGBM gives the only leaf of a tree no weight.
		if nLeaves == 1 && f.value == "" {
			continue
		}
		if _, err := b.sized(f.key, n); err != nil {
			return err
		}
	}
	return nil
}

// nodes checks the n internal nodes of a tree.
func (p *parser) nodes(n int) error {
	b := &p.block
	features, err := b.integers("split_feature", n, 0, len(p.names)-1)
	if err != nil {
		return err
	}
	for _, f := range features {
		p.info.Splits[f]++
	}
	// LightGBM writes inf where it parts what is missing from what is not.
	if err := b.numbers("threshold", n, math.Inf(1)); err != nil {
		return err
	}
	if err := p.decisions(n); err != nil {
		return err
	}
	left, err := b.integers("left_child", n, -n-1, n-1)
	if err != nil {
		return err
	}
	right, err := b.integers("right_child", n, -n-1, n-1)
	if err != nil {
		return err
	}
	return p.topology(left, right)
}

// decisions checks how nodes decide: bit 0 is a categorical split, bit 1 the
// side of missing values, bits 2 and 3 what is missing (nothing, 0, NaN).
func (p *parser) decisions(n int) error {
	types, err := p.block.integers("decision_type", n, 0, 11)
	if err != nil {
		return err
	}
	for i, t := range types {
		if t&1 != 0 {
			return p.block.wrong("decision_type", "value %d is %d, a categorical split; train without categorical features", i, t)
		}
	}
	return nil
}

// topology checks that the nodes are one tree: from the root every node and
// every leaf is reached exactly once. A child below 0 is the leaf ^child.
func (p *parser) topology(left, right []int) error {
	nodes, leafs := make([]bool, len(left)), make([]bool, len(left)+1)
	nodes[0] = true
	for walk := []int{0}; len(walk) > 0; {
		node := walk[len(walk)-1]
		walk = walk[:len(walk)-1]
		for side, child := range [2]int{left[node], right[node]} {
			seen, at := nodes, child
			if child < 0 {
				seen, at = leafs, ^child
			} else {
				walk = append(walk, child)
			}
			if seen[at] {
				field := [2]string{"left_child", "right_child"}[side]
				return p.block.wrong(field, "value %d is %d, to where another way leads already"+damaged, node, child)
			}
			seen[at] = true
		}
	}
	if lost := slices.Index(nodes, false); lost >= 0 {
		return p.block.wrong("left_child", "no way leads from the root to node %d"+damaged, lost)
	}
	return nil
}

// write hands fields of the present block to leaves.
func (p *parser) write(keys ...string) {
	for _, key := range keys {
		value, _ := p.block.get(key)
		p.checked.WriteString(key)
		p.checked.WriteByte('=')
		p.checked.WriteString(value)
		p.checked.WriteByte('\n')
	}
}

// parameters reads what stands after the trees: what the model was trained for.
func (p *parser) parameters() error {
	b := &p.block
	for line := ""; line != "parameters:"; {
		var ok bool
		if line, ok = p.text.line(); !ok {
			return b.wrong("parameters", "is missing: the text ends before it"+damaged)
		}
	}
	b.fields = b.fields[:0]
	for {
		line, ok := p.text.line()
		if !ok {
			return b.wrong("parameters", "the text ends inside"+damaged)
		}
		if line == "end of parameters" {
			break
		}
		if err := p.parameter(line); err != nil {
			return err
		}
	}
	if err := b.is("objective", p.info.Objective, ", as the header says"+damaged); err != nil {
		return err
	}
	if err := b.numbers("alpha", 1, math.MaxFloat64); err != nil {
		return err
	}
	alpha, _ := b.get("alpha")
	p.info.Alpha, _ = strconv.ParseFloat(alpha, 64) // is finite
	return nil
}

// parameter keeps a line like [alpha: 0.95] if it is of interest.
func (p *parser) parameter(line string) error {
	key, value, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(line, "["), "]"), ": ")
	if key != "objective" && key != "alpha" {
		return nil
	}
	return p.block.add(key, value)
}

// load makes a model of checked text. Nothing in it should make leaves panic.
func load(checked string) (ensemble *leaves.Ensemble, err error) {
	defer guard(&err)
	// No line is longer than the buffer, so each is copied once.
	return leaves.LGEnsembleFromReader(bufio.NewReaderSize(strings.NewReader(checked), maxLeaves*(maxNumber+1)+64), false)
}

// guard makes an error of a panic in leaves.
func guard(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("leaves panicked: %v", p)
	}
}
