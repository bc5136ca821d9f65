package top

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/admin"
)

// View is what a frame shows.
type View struct {
	Snapshot
	Model  string        // the only one to show; empty: all
	Lost   error         // why the last question was not answered; nil: it was
	Silent time.Duration // since the last answer
}

// Size is a rectangle of character cells; a side of 0 has no end.
type Size struct{ Width, Height int }

// Style is how a frame looks. The zero value is plain text with times in UTC.
type Style struct {
	Colour bool
	Zone   *time.Location // of the times; nil is UTC
}

const (
	endless       = 1 << 20          // cells, where a side has no end
	silence       = 10 * time.Second // without an answer, and it is said
	fewestEvents  = 5                // that room is kept for
	endlessEvents = 10               // that are shown where there is no end
	longestField  = 40               // cells of one field of an event
)

// Draw is the frame of a view: at most size.Height lines of at most size.Width
// cells, parted by line feeds. Where room is short, columns go, then rows, those
// that need a look last; how many rows are missing is said.
func Draw(v View, size Size, style Style) string {
	if size.Width <= 0 {
		size.Width = endless
	}
	if size.Height <= 0 {
		size.Height = endless
	}
	lines := v.lines(size, style)
	if len(lines) > size.Height {
		lines = append(lines[:size.Height-1], line{in(faint, "… more: a taller terminal, or --model, shows it")})
	}
	out := make([]string, 0, len(lines))
	for _, l := range lines {
		out = append(out, l.render(size.Width, style))
	}
	return strings.Join(out, "\n")
}

// section is a part of the frame that takes as many lines as it is given.
type section struct {
	want  int
	lines func(Size) []line
}

func oneLine(s span) section {
	return section{want: 1, lines: func(Size) []line { return []line{{s}} }}
}

func (v *View) lines(size Size, style Style) []line {
	out := []line{v.header(style)}
	if b := v.banner(); b != nil {
		out = append(out, b)
	}
	sections := []section{contracts(v.State.Contracts)}
	for i := range v.State.Models {
		if m := &v.State.Models[i]; v.Model == "" || m.Name == v.Model {
			sections = append(sections, model(m, v.State.Contracts))
		}
	}
	if len(sections) == 1 {
		sections = append(sections, none(v.Model))
	}
	events := section{want: 1 + min(len(v.Events), fewestEvents)}
	room, left := share(append(sections, events), size.Height-len(out))
	apart := left > len(sections)+1
	for i, s := range sections {
		if apart {
			out = append(out, nil)
		}
		out = append(out, s.lines(Size{size.Width, room[i]})...)
	}
	if apart {
		out = append(out, nil)
	}
	most := size.Height - len(out) - 1
	if size.Height == endless {
		most = endlessEvents
	}
	return append(out, v.events(most, style)...)
}

// share deals out a height: small wishes are met, large ones get equal parts.
// What is left when all are met is left.
func share(sections []section, height int) (room []int, left int) {
	room, left = make([]int, len(sections)), max(height, 0)
	for open := true; open && left > 0; {
		open = false
		for i, s := range sections {
			if room[i] < s.want && left > 0 {
				room[i]++
				left--
				open = true
			}
		}
	}
	return room, left
}

func (v *View) header(style Style) line {
	s := &v.State
	state := in(good, "ready")
	if !s.Ready {
		state = in(bad, "not ready")
	}
	if s.Draining {
		state = in(warn, "draining")
	}
	rate, inFlight, held := 0.0, 0, 0
	for i := range s.Models {
		m := &s.Models[i]
		rate += value(m.ArrivalRate)
		inFlight, held = inFlight+m.InFlight, held+m.Held
	}
	return line{
		in(strong, "Firsttoken %s", s.Version), in(plain, "  "), state,
		in(plain, "  revision %d  up %s  %.1f requests/s  %d in flight  %d held", s.Revision, age(s.UptimeS), rate, inFlight, held),
		in(faint, "  %s", clock(s.At, style)),
	}
}

// banner says that what is below is old; nil if it is not.
func (v *View) banner() line {
	if v.Lost == nil && v.Silent < silence {
		return nil
	}
	why := ""
	if v.Lost != nil {
		why = ": " + v.Lost.Error()
	}
	return line{in(bad, "NO ANSWER for %s, still asking%s", age(v.Silent.Seconds()), why)}
}

func none(name string) section {
	if name != "" {
		return oneLine(in(warn, "there is no model %s now", name))
	}
	return oneLine(in(faint, "no models: the configuration names none"))
}

// events are the newest first.
func (v *View) events(most int, style Style) []line {
	out := []line{{in(faint, "EVENTS")}}
	if len(v.Events) == 0 {
		out[0] = append(out[0], in(faint, "  none yet"))
	}
	for i := range v.Events[max(len(v.Events)-max(most, 0), 0):] {
		out = append(out, eventLine(&v.Events[len(v.Events)-1-i], style))
	}
	return out
}

func eventLine(e *admin.Event, style Style) line {
	mood := map[string]mood{"warn": warn, "error": bad}[e.Level]
	l := line{in(faint, "  %s  ", clock(e.At, style)), in(mood, "%-5s  %s", e.Level, e.Message), in(plain, " ")}
	for _, key := range fieldOrder(e.Fields) {
		l = append(l, in(faint, " %s=", key), in(plain, "%s", clip(e.Fields[key], longestField)))
	}
	return l
}

func clock(t time.Time, style Style) string {
	if style.Zone == nil {
		return t.UTC().Format(time.TimeOnly)
	}
	return t.In(style.Zone).Format(time.TimeOnly)
}

// age is a time in its two largest units.
func age(seconds float64) string {
	s := int64(max(seconds, 0))
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%dh", s/86400, s/3600%24)
}

func value(x *float64) float64 {
	if x == nil {
		return 0
	}
	return *x
}

// unknown stands for a value that nobody has.
const unknown = "-"

// number formats what is known.
func number(format string, x *float64, factor float64) string {
	if x == nil || math.IsNaN(*x) || math.IsInf(*x, 0) {
		return unknown
	}
	return fmt.Sprintf(format, factor**x)
}

func percent(x *float64) string { return number("%.1f%%", x, 100) }

// ms is a time in milliseconds with three digits or so.
func ms(x *float64) string {
	switch v := value(x); {
	case v < 10:
		return number("%.2f", x, 1)
	case v < 100:
		return number("%.1f", x, 1)
	}
	return number("%.0f", x, 1)
}
