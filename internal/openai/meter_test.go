package openai

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// chunk is an event with a chat chunk whose only choice has this delta.
func chunk(delta string) string { return event(`{"choices":[{"index":0,"delta":` + delta + `}]}`) }

// event is an event with this data.
func event(data string) string { return "data: " + data + "\n\n" }

// finished is an event with a chat chunk that ends its only choice.
func finished(reason string) string {
	return event(`{"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`)
}

const done = "data: [DONE]\n\n"

// TestTokens says what a token is, and of what kind.
func TestTokens(t *testing.T) {
	for _, c := range []struct {
		name, stream string
		want         TokenKind
	}{
		{"comment", ": OPENROUTER PROCESSING\n\n", NoToken},
		{"role only", chunk(`{"role":"assistant"}`), NoToken},
		{"role and empty content", chunk(`{"role":"assistant","content":"","refusal":null}`), NoToken},
		{"empty delta", chunk(`{}`), NoToken},
		{"null delta", chunk(`null`), NoToken},
		{"null content", chunk(`{"content":null}`), NoToken},
		{"content", chunk(`{"content":"Hi"}`), ContentToken},
		{"one space", chunk(`{"content":" "}`), ContentToken},
		{"an escape", chunk(`{"content":"\n"}`), ContentToken},
		{"a unicode escape", chunk(`{"content":"\u0011"}`), ContentToken},
		{"a number is no text", chunk(`{"content":5}`), NoToken},
		{"an object is no text", chunk(`{"content":{"text":"Hi"}}`), NoToken},
		{"completions", event(`{"choices":[{"text":"Hi","index":0}]}`), ContentToken},
		{"completions, empty", event(`{"choices":[{"text":"","index":0}]}`), NoToken},
		{"refusal", chunk(`{"refusal":"No"}`), ContentToken},
		{"content outside a delta", event(`{"choices":[{"content":"Hi"}],"content":"Hi"}`), NoToken},
		{"content of an unstreamed message", event(`{"choices":[{"message":{"content":"Hi"},"delta":{"content":""}}]}`), NoToken},
		{"content deeper in a delta", chunk(`{"meta":{"content":"Hi","tool_calls":[{"name":"x"}]}}`), NoToken},

		{"parts", chunk(`{"content":[{"type":"text","text":"Hi"}]}`), ContentToken},
		{"parts, none", chunk(`{"content":[]}`), NoToken},
		{"parts, empty", chunk(`{"content":[{"type":"text","text":""}]}`), NoToken},
		{"parts, a string", chunk(`{"content":["Hi"]}`), ContentToken},
		{"parts, thinking", chunk(`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"Hm"}]}]}`), ReasoningToken},
		{"parts, an image", chunk(`{"content":[{"type":"image_url","image_url":{"url":"x"}}]}`), ContentToken},
		{"parts, a reference", chunk(`{"content":[{"type":"reference","reference_ids":[1,2]}]}`), NoToken},

		{"reasoning", chunk(`{"content":"","reasoning":"Hm"}`), ReasoningToken},
		{"reasoning_content", chunk(`{"reasoning_content":"Hm","content":null}`), ReasoningToken},
		{"reasoning, empty", chunk(`{"reasoning_content":"","reasoning":null}`), NoToken},
		{"content before reasoning", chunk(`{"content":"Hi","reasoning":"Hm"}`), ContentToken},
		{"reasoning before content", chunk(`{"reasoning":"Hm","content":"Hi"}`), ContentToken},

		{"tool call", chunk(`{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}`), ToolToken},
		{"tool call, arguments", chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\""}}]}`), ToolToken},
		{"tool call, arguments as an object", chunk(`{"tool_calls":[{"function":{"arguments":{}}}]}`), ToolToken},
		{"tool call, nothing in it", chunk(`{"tool_calls":[{"index":0,"id":"","function":{"name":null,"arguments":""}}]}`), NoToken},
		{"tool calls, none", chunk(`{"tool_calls":[]}`), NoToken},
		{"tool calls, null", chunk(`{"tool_calls":null}`), NoToken},
		{"custom tool call", chunk(`{"tool_calls":[{"type":"custom","custom":{"name":"f","input":"x"}}]}`), ToolToken},
		{"two tool calls", chunk(`{"tool_calls":[{"function":{"arguments":""}},{"function":{"arguments":"x"}}]}`), ToolToken},
		{"function_call", chunk(`{"function_call":{"name":"f","arguments":""}}`), ToolToken},
		{"function_call, empty", chunk(`{"function_call":{}}`), NoToken},
		{"tool call and reasoning", chunk(`{"reasoning":"Hm","tool_calls":[{"function":{"name":"f"}}]}`), ToolToken},

		{"audio", chunk(`{"audio":{"id":"a","data":"UklGR"}}`), ContentToken},
		{"audio, transcript", chunk(`{"audio":{"transcript":"Hi"}}`), ContentToken},
		{"audio, its id only", chunk(`{"audio":{"id":"a","expires_at":1}}`), NoToken},

		{"Responses, text", event(`{"type":"response.output_text.delta","delta":"Hi"}`), ContentToken},
		{"Responses, delta before type", event(`{"delta":"Hi","type":"response.output_text.delta"}`), ContentToken},
		{"Responses, empty", event(`{"type":"response.output_text.delta","delta":""}`), NoToken},
		{"Responses, refusal", event(`{"type":"response.refusal.delta","delta":"No"}`), ContentToken},
		{"Responses, audio", event(`{"type":"response.audio.transcript.delta","delta":"Hi"}`), ContentToken},
		{"Responses, reasoning", event(`{"type":"response.reasoning_text.delta","delta":"Hm"}`), ReasoningToken},
		{"Responses, summary", event(`{"type":"response.reasoning_summary_text.delta","delta":"Hm"}`), ReasoningToken},
		{"Responses, arguments", event(`{"type":"response.function_call_arguments.delta","delta":"{"}`), ToolToken},
		{"Responses, custom tool", event(`{"type":"response.custom_tool_call_input.delta","delta":"x"}`), ToolToken},
		{"Responses, code", event(`{"type":"response.code_interpreter_call_code.delta","delta":"x"}`), ToolToken},
		{"Responses, MCP", event(`{"type":"response.mcp_call_arguments.delta","delta":"{"}`), ToolToken},
		{"Responses, done", event(`{"type":"response.output_text.done","text":"Hi"}`), NoToken},
		{"Responses, item", event(`{"type":"response.output_item.added","item":{"type":"message","content":[]}}`), NoToken},

		{"Messages, text", event(`{"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}`), ContentToken},
		{"Messages, thinking", event(`{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"Hm"}}`), ReasoningToken},
		{"Messages, signature", event(`{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"x"}}`), NoToken},
		{"Messages, tool", event(`{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}`), ToolToken},
		{"Messages, start", event(`{"type":"content_block_start","content_block":{"type":"text","text":""}}`), NoToken},
		{"Messages, ping", event(`{"type":"ping"}`), NoToken},

		{"escaped keys", event(`{"cho\u0069ces":[{"\u0064elta":{"c\u006fntent":"Hi"}}]}`), ContentToken},
		{"a key that needs its escape", event(`{"choices":[{"delta":{"con\ttent":"Hi"}}]}`), NoToken},
		{"keys in a string", chunk(`{"role":"\"content\":\"Hi\""}`), NoToken},
		{"a backslash at the end", chunk(`{"role":"\\","content":"Hi"}`), ContentToken},
		{"quotes and backslashes", chunk(`{"role":"\\\"\\\\\"\\","content":"Hi"}`), ContentToken},
		{"duplicate keys", chunk(`{"content":"","content":"Hi"}`), ContentToken},
		{"white space", event(" { \"choices\" : [ { \"delta\" : { \"content\" : \"Hi\" } } ] } "), ContentToken},
		{"an array of chunks", event(`[{"choices":[{"delta":{"content":"Hi"}}]}]`), NoToken},
		{"deep nesting before", event(`{"x":` + strings.Repeat("[", 9999) + strings.Repeat("]", 9999) + `,"choices":[{"delta":{"content":"Hi"}}]}`), ContentToken},
		{"deep nesting of what matters", chunk(`{"tool_calls":[` + strings.Repeat(`{"function":`, 50) + `{"name":"f"}` + strings.Repeat(`}`, 50) + `]}`), NoToken},
		{"deep nesting of parts", chunk(`{"content":` + strings.Repeat(`[{"text":`, 50) + `"Hi"` + strings.Repeat(`}]`, 50) + `}`), NoToken},
		{"a long key", event(`{"` + strings.Repeat("choices", 20) + `":[{"delta":{"content":"Hi"}}]}`), NoToken},
		{"a broken event", "data: {\"choices\":[{\"delta\":{\n\n", NoToken},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := readStream(t, []byte(c.stream))
			chunks := 0
			if c.want != NoToken {
				chunks = 1
			}
			if r.meter.FirstToken != c.want || r.meter.Chunks != chunks || r.events[0].Token != (chunks == 1) {
				t.Errorf("first token %v in %d chunks, want %v; %+v", r.meter.FirstToken, r.meter.Chunks, c.want, r.events)
			}
			everySplit(t, c.stream)
		})
	}
}

