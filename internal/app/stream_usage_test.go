package app_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// usageAsked is a chat request that asks for the usage chunk itself.
const usageAsked = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`

// hidingGateway asks its one backend for usage on its own account.
func hidingGateway(t *testing.T, script func(*fakellm.Request) fakellm.Script) (*gateway, *fakellm.Backend) {
	t.Helper()
	backend := &fakellm.Backend{Script: script}
	return startGateway(t, hidingUsage(configFor(lenient, "a:8000")), map[string]http.Handler{"a:8000": backend}), backend
}

// TestUsageChunk: a usage chunk that the client asked for is kept, one that
// the gateway asked for is hidden, and both are counted.
func TestUsageChunk(t *testing.T) {
	onEveryChunk := strings.ReplaceAll(helloChunk+worldChunk, `"finish_reason":null}]}`,
		`"finish_reason":null}],"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}`)
	secondChoice := strings.ReplaceAll(roleChunk+helloChunk+worldChunk+stopChunk, `"index":0`, `"index":1`)
	content := roleChunk + helloChunk + worldChunk + stopChunk
	for name, test := range map[string]struct {
		request    string
		sent, want string
		asked      bool // the backend sees include_usage
		counted    bool
	}{
		"asked":            {usageAsked, content + usageChunk + doneEvent, content + usageChunk + doneEvent, true, true},
		"injected":         {streamBody("m"), content + usageChunk + doneEvent, content + doneEvent, true, true},
		"declined":         {strings.Replace(usageAsked, "true}", "false}", 1), content + usageChunk + doneEvent, content + doneEvent, true, true},
		"other options":    {strings.Replace(usageAsked, "include_usage", "include_obfuscation", 1), content + usageChunk + doneEvent, content + doneEvent, true, true},
		"ignored":          {streamBody("m"), content + doneEvent, content + doneEvent, true, false},
		"on every chunk":   {streamBody("m"), roleChunk + onEveryChunk + stopChunk + usageChunk + doneEvent, roleChunk + onEveryChunk + stopChunk + doneEvent, true, true},
		"only on chunks":   {streamBody("m"), roleChunk + onEveryChunk + strings.Replace(stopChunk, "}]}", `}],"usage":{"prompt_tokens":7,"completion_tokens":2}}`, 1) + doneEvent, "", true, true},
		"two choices":      {streamBody("m"), content + secondChoice + usageChunk + doneEvent, content + secondChoice + doneEvent, true, true},
		"without [DONE]":   {streamBody("m"), content + usageChunk, content, true, true},
		"no blank line":    {streamBody("m"), content + strings.TrimSpace(usageChunk), content, true, true},
		"comment after it": {streamBody("m"), content + usageChunk + ": bye\n\n" + doneEvent, content + ": bye\n\n" + doneEvent, true, true},
		"usage null":       {streamBody("m"), content + strings.Replace(stopChunk, "}]}", `}],"usage":null}`, 1) + usageChunk + doneEvent, content + strings.Replace(stopChunk, "}]}", `}],"usage":null}`, 1) + doneEvent, true, true},
		"empty choices":    {streamBody("m"), `data: {"choices":[],"prompt_filter_results":[]}` + "\n\n" + content + usageChunk + doneEvent, `data: {"choices":[],"prompt_filter_results":[]}` + "\n\n" + content + doneEvent, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, backend := hidingGateway(t, always(fakellm.Stream(), fakellm.Send(test.sent)))
				want := test.want
				if want == "" {
					want = test.sent
				}
				if got := g.chat(test.request); got.err != nil || got.body != want {
					t.Errorf("error %v, body\n%q, want\n%q", got.err, got.body, want)
				}
				if got := backend.Requests()[0].IncludeUsage; got != test.asked {
					t.Errorf("the backend was asked for usage: %t", got)
				}
				completion := g.metric(`firsttoken_tokens_total{kind="completion",model="m"}`)
				line := g.access()[0]
				if line["reason"] != "ok" {
					t.Errorf("access line %v", line)
				}
				if test.counted != (line["completion_tokens"] == 2.0 && line["prompt_tokens"] == 7.0 && completion == "2") {
					t.Errorf("completion tokens %s in the metrics, access line %v; want 7 and 2 counted once: %t", completion, line, test.counted)
				}
			})
		})
	}
}

// TestUsageChunkSplit hides the chunk however it is split, alone in its reads
// or together with its neighbours.
func TestUsageChunkSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content := roleChunk + helloChunk + stopChunk
		sent := content + usageChunk + doneEvent
		cut := make(chan []int, 1)
		g, _ := hidingGateway(t, func(*fakellm.Request) fakellm.Script {
			return fakellm.Script{fakellm.Stream(), fakellm.SplitAt(sent, time.Millisecond, <-cut...)}
		})
		check := func(at ...int) {
			t.Helper()
			cut <- at
			if got := g.chat(streamBody("m")); got.err != nil || got.body != content+doneEvent {
				t.Fatalf("split at %v: error %v, body %q", at, got.err, got.body)
			}
		}
		from, to := len(content), len(content)+len(usageChunk)
		for at := from - 2; at <= to+2; at++ {
			check(at)
			if from < at && at < to {
				check(from, at, to)
			}
		}
		for _, line := range g.access() {
			if line["completion_tokens"] != 2.0 || line["reason"] != "ok" {
				t.Fatalf("access line %v", line)
			}
		}
	})
}

// TestUsageChunkEndpoints: completions are treated as chats are; requests
// without that option are left alone.
func TestUsageChunkEndpoints(t *testing.T) {
	for path, asked := range map[string]bool{"/v1/completions": true, "/v1/chat/completions": true, "/v1/responses": false} {
		for _, streams := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s_%t", strings.TrimPrefix(path, "/v1/"), streams), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g, backend := hidingGateway(t, nil)
					body := fmt.Sprintf(`{"model":"m","stream":%t,"prompt":"x","input":"x","messages":[{"role":"user","content":"x"}]}`, streams)
					resp, err := g.post(t.Context(), path, body)
					if err != nil {
						t.Fatal(err)
					}
					got := readAnswer(resp)
					if r := backend.Requests()[0]; r.IncludeUsage != (asked && streams) {
						t.Errorf("the backend was asked for usage: %t", r.IncludeUsage)
					}
					if hidden := !strings.Contains(got.body, "completion_tokens"); hidden != streams {
						t.Errorf("usage hidden: %t, body %q", hidden, got.body)
					}
				})
			})
		}
	}
}
