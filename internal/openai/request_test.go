package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const chat = `{"model":"m","messages":[{"role":"user","content":"Hi"}]}`

// chatWith is a sound chat request with more members.
func chatWith(members string) string {
	return `{"messages":[{"role":"user","content":"Hi"}],"model":"m",` + members + `}`
}

// TestRefusals gives every way in which a body can be wrong.
func TestRefusals(t *testing.T) {
	const (
		notJSON   = "invalid_json"
		duplicate = "duplicate_key"
		missing   = "missing_required_parameter"
		badType   = "invalid_type"
		badValue  = "invalid_value"
		ambiguous = "ambiguous_key"
	)
	for _, c := range []struct {
		name, body           string
		code, param, message string // a part of the message
	}{
		{"empty", ``, notJSON, "", "send a JSON object"},
		{"white space", " \r\n\t", notJSON, "", "send a JSON object"},
		{"cut", `{"model":"m"`, notJSON, "", "ends too early (at byte 12)"},
		{"cut in a string", `{"model":"m`, notJSON, "", "ends too early"},
		{"cut in a key", `{"mod`, notJSON, "", "ends too early"},
		{"array", `[` + chat + `]`, "invalid_body", "", "must be a JSON object"},
		{"string", `"x"`, "invalid_body", "", "must be a JSON object"},
		{"null", `null`, "invalid_body", "", "must be a JSON object"},
		{"text", `hello`, notJSON, "", "send one JSON object"},
		{"trailing text", chat + `x`, notJSON, "", "text after"},
		{"trailing object", chat + chat, notJSON, "", "exactly one object"},
		{"trailing brace", chat + `}`, notJSON, "", "text after"},
		{"trailing NUL", chat + "\x00", notJSON, "", "text after"},
		{"trailing comma", `{"model":"m",}`, notJSON, "", "(at byte 12)"},
		{"byte order mark", "\ufeff" + chat, notJSON, "", "send one JSON object in UTF-8"},
		{"UTF-16", "{\x00}\x00", notJSON, "", "send one JSON object in UTF-8"},
		{"comment", `{/* x */"model":"m"}`, notJSON, "", "(at byte 1)"},
		{"single quotes", `{'model':'m'}`, notJSON, "", "(at byte 1)"},
		{"NaN", chatWith(`"temperature":NaN`), notJSON, "", "invalid character 'N'"},
		{"Infinity", chatWith(`"temperature":-Infinity`), notJSON, "", "invalid character 'I'"},
		{"leading zero", chatWith(`"n":01`), notJSON, "", "send one JSON object"},
		{"control character", chatWith("\"x\":\"\n\""), notJSON, "", "send one JSON object"},
		{"invalid UTF-8", chatWith("\"x\":\"\xff\""), notJSON, "", "invalid UTF-8"},
		{"invalid UTF-8 in a key", chatWith("\"\xc3\":1"), notJSON, "", "invalid UTF-8"},
		{"overlong UTF-8", chatWith("\"x\":\"\xc0\x80\""), notJSON, "", "invalid UTF-8"},
		{"surrogate in UTF-8", chatWith("\"x\":\"\xed\xa0\x80\""), notJSON, "", "invalid UTF-8"},
		{"lone surrogate", chatWith(`"x":"\ud800"`), notJSON, "", "invalid surrogate pair"},
		{"lone low surrogate", chatWith(`"x":"\udc00secret"`), notJSON, "", "invalid surrogate pair"},
		{"unknown escape", chatWith(`"x":"\x41"`), notJSON, "", "invalid escape sequence"},

		{"key twice", chatWith(`"n":1,"n":1`), duplicate, "", "send each key once"},
		{"model twice", chatWith(`"model":"m"`), duplicate, "", "send each key once"},
		{"model twice, escaped", chatWith(`"mod\u0065l":"n"`), duplicate, "", "send each key once"},
		{"key twice in a message", `{"model":"m","messages":[{"role":"user","role":"system"}]}`, duplicate, "", "(at byte 40)"},
		{"key twice far down", chatWith(`"x":[[{"y":{"a":1,"\u0061":2}}]]`), duplicate, "", "send each key once"},
		{"include_usage twice", chatWith(`"stream_options":{"include_usage":true,"include_usage":false}`), duplicate, "", "send each key once"},
		{"empty key twice", chatWith(`"":1,"":2`), duplicate, "", "send each key once"},

		{"deep arrays", `{"x":` + strings.Repeat("[", 100_000), "nested_too_deep", "", "200 levels"},
		{"deep arrays, closed", chatWith(`"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)), "nested_too_deep", "", "200 levels"},
		{"deep objects", strings.Repeat(`{"x":`, 100_000), "nested_too_deep", "", "200 levels"},
		{"201 levels", chatWith(`"x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200)), "nested_too_deep", "", "200 levels"},

		{"no model", `{"messages":[{}]}`, missing, "model", "name the model"},
		{"nothing", `{}`, missing, "model", "name the model"},
		{"model null", `{"model":null,"messages":[{}]}`, badType, "model", "non-empty string"},
		{"model empty", `{"model":"","messages":[{}]}`, badType, "model", "non-empty string"},
		{"model number", `{"model":5,"messages":[{}]}`, badType, "model", "non-empty string"},
		{"model array", `{"model":["m"],"messages":[{}]}`, badType, "model", "non-empty string"},
		{"Model", `{"Model":"m","messages":[{}]}`, ambiguous, "model", `write "model"`},
		{"model and MODEL", chatWith(`"MODEL":"n"`), ambiguous, "model", `write "model"`},
		{"Stream, escaped", chatWith(`"\u0053tream":true`), ambiguous, "stream", `write "stream"`},
		{"long s", chatWith(`"ſtream":true`), ambiguous, "stream", `write "stream"`},
		{"Stream_Options", chatWith(`"Stream_Options":{}`), ambiguous, "stream_options", `write "stream_options"`},

		{"no messages", `{"model":"m"}`, missing, "messages", "/v1/chat/completions needs it"},
		{"messages null", `{"model":"m","messages":null}`, badType, "messages", "must be an array"},
		{"messages empty", `{"model":"m","messages":[ ]}`, "empty_array", "messages", "at least one message"},
		{"messages string", `{"model":"m","messages":"Hi"}`, badType, "messages", "must be an array"},
		{"messages object", `{"model":"m","messages":{}}`, badType, "messages", "must be an array"},

		{"stream string", chatWith(`"stream":"true"`), badType, "stream", "true or false"},
		{"stream number", chatWith(`"stream":1`), badType, "stream", "true or false"},
		{"stream object", chatWith(`"stream":{}`), badType, "stream", "true or false"},
		{"stream_options array", chatWith(`"stream_options":[]`), badType, "stream_options", "must be an object"},
		{"stream_options true", chatWith(`"stream_options":true`), badType, "stream_options", "must be an object"},
		{"include_usage string", chatWith(`"stream_options":{"include_usage":"yes"}`), badType, "stream_options.include_usage", "true or false"},
		{"include_usage number", chatWith(`"stream_options":{"include_usage":1}`), badType, "stream_options.include_usage", "true or false"},

		{"max_tokens string", chatWith(`"max_tokens":"16"`), badValue, "max_tokens", "whole number"},
		{"max_tokens negative", chatWith(`"max_tokens":-2`), badValue, "max_tokens", "not negative"},
		{"max_tokens fraction", chatWith(`"max_tokens":1.5`), badValue, "max_tokens", "whole number"},
		{"max_tokens true", chatWith(`"max_tokens":true`), badValue, "max_tokens", "whole number"},
		{"max_completion_tokens array", chatWith(`"max_completion_tokens":[1]`), badValue, "max_completion_tokens", "whole number"},
		{"max_output_tokens object", chatWith(`"max_output_tokens":{}`), badValue, "max_output_tokens", "whole number"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, bad := ReadRequest(ChatCompletions, []byte(c.body))
			if bad == nil || r != nil {
				t.Fatalf("accepted: %+v", r)
			}
			if bad.Status != 400 || bad.Code != c.code || bad.Param != c.param || !strings.Contains(bad.Message, c.message) {
				t.Errorf("%d, code %q, param %q, message %q; want %q, %q, %q", bad.Status, bad.Code, bad.Param, bad.Message, c.code, c.param, c.message)
			}
			if strings.Contains(bad.Message, "dc00") || strings.Contains(bad.Message, "secret") {
				t.Errorf("message %q shows the body", bad.Message)
			}
		})
	}
}

// TestRequired says what each endpoint cannot do without.
func TestRequired(t *testing.T) {
	for api, field := range map[Endpoint]string{ChatCompletions: "messages", Completions: "prompt", Embeddings: "input", Responses: ""} {
		for _, name := range []string{"messages", "prompt", "input"} {
			_, bad := ReadRequest(api, fmt.Appendf(nil, `{"model":"m",%q:["x"]}`, name))
			if wantBad := field != "" && name != field; (bad != nil) != wantBad || bad != nil && bad.Param != field {
				t.Errorf("%s with %s: %+v", api.Path(), name, bad)
			}
		}
		if _, bad := ReadRequest(api, []byte(`{"model":"m"}`)); (bad != nil) != (field != "") {
			t.Errorf("%s with a model only: %+v", api.Path(), bad)
		}
		if field == "prompt" || field == "input" {
			if _, bad := ReadRequest(api, fmt.Appendf(nil, `{"model":"m",%q:null}`, field)); bad == nil || bad.Param != field {
				t.Errorf("%s with %s null: %+v", api.Path(), field, bad)
			}
			if _, bad := ReadRequest(api, fmt.Appendf(nil, `{%q:"","model":"m"}`, field)); bad != nil {
				t.Errorf("%s with %s empty: %+v", api.Path(), field, bad)
			}
		}
		if _, bad := ReadRequest(api, fmt.Appendf(nil, `{%q:["x"]}`, field)); bad == nil || bad.Param != "model" {
			t.Errorf("%s without model: %+v", api.Path(), bad)
		}
	}
}

func TestEndpoints(t *testing.T) {
	for api, want := range map[Endpoint][2]string{
		ChatCompletions: {"/v1/chat/completions", "chat_completions"}, Completions: {"/v1/completions", "completions"},
		Embeddings: {"/v1/embeddings", "embeddings"}, Responses: {"/v1/responses", "responses"},
	} {
		if api.Path() != want[0] || api.String() != want[1] {
			t.Errorf("%s %s", api.Path(), api)
		}
	}
}

// TestReadRequest is what the gateway reads.
func TestReadRequest(t *testing.T) {
	for _, c := range []struct {
		name, body string
		model      string
		stream     bool
		max        int
		session    string
		asked      bool
	}{
		{"least", chat, "m", false, 0, "", false},
		{"white space", " \r\n{\t\"model\" : \"m\" , \"messages\" : [ { } ] } \n", "m", false, 0, "", false},
		{"escaped key", `{"mod\u0065l":"m","messages":[{}]}`, "m", false, 0, "", false},
		{"escaped value", `{"model":"org\/mod\u0065l \"\u00e9\ud83d\ude80","messages":[{}]}`, `org/model "é🚀`, false, 0, "", false},
		{"stream", chatWith(`"stream":true`), "m", true, 0, "", false},
		{"stream false", chatWith(`"stream":false`), "m", false, 0, "", false},
		{"nulls", chatWith(`"stream":null,"stream_options":null,"max_tokens":null,"max_completion_tokens":null,"user":null,"prompt_cache_key":null,"tools":null`), "m", false, 0, "", false},

		{"max_tokens", chatWith(`"max_tokens":16`), "m", false, 16, "", false},
		{"max_tokens 0", chatWith(`"max_tokens":0`), "m", false, 0, "", false},
		{"max_tokens 16.0", chatWith(`"max_tokens":16.0`), "m", false, 16, "", false},
		{"max_tokens 1.6e1", chatWith(`"max_tokens":1.6e1`), "m", false, 16, "", false},
		{"max_tokens 1e400", chatWith(`"max_tokens":1e400`), "m", false, 0, "", false},
		{"max_tokens huge", chatWith(`"max_tokens":99999999999999999999999`), "m", false, 0, "", false},
		{"max_completion_tokens", chatWith(`"max_completion_tokens":17`), "m", false, 17, "", false},
		{"max_output_tokens", chatWith(`"max_output_tokens":18`), "m", false, 18, "", false},
		{"both, new last", chatWith(`"max_tokens":16,"max_completion_tokens":17`), "m", false, 17, "", false},
		{"both, new first", chatWith(`"max_completion_tokens":17,"max_tokens":16`), "m", false, 17, "", false},

		{"user", chatWith(`"user":"u"`), "m", false, 0, "u", false},
		{"prompt_cache_key", chatWith(`"prompt_cache_key":"k"`), "m", false, 0, "k", false},
		{"key after user", chatWith(`"user":"u","prompt_cache_key":"k"`), "m", false, 0, "k", false},
		{"key before user", chatWith(`"prompt_cache_key":"k","user":"u"`), "m", false, 0, "k", false},
		{"empty key after user", chatWith(`"user":"u","prompt_cache_key":""`), "m", false, 0, "u", false},
		{"empty key before user", chatWith(`"prompt_cache_key":"","user":"u"`), "m", false, 0, "u", false},
		{"null key after user", chatWith(`"user":"u","prompt_cache_key":null`), "m", false, 0, "u", false},
		{"user is no string", chatWith(`"user":5`), "m", false, 0, "", false},

		{"include_usage", chatWith(`"stream":true,"stream_options":{"include_usage":true}`), "m", true, 0, "", true},
		{"include_usage false", chatWith(`"stream":true,"stream_options":{"include_usage":false}`), "m", true, 0, "", false},
		{"include_usage null", chatWith(`"stream":true,"stream_options":{"include_usage":null}`), "m", true, 0, "", false},
		{"include_usage escaped", chatWith(`"stream":true,"stream_options":{"include\u005fusage":true}`), "m", true, 0, "", true},
		{"stream_options before stream", chatWith(`"stream_options":{"x":[1],"include_usage":true},"stream":true`), "m", true, 0, "", true},

		{"fields of messages do not count", `{"model":"m","messages":[{"model":"n","stream":true,"max_tokens":5,"user":"u","Model":"o"}]}`, "m", false, 0, "", false},
		{"other cases of harmless names", chatWith(`"User":"u","MAX_TOKENS":5,"models":["n"],"modell":1`), "m", false, 0, "", false},
		{"200 levels", chatWith(`"x":` + strings.Repeat("[", 199) + strings.Repeat("]", 199)), "m", false, 0, "", false},
		{"brackets in strings", chatWith(`"x":"` + strings.Repeat(`[{\"\\`, 1000) + `"`), "m", false, 0, "", false},
		{"many brackets side by side", chatWith(`"x":[` + strings.Repeat(`[],{"a":[]},`, 1000) + `0]`), "m", false, 0, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, bad := ReadRequest(ChatCompletions, []byte(c.body))
			if bad != nil {
				t.Fatal(bad)
			}
			if r.Endpoint != ChatCompletions || r.Model != c.model || r.Stream != c.stream || r.MaxTokens != c.max || r.Session != c.session || r.AskedUsage != c.asked {
				t.Errorf("got %+v, want %+v", r, c)
			}
		})
	}
}

// TestBody gives the bytes that engines get.
func TestBody(t *testing.T) {
	const on = `"include_usage":true`
	stream := func(options string) string {
		return chatWith(`"stream":true,"n":12345678901234567890,"stream_options":` + options)
	}
	for _, c := range []struct {
		name, body, model string
		inject            bool
		want              string // empty: the body itself
	}{
		{"nothing", chat, "", false, ""},
		{"same model", chat, "m", false, ""},
		{"no stream to inject into", chat, "", true, ""},
		{"asked already", stream(`{"include_usage":true}`), "m", true, ""},
		{"model", `{"model" : "m","messages":[{}]}`, "other", false, `{"model" : "other","messages":[{}]}`},
		{"model, escaped", `{"mod\u0065l":"\u006d","messages":[{}]}`, "org/x", false, `{"mod\u0065l":"org/x","messages":[{}]}`},
		{"model, same but escaped", `{"model":"\u006d","messages":[{}]}`, "m", false, ""},
		{"model with quotes", chat, "a\"b\\\n", false, `{"model":"a\"b\\\n","messages":[{"role":"user","content":"Hi"}]}`},
		{"model last", `{"messages":[{}],"model":"m"}`, "x", false, `{"messages":[{}],"model":"x"}`},

		{"no options", `{"messages":[{}],"stream":true,"model":"m" } `, "", true, `{"messages":[{}],"stream":true,"model":"m" ,"stream_options":{` + on + `}} `},
		{"options null", stream(`null`), "", true, stream(`{` + on + `}`)},
		{"options empty", stream(`{}`), "", true, stream(`{` + on + `}`)},
		{"options empty but for white space", stream("{ \n}"), "", true, stream(`{` + on + `}`)},
		{"options with others", stream(`{ "continuous_usage_stats" : true }`), "", true, stream(`{` + on + `, "continuous_usage_stats" : true }`)},
		{"include_usage false", stream(`{"a":[{"include_usage":false}],"include_usage" : false ,"b":1}`), "", true, stream(`{"a":[{"include_usage":false}],"include_usage" : true ,"b":1}`)},
		{"include_usage null", stream(`{"include_usage":null}`), "", true, stream(`{"include_usage":true}`)},
		{"include_usage escaped", stream(`{"include\u005fusage":false}`), "", true, stream(`{"include\u005fusage":true}`)},

		{"both, model first", `{"model":"m","messages":[{}],"stream":true,"stream_options":{}}`, "x", true,
			`{"model":"x","messages":[{}],"stream":true,"stream_options":{` + on + `}}`},
		{"both, model last", `{"stream_options":{"include_usage":false},"messages":[{}],"stream":true,"model":"m"}`, "longer", true,
			`{"stream_options":{"include_usage":true},"messages":[{}],"stream":true,"model":"longer"}`},
		{"both, no options", `{"messages":[{}],"stream":true,"model":"m"}`, "x", true,
			`{"messages":[{}],"stream":true,"model":"x","stream_options":{` + on + `}}`},
		{"numbers", `{"model":"m","messages":[{}],"seed":18446744073709551617,"x":1e400,"y":-0.0,"z":1.0}`, "n", false,
			`{"model":"n","messages":[{}],"seed":18446744073709551617,"x":1e400,"y":-0.0,"z":1.0}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := []byte(c.body)
			r, bad := ReadRequest(ChatCompletions, body)
			if bad != nil {
				t.Fatal(bad)
			}
			got := r.Body(c.model, c.inject)
			if c.want == "" {
				if &got[0] != &body[0] || len(got) != len(body) {
					t.Errorf("not the body itself: %s", got)
				}
				return
			}
			if string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if string(body) != c.body {
				t.Errorf("the original was changed: %s", body)
			}
			checkBody(t, ChatCompletions, body, c.model, c.inject)
		})
	}
}

func TestPromptTokens(t *testing.T) {
	base64 := strings.Repeat("AbC+/9", 10_000)
	words := strings.Repeat("some words here ", 100) // 1600 bytes
	for _, c := range []struct {
		name     string
		api      Endpoint
		body     string
		from, to int
	}{
		{"text", ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"` + words + `"}]}`, 400, 420},
		{"three messages", ChatCompletions, `{"model":"m","messages":[` + strings.Repeat(`{"role":"user","content":"`+words+`"},`, 2) + `{"content":"x"}]}`, 800, 840},
		{"tools too", ChatCompletions, `{"model":"m","messages":[{"content":"x"}],"tools":[{"function":{"description":"` + words + `"}}]}`, 400, 430},
		{"prompt", Completions, `{"model":"m","prompt":"` + words + `"}`, 400, 402},
		{"empty prompt", Completions, `{"model":"m","prompt":""}`, 0, 0},
		{"prompts", Completions, `{"model":"m","prompt":["` + words + `","` + words + `"]}`, 800, 804},
		{"no prompts", Completions, `{"model":"m","prompt":[]}`, 0, 1},
		{"tokens", Completions, `{"model":"m","prompt":[1, 2,3 ,40000]}`, 4, 4},
		{"a token", Completions, `{"model":"m","prompt":[128000]}`, 1, 1},
		{"arrays of tokens", Embeddings, `{"model":"m","input":[ [1,2,3], [4,5] ]}`, 5, 5},
		{"input", Embeddings, `{"model":"m","input":"` + words + `"}`, 400, 402},
		{"a number", Embeddings, `{"model":"m","input":5}`, 0, 1},
		{"instructions and input", Responses, `{"model":"m","instructions":"` + words + `","input":[{"role":"user","content":"` + words + `"}]}`, 800, 830},
		{"escapes", Completions, `{"model":"m","prompt":"` + strings.Repeat(`\u6f22`, 400) + `"}`, 300, 302},
		{"the same in UTF-8", Completions, `{"model":"m","prompt":"` + strings.Repeat(`漢`, 400) + `"}`, 300, 302},

		{"image", ChatCompletions, `{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + base64 + `"}}]}]}`, 1000, 1050},
		{"image, escaped slashes", ChatCompletions, `{"model":"m","messages":[{"content":[{"image_url":{"url":"data:image\/png;base64,` + strings.ReplaceAll(base64, "/", `\/`) + `"}}]}]}`, 1000, 1050},
		{"two images", ChatCompletions, `{"model":"m","messages":[{"content":[{"image_url":"data:image/png;base64,` + base64 + `"},{"image_url":"data:a;base64,` + base64 + `"}]}]}`, 2000, 2050},
		{"audio", ChatCompletions, `{"model":"m","messages":[{"content":[{"type":"input_audio","input_audio":{"data":"` + base64 + `","format":"wav"}}]}]}`, 1000, 1050},
		{"audio, white space", ChatCompletions, `{"model":"m","messages":[{"content":[{"type":"input_audio","input_audio":{"data" : "` + base64 + `"}}]}]}`, 1000, 1050},
		{"image by address", ChatCompletions, `{"model":"m","messages":[{"content":[{"image_url":{"url":"https://example.com/x.png"}}]}]}`, 10, 40},
		{"tiny image", ChatCompletions, `{"model":"m","messages":[{"content":[{"image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`, 10, 40},
		{"text that quotes an image", ChatCompletions, `{"model":"m","messages":[{"content":"<img src=\"data:image/png;base64,` + base64 + `\">"}]}`, 15_000, 15_030},
		{"text that starts like one", ChatCompletions, `{"model":"m","messages":[{"content":"data: ` + words + `"}]}`, 400, 420},
		{"text under data", ChatCompletions, `{"model":"m","messages":[{"content":[{"data":"` + words + `"}]}]}`, 400, 420},
		{"data at the very end", ChatCompletions, `{"model":"m","messages":[{"content":"data"},{"content":"data:"},{"data":{}},{"data":5},{"data":""}]}`, 10, 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, bad := ReadRequest(c.api, []byte(c.body))
			if bad != nil {
				t.Fatal(bad)
			}
			if r.PromptTokens < c.from || r.PromptTokens > c.to {
				t.Errorf("%d tokens, want %d to %d", r.PromptTokens, c.from, c.to)
			}
		})
	}
}

// TestPassthrough holds every sound body of the tables to the law of Body.
func TestPassthrough(t *testing.T) {
	for _, body := range requestSeeds() {
		for _, model := range []string{"", "m", "another/model", "a\"\\\u2028"} {
			for api := ChatCompletions; api <= Responses; api++ {
				checkBody(t, api, []byte(body), model, false)
				checkBody(t, api, []byte(body), model, true)
			}
		}
	}
}

func requestSeeds() []string {
	return []string{
		chat,
		chatWith(`"stream":true`),
		chatWith(`"stream":true,"stream_options":null,"user":"u"`),
		chatWith(`"stream_options":{ },"stream":true,"seed":18446744073709551617`),
		chatWith(`"stream":true,"stream_options":{"x":[1e400],"include_usage":false,"y":{}}`),
		" {\t\"stream\" : true ,\r\n\"mod\\u0065l\":\"\\u006d\",\"messages\":[{}],\"stream\\u005foptions\":{\"include\\u005fusage\":null}} \n",
		`{"model":"m","prompt":[[1,2],[3]],"max_tokens":1.6e1,"stream":false}`,
		`{"model":"m","input":["data:image/png;base64,AAAA"],"prompt_cache_key":"k"}`,
		`{"input":"Hi","instructions":"\ud83d\ude80","model":"m","stream":true}`,
		`{"Model":"x","model":"m","messages":[{}]}`,
		`{"model":"m","messages":[{"a":1,"a":2}]}`,
		`{"model":"m","messages":[{}]} x`,
	}
}

func FuzzRequest(f *testing.F) {
	for i, body := range requestSeeds() {
		f.Add([]byte(body), "other", uint8(i)%4, i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, body []byte, model string, api uint8, inject bool) {
		checkBody(t, Endpoint(api%4), body, model, inject)
	})
}

// checkBody holds a body that is accepted to what ReadRequest and Body
// promise: the engine reads what the gateway read, and beside the edits every
// byte is the client's.
func checkBody(t *testing.T, api Endpoint, body []byte, model string, inject bool) {
	t.Helper()
	original := bytes.Clone(body)
	r, bad := ReadRequest(api, body)
	if bad != nil {
		if r != nil || bad.Status != 400 || bad.Code == "" || bad.Message == "" || !utf8.Valid(bad.Body()) {
			t.Fatalf("refused as %+v", bad)
		}
		return
	}
	sameReading(t, body, r.Model, r.Stream)
	if same := r.Body("", false); &same[0] != &body[0] || len(same) != len(body) {
		t.Fatalf("nothing to change, but %q became %q", body, same)
	}
	if r.PromptTokens < 0 || r.PromptTokens > len(body)+len(body)/mediaSize*mediaTokens || r.MaxTokens < 0 {
		t.Fatalf("%d prompt tokens, at most %d", r.PromptTokens, r.MaxTokens)
	}

	model = strings.ToValidUTF8(model, "\ufffd")
	want := cmp.Or(model, r.Model)
	renamed := r.Body(model, false)
	checkEdit(t, body, renamed, "model", func(before, after []byte) bool {
		var s string
		return json.Unmarshal(after, &s) == nil && s == want
	})
	asking := r.Body("", inject)
	if inject && r.Stream && !r.AskedUsage {
		checkUsage(t, body, asking)
	} else if &asking[0] != &body[0] {
		t.Fatalf("%q became %q", body, asking)
	}

	both := r.Body(model, inject)
	sameReading(t, both, want, r.Stream)
	again, bad := ReadRequest(api, both)
	if bad != nil {
		t.Fatalf("%q became %q: %v", body, both, bad)
	}
	if inject && r.Stream && !again.AskedUsage {
		t.Fatalf("%q became %q, which asks for no usage", body, both)
	}
	second, bad := ReadRequest(api, renamed)
	if bad != nil || !bytes.Equal(second.Body("", inject), both) {
		t.Fatalf("both edits at once: %q, one after the other: %q", both, second.Body("", inject))
	}
	if !bytes.Equal(body, original) {
		t.Fatalf("the body was changed: %q", body)
	}
}

// sameReading reads a body as an engine does: encoding/json with exact keys.
func sameReading(t *testing.T, body []byte, model string, stream bool) {
	t.Helper()
	var v map[string]any
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	on, _ := v["stream"].(bool)
	if v["model"] != model || on != stream {
		t.Fatalf("%q: read as model %q, stream %v; an engine reads %v, %v", body, model, stream, v["model"], v["stream"])
	}
}

// member is where a member of an object has its value.
func member(t *testing.T, object []byte, name string) (from, to int, found bool) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		t.Fatal(err)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			t.Fatal(err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			t.Fatal(err)
		}
		if key == name {
			to = int(dec.InputOffset())
			return to - len(value), to, true
		}
	}
	return 0, 0, false
}

