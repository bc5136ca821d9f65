package app_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// contractOf is a contract of tenant and name, with the keys of its spec.
func contractOf(tenant string, keys ...string) string {
	return "apiVersion: firsttoken.dev/v1\nkind: SLAContract\nmetadata: {name: " + tenant + "}\nspec:\n  match: {tenants: [" + tenant + "]}\n  " +
		strings.Join(keys, "\n  ") + "\n"
}

const withinMinute = "objectives: [{metric: ttft, percentile: 95, threshold: 1m}]"

// offTick is a TTFT of which no small multiple is one of the 20 ms after which
// the gateway looks again at who is held: two looks at once may let in anybody.
const offTick = 101 * time.Millisecond

// Of those who wait, the higher criticality goes first, then the higher priority.
func TestPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := promising(t, contractOf("low", withinMinute, "criticality: critical")+"---\n"+
			contractOf("high", withinMinute, "criticality: critical", "priority: 10")+"---\n"+
			contractOf("urgent", withinMinute, "priority: 1")+"---\n"+
			contractOf("patient", withinMinute, "priority: -1"), prompts(offTick))
		var clients sync.WaitGroup
		for _, tenant := range []string{"first", "patient", "nobody", "urgent", "low", "high"} {
			clients.Go(func() { g.chat(fillingBody("m"), "X-Tenant", tenant) })
			synctest.Wait()
		}
		clients.Wait()
		g.idle()
		held := map[any]float64{}
		for _, line := range g.access()[1:] {
			held[line["contract"]] = heldFor(line)
		}
		for i, order := 1, []any{"high", "low", "urgent", nil, "patient"}; i < len(order); i++ {
			if held[order[i-1]] > held[order[i]] {
				t.Errorf("%v was held for longer than %v: %v", order[i-1], order[i], held)
			}
		}
		if held["high"] >= held["patient"] {
			t.Errorf("nobody had to wait: %v", held)
		}
	})
}

// heldFor is for how many milliseconds the request of a line was held.
func heldFor(line map[string]any) float64 {
	ms, _ := line["held_ms"].(float64)
	return ms
}

// A request that can't be answered before its visible limit is not served late.
func TestVisibleLimit(t *testing.T) {
	const late, limited = "objectives: [{metric: ttft, percentile: 95, threshold: 200ms}]", "visible_limit: 800ms"
	for name, row := range map[string]struct {
		contract string
		engine   time.Duration // its TTFT
		status   int
		reason   string
		held     float64 // ms
	}{
		"late but in the limit":     {contractOf("shop", late, limited, "at_risk: [serve_late]"), 300 * time.Millisecond, 200, "ok", 220},
		"would come too late":       {contractOf("shop", late, limited, "at_risk: [serve_late]"), time.Second, 429, "shed_visible_limit", 220},
		"no actions":                {contractOf("shop", late, limited), time.Second, 429, "shed_visible_limit", 220},
		"shed by its deadline":      {contractOf("shop", late, limited, "at_risk: [shed]"), time.Second, 429, "shed_deadline", 220},
		"the limit is all there is": {contractOf("shop", "objectives: [{metric: availability, target: 99%}]", limited, "at_risk: [wait, shed]"), time.Second, 429, "shed_visible_limit", 820},
		"the limit and serve late":  {contractOf("shop", "objectives: [{metric: availability, target: 99%}]", limited, "at_risk: [serve_late]"), time.Second, 429, "shed_visible_limit", 820},
		"without a limit":           {contractOf("shop", late, "at_risk: [serve_late]"), time.Second, 200, "ok", 220},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := promising(t, row.contract, prompts(row.engine))
				for range 10 { // it is known
					g.chat(fillingBody("m"))
				}
				var clients sync.WaitGroup
				clients.Go(func() { g.chat(fillingBody("m")) })
				synctest.Wait()
				got := g.chat(fillingBody("m"), "X-Tenant", "shop")
				if got.status != row.status {
					t.Errorf("status %d: %s", got.status, got.body)
				}
				clients.Wait()
				if row.reason == "shed_visible_limit" {
					g.want(`firsttoken_shed_total{contract="shop",model="m",reason="visible_limit"}`, "1")
					if e := errorIn(t, got.body); e.Code != row.reason || got.header.Get("X-Firsttoken-Shed-Reason") != "visible_limit" || got.header.Get("Retry-After") == "" {
						t.Errorf("%+v %v", e, got.header)
					}
				}
				g.idle()
				for _, line := range g.access() {
					if line["contract"] == "shop" && (line["reason"] != row.reason || line["held_ms"] != row.held) {
						t.Errorf("%v after %v ms, want %s after %v", line["reason"], line["held_ms"], row.reason, row.held)
					}
				}
			})
		})
	}
}

