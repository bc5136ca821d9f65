package sla

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	maxFile      = 4 << 20
	maxDocuments = 10_000
	// maxErrors keeps a file that holds no contracts from printing pages.
	maxErrors = 100
	// maxValues bounds the values of one document, aliases followed, so that a
	// small file cannot unfold into a large one.
	maxValues = 20_000
)

// decoder turns one YAML document into a Contract and collects everything that
// is wrong on the way.
type decoder struct {
	file   string
	errs   *Errors
	marks  map[string]*yaml.Node // by path, what stands there
	values int
}

// custom is a value with a form of its own.
type custom interface {
	decode(d *decoder, n *yaml.Node, path string)
}

// decodeFile returns the contracts of a file and where each begins.
func decodeFile(file string, data []byte, errs *Errors) (contracts []*Contract, places []*yaml.Node) {
	if len(data) > maxFile {
		*errs = append(*errs, Error{file, 1, 1, "", "is larger than 4 MiB", "split it into several files"})
		return nil, nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for range maxDocuments {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return contracts, places
		}
		if err != nil {
			*errs = append(*errs, syntaxError(file, data, err))
			return contracts, places
		}
		root := doc.Content[0]
		if root.ShortTag() == "!!null" {
			continue // between two separators
		}
		d := &decoder{file: file, errs: errs, marks: map[string]*yaml.Node{}}
		c := &Contract{}
		d.decode(root, "", rule{}, valueOf(c))
		d.check(c)
		contracts, places = append(contracts, c), append(places, d.nearest("metadata.name"))
	}
	*errs = append(*errs, Error{file, 1, 1, "", "has too many documents", "split it into several files"})
	return contracts, places
}

var (
	yamlMessage = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?`)
	leadingTab  = regexp.MustCompile(`(?m)^ *\t+ *[^\s#]`)
)

// syntaxError turns what the YAML parser says into an Error.
func syntaxError(file string, data []byte, err error) Error {
	e := Error{File: file, Line: 1, Column: 1, Fix: "look for indentation, colons and quotes near this line"}
	message := err.Error()
	if m := yamlMessage.FindStringSubmatch(message); m != nil {
		message = message[len(m[0]):]
		if line, err := strconv.Atoi(m[1]); err == nil {
			e.Line = max(1, line)
		}
	}
	e.Problem = "is not YAML: " + clip(strings.Join(strings.Fields(message), " "))
	if tab := leadingTab.FindIndex(data); tab != nil {
		e.Line = 1 + bytes.Count(data[:tab[0]], []byte("\n"))
		e.Fix = "a tab stands at the start of this line; indent with spaces"
	}
	return e
}

// fail reports a problem of the field at path.
func (d *decoder) fail(path, problem, fix string) { d.failAt(d.nearest(path), path, problem, fix) }

// failAt reports a problem at a place that is no field's value.
func (d *decoder) failAt(n *yaml.Node, path, problem, fix string) {
	e := Error{d.file, max(1, n.Line), max(1, n.Column), path, problem, fix}
	if len(*d.errs) == maxErrors {
		e = Error{d.file, e.Line, e.Column, "", fmt.Sprintf("there are more than %d errors", maxErrors), "mend the first ones"}
	}
	if !d.full() {
		*d.errs = append(*d.errs, e)
	}
}

// full tells that there are errors enough to print.
func (d *decoder) full() bool { return len(*d.errs) > maxErrors }

// done tells that decoding the rest of the document is not worth the time.
func (d *decoder) done() bool { return d.full() || d.values > maxValues }

// has tells whether the file sets the field.
func (d *decoder) has(path string) bool { return d.marks[path] != nil }

// nearest returns what stands at a field, or at the nearest section that holds it.
func (d *decoder) nearest(path string) *yaml.Node {
	for {
		if n := d.marks[path]; n != nil {
			return n
		}
		if path == "" {
			return &yaml.Node{}
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

// decode lays the value at n over v.
func (d *decoder) decode(n *yaml.Node, path string, r rule, v reflect.Value) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if d.values++; d.values == maxValues {
		d.failAt(n, path, "the document holds too many values", "split it into several contracts")
	}
	if d.done() {
		return
	}
	d.marks[path] = n
	if n.ShortTag() == "!!null" {
		d.fail(path, "has no value", "write one or remove the key")
		return
	}
	if c, ok := v.Addr().Interface().(custom); ok {
		c.decode(d, n, path)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.section(n, path, v)
	case reflect.Map:
		d.mapping(n, path, r, v)
	case reflect.Slice:
		d.list(n, path, r, v)
	default:
		d.scalar(n, path, r, v)
	}
}

// section decodes a mapping with known keys.
func (d *decoder) section(n *yaml.Node, path string, v reflect.Value) {
	fields := fieldsOf(v.Type())
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	values := d.entries(n, path, func(key string) (string, *fault) {
		if !slices.Contains(names, key) {
			return "", &fault{"is not a key here", suggest(key, names)}
		}
		return key, nil
	})
	if values == nil || d.done() {
		return
	}
	for _, f := range fields {
		at := join(path, f.name)
		switch value := values[f.name]; {
		case value != nil:
			d.decode(value, at, f.rule, v.Field(f.index))
		case f.rule.required != "":
			d.fail(at, "is missing", fmt.Sprintf("add %q", f.name+": "+f.rule.required))
		case f.rule.def != "":
			f.rule.set(v.Field(f.index), f.rule.def)
		}
	}
}

// entries returns the values of a mapping by key, as valid keeps it; nil when
// there is no mapping. It reports keys that are repeated, that are no plain
// text, or that valid refuses.
func (d *decoder) entries(n *yaml.Node, path string, valid func(key string) (string, *fault)) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		d.fail(path, "is "+kindOf(n)+", not a mapping", "write keys and values below it")
		return nil
	}
	values, lines := map[string]*yaml.Node{}, map[string]int{}
	for i := 0; i+1 < len(n.Content) && !d.done(); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			d.failAt(key, path, "a key is not plain text", "write a name")
			continue
		}
		if key.ShortTag() == "!!merge" {
			d.failAt(key, path, "merge keys are not supported", "write the values out")
			continue
		}
		name, f := valid(key.Value)
		switch first := lines[name]; {
		case f != nil:
			d.failAt(key, path, f.about(key.Value), f.fix)
		case first > 0:
			d.failAt(key, join(path, key.Value), fmt.Sprintf("is already set in line %d", first), "remove one of the two")
		default:
			values[name], lines[name] = n.Content[i+1], key.Line
		}
	}
	return values
}

