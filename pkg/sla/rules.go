package sla

import (
	"math"
	"net/textproto"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
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
		if sf := t.Field(i); sf.IsExported() {
			name, _, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
			fields = append(fields, field{name: name, index: i, rule: ruleOf(sf.Tag)})
		}
	}
	return fields
}

func valueOf(pointer any) reflect.Value { return reflect.ValueOf(pointer).Elem() }
func typeOf(pointer any) reflect.Type   { return reflect.TypeOf(pointer).Elem() }

// rule is what the struct tags of a field demand of its value.
type rule struct {
	required               string   // must be in the file; an example of it
	def                    string   // value when the file has none
	min, max, above, below string   // range, written like a value; of a map or list: max is its length
	enum                   []string // all valid values
	format, keys           string   // names in formats, of the value and of a map's keys
}

func ruleOf(tag reflect.StructTag) rule {
	r := rule{
		required: tag.Get("required"), def: tag.Get("default"),
		min: tag.Get("min"), max: tag.Get("max"), above: tag.Get("above"), below: tag.Get("below"),
		format: tag.Get("format"), keys: tag.Get("keys"),
	}
	if list := tag.Get("enum"); list != "" {
		r.enum = strings.Split(list, ",")
	}
	return r
}

// set parses text into v, or reports the fault and leaves v as it is.
func (r rule) set(v reflect.Value, text string) *fault {
	parsed, f := parse(v.Type(), text)
	if f == nil && v.Kind() == reflect.String {
		f = r.form(text)
	}
	if f == nil {
		f = r.within(v.Type(), parsed)
	}
	if f == nil {
		v.Set(parsed.Convert(v.Type()))
	}
	return f
}

// parse reads text as a value of type t.
func parse(t reflect.Type, text string) (reflect.Value, *fault) {
	switch t {
	case reflect.TypeFor[Duration]():
		d, f := parseDuration(text)
		return reflect.ValueOf(d), f
	case reflect.TypeFor[Share]():
		s, f := parseShare(text)
		return reflect.ValueOf(s), f
	}
	switch t.Kind() {
	case reflect.Bool:
		if text != "true" && text != "false" {
			return reflect.Value{}, &fault{"is not a boolean", "write true or false"}
		}
		return reflect.ValueOf(text == "true"), nil
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil || !wholeNumber.MatchString(text) {
			return reflect.Value{}, &fault{"is not a whole number", "write digits such as 3"}
		}
		return reflect.ValueOf(n), nil
	case reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !plainNumber.MatchString(text) || math.IsInf(x, 0) {
			return reflect.Value{}, &fault{"is not a number", "write digits such as 95 or 99.9"}
		}
		return reflect.ValueOf(x), nil
	default:
		return reflect.ValueOf(text), nil
	}
}

// wholeNumber has no leading zero, which some readers of YAML take for octal.
var wholeNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// form holds text against the rule's words or its format.
func (r rule) form(text string) *fault {
	if r.enum != nil {
		if !slices.Contains(r.enum, text) {
			return &fault{"is not valid here", suggest(text, r.enum)}
		}
		return nil
	}
	f := formats[r.format]
	if !utf8.ValidString(text) || utf8.RuneCountInString(text) > f.most || !f.re.MatchString(text) {
		return &fault{f.is, f.fix}
	}
	return nil
}

// within holds a number against the rule's range.
func (r rule) within(t reflect.Type, v reflect.Value) *fault {
	x, ok := number(v)
	if !ok {
		return nil
	}
	bound := func(text string) float64 {
		b, _ := parse(t, text)
		n, _ := number(b)
		return n
	}
	fix := "write a value " + r.span()
	switch {
	case r.min != "" && x < bound(r.min):
		return &fault{"is below " + r.min, fix}
	case r.above != "" && x <= bound(r.above):
		return &fault{"is not above " + r.above, fix}
	case r.max != "" && x > bound(r.max):
		return &fault{"is above " + r.max, fix}
	case r.below != "" && x >= bound(r.below):
		return &fault{"is not below " + r.below, fix}
	}
	return nil
}

func number(v reflect.Value) (float64, bool) {
	switch {
	case v.CanInt():
		return float64(v.Int()), true
	case v.CanFloat():
		return v.Float(), true
	default:
		return 0, false
	}
}

// span names the rule's range.
func (r rule) span() string {
	var parts []string
	for _, bound := range [][2]string{{"of at least ", r.min}, {"above ", r.above}, {"of at most ", r.max}, {"below ", r.below}} {
		if bound[1] != "" {
			parts = append(parts, bound[0]+bound[1])
		}
	}
	return strings.Join(parts, " and ")
}

// format is a form that text must have.
type format struct {
	re      *regexp.Regexp
	most    int // characters
	is, fix string
}

// formats are what the tags format and keys name; "" is any text of one line.
var formats = map[string]format{
	"": {regexp.MustCompile(`^[^\x00-\x20\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\x9f])?$`), 256,
		"is empty, longer than 256 characters or has a control character or an outer space", "write plain text"},
	"description": {regexp.MustCompile(`^[^\x00-\x09\x0b-\x1f\x7f-\x9f]+$`), 1050,
		"is empty, longer than 1050 characters or has a control character", "write a few sentences"},
	"name": {regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$`), 48,
		"is not a name", "write up to 48 lower-case letters, digits and dashes, a letter or digit at both ends"},
	"label": {regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?$`), 63,
		"is not a label's name", "write up to 63 letters, digits, dots, dashes and underscores, a letter or digit at both ends"},
	"annotation": {regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?$`), 317,
		"is not an annotation's name", "write a label's name, with a DNS name and a slash before it if it needs one"},
	"header": {regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"), 128,
		"is not a header's name", "write a name such as x-workload"},
}

// secretHeaders hold what must not stand in a contract.
var secretHeaders = []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "Api-Key"}

// checkKey holds a map's key against its format and returns how it is kept.
func (r rule) checkKey(key string) (string, *fault) {
	if f := (rule{format: r.keys}).form(key); f != nil {
		return "", f
	}
	if r.keys != "header" {
		return key, nil
	}
	name := textproto.CanonicalMIMEHeaderKey(key)
	if slices.Contains(secretHeaders, name) {
		return "", &fault{"is a header with a secret in it", "match by tenant instead"}
	}
	return name, nil
}

// mistyped refuses what YAML reads as another type than the field has, so that
// the schema and the decoder agree.
func mistyped(n *yaml.Node, t reflect.Type) *fault {
	tag := n.ShortTag()
	isNumber := tag == "!!int" || tag == "!!float"
	switch {
	case t == reflect.TypeFor[Share]():
		if tag != "!!str" && !isNumber {
			return &fault{"is not a share", "write per cent such as 30%, or a number such as 0.3"}
		}
	case t == reflect.TypeFor[Duration](): // a number has its own message
		if tag != "!!str" && !isNumber {
			return &fault{"is not a duration", "write a duration such as 320ms, 1.2s or 30d"}
		}
	case t.Kind() == reflect.String && tag != "!!str":
		return &fault{"is " + kindOf(n) + ", not text", "write it in quotes"}
	case t.Kind() == reflect.Int && tag != "!!int":
		return &fault{"is not a whole number", "write digits such as 3, without quotes"}
	case t.Kind() == reflect.Float64 && !isNumber:
		return &fault{"is not a number", "write digits such as 95 or 99.9, without quotes"}
	case t.Kind() == reflect.Bool && tag != "!!bool":
		return &fault{"is not a boolean", "write true or false, without quotes"}
	}
	return nil
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
	case "!!null":
		return "nothing"
	default:
		return "of another type"
	}
}
