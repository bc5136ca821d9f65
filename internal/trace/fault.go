package trace

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Error is what is wrong with a trace file.
type Error struct {
	File         string
	Line, Column int    // from 1, the column in bytes; 0 if none is at fault
	Field        string // may be empty
	Problem, Fix string
}

// Error reads "file:line:column: field: problem; fix".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Column > 0 {
		fmt.Fprintf(&b, ":%d", e.Column)
	}
	b.WriteString(": ")
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Problem)
	if e.Fix != "" {
		b.WriteString("; " + e.Fix)
	}
	return b.String()
}

// clip keeps a message readable when what it quotes is not.
func clip(s string) string {
	const most = 60
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "..."
}