// TestFirstToken is the first of several.
func TestFirstToken(t *testing.T) {
	stream := chunk(`{"role":"assistant"}`) + chunk(`{"reasoning":"Hm"}`) + chunk(`{"content":"Hi"}`) + done
	r := readStream(t, []byte(stream))
	if r.meter.FirstToken != ReasoningToken || r.meter.Chunks != 2 || r.meter.Events != 4 {
		t.Errorf("tally %+v", r.meter.Tally)
	}
}

// TestFraming gives one event in every framing the standard allows.
func TestFraming(t *testing.T) {
	const data = `{"choices":[{"index":0,"delta":{"content":"é 🚀"},"finish_reason":"stop"}]}`
	for _, c := range []struct {
		name, stream string
		events       int // with data
		done         bool
		token        bool
	}{
		{"LF", "data: " + data + "\n\ndata: [DONE]\n\n", 2, true, true},
		{"CRLF", "data: " + data + "\r\n\r\ndata: [DONE]\r\n\r\n", 2, true, true},
		{"CR", "data: " + data + "\r\rdata: [DONE]\r\r", 2, true, true},
		{"mixed", "data: " + data + "\r\n\ndata: [DONE]\n\r\n", 2, true, true},
		{"mixed too", "data: " + data + "\n\rdata: [DONE]\r\r\n", 2, true, true},
		{"no space", "data:" + data + "\n\ndata:[DONE]\n\n", 2, true, true},
		{"two spaces", "data:  " + data + "\n\ndata:  [DONE]\n\n", 2, false, true}, // no SDK takes that for the end
		{"byte order mark", "\ufeffdata: " + data + "\n\ndata: [DONE]\n\n", 2, true, true},
		{"byte order mark and event", "\ufeffevent: x\ndata: " + data + "\n\n", 1, false, true},
		{"byte order mark and comment", "\ufeff: hi\ndata: " + data + "\n\n", 1, false, true},
		{"byte order mark later", "\n\ufeffdata: " + data + "\n\n", 0, false, false},
		{"byte order mark in the second line", ":\n\ufeffdata: " + data + "\n\n", 0, false, false},
		{"two byte order marks", "\ufeff\ufeffdata: " + data + "\n\n", 0, false, false},
		{"other fields", "event: x\nid: 7\nretry: 10\ndata: " + data + "\nfoo: bar\nbaz\n\n", 1, false, true},
		{"fields without space", "event:x\nid:7\nretry:10\ndata:" + data + "\n\n", 1, false, true},
		{"comments around", ": a\n:b\n:\ndata: " + data + "\n: c\n\n", 1, false, true},
		{"comments between", ": ping\n\n: ping\n\ndata: " + data + "\n\n: ping\n\n", 1, false, true},
		{"long comment", ":" + strings.Repeat(" data: x", 2000) + "\ndata: " + data + "\n\n", 1, false, true},
		{"lines of one event", "data: {\"choices\":\ndata: [{\"index\":0,\ndata:\ndata:\"delta\":{\"content\":\"x\"}\ndata: }]}\n\n", 1, false, true},
		{"lines of one event, CR", "data: {\"choices\":\rdata: [{\"index\":0,\rdata: \"delta\":{\"content\":\"x\"}\rdata: }]}\r\r", 1, false, true},
		{"a number in two lines is two", "data: {\"choices\":[{\"index\":1\ndata: 2,\"delta\":{\"content\":\"x\"}}]}\n\n", 1, false, true},
		{"data without colon", "data\n\n", 1, false, false},
		{"data without colon, CRLF", "data\r\ndata\r\n: x\r\n\r\n", 1, false, false},
		{"empty data, CRLF", "data:\r\ndata:\r\n\r\n", 1, false, false},
		{"empty data", "data:\n\ndata: \n\n", 2, false, false},
		{"many blank lines", "\n\n\ndata: " + data + "\n\n\n\n\ndata: [DONE]\n\n\n", 2, true, true},
		{"no data", "event: ping\n\nid: 1\n\n", 0, false, false},
		{"other names", "Data: " + data + "\n\nDATA: x\n\ndatax: x\n\n data: x\n\ndata : x\n\ndat: x\n\ndatadatadata: x\n\n", 0, false, false},
		{"no end of line", "data: " + data, 1, false, true},
		{"one end of line", "data: " + data + "\n", 1, false, true},
		{"[DONE] at the very end", "data: " + data + "\n\ndata: [DONE]", 2, true, true},
		{"[DONE] and more", "data: [DONE] bye\n\n", 1, true, false},
		{"[DONE] in two lines", "data: [DO\ndata: NE]\n\n", 1, false, false},
		{"[DONE] in a second line", "data:\ndata: [DONE]\n\n", 1, false, false},
		{"[DONE", "data: [DONE\n\n", 1, false, false},
		{"done", "data: [done]\n\n", 1, false, false},
		{"[DONE] in a string", "data: \"[DONE]\"\n\n", 1, false, false},
		{"[DONE] as a comment", ": [DONE]\n\n", 0, false, false},
		{"[DONE] as an event", "event: [DONE]\n\n", 0, false, false},
		{"NUL", "data: \x00\n\n\x00data: x\n\n", 1, false, false},
		{"nothing", "", 0, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := readStream(t, []byte(c.stream)).meter
			if m.Events != c.events || m.Done != c.done || (m.Chunks > 0) != c.token {
				t.Errorf("%d events, done %v, %d chunks; want %d, %v, %v", m.Events, m.Done, m.Chunks, c.events, c.done, c.token)
			}
			everySplit(t, c.stream)
		})
	}
}

