package sla

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is one thing that is wrong with a contract file.
type Error struct {
	File         string // as given to Load or Parse
	Line, Column int    // from 1
	Field        string // such as spec.objectives[0].threshold; may be empty
	Problem      string
	Fix          string // what to write instead
}

// Error reads "chat.yaml:12:7: spec.objectives[0].threshold: problem; fix".
func (e Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: ", e.File, e.Line, e.Column)
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Problem)
	if e.Fix != "" {
		b.WriteString("; " + e.Fix)
	}
	return b.String()
}

// Errors is everything that is wrong with some contract files, in order of
// files and lines.
type Errors []Error

// Error prints one error a line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find a single Error.
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i, one := range e {
		all[i] = one
	}
	return all
}

// err returns the errors in order, or nil when there is none.
func (e Errors) err() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b Error) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return e
}

// fault is what one value is or does wrong, said after the value: "is not a
// duration".
type fault struct{ is, fix string }

// about puts the value in front of the fault.
func (f *fault) about(raw string) string { return strconv.Quote(clip(raw)) + " " + f.is }

// clip keeps a message readable when the value is not.
func clip(s string) string {
	const most = 80
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "..."
}

// suggest says which of the valid words is meant, or lists them.
func suggest(word string, valid []string) string {
	plain := strings.NewReplacer("-", "", "_", "", " ", "").Replace
	for _, v := range valid {
		a, b := plain(strings.ToLower(clip(word))), plain(strings.ToLower(v))
		if a == b || len(a) > 3 && oneEdit(a, b) {
			return fmt.Sprintf("did you mean %q?", v)
		}
	}
	return "write one of " + strings.Join(valid, ", ")
}

// oneEdit tells whether one byte put in, left out, replaced or swapped with its
// neighbour makes b of a.
func oneEdit(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	if i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] {
		return a[i+2:] == b[i+2:]
	}
	return i == len(a) || a[i+1:] == b[i+1:]
}
