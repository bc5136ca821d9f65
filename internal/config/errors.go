package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is one thing that is wrong with a configuration. It quotes what the
// file says, never what the environment or a credential file held.
type Error struct {
	File    string // as given to Load or Parse; empty for a flag
	Line    int    // from 1; 0 when no single line is at fault
	Column  int    // from 1; 0 when only the line is told
	Field   string // such as models[0].backends[1].url; may be empty
	Problem string
	Fix     string // what to write instead; may be empty
}

// Error reads "config.yaml:12: models[0].backends[1].url: problem; fix".
func (e Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		if e.Column > 0 {
			fmt.Fprintf(&b, ":%d", e.Column)
		}
		b.WriteString(": ")
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Problem)
	if e.Fix != "" {
		b.WriteString("; " + e.Fix)
	}
	return b.String()
}

// Errors is everything that is wrong with a configuration, in order of lines.
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

// err returns the errors in order of lines, or nil when there is none.
func (e Errors) err() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b Error) int { return cmp.Compare(a.Line, b.Line) })
	return e
}

// fault is what one value is or does wrong, said after the value: "is not a
// duration". A quiet fault is reported without the value, which may hold a
// secret.
type fault struct {
	is, fix string
	quiet   bool
}

// about puts the value in front of the fault.
func (f *fault) about(raw string) string {
	if f.quiet {
		return "the value " + f.is
	}
	return strconv.Quote(clip(raw)) + " " + f.is
}

// clip keeps a message readable when the value is not.
func clip(s string) string {
	const most = 80
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "..."
}
