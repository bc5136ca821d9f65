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

// TestTruncated cuts a stream everywhere, in three ways. Before the first data
// event another backend serves the request; after it the client gets the whole
// events, one error event and no [DONE]; and only [DONE], or a clean end after
// the finish reason, is a success.
func TestTruncated(t *testing.T) {
	events := []string{": hello\n\n", roleChunk, helloChunk, worldChunk, stopChunk, doneEvent}
	full := strings.Join(events, "")
	finished := len(full) - len(doneEvent) - len("\n\n")
	for name, end := range map[string]fakellm.Step{"clean": fakellm.CutClean(), "reset": fakellm.Reset(), "closed": fakellm.Close()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cut := -1
				g, backend := twins(t, lenient, func(*fakellm.Request) fakellm.Script {
					if cut < 0 {
						return fakellm.Script{fakellm.Stream(), fakellm.Send(goodStream)}
					}
					at := cut
					cut = -1
					return fakellm.Script{fakellm.Stream(), fakellm.Send(full[:at]), end}
				})
				code, reason := "upstream_connection_lost", "connection_lost"
				if name == "clean" {
					code, reason = "upstream_stream_truncated", "stream_truncated"
				}
				broken, requests := 0, 0
				for _, at := range cutPoints(events) {
					cut = at
					requests++
					before := backend.Count()
					got := g.chat(streamBody("m"))
					whole, torn := wholeEvents(events, at, name == "clean")
					switch retried := backend.Count() - before - 1; {
					case at == len(full), name == "clean" && at >= finished && !torn:
						if got.body != full[:at] || retried != 0 {
							t.Fatalf("cut at %d: body %q after %d retries, want a success", at, got.body, retried)
						}
					case !strings.Contains(whole, "data:"):
						broken++
						if got.body != whole+goodStream || retried != 1 {
							t.Fatalf("cut at %d: body %q after %d retries, want one retry", at, got.body, retried)
						}
					default:
						broken++
						if retried != 0 {
							t.Fatalf("cut at %d: %d retries after a data event", at, retried)
						}
						checkBroken(t, got, whole, code)
						if t.Failed() {
							t.Fatalf("cut at %d", at)
						}
					}
				}
				if n := g.attempts(reason); n != broken {
					t.Errorf("%d attempts ended with %s, want %d", n, reason, broken)
				}
				if !g.blamed() {
					t.Error("no failure weighs on the backends")
				}
				for i, line := range g.access() {
					if line["status"] != 200.0 || (line["reason"] != "ok" && line["reason"] != reason) {
						t.Fatalf("access line %d: %v", i, line)
					}
				}
			})
		})
	}
}

// cutPoints are all offsets near event ends and every seventh between.
func cutPoints(events []string) (at []int) {
	from := 0
	for _, e := range events {
		for i := range e {
			if i < 12 || i > len(e)-8 || i%7 == 0 {
				at = append(at, from+i)
			}
		}
		from += len(e)
	}
	return append(at, from)
}

// wholeEvents is what a client may see of a stream cut at an offset; torn
// says that it was cut in the middle of an event. At a clean end the last data
// line needs no blank line after it; a comment never does.
func wholeEvents(events []string, at int, clean bool) (whole string, torn bool) {
	all := strings.Join(events, "")
	from := 0
	for _, e := range events {
		if from+len(e) > at {
			break
		}
		from += len(e)
	}
	rest := all[from:at]
	last := strings.HasSuffix(strings.TrimSpace(rest), `"stop"}]}`) || strings.HasPrefix(rest, "data: [DONE]")
	if rest == ": hello\n" || (clean && last) {
		return all[:at], false
	}
	return all[:from], rest != ""
}

