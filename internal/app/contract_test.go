package app_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// oneByOne are defaults under which an engine gets one prompt at a time.
const oneByOne = "defaults: {admission: {pending_tokens: 1}, health: {interval: off, max_ejected: 0, breaker_failures: 1000000}}"

// contract is a contract file: it promises a TTFT to tenant shop.
func contract(ttft, atRisk string) string {
	if atRisk != "" {
		atRisk = "  at_risk: [" + atRisk + "]\n"
	}
	return `apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: chat}
spec:
  match: {tenants: [shop]}
  objectives: [{metric: ttft, percentile: 95, threshold: ` + ttft + `}]
  criticality: critical
` + atRisk
}

// contractFile writes a contract file and returns the configuration of it.
func contractFile(t testing.TB, text string) (path, extra string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "contracts.yaml")
	writeFile(t, path, text)
	return path, "\ncontracts: {files: [" + path + "]}\n"
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// prompts is an engine whose first token takes ttft.
func prompts(ttft time.Duration) *fakellm.Backend {
	return playing(fakellm.Reply(2, ttft, 10*time.Millisecond)...)
}

// promising is a gateway with a contract and engine a, which gets one prompt at a time.
func promising(t testing.TB, text string, engine *fakellm.Backend) *gateway {
	t.Helper()
	_, extra := contractFile(t, text)
	return startGateway(t, strings.Replace(configFor(oneByOne+extra, "a:8000"), "server: {", "server: {debug_headers: true, ", 1),
		map[string]http.Handler{"a:8000": engine})
}

// shop posts a stream of tenant shop in the background.
func (g *gateway) shop(clients *sync.WaitGroup, got *answer, header ...string) {
	g.t.Helper()
	clients.Go(func() { *got = g.chat(fillingBody("m"), append(header, "X-Tenant", "shop")...) })
	synctest.Wait()
}

// fillingBody is a streamed chat request whose prompt alone closes an engine under
// oneByOne, to those as well that may join others.
func fillingBody(model string) string {
	return strings.Replace(streamBody(model), "hi", strings.Repeat("some more words to read ", 20), 1)
}

// idle fails the test if anything is still counted as under way.
func (g *gateway) idle() {
	g.t.Helper()
	synctest.Wait()
	for line := range strings.SplitSeq(g.metrics(), "\n") {
		for _, name := range []string{"firsttoken_held_requests", "firsttoken_requests_in_flight", "firsttoken_backend_in_flight", "firsttoken_backend_prefill"} {
			if strings.HasPrefix(line, name) && !strings.HasSuffix(line, " 0") {
				g.t.Errorf("still under way: %s", line)
			}
		}
	}
}

// outcomes are those of contract chat so far.
func (g *gateway) outcomes() (met, missed int) {
	g.t.Helper()
	count := func(met string) int {
		n := g.number(`firsttoken_contract_outcomes_total{contract="chat",met="` + met + `",objective="ttft-p95"}`)
		if math.IsNaN(n) {
			return 0
		}
		return int(n)
	}
	return count("true"), count("false")
}

func (g *gateway) wantOutcomes(met, missed int) {
	g.t.Helper()
	if gotMet, gotMissed := g.outcomes(); gotMet != met || gotMissed != missed {
		g.t.Errorf("%d met and %d missed, want %d and %d", gotMet, gotMissed, met, missed)
	}
}

func TestHeldThenServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := promising(t, contract("1s", "wait, shed"), prompts(300*time.Millisecond))
		var clients sync.WaitGroup
		var first, second answer
		g.shop(&clients, &first)
		g.shop(&clients, &second)
		g.want(`firsttoken_held_requests{model="m"}`, "1")
		clients.Wait()
		if first.status != 200 || second.status != 200 || second.header.Get("X-Firsttoken-Held-Ms") != "300" || first.header.Get("X-Firsttoken-Held-Ms") != "" ||
			second.header.Get("X-Firsttoken-Contract") != "chat" {
			t.Errorf("%d %v, %d %v", first.status, first.header, second.status, second.header)
		}
		g.want(`firsttoken_held_seconds_count{model="m"}`, "1")
		g.want(`firsttoken_held_seconds_sum{model="m"}`, "0.3")
		g.want(`firsttoken_ttft_by_turn_seconds_count{model="m",turn="1"}`, "2")
		g.want(`firsttoken_contract_state{contract="chat",state="no_data"}`, "1")
		g.want(`firsttoken_contract_budget_remaining_ratio{contract="chat"}`, "1")
		g.wantOutcomes(2, 0)
		g.idle()
		lines := g.access()
		for i, want := range []map[string]any{
			{"ttft_ms": 300.0, "held_ms": nil, "contract": "chat", "objective_met": true, "deadline_ms": 1000.0, "class": "critical", "tenant": "shop", "decision": "headroom"},
			{"ttft_ms": 600.0, "upstream_ttft_ms": 300.0, "held_ms": 300.0, "contract": "chat", "objective_met": true, "deadline_ms": 1000.0},
		} {
			for key, value := range want {
				if lines[i][key] != value {
					t.Errorf("line %d: %s is %v, want %v", i, key, lines[i][key], value)
				}
			}
		}
	})
}

func TestShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := promising(t, contract("200ms", "warm_up, wait, shed"), prompts(3*time.Second))
		var warmed []string
		g.app.OnWarmUp(func(model string) { warmed = append(warmed, model) })
		var clients sync.WaitGroup
		var first, second answer
		g.shop(&clients, &first)
		start := time.Now()
		g.shop(&clients, &second)
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		if second.status != 429 {
			t.Fatalf("status %d after %v", second.status, time.Since(start))
		}
		after, err := strconv.Atoi(second.header.Get("Retry-After"))
		if err != nil || after < 1 || after > 8 {
			t.Errorf("Retry-After %q", second.header.Get("Retry-After"))
		}
		if e := errorIn(t, second.body); e.Type != "rate_limit_error" || e.Code != "shed_deadline" || second.header.Get("X-Firsttoken-Shed-Reason") != "deadline" {
			t.Errorf("%+v %v", e, second.header)
		}
		clients.Wait()
		if first.status != 200 || len(warmed) != 1 || warmed[0] != "m" {
			t.Errorf("the first got %d; warmed up: %v", first.status, warmed)
		}
		g.want(`firsttoken_shed_total{contract="chat",model="m",reason="deadline"}`, "1")
		g.want(`firsttoken_requests_total{code="429",endpoint="chat_completions",model="m",reason="shed_deadline"}`, "1")
		g.wantOutcomes(0, 2)
		g.idle()
		for _, line := range g.access() {
			if line["status"] == 429.0 && (line["reason"] != "shed_deadline" || line["held_ms"] != 220.0 || line["objective_met"] != false || line["backend"] != "") {
				t.Errorf("line %v", line)
			}
		}
	})
}

// Who was promised nothing, or is to be served late, is not shed.
func TestServedLate(t *testing.T) {
	for name, row := range map[string]struct {
		contract string
		header   []string
		held     float64 // ms
	}{
		"serve late":         {contract("200ms", "wait, serve_late"), []string{"X-Tenant", "shop"}, 220},
		"no actions":         {contract("200ms", ""), []string{"X-Tenant", "shop"}, 220},
		"own headers only":   {contract("200ms", "shed"), []string{"X-Slo-Ttft-Ms", "100"}, 120},
		"nothing was agreed": {contract("200ms", "shed"), nil, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := promising(t, row.contract, prompts(time.Second))
				var clients sync.WaitGroup
				clients.Go(func() { g.chat(fillingBody("m")) })
				synctest.Wait()
				if got := g.chat(fillingBody("m"), row.header...); got.status != 200 {
					t.Errorf("status %d: %s", got.status, got.body)
				}
				clients.Wait()
				if line := g.access()[1]; line["held_ms"] != row.held {
					t.Errorf("held for %v ms, want %v", line["held_ms"], row.held)
				}
			})
		})
	}
}

// The bound on who waits holds for everybody.
func TestShedFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.Replace(oneByOne, "pending_tokens: 1", "pending_tokens: 1, max_held: 1", 1)
		g := startGateway(t, configFor(text, "a:8000"), map[string]http.Handler{"a:8000": prompts(time.Second)})
		var clients sync.WaitGroup
		for range 2 {
			clients.Go(func() {
				if got := g.chat(streamBody("m")); got.status != 200 {
					t.Errorf("status %d", got.status)
				}
			})
			synctest.Wait()
		}
		got := g.chat(streamBody("m"))
		if e := errorIn(t, got.body); got.status != 429 || e.Code != "shed_full" || got.header.Get("X-Firsttoken-Shed-Reason") != "full" || got.header.Get("Retry-After") != "1" {
			t.Errorf("%d %+v %v", got.status, e, got.header)
		}
		clients.Wait()
		g.want(`firsttoken_shed_total{contract="",model="m",reason="full"}`, "1")
		g.idle()
	})
}

func TestClientLeavesWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := prompts(time.Second)
		g := promising(t, contract("10s", "shed"), engine)
		var clients sync.WaitGroup
		var first answer
		g.shop(&clients, &first)
		ctx, leave := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer leave()
		if _, err := g.post(ctx, "/v1/chat/completions", streamBody("m"), "X-Tenant", "shop"); err == nil {
			t.Error("an answer came")
		}
		synctest.Wait()
		g.want(`firsttoken_held_requests{model="m"}`, "0")
		clients.Wait()
		g.wantOutcomes(1, 0) // it left in time, which says nothing
		g.idle()
		if engine.Count() != 1 {
			t.Errorf("%d requests reached the engine", engine.Count())
		}
		for _, line := range g.access() {
			if line["status"] == 499.0 && (line["reason"] != "client_left" || line["held_ms"] != 300.0 || line["attempts"] != 0.0 || line["objective_met"] != nil) {
				t.Errorf("line %v", line)
			}
		}
	})
}

// Those who are held are served while the gateway drains, and told at its limit.
func TestDrainWithHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contract("1m", "shed"))
		engine := playing(fakellm.Reply(2, 4*time.Second, 0)...)
		g := startGateway(t, configFor(oneByOne+extra+"drain: {accept: off, limit: 6s}", "a:8000"), map[string]http.Handler{"a:8000": engine})
		var clients sync.WaitGroup
		var got [3]answer
		for i := range got {
			g.shop(&clients, &got[i])
		}
		g.term()
		g.ended()
		clients.Wait()
		if got[0].status != 200 || !strings.HasSuffix(got[0].body, doneEvent) {
			t.Errorf("the one at the engine: %d %q", got[0].status, got[0].body)
		}
		// One was let in at 4 s and cut off at 6 s, the other was held to the end.
		if got[1].status == 503 {
			got[1], got[2] = got[2], got[1]
		}
		if got[1].status != 200 || !strings.Contains(got[1].body, "gateway_draining") {
			t.Errorf("let in: %d %q", got[1].status, got[1].body)
		}
		if got[2].status != 503 || errorIn(t, got[2].body).Code != "gateway_draining" {
			t.Errorf("held: %d %q", got[2].status, got[2].body)
		}
		if engine.Count() != 2 {
			t.Errorf("%d requests reached the engine, want 2", engine.Count())
		}
	})
}

// The total timeout counts the time held.
func TestTotalTimeoutWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.Replace(oneByOne, "defaults: {", "defaults: {timeouts: {total: 2s}, ", 1)
		g := startGateway(t, configFor(text, "a:8000"), map[string]http.Handler{"a:8000": playing(fakellm.Hang())})
		var clients sync.WaitGroup
		clients.Go(func() { g.chat(streamBody("m")) })
		synctest.Wait()
		time.Sleep(time.Second)
		start := time.Now()
		clients.Go(func() { g.chat(streamBody("m")) }) // let in at 2 s, when the first one gives up
		synctest.Wait()
		if got := g.chat(streamBody("m")); got.status != 504 || errorIn(t, got.body).Code != "total_timeout" || time.Since(start) != 2*time.Second {
			t.Errorf("%d %q after %v", got.status, got.body, time.Since(start))
		}
		clients.Wait()
		g.idle()
	})
}