// TestEnds says which byte each event ends with.
func TestEnds(t *testing.T) {
	for _, c := range []struct {
		stream []string // one event each
		want   []Event
	}{
		{[]string{"data: 1\n\n", "data: 2\n\n"}, []Event{{Data: true}, {Data: true}}},
		{[]string{"data: 1\r\n\r\n", ": x\r\n\r\n", "\r\n"}, []Event{{Data: true}, {}, {}}},
		{[]string{"data: 1\r\r", "\r", "data: 2\r\n\n"}, []Event{{Data: true}, {}, {Data: true}}},
		{[]string{"\n", "\n", "\r", "\r\n", "data:\n\n"}, []Event{{}, {}, {}, {}, {Data: true}}},
		{[]string{": only\n: comments\n\n", "event: x\nid\n\n"}, []Event{{}, {}}},
		{[]string{"data: [DONE]\n\n", "\n"}, []Event{{Data: true, Done: true}, {}}},
	} {
		r := readStream(t, []byte(strings.Join(c.stream, "")))
		at := 0
		for i, s := range c.stream {
			if at += len(s); i >= len(r.ends) || r.ends[i] != at || r.events[i] != c.want[i] {
				t.Errorf("%q: ends %v as %+v, want event %d at %d as %+v", c.stream, r.ends, r.events, i, at, c.want[i])
				break
			}
		}
	}
}

// TestEndsAtCR has an event end with its CR at once, since nobody knows
// whether an LF will follow; if it does, it passes alone.
func TestEndsAtCR(t *testing.T) {
	var m Meter
	m.Reset()
	if n, ev, ended := m.Next([]byte("data: 1\r\n\r")); n != 10 || !ended || !ev.Data {
		t.Errorf("%d, %+v, %v", n, ev, ended)
	}
	if n, ev, ended := m.Next([]byte("\ndata: 2")); n != 1 || !ended || ev != (Event{}) {
		t.Errorf("LF: %d, %+v, %v", n, ev, ended)
	}
	if n, _, ended := m.Next([]byte("data: 2")); n != 7 || ended || !m.frame.started {
		t.Errorf("next: %d, %v", n, ended)
	}
}

