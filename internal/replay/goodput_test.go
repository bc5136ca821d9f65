package replay_test

import (
	"errors"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// A search that begins near finds what one that begins anywhere finds, and one
// that gives up early says so of no rate that does well.
func TestFind(t *testing.T) {
	t.Parallel()
	p := plain
	p.MaxSeqs = 1
	one := replay.Trial{ // ten times the rate is all that can be served without a queue
		Objective: report.Objective{TTFT: 110 * ms},
		Source:    func(uint64) trace.Source { return trace.Of(many(400, time.Second, 900, 1)...) },
	}
	v := replay.Variant{Name: "v", Config: replay.Config{Engines: fleet(p), Policy: router.Random, Network: -1, Scrape: -1, Probe: -1}}
	for _, near := range []float64{5, 9.9, 10.5, 30} {
		g, err := one.Find(v, replay.Search{Near: near, Known: true, Precision: 0.02})
		if err != nil || g.Multiplier < 9.8 || g.Multiplier > 10.2 || g.Met < 0.95 {
			t.Errorf("near %g: %+v, %v; want about 10", near, g, err)
		}
	}
	for _, k := range []float64{1, 9, 9.9, 11, 20, 100} {
		g, err := one.Try(v, replay.Search{}, k)
		if err != nil || (g.Met >= 0.95) != (k < 10) {
			t.Errorf("at %g: %+v, %v", k, g, err)
		}
	}
	some := many(4000, time.Second, 900, 1)
	for i := 0; i < len(some); i += 25 {
		some[i].PromptTokens = 1200 // too long for the objective: 4 % miss it at any rate
	}
	one.Source = func(uint64) trace.Source { return trace.Of(some...) }
	if g, err := one.Try(v, replay.Search{}, 5); err != nil || g.Met != 0.96 {
		t.Errorf("with 4 %% lost: %+v, %v", g, err)
	}
	v.Stop = func() bool { return true }
	if _, err := one.Find(v, replay.Search{}); !errors.Is(err, replay.ErrStopped) {
		t.Errorf("stopped: %v", err)
	}
}
