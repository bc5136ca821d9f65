package trace

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"
)

func TestWindowDoesNotLeak(t *testing.T) {
	got := collect(t, every(time.Second, 100).Window(10*time.Second, 20*time.Second))
	if len(got) != 10 || got[0].PromptTokens != 11 || got[9].PromptTokens != 20 {
		t.Fatalf("%d requests, from %+v", len(got), got[0])
	}
	if got[0].At != 0 || got[9].At != 9*time.Second {
		t.Errorf("arrivals from %v to %v, want the window's own time", got[0].At, got[9].At)
	}
	if rest := collect(t, every(time.Second, 100).Window(90*time.Second, 0)); len(rest) != 10 {
		t.Errorf("open window of the last 10 s holds %d", len(rest))
	}
}

func TestAdjoiningWindowsHoldEachRequestOnce(t *testing.T) {
	law := every(time.Second, 5000).Retimed(Gamma(10, 3), 1)
	n := 0
	for from := time.Duration(0); from < time.Hour; from += time.Minute {
		n += len(collect(t, law.Window(from, from+time.Minute)))
	}
	if n != 5000 {
		t.Errorf("windows hold %d of 5000", n)
	}
}

func TestRateScalesCounts(t *testing.T) {
	for _, k := range []float64{0.25, 1, 3} {
		s := CustomerService().Source(3)
		plain := len(collect(t, s.Window(0, 500*time.Second)))
		scaled := len(collect(t, s.Rate(k).Window(0, seconds(500/k))))
		if d := scaled - plain; d < -1 || d > 1 {
			t.Errorf("× %g: %d requests in a time that holds %d at × 1", k, scaled, plain)
		}
	}
	for _, k := range []float64{0, -1, math.NaN()} {
		if _, err := every(time.Second, 1).Rate(k).Collect(); err == nil {
			t.Errorf("rate × %v passes", k)
		}
	}
}

func TestFirst(t *testing.T) {
	for _, n := range []int{-1, 0, 1, 7} {
		if got := len(collect(t, every(time.Second, 10).First(n))); got != max(n, 0) {
			t.Errorf("First(%d) gives %d", n, got)
		}
	}
	if got := len(collect(t, every(time.Second, 3).First(10))); got != 3 {
		t.Errorf("First(10) of 3 gives %d", got)
	}
}

func TestMergeKeepsTheOrder(t *testing.T) {
	named := func(s Source, model string) Source { return s.Each(func(r *Request) { r.Model = model }) }
	s := Merge(named(every(3*time.Second, 50), "a"), Of(), named(every(2*time.Second, 50), "b"))
	got := collect(t, s)
	if len(got) != 100 || !sorted(got) || got[0].Model != "a" || got[1].Model != "b" {
		t.Errorf("%d requests, sorted %v, first of %q then %q", len(got), sorted(got), got[0].Model, got[1].Model)
	}
	if again := collect(t, s); !reflect.DeepEqual(got, again) {
		t.Error("a second range differs")
	}
	for range s { // leaving early must end what Merge pulls from
		break
	}
}

func TestErrorsComeLastAndPass(t *testing.T) {
	broken := errors.New("broken")
	bad := Source(func(yield func(Request, error) bool) {
		if yield(Request{At: time.Second, PromptTokens: 1}, nil) {
			yield(Request{}, broken)
		}
	})
	for name, s := range map[string]Source{
		"window":  bad.Window(0, time.Hour),
		"rate":    bad.Rate(2),
		"first":   bad.First(5),
		"retimed": bad.Retimed(Poisson(1), 1),
		"shaped":  bad.Shaped(Sine(0.5, time.Minute)),
		"tenants": bad.Tenants([]Weighted{{"a", 1}}, 1),
		"merge":   Merge(bad, every(time.Minute, 3)),
		"merge 2": Merge(fail(broken), every(time.Minute, 3)),
	} {
		if _, err := s.Collect(); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTenantsByWeight(t *testing.T) {
	s := every(time.Second, 20000).Tenants([]Weighted{{"a", 3}, {"never", 0}, {"b", 1}}, 5).Models([]Weighted{{"m", 1}, {"n", 1}}, 5)
	count := map[string]int{}
	for _, r := range collect(t, s) {
		count[r.Tenant]++
		count[r.Tenant+r.Model]++
	}
	near(t, "a", float64(count["a"]), 15000, 0.03)
	near(t, "b", float64(count["b"]), 5000, 0.05)
	near(t, "a on m: tenant and model are independent", float64(count["am"]), 7500, 0.05)
	if count["never"] != 0 {
		t.Error("a weight of 0 was drawn")
	}
	for _, bad := range [][]Weighted{{{"a", 0}}, {{"a", -1}, {"b", 2}}, {{"a", math.NaN()}}, {{"a", math.Inf(1)}}} {
		if _, err := every(time.Second, 1).Tenants(bad, 1).Collect(); err == nil {
			t.Errorf("weights %v pass", bad)
		}
	}
}

func TestWhatBelongsTogetherStaysWithOneTenant(t *testing.T) {
	among := []Weighted{{"a", 1}, {"b", 1}, {"c", 1}}
	tenant := map[string]string{}
	for _, r := range collect(t, CustomerService().Source(1).First(2000).Tenants(among, 9)) {
		if tenant[r.Session] == "" {
			tenant[r.Session] = r.Tenant
		}
		if tenant[r.Session] != r.Tenant {
			t.Fatalf("session %s is of %s and %s", r.Session, tenant[r.Session], r.Tenant)
		}
	}
	shares := Request{PromptTokens: 48, Content: []Segment{{1, 16}, {2, 16}, {3, 16}}}
	first := ""
	for _, r := range collect(t, Of(shares, shares, shares, shares, shares, shares).Tenants(among, 9)) {
		if first == "" {
			first = r.Tenant
		}
		if r.Tenant != first {
			t.Fatal("requests of one prefix have several tenants")
		}
	}
}

// TestSameSeedSameTrace holds for every kind of source.
func TestSameSeedSameTrace(t *testing.T) {
	make := map[string]func(seed uint64) Source{
		"law":      func(seed uint64) Source { return every(time.Second, 500).Retimed(Gamma(2, 2), seed) },
		"tenants":  func(seed uint64) Source { return every(time.Second, 500).Tenants([]Weighted{{"a", 1}, {"b", 1}}, seed) },
		"mooncake": func(seed uint64) Source { return read(t, mooncakeExample, Options{Seed: seed}) },
		"servegen": func(seed uint64) Source { return servegen(t, Options{Seed: seed}) },
		"lengths":  func(seed uint64) Source { return read(t, lengthsExample, Options{Seed: seed, Law: Poisson(1)}) },
	}
	for _, w := range Workloads() {
		make[w.Name] = func(seed uint64) Source { return w.Source(seed).First(500) }
	}
	for name, source := range make {
		one, again, other := collect(t, source(1)), collect(t, source(1)), collect(t, source(2))
		if !reflect.DeepEqual(one, again) {
			t.Errorf("%s: one seed gives two traces", name)
		}
		if reflect.DeepEqual(one, other) {
			t.Errorf("%s: the seed changes nothing", name)
		}
		if !sorted(one) {
			t.Errorf("%s: not in order of arrival", name)
		}
	}
}
