package openai

import (
	"bytes"
	"strconv"
)

// Meter reads the answer of an engine beside the copy: it finds the events of
// a stream, the first token, usage, finish reasons, errors and the end. It
// holds no input, allocates nothing per event, and is not safe for concurrent
// use. The zero value is not usable; call Reset first.
type Meter struct {
	Tally

	scan  scanner
	line  lineState
	cr    bool // the last byte was a CR; an LF after it belongs to it
	first bool // in the first line, where a byte order mark may stand

	field    [8]byte // name of the current line's field
	fieldLen int
	frame    frame
}

// Tally is what a Meter has read so far.
type Tally struct {
	Events   int // events with data, [DONE] and errors included
	Chunks   int // events that carried at least one token
	Unparsed int // events whose data was not one JSON value

	// FirstToken is the kind of the first token; NoToken before it.
	FirstToken TokenKind

	// Usage holds the last value seen of each of its counts; HasUsage says
	// whether there was a usage object at all, HasCached whether anything was
	// said of cached tokens: many engines do not.
	Usage     Usage
	HasUsage  bool
	HasCached bool

	// FinishReason is the last finish reason: stop, length, tool_calls, ...
	FinishReason string

	// Done says that [DONE] was seen; Terminal that the API's own last event
	// was (response.completed, message_stop).
	Done     bool
	Terminal bool

	// Aborted says that the engine gave up on the answer (finish reason
	// abort or error, a failed response).
	Aborted bool

	// Failed says that an error was seen; ErrorCode, ErrorStatus and
	// ErrorType are what it said of itself: its code, as text and, where it
	// is one, as an HTTP status, and its type.
	Failed      bool
	ErrorCode   string
	ErrorStatus int
	ErrorType   string

	seen, finished uint64 // choices by index, the first 64
	beyond         bool   // a choice with a higher index was seen
}

// Usage is a usage object of an answer, in tokens.
type Usage struct {
	Prompt, Completion int
	Cached             int // prompt tokens that came from the prefix cache
	Reasoning          int // completion tokens spent on reasoning
}

// TokenKind is what a token belongs to.
type TokenKind uint8

// The kinds of tokens. An event with several counts as the first of content,
// tool call and reasoning.
const (
	NoToken TokenKind = iota
	ContentToken
	ReasoningToken
	ToolToken
)

// String is the kind's metric label.
func (k TokenKind) String() string {
	return [...]string{"none", "content", "reasoning", "tool"}[k]
}

// Event is what one event of a stream means for the relay. The zero Event is
// one without data: comments, a keep-alive, or a mere blank line.
type Event struct {
	Data      bool // it has a data field
	Token     bool // it carries at least one token
	UsageOnly bool // a usage chunk without choices
	Failed    bool // an error event
	Aborted   bool // it says that the engine gave up
	Done      bool // [DONE]
}

// frame is what is known of the event being read.
type frame struct {
	started   bool    // a byte of it was read
	head      [6]byte // first bytes of its data
	headLen   int
	name      [6]byte // value of its event field
	nameLen   int
	dataLines int

	kind    eventKind
	tokens  [ToolToken + 1]bool // by kind: it carries some
	text    bool                // it carries a text, of which kind says what it is
	choices int                 // choices in it; -1 without the key
	choice  struct {
		index    int64
		finished bool
	}
	usage, failed, aborted bool
	code, errorType        string
	status                 int
}

type lineState uint8

const (
	lineStart lineState = iota
	inField
	afterColon
	inData
	inName
	inOther
)

type eventKind uint8

const (
	otherEvent eventKind = iota
	contentDelta
	reasoningDelta
	toolDelta
	completedEvent
	failedEvent
	errorEvent
)

// token is what a delta of this kind carries.
func (k eventKind) token() TokenKind {
	switch k {
	case contentDelta:
		return ContentToken
	case reasoningDelta:
		return ReasoningToken
	case toolDelta:
		return ToolToken
	}
	return NoToken
}

// Reset makes the meter ready for a new answer.
func (m *Meter) Reset() {
	*m = Meter{first: true}
	m.scan.sink = m
	m.startEvent()
}

