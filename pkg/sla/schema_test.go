package sla

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/firsttoken/firsttoken/deploy/contracts"
)

var update = flag.Bool("update", false, "rewrite api/contract.schema.json")

const golden = "../../api/contract.schema.json"

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
		t.Errorf("%s is out of date; run go test ./pkg/sla -run Schema -update", golden)
	}
}

func TestSchemaAgreesOnGoodFiles(t *testing.T) {
	s := compiled(t)
	for _, text := range goodFiles {
		set := mustParse(t, text)
		saved, err := set.Save()
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{text, string(saved)} {
			if err := s.Validate(instance(t, text)); err != nil {
				t.Errorf("the schema refuses:\n%s\n%v", text, err)
			}
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

func TestSchemaAcceptsShipped(t *testing.T) {
	s, set := compiled(t), shipped(t)
	saved, err := set.Save()
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range bytes.Split(saved, []byte("---\n")) {
		if err := s.Validate(instance(t, string(doc))); err != nil {
			t.Errorf("%v\n%s", err, doc)
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
	sections["Contract"] = root
	for name, def := range sections {
		for key, p := range def.(map[string]any)["properties"].(map[string]any) {
			if p.(map[string]any)["description"] == nil {
				t.Errorf("%s: %s has no description", name, key)
			}
		}
	}
}

func shipped(t testing.TB) *Set {
	t.Helper()
	set, err := LoadFS(contracts.Files())
	if err != nil {
		t.Fatal(err)
	}
	return set
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
	if err := c.AddResource("contract.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("contract.json")
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