// TestTruncatedLastWord: an error, a finish reason or a terminal event that
// was torn off says nothing, and is not taken for told.
func TestTruncatedLastWord(t *testing.T) {
	for name, torn := range map[string]string{
		"error":     `data: {"error":{"message":"CUDA error","type":"internal_error","code":500}`,
		"named":     "event: error\ndata: {\"message\":\"over",
		"finish":    strings.TrimSuffix(stopChunk, "}\n\n"),
		"abort":     strings.TrimSuffix(chunk(`{}`, "abort"), "}\n\n"),
		"completed": `data: {"type":"response.completed","response":{"status":"completed"}`,
		"failed":    `data: {"type":"response.failed","response":{"status":"failed"}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(roleChunk+helloChunk+torn), fakellm.CutClean()))
				checkBroken(t, g.chat(streamBody("m")), roleChunk+helloChunk, "upstream_stream_truncated")
				if g.attempts("stream_truncated") != 1 || !g.blamed() {
					t.Errorf("%d attempts counted as truncated", g.attempts("stream_truncated"))
				}
			})
		})
	}
}

// TestTruncatedResponses: on the Responses API the error event has its name.
func TestTruncatedResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		created := "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"status\":\"in_progress\",\"error\":null}}\n\n"
		delta := "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n"
		g, _ := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(created, delta), fakellm.CutClean()))
		resp, err := g.post(t.Context(), "/v1/responses", `{"model":"m","stream":true,"input":"hi"}`)
		if err != nil {
			t.Fatal(err)
		}
		got := readAnswer(resp)
		checkBroken(t, got, created+delta, "upstream_stream_truncated")
		if !strings.HasPrefix(got.body, created+delta+"event: error\ndata: ") {
			t.Errorf("body %q, want an event named error", got.body)
		}
	})
}

// TestTruncatedResponsesEnd: response.completed is an end of its own, and
// what an engine says of a failed response is enough.
func TestTruncatedResponsesEnd(t *testing.T) {
	delta := "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n"
	completed := "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"error\":null,\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n"
	failed := "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"x\"}}}\n\n"
	for name, test := range map[string]struct {
		last   string
		end    fakellm.Step
		reason string
	}{
		"completed":             {completed, fakellm.CutClean(), "ok"},
		"completed, then reset": {completed, fakellm.Reset(), "ok"},
		"completed, then open":  {completed, fakellm.Hang(), "ok"},
		"completed and [DONE]":  {completed + doneEvent, fakellm.CutClean(), "ok"},
		"failed":                {failed, fakellm.CutClean(), "engine_error_event"},
		"failed, then open":     {failed, fakellm.Hang(), "engine_error_event"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(delta+test.last), test.end))
				start := time.Now()
				resp, err := g.post(t.Context(), "/v1/responses", `{"model":"m","stream":true,"input":"hi"}`)
				if err != nil {
					t.Fatal(err)
				}
				if got := readAnswer(resp); got.err != nil || got.body != delta+test.last {
					t.Errorf("error %v, body %q, want it unchanged", got.err, got.body)
				}
				if d := time.Since(start); d > 100*time.Millisecond {
					t.Errorf("the stream ended after %v", d)
				}
				if line := g.access()[0]; line["reason"] != test.reason {
					t.Errorf("access line %v, want the reason %s", line, test.reason)
				}
			})
		})
	}
}

// TestTruncatedUnstreamed: an unstreamed answer that breaks off is retried,
// and one that is too long to be held looks broken to the client.
func TestTruncatedUnstreamed(t *testing.T) {
	body := `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]}`
	long := `{"id":"c","choices":[{"index":0,"message":{"content":"` + strings.Repeat("long ", 400_000) + `"},"finish_reason":"stop"}]}`
	header := func(length int) fakellm.Step {
		h := http.Header{"Content-Type": {"application/json"}}
		if length > 0 {
			h.Set("Content-Length", fmt.Sprint(length))
		}
		return fakellm.Header(http.StatusOK, h)
	}
	for name, test := range map[string]struct {
		script fakellm.Script
		reason string
	}{
		"before its length": {fakellm.Script{header(len(body)), fakellm.Send(body[:40]), fakellm.Close()}, "connection_lost"},
		"reset":             {fakellm.Script{header(0), fakellm.Send(body[:40]), fakellm.Reset()}, "connection_lost"},
		"between chunks":    {fakellm.Script{header(0), fakellm.Send(body[:40]), fakellm.Close()}, "connection_lost"},
		"in a chunk":        {fakellm.Script{header(0), fakellm.CutDirty(body[:40])}, "connection_lost"},
		"within the JSON":   {fakellm.Script{header(0), fakellm.Send(body[:40]), fakellm.CutClean()}, "stream_truncated"},
		"empty":             {fakellm.Script{header(0), fakellm.CutClean()}, "stream_truncated"},
		"no header":         {fakellm.Script{fakellm.Reset()}, "connection_lost"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := twins(t, lenient, fakellm.Sequence(test.script, fakellm.Status(http.StatusOK, nil, body), test.script))
				if got := g.chat(plainBody("m")); got.status != http.StatusOK || got.body != body {
					t.Errorf("status %d, body %q; want the other backend's", got.status, got.body)
				}
				got := g.chat(plainBody("m"))
				if got.status != http.StatusBadGateway {
					t.Errorf("status %d when nobody can answer, want 502", got.status)
				}
				checkError(t, got.body, "upstream_"+test.reason)
				if n := g.attempts(test.reason); n != 3 {
					t.Errorf("%d attempts ended with %s, want 3", n, test.reason)
				}
			})
		})
	}
	t.Run("long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, backend := twins(t, lenient, always(header(0), fakellm.Send(long[:len(long)-100]), fakellm.Reset()))
			if got := g.chat(plainBody("m")); got.err == nil {
				t.Errorf("status %d, %d bytes, no error; want a broken answer", got.status, len(got.body))
			}
			if line := g.access()[0]; line["reason"] != "connection_lost" || backend.Count() != 1 {
				t.Errorf("%d attempts, access line %v", backend.Count(), line)
			}
		})
	})
	t.Run("long and whole", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, _ := twins(t, lenient, always(header(len(long)), fakellm.Send(long)))
			got := g.chat(plainBody("m"))
			if got.body != long || got.header.Get("Content-Length") != fmt.Sprint(len(long)) {
				t.Errorf("%d bytes, header %v; want %d bytes", len(got.body), got.header, len(long))
			}
		})
	})
}

// TestAbortFinish: a finish reason by which an engine gave up is a failure.
func TestAbortFinish(t *testing.T) {
	for _, finish := range []string{"abort", "error"} {
		abort := chunk(`{}`, finish)
		t.Run(finish, func(t *testing.T) {
			for name, end := range map[string]fakellm.Step{"done": fakellm.Done(), "ended": fakellm.CutClean(), "reset": fakellm.Reset()} {
				t.Run("stream "+name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						g, backend := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(roleChunk+helloChunk+abort), end))
						got := g.chat(streamBody("m"))
						checkBroken(t, got, roleChunk+helloChunk+abort, "upstream_engine_aborted")
						if n := g.attempts("engine_aborted"); n != 1 || backend.Count() != 1 || !g.blamed() {
							t.Errorf("%d of %d attempts counted as aborted, blamed %t", n, backend.Count(), g.blamed())
						}
						if line := g.access()[0]; line["reason"] != "engine_aborted" || line["finish_reason"] != finish {
							t.Errorf("access line %v", line)
						}
					})
				})
			}
			t.Run("first event", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g, _ := twins(t, lenient, fakellm.Sequence(
						fakellm.Script{fakellm.Stream(), fakellm.Send(": ping\n\n" + abort + doneEvent)},
						fakellm.Script{fakellm.Stream(), fakellm.Send(goodStream)}))
					if got := g.chat(streamBody("m")); got.body != goodStream {
						t.Errorf("body %q, want the other backend's", got.body)
					}
					if line := g.access()[0]; line["reason"] != "ok" || line["attempts"] != 2.0 {
						t.Errorf("access line %v", line)
					}
				})
			})
			t.Run("unstreamed", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					gaveUp := fakellm.Status(http.StatusOK, nil, `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"`+finish+`"}]}`)
					fine := `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}`
					g, _ := twins(t, lenient, fakellm.Sequence(gaveUp, fakellm.Status(http.StatusOK, nil, fine), gaveUp))
					if got := g.chat(plainBody("m")); got.status != http.StatusOK || got.body != fine {
						t.Errorf("status %d, body %q; want the other backend's", got.status, got.body)
					}
					got := g.chat(plainBody("m"))
					if got.status != http.StatusBadGateway {
						t.Errorf("status %d, want 502", got.status)
					}
					checkError(t, got.body, "upstream_engine_aborted")
				})
			})
		})
	}
}

// TestErrorBeforeFirstByte: what an engine answers instead of a stream keeps
// its status and body. Faults of the request are passed on at once, refusals
// after another backend was asked.
func TestErrorBeforeFirstByte(t *testing.T) {
	openAI := `{"error":{"message":"no","type":"some_error","param":null,"code":"some_code"}}`
	for _, test := range []struct {
		kind, body string
		keep       bool // the body of a refusal is one that clients can read
	}{
		{"application/json", openAI, true},
		{"application/json; charset=utf-8", "{\n  \"detail\": \"no\"\n}\n", true},
		{"application/problem+json", `{"title":"no"}`, true},
		{"text/html", "<html><h1>502 Bad Gateway</h1></html>", false},
		{"text/plain", "upstream connect error", false},
		{"application/octet-stream", openAI, false},
		{"text/event-stream", "data: " + openAI + "\n\n", true},
		{"application/json", "", true},
	} {
		for _, status := range []int{400, 401, 404, 413, 422, 429, 500, 501, 503} {
			t.Run(fmt.Sprintf("%d %s %d bytes", status, test.kind, len(test.body)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					header := http.Header{"Content-Type": {test.kind}, "Retry-After": {"7"}, "X-Ratelimit-Limit-Requests": {"60"}}
					g, backend := twins(t, lenient, always(fakellm.Status(status, header, test.body)...))
					refusal := status == 429 || status >= 500
					tries := 1
					if refusal && status != 501 {
						tries = 2
					}
					for i, body := range []string{streamBody("m"), plainBody("m")} {
						got := g.chat(body)
						if got.status != status || got.header.Get("Retry-After") != "7" || got.header.Get("X-Ratelimit-Limit-Requests") != "60" {
							t.Errorf("status %d, header %v", got.status, got.header)
						}
						switch {
						case !refusal || test.keep:
							if got.body != test.body || got.header.Get("Content-Type") != test.kind {
								t.Errorf("body %q of type %q, want it unchanged", got.body, got.header.Get("Content-Type"))
							}
						case status == 429:
							checkError(t, got.body, "upstream_engine_429")
						default:
							checkError(t, got.body, "upstream_engine_5xx")
						}
						if backend.Count() != (i+1)*tries {
							t.Errorf("%d attempts after %d requests, want %d each", backend.Count(), i+1, tries)
						}
					}
					if blamed := g.blamed(); blamed != refusal {
						t.Errorf("the backend was blamed: %t", blamed)
					}
				})
			})
		}
	}
}

// TestErrorBeforeFirstByteRetried: a refusal of one backend is not seen when
// the other serves.
func TestErrorBeforeFirstByteRetried(t *testing.T) {
	inStream := `data: {"error":{"message":"CUDA error","type":"internal_error","code":500}}` + "\n\n"
	for name, refusal := range map[string]fakellm.Script{
		"503":                  fakellm.Status(503, nil, `{"error":{"message":"busy"}}`),
		"429":                  fakellm.Status(429, nil, `{"error":{"message":"busy"}}`),
		"first event":          {fakellm.Stream(), fakellm.Send(inStream + doneEvent)},
		"after comments":       {fakellm.Stream(), fakellm.Send(": a\n\n"), fakellm.Send(": b\n\n" + inStream)},
		"no blank line":        {fakellm.Stream(), fakellm.Send(strings.TrimSpace(inStream))},
		"rate limit in stream": {fakellm.Stream(), fakellm.Send(`data: {"error":{"code":"rate_limit_exceeded"}}` + "\n\n")},
		"200 with an error":    fakellm.Status(200, nil, `{"error":{"message":"CUDA error","type":"internal_error","code":500}}`),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := twins(t, lenient, fakellm.Sequence(refusal, fakellm.Script{fakellm.Stream(), fakellm.Send(goodStream)}))
				got := g.chat(streamBody("m"))
				if got.status != http.StatusOK || !strings.HasSuffix(got.body, goodStream) || strings.Contains(got.body, "error") {
					t.Errorf("status %d, body %q; want the other backend's stream", got.status, got.body)
				}
				if line := g.access()[0]; line["reason"] != "ok" || line["attempts"] != 2.0 {
					t.Errorf("access line %v", line)
				}
			})
		})
	}
}

// TestErrorEvent: an engine's own error event reaches the client unchanged,
// with nothing added, wherever it comes; it counts as a failure of the engine
// unless the request was at fault.
func TestErrorEvent(t *testing.T) {
	fault := `data: {"error":{"message":"CUDA error","type":"internal_error","code":500}}` + "\n\n"
	invalid := `data: {"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}` + "\n\n"
	named := "event: error\ndata: {\"type\":\"error\",\"message\":\"overloaded\"}\n\n"
	for name, test := range map[string]struct {
		body   string
		end    fakellm.Step
		blamed bool
		tries  int
	}{
		"first":                 {fault, fakellm.CutClean(), true, 2},
		"first, after comments": {": a\n\n" + fault, fakellm.CutClean(), true, 2},
		"first, request":        {invalid, fakellm.CutClean(), false, 1},
		"midway":                {roleChunk + helloChunk + fault, fakellm.CutClean(), true, 1},
		"midway, [DONE]":        {roleChunk + helloChunk + fault + doneEvent, fakellm.CutClean(), true, 1},
		"midway, reset":         {roleChunk + helloChunk + fault, fakellm.Reset(), true, 1},
		"midway, request":       {roleChunk + helloChunk + invalid + doneEvent, fakellm.CutClean(), false, 1},
		"midway, named":         {roleChunk + helloChunk + named, fakellm.CutClean(), true, 1},
		"last, no blank line":   {roleChunk + helloChunk + strings.TrimSpace(fault), fakellm.CutClean(), true, 1},
		"after the answer":      {roleChunk + helloChunk + stopChunk + fault, fakellm.CutClean(), true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, backend := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(test.body), test.end))
				got := g.chat(streamBody("m"))
				if got.err != nil || got.status != http.StatusOK || got.body != test.body {
					t.Errorf("error %v, status %d, body\n%q, want\n%q", got.err, got.status, got.body, test.body)
				}
				if backend.Count() != test.tries || g.attempts("engine_error_event") != test.tries || g.blamed() != test.blamed {
					t.Errorf("%d attempts, %d counted as engine errors, blamed %t", backend.Count(), g.attempts("engine_error_event"), g.blamed())
				}
				if line := g.access()[0]; line["reason"] != "engine_error_event" {
					t.Errorf("access line %v", line)
				}
			})
		})
	}
}

