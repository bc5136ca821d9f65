package app_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// TestFlushLatency: in virtual time every event, comment and keep-alive
// reaches the client at the very instant at which the backend wrote it. The
// figure on a real network is BenchmarkFlushLatency's.
func TestFlushLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := []arrival{
			{10 * time.Millisecond, ": a comment\n\n"},
			{25 * time.Millisecond, ": a keep-alive without a blank line\n"},
			{40 * time.Millisecond, ":\n\n"},
			{55 * time.Millisecond, "\n"},
			{300 * time.Millisecond, roleChunk},
			{301 * time.Millisecond, helloChunk},
			{302 * time.Millisecond, worldChunk + worldChunk},
			{500 * time.Millisecond, ": ping\n\n"},
			{900 * time.Millisecond, stopChunk},
			{901 * time.Millisecond, doneEvent},
		}
		script := fakellm.Script{fakellm.Stream()}
		for i, a := range want {
			gap := a.at
			if i > 0 {
				gap -= want[i-1].at
			}
			script = append(script, fakellm.Wait(gap), fakellm.Send(a.text))
		}
		g, _ := twins(t, lenient, always(script...))
		start := time.Now()
		resp := g.stream(context.Background())
		if at := time.Since(start); at != want[0].at {
			t.Errorf("header after %v, want it with the first byte, after %v", at, want[0].at)
		}
		got, err := arrivals(resp.Body, start)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("error %v; arrivals\n%+v, want\n%+v", err, got, want)
		}
		if line := g.access()[0]; line["ttft_ms"] != 301.0 || line["first_token"] != "content" || line["chunks"] != 3.0 {
			t.Errorf("access line %v, want the first token at 301 ms and 3 chunks", line)
		}
	})
}

// reading is what the access log must say of a recorded exchange; read off
// the recordings by a program of its own.
type reading struct {
	first              string
	firstAt            int // which event, comments included, has the first token
	chunks             int
	prompt, completion int // -1: no usage
	finish             string
	reason             string
}

