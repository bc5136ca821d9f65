package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap/zapcore"
)

// Log keeps the last lines of the event log, from level info on, for GET
// /events. It is a zapcore.Core, to stand beside the one that writes. It is safe
// for concurrent use.
type Log struct {
	zapcore.LevelEnabler
	kept *kept
	with []zapcore.Field
}

type kept struct {
	mu    sync.Mutex
	lines []Event // a ring once it is full
	size  int
	last  uint64
}

// maxField bounds the value of a field, in bytes.
const maxField = 1 << 10

// NewLog returns a log that keeps size lines.
func NewLog(size int) *Log {
	return &Log{LevelEnabler: zapcore.InfoLevel, kept: &kept{size: size}}
}

// With is a log whose lines have further fields.
func (l *Log) With(fields []zapcore.Field) zapcore.Core {
	return &Log{LevelEnabler: l.LevelEnabler, kept: l.kept, with: append(l.with[:len(l.with):len(l.with)], fields...)}
}

// Check takes part in a line from level info on.
func (l *Log) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if l.Enabled(e.Level) {
		return c.AddCore(e, l)
	}
	return c
}

// Write keeps a line.
func (l *Log) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(l.with[:len(l.with):len(l.with)], fields...) {
		f.AddTo(enc)
	}
	line := Event{At: e.Time, Level: e.Level.String(), Message: e.Message, Fields: make(map[string]string, len(enc.Fields))}
	for name, v := range enc.Fields {
		line.Fields[name] = text(v)
	}
	l.kept.add(line)
	return nil
}

// Sync has nothing to do.
func (l *Log) Sync() error { return nil }

func (k *kept) add(e Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last++
	e.Seq = k.last
	if len(k.lines) < k.size {
		k.lines = append(k.lines, e)
		return
	}
	k.lines[(e.Seq-1)%uint64(k.size)] = e
}

// text is a field's value as people read it, and no longer than that: numbers
// with six digits, what is made of parts as JSON.
func text(v any) string {
	s := ""
	switch v := v.(type) {
	case []byte:
		s = string(v)
	case time.Time:
		s = v.Format(time.RFC3339Nano)
	case float64:
		s = number(v)
	case float32:
		s = number(float64(v))
	default:
		s = whole(v)
	}
	if len(s) > maxField {
		s = strings.ToValidUTF8(s[:maxField], "") + "…"
	}
	return s
}

// number keeps six digits, and all of those before the point.
func number(x float64) string {
	if math.Abs(x) >= 1e6 && math.Abs(x) < 1e15 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 6, 64)
}

// whole is a value that may have parts.
func whole(v any) string {
	switch reflect.ValueOf(v).Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice, reflect.Array, reflect.Pointer:
	default:
		return fmt.Sprint(v)
	}
	text, err := json.Marshal(v)
	if err != nil { // a number that JSON does not know
		return fmt.Sprint(v)
	}
	var parts any
	read := json.NewDecoder(bytes.NewReader(text))
	read.UseNumber()
	if err := read.Decode(&parts); err != nil {
		return string(text)
	}
	var out bytes.Buffer
	write := json.NewEncoder(&out)
	write.SetEscapeHTML(false)
	if err := write.Encode(rounded(parts)); err != nil {
		return string(text)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// rounded is decoded JSON with the numbers as number has them.
func rounded(v any) any {
	switch v := v.(type) {
	case json.Number:
		if x, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), ".eE") {
			return json.Number(number(x))
		}
	case []any:
		for i := range v {
			v[i] = rounded(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = rounded(v[name])
		}
	}
	return v
}

// after returns lines numbered above since, the oldest first: the first limit of them, or
// if newest is true the last.
func (l *Log) after(since uint64, limit int, newest bool) Events {
	l.kept.mu.Lock()
	defer l.kept.mu.Unlock()
	k := l.kept
	from := max(since, k.last-uint64(len(k.lines)))
	to := k.last
	if n := uint64(limit); to > from && to-from > n {
		if newest {
			from = to - n
		} else {
			to = from + n
		}
	}
	out := Events{Events: []Event{}, Next: max(since, to)}
	for seq := from + 1; seq <= to; seq++ {
		out.Events = append(out.Events, k.lines[(seq-1)%uint64(k.size)])
	}
	return out
}