func (d *decoder) list(n *yaml.Node, path string, r rule, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.fail(path, "is "+kindOf(n)+", not a list", "write it in brackets: ["+clip(n.Value)+"]")
		return
	}
	if len(n.Content) == 0 {
		d.fail(path, "is empty", "write at least one entry, or remove the key")
		return
	}
	if most, _ := strconv.Atoi(r.max); len(n.Content) > most {
		d.fail(path, fmt.Sprintf("has %d entries", len(n.Content)), "write at most "+r.max)
		return
	}
	for i, entry := range n.Content {
		element := reflect.New(v.Type().Elem()).Elem()
		d.decode(entry, path+"["+strconv.Itoa(i)+"]", rule{}, element)
		v.Set(reflect.Append(v, element))
	}
	d.repeated(v, path)
}

// repeated reports an entry of a list of text that stands in it twice.
func (d *decoder) repeated(v reflect.Value, path string) {
	words, ok := v.Interface().([]string)
	for i, w := range words {
		if ok && slices.Contains(words[:i], w) {
			d.fail(path+"["+strconv.Itoa(i)+"]", strconv.Quote(clip(w))+" stands in the list twice", "remove one of the two")
		}
	}
}

// mapping decodes a mapping with free keys.
func (d *decoder) mapping(n *yaml.Node, path string, r rule, v reflect.Value) {
	values := d.entries(n, path, r.checkKey)
	if most, _ := strconv.Atoi(r.max); len(values) > most {
		d.fail(path, fmt.Sprintf("has %d entries", len(values)), "write at most "+r.max)
		return
	}
	if len(values) == 0 {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		element := reflect.New(v.Type().Elem()).Elem()
		d.decode(values[key], join(path, key), rule{max: r.max}, element)
		v.SetMapIndex(reflect.ValueOf(key), element)
	}
}

// scalar decodes a single value.
func (d *decoder) scalar(n *yaml.Node, path string, r rule, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.fail(path, "is "+kindOf(n)+", not a single value", "write one value")
		return
	}
	f := mistyped(n, v.Type())
	if f == nil {
		f = r.set(v, n.Value)
	}
	if f != nil {
		d.fail(path, f.about(n.Value), f.fix)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
