package app_test

import (
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/admin"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// explained is a configuration whose clients may ask for decisions.
func explained(extra string, addrs ...string) string {
	return strings.Replace(configFor(extra, addrs...), "telemetry: {", "telemetry: {explain: true, ", 1)
}

// asked gets a path of the operator's listener into a wire type.
func asked[T any](g *gateway, path string) (out T) {
	g.t.Helper()
	got := g.operator(path)
	if got.status != 200 {
		g.t.Errorf("%s: %d %s", path, got.status, got.body)
	}
	dec := json.NewDecoder(strings.NewReader(got.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&out); err != nil {
		g.t.Fatalf("%s: %v: %s", path, err, got.body)
	}
	return out
}

func decisionIn(t testing.TB, a answer) (d router.Decision) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.header.Get("X-Firsttoken-Decision")), &d); err != nil {
		t.Fatalf("decision %q: %v", a.header.Get("X-Firsttoken-Decision"), err)
	}
	return d
}

// Who asks gets the decision in front of the answer, and operators find it with
// what became of it.
func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := steady(), steady()
		_, extra := contractFile(t, contract("50ms", "serve_late"))
		g := startGateway(t, explained("defaults: {health: {interval: off}}"+extra, "a:8000", "b:8000"), map[string]http.Handler{"a:8000": a, "b:8000": b})
		got := g.chat(streamBody("m"), "X-Firsttoken-Explain", "1", "X-Tenant", "shop")
		d := decisionIn(t, got)
		served := map[int]string{1: "a", 0: "b"}[a.Count()]
		if got.status != 200 || d.Pick != served || d.Request != got.header.Get("X-Request-Id") || len(d.Candidates) != 2 || d.Candidates[0].Backend != served ||
			d.Policy != "headroom" || d.Reason != "headroom" || d.Contract != "chat" || d.Tenant != "shop" || d.Attempt != 1 || *d.LeftMS != 50 || !(d.Candidates[0].P95 > 0) {
			t.Errorf("%d %+v", got.status, d)
		}
		for _, r := range append(a.Requests(), b.Requests()...) {
			if r.Header.Get("X-Firsttoken-Explain") != "" {
				t.Error("the engine was asked to explain")
			}
		}
		list := asked[admin.Decisions](g, "/decisions?request="+d.Request).Decisions
		if len(list) != 1 || list[0].TTFTMS == nil || *list[0].TTFTMS != 80 || *list[0].DurationMS != 120 || list[0].Outcome != "served" || !list[0].Missed || list[0].Pick != served {
			t.Errorf("%+v", list)
		}
		for query, want := range map[string]int{"?backend=" + served: 1, "?model=m&contract=chat": 1, "?contract=other": 0, "": 1} {
			if list := asked[admin.Decisions](g, "/decisions"+query).Decisions; len(list) != want {
				t.Errorf("%s: %+v", query, list)
			}
		}
		if got := g.chat(plainBody("m"), "X-Firsttoken-Explain", "1"); decisionIn(t, got).Contract != "" {
			t.Errorf("%v", got.header)
		}
		for _, header := range [][]string{nil, {"X-Firsttoken-Explain", "0"}, {"X-Firsttoken-Explain", ""}} {
			if got := g.chat(streamBody("m"), header...).header["X-Firsttoken-Decision"]; got != nil {
				t.Errorf("nobody asked, by %q: %q", header, got)
			}
		}
		if err := g.reload(strings.Replace(g.config, "explain: true, ", "", 1)); err != nil {
			t.Fatal(err)
		}
		got = g.chat(streamBody("m"), "X-Firsttoken-Explain", "1")
		if got.status != 200 || got.header["X-Firsttoken-Decision"] != nil {
			t.Errorf("switched off: %v", got.header)
		}
		if n := len(g.events("server listeners and header limits, telemetry, drain and prediction.samples keep the values the gateway was started with until it is restarted")); n != 0 {
			t.Error("the reload said that it did not take effect")
		}
	})
}

