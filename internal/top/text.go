package top

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// mood is what a piece of text means, and so the colour it gets. Louder ones are
// higher.
type mood uint8

const (
	plain mood = iota
	faint
	strong
	good
	warn
	bad
)

// codes are SGR parameters: the terminal's own sixteen colours, which its user
// chose to be readable.
var codes = [...]string{faint: "2", strong: "1", good: "32", warn: "33", bad: "1;31"}

// span is text of one mood, without anything that a terminal would obey.
type span struct {
	text string
	mood mood
}

// line is a line of the frame, of any length.
type line []span

// in makes a span. All text of a frame comes through here: it is from the
// network.
func in(m mood, format string, args ...any) span { return span{clean(fmt.Sprintf(format, args...)), m} }

// clean keeps what takes one or two cells of a line: no control or format
// characters, no marks that stack on others.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r), unicode.Is(unicode.M, r):
			return -1
		}
		return r
	}, s)
}

// cells is how many cells of a terminal a clean string takes.
func cells(s string) int {
	n := 0
	for _, r := range s {
		n += cellsOf(r)
	}
	return n
}

func cellsOf(r rune) int {
	if r < 0x80 {
		return 1
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// clip is s in at most n cells; an ellipsis says that something is missing.
func clip(s string, n int) string {
	if cells(s) <= n {
		return s
	}
	used := 0
	for i, r := range s {
		if used += cellsOf(r); used > n-1 {
			return s[:i] + strings.Repeat("…", max(min(n, 1), 0))
		}
	}
	return s
}

// pad fills s up to n cells.
func pad(s string, n int, right bool) string {
	fill := strings.Repeat(" ", max(n-cells(s), 0))
	if right {
		return fill + s
	}
	return s + fill
}

// render is the line in at most n cells.
func (l line) render(n int, style Style) string {
	var b strings.Builder
	for _, s := range l {
		text := clip(s.text, n)
		n -= cells(text)
		b.WriteString(style.paint(s.mood, text))
		if text != s.text {
			break
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// paint colours text, if the style has colours.
func (s Style) paint(m mood, text string) string {
	if !s.Colour || m == plain || strings.TrimSpace(text) == "" {
		return text
	}
	return "\x1b[" + codes[m] + "m" + text + "\x1b[0m"
}