// Complete reports whether the stream reached an honest end: [DONE], the
// API's own last event, or a finish reason for every choice.
func (m *Meter) Complete() bool {
	return m.Done || m.Terminal || (m.seen != 0 && m.finished == m.seen && !m.beyond)
}

// Next reads p up to the end of the first event that ends in it. It returns
// how many bytes it read and whether an event ended; without one it has read
// all of p, and the event goes on in the next call. Every blank line ends an
// event, be it an empty one. An event whose last line ends with CR ends there
// and then; an LF that comes in a later call is an empty event of its own.
func (m *Meter) Next(p []byte) (n int, ev Event, ended bool) {
	for n < len(p) {
		if m.line == inData || m.line == inOther {
			k, whole := lineLength(p[n:])
			if m.line == inData {
				m.dataBytes(p[n : n+k])
			}
			if n += k; !whole {
				continue
			}
		}
		if m.line == lineStart && bytes.HasPrefix(p[n:], []byte("data: ")) {
			m.cr = false
			m.startData()
			n += len("data: ")
			continue
		}
		c := p[n]
		n++
		switch {
		case c == '\n' && m.cr:
			m.cr = false
			if !m.frame.started {
				return n, Event{}, true
			}
		case c != '\n' && c != '\r':
			m.cr = false
			m.byteOfLine(c)
		case m.line == lineStart:
			m.cr = c == '\r'
			if m.cr && n < len(p) && p[n] == '\n' {
				m.cr = false
				n++
			}
			return n, m.endEvent(), true
		default:
			m.cr = c == '\r'
			m.endLine()
		}
	}
	return n, Event{}, false
}

// lineWindow bounds how far the end of a line is looked for at once.
const lineWindow = 4 << 10

// lineLength counts the bytes before the end of the line, and reports whether
// that end is in p.
func lineLength(p []byte) (n int, whole bool) {
	p = p[:min(len(p), lineWindow)]
	if lf := bytes.IndexByte(p, '\n'); lf >= 0 {
		p, whole = p[:lf], true
	}
	if cr := bytes.IndexByte(p, '\r'); cr >= 0 {
		return cr, true
	}
	return len(p), whole
}

// End treats the end of the input as the end of the event it may be in: a
// stream's last event need not be followed by a blank line.
func (m *Meter) End() (ev Event, ended bool) {
	if !m.frame.started {
		return Event{}, false
	}
	m.endLine()
	return m.endEvent(), true
}

func (m *Meter) byteOfLine(c byte) {
	m.frame.started = true
	switch m.line {
	case lineStart:
		m.fieldLen = 0
		m.line = inField
		m.fieldByte(c)
	case inField:
		m.fieldByte(c)
	case afterColon:
		m.startValue()
		if c != ' ' { // one space after the colon is optional
			m.valueByte(c)
		}
	case inName:
		m.valueByte(c)
	}
}

func (m *Meter) fieldByte(c byte) {
	switch {
	case c == ':' && m.fieldLen == 0: // a comment
		m.endField(inOther)
	case c == ':':
		m.line = afterColon
	default:
		if m.fieldLen < len(m.field) {
			m.field[m.fieldLen] = c
		}
		m.fieldLen++
	}
}

func (m *Meter) endField(next lineState) {
	m.line, m.first = next, false
}

// fieldName is the name of the current line's field, and empty if it is none
// that matters.
func (m *Meter) fieldName() []byte {
	if m.fieldLen > len(m.field) {
		return nil
	}
	name := m.field[:m.fieldLen]
	if m.first {
		return bytes.TrimPrefix(name, []byte("\ufeff"))
	}
	return name
}

// startValue stands before a field's value.
func (m *Meter) startValue() {
	switch string(m.fieldName()) {
	case "data":
		m.startData()
	case "event":
		m.frame.nameLen = 0
		m.endField(inName)
	default:
		m.endField(inOther)
	}
}

