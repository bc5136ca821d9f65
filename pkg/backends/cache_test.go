package backends_test

import (
	"math"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

func TestPrefixCache(t *testing.T) {
	chain := func(from, n int) []uint64 {
		var out []uint64
		for i := range n {
			out = append(out, uint64(from+i))
		}
		return out
	}
	p := testPool(specs("ab")...)
	cached := func(now time.Time, w backends.Work) map[string]int {
		got := map[string]int{}
		c, err := p.Claim(now, w, nil, func(cands []backends.Candidate) int {
			for _, k := range cands {
				got[k.Backend.Name] = k.Cached
			}
			return 0
		})
		if err != nil {
			t.Fatal(err)
		}
		c.End(now, backends.Outcome{})
		return got
	}
	first := backends.Work{PromptTokens: 1000, Blocks: chain(1, 15)}
	if got := cached(t0, first); got["a"] != 0 || got["b"] != 0 {
		t.Errorf("a new prompt is cached: %v", got)
	}
	if got := cached(t0, first); got["a"] != 15*backends.BlockTokens || got["b"] != 0 {
		t.Errorf("the same prompt again: %v, want 15 blocks on a", got)
	}
	longer := backends.Work{PromptTokens: 3000, Blocks: append(chain(1, 15), chain(100, 30)...)}
	if got := cached(t0, longer); got["a"] != 15*backends.BlockTokens {
		t.Errorf("a longer prompt: %v, want its first 15 blocks", got)
	}
	short := backends.Work{PromptTokens: 100, Blocks: chain(1, 2)}
	if got := cached(t0, short); got["a"] != 100 {
		t.Errorf("cached %v tokens of a prompt of 100", got)
	}

	claim, err := p.Claim(t0, longer, nil, func([]backends.Candidate) int { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	if got := claim.Backend.Load(t0).PrefillTokens; got != 3000-45*backends.BlockTokens {
		t.Errorf("%d prompt tokens to compute, want those that are not cached", got)
	}
	claim.End(t0, backends.Outcome{})

	started := backends.UnknownSignals()
	started.StartTime = 1
	a := backend(p, "a")
	a.SetSignals(started)
	if got := cached(t0, first); got["a"] == 0 {
		t.Error("the first start time seen emptied the cache")
	}
	started.StartTime = math.NaN()
	a.SetSignals(started)
	started.StartTime = 2
	a.SetSignals(started)
	a.SetSignals(started)
	started.StartTime = 3
	a.SetSignals(started)
	if got := cached(t0, first); got["a"] != 0 {
		t.Errorf("cached after a restart: %v", got)
	}
}

// What is known of a prompt always begins at its front, however much was sent
// since: the look-up relies on it.
func TestPrefixCacheForgetsFromTheEnd(t *testing.T) {
	p := testPool(specs("a")...)
	long := make([]uint64, 12_000)
	for i := range long {
		long[i] = uint64(i + 1)
	}
	other := make([]uint64, 6_000)
	for i := range other {
		other[i] = uint64(1_000_000 + i)
	}
	send := func(blocks []uint64) (cached int) {
		c, err := p.Claim(t0, backends.Work{PromptTokens: len(blocks) * backends.BlockTokens, Blocks: blocks}, nil,
			func(k []backends.Candidate) int { cached = k[0].Cached; return 0 })
		if err != nil {
			t.Fatal(err)
		}
		c.End(t0, backends.Outcome{})
		return cached / backends.BlockTokens
	}
	send(long)
	send(other) // more than there is room for: the end of long goes
	if got := send(long); got == 0 || got == len(long) {
		t.Errorf("%d of %d blocks are known, want a part from the front", got, len(long))
	}
}
