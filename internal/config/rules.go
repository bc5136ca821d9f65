package config

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// field is one key of a section of the file.
type field struct {
	name  string
	index int
	rule  rule
}

// fieldsOf lists the keys that a section of type t has, in order of declaration.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		sf := t.Field(i)
		name, _, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if !sf.IsExported() || name == "-" {
			continue
		}
		fields = append(fields, field{name: name, index: i, rule: ruleOf(sf.Tag)})
	}
	return fields
}

// rule is what the struct tags of a field demand of its value.
type rule struct {
	def             string   // value when the file has none
	min, max, above string   // range, written like a value; of a map or list: max is its length
	enum            []string // all valid values
	format, keys    string   // names in formats, of the value and of a map's keys
	required        bool     // must be in the file and not empty
	off             bool     // a duration may be "off"
	empty           bool     // a string may be ""
	quiet           bool     // errors must not quote the value
	number          bool     // a string may be written as a whole number
}

func ruleOf(tag reflect.StructTag) rule {
	r := rule{
		def: tag.Get("default"), min: tag.Get("min"), max: tag.Get("max"), above: tag.Get("above"),
		format: tag.Get("format"), keys: tag.Get("keys"),
		required: tag.Get("required") == "yes", off: tag.Get("off") == "yes",
		empty: tag.Get("empty") == "yes", quiet: tag.Get("quote") == "no",
		number: tag.Get("number") == "yes",
	}
	if list := tag.Get("enum"); list != "" {
		r.enum = strings.Split(list, ",")
	}
	return r
}

// set parses text into v, or reports the fault and leaves v as it is. raw is
// what the file says where text comes from the environment.
func (r rule) set(v reflect.Value, text, raw string) *fault {
	var f *fault
	switch p := v.Addr().Interface().(type) {
	case *string:
		f = r.setString(p, text)
	case *bool:
		f = setBool(p, text)
	case *Duration:
		f = r.setDuration(p, text, raw)
	case *time.Duration:
		f = setChecked(p, text, r, parseSpan)
	case *ByteSize:
		f = setChecked(p, text, r, parseByteSize)
	case *int:
		f = setChecked(p, text, r, parseInt)
	case *float64:
		f = setChecked(p, text, r, parseFloat)
	}
	if f != nil {
		f.quiet = f.quiet || r.quiet
	}
	return f
}

func (r rule) setString(p *string, text string) *fault {
	if r.enum != nil {
		if !slices.Contains(r.enum, text) {
			return &fault{is: "is not valid here", fix: suggest(text, r.enum)}
		}
		*p = text
		return nil
	}
	if text == "" && r.empty {
		*p = text
		return nil
	}
	if text == "" {
		return &fault{is: "is empty", fix: "write a value or remove the key"}
	}
	s, f := formats[r.format].parse(text)
	if f != nil {
		return f
	}
	*p = s
	return nil
}

func setBool(p *bool, text string) *fault {
	isTrue := strings.EqualFold(text, "true")
	if !isTrue && !strings.EqualFold(text, "false") {
		return &fault{is: "is not a boolean", fix: "write true or false"}
	}
	*p = isTrue
	return nil
}

// setDuration leaves what is already there when the file says 0s.
func (r rule) setDuration(p *Duration, text, raw string) *fault {
	d, f := parseDuration(text, raw)
	switch {
	case f != nil:
		return f
	case d == Off && !r.off:
		return &fault{is: "is not allowed here", fix: `write a duration such as "300ms" or "1m30s"`}
	case d == 0 && r.off:
		return &fault{is: "is no time at all", fix: `write "off", or leave it out for the default`}
	case d == 0:
		return &fault{is: "is no time at all", fix: "write a longer one, or leave it out for the default"}
	case d != Off:
		parse := func(s string) (Duration, *fault) { return parseDuration(s, s) }
		if f := r.within(float64(d), number(parse)); f != nil {
			return f
		}
	}
	*p = d
	return nil
}

// setChecked parses text, holds it against the rule's range and stores it.
func setChecked[T time.Duration | ByteSize | int | float64](p *T, text string, r rule, parse func(string) (T, *fault)) *fault {
	n, f := parse(text)
	if f == nil {
		f = r.within(float64(n), number(parse))
	}
	if f == nil {
		*p = n
	}
	return f
}

// number lets the bounds of a rule be read like values of the field's type.
func number[T Duration | time.Duration | ByteSize | int | float64](parse func(string) (T, *fault)) func(string) float64 {
	return func(bound string) float64 {
		n, _ := parse(bound)
		return float64(n)
	}
}

func (r rule) within(n float64, bound func(string) float64) *fault {
	fix := "write a value " + r.span()
	switch {
	case r.min != "" && n < bound(r.min):
		return &fault{is: "is below " + r.min, fix: fix}
	case r.above != "" && n <= bound(r.above):
		return &fault{is: "is not above " + r.above, fix: fix}
	case r.max != "" && n > bound(r.max):
		return &fault{is: "is above " + r.max, fix: fix}
	}
	return nil
}

// span names the rule's range.
func (r rule) span() string {
	var parts []string
	if r.min != "" {
		parts = append(parts, "of at least "+r.min)
	}
	if r.above != "" {
		parts = append(parts, "above "+r.above)
	}
	if r.max != "" {
		parts = append(parts, "of at most "+r.max)
	}
	return strings.Join(parts, " and ")
}

// wholeNumber has no leading zero, which some readers of YAML take for octal.
var wholeNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

func parseInt(text string) (int, *fault) {
	n, err := strconv.Atoi(text)
	if err != nil || !wholeNumber.MatchString(text) {
		return 0, &fault{is: "is not a whole number", fix: "write digits such as 3"}
	}
	return n, nil
}

var decimal = regexp.MustCompile(`^-?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?$`)

func parseFloat(text string) (float64, *fault) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !decimal.MatchString(text) || math.IsInf(n, 0) {
		return 0, &fault{is: "is not a number", fix: "write a number such as 0.5"}
	}
	return n, nil
}

// mustSet stores a default. A default that does not parse is a mistake in the
// struct tags, which no file can cause.
func (r rule) mustSet(v reflect.Value) {
	if f := r.set(v, r.def, r.def); f != nil {
		panic(fmt.Sprintf("config: default %q %s", r.def, f.is))
	}
}
