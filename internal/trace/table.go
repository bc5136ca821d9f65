package trace

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// table reads a CSV file with a header, one row at a time, columns by name. The
// first value that is wrong is kept and ends the reading.
type table struct {
	file string
	csv  *csv.Reader
	at   []int // where each wanted column is
	name []string
	row  []string
	err  error
}

// rows hands each row to use until it returns false. More columns than wanted
// may be there, in any order.
func (f file) rows(columns []string, use func(*table) bool) error {
	return f.read(func(r *bufio.Reader) error {
		t := &table{file: f.name, csv: csv.NewReader(r), name: columns}
		t.csv.ReuseRecord = true
		t.csv.TrimLeadingSpace = true
		if t.next() {
			t.header()
		}
		for t.next() {
			more := use(t)
			if t.err != nil || !more {
				break
			}
		}
		if errors.Is(t.err, io.EOF) {
			return nil
		}
		return t.err
	})
}

func (t *table) next() bool {
	if t.err != nil {
		return false
	}
	if t.row, t.err = t.csv.Read(); t.err == nil {
		return true
	}
	var bad *csv.ParseError
	if errors.As(t.err, &bad) {
		fix := "quote the field, or double the quotes in it"
		if errors.Is(bad, csv.ErrFieldCount) {
			fix = "give as many fields as the header has"
		}
		t.err = &Error{File: t.file, Line: bad.Line, Column: bad.Column, Problem: bad.Err.Error(), Fix: fix}
	} else if !errors.Is(t.err, io.EOF) {
		t.err = fmt.Errorf("trace %s: %w", t.file, t.err)
	}
	return false
}

func (t *table) header() {
	for _, want := range t.name {
		i := slices.IndexFunc(t.row, func(have string) bool { return strings.EqualFold(strings.TrimSpace(have), want) })
		if i < 0 {
			t.err = &Error{File: t.file, Line: 1, Field: want, Problem: "no such column", Fix: "the header needs " + strings.Join(t.name, ", ")}
			return
		}
		t.at = append(t.at, i)
	}
}

// text is the value of the i-th wanted column.
func (t *table) text(i int) string { return strings.TrimSpace(t.row[t.at[i]]) }

// fault says what is wrong with the i-th wanted column of this row.
func (t *table) fault(i int, is, fix string) {
	if t.err != nil {
		return
	}
	line, column := t.csv.FieldPos(t.at[i])
	t.err = &Error{File: t.file, Line: line, Column: column, Field: t.name[i],
		Problem: strconv.Quote(clip(t.text(i))) + " " + is, Fix: fix}
}

// tokens is a count of at least so many.
func (t *table) tokens(i, least int) int {
	n, err := strconv.Atoi(t.text(i))
	switch {
	case err != nil:
		t.fault(i, "is not a whole number", "give a count of tokens")
	case n < least || n > maxTokens:
		t.fault(i, "is out of range", fmt.Sprintf("give %d to %d tokens", least, maxTokens))
	default:
		return n
	}
	return least
}

// number is one of [0, most].
func (t *table) number(i int, most float64) float64 {
	x, err := strconv.ParseFloat(t.text(i), 64)
	switch {
	case err != nil || math.IsNaN(x):
		t.fault(i, "is not a number", "give one such as 0.5")
	case x < 0 || x > most:
		t.fault(i, "is out of range", fmt.Sprintf("give 0 to %g", most))
	default:
		return x
	}
	return 0
}
