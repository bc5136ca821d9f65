package sla

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strings"
)

//go:embed contract.go
var source []byte

// Schema returns the JSON Schema (draft 2020-12) of one document of a contract
// file, for editors. It accepts what Parse accepts, as far as a schema can tell:
// it does not see how values fit together.
func Schema() ([]byte, error) {
	docs, err := comments()
	if err != nil {
		return nil, fmt.Errorf("read the contract's comments: %w", err)
	}
	s := schema{docs: docs, defs: map[string]any{}}
	root := s.section(reflect.TypeFor[Contract]())
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Firsttoken contract"
	root["$defs"] = s.defs
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(root); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// schema collects the definitions of all sections.
type schema struct {
	docs map[string]string // "Type.Field" or "Type" → comment
	defs map[string]any
}

func (s *schema) section(t reflect.Type) map[string]any {
	properties := map[string]any{}
	var required []string
	for _, f := range fieldsOf(t) {
		p := s.value(t.Field(f.index).Type, f.rule)
		if doc := s.describe(t, t.Field(f.index).Name); doc != "" {
			p["description"] = doc
		}
		if f.rule.def != "" {
			p["default"] = f.rule.def
		}
		properties[f.name] = p
		if f.rule.required != "" {
			required = append(required, f.name)
		}
	}
	object := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if required != nil {
		object["required"] = required
	}
	return object
}

func (s *schema) value(t reflect.Type, r rule) map[string]any {
	switch t {
	case reflect.TypeFor[Threshold]():
		base := fieldsOf(t)[0].rule
		return map[string]any{"anyOf": []any{s.value(reflect.TypeFor[Duration](), base), s.section(t)}}
	case reflect.TypeFor[Action]():
		plain := []string{string(WarmUp), string(Wait), string(ServeLate), string(Shed)}
		return map[string]any{"anyOf": []any{map[string]any{"enum": plain}, s.section(reflect.TypeFor[lighter]())}}
	case reflect.TypeFor[Duration]():
		return map[string]any{"type": "string", "pattern": "^" + durationPattern + "$"}
	case reflect.TypeFor[Share]():
		return map[string]any{"type": []string{"string", "number"}, "pattern": "^" + sharePattern + "$", "minimum": 0}
	}
	switch t.Kind() {
	case reflect.Struct:
		s.defs[t.Name()] = s.section(t)
		return map[string]any{"$ref": "#/$defs/" + t.Name()}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.value(t.Elem(), rule{}), "minItems": 1, "maxItems": json.Number(r.max)}
	case reflect.Map:
		return map[string]any{
			"type": "object", "maxProperties": json.Number(r.max),
			"propertyNames":        s.text(rule{format: r.keys}),
			"additionalProperties": s.value(t.Elem(), rule{max: r.max}),
		}
	case reflect.Int:
		return ranged("integer", r)
	case reflect.Float64:
		return ranged("number", r)
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	}
	if r.enum != nil {
		return map[string]any{"enum": r.enum}
	}
	return s.text(r)
}

func (s *schema) text(r rule) map[string]any {
	f := formats[r.format]
	return map[string]any{"type": "string", "pattern": f.re.String(), "maxLength": f.most}
}

func ranged(kind string, r rule) map[string]any {
	s := map[string]any{"type": kind}
	for key, bound := range map[string]string{"minimum": r.min, "exclusiveMinimum": r.above, "maximum": r.max, "exclusiveMaximum": r.below} {
		if bound != "" {
			s[key] = json.Number(bound)
		}
	}
	return s
}

// comments returns the doc comments of this package's structs and fields.
func comments() (map[string]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "contract.go", source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	docs := map[string]string{}
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		spec := gen.Specs[0].(*ast.TypeSpec)
		st, ok := spec.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range st.Fields.List {
			for _, name := range f.Names {
				docs[spec.Name.Name+"."+name.Name] = f.Doc.Text()
			}
		}
	}
	return docs, nil
}

var word = regexp.MustCompile(`[A-Z][A-Za-z]*`)

// describe returns a field's comment, with the names that the file uses in
// place of those of Go.
func (s *schema) describe(holder reflect.Type, name string) string {
	doc := word.ReplaceAllStringFunc(s.docs[holder.Name()+"."+name], func(w string) string {
		f, ok := holder.FieldByName(w)
		if key, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); ok && key != "" {
			return key
		}
		return w
	})
	return strings.Join(strings.Fields(doc), " ")
}
