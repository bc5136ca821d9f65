package top

import (
	"cmp"
	"slices"
	"strings"
)

// column is a column of a table.
type column struct {
	title string
	right bool // numbers stand right
	rank  int  // the highest goes first where width is short; 0 stays
	flex  bool // may be cut to shortNote before any other column goes
}

// table is rows under titles, cut to what fits.
type table struct {
	columns []column
	rows    []row
}

// row is a row; where not all fit, those of the highest alarm stay.
type row struct {
	cells []span // as many as columns
	alarm mood   // plain, warn or bad
}

// How far the first column, a name, and a flexible one may shrink.
const (
	shortName = 12
	shortNote = 16
)

// lines is the table in a rectangle. Without room for two lines there is none.
func (t *table) lines(size Size) []line {
	if size.Height < 2 || len(t.rows) == 0 {
		return nil
	}
	rows, left := t.rows, 0
	if len(rows) > size.Height-1 {
		keep := max(size.Height-2, 1)
		rows, left = worst(rows, keep), len(rows)-keep
	}
	widths := t.fit(rows, size.Width)
	title := row{}
	for _, c := range t.columns {
		title.cells = append(title.cells, in(faint, "%s", c.title))
	}
	out := []line{t.line(title, nil, widths)}
	var above []span
	for _, r := range rows {
		out = append(out, t.line(r, above, widths))
		above = r.cells
	}
	more := in(faint, "  … %d more", left)
	switch {
	case left > 0 && len(out) < size.Height:
		out = append(out, line{more})
	case left > 0: // one row, the worst
		out[0] = append(out[0], more)
	}
	return out
}

// worst is n rows of the highest alarm, in their order.
func worst(rows []row, n int) []row {
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rows[b].alarm, rows[a].alarm) })
	kept := slices.Sorted(slices.Values(order[:n]))
	out := make([]row, 0, n)
	for _, i := range kept {
		out = append(out, rows[i])
	}
	return out
}

// gap is between columns.
const gap = 2

// fit gives every column its width; 0 for one that is left out. First the flexible
// ones shrink, then columns go by rank, then names shrink; what is spare in the
// end goes back.
func (t *table) fit(rows []row, width int) []int {
	widths := make([]int, len(t.columns))
	full := make([]int, len(t.columns))
	spare := width
	for i, c := range t.columns {
		full[i] = cells(c.title)
		for _, r := range rows {
			full[i] = max(full[i], cells(r.cells[i].text))
		}
		widths[i] = full[i]
		if c.flex {
			widths[i] = min(full[i], shortNote)
		}
		spare -= widths[i] + gap
	}
	for spare < 0 {
		i := t.highest(widths)
		if i < 0 {
			break
		}
		spare += widths[i] + gap
		widths[i] = 0
	}
	if spare < 0 {
		widths[0] = max(widths[0]+spare, min(widths[0], shortName))
	}
	for i, c := range t.columns {
		if c.flex && spare > 0 {
			more := min(full[i]-widths[i], spare)
			widths[i], spare = widths[i]+more, spare-more
		}
	}
	return widths
}

// highest is the column of the highest rank that is still there, or -1.
func (t *table) highest(widths []int) int {
	found := -1
	for i, c := range t.columns {
		if c.rank > 0 && widths[i] > 0 && (found < 0 || c.rank > t.columns[found].rank) {
			found = i
		}
	}
	return found
}

// line lays out a row. A name that is the same as above is not repeated.
func (t *table) line(r row, above []span, widths []int) line {
	var out line
	for i, c := range t.columns {
		if widths[i] == 0 {
			continue
		}
		cell := r.cells[i]
		if i == 0 && above != nil && above[0].text == cell.text {
			cell.text = ""
		}
		space := span{text: strings.Repeat(" ", gap)}
		out = append(out, space, span{pad(clip(cell.text, widths[i]), widths[i], c.right), cell.mood})
	}
	return out
}