func TestUsage(t *testing.T) {
	const one = `"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}`
	for _, c := range []struct {
		name, stream string
		want         Usage
		has          bool
		only         int // usage-only events
	}{
		{"none", chunk(`{"content":"x"}`), Usage{}, false, 0},
		{"null", event(`{"choices":[],"usage":null}`), Usage{}, false, 0},
		{"last chunk", event(`{"choices":[],` + one + `}`), Usage{Prompt: 5, Completion: 1}, true, 1},
		{"before choices", event(`{` + one + `,"choices":[]}`), Usage{Prompt: 5, Completion: 1}, true, 1},
		{"white space in choices", event(`{` + one + `,"choices": [ ] }`), Usage{Prompt: 5, Completion: 1}, true, 1},
		{"null choices", event(`{` + one + `,"choices":null}`), Usage{Prompt: 5, Completion: 1}, true, 1},
		{"no choices", event(`{` + one + `}`), Usage{Prompt: 5, Completion: 1}, true, 0},
		{"with a choice", event(`{` + one + `,"choices":[{"delta":{},"finish_reason":"stop"}]}`), Usage{Prompt: 5, Completion: 1}, true, 0},
		{"with an error", event(`{` + one + `,"choices":[],"error":{"code":500}}`), Usage{Prompt: 5, Completion: 1}, true, 0},
		{"every chunk, last wins", event(`{"choices":[{"delta":{"content":"x"}}],`+one+`}`) +
			event(`{"choices":[{"delta":{"content":"y"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}`) + done,
			Usage{Prompt: 5, Completion: 2}, true, 0},
		{"null after", event(`{"choices":[],`+one+`}`) + event(`{"choices":[],"usage":null}`), Usage{Prompt: 5, Completion: 1}, true, 1},
		{"empty", event(`{"choices":[],"usage":{}}`), Usage{}, true, 1},
		{"details", event(`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":7,"audio_tokens":1},` +
			`"completion_tokens_details":{"reasoning_tokens":6,"audio_tokens":1}}}`), Usage{Prompt: 9, Completion: 8, Cached: 7, Reasoning: 6}, true, 1},
		{"none cached", event(`{"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}`), Usage{Prompt: 9}, true, 1},
		{"null details", event(`{"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}`), Usage{Prompt: 9}, true, 1},
		{"cached_tokens", event(`{"choices":[],"usage":{"prompt_tokens":9,"cached_tokens":3}}`), Usage{Prompt: 9, Cached: 3}, true, 1},
		{"prompt_cache_hit_tokens", event(`{"choices":[],"usage":{"prompt_tokens":9,"prompt_cache_hit_tokens":3}}`), Usage{Prompt: 9, Cached: 3}, true, 1},
		{"llama.cpp", event(`{"choices":[],"usage":{"completion_tokens":16,"prompt_tokens":29},"timings":{"cache_n":12,"prompt_n":17,"prompt_ms":5561.708}}`),
			Usage{Prompt: 29, Completion: 16, Cached: 12}, true, 1},
		{"of another object", event(`{"choices":[],"x_groq":{` + one + `}}`), Usage{}, false, 0},
		{"Responses", event(`{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":13,` +
			`"input_tokens_details":{"cached_tokens":2},"output_tokens":284,"output_tokens_details":{"reasoning_tokens":256}}}}`),
			Usage{Prompt: 13, Completion: 284, Cached: 2, Reasoning: 256}, true, 0},
		{"Responses, incomplete", event(`{"type":"response.incomplete","response":{"status":"incomplete","usage":{"input_tokens":13,"output_tokens":2}}}`),
			Usage{Prompt: 13, Completion: 2}, true, 0},
		{"Messages, two halves", event(`{"type":"message_start","message":{"usage":{"input_tokens":15,"cache_read_input_tokens":4,"output_tokens":1}}}`) +
			event(`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}`), Usage{Prompt: 15, Cached: 4, Completion: 9}, true, 0},

		{"numbers", event(`{"choices":[],"usage":{"prompt_tokens":12.0,"completion_tokens":1.5e1}}`), Usage{Prompt: 12, Completion: 15}, true, 1},
		{"negative numbers", event(`{"choices":[],"usage":{"prompt_tokens":-12,"completion_tokens":-0}}`), Usage{}, true, 1},
		{"huge numbers", event(`{"choices":[],"usage":{"prompt_tokens":1e400,"completion_tokens":123456789012345678901234567890}}`), Usage{Prompt: 1 << 53, Completion: 1 << 53}, true, 1},
		{"tiny numbers", event(`{"choices":[],"usage":{"prompt_tokens":1e-400,"completion_tokens":0.9}}`), Usage{}, true, 1},
		{"strings are no numbers", event(`{"choices":[],"usage":{"prompt_tokens":"12"}}`), Usage{}, true, 1},
		{"a number at the end of all", event(`{"choices":[],"usage":{"prompt_tokens":12`), Usage{Prompt: 12}, true, 1},
		{"duplicate keys", event(`{"choices":[],"usage":{"prompt_tokens":1,"prompt_tokens":2}}`), Usage{Prompt: 2}, true, 1},
		{"an array", event(`{"choices":[],"usage":[{"prompt_tokens":1}]}`), Usage{}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := readStream(t, []byte(c.stream))
			only := 0
			for _, ev := range r.events {
				if ev.UsageOnly {
					only++
				}
			}
			if r.meter.Usage != c.want || r.meter.HasUsage != c.has || only != c.only {
				t.Errorf("%+v, %v, %d usage only; want %+v, %v, %d", r.meter.Usage, r.meter.HasUsage, only, c.want, c.has, c.only)
			}
			if told := c.want.Cached > 0 || c.name == "none cached"; r.meter.HasCached != told {
				t.Errorf("cached tokens were told: %v, want %v", r.meter.HasCached, told)
			}
			everySplit(t, c.stream)
		})
	}
}