// A retry's record is that of its last attempt, and the failed one is found, too.
func TestExplainRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, preferA(explained(quiet, "a:8000", "b:8000")),
			map[string]http.Handler{"a:8000": down(20 * time.Millisecond), "b:8000": steady()})
		d := decisionIn(t, g.chat(streamBody("m"), "X-Firsttoken-Explain", "1"))
		if d.Attempt != 2 || d.Pick != "b" || d.WaitedMS != 20 || len(d.Candidates) != 1 {
			t.Errorf("%+v", d)
		}
		list := asked[admin.Decisions](g, "/decisions?request="+d.Request).Decisions
		if len(list) != 2 || list[0].Outcome != "served" || list[1].Outcome != "failed" || list[1].Pick != "a" || !list[1].Missed {
			t.Errorf("%+v", list)
		}
	})
}

// A request that waited and was refused has a record of who was closed to it.
func TestExplainShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contract("200ms", "wait, shed"))
		g := startGateway(t, explained(oneByOne+extra, "a:8000"), map[string]http.Handler{"a:8000": prompts(3 * time.Second)})
		var clients sync.WaitGroup
		var first, second answer
		g.shop(&clients, &first)
		g.shop(&clients, &second, "X-Firsttoken-Explain", "1")
		clients.Wait()
		d := decisionIn(t, second)
		if second.status != 429 || d.Pick != "" || d.Reason != "shed_deadline" || d.Outcome != "refused" || d.HeldMS != d.WaitedMS || !(d.HeldMS >= 200) ||
			len(d.Candidates) != 1 || d.Candidates[0].Open || d.Candidates[0].Closed != router.ClosedPending || d.Candidates[0].InFlight != 1 {
			t.Errorf("%d %+v", second.status, d)
		}
		if list := asked[admin.Decisions](g, "/decisions?request="+d.Request).Decisions; len(list) != 1 || !list[0].Missed {
			t.Errorf("%+v", list)
		}
		c := asked[admin.State](g, "/state").Contracts[0]
		if c.Met != 0 || c.Missed != 2 || c.Shed != 1 {
			t.Errorf("%+v", c)
		}
		g.idle()
	})
}

func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contract("1s", "shed"))
		text := configFor(quiet+extra, "a:8000") + "  - name: fixed\n    policy: round-robin\n    backends: [{name: b, url: \"http://b:8000/path\", weight: 3, draining: true}]\n"
		g := startGateway(t, strings.Replace(text, "policy: least-inflight, ", "", 1), map[string]http.Handler{"a:8000": steady()})
		before := asked[admin.State](g, "/state")
		if m := before.Models[0]; m.Backends[0].TTFTMS != nil || m.Backends[0].Requests != 0 || m.Backends[0].PredictedP50MS != nil || m.P50MAPE != nil || before.Contracts[0].Objectives[0].Share != nil {
			t.Errorf("before the first request: %+v", m)
		}
		for range 40 {
			g.chat(streamBody("m"), "X-Tenant", "shop")
			time.Sleep(400 * time.Millisecond)
		}
		open := g.stream(t.Context(), "X-Tenant", "shop")
		s := asked[admin.State](g, "/state")
		readAnswer(open)
		if !s.Ready || s.Draining || s.Version != "test" || s.Revision != 1 || s.At.IsZero() || math.Abs(s.UptimeS-40*0.52) > 1e-6 || len(s.Models) != 2 {
			t.Errorf("%+v", s)
		}
		m := s.Models[0]
		if m.Name != "m" || m.Policy != "headroom" || *m.Estimator != "linear" || math.Abs(*m.ArrivalRate-2) > 0.2 || !(*m.ArrivalCV < 0.5) || m.InFlight != 1 || m.Held != 0 || !(*m.P50MAPE < 0.5) || !(*m.P95Coverage > 0.8) {
			t.Errorf("%+v", m)
		}
		b := m.Backends[0]
		if b.Name != "a" || b.Host != "a:8000" || b.State != "up" || b.Readiness != "ready" || b.Breaker != "closed" || b.InFlight != 1 || b.Weight != 1 || b.Penalty != 0 ||
			b.Running != nil || b.KVUse != nil || b.ScrapeAgeMS != nil || !(*b.TTFTMS > 70 && *b.TTFTMS <= 80) || b.Requests != 40 || *b.ActualMS != 80 ||
			!(*b.PredictedP50MS > 40 && *b.PredictedP50MS < 120) || !(*b.PredictedP95MS >= *b.PredictedP50MS) || !(*b.WithinP95 > 0.8) || !(*b.P50Error < 0.5) {
			text, _ := json.Marshal(b)
			t.Errorf("%s", text)
		}
		fixed := s.Models[1]
		if fixed.Policy != "round-robin" || fixed.Backends[0].Host != "b:8000" || fixed.Backends[0].State != "draining" || fixed.Backends[0].Weight != 3 || fixed.Backends[0].Requests != 0 {
			t.Errorf("%+v", fixed)
		}
		c := s.Contracts[0]
		if len(s.Contracts) != 1 || c.Name != "chat" || c.Criticality != "critical" || c.State != "ok" || c.Met != 40 || c.Missed != 0 || c.Shed != 0 {
			t.Errorf("%+v", c)
		}
		o := c.Objectives[0]
		if o.ID != "ttft-p95" || o.Text != "P95 TTFT ≤ 1s" || o.Target != 0.95 || *o.Share != 1 || o.BudgetLeft != 1 || len(o.Burn) != 4 || o.Burn["5m"] != 0 || o.State != "ok" || o.Reason == "" {
			t.Errorf("%+v", o)
		}
		if len(c.Backends) != 1 || c.Backends[0].Name != "a" || !(c.Backends[0].Compliance > 0.95) || c.Backends[0].Weight != 1 {
			t.Errorf("%+v", c.Backends)
		}
		if err := g.reload(g.config + "\n# again"); err != nil {
			t.Fatal(err)
		}
		if s := asked[admin.State](g, "/state"); s.Revision != 2 || s.Contracts[0].Met != 41 || s.Models[0].Backends[0].Requests != 41 {
			t.Errorf("after a reload: %+v", s)
		}
	})
}

