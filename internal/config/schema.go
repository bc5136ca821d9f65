package config

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

//go:embed config.go
var source []byte

// Schema returns the JSON Schema (draft 2020-12) of the file, for editors. It
// accepts what Parse accepts, as far as a schema can tell: it sees neither the
// environment nor how values fit together.
func Schema() ([]byte, error) {
	docs, err := comments()
	if err != nil {
		return nil, fmt.Errorf("read the configuration's comments: %w", err)
	}
	s := schema{docs: docs, defs: map[string]any{
		"variable": map[string]any{
			"type": "string", "pattern": `\$`,
			"description": "A value from the environment: ${NAME} or ${NAME:-default}; $$ is a dollar sign.",
		},
	}}
	root := s.section(reflect.TypeFor[Config]())
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Firsttoken configuration"
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
		sf := t.Field(f.index)
		p := s.value(sf.Type, f.rule)
		if doc := s.describe(t, sf); doc != "" {
			p["description"] = doc
		}
		if f.rule.def != "" {
			p["default"] = defaultValue(sf.Type, f.rule)
		}
		properties[f.name] = p
		if f.rule.required {
			required = append(required, f.name)
		}
	}
	object := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if required != nil {
		object["required"] = required
	}
	if t == reflect.TypeFor[Credentials]() {
		object["oneOf"] = []any{
			map[string]any{"required": []string{"env"}},
			map[string]any{"required": []string{"file"}},
		}
	}
	return object
}

func (s *schema) value(t reflect.Type, r rule) map[string]any {
	switch t.Kind() {
	case reflect.Struct:
		if s.defs[t.Name()] == nil {
			s.defs[t.Name()] = s.section(t)
		}
		return map[string]any{"$ref": "#/$defs/" + t.Name()}
	case reflect.Slice:
		list := map[string]any{"type": "array", "items": s.value(t.Elem(), rule{format: r.format})}
		if r.required {
			list["minItems"] = 1
		}
		return list
	case reflect.Map:
		return map[string]any{
			"type": "object", "maxProperties": json.Number(r.max),
			"propertyNames":        map[string]any{"pattern": formats[r.keys].pattern},
			"additionalProperties": s.value(t.Elem(), rule{empty: true}),
		}
	}
	alternatives := append(scalarSchemas(t, r), map[string]any{"$ref": "#/$defs/variable"})
	return map[string]any{"anyOf": alternatives}
}

// scalarSchemas are the ways in which a value may be written out.
func scalarSchemas(t reflect.Type, r rule) []any {
	text := func(pattern string) map[string]any {
		return map[string]any{"type": "string", "pattern": pattern}
	}
	switch t {
	case reflect.TypeFor[Duration]():
		if r.off {
			return []any{text(`^(off|` + durationPattern + `)$`)}
		}
		return []any{text(`^` + durationPattern + `$`)}
	case reflect.TypeFor[ByteSize]():
		return []any{ranged("integer", t, r), text(`^` + byteSizePattern + `$`)}
	}
	switch t.Kind() {
	case reflect.Int:
		return []any{ranged("integer", t, r)}
	case reflect.Float64:
		return []any{ranged("number", t, r)}
	case reflect.Bool:
		return []any{map[string]any{"type": "boolean"}}
	}
	switch {
	case r.enum != nil:
		return []any{map[string]any{"enum": r.enum}}
	case r.empty:
		return []any{text(formats[r.format].pattern), map[string]any{"const": ""}}
	default:
		return []any{text(formats[r.format].pattern)}
	}
}

func ranged(kind string, t reflect.Type, r rule) map[string]any {
	s := map[string]any{"type": kind}
	for key, bound := range map[string]string{"minimum": r.min, "exclusiveMinimum": r.above, "maximum": r.max} {
		if bound != "" {
			s[key] = literal(t, bound)
		}
	}
	return s
}

// literal reads a bound or a default as the JSON value that it stands for.
func literal(t reflect.Type, text string) any {
	v := reflect.New(t).Elem()
	rule{def: text}.mustSet(v)
	if size, ok := v.Interface().(ByteSize); ok {
		return int64(size)
	}
	return v.Interface()
}

func defaultValue(t reflect.Type, r rule) any {
	switch t.Kind() {
	case reflect.Int, reflect.Float64, reflect.Bool:
		return literal(t, r.def)
	default:
		return r.def
	}
}

// comments returns the doc comments of this package's structs and fields.
func comments() (map[string]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", source, parser.ParseComments)
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
		docs[spec.Name.Name] = gen.Doc.Text()
		if st, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range st.Fields.List {
				for _, name := range f.Names {
					docs[spec.Name.Name+"."+name.Name] = f.Doc.Text()
				}
			}
		}
	}
	return docs, nil
}

var word = regexp.MustCompile(`[A-Z][A-Za-z]*`)

// describe returns a field's comment, or else that of its type, with the names
// that the file uses in place of those of Go.
func (s *schema) describe(holder reflect.Type, sf reflect.StructField) string {
	doc, names := s.docs[holder.Name()+"."+sf.Name], holder
	if doc == "" {
		doc, names = s.docs[sf.Type.Name()], sf.Type
	}
	doc = word.ReplaceAllStringFunc(doc, func(w string) string {
		if names.Kind() != reflect.Struct {
			return w
		}
		f, ok := names.FieldByName(w)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !ok || key == "" || key == "-" {
			return w
		}
		return key
	})
	return strings.Join(strings.Fields(doc), " ")
}