func TestTightening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := promising(t, contract("320ms", "shed"), prompts(10*time.Millisecond))
		for _, row := range []struct{ name, value, tenant, says string }{
			{"X-Slo-Ttft-Ms", "abc", "shop", `x-slo-ttft-ms: "abc" is not a number of milliseconds`},
			{"X-Slo-Ttft-Ms", "-1", "shop", `x-slo-ttft-ms: "-1" is not a number of milliseconds`},
			{"X-Slo-Tpot-Ms", "1e3", "", `x-slo-tpot-ms: "1e3" is not a number of milliseconds`},
			{"X-Slo-Ttft-Ms", "321", "shop", `x-slo-ttft-ms: 321 ms is looser than the 320 ms of contract "chat"`},
		} {
			got := g.chat(streamBody("m"), row.name, row.value, "X-Tenant", row.tenant)
			e := errorIn(t, got.body)
			if message, _ := e.Message.(string); got.status != 400 || e.Code != "invalid_slo_header" || e.Param != strings.ToLower(row.name) || !strings.HasPrefix(message, row.says) {
				t.Errorf("%s %s: %d %+v", row.name, row.value, got.status, e)
			}
		}
		for _, ms := range []string{"320", "12.5"} {
			if got := g.chat(streamBody("m"), "X-Slo-Ttft-Ms", ms, "X-Slo-Tpot-Ms", "50", "X-Tenant", "shop"); got.status != 200 {
				t.Errorf("%s ms: %d %s", ms, got.status, got.body)
			}
		}
		if got := g.chat(streamBody("m"), "X-Slo-Ttft-Ms", "5000"); got.status != 200 { // nothing was promised: freely
			t.Errorf("%d %s", got.status, got.body)
		}
		g.wantOutcomes(2, 0)
		lines := g.access()
		for i, want := range []any{320.0, 12.5, 5000.0} {
			if got := lines[4+i]["deadline_ms"]; got != want {
				t.Errorf("deadline %v ms, want %v", got, want)
			}
		}
	})
}

func TestMatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := prompts(10 * time.Millisecond)
		_, extra := contractFile(t, contract("1s", "")+"---\n"+strings.NewReplacer("name: chat", "name: tier", "tenants: [shop]", "service_tier: [priority]").Replace(contract("1s", ""))+
			"---\n"+strings.NewReplacer("name: chat", "name: small", "tenants: [shop]", "models: [alias]").Replace(contract("1s", "")))
		text := strings.Replace(configFor(oneByOne+extra, "a:8000"), "server: {", "server: {tenant_header: x-team, ", 1)
		text = strings.Replace(text, "- name: m\n", "- name: m\n    aliases: [alias]\n", 1)
		g := startGateway(t, text, map[string]http.Handler{"a:8000": engine})
		g.chat(streamBody("m"), "X-Team", "shop")
		g.chat(streamBody("m"), "X-Team", "somebody")
		g.chat(strings.Replace(streamBody("m"), "{", `{"service_tier":"priority",`, 1), "X-Team", "somebody")
		g.chat(streamBody("alias"))
		for i, r := range engine.Requests() {
			if r.Header.Get("X-Team") != "" {
				t.Errorf("request %d tells the engine who its tenant is", i)
			}
		}
		for i, line := range g.access() {
			if want := []any{"chat", nil, "tier", "small"}[i]; line["contract"] != want {
				t.Errorf("request %d is of contract %v, want %v", i, line["contract"], want)
			}
			if want := []any{"shop", nil, nil, nil}[i]; line["tenant"] != want {
				t.Errorf("request %d is of tenant %v, want %v", i, line["tenant"], want)
			}
		}
	})
}

func TestLighterModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contract("500ms", "{lighter_model: small}, shed"))
		big, small := prompts(2*time.Second), prompts(100*time.Millisecond)
		text := configFor(oneByOne+extra, "a:8000") + "  - name: small\n    backends: [{name: s, url: \"http://s:8000\", model: its-name}]\n"
		g := startGateway(t, text, map[string]http.Handler{"a:8000": big, "s:8000": small})
		g.chat(streamBody("small")) // its speed is known: 100 ms
		var clients sync.WaitGroup
		var first, second answer
		g.shop(&clients, &first)
		g.shop(&clients, &second)
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		if second.status != 200 || second.header.Get("X-Firsttoken-Model-Served") != "small" || !strings.Contains(string(small.Requests()[1].Body), `"its-name"`) {
			t.Errorf("%d %v", second.status, second.header)
		}
		clients.Wait()
		if first.status != 200 || first.header.Get("X-Firsttoken-Model-Served") != "" {
			t.Errorf("%d %v", first.status, first.header)
		}
		g.want(`firsttoken_lighter_model_total{contract="chat",from="m",to="small"}`, "1")
		g.want(`firsttoken_requests_total{code="200",endpoint="chat_completions",model="small",reason="ok"}`, "2")
		g.wantOutcomes(1, 1)
		g.idle()
		for _, line := range g.access() {
			if line["model_asked"] != nil && (line["model_asked"] != "m" || line["model"] != "small" || !(line["ttft_ms"].(float64) < 480) || line["objective_met"] != true) {
				t.Errorf("line %v", line)
			}
		}
	})
}

