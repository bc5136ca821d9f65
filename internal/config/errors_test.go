package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// badFile is a file with mistakes and what Parse says of them.
type badFile struct {
	name, text string
	want       []string // one an error, without "config.yaml"
	semantic   bool     // a schema cannot tell
}

const durationFix = `write a duration such as "300ms" or "1m30s"`

var badFiles = []badFile{
	{name: "url scheme", text: backend("", "", "  ") + "\n  - url: htp://x",
		want: []string{`:8: models[0].backends[1].url: "htp://x" is not an http or https URL; write http://host:port`}},
	{name: "no time", semantic: true, text: "drain: {accept: 0s}\nmodels: [{name: m, backends: [{url: http://a}], timeouts: {dial: 0s}}]",
		want: []string{`:1: drain.accept: "0s" is no time at all; write "off", or leave it out for the default`,
			`:2: models[0].timeouts.dial: "0s" is no time at all; write a longer one, or leave it out for the default`}},
	{name: "url user", text: "models: [{name: m, backends: [{url: 'http://u:hunter2@a'}]}]",
		want: []string{`:1: models[0].backends[0].url: the value contains a user or password; write http://host:port and use credentials`}},
	{name: "url query", text: "models: [{name: m, backends: [{url: 'http://a?key=hunter2'}]}]",
		want: []string{`:1: models[0].backends[0].url: the value contains a query; write http://host:port`}},
	{name: "url fragment", text: "models: [{name: m, backends: [{url: 'http://a#x'}]}]",
		want: []string{`:1: models[0].backends[0].url: the value contains a fragment; write http://host:port`}},
	{name: "url port", text: "models: [{name: m, backends: [{url: 'http://a:99999'}]}]", semantic: true,
		want: []string{`:1: models[0].backends[0].url: "http://a:99999" has no valid port; write http://host:port`}},
	{name: "url host", text: "models: [{name: m, backends: [{url: 'http:///v1'}]}]",
		want: []string{`:1: models[0].backends[0].url: "http:///v1" is not an http or https URL; write http://host:port`}},
	{name: "policy without predictions", semantic: true,
		text: "prediction: {enabled: false}\ndefaults: {policy: weighted}\nmodels:\n- {name: m, policy: headroom, backends: [{url: http://a}]}\n- {name: n, backends: [{url: http://a}]}",
		want: []string{`:2: defaults.policy: "weighted" chooses by predictions, which prediction.enabled: false switches off; switch prediction on, or write a policy such as least-inflight`,
			`:4: models[0].policy: "headroom" chooses by predictions, which prediction.enabled: false switches off; switch prediction on, or write a policy such as least-inflight`}},
	{name: "tenant header of the gateway", semantic: true, text: section("server: {tenant_header: x-firsttoken-tenant}"),
		want: []string{`:1: server.tenant_header: names beginning with X-Firsttoken- are dropped from clients' requests; write a name such as X-Tenant`}},
	{name: "contracts twice", semantic: true, text: section("contracts: {files: [a.yaml, ./a.yaml]}"),
		want: []string{`:1: contracts.files[1]: is the same file as contracts.files[0] (line 1); remove one of the two`}},
	{name: "warm-up", text: section("warm_up: {max_prompt: 32, prefixes: [' ']}"),
		want: []string{`:1: warm_up.max_prompt: "32" is below 64; write a value of at least 64 and of at most 1000000`,
			`:1: warm_up.prefixes[0]: " " is blank or contains a NUL; write some text`}},
	{name: "standby without warm-up", semantic: true, text: "warm_up: {enabled: false}\nmodels:\n- {name: m, backends: [{url: http://a}, {url: http://b, standby: true}]}",
		want: []string{`:3: models[0].backends[1].standby: stands by to be warmed up, which warm_up.enabled: false switches off; switch warm_up on, or remove standby`}},
	{name: "nobody but standby", semantic: true, text: "models:\n- {name: m, backends: [{url: http://a, standby: true}]}",
		want: []string{`:2: models[0].backends: all stand by, so that nobody serves; remove standby from one of them`}},
	{name: "standby for one model only", semantic: true,
		text: "models:\n- {name: m, backends: [{url: http://a}]}\n- {name: n, backends: [{url: http://b}, {url: http://a, standby: true}]}",
		want: []string{`:3: models[1].backends[1].standby: differs from the same backend's at models[0].backends[0] (line 2); write the same standby in both places`}},
	{name: "admission of nobody", text: section("defaults: {admission: {max_held: 0}}"),
		want: []string{`:1: defaults.admission.max_held: "0" is below 1; write a value of at least 1`}},
	{name: "no models", text: "server: {}",
		want: []string{`:1: models: is missing`}},
	{name: "empty models", text: "models: []",
		want: []string{`:1: models: is empty; write at least one entry`}},
	{name: "no backends, no name", text: "models: [{policy: p2c}]",
		want: []string{`:1: models[0].name: is missing`, `:1: models[0].backends: is missing`}},
	{name: "no url", text: "models: [{name: m, backends: [{name: a}]}]",
		want: []string{`:1: models[0].backends[0].url: is missing`}},
	{name: "unknown key", text: backend("lables: {a: b}"),
		want: []string{`:5: models[0].backends[0].lables: unknown key; did you mean "labels"?`}},
	{name: "unknown key unlike any", text: section("drain: {zzzzzz: 1}"),
		want: []string{`:1: drain.zzzzzz: unknown key; write one of accept, limit`}},
	{name: "unknown key that is no word", text: section(`drain: {"a\nb": 1}`),
		want: []string{`:1: drain: unknown key; write one of accept, limit`}},
	{name: "duplicate key", text: backend("weight: 1", "weight: 2"), semantic: true,
		want: []string{`:6: models[0].backends[0].weight: is already set in line 5; remove one of the two`}},
	{name: "merge key", text: section("defaults: &d {policy: p2c}", "drain: {<<: *d}"), semantic: true,
		want: []string{`:2: drain: merge keys are not supported; put shared settings in defaults or in the model`}},
	{name: "key that is a list", text: section("drain: {[a]: 1}"), semantic: true,
		want: []string{`:1: drain: a key is not plain text; write a name`}},
	{name: "null", text: backend("labels:"),
		want: []string{`:5: models[0].backends[0].labels: has no value; write one or remove the key`}},
	{name: "list for mapping", text: section("server: []"),
		want: []string{`:1: server: is a list, not a mapping; write keys and values below it`}},
	{name: "mapping for list", text: "models: {name: m}",
		want: []string{`:1: models: is a mapping, not a list; write entries that start with "- "`}},
	{name: "mapping for scalar", text: section("server: {max_headers: {}}"),
		want: []string{`:1: server.max_headers: is a mapping, not a single value`}},
	{name: "text for a file", text: "hello",
		want: []string{`:1: is text, not a mapping; write keys and values below it`}},
	{name: "number for text", text: backend("model: 12"),
		want: []string{`:5: models[0].backends[0].model: "12" is a number, not text; write it in quotes`}},
	{name: "text for whole number", text: section(`server: {max_headers: "5"}`),
		want: []string{`:1: server.max_headers: "5" is not a whole number; write digits such as 3, without quotes`}},
	{name: "fraction for whole number", text: section(`server: {max_headers: 1.5}`),
		want: []string{`:1: server.max_headers: "1.5" is not a whole number; write digits such as 3, without quotes`}},
	{name: "octal", text: section(`server: {max_headers: 010}`), semantic: true,
		want: []string{`:1: server.max_headers: "010" is not a whole number; write digits such as 3`}},
	{name: "not a number", text: backend("weight: .nan"), semantic: true,
		want: []string{`:5: models[0].backends[0].weight: ".nan" is not a number; write a number such as 0.5`}},
	{name: "yes", text: section("telemetry: {pprof: yes}"),
		want: []string{`:1: telemetry.pprof: "yes" is not a boolean; write true or false, without quotes`}},
	{name: "duration without unit", text: section("drain: {accept: 30}"),
		want: []string{`:1: drain.accept: "30" has no unit; write 30s or 30ms`}},
	{name: "zero duration without unit", text: section("drain: {accept: 0}"),
		want: []string{`:1: drain.accept: "0" has no unit; ` + durationFix}},
	{name: "negative duration", text: section("drain: {accept: -1s}"),
		want: []string{`:1: drain.accept: "-1s" is negative; ` + durationFix}},
	{name: "bad duration", text: section("drain: {accept: 5 sec}"),
		want: []string{`:1: drain.accept: "5 sec" is not a duration; ` + durationFix}},
	{name: "long duration", text: section("drain: {accept: 9999999h}"), semantic: true,
		want: []string{`:1: drain.accept: "9999999h" is too long; write at most 24h`}},
	{name: "short interval", text: backend("signals: {interval: 1us}"), semantic: true,
		want: []string{`:5: models[0].backends[0].signals.interval: "1us" is below 10ms; write a value of at least 10ms`}},
	{name: "dial off", text: section("defaults: {timeouts: {dial: off}}"),
		want: []string{`:1: defaults.timeouts.dial: "off" is not allowed here; ` + durationFix}},
	{name: "idle_conn_timeout off", text: section("defaults: {limits: {idle_conn_timeout: off}}"),
		want: []string{`:1: defaults.limits.idle_conn_timeout: "off" is not allowed here; ` + durationFix}},
	{name: "sizes", text: section("server:", "  max_body: 64MB", "  max_url: -1", "  max_header_bytes: 9999999999GiB"), semantic: true,
		want: []string{
			`:2: server.max_body: "64MB" is not a size in bytes; write bytes as 65536, "64KiB" or "64MiB"`,
			`:3: server.max_url: "-1" is negative; write bytes as 65536, "64KiB" or "64MiB"`,
			`:4: server.max_header_bytes: "9999999999GiB" is too large; write bytes as 65536, "64KiB" or "64MiB"`}},
	{name: "zero size", text: section("server: {max_body: 0}"),
		want: []string{`:1: server.max_body: "0" is below 1; write a value of at least 1`}},
	{name: "bad size", text: section("server: {max_body: 64MB}"),
		want: []string{`:1: server.max_body: "64MB" is not a size in bytes; write bytes as 65536, "64KiB" or "64MiB"`}},
	{name: "above range", text: section("defaults: {retry: {max_attempts: 4}}"),
		want: []string{`:1: defaults.retry.max_attempts: "4" is above 3; write a value of at least 1 and of at most 3`}},
	{name: "below range", text: section("defaults: {limits: {max_in_flight: -1}}"),
		want: []string{`:1: defaults.limits.max_in_flight: "-1" is below 0; write a value of at least 0`}},
	{name: "not above", text: backend("weight: 0"),
		want: []string{`:5: models[0].backends[0].weight: "0" is not above 0; write a value above 0 and of at most 1000000`}},
	{name: "policy", text: "models: [{name: m, policy: round_robin, backends: [{url: http://a}]}]",
		want: []string{`:1: models[0].policy: "round_robin" is not valid here; did you mean "round-robin"?`}},
	{name: "engine", text: backend("engine: vlm"),
		want: []string{`:5: models[0].backends[0].engine: "vlm" is not valid here; did you mean "vllm"?`}},
	{name: "engine unlike any", text: backend("engine: tensorflow"),
		want: []string{`:5: models[0].backends[0].engine: "tensorflow" is not valid here; write one of vllm, sglang, tgi, trtllm, llamacpp, generic`}},
	{name: "profile", text: backend("profile: h100-llama-3.1-8b-bf61"), semantic: true,
		want: []string{`:5: models[0].backends[0].profile: "h100-llama-3.1-8b-bf61" is no built-in profile; did you mean "h100-llama-3.1-8b-bf16"?`}},
	{name: "profile that is a path", text: backend("profile: ../x.yaml"),
		want: []string{`:5: models[0].backends[0].profile: "../x.yaml" is no built-in profile; write one of ` + strings.Join(profileNames(), ", ")}},
	{name: "error of estimators", text: section("prediction: {max_error: 0, min_samples: 501, dwell: off}"), semantic: true,
		want: []string{
			`:1: prediction.max_error: "0" is not above 0; write a value above 0`,
			`:1: prediction.min_samples: "501" is above 500; write a value of at least 1 and of at most 500`,
			`:1: prediction.dwell: "off" is not allowed here; ` + durationFix}},
	{name: "no sample files", text: section("prediction: {samples: {dir: d, max_files: 0}}"),
		want: []string{`:1: prediction.samples.max_files: "0" is below 1; write a value of at least 1`}},
	{name: "empty text", text: backend(`model: ""`),
		want: []string{`:5: models[0].backends[0].model: "" is empty; write a value or remove the key`}},
	{name: "control character", text: backend(`model: "a\tb"`),
		want: []string{`:5: models[0].backends[0].model: "a\tb" contains a control character or an outer space; write plain text`}},
	{name: "backend name", text: backend(`name: my engine`),
		want: []string{`:5: models[0].backends[0].name: "my engine" is not a backend name; write up to 128 visible ASCII characters`}},
	{name: "path", text: backend(`health: {path: health}`),
		want: []string{`:5: models[0].backends[0].health.path: "health" is not a URL path; write a path such as "/health"`}},
	{name: "listen", text: section("server: {listen: localhost}"),
		want: []string{`:1: server.listen: "localhost" is not host:port; write ":8080" or "127.0.0.1:8080"`}},
	{name: "listen port", text: section("server: {listen: ':66000'}"), semantic: true,
		want: []string{`:1: server.listen: ":66000" is not host:port; write ":8080" or "127.0.0.1:8080"`}},
	{name: "listeners clash", text: section("telemetry: {listen: '127.0.0.1:8080'}"), semantic: true,
		want: []string{`:1: telemetry.listen: server.listen and telemetry.listen are the same address; give each its own port`}},
	{name: "label name", text: backend("labels: {gpu-kind: a}"),
		want: []string{`:5: models[0].backends[0].labels.gpu-kind: "gpu-kind" is not a label name; write letters, digits and _, not starting with a digit`}},
	{name: "label value", text: backend("labels: {gpu: 4090}"),
		want: []string{`:5: models[0].backends[0].labels.gpu: "4090" is a number, not text; write it in quotes`}},
	{name: "many labels", text: backend("labels: {" + manyLabels() + "}"),
		want: []string{`:5: models[0].backends[0].labels: has 65 entries; write at most 64`}},
	{name: "duplicate model", semantic: true, text: "models:\n- {name: m, backends: [{url: http://a}]}\n- {name: m, backends: [{url: http://b}]}",
		want: []string{`:3: models[1].name: is the same as models[0].name (line 2); give every model and alias its own name`}},
	{name: "alias of another", semantic: true, text: "models:\n- {name: m, aliases: [n, n], backends: [{url: http://a}]}\n- {name: n, backends: [{url: http://b}]}",
		want: []string{
			`:2: models[0].aliases[0]: is the same as models[1].name (line 3); give every model and alias its own name`,
			`:2: models[0].aliases[1]: is the same as models[1].name (line 3); give every model and alias its own name`}},
	{name: "one name, two URLs", semantic: true, text: "models:\n- {name: m, backends: [{name: e, url: http://a}]}\n- {name: n, backends: [{name: e, url: http://b}]}",
		want: []string{`:3: models[1].backends[0].name: its name already stands for another URL at models[0].backends[0] (line 2); give every URL its own name`}},
	{name: "default name, two URLs", semantic: true, text: "models:\n- {name: m, backends: [{url: http://a/x}, {url: http://a/y}]}",
		want: []string{`:2: models[0].backends[1].url: its name already stands for another URL at models[0].backends[0] (line 2); give every URL its own name`}},
	{name: "one URL, two names", semantic: true, text: "models:\n- {name: m, backends: [{name: e, url: http://a}]}\n- {name: n, backends: [{name: f, url: http://a/v1}]}",
		want: []string{`:3: models[1].backends[0].name: its URL already has another name at models[0].backends[0] (line 2); use one name for one URL`}},
	{name: "one backend, two engines", semantic: true, text: "models:\n- {name: m, backends: [{url: http://a}]}\n- {name: n, backends: [{url: http://a, engine: tgi}]}",
		want: []string{`:3: models[1].backends[0].engine: differs from the same backend's at models[0].backends[0] (line 2); write the same engine in both places`}},
	{name: "one backend, two profiles", semantic: true, text: "models:\n- {name: m, backends: [{url: http://a}]}\n- {name: n, backends: [{url: http://a, profile: h100-llama-3-8b-bf16}]}",
		want: []string{`:3: models[1].backends[0].profile: differs from the same backend's at models[0].backends[0] (line 2); write the same profile in both places`}},
	{name: "backend twice", semantic: true, text: "models:\n- name: m\n  backends:\n  - url: http://a\n  - url: http://a/v1",
		want: []string{`:5: models[0].backends[1]: is the same backend as models[0].backends[0] (line 4); remove one of the two`}},
	{name: "ejection over its cap", semantic: true, text: section("defaults: {health: {ejection: 1h}}"),
		want: []string{`:1: defaults.health.ejection: ejection (1h0m0s) is longer than max_ejection (5m0s); raise max_ejection`}},
	{name: "no env and no file", text: backend("credentials: {header: X-Key}"),
		want: []string{`:5: models[0].backends[0].credentials: has neither env nor file; write env: NAME or file: path`}},
	{name: "env and file", text: backend("credentials: {env: KEY, file: key}"),
		want: []string{`:5: models[0].backends[0].credentials: has both env and file; keep one of the two`}},
	{name: "env not set", semantic: true, text: backend("credentials: {env: KEY}"),
		want: []string{`:5: models[0].backends[0].credentials.env: the environment variable is not set; set it, or name another`}},
	{name: "no secret file", semantic: true, text: backend("credentials: {file: hunter2}"),
		want: []string{`:5: models[0].backends[0].credentials.file: the file cannot be read: no such file or directory; relative paths start at the folder of this file`}},
	{name: "secret file is a folder", semantic: true, text: backend("credentials: {file: .}"),
		want: []string{`:5: models[0].backends[0].credentials.file: the file cannot be read: not a regular file; relative paths start at the folder of this file`}},
	{name: "secret in the wrong key", text: backend("credentials: {env: sk-hunter2}"),
		want: []string{`:5: models[0].backends[0].credentials.env: the value is not the name of an environment variable; write the variable's name, not the secret itself`}},
	{name: "secret as header", text: backend("credentials: {env: KEY, header: 'Authorization: hunter2'}"),
		want: []string{
			`:5: models[0].backends[0].credentials.header: the value is not a header name; write a name such as Authorization or X-Api-Key`,
			`:5: models[0].backends[0].credentials.env: the environment variable is not set; set it, or name another`}},
	{name: "secret as key", text: backend("credentials: {sk-hunter2: x, secret: hunter2}"),
		want: []string{
			`:5: models[0].backends[0].credentials: unknown key; write one of env, file, header, scheme`,
			`:5: models[0].backends[0].credentials.secret: unknown key; write one of env, file, header, scheme`,
			`:5: models[0].backends[0].credentials: has neither env nor file; write env: NAME or file: path`}},
	{name: "secret as credentials", text: backend("credentials: hunter2"),
		want: []string{
			`:5: models[0].backends[0].credentials: is text, not a mapping; write keys and values below it`}},
	{name: "header of the connection", semantic: true, text: backend("credentials: {env: SET, header: host}"),
		want: []string{`:5: models[0].backends[0].credentials.header: the value is a header that the connection needs; write a name such as Authorization or X-Api-Key`}},
	{name: "scheme", text: backend("credentials: {env: SET, scheme: 'Bearer hunter2'}"),
		want: []string{`:5: models[0].backends[0].credentials.scheme: the value is not an authentication scheme; write one word such as Bearer`}},
	{name: "secret with line break", semantic: true, text: backend("credentials: {env: LINES}"),
		want: []string{`:5: models[0].backends[0].credentials.env: the secret contains control characters or is not text; write it on one line`}},
	{name: "secret is empty", semantic: true, text: backend("credentials: {env: BLANK}"),
		want: []string{`:5: models[0].backends[0].credentials.env: the secret is empty`}},
	{name: "variable not set", semantic: true, text: backend("model: ${NONE}/${NEITHER}"),
		want: []string{
			`:5: models[0].backends[0].model: environment variable NONE is not set; set it or write ${NONE:-default}`,
			`:5: models[0].backends[0].model: environment variable NEITHER is not set; set it or write ${NEITHER:-default}`}},
	{name: "lone dollar", semantic: true, text: backend("model: a$b"),
		want: []string{`:5: models[0].backends[0].model: a $ begins no variable; write ${NAME}, ${NAME:-default}, or $$ for a dollar sign`}},
	{name: "values of the environment are not quoted", semantic: true,
		text: section("server: {listen: '${SET}', max_headers: '${SET}', keep_alive: '${SET}'}", "telemetry: {log_level: '${SET}'}"),
		want: []string{
			`:1: server.listen: "${SET}" is not host:port; write ":8080" or "127.0.0.1:8080"`,
			`:1: server.max_headers: "${SET}" is not a whole number; write digits such as 3`,
			`:1: server.keep_alive: "${SET}" is not a duration; ` + durationFix,
			`:2: telemetry.log_level: "${SET}" is not valid here; write one of debug, info, warn, error`}},
	{name: "blank variable for a required value", semantic: true, text: "models: [{name: '${BLANK:-}', backends: [{url: '${NONE:-}'}]}]",
		want: []string{
			`:1: models[0].name: "${BLANK:-}" contains a control character or an outer space; write plain text`,
			`:1: models[0].backends[0].url: "${NONE:-}" is empty; write a value or remove the key`}},
	{name: "empty", text: "", semantic: true,
		want: []string{`: is empty; write at least models with one backend`}},
	{name: "only comments", text: "# nothing\n", semantic: true,
		want: []string{`: is empty; write at least models with one backend`}},
	{name: "empty document", text: "---\n", semantic: true,
		want: []string{`: is empty; write at least models with one backend`}},
	{name: "two documents", text: minimal + "\n---\n" + minimal, semantic: true,
		want: []string{`:2: a second YAML document begins here; keep one document a file`}},
	{name: "tab", text: "drain:\n\taccept: 5s\n" + minimal, semantic: true,
		want: []string{`:2: is not YAML: found character that cannot start any token; a tab stands at the start of this line; indent with spaces`}},
	{name: "unknown anchor", text: section("drain: *none"), semantic: true,
		want: []string{`: is not YAML: unknown anchor 'none' referenced`}},
	{name: "everything at once", text: "server: {listen: x}\nmodels:\n- backends:\n  - {url: x, weight: -1}\n  - weight: a\n", want: []string{
		`:1: server.listen: "x" is not host:port; write ":8080" or "127.0.0.1:8080"`,
		`:3: models[0].name: is missing`,
		`:4: models[0].backends[0].url: "x" is not an http or https URL; write http://host:port`,
		`:4: models[0].backends[0].weight: "-1" is not above 0; write a value above 0 and of at most 1000000`,
		`:5: models[0].backends[1].url: is missing`,
		`:5: models[0].backends[1].weight: "a" is not a number; write a number such as 0.5, without quotes`}},
}

