package telemetry_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

// scrapeTwice gives a backend every signal there is.
func scrapeTwice(t testing.TB, b *backends.Backend) {
	t.Helper()
	for i, text := range []string{
		"process_cpu_seconds_total 10\nvllm:prefix_cache_hits_total 0\nvllm:prefix_cache_queries_total 0\n",
		"process_cpu_seconds_total 13\nvllm:prefix_cache_hits_total 1\nvllm:prefix_cache_queries_total 4\n" +
			"vllm:num_requests_running 7\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n",
	} {
		s, err := backends.ParseSignals(backends.VLLM, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		s.At = t0.Add(time.Duration(2*i-5) * time.Second)
		b.SetSignals(s)
	}
}

func TestFleet(t *testing.T) {
	reg := prometheus.NewRegistry()
	now := t0
	all := fleet("a", "b")
	reg.MustRegister(telemetry.NewFleetCollector(func() []*backends.Backend { return all }, func() time.Time { return now }))
	want := func(values map[string]float64) {
		t.Helper()
		got := series(t, reg)
		for name, v := range values {
			if g, ok := got["firsttoken_"+name]; !ok || g != v {
				t.Errorf("%s is %v (%v), want %v", name, g, ok, v)
			}
		}
	}
	want(map[string]float64{
		`backend_info{backend="a",cuda="12.8",engine="vllm",gpu="H100",quantization="",topology=""}`: 1,
		`backend_in_flight{backend="a"}`: 0, `backend_up{backend="a"}`: 1, `backend_ejected{backend="a"}`: 0,
		`backend_draining{backend="a"}`: 0, `backend_breaker_state{backend="a"}`: 0, `backend_weight{backend="a"}`: 2,
		`backend_failure_penalty{backend="a"}`: 0, `backend_held_prefills{backend="a"}`: 0,
		`backend_readiness{backend="a",state="ready"}`: 1, `backend_readiness{backend="a",state="cold"}`: 0,
	})
	for name := range series(t, reg) {
		if strings.HasPrefix(name, "firsttoken_engine_") {
			t.Errorf("%s, although nothing is known of any engine", name)
		}
	}
	scrapeTwice(t, all[0])
	want(map[string]float64{
		`engine_requests_running{backend="a"}`: 7, `engine_requests_waiting{backend="a"}`: 0, `engine_kv_use_ratio{backend="a"}`: .5,
		`engine_prefix_hit_ratio{backend="a"}`: .25, `engine_cpu_cores{backend="a"}`: 1.5, `engine_signals_age_seconds{backend="a"}`: 3,
	})
	if got := about(t, reg, "b"); len(got) != 16 {
		t.Errorf("%d series about b, want 16: %v", len(got), got)
	}
	s := backends.UnknownSignals()
	s.At, s.Running = t0, 1
	all[0].SetSignals(s)
	now = t0.Add(10 * time.Second)
	for range 3 {
		all[0].Probe(now, false)
	}
	want(map[string]float64{
		`engine_requests_running{backend="a"}`: 1, `engine_signals_age_seconds{backend="a"}`: 10, `backend_up{backend="a"}`: 0,
	})
	for name := range series(t, reg) {
		for _, gone := range []string{"waiting", "kv_use", "prefix_hit", "cpu"} {
			if strings.Contains(name, gone) {
				t.Errorf("%s is shown although the last scrape did not say", name)
			}
		}
	}
	all = all[1:] // a reload takes a away
	if got := about(t, reg, "a"); len(got) != 0 {
		t.Errorf("a is still there: %v", got)
	}
}

func TestFleetLoadAndStates(t *testing.T) {
	reg := prometheus.NewRegistry()
	pool := backends.NewFleet().Pools([]backends.PoolSpec{{Model: "m", Backends: []backends.Spec{
		*specOf("a"), *specOf("b"), *draining(specOf("c")),
	}}})[0]
	reg.MustRegister(telemetry.NewFleetCollector(func() []*backends.Backend { return pool.Backends }, now))
	claim := func(name string) *backends.Claim {
		c, err := pool.Claim(t0, backends.Work{PromptTokens: 50}, nil, func(c []backends.Candidate) int {
			for i := range c {
				if c[i].Backend.Name == name {
					return i
				}
			}
			t.Fatalf("no %s", name)
			return 0
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	claim("a")
	claim("a").FirstToken(t0)
	claim("a").End(t0, backends.Outcome{Class: backends.Dropped, ClientLeft: true})
	for range 5 {
		claim("b").End(t0, backends.Outcome{Class: backends.Fault})
	}
	got := series(t, reg)
	for name, want := range map[string]float64{
		`in_flight{backend="a"}`: 2, `prefilling{backend="a"}`: 1, `prefill_tokens{backend="a"}`: 50, `held_prefills{backend="a"}`: 1,
		`ejected{backend="b"}`: 1, `failure_penalty{backend="b"}`: 5, `breaker_state{backend="b"}`: 2, `breaker_state{backend="a"}`: 0,
		`draining{backend="c"}`: 1, `draining{backend="a"}`: 0,
	} {
		if v, ok := got["firsttoken_backend_"+name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
}

func specOf(name string) *backends.Spec {
	s := fleet(name)[0].Spec
	s.Health = backends.HealthRules{BreakerFailures: 5, BreakerOpen: time.Hour}
	return &s
}

func draining(s *backends.Spec) *backends.Spec {
	s.Draining = true
	return s
}
