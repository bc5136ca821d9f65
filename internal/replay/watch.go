package replay

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

// startTimers sets scrapes, probes and faults going.
func (w *world) startTimers() {
	for g := range w.gates {
		for i := range w.engines {
			if w.Scrape > 0 {
				w.queue.push(w.part(w.Scrape), scrapeSent, g, i)
			}
			if w.Probe > 0 {
				w.queue.push(w.part(w.Probe), probeSent, g, i)
			}
		}
	}
	for k, f := range w.Faults {
		w.queue.push(f.At, faultBegins, k, 0)
		if f.For > 0 {
			w.queue.push(f.At+f.For, faultEnds, k, 0)
		}
	}
}

// part is a random share of d: replicas don't watch in step.
func (w *world) part(d time.Duration) time.Duration {
	return time.Duration(w.rng.Float64() * float64(d))
}

// jittered is d changed by up to a fifth either way.
func (w *world) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*w.rng.Float64()))
}

func (w *world) scrapeSent(g, i int) {
	s := &w.gates[g].scrapes[i]
	s.began, s.own = w.now, w.gates[g].targets[i].Load(w.clock()).InFlight
	w.queue.push(w.now+w.Network, scrapeRead, g, i)
}

// scrapeRead is the engine's moment: what it says is as of now.
func (w *world) scrapeRead(g, i int) {
	s, n := &w.gates[g].scrapes[i], w.engines[i]
	if s.ok = n.up(w.now); s.ok {
		w.collect(i)
		if _, stalled := n.faults[engine.StallMetrics]; !stalled {
			n.told = n.sim.Stats()
		}
		s.text = n.told
	}
	w.queue.push(w.now+w.Network, scrapeSeen, g, i)
}

// scrapeSeen passes what the engine printed through the gateway's own parser.
func (w *world) scrapeSeen(g, i int) {
	s := &w.gates[g].scrapes[i]
	if s.ok {
		signals, err := backends.ParseSignals(backends.VLLM, strings.NewReader(exposition(s.text, w.engines[i].Params.NoPrefixCache, w.engines[i].lives)))
		if err == nil {
			signals.Began, signals.At, signals.OwnInFlight = origin.Add(s.began), w.clock(), s.own
			w.gates[g].targets[i].SetSignals(signals)
			w.warmUp(g, i)
		}
	}
	w.queue.push(w.now+w.jittered(w.Scrape), scrapeSent, g, i)
}

// exposition is the part of vLLM's metrics that the gateway reads.
func exposition(s engine.Stats, noCache bool, life int) string {
	use, caching := 0.0, "True"
	if noCache {
		caching = "False"
	}
	if s.KVTotal > 0 {
		use = float64(s.KVUsed) / float64(s.KVTotal)
	}
	return fmt.Sprintf("vllm:num_requests_running %d\nvllm:num_requests_waiting %d\nvllm:kv_cache_usage_perc %g\n"+
		"vllm:prefix_cache_queries_total %d\nvllm:prefix_cache_hits_total %d\n"+
		"vllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"%d\",enable_prefix_caching=\"%s\"} 1\nprocess_start_time_seconds %d\n",
		s.Running, s.Waiting, use, s.PrefixQueries, s.PrefixHits,
		engine.BlockTokens, s.KVTotal, caching, origin.Unix()+int64(life))
}

func (w *world) probe(g, i int) {
	w.gates[g].targets[i].Probe(w.clock(), w.engines[i].up(w.now))
	w.warmUp(g, i)
	w.queue.push(w.now+w.jittered(w.Probe), probeSent, g, i)
}

// add sums the counters of an engine's lives; gauges are the present one's.
func add(past, now engine.Stats) engine.Stats {
	now.PrefixQueries += past.PrefixQueries
	now.PrefixHits += past.PrefixHits
	now.PromptTokens += past.PromptTokens
	now.ComputedTokens += past.ComputedTokens
	now.GeneratedTokens += past.GeneratedTokens
	now.Submitted += past.Submitted
	now.Finished += past.Finished
	now.Cancelled += past.Cancelled
	now.Preemptions += past.Preemptions
	now.Steps += past.Steps
	now.Busy += past.Busy
	return now
}

// sorted lists the slots in an order that does not depend on the map.
func sorted(slots map[engine.ID]int) []int {
	out := make([]int, 0, len(slots))
	for _, s := range slots {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}