func TestStateWithoutPrediction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor(quiet+"\nprediction: {enabled: false}", "a:8000"), map[string]http.Handler{"a:8000": steady()})
		g.chat(streamBody("m"))
		if m := asked[admin.State](g, "/state").Models[0]; m.Estimator != nil || m.ArrivalRate != nil || m.Backends[0].Requests != 0 || !(*m.Backends[0].TTFTMS > 70) {
			t.Errorf("%+v", m)
		}
		if len(asked[admin.Decisions](g, "/decisions").Decisions) != 1 || len(asked[admin.Evaluations](g, "/evaluations").Evaluations) != 0 {
			t.Error("decisions or evaluations")
		}
		if got := g.operator("/decisions?limit=x"); got.status != 400 || !strings.Contains(got.body, `"param":"limit"`) {
			t.Errorf("%d %s", got.status, got.body)
		}
	})
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contract("100ms", ""))
		g := startGateway(t, strings.Replace(configFor(oneByOne+extra, "a:8000"), "telemetry: {", "telemetry: {log_level: error, ", 1),
			map[string]http.Handler{"a:8000": prompts(500 * time.Millisecond)})
		start := asked[admin.Events](g, "/events")
		if n := len(start.Events); n == 0 || start.Events[n-1].Message != "serving" || start.Events[n-1].Fields["models"] != "1" || start.Next != uint64(n) {
			t.Errorf("%+v", start)
		}
		for range 50 {
			g.chat(streamBody("m"), "X-Tenant", "shop")
			time.Sleep(500 * time.Millisecond)
		}
		later := asked[admin.Events](g, "/events?since=1").Events
		found := false
		for i, e := range later {
			if e.Seq != uint64(i+2) {
				t.Errorf("number %d is %+v", i, e)
			}
			if e.Message == "contract violated" && e.Level == "warn" && e.Fields["contract"] == "chat" && e.Fields["backend"] == "a" && e.Fields["windows"] == "3" {
				found = true
			}
		}
		if !found {
			t.Errorf("no violation among %+v", later)
		}
		synctest.Wait()
		if got := asked[admin.Evaluations](g, "/evaluations?limit=1").Evaluations; len(got) != 1 || got[0].Contract != "chat" {
			t.Errorf("%+v", got)
		}
		if s := asked[admin.State](g, "/state").Contracts[0]; s.State != "breaching" || s.Missed != 50 || s.Backends[0].Weight >= 1 || s.Backends[0].ViolatedWindows < 3 {
			t.Errorf("%+v", s)
		}
	})
}