func manyLabels() string {
	var pairs []string
	for i := range 65 {
		pairs = append(pairs, fmt.Sprintf("l%d: x", i))
	}
	return strings.Join(pairs, ", ")
}

func badEnvironment() func(string) (string, bool) {
	return environment("SET", "hunter2", "LINES", "hunter2\nX-Admin: 1", "BLANK", " ")
}

func TestErrors(t *testing.T) {
	for _, row := range badFiles {
		t.Run(row.name, func(t *testing.T) {
			c, err := Parse("config.yaml", []byte(row.text), t.TempDir(), badEnvironment())
			if err == nil || c != nil {
				t.Fatalf("got %v, %v", c, err)
			}
			want := "config.yaml" + strings.Join(row.want, "\nconfig.yaml")
			if got := err.Error(); got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Error("the error shows a secret")
			}
			var one Error
			if !errors.As(err, &one) || one.File != "config.yaml" {
				t.Errorf("no Error in %#v", err)
			}
		})
	}
}

func TestManyErrors(t *testing.T) {
	text := "models: [" + strings.Repeat("{},", 100_000) + "]"
	_, err := Parse("config.yaml", []byte(text), "", nil)
	var all Errors
	if !errors.As(err, &all) || len(all) != maxErrors+1 {
		t.Fatalf("%d errors", len(all))
	}
	if want := "config.yaml: has more than 100 errors; these are the first"; all[0].Error() != want {
		t.Errorf("got %q, want %q", all[0].Error(), want)
	}
}

