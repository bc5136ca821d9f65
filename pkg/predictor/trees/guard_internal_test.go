package trees

import (
	"strings"
	"testing"
)

// No text that passes the checks should make leaves panic; if one does, it is
// an error.
func TestPanicOfLeavesIsAnError(t *testing.T) {
	if _, err := load("tree\nversion=v3\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx=0\ntree_sizes=1\n\n" +
		"num_leaves=2\nnum_cat=0\nleaf_value=1 2\nsplit_feature=0\nthreshold=0\ndecision_type=2\nleft_child=5\nright_child=-2\n\n"); err == nil || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("load: %v", err)
	}
	if _, err := (&Model{}).Predict(nil); err == nil || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("Predict: %v", err)
	}
}
