package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func testSpec() Spec {
	p := plain()
	p.KVBlocks, p.MaxBatchedTokens = 1000, 2000
	return Spec{Model: "m", Params: p}
}

func testServer(t *testing.T, spec Spec) *Server {
	t.Helper()
	s, err := NewServer(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// write is one flushed piece of an answer and when it came.
type write struct {
	at   time.Duration
	text string
}

// recorder is a client that notes when each piece of the answer arrives.
type recorder struct {
	header http.Header
	status int
	start  time.Time

	mu     sync.Mutex
	buf    bytes.Buffer
	writes []write
}

func newRecorder() *recorder { return &recorder{header: http.Header{}, start: time.Now()} }

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) { r.status = status }

func (r *recorder) Write(b []byte) (int, error) { return r.buf.Write(b) }

func (r *recorder) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, write{time.Since(r.start), r.buf.String()})
	r.buf.Reset()
}

func (r *recorder) pieces() []write {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writes
}

// post sends a request straight to the handler.
func post(ctx context.Context, s *Server, path, body string) (r *recorder, aborted bool) {
	r = newRecorder()
	defer func() {
		if v := recover(); v != nil {
			if v != http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
				panic(v)
			}
			aborted = true
		}
	}()
	s.ServeHTTP(r, httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(body)))
	return r, false
}

// call posts and decodes an answer that is not streamed.
func callJSON(t *testing.T, s *Server, path, body string, want int) map[string]any {
	t.Helper()
	r, aborted := post(t.Context(), s, path, body)
	if aborted || r.status != want {
		t.Fatalf("POST %s %s: status %d (aborted %v), want %d: %s", path, body, r.status, aborted, want, r.buf.String())
	}
	var v map[string]any
	if err := json.Unmarshal(r.buf.Bytes(), &v); err != nil {
		t.Fatalf("%v in %s", err, r.buf.String())
	}
	return v
}

// dig follows keys and indices into decoded JSON.
func dig(t *testing.T, v any, path ...any) any {
	t.Helper()
	for i, key := range path {
		switch k := key.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("no object at %v in %v", path[:i], v)
			}
			if v, ok = m[k]; !ok {
				t.Fatalf("no %v in %v", path[:i+1], m)
			}
		case int:
			a, ok := v.([]any)
			if !ok || k >= len(a) {
				t.Fatalf("no element at %v in %v", path[:i+1], v)
			}
			v = a[k]
		}
	}
	return v
}

const hello = `"model":"m","messages":[{"role":"user","content":"Hello there"}]`

// "Hello there" is 12 tokens: 2 and 3 of the message, 4 of the answer's header,
// the rest rounding; see TestPromptTokens.
const helloTokens = 2 + 3 + 4

func TestChatStreamHasExactTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		r, _ := post(t.Context(), s, "/v1/chat/completions",
			`{`+hello+`,"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`)
		if got := r.header.Get("Content-Type"); r.status != 200 || !strings.HasPrefix(got, "text/event-stream") {
			t.Fatalf("status %d, content type %q", r.status, got)
		}
		first := ms(5 + 10 + helloTokens)
		want := []time.Duration{0, first, first + ms(12), first + ms(24), first + ms(24)}
		pieces := r.pieces()
		if len(pieces) != len(want) {
			t.Fatalf("%d pieces, want %d: %v", len(pieces), len(want), pieces)
		}
		for i, p := range pieces {
			if p.at != want[i] {
				t.Errorf("piece %d at %v, want %v: %s", i, p.at, want[i], p.text)
			}
		}
		if pieces[0].text != "" {
			t.Errorf("the headers came with %q", pieces[0].text)
		}
		checkChatStream(t, pieces, 3)
		s.Close()
	})
}