// TestEnd says which streams reached an honest end.
func TestEnd(t *testing.T) {
	choiceOf := func(index, reason string) string {
		return event(`{"choices":[{"finish_reason":` + reason + `,"index":` + index + `,"delta":{}}]}`)
	}
	many := ""
	for i := range 65 {
		many += choiceOf(fmt.Sprint(i), `"stop"`)
	}
	for _, c := range []struct {
		name, stream string
		complete     bool
		aborted      bool
		finish       string
	}{
		{"nothing", "", false, false, ""},
		{"tokens only", chunk(`{"content":"x"}`), false, false, ""},
		{"[DONE]", chunk(`{"content":"x"}`) + done, true, false, ""},
		{"finish reason", finished("stop"), true, false, "stop"},
		{"finish reason in a stream without its last blank line", strings.TrimSuffix(finished("length"), "\n\n"), true, false, "length"},
		{"finish reason, null", choiceOf("0", "null"), false, false, ""},
		{"finish reason, empty", finished(""), false, false, ""},
		{"finish reason, unusual", finished("eos_token"), true, false, "eos_token"},
		{"finish reason, escaped", finished(`\u0073top`), true, false, "stop"},
		{"finish reason, long", finished(strings.Repeat("x", 100)), true, false, strings.Repeat("x", captureLen)},
		{"finish reason, then a chunk", finished("stop") + chunk(`{}`), true, false, "stop"},
		{"abort", finished("abort") + done, true, true, "abort"},
		{"error", finished("error") + done, true, true, "error"},
		{"abort of one", choiceOf("0", `"abort"`) + choiceOf("1", `"stop"`), true, true, "stop"},

		{"two choices", choiceOf("0", `"stop"`) + choiceOf("1", `"length"`), true, false, "length"},
		{"two choices, one unfinished", choiceOf("0", "null") + choiceOf("1", "null") + choiceOf("1", `"stop"`), false, false, "stop"},
		{"two choices, in disorder", choiceOf("1", "null") + choiceOf("0", `"stop"`) + choiceOf("1", `"stop"`), true, false, "stop"},
		{"two choices in one chunk", event(`{"choices":[{"index":1,"finish_reason":"stop"},{"finish_reason":null,"index":0}]}`), false, false, "stop"},
		{"two choices without index", event(`{"choices":[{"finish_reason":"stop"},{"finish_reason":null}]}`), false, false, "stop"},
		{"choice without index", event(`{"choices":[{"delta":{}}]}`) + event(`{"choices":[{"finish_reason":"stop"}]}`), true, false, "stop"},
		{"choices without index, both finished", event(`{"choices":[{"finish_reason":"stop"},{"finish_reason":"length"}]}`), true, false, "length"},
		{"choice 63", choiceOf("63", `"stop"`), true, false, "stop"},
		{"too many choices to know", many, false, false, "stop"},
		{"too many choices, [DONE]", many + done, true, false, "stop"},
		{"a negative index", choiceOf("-1", `"stop"`), true, false, "stop"},

		{"Responses, completed", event(`{"type":"response.completed","response":{"status":"completed"}}`), true, false, "stop"},
		{"Responses, incomplete", event(`{"type":"response.incomplete","response":{"status":"incomplete"}}`), true, false, "length"},
		{"Responses, failed", event(`{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"x"}}}`), true, true, "error"},
		{"Responses, in progress", event(`{"type":"response.created","response":{"status":"in_progress"}}`), false, false, ""},
		{"Responses, a failed tool", event(`{"type":"response.mcp_call.failed"}`), false, false, ""},
		{"Messages, message_delta", event(`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`), false, false, "end_turn"},
		{"Messages, message_stop", event(`{"type":"message_delta","delta":{"stop_reason":"max_tokens"}}`) + event(`{"type":"message_stop"}`), true, false, "max_tokens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := readStream(t, []byte(c.stream))
			m := r.meter
			if m.Complete() != c.complete || m.Aborted != c.aborted || m.FinishReason != c.finish {
				t.Errorf("complete %v, aborted %v, finish %q; want %v, %v, %q", m.Complete(), m.Aborted, m.FinishReason, c.complete, c.aborted, c.finish)
			}
			if len(c.stream) < 1000 {
				everySplit(t, c.stream)
			}
		})
	}
}

// TestAbortedEvent tells the event that gave up from those after it.
func TestAbortedEvent(t *testing.T) {
	r := readStream(t, []byte(chunk(`{"content":"x"}`)+finished("abort")+done))
	for i, want := range []bool{false, true, false} {
		if r.events[i].Aborted != want {
			t.Errorf("event %d: aborted %v", i, r.events[i].Aborted)
		}
	}
}

func TestErrorEvents(t *testing.T) {
	for _, c := range []struct {
		name, stream string
		failed       bool
		code, kind   string
		status       int
	}{
		{"object", event(`{"error":{"message":"x","type":"server_error","param":null,"code":null}}`), true, "", "server_error", 0},
		{"numeric code", event(`{"error":{"code":400,"message":"Token limit reached"}}`), true, "400", "", 400},
		{"code as text", event(`{"error":{"code":"503"}}`), true, "503", "", 503},
		{"known code", event(`{"error":{"code":"rate_limit_exceeded"}}`), true, "rate_limit_exceeded", "", 429},
		{"server error", event(`{"error":{"code":"server_error"}}`), true, "server_error", "", 500},
		{"other code", event(`{"error":{"code":"tool_use_failed","status_code":400}}`), true, "tool_use_failed", "", 400},
		{"code that is no status", event(`{"error":{"code":11200}}`), true, "11200", "", 0},
		{"code zero", event(`{"error":{"code":0,"type":"x"}}`), true, "", "x", 0},
		{"status as a word", event(`{"error":{"code":503,"message":"x","status":"UNAVAILABLE"}}`), true, "503", "", 503},
		{"TGI", event(`{"error":{"message":"x","http_status_code":422}}`), true, "", "", 422},
		{"TGI, older", event(`{"error":"Model is overloaded","error_type":"overloaded"}`), true, "", "overloaded", 0},
		{"string", event(`{"error":"something broke"}`), true, "", "", 0},
		{"empty string", event(`{"error":""}`), false, "", "", 0},
		{"null", event(`{"error":null}`), false, "", "", 0},
		{"true", event(`{"error":true}`), true, "", "", 0},
		{"false", event(`{"error":false}`), false, "", "", 0},
		{"empty object", event(`{"error":{}}`), true, "", "", 0},
		{"array", event(`{"error":[{"code":500}]}`), true, "", "", 0},
		{"number", event(`{"error":7}`), true, "", "", 0},
		{"zero", event(`{"error":0}`), false, "", "", 0},
		{"in a chunk", event(`{"choices":[{"delta":{"content":""}}],"error":{"code":502}}`), true, "502", "", 502},
		{"deeper", event(`{"choices":[{"error":{"code":502}}],"x":{"error":{"code":502}}}`), false, "", "", 0},
		{"in content", chunk(`{"content":"{\"error\":{\"code\":502}}"}`), false, "", "", 0},
		{"a code without error", event(`{"code":500,"choices":[]}`), false, "", "", 0},
		{"event name", "event: error\ndata: {\"message\":\"x\"}\n\n", true, "", "", 0},
		{"event name, no JSON", "event: error\ndata: boom\n\n", true, "", "", 0},
		{"event name after data", "data: {\"code\":429}\nevent:error\n\n", true, "429", "", 429},
		{"last event name counts", "event: error\nevent: ping\ndata: {}\n\n", false, "", "", 0},
		{"another event name", "event: errors\ndata: {}\n\n", false, "", "", 0},
		{"event name without data", "event: error\n\n", false, "", "", 0},
		{"event name of the event before", "event: error\n\ndata: {}\n\n", false, "", "", 0},
		{"Responses", "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"x\",\"param\":null,\"sequence_number\":3}\n\n", true, "server_error", "", 500},
		{"Responses, type only", event(`{"type":"error","code":"rate_limit_exceeded","message":"x"}`), true, "rate_limit_exceeded", "", 429},
		{"Responses, failed", event(`{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error"}}}`), true, "server_error", "", 500},
		{"Responses, no error", event(`{"type":"response.created","response":{"error":null}}`), false, "", "", 0},
		{"Messages", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n", true, "", "overloaded_error", 0},
		{"after tokens", chunk(`{"content":"x"}`) + event(`{"error":{"code":500}}`) + done, true, "500", "", 500},
		{"our own", string((&Error{Status: 502, Code: "upstream_truncated", Message: "x"}).Event(ChatCompletions)), true, "upstream_truncated", "server_error", 0},
		{"our own, Responses", string((&Error{Status: 502, Code: "upstream_truncated", Message: "x"}).Event(Responses)), true, "upstream_truncated", "server_error", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := readStream(t, []byte(c.stream))
			m := r.meter
			if m.Failed != c.failed || m.ErrorCode != c.code || m.ErrorType != c.kind || m.ErrorStatus != c.status {
				t.Errorf("failed %v, code %q, type %q, status %d; want %v, %q, %q, %d",
					m.Failed, m.ErrorCode, m.ErrorType, m.ErrorStatus, c.failed, c.code, c.kind, c.status)
			}
			failed := 0
			for _, ev := range r.events {
				if ev.Failed {
					failed++
				}
			}
			if (failed == 1) != c.failed {
				t.Errorf("%d error events", failed)
			}
			everySplit(t, c.stream)
		})
	}
}