// That another engine would be quick enough helps nobody while it takes no more.
func TestVisibleLimitAtTheOtherEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contractOf("shop", "objectives: [{metric: ttft, percentile: 95, threshold: 200ms}]", "visible_limit: 800ms", "at_risk: [serve_late]"))
		text := strings.Replace(configFor(oneByOne+extra, "slow:8000", "quick:8000"), "name: quick,", "name: quick, limits: {max_in_flight: 1},", 1)
		slow, quick := prompts(3*time.Second), playing(fakellm.Reply(50, 100*time.Millisecond, 100*time.Millisecond)...)
		g := startGateway(t, text, map[string]http.Handler{"slow:8000": slow, "quick:8000": quick})
		var clients sync.WaitGroup
		both := func() {
			for range 2 {
				clients.Go(func() { g.chat(fillingBody("m")) })
				synctest.Wait()
			}
		}
		for range 60 { // they are known
			both()
			clients.Wait()
		}
		both()
		if got := g.chat(fillingBody("m"), "X-Tenant", "shop"); got.status != 429 || got.header.Get("X-Firsttoken-Shed-Reason") != "visible_limit" {
			t.Errorf("status %d, %v", got.status, got.header)
		}
		clients.Wait()
		if slow.Count() != 61 || quick.Count() != 61 {
			t.Errorf("%d and %d requests", slow.Count(), quick.Count())
		}
		g.idle()
	})
}

// Answers are counted by whether they came within the visible limit. One that
// finds an engine free is served whatever is expected of it.
func TestFirstTokensPastTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ttft := 300 * time.Millisecond
		engine := &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script { return fakellm.Reply(2, ttft, 0) }}
		g := promising(t, contractOf("shop", "objectives: [{metric: ttft, percentile: 95, threshold: 200ms}]", "visible_limit: 800ms"), engine)
		g.want(`firsttoken_contract_first_tokens_total{contract="shop",within_limit="false"}`, "0")
		g.chat(streamBody("m"), "X-Tenant", "shop")
		ttft = time.Second
		for range 2 {
			g.chat(streamBody("m"), "X-Tenant", "shop")
		}
		g.chat(plainBody("m"), "X-Tenant", "shop") // has no first token that is seen
		g.want(`firsttoken_contract_first_tokens_total{contract="shop",within_limit="true"}`, "1")
		g.want(`firsttoken_contract_first_tokens_total{contract="shop",within_limit="false"}`, "2")
		g.idle()
	})
}

// A retry that would answer past the visible limit is not tried.
func TestNoRetryPastTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contractOf("shop", "objectives: [{metric: ttft, percentile: 95, threshold: 200ms}]", "visible_limit: 800ms"))
		a := playing(fakellm.Wait(900*time.Millisecond), fakellm.Reset())
		b := prompts(100 * time.Millisecond)
		g := startGateway(t, preferA(configFor(oneByOne+extra, "a:8000", "b:8000")), map[string]http.Handler{"a:8000": a, "b:8000": b})
		if got := g.chat(streamBody("m"), "X-Tenant", "shop"); got.status != 502 || b.Count() != 0 {
			t.Errorf("status %d, %d requests at the other", got.status, b.Count())
		}
		g.want(`firsttoken_retries_denied_total{model="m",why="deadline"}`, "1")
		if got := g.chat(streamBody("m")); got.status != 200 || b.Count() != 1 {
			t.Errorf("without a limit: status %d, %d requests at the other", got.status, b.Count())
		}
		g.idle()
	})
}

