package app_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// noTimeouts are timeouts of which none fires within an hour.
var noTimeouts = map[string]string{
	"dial": "2h", "response_header": "off", "first_token": "off", "idle": "off", "total": "off", "client_write": "off",
}

// only is a configuration with one backend and one timeout.
func only(timeout, value string) string {
	var list []string
	for name, v := range noTimeouts {
		if name == timeout {
			v = value
		}
		list = append(list, name+": "+v)
	}
	return configFor(strings.Replace(quiet, "defaults: {", "defaults: {timeouts: {"+strings.Join(list, ", ")+"}, ", 1), "a:8000")
}

func TestTimeouts(t *testing.T) {
	json := fakellm.Header(200, http.Header{"Content-Type": {"application/json"}})
	text := fakellm.Header(200, http.Header{"Content-Type": {"text/plain"}})
	gap := func(d time.Duration, parts ...string) (steps fakellm.Script) {
		for _, p := range parts {
			steps = append(steps, fakellm.Send(p), fakellm.Wait(d))
		}
		return steps
	}
	endless := func(every time.Duration) fakellm.Step {
		return func(w *fakellm.Response) error {
			for {
				if err := (fakellm.Script{fakellm.Wait(every), fakellm.Event(`{"choices":[{"delta":{"content":"x"}}]}`)}).Play(w); err != nil {
					return err
				}
			}
		}
	}
	const s = time.Second
	rows := []struct {
		name, timeout, value string
		script               fakellm.Script // nil: nobody answers the dial
		stream               bool
		after                time.Duration
		code                 string // upstream_ is left out where reason says the same
		begun                bool   // the client has a part of the answer
	}{
		{"dial", "dial", "3s", nil, false, 3 * s, "upstream_dial_timeout", false},
		{"dial of a stream", "dial", "3s", nil, true, 3 * s, "upstream_dial_timeout", false},
		{"headers", "response_header", "7s", fakellm.Script{fakellm.Hang()}, false, 7 * s, "upstream_response_header_timeout", false},
		{"headers of a stream", "response_header", "7s", fakellm.Script{fakellm.Hang()}, true, 7 * s, "upstream_response_header_timeout", false},
		{"first token, no headers", "first_token", "4s", fakellm.Script{fakellm.Hang()}, true, 4 * s, "upstream_first_token_timeout", false},
		{"first token, headers", "first_token", "4s", fakellm.Script{fakellm.Wait(s), fakellm.Stream(), fakellm.Hang()}, true, 4 * s, "upstream_first_token_timeout", false},
		{"first token, comments", "first_token", "4s", fakellm.Script{fakellm.Comment("a"), fakellm.Wait(s), fakellm.Comment("b"), fakellm.Hang()}, true, 4 * s, "upstream_first_token_timeout", true},
		{"first token, role", "first_token", "4s", fakellm.Broken(0, 0, 0, fakellm.Hang()), true, 4 * s, "upstream_first_token_timeout", true},
		{"idle after the role", "idle", "5s", fakellm.Broken(0, 0, 0, fakellm.Hang()), true, 5 * s, "upstream_idle_timeout", true},
		{"idle after tokens", "idle", "5s", fakellm.Broken(3, s, 2*s, fakellm.Hang()), true, 10 * s, "upstream_idle_timeout", true},
		{"idle without a stream", "idle", "5s", fakellm.Script{json, fakellm.Wait(2 * s), fakellm.Hang()}, false, 5 * s, "upstream_idle_timeout", false},
		{"idle between parts", "idle", "5s", append(append(fakellm.Script{json}, gap(4*s, "{", `"a":`, "1")...), fakellm.Hang()), false, 13 * s, "upstream_idle_timeout", false},
		{"idle in a refusal", "idle", "5s", fakellm.Script{fakellm.Header(503, nil), fakellm.Send("x"), fakellm.Hang()}, false, 5 * s, "upstream_idle_timeout", false},
		{"total, no headers", "total", "6s", fakellm.Script{fakellm.Hang()}, false, 6 * s, "total_timeout", false},
		{"total of a stream", "total", "6s", fakellm.Script{fakellm.Stream(), endless(250 * time.Millisecond)}, true, 6 * s, "total_timeout", true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				backend := &fakellm.Backend{Script: always(row.script...)}
				g := startGateway(t, only(row.timeout, row.value), map[string]http.Handler{"a:8000": backend})
				if row.script == nil {
					g.silence("a:8000")
				}
				body := plainBody("m")
				if row.stream {
					body = streamBody("m")
				}
				start := time.Now()
				got := g.chat(body)
				if d := time.Since(start); d != row.after {
					t.Errorf("ended after %v, want %v", d, row.after)
				}
				if row.begun {
					events := eventData(got.body)
					if got.status != 200 || len(events) == 0 || strings.Contains(got.body, "[DONE]") {
						t.Fatalf("%d %q", got.status, got.body)
					}
					checkError(t, events[len(events)-1], row.code)
				} else if e := errorIn(t, got.body); got.status != 504 || e.Code != row.code {
					t.Errorf("%d %v, want 504 %s", got.status, e, row.code)
				}
				synctest.Wait()
				if backend.InFlight() != 0 {
					t.Error("the engine still works on it")
				}
				reason := strings.TrimPrefix(row.code, "upstream_")
				g.want(`firsttoken_attempts_total{backend="a",model="m",reason="`+reason+`"}`, "1")
				if blames := g.metric(`firsttoken_backend_failure_penalty{backend="a"}`) != "0"; blames != (reason != "total_timeout") {
					t.Errorf("the engine is blamed: %v", blames)
				}
				line := g.access()[0]
				if line["reason"] != reason || line["duration_ms"] != float64(row.after.Milliseconds()) {
					t.Errorf("access line %v", line)
				}
			})
		})
	}
	// An answer that is not read for content can't carry an error: it is cut.
	t.Run("idle in bytes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := startGateway(t, only("idle", "5s"), map[string]http.Handler{"a:8000": playing(text, fakellm.Send("abc"), fakellm.Hang())})
			start := time.Now()
			got := g.chat(plainBody("m"))
			if got.status != 200 || got.body != "abc" || got.err == nil || time.Since(start) != 5*s {
				t.Errorf("%d %q %v after %v", got.status, got.body, got.err, time.Since(start))
			}
		})
	})
}

