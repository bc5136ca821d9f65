package bench

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// Several workloads are one open loop: each request goes out at its time, in
// its own tenant's name, to the same model.
func TestWorkloadsAtOnce(t *testing.T) {
	backend := &fakellm.Backend{
		Models: func(*fakellm.Request) fakellm.Script {
			return fakellm.Status(200, nil, `{"data":[{"id":"large"},{"id":"small"}]}`)
		},
		Script: func(r *fakellm.Request) fakellm.Script {
			if !r.Stream {
				return fakellm.JSON(2, tick)
			}
			return fakellm.Tokens(2, tick, tick)
		},
	}
	plan := Plan{Workload: "chat,code,summary", Models: []string{}, WarmUp: 3, Duration: 40 * time.Second, Multiplier: 2}
	against(t, backend, plan, good(func(t *testing.T, run *Run) {
		if !slices.Equal(run.Plan.Models, []string{"large"}) {
			t.Errorf("models %q", run.Plan.Models)
		}
		mix := trace.Mix(trace.Workloads())
		want, err := mix.Source(plan.Seed).Rate(2).Window(0, plan.Duration).Collect()
		if err != nil || len(run.Results) != len(want) {
			t.Fatalf("%d requests, want %d; %v", len(run.Results), len(want), err)
		}
		asked := backend.Requests()[len(backend.Requests())-len(want):]
		tenants := map[string]int{}
		for i, r := range run.Results {
			if r.At != want[i].At || r.Late != 0 || r.Workload != want[i].Workload || r.Model != "large" {
				t.Errorf("request %d: %+v, want %+v", i, r, want[i])
			}
			tenants[want[i].Tenant]++
		}
		for i := range asked {
			tenants[asked[i].Header.Get("X-Tenant")]--
		}
		for tenant, left := range tenants {
			if left != 0 || tenant == "" {
				t.Errorf("tenant %q: %d requests too few", tenant, left)
			}
		}
		warm := backend.Requests()[:len(backend.Requests())-len(want)]
		for _, r := range warm {
			if r.Header.Get("X-Tenant") != "" {
				t.Errorf("%s of the warm-up counts for a tenant", r.Path)
			}
		}
		if n := len(warm) - plan.WarmUp; n < 50 || n > len(want)/2 {
			t.Errorf("%d conversations are under way at the start", n)
		}
	}))
}

// The past that warms a cache is what the first turn after the start goes on
// from, and only of conversations that have one.
func TestPasts(t *testing.T) {
	source := trace.Mix(trace.Workloads()).Source(3)
	pasts, err := appendPasts(nil, source)
	if err != nil {
		t.Fatal(err)
	}
	before := map[string]trace.Request{}
	for _, r := range pasts {
		if _, twice := before[r.Session]; twice || r.OutputTokens != 1 || r.Tenant != "" {
			t.Errorf("%+v", r)
		}
		before[r.Session] = r
	}
	for r, err := range source.Window(0, underWay) {
		if err != nil {
			t.Fatal(err)
		}
		p, known := before[r.Session]
		if known && (p.PromptTokens >= r.PromptTokens || !strings.HasPrefix(prompt(&r, 1), prompt(&p, 2))) {
			t.Errorf("turn %d of %s does not go on from its past", r.Turn, r.Session)
		}
		if !known && r.Turn > 1 {
			t.Errorf("turn %d of %s has no past", r.Turn, r.Session)
		}
		if r.Turn == 1 {
			before[r.Session] = trace.Request{Content: r.Content[:1], PromptTokens: 1} // its later turns need none
		}
	}
}

// A tenant that the user names holds for all requests.
func TestTenantOfTheUser(t *testing.T) {
	backend := reply(fakellm.Tokens(2, tick, tick))
	inBubble(t, backend, func(t *testing.T, transport *http.Transport) {
		plan := Plan{Target: "http://target", Models: []string{"m"}, Workload: "chat", Requests: 20}
		b, err := New(plan, http.Header{"X-Tenant": {"acme"}}, transport)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range backend.Requests() {
			if got := r.Header.Values("X-Tenant"); !slices.Equal(got, []string{"acme"}) {
				t.Errorf("tenants %q", got)
			}
		}
	})
}

func TestRateOfWorkloads(t *testing.T) {
	p, err := Plan{Target: "http://x", Models: []string{"m"}, Workload: "chat,summary", Rate: 70, Duration: 100 * time.Second}.checked()
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := p.source()
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.Collect()
	n := map[string]int{}
	for _, r := range all {
		n[r.Workload]++
	}
	if chat, summary := n["customer-service"], n["live-summarisation"]; err != nil || chat < 5000 || chat > 7000 || summary < 800 || summary > 1200 {
		t.Errorf("%v, %v; want about 6000 and 1000", n, err)
	}
}

func TestByWorkload(t *testing.T) {
	result := func(workload string, ttft, e2e time.Duration, o report.Objective) Result {
		return Result{
			Workload: workload, Streamed: true, Tokens: []time.Duration{ttft}, Output: 11, E2E: e2e,
			Outcome: OK, objective: o,
		}
	}
	chat, whole := report.Objective{TTFT: 300 * tick, TPOT: 80 * tick}, report.Objective{E2E: time.Second}
	run := &Run{Plan: Plan{Workload: "chat,summary"}, Results: []Result{
		result("chat", 300*tick, 1100*tick, chat),     // TPOT exactly 80 ms
		result("chat", 301*tick, 1200*tick, chat),     // both missed
		result("summary", 900*tick, 1000*tick, whole), // has no objective of TTFT
		result("chat", 100*tick, 200*tick, chat),
		{Workload: "chat", Outcome: Refused429, Streamed: true, objective: chat},
		{Workload: "summary", Outcome: OK, E2E: 1100 * tick, objective: report.Objective{TTFT: tick, E2E: time.Second}}, // no stream
		{Outcome: OK, E2E: tick},                                                                                        // belongs to none
	}}
	got := Summarise(run, Environment{}).ByWorkload
	if len(got) != 2 || got[0].Name != "chat" || got[0].Requests != 4 || got[0].Served != 3 || got[1].Requests != 2 {
		t.Fatalf("%+v", got)
	}
	for _, row := range []struct {
		of     Workload
		at     int
		metric string
		limit  time.Duration
		judged int
		within float64
		count  int
	}{
		{got[0], 0, "TTFT", 300 * tick, 4, 0.5, 3},
		{got[0], 1, "TPOT", 80 * tick, 4, 0.5, 3},
		{got[1], 0, "E2E", time.Second, 2, 0.5, 2},
	} {
		o := row.of.Objectives[row.at]
		if o.Metric != row.metric || o.Limit != row.limit || o.Judged != row.judged || o.Within != row.within || o.Times.Count != row.count {
			t.Errorf("%s: %+v, want %+v", row.of.Name, o, row)
		}
	}
	var table strings.Builder
	if err := Summarise(run, Environment{}).WriteTable(&table); err != nil || !strings.Contains(table.String(), "TPOT 80ms") || !strings.Contains(table.String(), "50.0%") {
		t.Errorf("%v %s", err, &table)
	}
}