// A retry that was held until its visible limit had passed is not sent.
func TestNoRetryHeldPastTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contractOf("shop", "objectives: [{metric: availability, target: 99%}]", "visible_limit: 800ms"))
		a := playing(fakellm.Wait(50*time.Millisecond), fakellm.Reset())
		b := prompts(3 * time.Second)
		g := startGateway(t, preferA(configFor(oneByOne+extra, "a:8000", "b:8000")), map[string]http.Handler{"a:8000": a, "b:8000": b})
		var clients sync.WaitGroup
		clients.Go(func() { g.chat(fillingBody("m")) }) // fails at a, and then fills b
		time.Sleep(100 * time.Millisecond)
		if b.Count() != 1 {
			t.Fatalf("b has %d requests", b.Count())
		}
		if got := g.chat(fillingBody("m"), "X-Tenant", "shop"); got.status != 502 {
			t.Errorf("status %d", got.status)
		}
		clients.Wait()
		if b.Count() != 1 {
			t.Errorf("b got a request %v after its limit had passed", b.Count())
		}
		g.idle()
	})
}

// A contract's warm_up calls in a backend as well when the others take no more.
func TestStandbyIsCalledInWhenOthersAreFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contract("200ms", "warm_up, shed"))
		text := configFor("defaults: {policy: least-inflight, health: {interval: off}}"+extra+"warm_up: {max_prompt: 64, repeat: 1}", "a:8000", "b:8000")
		text = strings.Replace(text, "name: a,", "name: a, limits: {max_in_flight: 1},", 1)
		text = strings.Replace(text, "name: b,", "name: b, standby: true,", 1)
		g := startGateway(t, text, map[string]http.Handler{"a:8000": prompts(10 * time.Second), "b:8000": prompts(100 * time.Millisecond)})
		var clients sync.WaitGroup
		clients.Go(func() { g.chat(streamBody("m")) })
		synctest.Wait()
		if got := g.chat(streamBody("m"), "X-Tenant", "shop"); got.status < 429 {
			t.Errorf("status %d", got.status)
		}
		time.Sleep(2 * time.Second)
		g.want(`firsttoken_standby_calls_total{backend="b"}`, "1")
		if got := g.chat(streamBody("m"), "X-Tenant", "shop"); got.status != 200 {
			t.Errorf("status %d once b is warm: %s", got.status, got.body)
		}
		clients.Wait()
		g.idle()
	})
}

// A contract's warm_up calls in a backend that stands by: it is warmed up, takes
// requests, and stands by again once nobody was at risk for a while.
func TestStandbyIsCalledIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contract("200ms", "warm_up, serve_late"))
		a, b := prompts(time.Second), prompts(100*time.Millisecond)
		text := configFor(oneByOne+extra+"warm_up: {max_prompt: 64, repeat: 1, standby_after: 2m}", "a:8000", "b:8000")
		text = strings.Replace(text, "name: b,", "name: b, standby: true,", 1)
		g := startGateway(t, text, map[string]http.Handler{"a:8000": a, "b:8000": b})
		var mu sync.Mutex
		var asked []string
		g.app.OnWarmUp(func(model string) { // by several requests at once
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, model)
		})
		crowd := func() {
			var clients sync.WaitGroup
			for range 4 {
				clients.Go(func() { g.chat(fillingBody("m"), "X-Tenant", "shop") })
			}
			clients.Wait()
		}
		g.chat(streamBody("m"))
		g.want(`firsttoken_backend_readiness{backend="b",state="standby"}`, "1")
		g.want(`firsttoken_standby_calls_total{backend="b"}`, "")
		if b.Count() != 0 {
			t.Fatalf("b stands by and got %d requests", b.Count())
		}
		crowd()
		time.Sleep(time.Second)
		g.want(`firsttoken_backend_readiness{backend="b",state="ready"}`, "1")
		g.want(`firsttoken_standby_calls_total{backend="b"}`, "1")
		if b.Count() < 1 || len(asked) < 3 {
			t.Errorf("b got %d prompts; warm-ups asked for: %v", b.Count(), asked)
		}
		before := b.Count()
		crowd()
		if b.Count() == before {
			t.Error("b is in rotation and gets nothing")
		}
		time.Sleep(3 * time.Minute)
		g.want(`firsttoken_backend_readiness{backend="b",state="standby"}`, "1")
		before = b.Count()
		g.chat(streamBody("m"))
		if b.Count() != before {
			t.Error("b stands by again and gets requests")
		}
		for _, msg := range []string{"standby backend called in", "backend stands by again"} {
			if got := g.events(msg); len(got) != 1 || got[0]["backend"] != "b" {
				t.Errorf("%s: %v", msg, got)
			}
		}
	})
}