// TestErrorEventOverload: an engine that says inside a stream that it is
// overloaded is treated as one that answers 429: it is not taken out.
func TestErrorEventOverload(t *testing.T) {
	for code, ejected := range map[string]float64{`"rate_limit_exceeded"`: 0, "429": 0, "500": 1} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := twins(t, "", always(fakellm.Stream(), fakellm.Send(roleChunk+`data: {"error":{"message":"busy","code":`+code+`}}`+"\n\n")))
				for range 30 {
					g.chat(streamBody("m"))
				}
				if n := g.sumOver("firsttoken_backend_ejected"); n != ejected {
					t.Errorf("%v backends ejected, want %v", n, ejected)
				}
			})
		})
	}
}

// TestCommentsThenFailure: comments of an engine that then fails commit the
// client's answer to a stream, so whatever comes of the next attempt is told
// as an event.
func TestCommentsThenFailure(t *testing.T) {
	first := fakellm.Script{fakellm.Stream(), fakellm.Send(": ping\n\n"), fakellm.Wait(time.Second), fakellm.Reset()}
	for name, test := range map[string]struct {
		second fakellm.Script
		want   string // after the comment; empty: an error event with the code
		code   string
	}{
		"served":      {fakellm.Script{fakellm.Stream(), fakellm.Send(goodStream)}, goodStream, ""},
		"4xx":         {fakellm.Status(400, nil, "{\"error\":\n{\"message\":\"too long\"}}"), `data: {"error":{"message":"too long"}}` + "\n\n", ""},
		"4xx HTML":    {fakellm.Status(404, nil, "<html>"), "", "upstream_engine_4xx"},
		"503":         {fakellm.Status(503, nil, `{"error":{"message":"busy"}}`), `data: {"error":{"message":"busy"}}` + "\n\n", ""},
		"503 HTML":    {fakellm.Status(503, nil, "<html>"), "", "upstream_engine_5xx"},
		"JSON":        {fakellm.Status(200, nil, `{"choices":[]}`), "", "upstream_bad_response"},
		"reset":       {fakellm.Script{fakellm.Reset()}, "", "upstream_connection_lost"},
		"ended":       {fakellm.Script{fakellm.Stream()}, "", "upstream_stream_truncated"},
		"error event": {fakellm.Script{fakellm.Stream(), fakellm.Send(`data: {"error":{"code":500}}` + "\n\n")}, `data: {"error":{"code":500}}` + "\n\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, backend := twins(t, lenient, fakellm.Sequence(first, test.second))
				got := g.chat(streamBody("m"))
				if test.want == "" {
					checkBroken(t, got, ": ping\n\n", test.code)
				} else if got.body != ": ping\n\n"+test.want {
					t.Errorf("body %q, want %q after the comment", got.body, test.want)
				}
				if backend.Count() != 2 {
					t.Errorf("%d attempts, want 2", backend.Count())
				}
			})
		})
	}
}