// A lighter model that the gateway does not have is told of, and passed over.
func TestLighterModelUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := promising(t, contract("500ms", "{lighter_model: unknown}, shed"), prompts(2*time.Second))
		var clients sync.WaitGroup
		var first, second answer
		g.shop(&clients, &first)
		g.shop(&clients, &second)
		clients.Wait()
		if first.status != 200 || second.status != 429 {
			t.Errorf("%d, %d", first.status, second.status)
		}
		if warned := len(g.events("a contract's lighter model is not configured; nobody is given to it")); warned != 1 {
			t.Errorf("%d warnings", warned)
		}
	})
}

// An engine that is open but too slow is no reason to refuse anybody; a lighter
// model is one to go there.
func TestLighterModelForSlowEngine(t *testing.T) {
	for _, row := range []struct {
		small  time.Duration // its TTFT
		served string
	}{{100 * time.Millisecond, "small"}, {2 * time.Second, ""}} {
		synctest.Test(t, func(t *testing.T) {
			_, extra := contractFile(t, contract("500ms", "{lighter_model: small}, shed"))
			text := configFor(quiet+extra, "a:8000") + "  - name: small\n    backends: [{name: s, url: \"http://s:8000\"}]\n"
			g := startGateway(t, text, map[string]http.Handler{"a:8000": prompts(time.Second), "s:8000": prompts(row.small)})
			for range 30 { // both are known
				g.chat(streamBody("m"))
				g.chat(streamBody("small"))
			}
			got := g.chat(streamBody("m"), "X-Tenant", "shop")
			if got.status != 200 || got.header.Get("X-Firsttoken-Model-Served") != row.served {
				t.Errorf("small takes %v: %d %v", row.small, got.status, got.header)
			}
			g.idle()
		})
	}
}

// Whatever becomes of a request, it is booked once.
func TestOutcomesCountOnce(t *testing.T) {
	broken := fakellm.Broken(1, 50*time.Millisecond, 0, fakellm.Reset())
	for name, row := range map[string]struct {
		engine      *fakellm.Backend
		met, missed int
		booked      float64 // by the compliance of availability
	}{
		"served":            {prompts(50 * time.Millisecond), 1, 0, 1},
		"served late":       {prompts(2 * time.Second), 0, 1, 1},
		"failed":            {playing(fakellm.Reset()), 0, 1, 1},
		"failed later":      {playing(broken...), 1, 0, 1},
		"refused by engine": {playing(fakellm.Status(429, nil, "{}").Play), 0, 1, 1},
		"client's mistake":  {playing(fakellm.Status(400, nil, `{"error":{"message":"x"}}`).Play), 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				text := strings.Replace(contract("1s", ""), "objectives: [", "objectives: [{metric: availability, target: 99%}, ", 1)
				g := promising(t, text, row.engine)
				g.chat(streamBody("m"), "X-Tenant", "shop")
				g.wantOutcomes(row.met, row.missed)
				booked := 0.0
				for _, met := range []string{"true", "false"} {
					booked += g.number(`firsttoken_contract_outcomes_total{contract="chat",met="` + met + `",objective="availability"}`)
				}
				if booked != row.booked {
					t.Errorf("booked %v times, want %v", booked, row.booked)
				}
				g.idle()
			})
		})
	}
}

// A retry waits like any other, and a failure costs the instance its compliance.
func TestRetryIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, extra := contractFile(t, contract("5s", "shed"))
		a, b := down(0), prompts(time.Second)
		g := startGateway(t, preferA(configFor(oneByOne+extra, "a:8000", "b:8000")),
			map[string]http.Handler{"a:8000": a, "b:8000": b})
		var clients sync.WaitGroup
		var got [2]answer
		for i := range got {
			g.shop(&clients, &got[i])
		}
		clients.Wait()
		if got[0].status != 200 || got[1].status != 200 {
			t.Errorf("%d, %d", got[0].status, got[1].status)
		}
		g.wantOutcomes(2, 0)
		g.idle()
		if line := g.access()[1]; line["attempts"] != 2.0 || line["held_ms"] != 1000.0 || line["ttft_ms"] != 2000.0 {
			t.Errorf("line %v", line)
		}
	})
}

func TestContractReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, extra := contractFile(t, contract("1s", ""))
		g := startGateway(t, configFor(oneByOne+extra, "a:8000"), map[string]http.Handler{"a:8000": prompts(10 * time.Millisecond)})
		ask := func() { g.chat(streamBody("m"), "X-Tenant", "shop") }
		ask()
		writeFile(t, path, contract("2s", "")+"\n# and a mistake\nspecs: {}\n")
		time.Sleep(3 * time.Second)
		ask()
		g.want("firsttoken_config_last_reload_successful", "0")
		writeFile(t, path, contract("2s", ""))
		time.Sleep(3 * time.Second)
		ask()
		g.want("firsttoken_config_last_reload_successful", "1")
		g.wantOutcomes(3, 0)
		writeFile(t, path, strings.Replace(contract("2s", ""), "name: chat", "name: talk", 1))
		time.Sleep(3 * time.Second)
		ask()
		if left := grep(g.metrics(), `contract="chat"`); left != "" {
			t.Errorf("series of a contract that is gone:\n%s", left)
		}
		g.want(`firsttoken_contract_outcomes_total{contract="talk",met="true",objective="ttft-p95"}`, "1")
		for i, line := range g.access() {
			if want := []any{1000.0, 1000.0, 2000.0, 2000.0}[i]; line["deadline_ms"] != want {
				t.Errorf("request %d: deadline %v ms, want %v", i, line["deadline_ms"], want)
			}
		}
		failed := g.events("configuration not reloaded; the old one stays in force")
		if len(failed) != 1 || !strings.Contains(fmt.Sprint(failed[0]["error"]), path+`:10:1: "specs" is not a key here`) {
			t.Errorf("events %v", failed)
		}
	})
}

// A contract that can't be read keeps the gateway from starting, and says why.
func TestContractRefusedAtStart(t *testing.T) {
	_, extra := contractFile(t, "kind: Other\n")
	g := newGateway(t)
	g.config = configFor(quiet+extra, "a:8000")
	cfg, err := g.load()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := app.New(cfg, app.Options{}); err == nil || !strings.Contains(err.Error(), "contracts.yaml:1:") {
		t.Errorf("error %v", err)
	}
}

func TestShippedContracts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor(quiet+"\ncontracts: {shipped: true}", "a:8000"), map[string]http.Handler{"a:8000": prompts(10 * time.Millisecond)})
		for _, tenant := range []string{"shop", "web", "meetings"} {
			g.chat(streamBody("m"), "X-Tenant", tenant)
		}
		for i, line := range g.access() {
			if want := []string{"customer-service", "code-completion", "live-summarisation"}[i]; line["contract"] != want || line["objective_met"] != true {
				t.Errorf("line %v, want %s", line, want)
			}
		}
	})
}

// Three windows in a row that break a contract are an event.
func TestViolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := promising(t, contract("100ms", ""), prompts(500*time.Millisecond))
		told := make(chan sla.Violation, 10)
		g.app.OnViolation(func(v sla.Violation) { told <- v })
		for range 50 {
			g.chat(streamBody("m"), "X-Tenant", "shop")
			time.Sleep(500 * time.Millisecond)
		}
		if len(told) == 0 {
			t.Fatal("nobody was told")
		}
		if v := <-told; v.Contract != "chat" || v.Instance != "a" || v.Windows != 3 {
			t.Errorf("%+v", v)
		}
		n := g.number(`firsttoken_violations_total{backend="a",contract="chat"}`)
		g.want(`firsttoken_contract_state{contract="chat",state="breaching"}`, "1")
		if burn := g.number(`firsttoken_contract_burn_rate{contract="chat",window="5m"}`); math.Abs(burn-20) > 1e-6 { // all of it missed, a twentieth may
			t.Errorf("burn rate %v", burn)
		}
		if events := g.events("contract violated"); len(events) == 0 || float64(len(events)) != n || events[0]["backend"] != "a" || events[0]["objective"] == nil {
			t.Errorf("%v violations, events %v", n, events)
		}
	})
}