// checkEdit demands that after is before but for the member's value.
func checkEdit(t *testing.T, before, after []byte, name string, sound func(before, after []byte) bool) {
	t.Helper()
	from, to, found := member(t, before, name)
	head, tail := before[:from], before[to:]
	if !found || len(after) < len(head)+len(tail) || !bytes.HasPrefix(after, head) || !bytes.HasSuffix(after, tail) ||
		!sound(before[from:to], after[from:len(after)-len(tail)]) {
		t.Fatalf("%s: %q became %q", name, before, after)
	}
}

// checkUsage demands that after is before with the usage chunk asked for.
func checkUsage(t *testing.T, before, after []byte) {
	t.Helper()
	const on = `"include_usage":true`
	if _, _, found := member(t, before, "stream_options"); !found {
		end := bytes.LastIndexByte(before, '}')
		want := slices.Concat(before[:end], []byte(`,"stream_options":{`+on+`}`), before[end:])
		if !bytes.Equal(after, want) {
			t.Fatalf("%q became %q, want %q", before, after, want)
		}
		return
	}
	checkEdit(t, before, after, "stream_options", func(before, after []byte) bool {
		if before[0] == 'n' || len(bytes.TrimSpace(before[1:len(before)-1])) == 0 {
			return string(after) == "{"+on+"}"
		}
		if from, to, found := member(t, before, "include_usage"); found {
			return string(after) == string(before[:from])+"true"+string(before[to:])
		}
		return string(after) == "{"+on+","+string(before[1:])
	})
}