func checkChatStream(t *testing.T, pieces []write, tokens int) {
	t.Helper()
	var all strings.Builder
	for _, p := range pieces {
		all.WriteString(p.text)
	}
	events := sseData(t, all.String())
	if len(events) != 1+tokens+3 || events[len(events)-1] != "[DONE]" {
		t.Fatalf("%d events, want role, %d tokens, end, usage, [DONE]: %v", len(events), tokens, events)
	}
	var text string
	id := ""
	for i, data := range events[:len(events)-1] {
		var chunk map[string]any
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		if chunk["object"] != "chat.completion.chunk" || chunk["model"] != "m" || dig(t, chunk, "created").(float64) <= 0 {
			t.Errorf("chunk %d: %s", i, data)
		}
		if i == 0 {
			id = chunk["id"].(string)
		}
		if chunk["id"] != id || !strings.HasPrefix(id, "chatcmpl-") {
			t.Errorf("chunk %d has id %v, the first %q", i, chunk["id"], id)
		}
		if i == len(events)-2 {
			if len(chunk["choices"].([]any)) != 0 || dig(t, chunk, "usage", "completion_tokens") != float64(tokens) ||
				dig(t, chunk, "usage", "prompt_tokens") != float64(helloTokens) || dig(t, chunk, "usage", "prompt_tokens_details", "cached_tokens") != 0.0 {
				t.Errorf("usage chunk %s", data)
			}
			continue
		}
		delta := dig(t, chunk, "choices", 0, "delta").(map[string]any)
		if dig(t, chunk, "choices", 0, "index") != 0.0 {
			t.Errorf("chunk %d: %s", i, data)
		}
		reason := dig(t, chunk, "choices", 0, "finish_reason")
		switch {
		case i == 0 && (delta["role"] != "assistant" || delta["content"] != "" || reason != nil):
			t.Errorf("first chunk %s", data)
		case i > 0 && i <= tokens:
			text += delta["content"].(string)
			if reason != nil {
				t.Errorf("token with a finish reason: %s", data)
			}
		case i > tokens && reason != "length":
			t.Errorf("last choice %s", data)
		}
	}
	if len(text) != tokens*bytesPerToken {
		t.Errorf("text %q, want %d tokens", text, tokens)
	}
}

// sseData gives the data of each event.
func sseData(t *testing.T, stream string) []string {
	t.Helper()
	var data []string
	for frame := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		for line := range strings.SplitSeq(frame, "\n") {
			if d, ok := strings.CutPrefix(line, "data: "); ok {
				data = append(data, d)
			} else if !strings.HasPrefix(line, "event: ") {
				t.Errorf("odd line %q", line)
			}
		}
	}
	return data
}

func TestPromptTokens(t *testing.T) {
	for _, c := range []struct {
		content string
		want    int
	}{
		{`"Hello there"`, helloTokens},
		{`""`, 6},
		{`null`, 6},
		{`[{"type":"text","text":"Hello "},{"type":"text","text":"there"}]`, helloTokens},
		{`"` + strings.Repeat("a", 4000) + `"`, 1006},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := testServer(t, testSpec())
			v := callJSON(t, s, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":`+c.content+`}],"max_tokens":1}`, 200)
			if got := dig(t, v, "usage", "prompt_tokens"); got != float64(c.want) {
				t.Errorf("%.40s: %v prompt tokens, want %d", c.content, got, c.want)
			}
			s.Close()
		})
	}
}

func TestWholeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		start := time.Now()
		chat := callJSON(t, s, "/v1/chat/completions", `{`+hello+`,"max_completion_tokens":5}`, 200)
		if got, want := time.Since(start), ms(5+10+helloTokens+4*12); got != want {
			t.Errorf("answered after %v, want %v", got, want)
		}
		text := dig(t, chat, "choices", 0, "message", "content").(string)
		if chat["object"] != "chat.completion" || len(text) != 20 || dig(t, chat, "choices", 0, "finish_reason") != "length" ||
			dig(t, chat, "choices", 0, "message", "role") != "assistant" || dig(t, chat, "usage", "total_tokens") != float64(helloTokens+5) {
			t.Errorf("chat %v", chat)
		}
		again := callJSON(t, s, "/v1/chat/completions", `{`+hello+`,"max_completion_tokens":5}`, 200)
		if dig(t, again, "choices", 0, "message", "content") != text || again["id"] == chat["id"] {
			t.Errorf("the same prompt gave %v, then %v", chat, again)
		}

		done := callJSON(t, s, "/v1/completions", `{"model":"m","prompt":"Once upon"}`, 200)
		if done["object"] != "text_completion" || dig(t, done, "usage", "completion_tokens") != 16.0 ||
			len(dig(t, done, "choices", 0, "text").(string)) != 64 || dig(t, done, "usage", "prompt_tokens") != 3.0 {
			t.Errorf("completion %v", done)
		}
		ids := callJSON(t, s, "/v1/completions", `{"model":"m","prompt":[1,2,3,4,5],"max_tokens":1}`, 200)
		if dig(t, ids, "usage", "prompt_tokens") != 5.0 {
			t.Errorf("token ids %v", ids)
		}
		s.Close()
	})
}

func TestFinishReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		ask := func(more string) (text, reason string, tokens int) {
			v := callJSON(t, s, "/v1/chat/completions", `{`+hello+more+`}`, 200)
			return dig(t, v, "choices", 0, "message", "content").(string),
				dig(t, v, "choices", 0, "finish_reason").(string), int(dig(t, v, "usage", "completion_tokens").(float64))
		}
		natural, reason, tokens := ask("")
		if reason != "stop" || tokens < 32 || tokens > 255 {
			t.Errorf("without a limit: %s after %d tokens", reason, tokens)
		}
		if _, reason, n := ask(`,"max_tokens":300,"ignore_eos":true`); reason != "length" || n != 300 {
			t.Errorf("ignore_eos: %s after %d tokens", reason, n)
		}
		if _, reason, n := ask(`,"max_tokens":300,"min_tokens":280`); reason != "stop" || n != 280 {
			t.Errorf("min_tokens: %s after %d tokens", reason, n)
		}
		word := natural[40:46]
		text, reason, n := ask(`,"stop":["not in it","` + word + `"]`)
		if before, _, _ := strings.Cut(natural, word); text != before || reason != "stop" || n != len(before)/4+1 {
			t.Errorf("stop %q: %q, %s, %d tokens; want %q", word, text, reason, n, before)
		}
		if same, _, _ := ask(`,"stop":null`); same != natural {
			t.Errorf("stop null gave %q", same)
		}
		s.Close()
	})
}

// The answer and what came before it are cached for the next turn, but not for
// another tenant.
func TestConversationHitsThePrefixCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		turn := func(salt string, messages ...string) (answer string, prompt, cached float64) {
			var list []string
			for i, m := range messages {
				list = append(list, fmt.Sprintf(`{"role":%q,"content":%q}`, []string{"user", "assistant"}[i%2], m))
			}
			v := callJSON(t, s, "/v1/chat/completions",
				`{"model":"m","cache_salt":"`+salt+`","messages":[`+strings.Join(list, ",")+`]}`, 200)
			return dig(t, v, "choices", 0, "message", "content").(string), dig(t, v, "usage", "prompt_tokens").(float64),
				dig(t, v, "usage", "prompt_tokens_details", "cached_tokens").(float64)
		}
		question := strings.Repeat("why? ", 100)
		answer, prompt, cached := turn("", question)
		if cached != 0 {
			t.Errorf("%v tokens cached at the start", cached)
		}
		held := prompt + float64(len(answer)/4)
		_, second, cached := turn("", question, answer, "And then?")
		if cached > held || cached < held-2*BlockTokens || second <= held {
			t.Errorf("second turn: %v of %v tokens cached, the first turn held %v", cached, second, held)
		}
		if _, _, cached := turn("other", question, answer, "And then?"); cached != 0 {
			t.Errorf("another tenant found %v tokens", cached)
		}
		s.Close()
	})
}

func TestResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		v := callJSON(t, s, "/v1/responses", `{"model":"m","input":"Hello there","instructions":"Be brief","max_output_tokens":4}`, 200)
		if v["object"] != "response" || v["status"] != "incomplete" || dig(t, v, "incomplete_details", "reason") != "max_output_tokens" ||
			len(dig(t, v, "output", 0, "content", 0, "text").(string)) != 16 || dig(t, v, "usage", "output_tokens") != 4.0 {
			t.Errorf("response %v", v)
		}

		r, _ := post(t.Context(), s, "/v1/responses", `{"model":"m","stream":true,"input":[{"role":"user","content":[{"type":"input_text","text":"Hello there"}]}]}`)
		var all strings.Builder
		for _, p := range r.pieces() {
			all.WriteString(p.text)
		}
		var names []string
		var text string
		var last map[string]any
		for i, data := range sseData(t, all.String()) {
			var e map[string]any
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatalf("%v in %s", err, data)
			}
			if e["sequence_number"] != float64(i) {
				t.Errorf("event %d has number %v", i, e["sequence_number"])
			}
			if !strings.Contains(all.String(), "event: "+e["type"].(string)+"\n") {
				t.Errorf("event %v is not named", e["type"])
			}
			if e["type"] == "response.output_text.delta" {
				text += e["delta"].(string)
			}
			if len(names) == 0 || names[len(names)-1] != e["type"] {
				names = append(names, e["type"].(string))
			}
			last = e
		}
		want := "response.created response.in_progress response.output_item.added response.content_part.added response.output_text.delta " +
			"response.output_text.done response.content_part.done response.output_item.done response.completed"
		if got := strings.Join(names, " "); got != want {
			t.Errorf("events %s\nwant %s", got, want)
		}
		if dig(t, last, "response", "output", 0, "content", 0, "text") != text || dig(t, last, "response", "status") != "completed" || text == "" {
			t.Errorf("deltas make %q, the end says %v", text, last)
		}
		if dig(t, last, "response", "usage", "input_tokens") != float64(helloTokens) {
			t.Errorf("usage %v", dig(t, last, "response", "usage"))
		}
		s.Close()
	})
}

func TestEmbeddings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		start := time.Now()
		v := callJSON(t, s, "/v1/embeddings", `{"model":"m","input":["one","three more","one"],"dimensions":8}`, 200)
		if got, want := time.Since(start), ms(5+10+1+3+1); got != want {
			t.Errorf("answered after %v, want one step of %v", got, want)
		}
		if v["object"] != "list" || dig(t, v, "usage", "prompt_tokens") != 5.0 || dig(t, v, "data", 2, "index") != 2.0 {
			t.Errorf("embeddings %v", v)
		}
		norm := 0.0
		for i := range 8 {
			x := dig(t, v, "data", 0, "embedding", i).(float64)
			if x != dig(t, v, "data", 2, "embedding", i) {
				t.Errorf("the same text has two embeddings")
			}
			norm += x * x
		}
		if math.Abs(norm-1) > 1e-6 {
			t.Errorf("length %v, want 1", norm)
		}
		b := callJSON(t, s, "/v1/embeddings", `{"model":"m","input":"one","encoding_format":"base64"}`, 200)
		raw, err := base64.StdEncoding.DecodeString(dig(t, b, "data", 0, "embedding").(string))
		if err != nil || len(raw) != 4*defaultDimensions {
			t.Errorf("base64: %d bytes, %v", len(raw), err)
		}
		if st := s.Stats(); st.GeneratedTokens != 0 || st.Finished != 4 || st.KVUsed != 0 {
			t.Errorf("stats %+v", st)
		}
		s.Close()
	})
}

func TestBadRequests(t *testing.T) {
	s := testServer(t, testSpec())
	for _, c := range []struct {
		path, body string
		status     int
		param      any
		code       any
	}{
		{"/v1/chat/completions", `{`, 400, nil, nil},
		{"/v1/chat/completions", ``, 400, nil, nil},
		{"/v1/chat/completions", `{"model":"m","messages":7}`, 400, "messages", nil},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}]}`, 400, "model", nil},
		{"/v1/chat/completions", `{"model":"x","messages":[{"role":"user","content":"x"}]}`, 404, "model", "model_not_found"},
		{"/v1/chat/completions", `{"model":"m"}`, 400, "messages", nil},
		{"/v1/chat/completions", `{` + hello + `,"n":2}`, 400, "n", nil},
		{"/v1/chat/completions", `{` + hello + `,"max_tokens":0}`, 400, "max_tokens", nil},
		{"/v1/chat/completions", `{` + hello + `,"max_tokens":16000}`, 400, "messages", "context_length_exceeded"},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 64001) + `"}]}`, 400, "messages", "context_length_exceeded"},
		{"/v1/completions", `{"model":"m"}`, 400, "prompt", nil},
		{"/v1/completions", `{"model":"m","prompt":["a","b"]}`, 400, "prompt", nil},
		{"/v1/completions", `{"model":"m","prompt":{}}`, 400, "prompt", nil},
		{"/v1/responses", `{"model":"m"}`, 400, "input", nil},
		{"/v1/responses", `{"model":"x","input":"a"}`, 404, "model", "model_not_found"},
		{"/v1/embeddings", `{"model":"m","input":""}`, 400, "input", nil},
		{"/v1/embeddings", `{"model":"m","input":"a","dimensions":0}`, 400, "dimensions", nil},
		{"/v1/embeddings", `{"model":"m","input":"a","encoding_format":"hex"}`, 400, "encoding_format", nil},
		{"/v1/embeddings", `{"model":"m","input":"` + strings.Repeat("x", 64001) + `"}`, 400, "input", "context_length_exceeded"},
	} {
		v := callJSON(t, s, c.path, c.body, c.status)
		e := dig(t, v, "error")
		if dig(t, e, "message") == "" || dig(t, e, "type") != "invalid_request_error" || dig(t, e, "param") != c.param || dig(t, e, "code") != c.code {
			t.Errorf("%s %.60s: %v", c.path, c.body, e)
		}
	}
	if st := s.Stats(); st.Submitted != 0 {
		t.Errorf("%d of the bad requests reached the engine", st.Submitted)
	}
}

