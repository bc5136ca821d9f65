package config

import (
	"reflect"
)

// Document is a YAML file of another kind, read by the rules of the gateway's
// own: struct tags state defaults, ranges and forms; unknown and repeated keys
// are refused; every error tells line, column and fix. Its user adds what no
// single value shows and asks for Err at the end.
type Document struct{ d *decoder }

// Decode lays the YAML in data over the struct that into points to. name
// stands in errors. Fields may be text, numbers, booleans, time.Duration,
// Duration, ByteSize, maps of text, and structs and lists of these. getenv
// looks up what ${NAME} stands for; nil is an empty environment.
func Decode(name string, data []byte, into any, getenv func(string) (string, bool)) *Document {
	if getenv == nil {
		getenv = func(string) (string, bool) { return "", false }
	}
	d := newDecoder(name, getenv)
	d.columns = true
	root, fault := document(data)
	if fault != nil {
		if fault.Line == 0 {
			fault.Fix = "" // speaks of the gateway's file
		}
		fault.File = name
		d.errs = append(d.errs, *fault)
		return &Document{d}
	}
	v := reflect.ValueOf(into).Elem()
	fill(v)
	d.decode(root, "", rule{}, v, v)
	return &Document{d}
}

// Has tells whether the file sets the field, such as engines[0].step.t0.
func (doc *Document) Has(path string) bool { return doc.d.has(path) }

// Fail reports a problem of the field at path, and what to write instead.
func (doc *Document) Fail(path, problem, fix string) { doc.d.fail(path, problem, fix) }

// Err gives everything that is wrong, as Errors, or nil.
func (doc *Document) Err() error { return doc.d.errs.err() }

// Suggest says which of the valid words the writer may have meant, or lists them.
func Suggest(word string, valid []string) string { return suggest(word, valid) }
