package openai

import (
	"bytes"
	"testing"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// expectation is what a recorded answer holds, read by eye and by a script.
type expectation struct {
	events, chunks, usageOnly int
	first                     TokenKind
	usage                     Usage // zero: none
	finish                    string
	how                       ending
	code, kind                string // of the error
	status                    int
}

// ending says how an answer ends.
type ending uint8

const (
	withDone     ending = iota // [DONE]
	withTerminal               // the API's own last event
	withFinish                 // finish reasons only
	withNothing                // not at all: an error, or no stream
)

var expectations = map[string]expectation{
	"ollama_qwen3_chat_stream.sse":   {events: 287, chunks: 284, usageOnly: 1, first: ReasoningToken, usage: Usage{Prompt: 17, Completion: 289}, finish: "stop"},
	"llamabox_qwen3_chat_stream.sse": {events: 171, chunks: 168, first: ReasoningToken, usage: Usage{Prompt: 15, Completion: 171, Reasoning: 160}, finish: "stop", how: withFinish},
	"deepseek_chat_stream.sse":       {events: 11, chunks: 8, first: ContentToken, usage: Usage{Prompt: 11, Completion: 8}, finish: "stop"},
	"mistral_chat_stream.sse":        {events: 5, chunks: 3, first: ContentToken, usage: Usage{Prompt: 22, Completion: 8}, finish: "stop"},
	"perplexity_chat_stream.sse":     {events: 6, chunks: 5, first: ContentToken, usage: Usage{Prompt: 8, Completion: 5}, finish: "stop", how: withFinish},
	"openrouter_chat_stream.sse":     {events: 4, chunks: 1, first: ContentToken, usage: Usage{Prompt: 15, Completion: 9}, finish: "stop"},
	"openai_responses_stream.sse":    {events: 17, chunks: 7, first: ContentToken, usage: Usage{Prompt: 13, Completion: 284, Reasoning: 256}, finish: "stop", how: withTerminal},
	"anthropic_messages_stream.sse":  {events: 7, chunks: 1, first: ContentToken, usage: Usage{Prompt: 15, Completion: 9}, finish: "end_turn", how: withTerminal},

	"ollamacloud_gptoss_stream_vs_nonstream_0.sse":  {events: 39, chunks: 35, usageOnly: 1, first: ReasoningToken, usage: Usage{Prompt: 74, Completion: 45}, finish: "stop"},
	"ollamacloud_gptoss_stream_vs_nonstream_1.json": {usage: Usage{Prompt: 74, Completion: 45}, finish: "stop", how: withFinish},

	"deepseek_tools_stream_0.sse":      {events: 28, chunks: 25, first: ToolToken, usage: Usage{Prompt: 348, Completion: 65}, finish: "tool_calls"},
	"deepseek_tools_stream_1.sse":      {events: 24, chunks: 21, first: ContentToken, usage: Usage{Prompt: 451, Completion: 21, Cached: 384}, finish: "stop"},
	"deepseek_tools_stream_2.sse":      {events: 28, chunks: 25, first: ToolToken, usage: Usage{Prompt: 495, Completion: 65, Cached: 384}, finish: "tool_calls"},
	"deepseek_tools_stream_3.sse":      {events: 30, chunks: 27, first: ContentToken, usage: Usage{Prompt: 598, Completion: 27, Cached: 512}, finish: "stop"},
	"openai_chat_tools_stream_0.sse":   {events: 9, chunks: 6, usageOnly: 1, first: ToolToken, usage: Usage{Prompt: 53, Completion: 15}, finish: "tool_calls"},
	"openai_chat_tools_stream_1.sse":   {events: 12, chunks: 8, usageOnly: 1, first: ContentToken, usage: Usage{Prompt: 78, Completion: 9}, finish: "stop"},
	"vllm_llama33-70b_chat_stream.sse": {events: 17, chunks: 13, usageOnly: 1, first: ContentToken, usage: Usage{Prompt: 46, Completion: 14}, finish: "stop"},

	"openrouter_midstream_error.sse":  {events: 5, chunks: 2, first: ReasoningToken, usage: Usage{Prompt: 43, Completion: 10, Reasoning: 11}, finish: "length", code: "400", status: 400},
	"groq_midstream_tool_error_0.sse": {events: 95, chunks: 93, first: ReasoningToken, how: withNothing, code: "tool_use_failed", kind: "invalid_request_error", status: 400},
	"groq_midstream_tool_error_1.sse": {events: 26, chunks: 23, first: ReasoningToken, usage: Usage{Prompt: 304, Completion: 49, Reasoning: 23}, finish: "tool_calls"},
	"groq_midstream_tool_error_2.sse": {events: 51, chunks: 48, first: ReasoningToken, usage: Usage{Prompt: 339, Completion: 58, Reasoning: 38}, finish: "stop"},

	"error_auth_openai.json":                         {how: withNothing, code: "invalid_api_key", kind: "invalid_request_error"},
	"error_auth_deepseek.json":                       {how: withNothing, code: "invalid_request_error", kind: "authentication_error"},
	"error_auth_mistral.json":                        {how: withNothing},
	"error_auth_openrouter.json":                     {how: withNothing, code: "401", status: 401},
	"error_auth_anthropic.json":                      {how: withNothing, kind: "authentication_error"},
	"error_context_length_openai.json":               {how: withNothing, code: "context_length_exceeded", kind: "invalid_request_error"},
	"error_context_length_deepseek.json":             {how: withNothing, code: "invalid_request_error", kind: "invalid_request_error"},
	"error_context_length_gpt-oss-ollama-cloud.json": {how: withNothing, kind: "invalid_request_error"},

	"openai_gpt35_stream_success.sse":     {events: 12, chunks: 9, first: ContentToken, finish: "stop"},
	"openai_gpt35_stream_nodone.sse":      {events: 11, chunks: 9, first: ContentToken, finish: "stop", how: withFinish},
	"openai_gpt35_stream_empty.sse":       {events: 3, finish: "stop", how: withFinish},
	"azureopenai_stream_success.sse":      {events: 12, chunks: 9, first: ContentToken, finish: "stop"},
	"openai_gpt4omini_stream.sse":         {events: 7, chunks: 4, first: ContentToken, finish: "stop"},
	"groq_llama33_stream.sse":             {events: 6, chunks: 3, first: ContentToken, usage: Usage{Prompt: 38, Completion: 4}, finish: "stop"},
	"openai_gpt41nano_long_stream.sse":    {events: 304, chunks: 300, usageOnly: 1, first: ContentToken, usage: Usage{Prompt: 16, Completion: 300}, finish: "stop"},
	"vllm032_cpu_chat_stream.sse":         {events: 19, chunks: 11, usageOnly: 1, first: ContentToken, usage: Usage{Prompt: 8, Completion: 16}, finish: "length"},
	"llamacpp2026_gemma3_chat_stream.sse": {events: 20, chunks: 16, usageOnly: 1, first: ContentToken, usage: Usage{Prompt: 29, Completion: 16}, finish: "length"},
}

// TestRecorded reads every recorded answer whole, byte by byte, and split in
// two at every offset.
func TestRecorded(t *testing.T) {
	exchanges := fakellm.Recordings(t)
	if len(exchanges) != len(expectations) {
		t.Errorf("%d exchanges, the table has %d", len(exchanges), len(expectations))
	}
	for _, e := range exchanges {
		t.Run(e.File, func(t *testing.T) {
			t.Parallel()
			want, ok := expectations[e.File]
			if !ok {
				t.Fatal("not in the table")
			}
			if !e.Stream {
				testRecordedJSON(t, e.Body, want)
				return
			}
			whole := readStream(t, e.Body)
			checkExpectation(t, whole, want)
			for _, d := range readPlain(e.Body).differences(whole.meter) {
				t.Errorf("plain reader: %s", d)
			}
			whole.mustEqual(t, readStream(t, split(e.Body, 1)...), "byte by byte")
			splitEveryEvent(t, e.Body)
		})
	}
}

func testRecordedJSON(t *testing.T, body []byte, want expectation) {
	var m Meter
	m.Reset()
	m.ReadJSON(body)
	checkExpectation(t, &reading{meter: &m}, want)
	for _, d := range readPlainJSON(body).differences(&m) {
		t.Errorf("plain reader: %s", d)
	}
}

func checkExpectation(t *testing.T, r *reading, want expectation) {
	t.Helper()
	usageOnly := 0
	for _, ev := range r.events {
		if ev.UsageOnly {
			usageOnly++
		}
	}
	m := r.meter
	got := expectation{
		events: m.Events, chunks: m.Chunks, usageOnly: usageOnly, first: m.FirstToken, usage: m.Usage, finish: m.FinishReason,
		code: m.ErrorCode, kind: m.ErrorType, status: m.ErrorStatus,
	}
	switch {
	case m.Done:
		got.how = withDone
	case m.Terminal:
		got.how = withTerminal
	case m.Complete():
		got.how = withFinish
	default:
		got.how = withNothing
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if m.HasUsage != (want.usage != Usage{}) || m.Unparsed > 1 || m.Aborted {
		t.Errorf("tally %+v", m.Tally)
	}
	if wantFailed := want.code != "" || want.kind != ""; m.Failed != wantFailed {
		t.Errorf("failed %v, want %v", m.Failed, wantFailed)
	}
}

// splitEveryEvent splits a stream in two at every offset. What comes before
// an event and after it does not depend on where the event is split, so each
// is read again only from its start to its end.
func splitEveryEvent(t *testing.T, stream []byte) {
	t.Helper()
	var m Meter
	m.Reset()
	for len(stream) > 0 {
		first := m // has read the event's bytes before the split
		n, want, ended := m.Next(stream)
		for at := 1; at < n; at++ {
			first.scan.sink = &first
			k, ev, early := first.Next(stream[at-1 : at])
			if early && at == n-1 && stream[at-1] == '\r' && ev == want { // its LF is to come
				break
			}
			if k != 1 || early {
				t.Fatalf("an event ended at %d of %.200q", at, stream[:n])
			}
			second := first
			second.scan.sink = &second
			k, got, endedAgain := second.Next(stream[at:n])
			if k != n-at || got != want || endedAgain != ended || second.Tally != m.Tally {
				t.Fatalf("split at %d of %.200q:\ngot  %+v %+v\nwant %+v %+v", at, stream[:n], got, second.Tally, want, m.Tally)
			}
		}
		stream = stream[n:]
	}
}

func split(p []byte, size int) (pieces [][]byte) {
	for len(p) > 0 {
		n := min(size, len(p))
		pieces = append(pieces, p[:n])
		p = p[n:]
	}
	return pieces
}

// reading is all that a meter says about a stream.
type reading struct {
	meter  *Meter
	events []Event
	ends   []int // where each event ends
}

// readStream feeds pieces to a meter and holds it to what Next promises.
func readStream(t testing.TB, pieces ...[]byte) *reading {
	t.Helper()
	r := &reading{meter: new(Meter)}
	r.meter.Reset()
	whole := bytes.Join(pieces, nil)
	at := 0
	for _, p := range pieces {
		for len(p) > 0 {
			n, ev, ended := r.meter.Next(p)
			if n <= 0 || n > len(p) || (!ended && n != len(p)) || (!ended && ev != Event{}) {
				t.Fatalf("Next(%q) = %d, %+v, %v", p, n, ev, ended)
			}
			p, at = p[n:], at+n
			if ended {
				r.add(ev, at, whole)
			}
		}
	}
	if at != len(whole) {
		t.Fatalf("read %d bytes of %d", at, len(whole))
	}
	partial := r.meter.frame.started
	if ev, ended := r.meter.End(); ended {
		r.add(ev, at, nil)
	} else if partial {
		t.Fatal("an event was begun, but End ends nothing")
	}
	return r
}

// add notes an event. One that ends between CR and LF ends after the LF when
// the two come together, so here it always does.
func (r *reading) add(ev Event, at int, whole []byte) {
	if at > 1 && at <= len(whole) && whole[at-1] == '\n' && len(r.ends) > 0 && r.ends[len(r.ends)-1] == at && ev == (Event{}) {
		return
	}
	if at < len(whole) && whole[at-1] == '\r' && whole[at] == '\n' {
		at++
	}
	r.events, r.ends = append(r.events, ev), append(r.ends, at)
}

func (r *reading) mustEqual(t testing.TB, other *reading, how string) {
	t.Helper()
	if r.meter.Tally != other.meter.Tally {
		t.Fatalf("%s: tally\n%+v\nwhole\n%+v", how, other.meter.Tally, r.meter.Tally)
	}
	if len(r.ends) != len(other.ends) {
		t.Fatalf("%s: %d events, whole %d", how, len(other.ends), len(r.ends))
	}
	for i := range r.ends {
		if r.ends[i] != other.ends[i] || r.events[i] != other.events[i] {
			t.Fatalf("%s: event %d ends at %d as %+v, whole at %d as %+v",
				how, i, other.ends[i], other.events[i], r.ends[i], r.events[i])
		}
	}
}