func TestModelsAndHealth(t *testing.T) {
	s := testServer(t, testSpec())
	for path, want := range map[string]int{
		"/health": 200, "/v1/models": 200, "/v1/models/m": 200, "/v1/models/x": 404, "/v2": 404, "/v1/chat/completions": 405,
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != want {
			t.Errorf("GET %s: %d, want %d", path, w.Code, want)
		}
		if path == "/v1/models" && !strings.Contains(w.Body.String(), `"id":"m"`) {
			t.Errorf("models %s", w.Body)
		}
	}
}

// A client that leaves frees its place and blocks at that instant.
func TestLeavingClientCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		for _, stream := range []string{"true", "false"} {
			ctx, leave := context.WithCancel(t.Context())
			done := make(chan bool)
			go func() {
				_, aborted := post(ctx, s, "/v1/chat/completions", `{`+hello+`,"stream":`+stream+`}`)
				done <- aborted
			}()
			time.Sleep(ms(40))
			if st := s.Stats(); st.Running != 1 || st.KVUsed == 0 {
				t.Fatalf("while it streams: %+v", st)
			}
			leave()
			synctest.Wait()
			if st := s.Stats(); st.Running != 0 || st.KVUsed != 0 {
				t.Errorf("stream %s: after the client left: %+v", stream, st)
			}
			if !<-done {
				t.Error("the answer had a clean end")
			}
		}
		if st := s.Stats(); st.Cancelled != 2 {
			t.Errorf("%d cancelled, want 2", st.Cancelled)
		}
		s.Close()
	})
}

func TestCloseCutsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		done := make(chan bool)
		go func() {
			r, aborted := post(t.Context(), s, "/v1/chat/completions", `{`+hello+`,"stream":true}`)
			if p := r.pieces(); strings.Contains(p[len(p)-1].text, "[DONE]") {
				t.Error("a cut stream ended with [DONE]")
			}
			done <- aborted
		}()
		time.Sleep(ms(50))
		go s.Close()
		if !<-done {
			t.Error("the stream was not aborted")
		}
		s.Close()
		if v := callJSON(t, s, "/v1/chat/completions", `{`+hello+`}`, 503); dig(t, v, "error", "type") != "server_error" {
			t.Errorf("after close: %v", v)
		}
	})
}

func TestSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := testSpec()
		spec.Speed = 50
		s := testServer(t, spec)
		start := time.Now()
		callJSON(t, s, "/v1/chat/completions", `{`+hello+`,"max_tokens":101,"ignore_eos":true}`, 200)
		want := ms(5+10+helloTokens+100*12) / 50
		if got := time.Since(start); got < want || got > want+time.Microsecond {
			t.Errorf("answered after %v, want %v", got, want)
		}
		ttft := scrape(t, s)["vllm:time_to_first_token_seconds"].Metric[0].Histogram
		if got, want := ttft.GetSampleSum(), 0.000480; math.Abs(got-want) > 1e-6 {
			t.Errorf("TTFT metric %v s, want %v as seen from outside", got, want)
		}
		s.Close()
	})
}