// startData stands before the value of a data line. The data lines of one
// event are one text, joined by line feeds.
func (m *Meter) startData() {
	m.endField(inData)
	m.frame.started = true
	if m.frame.dataLines++; m.frame.dataLines > 1 {
		m.dataBytes([]byte{'\n'})
	}
}

func (m *Meter) valueByte(c byte) {
	switch m.line {
	case inData:
		m.dataBytes([]byte{c})
	case inName:
		if m.frame.nameLen < len(m.frame.name) {
			m.frame.name[m.frame.nameLen] = c
		}
		m.frame.nameLen++
	}
}

func (m *Meter) dataBytes(p []byte) {
	f := &m.frame
	if f.headLen < len(f.head) {
		f.headLen += copy(f.head[f.headLen:], p)
	}
	m.scan.feed(p)
}

func (m *Meter) endLine() {
	if m.line == afterColon || m.line == inField { // "data:" or "data" with no value
		m.startValue()
	}
	m.line = lineStart
}

func (m *Meter) startEvent() {
	m.scan.reset()
	m.line = lineStart
	m.frame = frame{choices: -1}
}

// endEvent judges the event just read and makes ready for the next.
func (m *Meter) endEvent() Event {
	ev := m.judge()
	m.startEvent()
	m.first = false
	return ev
}

// judge settles what the event means and adds it to the tally.
func (m *Meter) judge() Event {
	f := &m.frame
	if f.dataLines == 0 {
		return Event{}
	}
	m.Events++
	if string(f.head[:f.headLen]) == "[DONE]" {
		m.Done = true
		return Event{Data: true, Done: true}
	}
	if !m.scan.finish() && f.headLen > 0 {
		m.Unparsed++
	}
	ev := Event{Data: true}
	if token := f.token(); token != NoToken {
		ev.Token = true
		m.Chunks++
		if m.FirstToken == NoToken {
			m.FirstToken = token
		}
	}
	m.settle()
	ev.Failed, ev.Aborted = f.failed, f.aborted
	ev.UsageOnly = f.usage && f.choices == 0 && !ev.Token && !ev.Failed
	return ev
}

// settle adds the event's end and errors to the tally.
func (m *Meter) settle() {
	f := &m.frame
	switch f.kind {
	case completedEvent:
		m.Terminal = true
	case failedEvent:
		m.Terminal, f.aborted = true, true
	case errorEvent:
		f.failed = true
	}
	if string(f.name[:min(f.nameLen, len(f.name))]) == "error" {
		f.failed = true
	}
	m.Aborted = m.Aborted || f.aborted
	if f.failed {
		m.Failed = true
		m.ErrorCode, m.ErrorStatus, m.ErrorType = f.code, f.status, f.errorType
	}
}

// token is the kind of token that the event counts as.
func (f *frame) token() TokenKind {
	if f.text {
		f.tokens[f.kind.token()] = true
	}
	for _, kind := range [...]TokenKind{ContentToken, ToolToken, ReasoningToken} {
		if f.tokens[kind] {
			return kind
		}
	}
	return NoToken
}

// ReadJSON reads a whole unstreamed answer: its usage, finish reason and
// error. Tokens and events are not counted.
func (m *Meter) ReadJSON(p []byte) {
	m.scan.feed(p)
	if !m.scan.finish() {
		m.Unparsed++
	}
	m.settle()
	m.startEvent()
}

// The scanner's reports.

// enter is told of a container.
func (m *Meter) enter(n node) {
	f := &m.frame
	switch n {
	case choices:
		f.choices = 0
	case choice:
		f.choice.index, f.choice.finished = int64(f.choices), false
		f.choices++
	case contentMedia:
		f.tokens[ContentToken] = true
	case toolText:
		f.tokens[ToolToken] = true
	case usage:
		f.usage, m.HasUsage = true, true
	case failure:
		f.failed = true
	}
}

// leave is told of a container's end.
func (m *Meter) leave(n node) {
	if n != choice {
		return
	}
	c := m.frame.choice
	if c.index >= 64 {
		m.beyond = true
		return
	}
	m.seen |= 1 << c.index
	if c.finished {
		m.finished |= 1 << c.index
	}
}

