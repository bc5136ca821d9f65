package trace

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTurnsExtendTheirSession(t *testing.T) {
	for _, w := range Workloads() {
		former := map[string]Request{}
		extended := 0
		for r, err := range w.Source(7).First(3000) {
			if err != nil {
				t.Fatal(err)
			}
			if r.PromptTokens+r.OutputTokens > w.MaxContext || r.Tenant == "" || r.E2E != w.E2E ||
				r.Stream && (r.TTFT != w.TTFT || r.TPOT != w.TPOT) || !r.Stream && r.TTFT+r.TPOT != 0 {
				t.Fatalf("%s: %+v", w.Name, r)
			}
			p, ok := former[r.Session]
			former[r.Session] = r
			if !ok {
				continue
			}
			extended++
			if r.Turn != p.Turn+1 || r.At < p.At || r.Tenant != p.Tenant || r.Stream != p.Stream || r.PromptTokens <= p.PromptTokens+p.OutputTokens {
				t.Fatalf("%s: turn %+v\nafter %+v", w.Name, r, p)
			}
			before, now := p.AppendBlocks(nil), r.AppendBlocks(nil)
			if len(before) != (p.PromptTokens+p.OutputTokens)/BlockTokens || !slices.Equal(before, now[:len(before)]) {
				t.Fatalf("%s: the blocks of turn %d, with its answer, do not begin turn %d", w.Name, p.Turn, r.Turn)
			}
		}
		if extended < 1000 {
			t.Errorf("%s: only %d further turns", w.Name, extended)
		}
	}
}

func TestSystemPromptIsSharedByTenant(t *testing.T) {
	first := map[string]Segment{}
	ids := map[uint64]string{}
	for _, r := range collect(t, CustomerService().Source(1).First(2000)) {
		if s, ok := first[r.Tenant]; ok && s != r.Content[0] {
			t.Fatalf("tenant %s has system prompts %v and %v", r.Tenant, s, r.Content[0])
		}
		first[r.Tenant] = r.Content[0]
		ids[r.Content[0].ID] = r.Tenant
	}
	if len(first) != 3 || len(ids) != 3 {
		t.Errorf("%d tenants, %d system prompts", len(first), len(ids))
	}
}

// TestShippedWorkloads holds them to the figures their comments name.
func TestShippedWorkloads(t *testing.T) {
	type figures struct {
		rate, cv, prompt50, prompt99, output50, output, reuse, streamed float64
	}
	want := map[string]figures{
		"customer-service":   {6, 1.05, 1020, 4142, 129, 211, 0.85, 1},
		"code-completion":    {8, 4, 1469, 7436, 13, 28, 0.9, 1},
		"live-summarisation": {1, 1, 6909, 28000, 40, 42, 0.85, 0.5},
	}
	for _, w := range Workloads() {
		all := collect(t, w.Source(1).First(10_000))
		gap, cv := meanAndCV(gapsOf(all))
		p, o, f := prompts(all), outputs(all), want[w.Name]
		near(t, w.Name+" rate", 1/gap, f.rate, 0.1)
		near(t, w.Name+" CV", cv, f.cv, 0.1)
		near(t, w.Name+" prompt p50", float64(quantile(p, 0.5)), f.prompt50, 0.15)
		near(t, w.Name+" prompt p99", float64(quantile(p, 0.99)), f.prompt99, 0.2)
		near(t, w.Name+" output p50", float64(quantile(o, 0.5)), f.output50, 0.1)
		near(t, w.Name+" output mean", mean(o), f.output, 0.15)
		near(t, w.Name+" streamed", streamed(all), f.streamed, 0.1)
		if hit, looked := sharing(all[:3000]); float64(hit) < f.reuse*float64(looked) {
			t.Errorf("%s: %d of %d blocks of the prompts were seen before", w.Name, hit, looked)
		}
	}
}

func TestWorkloadStartsInTheMidst(t *testing.T) {
	w := CustomerService()
	w.Burst = nil
	s := w.Source(2)
	begin := len(collect(t, s.Window(0, 5*time.Minute)))
	later := len(collect(t, s.Window(time.Hour, time.Hour+5*time.Minute)))
	near(t, "requests in the first five minutes", float64(begin), float64(later), 0.1)
}

func TestBurstsSwingTheRequests(t *testing.T) {
	high, low := 0.0, 0.0
	for _, r := range collect(t, CustomerService().Source(1).Window(0, 2*time.Hour)) {
		if r.At%(2*time.Minute) < time.Minute {
			high++
		} else {
			low++
		}
	}
	near(t, "high over low", high/low, 1.3/0.7, 0.05)
}

func TestShippedByName(t *testing.T) {
	for _, w := range Workloads() {
		if got, err := Shipped(w.Name); err != nil || got.Name != w.Name {
			t.Errorf("%s: %v", w.Name, err)
		}
	}
	if _, err := Shipped("poetry"); err == nil || !strings.Contains(err.Error(), "code-completion") {
		t.Errorf("%v does not say which there are", err)
	}
}

func TestUnsoundWorkloads(t *testing.T) {
	for name, spoil := range map[string]func(*Workload){
		"rate":     func(w *Workload) { w.Rate = math.NaN() },
		"turns":    func(w *Workload) { w.Turns = 0.5 },
		"context":  func(w *Workload) { w.MaxContext = 100 },
		"streamed": func(w *Workload) { w.Streamed = 2 },
		"tenants":  func(w *Workload) { w.Tenants = []Weighted{{"a", -1}} },
		"models":   func(w *Workload) { w.Models = []Weighted{{"a", 0}} },
	} {
		w := CustomerService()
		spoil(&w)
		if _, err := w.Source(1).First(1).Collect(); err == nil || !strings.Contains(err.Error(), w.Name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sharing is how many full blocks of the prompts an endless cache would find,
// and how many there are.
func sharing(all []Request) (hit, looked int) {
	seen := map[uint64]struct{}{}
	var blocks []uint64
	for _, r := range all {
		blocks = r.AppendBlocks(blocks[:0])
		full := r.PromptTokens / BlockTokens
		looked += full
		for _, id := range blocks[:min(full, len(blocks))] {
			if _, ok := seen[id]; !ok {
				break
			}
			hit++
		}
		for _, id := range blocks {
			seen[id] = struct{}{}
		}
	}
	return hit, looked
}

func streamed(all []Request) float64 {
	n := 0.0
	for _, r := range all {
		if r.Stream {
			n++
		}
	}
	return n / float64(len(all))
}

func BenchmarkCustomerService(b *testing.B) {
	b.ReportAllocs()
	var blocks []uint64
	for r := range CustomerService().Source(1).First(b.N) {
		blocks = r.AppendBlocks(blocks[:0])
	}
}