func TestAliasBomb(t *testing.T) {
	text := "models:\n- &m {name: m, backends: [&b {url: http://a}" + strings.Repeat(", *b", 1000) + "]}\n" +
		strings.Repeat("- *m\n", 1000)
	_, err := Parse("config.yaml", []byte(text), "", nil)
	if err == nil || !strings.Contains(err.Error(), "aliases stand for too many values; write the values out") {
		t.Errorf("got %v", err)
	}
}

func TestAliasOfItself(t *testing.T) {
	text := "models: &m [{name: m, backends: *m}]"
	if _, err := Parse("config.yaml", []byte(text), "", nil); err == nil {
		t.Error("no error")
	}
}

func TestSuggest(t *testing.T) {
	valid := []string{"policy", "backends", "name"}
	for word, want := range map[string]string{
		"polcy":   `did you mean "policy"?`,
		"Policy":  `did you mean "policy"?`,
		"opliyc":  `did you mean "policy"?`,
		"backend": `did you mean "backends"?`,
		"nmae":    `did you mean "name"?`,
		"listen":  "write one of policy, backends, name",
		"":        "write one of policy, backends, name",
	} {
		if got := suggest(word, valid); got != want {
			t.Errorf("%q: got %s, want %s", word, got, want)
		}
	}
}