var readings = map[string]reading{
	"ollama_qwen3_chat_stream.sse":                   {"reasoning", 0, 284, 17, 289, "stop", "ok"},
	"llamabox_qwen3_chat_stream.sse":                 {"reasoning", 1, 168, 15, 171, "stop", "ok"},
	"deepseek_chat_stream.sse":                       {"content", 1, 8, 11, 8, "stop", "ok"},
	"mistral_chat_stream.sse":                        {"content", 1, 3, 22, 8, "stop", "ok"},
	"perplexity_chat_stream.sse":                     {"content", 0, 5, 8, 5, "stop", "ok"},
	"openrouter_chat_stream.sse":                     {"content", 5, 1, 15, 9, "stop", "ok"},
	"openai_responses_stream.sse":                    {"content", 6, 7, 13, 284, "stop", "ok"},
	"anthropic_messages_stream.sse":                  {"content", 3, 1, 15, 9, "end_turn", "ok"},
	"ollamacloud_gptoss_stream_vs_nonstream_0.sse":   {"reasoning", 0, 35, 74, 45, "stop", "ok"},
	"ollamacloud_gptoss_stream_vs_nonstream_1.json":  {"", 0, 0, 74, 45, "stop", "ok"},
	"deepseek_tools_stream_0.sse":                    {"tool", 1, 25, 348, 65, "tool_calls", "ok"},
	"deepseek_tools_stream_1.sse":                    {"content", 1, 21, 451, 21, "stop", "ok"},
	"deepseek_tools_stream_2.sse":                    {"tool", 1, 25, 495, 65, "tool_calls", "ok"},
	"deepseek_tools_stream_3.sse":                    {"content", 1, 27, 598, 27, "stop", "ok"},
	"openai_chat_tools_stream_0.sse":                 {"tool", 0, 6, 53, 15, "tool_calls", "ok"},
	"openai_chat_tools_stream_1.sse":                 {"content", 1, 8, 78, 9, "stop", "ok"},
	"vllm_llama33-70b_chat_stream.sse":               {"content", 1, 13, 46, 14, "stop", "ok"},
	"openrouter_midstream_error.sse":                 {"reasoning", 17, 2, 43, 10, "length", "engine_error_event"},
	"groq_midstream_tool_error_0.sse":                {"reasoning", 1, 93, -1, -1, "", "engine_error_event"},
	"groq_midstream_tool_error_1.sse":                {"reasoning", 1, 23, 304, 49, "tool_calls", "ok"},
	"groq_midstream_tool_error_2.sse":                {"reasoning", 1, 48, 339, 58, "stop", "ok"},
	"error_auth_openai.json":                         {"", 0, 0, -1, -1, "", "engine_4xx"},
	"error_auth_deepseek.json":                       {"", 0, 0, -1, -1, "", "engine_4xx"},
	"error_auth_mistral.json":                        {"", 0, 0, -1, -1, "", "engine_4xx"},
	"error_auth_openrouter.json":                     {"", 0, 0, -1, -1, "", "engine_4xx"},
	"error_auth_anthropic.json":                      {"", 0, 0, -1, -1, "", "engine_4xx"},
	"error_context_length_openai.json":               {"", 0, 0, -1, -1, "", "engine_4xx"},
	"error_context_length_deepseek.json":             {"", 0, 0, -1, -1, "", "engine_4xx"},
	"error_context_length_gpt-oss-ollama-cloud.json": {"", 0, 0, -1, -1, "", "engine_4xx"},
	"openai_gpt35_stream_success.sse":                {"content", 1, 9, -1, -1, "stop", "ok"},
	"openai_gpt35_stream_nodone.sse":                 {"content", 1, 9, -1, -1, "stop", "ok"},
	"openai_gpt35_stream_empty.sse":                  {"", 0, 0, -1, -1, "stop", "ok"},
	"azureopenai_stream_success.sse":                 {"content", 1, 9, -1, -1, "stop", "ok"},
	"openai_gpt4omini_stream.sse":                    {"content", 1, 4, -1, -1, "stop", "ok"},
	"groq_llama33_stream.sse":                        {"content", 1, 3, 38, 4, "stop", "ok"},
	"openai_gpt41nano_long_stream.sse":               {"content", 1, 300, 16, 300, "stop", "ok"},
	"vllm032_cpu_chat_stream.sse":                    {"content", 1, 11, 8, 16, "length", "ok"},
	"llamacpp2026_gemma3_chat_stream.sse":            {"content", 1, 16, 29, 16, "length", "ok"},
}

// fields are the parts of an access line that the reading is about.
func (r reading) fields(gap time.Duration) map[string]any {
	f := map[string]any{"reason": r.reason}
	if r.first != "" {
		f["first_token"], f["chunks"] = r.first, float64(r.chunks)
		f["ttft_ms"] = float64((time.Duration(r.firstAt) * gap).Microseconds()) / 1e3
	}
	if r.prompt >= 0 {
		f["prompt_tokens"], f["completion_tokens"] = float64(r.prompt), float64(r.completion)
	}
	if r.finish != "" {
		f["finish_reason"] = r.finish
	}
	return f
}

// TestByteSplitRecorded plays each recorded exchange through the gateway,
// event by event in time and then split at random and at its line ends: the
// client gets the recorded bytes, and the log reads them right.
func TestByteSplitRecorded(t *testing.T) {
	for _, e := range fakellm.Recordings(t) {
		t.Run(e.File, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playRecorded(t, e) })
		})
	}
}