func scrape(t *testing.T, s *Server) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bufio.NewReader(w.Body))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := testSpec()
		spec.Params.MaxSeqs = 1
		s := testServer(t, spec)
		long := strings.Repeat("again ", 200)
		body := `{"model":"m","messages":[{"role":"user","content":"` + long + `"}],"max_tokens":10}`
		callJSON(t, s, "/v1/chat/completions", body, 200)
		callJSON(t, s, "/v1/chat/completions", body, 200)
		ctx, leave := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for range 3 {
			clients.Go(func() { post(ctx, s, "/v1/chat/completions", `{`+hello+`}`) })
		}
		time.Sleep(ms(61)) // first token at 24, then one each 12
		busy := scrape(t, s)
		leave()
		clients.Wait()

		value := func(f map[string]*dto.MetricFamily, name string) float64 {
			t.Helper()
			if f[name] == nil {
				t.Fatalf("no %s", name)
			}
			m := f[name].Metric[0]
			if m.Gauge != nil {
				return m.Gauge.GetValue()
			}
			return m.Counter.GetValue()
		}
		for name, want := range map[string]float64{
			"vllm:num_requests_running":       1,
			"vllm:num_requests_waiting":       2,
			"vllm:kv_cache_usage_perc":        1.0 / 1000,
			"vllm:prefix_cache_queries_total": 2*306 + helloTokens,
			"vllm:prefix_cache_hits_total":    304,
			"vllm:prompt_tokens_total":        2*306 + helloTokens,
			"vllm:generation_tokens_total":    20 + 4,
			"vllm:num_preemptions_total":      0,
		} {
			if got := value(busy, name); got != want {
				t.Errorf("%s = %v, want %v", name, got, want)
			}
		}
		for name, want := range map[string]uint64{
			"vllm:time_to_first_token_seconds": 3, "vllm:inter_token_latency_seconds": 18 + 3, "vllm:e2e_request_latency_seconds": 2,
			"vllm:request_queue_time_seconds": 2, "vllm:request_prefill_time_seconds": 2, "vllm:request_decode_time_seconds": 2,
		} {
			if got := busy[name].Metric[0].Histogram.GetSampleCount(); got != want {
				t.Errorf("%s has %d samples, want %d", name, got, want)
			}
		}
		ends := map[string]float64{}
		for _, m := range scrape(t, s)["vllm:request_success_total"].Metric {
			for _, l := range m.Label {
				if l.GetName() == "finished_reason" {
					ends[l.GetValue()] = m.Counter.GetValue()
				}
			}
		}
		if ends["length"] != 2 || ends["abort"] != 3 || ends["stop"] != 0 {
			t.Errorf("ends %v", ends)
		}
		labels := map[string]string{}
		for _, l := range busy["vllm:num_requests_running"].Metric[0].Label {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["model_name"] != "m" || labels["engine"] != "0" {
			t.Errorf("labels %v", labels)
		}
		s.Close()
	})
}

func TestComposeIsPlainText(t *testing.T) {
	for seed := range uint64(200) {
		text := compose(seed, 50)
		quoted, _ := json.Marshal(string(text))
		if len(text) != 200 || string(quoted) != `"`+string(text)+`"` {
			t.Fatalf("seed %d: %s", seed, quoted)
		}
		if !bytes.Equal(text[:100], compose(seed, 25)) {
			t.Fatalf("seed %d: a shorter answer is not the start of a longer one", seed)
		}
	}
}

func TestNewServerRejectsNonsense(t *testing.T) {
	for _, change := range []func(*Spec){
		func(s *Spec) { s.Model = "" },
		func(s *Spec) { s.Speed = -1 },
		func(s *Spec) { s.Speed = math.NaN() },
		func(s *Spec) { s.Params.KVBlocks = -1 },
	} {
		spec := testSpec()
		change(&spec)
		if s, err := NewServer(spec); err == nil {
			s.Close()
			t.Errorf("accepted %+v", spec)
		}
	}
}

// BenchmarkStreamToken writes the events of one token.
func BenchmarkStreamToken(b *testing.B) {
	g := &generation{sampling: sampling{Model: "m"}, text: compose(1, 100), tokens: 100}
	f := &chatFace{chunks: newChunks("chatcmpl-1", "chat.completion.chunk", 1, g), g: g}
	var buf []byte
	b.ReportAllocs()
	for i := range b.N {
		buf = f.token(buf[:0], g.piece(i%100))
	}
}
