package trees

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// text walks over the lines of a model. Lines end with \n or \r\n.
type text struct{ rest string }

// line returns the next line without its end; ok is false after the last.
func (t *text) line() (line string, ok bool) {
	if t.rest == "" {
		return "", false
	}
	line, t.rest, _ = strings.Cut(t.rest, "\n")
	return strings.TrimSuffix(line, "\r"), true
}

// filled returns the next line that is not blank.
func (t *text) filled() (line string, ok bool) {
	t.rest = strings.TrimLeft(t.rest, "\r\n")
	return t.line()
}

// kind is what a reader makes of a field.
type kind int

const (
	unknown  kind = iota
	scalar        // one value
	perNode       // a value for each internal node of the tree
	perLeaf       // a value for each leaf
	unserved      // belongs to trees that leaves evaluates wrongly, or not at all
)

func headerKind(key string) kind {
	switch key {
	case "version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective",
		"feature_names", "monotone_constraints", "feature_infos", "tree_sizes":
		return scalar
	}
	return unknown
}

func treeKind(key string) kind {
	switch key {
	case "num_leaves", "num_cat", "is_linear", "shrinkage":
		return scalar
	case "split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child",
		"internal_value", "internal_weight", "internal_count":
		return perNode
	case "leaf_value", "leaf_weight", "leaf_count":
		return perLeaf
	case "cat_boundaries", "cat_threshold", "leaf_const", "num_features", "leaf_features", "leaf_coeff":
		return unserved
	}
	return unknown
}

// field is a line of a block.
type field struct{ key, value string }

// block is the fields of the header or of one tree, in the order of the text.
type block struct {
	tree   int // -1 outside of trees
	fields []field
}

// read takes fields up to a blank line. Only known keys are kept, each once,
// so that a block is small whatever the text is.
func (b *block) read(t *text, tree int, known func(string) kind) error {
	b.tree = tree
	b.fields = b.fields[:0]
	for {
		line, ok := t.line()
		if !ok {
			return b.wrong("end of trees", "the text ends before it"+damaged)
		}
		if line == "" {
			return nil
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || known(key) == unknown {
			return b.wrong(short(key), "is not a field this reader knows"+foreign)
		}
		if err := b.add(key, value); err != nil {
			return err
		}
	}
}

func (b *block) add(key, value string) error {
	if _, twice := b.get(key); twice {
		return b.wrong(key, "is there twice"+damaged)
	}
	b.fields = append(b.fields, field{key, value})
	return nil
}

func (b *block) get(key string) (value string, ok bool) {
	for _, f := range b.fields {
		if f.key == key {
			return f.value, true
		}
	}
	return "", false
}

func (b *block) wrong(field, format string, args ...any) error {
	return &FormatError{Tree: b.tree, Field: field, Problem: fmt.Sprintf(format, args...)}
}

// is fails unless the field has this value.
func (b *block) is(key, want, fix string) error {
	value, ok := b.get(key)
	if !ok {
		return b.missing(key)
	}
	if value != want {
		return b.wrong(key, "is %s instead of %s%s", short(value), want, fix)
	}
	return nil
}

func (b *block) missing(key string) error { return b.wrong(key, "is missing"+damaged) }

// sized returns the values of a field, which must be n, with one space between
// them.
func (b *block) sized(key string, n int) (values string, err error) {
	value, ok := b.get(key)
	if !ok {
		return "", b.missing(key)
	}
	if got := length(value); got != n {
		return "", b.wrong(key, "has %d values instead of %d"+damaged, got, n)
	}
	return value, nil
}

func length(value string) int {
	if value == "" {
		return 0
	}
	return strings.Count(value, " ") + 1
}

// integers are the n values of a field, each from low to high.
func (b *block) integers(key string, n, low, high int) ([]int, error) {
	list, err := b.sized(key, n)
	if err != nil {
		return nil, err
	}
	values := make([]int, 0, n)
	for token := range strings.SplitSeq(list, " ") {
		v, err := strconv.Atoi(token)
		if err != nil {
			return nil, b.wrong(key, "value %d is %s, not an integer"+damaged, len(values), short(token))
		}
		if v < low || v > high {
			return nil, b.wrong(key, "value %d is %d, not one of %d to %d"+damaged, len(values), v, low, high)
		}
		values = append(values, v)
	}
	return values, nil
}

// numbers fails unless the n values of a field are numbers, neither NaN nor
// below what is finite nor above most.
func (b *block) numbers(key string, n int, most float64) error {
	list, err := b.sized(key, n)
	if err != nil {
		return err
	}
	i := 0
	for token := range strings.SplitSeq(list, " ") {
		if len(token) > maxNumber {
			return b.wrong(key, "value %d is %d bytes long"+damaged, i, len(token))
		}
		v, err := strconv.ParseFloat(token, 64)
		if err != nil || !(v >= -math.MaxFloat64 && v <= most) {
			return b.wrong(key, "value %d is %s, not a finite number"+damaged, i, short(token))
		}
		i++
	}
	return nil
}
