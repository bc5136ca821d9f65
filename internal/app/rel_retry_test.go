package app_test

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// playing is a backend with one script for every request.
func playing(s ...fakellm.Step) *fakellm.Backend { return &fakellm.Backend{Script: always(s...)} }

// down answers 503 after wait.
func down(wait time.Duration) *fakellm.Backend {
	return playing(fakellm.Wait(wait), fakellm.Status(503, nil, `{"error":{"message":"down","type":"x","param":null,"code":null}}`).Play)
}

func TestBudget(t *testing.T) {
	const minimum = 3
	outage := func(t *testing.T, requests int, send func(g *gateway)) (attempts int) {
		a, b, c := down(50*time.Millisecond), down(50*time.Millisecond), down(50*time.Millisecond)
		g := startGateway(t, configFor(quiet, "a:8000", "b:8000", "c:8000"),
			map[string]http.Handler{"a:8000": a, "b:8000": b, "c:8000": c})
		send(g)
		attempts = a.Count() + b.Count() + c.Count()
		retries, _ := strconv.Atoi(g.metric(`firsttoken_retries_total{model="m",reason="engine_5xx"}`))
		if attempts != requests+retries {
			t.Errorf("%d attempts, but %d requests and %d retries", attempts, requests, retries)
		}
		if retries < minimum {
			t.Errorf("%d retries; at least %d are always allowed", retries, minimum)
		}
		g.want(`firsttoken_requests_total{code="503",endpoint="chat_completions",model="m",reason="engine_5xx"}`, fmt.Sprint(requests))
		return attempts
	}
	t.Run("concurrent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := outage(t, 300, func(g *gateway) {
				var clients sync.WaitGroup
				for range 300 {
					clients.Go(func() {
						if got := g.chat(plainBody("m")); got.status != 503 {
							t.Errorf("status %d", got.status)
						}
					})
				}
				clients.Wait()
			})
			if n > 300*12/10 {
				t.Errorf("%d attempts for 300 requests", n)
			}
		})
	})
	t.Run("sequential", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := outage(t, 200, func(g *gateway) {
				for range 200 {
					g.chat(plainBody("m"))
				}
			})
			if seconds := 200 * 60 / 1000; n > 200*12/10+minimum*(1+seconds/10) {
				t.Errorf("%d attempts for 200 requests", n)
			}
		})
	})
	t.Run("trickle", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := outage(t, 60, func(g *gateway) {
				for range 60 { // the minimum is for ten seconds, not for each request
					g.chat(plainBody("m"))
					time.Sleep(time.Second)
				}
			})
			if n > 60+7*minimum {
				t.Errorf("%d attempts for 60 requests in 60 s", n)
			}
		})
	})
}

func TestNoneAfterFirstEvent(t *testing.T) {
	ends := map[string]fakellm.Step{
		"reset": fakellm.Reset(), "closed": fakellm.Close(), "cut": fakellm.CutDirty("data: {"), "ended": fakellm.CutClean(),
		"error": fakellm.Event(`{"error":{"message":"out of memory","type":"server_error","param":null,"code":500}}`), "hang": fakellm.Hang(),
	}
	for name, end := range ends {
		for _, tokens := range []int{0, 1, 5} { // after the role chunk; after tokens
			t.Run(fmt.Sprint(name, " after ", tokens), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script { return fakellm.Broken(tokens, 0, 0, end) }}
					b := &fakellm.Backend{}
					text := preferA(configFor(quiet, "a:8000", "b:8000"))
					g := startGateway(t, text, map[string]http.Handler{"a:8000": a, "b:8000": b})
					got := g.chat(streamBody("m"))
					if a.Count() != 1 || b.Count() != 0 {
						t.Fatalf("a got %d requests, b %d", a.Count(), b.Count())
					}
					if got.status != 200 || strings.Contains(got.body, "[DONE]") || strings.Count(got.body, `"error"`) != 1 || got.err != nil {
						t.Errorf("%d %q %v", got.status, got.body, got.err)
					}
				})
			})
		}
	}
}

func TestBodyReplay(t *testing.T) {
	failures := map[string]*fakellm.Backend{
		"503": down(0), "reset": playing(fakellm.Reset()), "closed": playing(fakellm.Close()),
		"comment only": playing(fakellm.Stream(), fakellm.Comment("wait"), fakellm.Wait(time.Second), fakellm.Reset()),
		"no answer":    playing(fakellm.Hang()),
		"429":          playing(fakellm.Status(429, nil, "{}").Play),
		"error event":  playing(fakellm.Event(`{"error":{"message":"boom","code":500}}`)),
		"empty stream": playing(fakellm.Stream()),
		"short answer": playing(fakellm.Header(200, http.Header{"Content-Type": {"application/json"}, "Content-Length": {"100"}}), fakellm.CutDirty("{")),
	}
	for name, bad := range failures {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := bad, &fakellm.Backend{}
				text := preferA(configFor(quiet, "a:8000", "b:8000"))
				text = strings.Replace(text, "name: b,", "name: b, model: m,", 1)
				g := startGateway(t, text, map[string]http.Handler{"a:8000": a, "b:8000": b})
				body := `{"stream":true,"model":"m",` + odd + `}`
				got := g.chat(body, "X-Custom", "1", "X-Api-Key", "secret", "Connection", "X-Hop", "X-Hop", "1")
				if got.status != 200 || !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
					t.Fatalf("%d %q", got.status, got.body)
				}
				if a.Count() != 1 || b.Count() != 1 {
					t.Fatalf("a got %d requests, b %d", a.Count(), b.Count())
				}
				first, second := a.Requests()[0], b.Requests()[0]
				if string(first.Body) != body || string(second.Body) != body {
					t.Errorf("bodies differ:\n%s\n%s", first.Body, second.Body)
				}
				if !reflect.DeepEqual(first.Header, second.Header) {
					t.Errorf("headers differ:\n%v\n%v", first.Header, second.Header)
				}
				line := g.access()[0]
				if line["attempts"] != 2.0 || line["backend"] != "b" || line["reason"] != "ok" {
					t.Errorf("access line %v", line)
				}
			})
		})
	}
}