func TestUnparsed(t *testing.T) {
	for data, want := range map[string]int{
		`{}`: 0, ` {"a":[1,{"b":null}]} `: 0, `null`: 0, `true`: 0, `-1.5e3`: 0, `"x"`: 0, `[]`: 0, ``: 0, `{"a":"\"}"}`: 0, `[{"":{}},"a",1]`: 0,
		`hello`: 1, `hello world`: 1, `<html>`: 1, `{`: 1, `{"a":"b`: 1, `}`: 1, `{}}`: 1, `{} {}`: 1, `1 2`: 1, `[DON`: 1,
		`{"a":1},`: 1, `nul`: 1, `NaN`: 1, `"a" "b"`: 1, `{} "a"`: 1, `[] "a":{}`: 1, `{"a":1`: 1, `]`: 1, `,`: 1,
	} {
		if m := readStream(t, []byte(event(data))).meter; m.Unparsed != want || m.Events != 1 {
			t.Errorf("%q: %d unparsed of %d", data, m.Unparsed, m.Events)
		}
		everySplit(t, event(data))
	}
}

// TestLongLines has events far longer than any buffer.
func TestLongLines(t *testing.T) {
	for name, text := range map[string]string{
		"plain":      strings.Repeat("x", 4<<20),
		"escapes":    strings.Repeat(`\n`, 128<<10),
		"quotes":     strings.Repeat(`\"`, 128<<10),
		"unicode":    strings.Repeat(`\u00e9`, 128<<10),
		"multi-byte": strings.Repeat("é🚀", 128<<10),
	} {
		stream := []byte(chunk(`{"content":"`+text+`","role":"assistant"}`) + finished("stop") + done)
		whole := readStream(t, stream)
		if m := whole.meter; m.Chunks != 1 || m.Events != 3 || m.FinishReason != "stop" || m.Unparsed != 0 {
			t.Errorf("%s: tally %+v", name, m.Tally)
		}
		whole.mustEqual(t, readStream(t, split(stream, 32<<10)...), name)
		whole.mustEqual(t, readStream(t, split(stream, 4093)...), name)
	}
}

// TestManyLines has no line end be looked for twice over the whole buffer.
func TestManyLines(t *testing.T) {
	for _, line := range []string{"\r", ":\r", "data:\r", ":\n", "data: 1\r\r"} {
		stream := []byte(strings.Repeat(line, 256<<10/len(line)))
		if m := readStream(t, stream).meter; m.Done || m.Chunks != 0 {
			t.Errorf("%q: tally %+v", line, m.Tally)
		}
	}
}

