package trace

import (
	"slices"
	"testing"
)

func TestBlocksAreSharedAsFarAsTheTextAgrees(t *testing.T) {
	const sys, a, b = 1, 2, 3
	blocks := func(prompt, output int, content ...Segment) []uint64 {
		r := Request{PromptTokens: prompt, OutputTokens: output, Content: content}
		return r.AppendBlocks(nil)
	}
	base := blocks(100, 0, Segment{sys, 40}, Segment{a, 60})
	for _, c := range []struct {
		name           string
		other          []uint64
		length, shared int
	}{
		{"the same", blocks(100, 0, Segment{sys, 40}, Segment{a, 60}), 6, 6},
		{"longer", blocks(120, 0, Segment{sys, 40}, Segment{a, 80}), 7, 6},
		{"shorter by half a block", blocks(88, 0, Segment{sys, 40}, Segment{a, 48}), 5, 5},
		{"another user", blocks(100, 0, Segment{sys, 40}, Segment{b, 60}), 6, 2},
		{"another system prompt", blocks(100, 0, Segment{b, 40}, Segment{a, 60}), 6, 0},
		{"another length of it", blocks(100, 0, Segment{sys, 41}, Segment{a, 59}), 6, 2},
		{"going on into the answer", blocks(100, 28, Segment{sys, 40}, Segment{a, 60}, Segment{b, 28}), 8, 6},
		{"content past the answer", blocks(64, 16, Segment{sys, 40}, Segment{a, 1000}), 5, 5},
		{"nothing known", blocks(100, 0), 0, 0},
	} {
		shared := 0
		for shared < min(len(base), len(c.other)) && base[shared] == c.other[shared] {
			shared++
		}
		if len(c.other) != c.length || shared != c.shared {
			t.Errorf("%s: %d blocks, %d shared; want %d, %d", c.name, len(c.other), shared, c.length, c.shared)
		}
	}
	same := blocks(1600, 0, Segment{sys, 16 * 50}, Segment{sys, 16 * 50})
	slices.Sort(same)
	if n := len(slices.Compact(same)); n != 100 {
		t.Errorf("repeated text gives %d distinct blocks, want 100: an id depends on what comes before", n)
	}
}
