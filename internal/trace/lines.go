package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxLine is the longest line of JSON that is read.
const maxLine = 16 << 20

// lines reads a file of JSON lines. Like table it keeps the first fault.
type lines struct {
	file string
	line int
	text []byte
	err  error
}

// lines hands each line that is not blank to use until it returns false.
func (f file) lines(use func(*lines) bool) error {
	return f.read(func(r *bufio.Reader) error {
		l := &lines{file: f.name}
		scan := bufio.NewScanner(r)
		scan.Buffer(nil, maxLine)
		for scan.Scan() {
			l.line++
			if l.text = scan.Bytes(); len(bytes.TrimSpace(l.text)) == 0 {
				continue
			}
			more := use(l)
			if l.err != nil || !more {
				return l.err
			}
		}
		if errors.Is(scan.Err(), bufio.ErrTooLong) {
			return &Error{File: f.name, Line: l.line + 1, Problem: "line is too long", Fix: fmt.Sprintf("keep it under %d MiB", maxLine>>20)}
		}
		if scan.Err() != nil {
			return fmt.Errorf("trace %s: %w", f.name, scan.Err())
		}
		return nil
	})
}

// decode reads the line into v.
func (l *lines) decode(v any) {
	err := json.Unmarshal(l.text, v)
	if err == nil || l.err != nil {
		return
	}
	e := &Error{File: l.file, Line: l.line, Problem: "is not valid JSON", Fix: "correct or delete the line"}
	if wrong := (*json.SemanticError)(nil); errors.As(err, &wrong) {
		e.Column, e.Field = int(wrong.ByteOffset)+1, path(wrong.JSONPointer)
		e.Problem = "is a " + wrong.JSONKind.String() + " that does not fit"
		if wrong.GoType != nil {
			e.Fix = "give a value of type " + wrong.GoType.String()
		}
	}
	if broken := (*jsontext.SyntacticError)(nil); errors.As(err, &broken) {
		e.Column, e.Field = int(broken.ByteOffset)+1, path(broken.JSONPointer)
	}
	l.err = e
}

func path(p jsontext.Pointer) string {
	return clip(strings.ReplaceAll(strings.TrimPrefix(string(p), "/"), "/", "."))
}

// fault says what is wrong with a field of this line.
func (l *lines) fault(field, problem, fix string) {
	if l.err != nil {
		return
	}
	at := bytes.Index(l.text, []byte(`"`+field+`"`)) + 1
	l.err = &Error{File: l.file, Line: l.line, Column: max(at, 1), Field: field, Problem: problem, Fix: fix}
}

// tokens checks a count of tokens.
func (l *lines) tokens(field string, n, least int) {
	if n < least || n > maxTokens {
		l.fault(field, fmt.Sprintf("%d is out of range", n), fmt.Sprintf("give %d to %d tokens", least, maxTokens))
	}
}
