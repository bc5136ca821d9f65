package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// loadSpec reads the OpenAPI description of the API.
func loadSpec(t testing.TB) map[string]any {
	t.Helper()
	text, err := os.ReadFile(dataFile(t, "specs/openai-openapi-inference.json"))
	if err != nil {
		t.Fatal(err)
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// modernSpec is the description with what it has from before OpenAPI 3.1 in
// the words of 3.1, and with a schema that it lacks.
func modernSpec(t testing.TB) map[string]any {
	t.Helper()
	description := loadSpec(t)
	schemas := description["components"].(map[string]any)["schemas"].(map[string]any)
	for name, schema := range schemas {
		modernize(schema, "#/components/schemas/"+name)
	}
	modernize(description["paths"], "")
	schemas["CreateCompletionStreamResponse"] = completionChunk(t, schemas["CreateCompletionResponse"])
	return description
}

// modernize rewrites "nullable" of OpenAPI 3.0 and "$recursiveRef" of the
// JSON Schema before 2020-12. self is the schema that recursion goes to.
func modernize(node any, self string) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			modernize(child, self)
		}
	case map[string]any:
		for _, child := range n {
			modernize(child, self)
		}
		if n["$recursiveRef"] == "#" {
			delete(n, "$recursiveRef")
			n["$ref"] = self
		}
		if n["$recursiveAnchor"] == true {
			delete(n, "$recursiveAnchor")
		}
		if n["nullable"] == true {
			delete(n, "nullable")
			orNull(n)
		}
	}
}

// orNull lets a schema accept null as well.
func orNull(schema map[string]any) {
	inner := maps.Clone(schema)
	clear(schema)
	schema["anyOf"] = []any{inner, map[string]any{"type": "null"}}
}

// completionChunk is the schema of a chunk of the completions API. The
// description has none: "both the streamed and non-streamed response objects
// share the same shape". In a stream there is no finish reason before the
// last chunk, and "all other chunks will also include a usage field, but with
// a null value".
func completionChunk(t testing.TB, whole any) any {
	t.Helper()
	text, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	var chunk map[string]any
	if err := json.Unmarshal(text, &chunk); err != nil {
		t.Fatal(err)
	}
	properties := chunk["properties"].(map[string]any)
	choice := properties["choices"].(map[string]any)["items"].(map[string]any)
	orNull(choice["properties"].(map[string]any)["finish_reason"].(map[string]any))
	orNull(properties["usage"].(map[string]any))
	return chunk
}

// spec judges answers by the description. Since OpenAPI 3.1 its schemas are
// JSON Schemas, so a validator of these needs only to be told where they are.
type spec struct {
	paths    map[string]any
	compiler *jsonschema.Compiler
}

const specURL = "urn:openapi"

func newSpec(t testing.TB) *spec {
	t.Helper()
	description := modernSpec(t)
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource(specURL, description); err != nil {
		t.Fatal(err)
	}
	return &spec{paths: description["paths"].(map[string]any), compiler: c}
}

// document judges a document by a schema of the components.
func (s *spec) document(name, text string) error {
	return s.judge("/components/schemas/"+name, text)
}

// answer judges an answer by what the description says of its path (as the
// description writes it), method, status and media type.
func (s *spec) answer(path, method string, resp *http.Response, body string) error {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	at, status := s.paths, strconv.Itoa(resp.StatusCode)
	for _, key := range []string{path, method, "responses", status} {
		next, ok := at[key].(map[string]any)
		if !ok {
			return fmt.Errorf("the description has no %q for status %s of %s %s", key, status, method, path)
		}
		at = next
	}
	pointer := "/paths/" + escape(path) + "/" + method + "/responses/" + status
	if ref, ok := at["$ref"].(string); ok {
		pointer = strings.TrimPrefix(ref, "#")
	}
	return s.judge(pointer+"/content/"+escape(kind)+"/schema", body)
}

func (s *spec) judge(pointer, text string) error {
	schema, err := s.compiler.Compile(specURL + "#" + pointer)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// escape writes a key as a part of a JSON pointer in a URL.
func escape(key string) string {
	key = strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
	return url.PathEscape(key)
}