// What a contract's burst does not cover is let in after the others of its
// criticality, and before those of a lower one.
func TestOverBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := promising(t, contractOf("shop", withinMinute, "burst: 30%", "priority: 5")+"---\n"+
			contractOf("calm", withinMinute, "priority: -5")+"---\n"+
			contractOf("low", withinMinute, "criticality: sheddable"), prompts(offTick))
		for range 700 { // 1 a second is usual
			g.chat(streamBody("m"), "X-Tenant", "shop")
			time.Sleep(880 * time.Millisecond) // and 111 ms for the answer
		}
		g.want(`firsttoken_contract_over_burst_total{contract="shop"}`, "0")
		time.Sleep(time.Minute)
		var clients sync.WaitGroup
		for i := range 15 {
			tenant := "shop"
			switch i {
			case 13:
				tenant = "low"
			case 14:
				tenant = "calm"
			}
			clients.Go(func() { g.chat(streamBody("m"), "X-Tenant", tenant) })
			synctest.Wait()
		}
		for range 2 {
			clients.Go(func() { g.chat(streamBody("m"), "X-Tenant", "shop") })
			synctest.Wait()
		}
		clients.Wait()
		over := g.number(`firsttoken_contract_over_burst_total{contract="shop"}`)
		g.idle()
		marked := 0.0
		least, most := map[any]float64{}, map[any]float64{}
		for _, line := range g.access()[700:] {
			who := line["contract"]
			if line["over_burst"] == true {
				who, marked = "over", marked+1
			}
			if _, ok := least[who]; !ok {
				least[who] = heldFor(line)
			}
			least[who], most[who] = min(least[who], heldFor(line)), max(most[who], heldFor(line))
		}
		// Of 15 at once 12 or 13 are covered: the rate was a little above 1 a second.
		if over != marked || over < 2 || over > 3 {
			t.Errorf("%v over, %v in the log", over, marked)
		}
		for i, order := 1, []any{"shop", "calm", "over", "low"}; i < len(order); i++ {
			if most[order[i-1]] > least[order[i]] {
				t.Errorf("%v was held for up to %v ms, %v for %v ms only", order[i-1], most[order[i-1]], order[i], least[order[i]])
			}
		}
	})
}

// Without a burst nothing is limited.
func TestNoBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := promising(t, contractOf("shop", withinMinute), prompts(time.Millisecond))
		for range 620 {
			g.chat(streamBody("m"), "X-Tenant", "shop")
			time.Sleep(time.Second)
		}
		for range 100 {
			g.chat(streamBody("m"), "X-Tenant", "shop")
		}
		g.want(`firsttoken_contract_over_burst_total{contract="shop"}`, "")
		for _, line := range g.access() {
			if line["over_burst"] != nil {
				t.Fatalf("line %v", line)
			}
		}
	})
}

// A drift over turns is told once, with its numbers.
func TestTurnsDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &fakellm.Backend{Script: func(r *fakellm.Request) fakellm.Script {
			ttft := 100 * time.Millisecond
			if strings.Count(string(r.Body), `"user"`) == 3 {
				ttft = 200 * time.Millisecond
			}
			return fakellm.Reply(1, ttft, 0)
		}}
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": engine})
		third := strings.Replace(streamBody("m"), `"messages":[`, `"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},`, 1)
		for range 60 {
			g.chat(streamBody("m"))
			g.chat(strings.Replace(streamBody("m"), `"stream":true`, `"stream":false`, 1)) // has no first token that is seen
		}
		for range 60 {
			g.chat(third)
		}
		g.want(`firsttoken_ttft_turn_drifts_total{model="m"}`, "1")
		events := g.events("time to first token drifts over turns")
		if len(events) != 1 || events[0]["model"] != "m" || events[0]["turn"] != 3.0 {
			t.Fatalf("events %v", events)
		}
		if ratio, _ := events[0]["ratio"].(float64); ratio < 1.9 || ratio > 2.1 {
			t.Errorf("event %v", events[0])
		}
	})
}
