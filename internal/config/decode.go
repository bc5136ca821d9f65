package config

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// maxErrors keeps a file that is no configuration from printing pages.
	maxErrors = 100
	// maxCopied bounds the values that aliases may stand for, so that a small
	// file cannot unfold into a large one.
	maxCopied = 20_000
)

// decoder lays the file's values over the defaults, section by section, and
// collects everything that is wrong on the way.
type decoder struct {
	file   string
	getenv func(string) (string, bool)
	errs   Errors
	marks  map[string]mark
	alias  int // depth of aliases being followed
	copied int // values decoded through aliases
	// columns adds the column to every error.
	columns bool
}

// mark is where the value of a field stands and what the file says there.
type mark struct {
	line, column int
	raw          string
}

func newDecoder(file string, getenv func(string) (string, bool)) *decoder {
	return &decoder{file: file, getenv: getenv, marks: map[string]mark{}}
}

// fail reports a problem of the field at path.
func (d *decoder) fail(path, problem, fix string) {
	m := d.nearest(path)
	d.failAt(&yaml.Node{Line: m.line, Column: m.column}, path, problem, fix)
}

// failAt reports a problem at a place that is no field's value.
func (d *decoder) failAt(n *yaml.Node, path, problem, fix string) {
	e := Error{File: d.file, Line: n.Line, Field: path, Problem: problem, Fix: fix}
	if d.columns {
		e.Column = n.Column
	}
	if len(d.errs) == maxErrors {
		e = Error{File: d.file, Problem: fmt.Sprintf("has more than %d errors", maxErrors), Fix: "these are the first"}
	}
	if !d.full() {
		d.errs = append(d.errs, e)
	}
}

// reject reports that the value at path is at fault.
func (d *decoder) reject(path string, f *fault) {
	d.fail(path, f.about(d.marks[path].raw), f.fix)
}

// full tells that there are errors enough to print.
func (d *decoder) full() bool { return len(d.errs) > maxErrors }

// done tells that decoding the rest of the file is not worth the time.
func (d *decoder) done() bool { return d.full() || d.copied >= maxCopied }

// has tells whether the file sets the field.
func (d *decoder) has(path string) bool {
	_, ok := d.marks[path]
	return ok
}

// line returns the line of a field, or of the nearest section that holds it.
func (d *decoder) line(path string) int { return d.nearest(path).line }