// No timeout fires on an engine that keeps within it.
func TestTimeoutsLeaveSlowEnginesAlone(t *testing.T) {
	parts := strings.SplitAfter(smallBody, ",")
	var dripping fakellm.Script
	dripping = append(dripping, fakellm.Header(200, http.Header{"Content-Type": {"application/json"}}))
	for _, p := range parts {
		dripping = append(dripping, fakellm.Send(p), fakellm.Wait(4*time.Second))
	}
	rows := []struct {
		timeout, value, body string
		script               fakellm.Script
	}{
		{"response_header", "5s", plainBody("m"), append(fakellm.Script{fakellm.Wait(4 * time.Second)}, dripping...)},
		{"first_token", "5s", plainBody("m"), fakellm.JSON(3, time.Minute)}, // not a stream
		{"first_token", "5s", streamBody("m"), fakellm.Tokens(5, 4*time.Second, time.Minute)},
		{"idle", "5s", plainBody("m"), dripping},
		{"idle", "5s", streamBody("m"), fakellm.Tokens(20, 4*time.Second, 4*time.Second)},
		{"idle", "5s", plainBody("m"), fakellm.JSON(3, time.Minute)}, // waits for headers
		{"client_write", "5s", streamBody("m"), fakellm.Tokens(3, time.Minute, time.Minute)},
	}
	for i, row := range rows {
		t.Run(fmt.Sprint(i, row.timeout), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := startGateway(t, only(row.timeout, row.value), map[string]http.Handler{"a:8000": playing(row.script...)})
				if got := g.chat(row.body); got.status != 200 || got.err != nil {
					t.Errorf("%d %q %v", got.status, got.body, got.err)
				}
			})
		})
	}
}