func playRecorded(t *testing.T, e fakellm.Exchange) {
	const gap = 10 * time.Millisecond
	want, known := readings[e.File]
	if !known {
		t.Fatal("no reading for this recording")
	}
	cuts := make(chan []int, 1)
	if e.Stream && e.Header.Get("Content-Type") == "" { // not recorded
		e.Header.Set("Content-Type", "text/event-stream")
	}
	head := fakellm.Recorded(e)[0]
	g, backend := twins(t, lenient, func(*fakellm.Request) fakellm.Script {
		return fakellm.Script{head, fakellm.SplitAt(string(e.Body), gap, <-cuts...)}
	})
	body := fmt.Sprintf(`{"model":"m","stream":%t,"messages":[{"role":"user","content":"x"}],"input":"x"}`, e.Stream)
	path := "/v1/chat/completions"
	if strings.HasSuffix(e.Path, "/responses") {
		path = "/v1/responses"
	}
	play := func(at ...int) {
		t.Helper()
		cuts <- at
		resp, err := g.post(context.Background(), path, body)
		if err != nil {
			t.Fatal(err)
		}
		got := readAnswer(resp)
		if got.err != nil || got.status != e.Status || got.body != string(e.Body) {
			t.Fatalf("split at %v: status %d, error %v, %d bytes %q; want %d, the %d recorded bytes",
				at, got.status, got.err, len(got.body), got.body[max(0, len(got.body)-200):], e.Status, len(e.Body))
		}
		if want := e.Header.Get("Content-Type"); want != "" && got.header.Get("Content-Type") != want {
			t.Errorf("content type %q, want %q", got.header.Get("Content-Type"), want)
		}
	}
	play(eventEnds(string(e.Body))...)
	cutsPlayed := splits(string(e.Body))
	for _, at := range cutsPlayed {
		play(at)
	}
	if n := 1 + len(cutsPlayed); backend.Count() != n {
		t.Errorf("%d attempts for %d requests", backend.Count(), n)
	}
	for i, line := range g.access() {
		fields := want.fields(gap)
		if i > 0 {
			delete(fields, "ttft_ms")
		}
		for name, v := range fields {
			if line[name] != v {
				t.Fatalf("request %d: %s is %v in the access log, want %v", i, name, line[name], v)
			}
		}
		if want.first == "" && line["first_token"] != nil || want.prompt < 0 && line["prompt_tokens"] != nil {
			t.Fatalf("request %d: access line %v, want no token and no usage beyond %v", i, line, fields)
		}
	}
}

// eventEnds are the offsets of all event ends but the last.
func eventEnds(body string) (ends []int) {
	sep := "\n\n"
	if strings.Contains(body, "\r\n\r\n") {
		sep = "\r\n\r\n"
	}
	for at := 0; ; {
		i := strings.Index(body[at:], sep)
		if i < 0 || at+i+len(sep) == len(body) {
			return ends
		}
		at += i + len(sep)
		ends = append(ends, at)
	}
}

// splits are some offsets at random and some around line ends, fewer of a
// longer body.
func splits(body string) (at []int) {
	most := min(40, 512<<10/len(body))
	rng := rand.New(rand.NewPCG(2, uint64(len(body))))
	for range most {
		at = append(at, rng.IntN(len(body)))
	}
	for range most / 2 {
		from := rng.IntN(len(body))
		if i := strings.IndexByte(body[from:], '\n'); i >= 0 {
			at = append(at, from+i, from+i+1)
		}
	}
	return at
}

// TestLongLine passes data lines of 300 KB to 4 MiB, reads what they say, and
// does not hold them back.
func TestLongLine(t *testing.T) {
	for _, size := range []int{64 << 10, 300_000, 1 << 20, 4 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				long := chunk(`{"content":"`+strings.Repeat("long ", size/5)+`"}`, "")
				body := roleChunk + long + helloChunk + stopChunk + usageChunk + doneEvent
				g, _ := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(body)))
				got := g.chat(streamBody("m"))
				if got.err != nil || got.body != body {
					t.Fatalf("error %v, %d bytes, want %d unchanged", got.err, len(got.body), len(body))
				}
				line := g.access()[0]
				if line["reason"] != "ok" || line["chunks"] != 2.0 || line["completion_tokens"] != 2.0 {
					t.Errorf("access line %v", line)
				}
			})
		})
	}
}