// nearest returns the mark of a field, or of the nearest section that holds it.
func (d *decoder) nearest(path string) mark {
	for {
		if m, ok := d.marks[path]; ok || path == "" {
			return m
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

// decode lays the value at n over v. holder is the section that v is part of.
func (d *decoder) decode(n *yaml.Node, path string, r rule, v, holder reflect.Value) {
	if n.Kind == yaml.AliasNode {
		d.alias++
		defer func() { d.alias-- }()
		n = n.Alias
	}
	if !d.admit(n) {
		return
	}
	d.marks[path] = mark{line: n.Line, column: n.Column, raw: n.Value}
	switch {
	case n.ShortTag() == "!!null":
		d.fail(path, "has no value", "write one or remove the key")
	case v.Kind() == reflect.Struct:
		d.section(n, path, v)
	case v.Kind() == reflect.Map:
		d.labels(n, path, r, v)
	case v.Kind() == reflect.Slice:
		d.list(n, path, r, v, holder)
	default:
		d.scalar(n, path, r, v)
	}
}

// admit counts what aliases unfold to and tells whether to go on.
func (d *decoder) admit(n *yaml.Node) bool {
	if d.alias > 0 {
		d.copied++
	}
	if d.copied == maxCopied && d.alias > 0 {
		d.failAt(n, "", "aliases stand for too many values", "write the values out or put them in defaults")
	}
	return !d.done()
}

// section decodes a mapping with known keys, in the order of the struct: what
// others inherit comes before those who inherit it.
func (d *decoder) section(n *yaml.Node, path string, v reflect.Value) {
	fields := fieldsOf(v.Type())
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	values, ok := d.entries(n, path, func(key *yaml.Node, at string) bool {
		known := slices.Contains(names, key.Value)
		if !known {
			d.failAt(key, at, "unknown key", suggest(key.Value, names))
		}
		return known
	})
	if !ok {
		return
	}
	if v.Type() == reflect.TypeFor[Credentials]() {
		fill(v)
	}
	for _, f := range fields {
		at := join(path, f.name)
		switch value, ok := values[f.name]; {
		case ok:
			d.decode(value, at, f.rule, v.Field(f.index), v)
		case f.rule.required:
			d.fail(at, "is missing", "")
		}
	}
}

// entries returns the values of a mapping by key. It reports keys that are
// repeated, that are no plain text, or that valid refuses.
func (d *decoder) entries(n *yaml.Node, path string, valid func(key *yaml.Node, at string) bool) (map[string]*yaml.Node, bool) {
	if n.Kind != yaml.MappingNode {
		d.fail(path, "is "+kindOf(n)+", not a mapping", "write keys and values below it")
		return nil, false
	}
	values := make(map[string]*yaml.Node, len(n.Content)/2)
	lines := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content) && !d.done(); i += 2 {
		key := n.Content[i]
		at := d.keyPath(path, key.Value)
		switch first, twice := lines[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			d.failAt(key, path, "a key is not plain text", "write a name")
		case key.ShortTag() == "!!merge":
			d.failAt(key, path, "merge keys are not supported", "put shared settings in defaults or in the model")
		case twice:
			d.failAt(key, at, fmt.Sprintf("is already set in line %d", first), "remove one of the two")
		default:
			lines[key.Value] = key.Line
			if valid(key, at) {
				values[key.Value] = n.Content[i+1]
			}
		}
	}
	return values, true
}

var (
	showable   = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	identifier = regexp.MustCompile(`^[a-z_]{1,24}$`)
)

// keyPath names a key for errors. A key that looks like no key is left out:
// it may break the line or, among credentials, be a secret in the wrong place.
func (d *decoder) keyPath(path, key string) string {
	shown := showable
	if strings.HasSuffix(path, ".credentials") {
		shown = identifier
	}
	if !shown.MatchString(key) {
		return path
	}
	return join(path, key)
}

func (d *decoder) list(n *yaml.Node, path string, r rule, v, holder reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.fail(path, "is "+kindOf(n)+", not a list", `write entries that start with "- "`)
		return
	}
	if len(n.Content) == 0 && r.required {
		d.fail(path, "is empty", "write at least one entry")
		return
	}
	for i, entry := range n.Content {
		if d.done() {
			return
		}
		element := reflect.New(v.Type().Elem())
		begin(element.Interface(), holder.Addr().Interface())
		d.decode(entry, path+"["+strconv.Itoa(i)+"]", rule{format: r.format}, element.Elem(), v)
		v.Set(reflect.Append(v, element.Elem()))
	}
}

// labels decodes a mapping with free keys, all or nothing.
func (d *decoder) labels(n *yaml.Node, path string, r rule, v reflect.Value) {
	values, ok := d.entries(n, path, func(key *yaml.Node, at string) bool {
		_, f := formats[r.keys].parse(key.Value)
		if f != nil {
			d.failAt(key, at, f.about(key.Value), f.fix)
		}
		return f == nil
	})
	most, _ := strconv.Atoi(r.max)
	if len(values) > most {
		d.fail(path, fmt.Sprintf("has %d entries", len(values)), "write at most "+r.max)
		return
	}
	if !ok || len(values) == 0 {
		return
	}
	labels := make(map[string]string, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		var text string
		d.decode(values[key], join(path, key), rule{empty: true}, reflect.ValueOf(&text).Elem(), v)
		labels[key] = text
	}
	v.Set(reflect.ValueOf(labels))
}

// scalar decodes a single value, after the environment had its say.
func (d *decoder) scalar(n *yaml.Node, path string, r rule, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.fail(path, "is "+kindOf(n)+", not a single value", "")
		return
	}
	text, faults := expand(n.Value, d.getenv)
	for _, f := range faults {
		d.fail(path, f.is, f.fix)
	}
	if len(faults) > 0 {
		return
	}
	expanded := strings.Contains(n.Value, "$")
	if expanded && text == "" && !r.required && !r.empty {
		return // an empty variable sets nothing
	}
	if !expanded {
		if f := mistyped(n, r, v); f != nil {
			d.reject(path, f)
			return
		}
	}
	if f := r.set(v, text, n.Value); f != nil {
		d.reject(path, f)
	}
}

// mistyped refuses what YAML reads as another type than the field has, so that
// the schema and Parse agree. Text from the environment has no type.
func mistyped(n *yaml.Node, r rule, v reflect.Value) *fault {
	tag := n.ShortTag()
	var f *fault
	switch v.Interface().(type) {
	case string:
		if tag != "!!str" && (!r.number || tag != "!!int") {
			f = &fault{is: "is " + kindOf(n) + ", not text", fix: "write it in quotes"}
		}
		if r.enum != nil && f != nil {
			f.fix = suggest(n.Value, r.enum)
		}
	case int:
		if tag != "!!int" {
			f = &fault{is: "is not a whole number", fix: "write digits such as 3, without quotes"}
		}
	case float64:
		if tag != "!!int" && tag != "!!float" {
			f = &fault{is: "is not a number", fix: "write a number such as 0.5, without quotes"}
		}
	case bool:
		if tag != "!!bool" {
			f = &fault{is: "is not a boolean", fix: "write true or false, without quotes"}
		}
	}
	if f != nil {
		f.quiet = r.quiet
	}
	return f
}

// kindOf names what stands at n.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!str":
		return "text"
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "a boolean"
	case "!!timestamp":
		return "a date"
	default:
		return "of another type"
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