func TestTimeoutsClientWrite(t *testing.T) {
	big := strings.Repeat("x", 100<<10)
	event := fakellm.Event(`{"choices":[{"delta":{"content":"` + big + `"}}]}`)
	whole := fakellm.Status(200, nil, `{"choices":[{"finish_reason":"stop"}],"x":"`+strings.Repeat(big, 5)+`"}`).Play
	for name, row := range map[string]struct {
		body  string
		steps fakellm.Script
		after time.Duration
	}{
		"stream":     {streamBody("m"), fakellm.Script{event, fakellm.Wait(3 * time.Second), event, event, event, event, event}, 6 * time.Second},
		"whole":      {plainBody("m"), fakellm.Script{whole}, 6 * time.Second},
		"raw":        {plainBody("m"), fakellm.Script{fakellm.Header(200, http.Header{"Content-Type": {"audio/wav"}}), fakellm.Send(big, big, big, big)}, 6 * time.Second},
		"a refusal":  {plainBody("m"), fakellm.Script{fakellm.Status(503, nil, `{"x":"`+strings.Repeat(big, 5)+`"}`).Play}, 5 * time.Second},
		"client 4xx": {plainBody("m"), fakellm.Script{fakellm.Status(400, nil, `{"x":"`+strings.Repeat(big, 5)+`"}`).Play}, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				backend := playing(row.steps...)
				g := startGateway(t, only("client_write", "6s"), map[string]http.Handler{"a:8000": backend})
				client := g.rawClient()
				client.send(t, rawPost(row.body))
				time.Sleep(row.after + 3*time.Second)
				synctest.Wait()
				if backend.InFlight() != 0 {
					t.Error("the engine still works on it")
				}
				g.want(`firsttoken_requests_in_flight{model="m"}`, "0")
				g.want(`firsttoken_backend_in_flight{backend="a"}`, "0")
				line := g.access()[0]
				if name == "a refusal" {
					if line["reason"] != "engine_5xx" || line["duration_ms"] != float64(row.after.Milliseconds()) {
						t.Errorf("access line %v", line)
					}
					return
				}
				if line["reason"] != "client_write_timeout" || line["status"] != 499.0 || line["duration_ms"] != float64(row.after.Milliseconds()) {
					t.Errorf("access line %v", line)
				}
			})
		})
	}
}

// The end of an answer is written too, however long ago the last event was.
func TestWriteDeadlineDoesNotCutTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := append(fakellm.Tokens(2, 0, 0)[:2:2], fakellm.Wait(time.Minute), fakellm.Done())
		g := startGateway(t, only("client_write", "5s"), map[string]http.Handler{"a:8000": playing(steps...)})
		if got := g.chat(streamBody("m")); got.err != nil || !strings.HasSuffix(got.body, doneEvent) {
			t.Errorf("%v %q", got.err, got.body)
		}
		raw := playing(fakellm.Header(200, http.Header{"Content-Type": {"audio/wav"}}), fakellm.Send("abc"), fakellm.Wait(time.Minute))
		g2 := startGateway(t, only("client_write", "5s"), map[string]http.Handler{"a:8000": raw})
		if got := g2.chat(plainBody("m")); got.err != nil || got.body != "abc" {
			t.Errorf("%v %q", got.err, got.body)
		}
	})
}

// A client that goes away with an answer under way must not be sent its end:
// a half-closed connection can still be read.
func TestClientGoneIsCut(t *testing.T) {
	for name, script := range map[string]fakellm.Script{
		"before the headers": {fakellm.Wait(time.Second), fakellm.Tokens(1, 0, 0).Play},
		"in the stream":      {fakellm.Tokens(5, 0, time.Second).Play},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": playing(script...)})
				client := g.rawClient()
				client.send(t, rawPost(streamBody("m")))
				time.Sleep(500 * time.Millisecond)
				if err := client.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(client.read, nil)
				if err != nil {
					return // nothing was sent at all
				}
				if got := readAnswer(resp); got.err == nil {
					t.Errorf("a whole answer came: %d %q", got.status, got.body)
				}
			})
		})
	}
}

// A total timeout that one backend lacks does not bind requests that it may serve.
func TestTotalTimeoutOfSome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := playing(fakellm.Tokens(3, 0, 50*time.Second)...)
		text := strings.Replace(configFor(quiet, "a:8000", "b:8000"), "name: a,", "name: a, timeouts: {total: 5s},", 1)
		g := startGateway(t, text, map[string]http.Handler{"a:8000": slow, "b:8000": slow})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		resp, err := g.post(ctx, "/v1/chat/completions", streamBody("m"))
		if err != nil {
			t.Fatal(err)
		}
		if got := readAnswer(resp); !strings.HasSuffix(got.body, doneEvent) {
			t.Errorf("%q", got.body)
		}
	})
}
