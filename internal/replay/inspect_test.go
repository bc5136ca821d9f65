package replay_test

import (
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// A look sees every engine with the oracle's word on each, and changes nothing.
func TestInspect(t *testing.T) {
	t.Parallel()
	c := replay.Config{Engines: fleet(plain, slow(), plain), Policy: "lmetric", Predict: &replay.Predict{Oracle: true}}
	src := trace.Of(many(90, 40*time.Millisecond, 300, 20)...)
	alone, _ := run(t, c, src)

	looks := map[int][]replay.Prospect{}
	c.Inspect = &replay.Inspect{Every: 3, Seen: func(index int, all []replay.Prospect) { looks[index] = all }}
	looked, _ := run(t, c, src)

	if len(looks) != 30 {
		t.Errorf("%d looks at 90 requests, every third", len(looks))
	}
	for i, o := range looked {
		if was := alone[i]; o.Engine != was.Engine || o.TTFT != was.TTFT || o.E2E != was.E2E {
			t.Fatalf("request %d goes otherwise for being looked at: %+v, %+v", i, o, was)
		}
		if i%3 != 0 {
			continue
		}
		if len(looks[i]) != 3 {
			t.Fatalf("request %d: %d engines", i, len(looks[i]))
		}
		for _, p := range looks[i] {
			if p.Foreseen.P50 <= 0 || p.Foreseen.P95 < p.Foreseen.P50 {
				t.Errorf("request %d on engine %d: %+v", i, p.Engine, p.Foreseen)
			}
			if p.Engine == o.Engine && p.Oracle != o.Oracle {
				t.Errorf("request %d: the oracle says %v before and %v after the choice", i, p.Oracle, o.Oracle)
			}
		}
	}
}