// text is told of a string value of the given length; s holds its first bytes.
func (m *Meter) text(n node, s []byte, length int) {
	if length == 0 {
		return
	}
	f := &m.frame
	switch n {
	case contentText, contentPart, contentMedia:
		f.tokens[ContentToken] = true
	case reasoningText, reasoningPart:
		f.tokens[ReasoningToken] = true
	case toolText:
		f.tokens[ToolToken] = true
	case eventDelta: // the event's type says of what
		f.text = true
	case finish:
		m.finish(s)
	case failure:
		f.failed = true
	case failureType:
		f.errorType = intern(s)
	case failureCode:
		f.code = intern(s)
		f.addStatus(statusOf(s))
	case eventType:
		f.kind = kindOf(s)
	case responseStatus:
		m.status(s)
	}
}

// count is told of a number that isn't negative.
func (m *Meter) count(n node, v int64) {
	switch n {
	case choiceIndex:
		m.frame.choice.index = v
	case promptTokens:
		m.Usage.Prompt = int(v)
	case completionTokens:
		m.Usage.Completion = int(v)
	case cachedTokens:
		m.Usage.Cached, m.HasCached = int(v), true
	case reasoningTokens:
		m.Usage.Reasoning = int(v)
	case failure:
		m.frame.failed = m.frame.failed || v != 0
	case failureCode:
		if v != 0 {
			m.frame.code = strconv.FormatInt(v, 10)
		}
		m.frame.addStatus(v)
	case failureStatus:
		m.frame.addStatus(v)
	}
}

// word is told of true, false or null by its first letter.
func (m *Meter) word(n node, letter byte) {
	switch {
	case n == choices && letter == 'n':
		m.frame.choices = 0
	case n == failure && letter == 't':
		m.frame.failed = true
	}
}

func (m *Meter) finish(s []byte) {
	m.frame.choice.finished = true
	m.FinishReason = intern(s)
	if m.FinishReason == "abort" || m.FinishReason == "error" {
		m.frame.aborted = true
	}
}

// status is the state a Responses object reports.
func (m *Meter) status(s []byte) {
	switch string(s) {
	case "completed":
		m.FinishReason = "stop"
	case "incomplete":
		m.FinishReason = "length"
	case "cancelled":
		m.FinishReason = "cancelled"
	case "failed":
		m.FinishReason = "error"
		m.frame.aborted = true
	}
}

// addStatus takes a code that is an HTTP status.
func (f *frame) addStatus(v int64) {
	if v >= 100 && v < 600 {
		f.status = int(v)
	}
}

// kindOf reads the type of an event of the Responses or Messages API.
func kindOf(s []byte) eventKind {
	switch string(s) {
	case "error":
		return errorEvent
	case "response.completed", "response.incomplete", "message_stop":
		return completedEvent
	case "response.failed":
		return failedEvent
	}
	switch {
	case !bytes.HasSuffix(s, []byte(".delta")):
		return otherEvent
	case bytes.Contains(s, []byte("reasoning")):
		return reasoningDelta
	case bytes.Contains(s, []byte("_call")):
		return toolDelta
	}
	return contentDelta
}

// statusOf is the HTTP status that a textual code stands for; 0 for none.
func statusOf(code []byte) int64 {
	switch string(code) {
	case "rate_limit_exceeded", "insufficient_quota":
		return 429
	case "server_error", "internal_error":
		return 500
	}
	if len(code) != 3 {
		return 0
	}
	n, _ := strconv.ParseInt(string(code), 10, 64)
	return n
}

// intern turns the strings that engines send into constants, so that reading
// them allocates only for the unusual.
func intern(s []byte) string {
	switch string(s) {
	case "stop":
		return "stop"
	case "length":
		return "length"
	case "tool_calls":
		return "tool_calls"
	case "content_filter":
		return "content_filter"
	case "function_call":
		return "function_call"
	case "end_turn":
		return "end_turn"
	case "tool_use":
		return "tool_use"
	case "max_tokens":
		return "max_tokens"
	case "abort":
		return "abort"
	case "error":
		return "error"
	}
	return string(s)
}