// TestAfterDone: the stream is over with [DONE], whatever the engine does
// after it; the client's answer ends soon, and a tidy engine keeps its
// connection.
func TestAfterDone(t *testing.T) {
	for name, test := range map[string]struct {
		after  []fakellm.Step
		reused bool
	}{
		"tidy end":      {nil, true},
		"late end":      {[]fakellm.Step{fakellm.Wait(20 * time.Millisecond)}, true},
		"kept open":     {[]fakellm.Step{fakellm.Hang()}, false},
		"reset":         {[]fakellm.Step{fakellm.Reset()}, false},
		"closed":        {[]fakellm.Step{fakellm.Close()}, false},
		"more events":   {[]fakellm.Step{fakellm.Send(helloChunk, ": x\n\n")}, true},
		"endless noise": {[]fakellm.Step{endless(": noise\n\n", time.Millisecond)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				script := append(fakellm.Script{fakellm.Stream(), fakellm.Send(goodStream)}, test.after...)
				backend := &fakellm.Backend{Script: always(script...)}
				g := startGateway(t, configFor(withTimeouts("idle: 20s"), "a:8000"), map[string]http.Handler{"a:8000": backend})
				for range 2 {
					start := time.Now()
					got, err := arrivals(g.stream(context.Background()).Body, start)
					if err != nil || len(got) != 1 || got[0] != (arrival{0, goodStream}) {
						t.Errorf("error %v, arrivals %v; want the stream at once and nothing after it", err, got)
					}
					if d := time.Since(start); d > 50*time.Millisecond {
						t.Errorf("the answer ended %v after [DONE]", d)
					}
				}
				if g.blamed() {
					t.Error("what came after [DONE] was held against the backend")
				}
				r := backend.Requests()
				if reused := r[0].RemoteAddr == r[1].RemoteAddr; reused != test.reused {
					t.Errorf("connection reused: %t", reused)
				}
				for _, line := range g.access() {
					if line["reason"] != "ok" {
						t.Errorf("access line %v", line)
					}
				}
			})
		})
	}
}