// Each attempt starts from the client's body, not from the last attempt's.
func TestBodyReplayOtherModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := down(0), &fakellm.Backend{}
		text := strings.Replace(configFor(quiet, "a:8000", "b:8000"), "name: a,", "name: a, model: a-name, engine: vllm, signals: {interval: off},", 1)
		text = strings.Replace(text, "name: b,", "name: b, model: b-name, weight: 0.000001,", 1)
		g := startGateway(t, text, map[string]http.Handler{"a:8000": a, "b:8000": b})
		if got := g.chat(`{"stream":true,"model":"m",` + odd + `}`); got.status != 200 {
			t.Fatalf("%d %q", got.status, got.body)
		}
		if got, want := string(a.Requests()[0].Body), `{"stream":true,"model":"a-name",`+odd+`,"stream_options":{"include_usage":true}}`; got != want {
			t.Errorf("a got %s", got)
		}
		if got, want := string(b.Requests()[0].Body), `{"stream":true,"model":"b-name",`+odd+`}`; got != want {
			t.Errorf("b got %s", got)
		}
	})
}

func TestRetryDenied(t *testing.T) {
	three := []string{"a:8000", "b:8000", "c:8000"}
	rows := []struct {
		name     string
		extra    string
		backends []string
		wait     time.Duration // of each failing attempt
		header   []string
		attempts int
		why      string
	}{
		{name: "attempts", extra: "max_attempts: 2", backends: three, attempts: 2, why: "attempts"},
		{name: "at most three", extra: "budget_min: 100", backends: append(three, "d:8000"), attempts: 3, why: "attempts"},
		{name: "retries off", extra: "max_attempts: 1", backends: three, attempts: 1},
		{name: "nobody else", backends: three[:1], attempts: 1, why: "no_backend"},
		{name: "all tried", backends: three[:2], attempts: 2, why: "no_backend"},
		{name: "client's deadline", backends: three, wait: 900 * time.Millisecond, header: []string{"X-Stainless-Timeout", "1"}, attempts: 1, why: "deadline"},
		{name: "client's deadline leaves one", backends: three, wait: 900 * time.Millisecond, header: []string{"X-Stainless-Timeout", "1.9"}, attempts: 2, why: "deadline"},
		{name: "no sensible deadline", backends: three, wait: 900 * time.Millisecond, header: []string{"X-Stainless-Timeout", "NaN"}, attempts: 3, why: "attempts"},
		{name: "total timeout", extra: "TOTAL", backends: three, wait: 900 * time.Millisecond, attempts: 1, why: "deadline"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				retry := "retry: {" + row.extra + "}"
				if row.extra == "TOTAL" {
					retry = "timeouts: {total: 1s}"
				}
				text := configFor(strings.Replace(quiet, "defaults: {", "defaults: {"+retry+", ", 1), row.backends...)
				fleet, handlers := []*fakellm.Backend{}, map[string]http.Handler{}
				for _, addr := range row.backends {
					b := &fakellm.Backend{Script: fakellm.Sequence(fakellm.Tokens(1, 200*time.Millisecond, 0), down(row.wait).Script(nil))}
					fleet, handlers[addr] = append(fleet, b), b
				}
				g := startGateway(t, text, handlers)
				var warm sync.WaitGroup
				for range row.backends { // least in flight: one each
					warm.Go(func() { g.chat(streamBody("m")) })
				}
				warm.Wait()
				if got := g.chat(streamBody("m"), row.header...); got.status != 503 {
					t.Errorf("status %d: %s", got.status, got.body)
				}
				attempts := -len(fleet)
				for _, b := range fleet {
					attempts += b.Count()
				}
				if attempts != row.attempts {
					t.Errorf("%d attempts, want %d", attempts, row.attempts)
				}
				for _, why := range []string{"attempts", "no_backend", "deadline", "budget"} {
					want := ""
					if why == row.why {
						want = "1"
					}
					g.want(`firsttoken_retries_denied_total{model="m",why="`+why+`"}`, want)
				}
			})
		})
	}
}

// A client that has left is not retried for, and nobody is blamed.
func TestNoRetryForClientThatLeft(t *testing.T) {
	for _, body := range []string{plainBody("m"), streamBody("m")} {
		synctest.Test(t, func(t *testing.T) {
			a, b := playing(fakellm.Hang()), playing(fakellm.Hang())
			g := startGateway(t, configFor(quiet, "a:8000", "b:8000"), map[string]http.Handler{"a:8000": a, "b:8000": b})
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			if _, err := g.post(ctx, "/v1/chat/completions", body); err == nil {
				t.Error("an answer came")
			}
			synctest.Wait()
			if n := a.Count() + b.Count(); n != 1 || a.InFlight()+b.InFlight() != 0 {
				t.Errorf("%d attempts, %d still running", n, a.InFlight()+b.InFlight())
			}
			line := g.access()[0]
			if line["status"] != 499.0 || line["reason"] != "client_left" || line["duration_ms"] != 1000.0 {
				t.Errorf("access line %v", line)
			}
		})
	}
}
