package app_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// odd is the inside of a body that a gateway which reads and writes JSON
// would change: spacing, escapes, big and long numbers, unknown fields.
const odd = `"messages" : [{"role":"user","content":"h\u00e9 \ud83d\ude00 \/ <&>","x_extra":{"b":1,"a":[ 1 , 2 ]}}],
	"seed":12345678901234567890123, "temperature":0.70, "top_p":1E-3,  "guided_json":{"type":"object","properties":{}},
	"vendor":{"deep":[[[null,true,{"k":"v"}]]]}, "logit_bias":{"50256":-100}`

func TestPassthrough(t *testing.T) {
	const injected = `,"stream_options":{"include_usage":true}`
	rows := []struct{ name, backend, sent, got string }{
		{"as it is", `{name: a, url: "http://a:8000"}`,
			`{"model":"m",` + odd + `}`, `{"model":"m",` + odd + `}`},
		{"stream to a generic engine", `{name: a, url: "http://a:8000"}`,
			`{"stream":true,"model":"m",` + odd + `}`, `{"stream":true,"model":"m",` + odd + `}`},
		{"model rewritten", `{name: a, url: "http://a:8000", model: "org/real-7b"}`,
			`{` + odd + `,"model" : "m" }`, `{` + odd + `,"model" : "org/real-7b" }`},
		{"usage asked for", `{name: a, url: "http://a:8000", engine: vllm}`,
			`{"model":"m","stream":true,` + odd + `}`, `{"model":"m","stream":true,` + odd + injected + `}`},
		{"both edits, model last", `{name: a, url: "http://a:8000", engine: vllm, model: x}`,
			`{"stream_options":{"include_usage":false, "z":1},"stream":true,` + odd + `,"model":"m"}`,
			`{"stream_options":{"include_usage":true, "z":1},"stream":true,` + odd + `,"model":"x"}`},
		{"options without usage", `{name: a, url: "http://a:8000", engine: vllm, model: x}`,
			`{"model":"m","stream":true,"stream_options":{ "z" : 1 },` + odd + `}`,
			`{"model":"x","stream":true,"stream_options":{"include_usage":true, "z" : 1 },` + odd + `}`},
		{"usage already asked for", `{name: a, url: "http://a:8000", engine: vllm}`,
			`{"model":"m","stream":true,"stream_options":{"include_usage":true},` + odd + `}`,
			`{"model":"m","stream":true,"stream_options":{"include_usage":true},` + odd + `}`},
		{"no stream, no usage asked for", `{name: a, url: "http://a:8000", engine: vllm}`,
			`{"model":"m","stream":false,` + odd + `}`, `{"model":"m","stream":false,` + odd + `}`},
		{"alias", `{name: a, url: "http://a:8000"}`,
			`{"model":"also-m",` + odd + `}`, `{"model":"m",` + odd + `}`},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				backend := &fakellm.Backend{}
				text := strings.Replace(configFor(quiet, "a:8000"), `{name: a, url: "http://a:8000"}`, row.backend, 1)
				text = strings.Replace(text, "- name: m\n", "- name: m\n    aliases: [also-m]\n    signals: {interval: off}\n", 1)
				g := startGateway(t, text, map[string]http.Handler{"a:8000": backend})
				if got := g.chat(row.sent); got.status != 200 {
					t.Fatalf("status %d: %s", got.status, got.body)
				}
				if got := string(backend.Requests()[0].Body); got != row.got {
					t.Errorf("the backend got\n%s\nwant\n%s", got, row.got)
				}
			})
		})
	}
}

func TestPassthroughHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script {
			return fakellm.Script{fakellm.Header(200, http.Header{
				"Content-Type": {"application/json"}, "Openai-Processing-Ms": {"12"}, "X-Request-Id": {"engine-1"},
				"X-Ratelimit-Remaining-Tokens": {"5"}, "X-Many": {"1", "2"}, "Server": {"uvicorn"}, "Set-Cookie": {"a=b"},
			}), fakellm.Send(smallBody)}
		}}
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": backend})
		resp, err := g.post(context.Background(), "/v1/chat/completions?api-version=1&key=secret", plainBody("m"),
			"X-Custom", "a", "X-Many", "1", "X-Many", "2", "Traceparent", "00-1-2-01", "Openai-Beta", "x=1",
			"Accept", "text/event-stream", "User-Agent", "OpenAI/Python", "Accept-Encoding", "gzip, br", "Content-Type", "text/plain")
		if err != nil {
			t.Fatal(err)
		}
		got := readAnswer(resp)
		for name, want := range map[string][]string{
			"Content-Type": {"application/json"}, "Openai-Processing-Ms": {"12"}, "X-Upstream-Request-Id": {"engine-1"},
			"X-Ratelimit-Remaining-Tokens": {"5"}, "X-Many": {"1", "2"}, "Server": nil, "Set-Cookie": nil,
		} {
			if !slices.Equal(got.header[name], want) {
				t.Errorf("answer has %s %q, want %q", name, got.header[name], want)
			}
		}
		r := backend.Requests()[0]
		for name, want := range map[string][]string{
			"X-Custom": {"a"}, "X-Many": {"1", "2"}, "Traceparent": {"00-1-2-01"}, "Openai-Beta": {"x=1"},
			"Accept": {"text/event-stream"}, "User-Agent": {"OpenAI/Python"}, "Accept-Encoding": {"identity"}, "Content-Type": {"application/json"},
		} {
			if !slices.Equal(r.Header[name], want) {
				t.Errorf("backend got %s %q, want %q", name, r.Header[name], want)
			}
		}
		if r.Host != "a:8000" || r.Path != "/v1/chat/completions" || r.Query != "" || r.Method != "POST" {
			t.Errorf("backend got %s %s%s?%s", r.Method, r.Host, r.Path, r.Query)
		}
	})
}

func TestEndpointsForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{}
		text := strings.Replace(configFor(quiet, "a:8000"), "http://a:8000", "http://a:8000/engines/one/v1", 1)
		g := startGateway(t, text, map[string]http.Handler{"a:8000": backend})
		rows := []struct{ path, body string }{
			{"/v1/chat/completions", plainBody("m")},
			{"/v1/chat/completions", streamBody("m")},
			{"/v1/completions", `{"model":"m","prompt":"hi"}`},
			{"/v1/completions", `{"model":"m","prompt":"hi","stream":true}`},
			{"/v1/embeddings", `{"model":"m","input":["a","b"]}`},
			{"/v1/responses", `{"model":"m","input":"hi"}`},
		}
		for i, row := range rows {
			got := g.do("POST", row.path, row.body)
			if got.status != 200 || got.body == "" {
				t.Errorf("%s: %d %s", row.path, got.status, got.body)
			}
			if r := backend.Requests()[i]; r.Path != "/engines/one"+row.path || string(r.Body) != row.body {
				t.Errorf("%s reached the backend as %s %s", row.path, r.Path, r.Body)
			}
		}
		g.want(`firsttoken_requests_total{code="200",endpoint="chat_completions",model="m",reason="ok"}`, "2")
		g.want(`firsttoken_requests_total{code="200",endpoint="embeddings",model="m",reason="ok"}`, "1")
		g.want(`firsttoken_requests_total{code="200",endpoint="responses",model="m",reason="ok"}`, "1")
	})
}

func TestRouteAllowlist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{}
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": backend})
		methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}
		served := map[string]string{
			"/v1/chat/completions": "POST", "/v1/completions": "POST", "/v1/embeddings": "POST", "/v1/responses": "POST",
			"/v1/models": "GET, HEAD", "/v1/models/m": "GET, HEAD",
		}
		for path, allow := range served {
			for _, method := range methods {
				if slices.Contains(strings.Split(allow, ", "), method) {
					continue
				}
				got := g.do(method, path, "{}")
				if got.status != 405 || (method != "TRACE" && got.header.Get("Allow") != allow) || got.header.Get("Allow") == "" {
					t.Errorf("%s %s: %d, Allow %q", method, path, got.status, got.header.Get("Allow"))
				}
			}
		}
		for _, path := range []string{
			"/", "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/", "/v1/chat/completions/x", "/V1/chat/completions", "/chat/completions",
			"/v1/files", "/v1/audio/speech", "/v1/images/generations", "/v1/assistants", "/v1/fine_tuning/jobs", "/v2/chat/completions",
			"/metrics", "/health", "/healthz", "/readyz", "/debug/pprof/", "/admin", "/openapi.json", "/tokenize", "/v1/load_lora_adapter",
			"/reset_prefix_cache", "/flush_cache", "/v1/responses/resp_1", "/v1/modelsx",
		} {
			for _, method := range []string{"GET", "POST", "DELETE"} {
				got := g.do(method, path, plainBody("m"))
				if e := errorIn(t, got.body); got.status != 404 || e.Code != "unknown_url" {
					t.Errorf("%s %s: %d %v", method, path, got.status, e)
				}
			}
		}
		if n := backend.Count() + len(backend.Probes()); n != 0 {
			t.Errorf("the backend got %d requests", n)
		}
	})
}

