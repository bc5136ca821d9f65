package backends_test

import (
	"math"
	"strings"
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

// guess is how many tokens of the prompt the pool's one engine should have.
func guess(t *testing.T, p *backends.Pool, w backends.Work) (cached int) {
	t.Helper()
	_, err := p.Claim(t0, w, nil, func(k []backends.Candidate) int { cached = k[0].Cached; return -1 })
	if err == nil {
		t.Fatal("nobody was chosen, and somebody was claimed")
	}
	return cached
}

func sendTo(t *testing.T, p *backends.Pool, w backends.Work, look func([]backends.Candidate)) *backends.Claim {
	t.Helper()
	c, err := p.Claim(t0, w, nil, func(k []backends.Candidate) int { look(k); return 0 })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What became of an attempt decides whether its prompt is in the cache.
func TestPrefixCacheByOutcome(t *testing.T) {
	w := backends.Work{PromptTokens: 200, Blocks: []uint64{1, 2, 3}}
	nothing := func([]backends.Candidate) {}
	for name, c := range map[string]struct {
		token bool
		end   backends.Outcome
		want  int
	}{
		"served":                       {true, backends.Outcome{Class: backends.Served}, 192},
		"served in one piece":          {false, backends.Outcome{Class: backends.Served}, 192},
		"refused":                      {false, backends.Outcome{Class: backends.Overloaded}, 0},
		"failed before a token":        {false, backends.Outcome{Class: backends.Fault}, 0},
		"failed later":                 {true, backends.Outcome{Class: backends.Fault}, 192},
		"never sent":                   {false, backends.Outcome{Class: backends.Dropped}, 0},
		"client left":                  {true, backends.Outcome{Class: backends.Dropped, ClientLeft: true}, 192},
		"client left, perhaps working": {false, backends.Outcome{Class: backends.Dropped, ClientLeft: true}, 192},
	} {
		p := testPool(spec("a"))
		claim := sendTo(t, p, w, nothing)
		if got := guess(t, p, w); got != 192 {
			t.Errorf("%s: %d tokens cached while it runs", name, got)
		}
		if c.token {
			claim.FirstToken(t0)
		}
		claim.End(t0, c.end)
		if got := guess(t, p, w); got != c.want {
			t.Errorf("%s: %d tokens cached after it, want %d", name, got, c.want)
		}
	}
	p := testPool(spec("a"))
	failed, other := sendTo(t, p, w, nothing), sendTo(t, p, w, nothing)
	failed.End(t0, backends.Outcome{Class: backends.Fault})
	if got := guess(t, p, w); got != 192 {
		t.Errorf("%d tokens cached when another request computes them", got)
	}
	other.End(t0, backends.Outcome{Class: backends.Served})
}

// Prompts and answers take room, in use or not, and as much as the engine says.
func TestPrefixCacheRoom(t *testing.T) {
	p := testPool(spec("a"))
	size := backends.UnknownSignals()
	size.CacheTokens = 1000
	p.Backends[0].SetSignals(size)
	run := func(w backends.Work, answer int) {
		c := sendTo(t, p, w, func([]backends.Candidate) {})
		c.Output(answer) // told first, so that no average is assumed
		c.FirstToken(t0)
		c.End(t0, backends.Outcome{Class: backends.Served})
	}
	old := backends.Work{PromptTokens: 320, Blocks: []uint64{1, 2, 3, 4, 5}}
	run(old, 0)
	run(backends.Work{PromptTokens: 128, Blocks: []uint64{10, 11}}, 552) // 1,000 in all
	if got := guess(t, p, old); got != 320 {
		t.Errorf("%d tokens are cached of what fits", got)
	}
	run(backends.Work{PromptTokens: 100}, 0)
	if got := guess(t, p, old); got != 192 {
		t.Errorf("%d tokens are cached when 100 more were needed, want the first 192", got)
	}

	running := sendTo(t, p, backends.Work{PromptTokens: 128, Blocks: []uint64{20, 21}}, func([]backends.Candidate) {})
	running.Output(872)
	if got := guess(t, p, old); got != 0 {
		t.Errorf("%d tokens are cached beside an answer that fills the cache", got)
	}
	if got := guess(t, p, backends.Work{PromptTokens: 128, Blocks: []uint64{20, 21}}); got != 128 {
		t.Errorf("%d tokens are cached of what is in use", got)
	}
	running.End(t0, backends.Outcome{Class: backends.Served})
	running.Output(100_000)
	running.Cached(0)
	if got := guess(t, p, backends.Work{PromptTokens: 128, Blocks: []uint64{20, 21}}); got != 128 {
		t.Errorf("%d tokens are cached after calls that come too late", got)
	}
}

// An engine that reuses nothing, or that was started again, is found out, with
// requests under way as well.
func TestPrefixCacheSwitchedOff(t *testing.T) {
	p := testPool(spec("a"))
	b := p.Backends[0]
	say := func(caching string) {
		text := "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\",enable_prefix_caching=\"" + caching + "\"} 1\n"
		s, err := backends.ParseSignals(backends.VLLM, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		b.SetSignals(s)
	}
	w := backends.Work{PromptTokens: 200, Blocks: []uint64{1, 2, 3}}
	nothing := func([]backends.Candidate) {}
	for _, caching := range []string{"True", "False", "False", "None", "True", "True"} {
		c := sendTo(t, p, w, nothing)
		say(caching)
		c.FirstToken(t0)
		c.End(t0, backends.Outcome{Class: backends.Served})
		sendTo(t, p, w, nothing).End(t0, backends.Outcome{Class: backends.Served})
		want := 0
		if caching == "True" {
			want = 192
		}
		if got := guess(t, p, w); got != want {
			t.Errorf("prefix caching %s: %d tokens cached, want %d", caching, got, want)
		}
	}
}
