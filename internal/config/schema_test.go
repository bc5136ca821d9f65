package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "rewrite api/config.schema.json")

const golden = "../../api/config.schema.json"

func TestSchemaGolden(t *testing.T) {
	got, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is out of date; run go test ./internal/config -run Schema -update", golden)
	}
}

// goodFiles are accepted by Parse and by the schema.
var goodFiles = []string{
	minimal,
	section("server: {listen: '[::1]:80', max_body: 1000, max_url: 4KiB, max_headers: 1}"),
	section("server: {listen: 'localhost:0'}", "telemetry: {listen: ':0', log_level: warn, pprof: true}"),
	section("drain: {accept: off, limit: 1m30s}"),
	section("defaults: {timeouts: {total: off, idle: 1.5s}, retry: {budget_ratio: 0}}"),
	section("server: {max_headers: '${SET:-}', keep_alive: '${NONE:-5s}', debug_headers: '${NONE:-true}'}"),
	backend("engine: '${NONE:-vllm}'", "weight: 0.5", "labels: {gpu: h100, _: ''}", "draining: false"),
	section("prediction: {enabled: false, low_rate: 0, volatile_cv: 1e9, max_error: 0.2, min_samples: 500, dwell: 1s, models: m}"),
	section("prediction: {samples: {dir: /d/s, max_files: 1, max_file_rows: 1, max_age: 1s, max_bytes: 1GiB}}"),
	section("contracts: {files: [a.yaml], shipped: true}", "defaults: {policy: argmin, admission: {enabled: false, pending_tokens: 1, max_held: 1}}"),
	section("server: {tenant_header: x-team}"),
	section("warm_up: {enabled: false, max_prompt: 64, repeat: 1, timeout: 5s, prefixes: [\"You are\\n helpful.\"]}"),
	backend("profile: H100-Llama-3.1-8B-bf16"),
	backend("credentials: {env: SET}"),
	backend("credentials: {env: SET, header: X-Key, scheme: ''}"),
	backend("health: {path: '/a?b=c', interval: off}", "signals: {path: /metrics}"),
	"models: [{name: m, aliases: [a, b], backends: [{url: 'https://h:1/p/v1/'}, {url: 'HTTP://[::1]'}]}]",
}

func TestSchemaAgreesOnGoodFiles(t *testing.T) {
	s := compiled(t)
	for _, text := range goodFiles {
		if _, err := Parse("config.yaml", []byte(text), "", environment("SET", "7")); err != nil {
			t.Errorf("Parse refuses:\n%s\n%v", text, err)
		}
		if err := s.Validate(instance(t, text)); err != nil {
			t.Errorf("the schema refuses:\n%s\n%v", text, err)
		}
	}
}

func TestSchemaAgreesOnBadFiles(t *testing.T) {
	s := compiled(t)
	for _, row := range badFiles {
		if row.semantic {
			continue
		}
		if err := s.Validate(instance(t, row.text)); err == nil {
			t.Errorf("%s: the schema accepts:\n%s", row.name, row.text)
		}
	}
}

func TestSchemaAcceptsExamples(t *testing.T) {
	s := compiled(t)
	paths, err := filepath.Glob("../../deploy/config*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(instance(t, string(data))); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// What the gateway writes out is a file that editors accept.
func TestSchemaAcceptsResolved(t *testing.T) {
	s := compiled(t)
	for _, text := range goodFiles {
		out, err := yaml.Marshal(mustParse(t, text, "SET", "7"))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(instance(t, string(out))); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

func TestSchemaDescribesEveryKey(t *testing.T) {
	data, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	sections := root["$defs"].(map[string]any)
	sections["Config"] = root
	for name, def := range sections {
		properties, _ := def.(map[string]any)["properties"].(map[string]any)
		for key, p := range properties {
			if p.(map[string]any)["description"] == nil {
				t.Errorf("%s: %s has no description", name, key)
			}
		}
	}
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	data, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("config.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance is a YAML text as a JSON Schema validator sees it.
func instance(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return out
}