func TestJSONStrict(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	rows := []struct {
		name, body string
		code       any // of the refusal; nil: it passes byte for byte
	}{
		{"big integer", `{"model":"m","seed":123456789012345678901234567890,` + messages + `}`, nil},
		{"long fraction", `{"model":"m","t":0.10000000000000000000000000001,` + messages + `}`, nil},
		{"huge exponent", `{"model":"m","t":1e999,` + messages + `}`, nil},
		{"negative zero", `{"model":"m","t":-0,` + messages + `}`, nil},
		{"escaped name", `{"mod\u0065l":"m",` + messages + `}`, nil},
		{"duplicate", `{"model":"m","model":"m",` + messages + `}`, "duplicate_key"},
		{"duplicate by escape", `{"model":"m","mod\u0065l":"x",` + messages + `}`, "duplicate_key"},
		{"duplicate deep down", `{"model":"m","a":[{"b":{"c":1,"c":2}}],` + messages + `}`, "duplicate_key"},
		{"duplicate in messages", `{"model":"m","messages":[{"role":"user","role":"system","content":"hi"}]}`, "duplicate_key"},
		{"other case", `{"model":"m","Model":"x","MODEL":1,` + messages + `}`, "ambiguous_key"},
		{"NaN", `{"model":"m","t":NaN,` + messages + `}`, "invalid_json"},
		{"leading zero", `{"model":"m","t":01,` + messages + `}`, "invalid_json"},
		{"comment", `{"model":"m",/* */` + messages + `}`, "invalid_json"},
		{"trailing comma", `{"model":"m",` + messages + `,}`, "invalid_json"},
		{"single quotes", `{'model':'m'}`, "invalid_json"},
		{"byte order mark", "\ufeff" + `{"model":"m",` + messages + `}`, "invalid_json"},
		{"lone surrogate", `{"model":"m","x":"\ud800",` + messages + `}`, "invalid_json"},
		{"control character", "{\"model\":\"m\",\"x\":\"\x01\"," + messages + "}", "invalid_json"},
		{"NUL behind", `{"model":"m",` + messages + "}\x00", "invalid_json"},
		{"white space around", " \r\n\t{\"model\":\"m\"," + messages + "} \n", nil},
		{"very deep", `{"model":"m","x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `,` + messages + `}`, "nested_too_deep"},
	}
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{}
		g := startGateway(t, configFor(quiet, "a:8000"), map[string]http.Handler{"a:8000": backend})
		for _, row := range rows {
			before := backend.Count()
			got := g.chat(row.body)
			switch {
			case row.code != nil:
				if e := errorIn(t, got.body); got.status != 400 || e.Code != row.code || backend.Count() != before {
					t.Errorf("%s: %d %v, want 400 %v", row.name, got.status, e, row.code)
				}
			case got.status != 200:
				t.Errorf("%s: %d %s", row.name, got.status, got.body)
			case string(backend.Requests()[before].Body) != row.body:
				t.Errorf("%s: the backend got %q", row.name, backend.Requests()[before].Body)
			}
		}
	})
}

func TestModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.Replace(configFor(quiet, "a:8000"), "- name: m\n",
			"- name: org/m-7b\n    aliases: [m, \"org/sub/alias\"]\n    owned_by: us\n", 1)
		g := startGateway(t, text, map[string]http.Handler{"a:8000": &fakellm.Backend{}})
		var list struct {
			Object string
			Data   []struct {
				ID, Object string
				Created    int64
				OwnedBy    string `json:"owned_by"`
			}
		}
		got := g.do("GET", "/v1/models", "")
		if err := json.Unmarshal([]byte(got.body), &list); err != nil || list.Object != "list" || len(list.Data) != 3 {
			t.Fatalf("list: %v %s", err, got.body)
		}
		for i, want := range []string{"org/m-7b", "m", "org/sub/alias"} {
			if d := list.Data[i]; d.ID != want || d.Object != "model" || d.OwnedBy != "us" || d.Created == 0 {
				t.Errorf("model %d is %+v, want %s", i, d, want)
			}
			body := g.chat(plainBody(want))
			if body.status != 200 {
				t.Errorf("a listed model can't be asked for: %s: %d", want, body.status)
			}
		}
		for path, id := range map[string]string{
			"/v1/models/org/m-7b": "org/m-7b", "/v1/models/org%2Fm-7b": "org/m-7b", "/v1/models/m": "m",
			"/v1/models/org%2Fsub%2Falias": "org/sub/alias", "/v1/models/org/sub%2falias": "org/sub/alias",
		} {
			one := g.do("GET", path, "")
			if one.status != 200 || !strings.HasPrefix(one.body, `{"id":"`+id+`","object":"model",`) {
				t.Errorf("%s: %d %s", path, one.status, one.body)
			}
			head := g.do("HEAD", path, "")
			if head.status != 200 || head.body != "" || head.header.Get("Content-Length") != one.header.Get("Content-Length") {
				t.Errorf("HEAD %s: %d %q %v", path, head.status, head.body, head.header)
			}
		}
		if got := g.do("HEAD", "/v1/models/x", ""); got.status != 404 {
			t.Errorf("HEAD of an unknown model: %d", got.status)
		}
		if got := g.do("HEAD", "/v1/models", ""); got.status != 200 || got.body != "" || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("HEAD of the list: %d %v", got.status, got.header)
		}
	})
}