// TestReadJSON reads unstreamed answers.
func TestReadJSON(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       Tally
		complete   bool
	}{
		{"chat", `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],` +
			`"usage":{"prompt_tokens":3,"completion_tokens":1}}`, Tally{Usage: Usage{Prompt: 3, Completion: 1}, HasUsage: true, FinishReason: "stop"}, true},
		{"completions", `{"choices":[{"index":0,"text":"Hi","finish_reason":"length"},{"index":1,"text":"Ho","finish_reason":"stop"}]}`,
			Tally{FinishReason: "stop"}, true},
		{"abort", `{"choices":[{"index":0,"message":{"content":""},"finish_reason":"abort"}]}`, Tally{FinishReason: "abort", Aborted: true}, true},
		{"Responses", `{"object":"response","status":"completed","error":null,"output":[{"type":"message","status":"failed","content":[]}],` +
			`"usage":{"input_tokens":13,"output_tokens":9,"output_tokens_details":{"reasoning_tokens":4}}}`,
			Tally{Usage: Usage{Prompt: 13, Completion: 9, Reasoning: 4}, HasUsage: true, FinishReason: "stop"}, false},
		{"Responses, failed", `{"object":"response","status":"failed","error":{"code":"server_error","message":"x"}}`,
			Tally{FinishReason: "error", Aborted: true, Failed: true, ErrorCode: "server_error", ErrorStatus: 500}, false},
		{"Responses, cancelled", `{"object":"response","status":"cancelled"}`, Tally{FinishReason: "cancelled"}, false},
		{"Messages", `{"type":"message","content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn","usage":{"input_tokens":13,"output_tokens":9}}`,
			Tally{Usage: Usage{Prompt: 13, Completion: 9}, HasUsage: true, FinishReason: "end_turn"}, false},
		{"embeddings", `{"object":"list","data":[{"embedding":[0.1,-2e-3,3],"index":0}],"usage":{"prompt_tokens":8,"total_tokens":8}}`,
			Tally{Usage: Usage{Prompt: 8}, HasUsage: true}, false},
		{"embeddings, base64", `{"object":"list","data":[{"embedding":"AAAA","index":0}],"usage":{"prompt_tokens":8}}`,
			Tally{Usage: Usage{Prompt: 8}, HasUsage: true}, false},
		{"error", `{"error":{"message":"x","type":"invalid_request_error","param":"n","code":"bad"}}`,
			Tally{Failed: true, ErrorCode: "bad", ErrorType: "invalid_request_error"}, false},
		{"detail", `{"detail":"Invalid API Key"}`, Tally{}, false},
		{"no JSON", `<html>`, Tally{Unparsed: 1}, false},
		{"cut", `{"usage":{"prompt_tokens":8`, Tally{Usage: Usage{Prompt: 8}, HasUsage: true, Unparsed: 1}, false},
		{"nothing", ``, Tally{Unparsed: 1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Meter
			m.Reset()
			m.ReadJSON([]byte(c.body))
			complete := m.Complete()
			m.seen, m.finished = 0, 0
			if m.Tally != c.want || complete != c.complete {
				t.Errorf("%+v, complete %v\nwant %+v, %v", m.Tally, complete, c.want, c.complete)
			}
		})
	}
}

// TestMeterAllocatesNothing while it reads what engines usually send.
func TestMeterAllocatesNothing(t *testing.T) {
	stream := []byte(chunk(`{"role":"assistant"}`) + chatChunk + chunk(`{"tool_calls":[{"function":{"arguments":"{\"a\":\"é\"}"}}]}`) +
		event(`{"choices":[{"delta":{},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":5.0}}`) + done)
	var m Meter
	allocs := testing.AllocsPerRun(100, func() {
		m.Reset()
		for p := stream; len(p) > 0; {
			n, _, _ := m.Next(p[:min(len(p), 100)])
			p = p[n:]
		}
	})
	if allocs != 0 || m.Chunks != 2 || !m.Done {
		t.Errorf("%v allocations; tally %+v", allocs, m.Tally)
	}
}

// everySplit reads a stream byte by byte and, when it is short, split in two
// at every offset: it must read the same as whole.
func everySplit(t *testing.T, stream string) {
	t.Helper()
	p := []byte(stream)
	whole := readStream(t, p)
	whole.mustEqual(t, readStream(t, split(p, 1)...), "byte by byte")
	step := max(1, len(p)/500)
	for at := 1; at < len(p); at += step {
		whole.mustEqual(t, readStream(t, p[:at], p[at:]), fmt.Sprint("split at ", at))
	}
}

// shuffled cuts p into pieces of random sizes.
func shuffled(p []byte, seed uint64) (pieces [][]byte) {
	r := rand.New(rand.NewPCG(seed, 0))
	for len(p) > 0 {
		n := min(1+r.IntN(1+r.IntN(64)), len(p))
		pieces = append(pieces, p[:n])
		p = p[n:]
	}
	return pieces
}

// seeds are streams for fuzzing: all the shapes above.
func seeds() []string {
	return []string{
		chatChunk + done,
		": ping\r\n\r\ndata:" + `{"choices":[{"index":1,"delta":{"reasoning_content":"Hm"}}],"usage":null}` + "\r\r" + finished("stop"),
		"\ufeff" + chunk(`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"x"}]},{"type":"text","text":"y"}]}`),
		chunk(`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{\"a\\u00e9\""}},{"custom":{"input":"x"}}],"function_call":{"name":"f"}}`),
		chunk(`{"audio":{"data":"x","transcript":""},"refusal":"no"}`) + event(`{"choices":[{"text":"x","finish_reason":"abort"}]}`),
		event(`{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1.5e1,"prompt_tokens_details":{"cached_tokens":3},` +
			`"completion_tokens_details":{"reasoning_tokens":1}},"timings":{"cache_n":12}}`),
		event(`{"type":"response.reasoning_text.delta","delta":"x"}`) + event(`{"delta":"x","type":"response.function_call_arguments.delta"}`) +
			event(`{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":1,"output_tokens":2}}}`),
		event(`{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error"}}}`),
		event(`{"type":"message_start","message":{"usage":{"input_tokens":1}}}`) + event(`{"type":"content_block_delta","delta":{"text":"x"}}`) +
			event(`{"type":"content_block_delta","delta":{"partial_json":"x"}}`) + event(`{"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}`) + event(`{"type":"message_stop"}`),
		"event: error\ndata: {\"error\":{\"code\":400,\"type\":\"x\",\"status_code\":401}}\n\n" + event(`{"error":"boom","error_type":"overloaded","code":"503"}`),
		"data\n\ndata:\n\ndata: {\"a\":\ndata: 1}\nid: 1\nretry: 2\n\ndata: hello\n\ndata: [DONE] x",
		event(`{"choices":null,"usage":{"prompt_cache_hit_tokens":1,"cached_tokens":2,"cache_read_input_tokens":3},"stop_reason":"x","status":"incomplete"}`),
	}
}

// TestMeterLaw reads the seeds, whole and with bits of them missing, in random
// pieces, and compares with the plain reader.
func TestMeterLaw(t *testing.T) {
	for i, stream := range seeds() {
		checkStream(t, []byte(stream), uint64(i))
		r := rand.New(rand.NewPCG(uint64(i), 1))
		for seed := range uint64(100) {
			p := []byte(stream)
			from := r.IntN(len(p))
			p = append(p[:from:from], p[from+r.IntN(min(len(p)-from, 20)):]...)
			checkStream(t, p, seed)
		}
	}
}