// endless sends s over and over, gap apart.
func endless(s string, gap time.Duration) fakellm.Step {
	return func(w *fakellm.Response) error {
		for {
			if err := (fakellm.Script{fakellm.Send(s), fakellm.Wait(gap)}).Play(w); err != nil {
				return err
			}
		}
	}
}

// TestEmptyStream: a stream without an event is a failure that another backend
// makes good; comments are no events.
func TestEmptyStream(t *testing.T) {
	for name, body := range map[string]string{
		"nothing": "", "comments": ": a\n\n: b\n\n", "blank lines": "\n\n\n", "fields": "id: 1\nretry: 5\n\n", "a torn event": `data: {"choices":[{"ind`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				empty := fakellm.Script{fakellm.Stream(), fakellm.Send(body), fakellm.CutClean()}
				g, _ := twins(t, lenient, fakellm.Sequence(empty, fakellm.Script{fakellm.Stream(), fakellm.Send(goodStream)}, empty))
				got := g.chat(streamBody("m"))
				if got.status != http.StatusOK || !strings.HasSuffix(got.body, goodStream) {
					t.Errorf("status %d, body %q; want the other backend's stream", got.status, got.body)
				}
				got = g.chat(streamBody("m"))
				if seen := strings.Index(got.body, "data: "); got.status == http.StatusOK && seen >= 0 {
					checkBroken(t, got, got.body[:seen], "upstream_stream_truncated")
				} else {
					if got.status != http.StatusBadGateway {
						t.Errorf("status %d, want 502", got.status)
					}
					checkError(t, got.body, "upstream_stream_truncated")
				}
				if n := g.attempts("stream_truncated"); n != 3 || !g.blamed() {
					t.Errorf("%d attempts counted as truncated, want 3", n)
				}
			})
		})
	}
}