// TestLongLineMemory: what the gateway keeps of a long line is bounded,
// whatever its length and however slowly it is read.
func TestLongLineMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		piece := strings.Repeat("x", 4<<10)
		g, _ := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(`data: {"choices":[{"index":0,"delta":{"content":"`),
			func(w *fakellm.Response) error {
				for range 4 << 10 {
					if err := w.Send(piece); err != nil {
						return err
					}
					sent += len(piece)
				}
				return nil
			}))
		ctx, cancel := context.WithCancel(context.Background())
		resp := g.stream(ctx)
		synctest.Wait() // nobody reads
		const window = 64 << 10
		if most := 2*window + 256<<10; sent > most {
			t.Errorf("the gateway took %d bytes of a line that nobody reads, want at most %d", sent, most)
		}
		cancel()
		resp.Body.Close()
	})
}

// TestLongLineCut: a piece of an event that went on in pieces is closed, so
// that the error that follows is an event of its own.
func TestLongLineCut(t *testing.T) {
	for name, end := range map[string]fakellm.Step{"ended": fakellm.CutClean(), "reset": fakellm.Reset(), "silent": fakellm.Hang()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				torn := roleChunk + `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("long ", 60_000)
				g, backend := twins(t, lenient, always(fakellm.Stream(), fakellm.Send(torn), end))
				got := g.chat(streamBody("m"))
				code := map[string]string{"ended": "upstream_stream_truncated", "reset": "upstream_connection_lost",
					"silent": "upstream_first_token_timeout"}[name]
				checkBroken(t, got, torn+"\n\n", code)
				if backend.Count() != 1 {
					t.Errorf("%d attempts, want no retry after a piece was sent", backend.Count())
				}
			})
		})
	}
}

// TestNoCompression: engines are asked not to compress. One that does all the
// same is passed on byte for byte, without delay, and a broken answer of it
// does not look whole.
func TestNoCompression(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	var parts []string
	for _, event := range []string{roleChunk, helloChunk, worldChunk, stopChunk + doneEvent} {
		if _, err := z.Write([]byte(event)); err != nil {
			t.Fatal(err)
		}
		if err := z.Flush(); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, zipped.String())
		zipped.Reset()
	}
	header := fakellm.Header(http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}, "Content-Encoding": {"gzip"}})
	script := fakellm.Script{header}
	var want []arrival
	for i, part := range parts {
		script = append(script, fakellm.Wait(10*time.Millisecond), fakellm.Send(part))
		want = append(want, arrival{time.Duration(i+1) * 10 * time.Millisecond, part})
	}

	t.Run("identity is asked for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, backend := twins(t, lenient, nil)
			g.chat(streamBody("m"), "Accept-Encoding", "gzip, br")
			if got := backend.Requests()[0].Header["Accept-Encoding"]; !reflect.DeepEqual(got, []string{"identity"}) {
				t.Errorf("Accept-Encoding %q, want identity", got)
			}
		})
	})
	t.Run("gzip is passed on", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, _ := twins(t, lenient, always(script...))
			start := time.Now()
			resp := g.stream(context.Background(), "Accept-Encoding", "gzip")
			got, err := arrivals(resp.Body, start)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("error %v; arrivals\n%+v, want\n%+v", err, got, want)
			}
			if resp.Header.Get("Content-Encoding") != "gzip" || resp.Header.Get("X-Accel-Buffering") != "no" {
				t.Errorf("header %v", resp.Header)
			}
			if line := g.access()[0]; line["reason"] != "ok" {
				t.Errorf("access line %v", line)
			}
		})
	})
	t.Run("gzip that breaks off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, _ := twins(t, lenient, always(append(script[:5:5], fakellm.Reset())...))
			got := g.chat(streamBody("m"), "Accept-Encoding", "gzip")
			if got.err == nil || got.body != parts[0]+parts[1] {
				t.Errorf("error %v, %d bytes; want a cut answer of %d", got.err, len(got.body), len(parts[0]+parts[1]))
			}
			if line := g.access()[0]; line["reason"] != "connection_lost" {
				t.Errorf("access line %v", line)
			}
		})
	})
}