// TestMeterGrammar reads chunks made at random of the keys and values that
// matter, in likely and unlikely places.
func TestMeterGrammar(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		var stream strings.Builder
		for range 1 + r.IntN(4) {
			if r.IntN(4) == 0 {
				stream.WriteString("event: " + pick(r, "error", "ping", "response.completed") + pick(r, "\n", "\r", "\r\n"))
			}
			stream.WriteString("data:" + pick(r, " ", "") + randomObject(r, 0, "") + pick(r, "\n\n", "\r\r", "\r\n\r\n", "\n\r"))
		}
		checkStream(t, []byte(stream.String()), seed)
		if t.Failed() {
			t.Fatalf("seed %d: %q", seed, stream.String())
		}
	}
}

func pick(r *rand.Rand, from ...string) string { return from[r.IntN(len(from))] }

// likely are the keys that belong inside each key's value.
var likely = map[string][]string{
	"":                          {"choices", "choices", "choices", "usage", "error", "type", "delta", "response", "message", "timings", "status", "stop_reason", "code", "error_type"},
	"choices":                   {"delta", "delta", "text", "finish_reason", "index", "message"},
	"delta":                     {"content", "text", "refusal", "reasoning", "reasoning_content", "thinking", "tool_calls", "function_call", "partial_json", "audio", "stop_reason"},
	"content":                   {"text", "refusal", "thinking", "image_url", "type"},
	"thinking":                  {"text", "type"},
	"tool_calls":                {"function", "custom", "name", "arguments", "input", "id"},
	"function":                  {"name", "arguments", "input"},
	"function_call":             {"name", "arguments"},
	"audio":                     {"data", "transcript", "id"},
	"usage":                     {"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "prompt_tokens_details", "completion_tokens_details", "cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"},
	"prompt_tokens_details":     {"cached_tokens", "reasoning_tokens"},
	"completion_tokens_details": {"reasoning_tokens", "cached_tokens"},
	"error":                     {"code", "status", "status_code", "type", "message"},
	"response":                  {"usage", "error", "status"},
	"message":                   {"usage", "error", "status"},
	"timings":                   {"cache_n", "prompt_n"},
}

func randomObject(r *rand.Rand, depth int, in string) string {
	var out strings.Builder
	seen := map[string]bool{}
	for range r.IntN(5) {
		key := "x"
		if keys := likely[in]; len(keys) > 0 && r.IntN(8) > 0 {
			key = pick(r, keys...)
		} else if r.IntN(2) == 0 {
			key = pick(r, slices.Sorted(maps.Keys(likely))...)
		}
		if seen[key] {
			continue
		}
		if seen[key] = true; len(seen) > 1 {
			out.WriteString(pick(r, ",", " , "))
		}
		quoted := `"` + key + `"`
		if r.IntN(20) == 0 && key != "" {
			quoted = fmt.Sprintf(`"\u%04x%s"`, key[0], key[1:])
		}
		out.WriteString(quoted + pick(r, ":", " : ") + randomValue(r, depth+1, key))
	}
	return "{" + out.String() + "}"
}

func randomValue(r *rand.Rand, depth int, key string) string {
	list := key == "choices" || key == "tool_calls" || key == "thinking" || key == "content"
	switch n := r.IntN(12); {
	case depth > 12 || n < 3:
		return pick(r, `""`, `"x"`, `"stop"`, `"abort"`, `"\n"`, `"\\"`, `"\"é"`, `"error"`, `"failed"`, `"completed"`, `"server_error"`, `"429"`,
			`"response.output_text.delta"`, `"response.reasoning_text.delta"`, `"response.mcp_call_arguments.delta"`, `"response.failed"`, `"message_stop"`)
	case n < 5:
		return pick(r, "null", "true", "false", "0", "1", "2", "63", "64", "12", "400", "-1", "1.5", "2e2", "1e400", "12345678901234567890")
	case list && n < 10 || n == 5:
		var items []string
		for range r.IntN(3) {
			if r.IntN(4) == 0 {
				items = append(items, randomValue(r, depth+1, "x"))
			} else {
				items = append(items, randomObject(r, depth+1, key))
			}
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	return randomObject(r, depth, key)
}

func FuzzMeter(f *testing.F) {
	for i, stream := range seeds() {
		f.Add([]byte(stream), uint64(i))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		if len(stream) < 64<<10 {
			checkStream(t, stream, seed)
		}
	})
}

// checkStream holds the meter to its laws: it reads the same however the
// stream is split, and, if the events are JSON that can be read in one way
// only, what the plain reader reads.
func checkStream(t *testing.T, stream []byte, seed uint64) {
	t.Helper()
	whole := readStream(t, stream)
	whole.mustEqual(t, readStream(t, split(stream, 1)...), "byte by byte")
	whole.mustEqual(t, readStream(t, shuffled(stream, seed)...), "in pieces")
	var m Meter
	m.Reset()
	m.ReadJSON(stream) // must not panic

	events := plainEvents(stream)
	if whole.meter.Events != len(events) {
		t.Fatalf("%d events, want %d", whole.meter.Events, len(events))
	}
	for _, ev := range events {
		if *ev.data != "" && !strings.HasPrefix(*ev.data, "[DONE]") && !unambiguous(*ev.data) {
			return
		}
	}
	plain := readPlain(stream)
	for _, d := range plain.differences(whole.meter) {
		t.Errorf("%s", d)
	}
	var meant []Event
	for _, ev := range whole.events {
		if ev.Data {
			meant = append(meant, ev)
		}
	}
	for i, ev := range meant {
		if ev != plain.meant[i] {
			t.Errorf("event %d: %+v, want %+v", i, ev, plain.meant[i])
		}
	}
}

// unambiguous reports whether data is JSON without duplicate keys and without
// what the meter reads only roughly: endless numbers and surrogates.
func unambiguous(data string) bool {
	if !jsontext.Value(data).IsValid() || strings.Contains(strings.ToLower(data), `\ud`) {
		return false
	}
	dec := jsontext.NewDecoder(bytes.NewBufferString(data))
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return true
		}
		if token.Kind() != '0' {
			continue
		}
		if len(token.String()) > 30 {
			return false
		}
	}
}
