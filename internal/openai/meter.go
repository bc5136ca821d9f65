package openai

import "bytes"

// Meter reads the answer of an engine beside the copy: it finds the events of
// a stream, the first token, usage, finish reasons, errors and the end. It
// holds no input, allocates nothing per event, and is not safe for concurrent
// use. The zero value is not usable; call Reset first.
type Meter struct {
	Tally

	scan scanner
	line lineState
	cr   bool // the last byte was a CR; an LF after it belongs to it

	field      [8]byte // name of the current line's field
	fieldLen   int
	head       [8]byte // first bytes of the event's data
	headLen    int
	name       [16]byte // value of the event's event field
	nameLen    int
	dataLines  int
	kind       eventKind
	sawToken   TokenKind
	gotChoices int
	choiceAt   int64
	choiceEnd  bool
	hasUsage   bool
	deltaLen   int
	deltaKind  TokenKind
	failed     bool
	started    bool
}

// Tally is what a Meter has read so far.
type Tally struct {
	Events   int // events with data, [DONE] and errors included
	Chunks   int // events that carried at least one token
	Unparsed int // events whose data was not one JSON value

	// FirstToken is the kind of the first token; NoToken before it.
	FirstToken TokenKind

	// Usage is the last usage seen; HasUsage says whether any was.
	Usage    Usage
	HasUsage bool

	// FinishReason is the last finish reason: stop, length, tool_calls, ...
	FinishReason string

	// Done says that [DONE] was seen; Terminal that the API's own last event
	// was (response.completed, message_stop).
	Done     bool
	Terminal bool

	// Aborted says that the engine gave up on the answer (finish reason
	// abort or error, response.failed).
	Aborted bool

	// Failed says that an error event was seen; ErrorCode and ErrorStatus
	// are its code, as text and, where it is one, as an HTTP status.
	Failed      bool
	ErrorCode   string
	ErrorStatus int
	ErrorType   string

	seen, finished uint64 // choices by index, the first 64
}

// Usage is a usage object of an answer, in tokens.
type Usage struct {
	Prompt, Completion int
	Cached             int // prompt tokens that came from the prefix cache
	Reasoning          int // completion tokens spent on reasoning
}

// TokenKind is what a token belongs to.
type TokenKind uint8

// The kinds of tokens.
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

// Event is what one event of a stream means for the relay.
type Event struct {
	Data      bool // it has a data field; otherwise a comment or keep-alive
	Token     bool // it carries at least one token
	UsageOnly bool // a usage chunk without choices
	Failed    bool // an error event
	Aborted   bool // it says that the engine gave up
	Done      bool // [DONE]
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
	deltaEvent
	completedEvent
	failedEvent
	errorEvent
)

// Reset makes the meter ready for a new answer.
func (m *Meter) Reset() {
	*m = Meter{}
	m.scan.sink = m
	m.startEvent()
}

// Complete reports whether the stream reached an honest end: [DONE], the
// API's own last event, or a finish reason for every choice.
func (m *Meter) Complete() bool {
	return m.Done || m.Terminal || (m.seen != 0 && m.finished == m.seen)
}

// Partial reports whether bytes of an unfinished event were read.
func (m *Meter) Partial() bool { return m.started }

// Next reads p up to the end of the first event that ends in it. It returns
// how many bytes it read and whether an event ended; without one it has read
// all of p, and the event goes on in the next call.
func (m *Meter) Next(p []byte) (n int, ev Event, ended bool) {
	for n < len(p) {
		switch m.line {
		case inData:
			n += m.data(p[n:])
			continue
		case inOther:
			if i := bytes.IndexAny(p[n:], "\r\n"); i < 0 {
				return len(p), Event{}, false
			} else {
				n += i
			}
		}
		c := p[n]
		n++
		if m.cr {
			m.cr = false
			if c == '\n' {
				continue
			}
		}
		if c == '\r' || c == '\n' {
			m.cr = c == '\r'
			if m.line == lineStart && m.started {
				if m.cr && n < len(p) && p[n] == '\n' {
					m.cr = false
					n++
				}
				return n, m.endEvent(), true
			}
			m.endLine()
			continue
		}
		m.started = true
		m.byteOfLine(c)
	}
	return n, Event{}, false
}

// End treats the end of the input as the end of the event it may be in: a
// stream's last event need not be followed by a blank line.
func (m *Meter) End() (ev Event, ended bool) {
	if !m.started {
		return Event{}, false
	}
	m.endLine()
	return m.endEvent(), true
}

func (m *Meter) byteOfLine(c byte) {
	switch m.line {
	case lineStart:
		m.fieldLen = 0
		m.line = inField
		m.inFieldByte(c)
	case inField:
		m.inFieldByte(c)
	case afterColon:
		m.startValue()
		if c != ' ' { // one space after the colon is optional
			m.valueByte(c)
		}
	case inName:
		m.valueByte(c)
	}
}

func (m *Meter) inFieldByte(c byte) {
	if c == ':' {
		if m.fieldLen == 0 {
			m.line = inOther // a comment
			return
		}
		m.line = afterColon
		return
	}
	if m.fieldLen < len(m.field) {
		m.field[m.fieldLen] = c
	}
	m.fieldLen++
}

// startValue stands before a field's value. The data lines of one event are
// one text, joined by line feeds, which JSON takes for white space.
func (m *Meter) startValue() {
	switch string(m.field[:min(m.fieldLen, len(m.field))]) {
	case "data":
		m.dataLines++
		m.line = inData
	case "event":
		m.nameLen = 0
		m.line = inName
	default:
		m.line = inOther
	}
}

func (m *Meter) valueByte(c byte) {
	switch m.line {
	case inData:
		m.dataBytes([]byte{c})
	case inName:
		if m.nameLen < len(m.name) {
			m.name[m.nameLen] = c
			m.nameLen++
		}
	}
}

// data reads value bytes of a data line up to the line's end.
func (m *Meter) data(p []byte) int {
	end := bytes.IndexByte(p, '\n')
	if end < 0 {
		end = len(p)
	}
	if cr := bytes.IndexByte(p[:end], '\r'); cr >= 0 {
		end = cr
	}
	m.dataBytes(p[:end])
	if end < len(p) {
		m.cr = p[end] == '\r'
		m.endLine()
		return end + 1
	}
	return end
}

func (m *Meter) dataBytes(p []byte) {
	if m.headLen < len(m.head) {
		m.headLen += copy(m.head[m.headLen:], p)
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
	m.line, m.started = lineStart, false
	m.headLen, m.nameLen, m.dataLines = 0, 0, 0
	m.kind, m.sawToken = otherEvent, NoToken
	m.gotChoices, m.choiceAt, m.choiceEnd, m.hasUsage = -1, 0, false, false
	m.deltaLen, m.deltaKind, m.failed = 0, NoToken, false
}

// endEvent judges the event just read and makes ready for the next.
func (m *Meter) endEvent() Event {
	defer m.startEvent()
	if m.dataLines == 0 {
		return Event{}
	}
	m.Events++
	ev := Event{Data: true}
	if bytes.HasPrefix(m.head[:m.headLen], []byte("[DONE]")) {
		m.Done, ev.Done = true, true
		return ev
	}
	if m.scan.inNumber {
		m.scan.endNumber()
	}
	if !m.scan.whole() && m.headLen > 0 {
		m.Unparsed++
	}
	m.judge(&ev)
	return ev
}

func (m *Meter) judge(ev *Event) {
	if m.kind == deltaEvent && m.deltaLen > 0 {
		m.sawToken = max(m.sawToken, m.deltaKind)
	}
	if m.sawToken != NoToken {
		ev.Token = true
		m.Chunks++
		if m.FirstToken == NoToken {
			m.FirstToken = m.sawToken
		}
	}
	if m.failed || m.kind == errorEvent || string(m.name[:m.nameLen]) == "error" {
		ev.Failed, m.Failed = true, true
	}
	switch m.kind {
	case completedEvent:
		m.Terminal = true
	case failedEvent:
		m.Terminal, m.Aborted = true, true
	}
	ev.Aborted = m.Aborted
	ev.UsageOnly = m.hasUsage && m.gotChoices == 0 && !ev.Token && !ev.Failed
}

// The scanner's reports.

func (m *Meter) enter(n node) {
	switch n {
	case choices:
		m.gotChoices = 0
	case choice:
		m.gotChoices++
		m.choiceAt, m.choiceEnd = 0, false
	case usage:
		m.hasUsage, m.HasUsage = true, true
		m.Usage.Reasoning = 0
	case failure:
		m.failed = true
	}
}

func (m *Meter) leave(n node) {
	if n != choice {
		return
	}
	bit := uint64(1) << (uint64(m.choiceAt) & 63)
	m.seen |= bit
	if m.choiceEnd {
		m.finished |= bit
	}
}

func (m *Meter) token(n node) {
	switch n {
	case reasonText:
		m.sawToken = max(m.sawToken, ReasoningToken)
	case toolPart:
		m.sawToken = max(m.sawToken, ToolToken)
	default:
		m.sawToken = ContentToken
	}
}

// text is a string value of the given length; s holds its first bytes.
func (m *Meter) text(n node, s []byte, length int) {
	if length == 0 {
		return
	}
	switch n {
	case tokenText, contentText, reasonText:
		m.token(n)
	case toolParts: // partial_json of the Messages API
		m.token(toolPart)
	case delta: // Responses: the event's type says of what
		m.deltaLen = length
	case finish:
		m.finish(s)
	case failure, failureType:
		m.failed = true
		m.ErrorType = intern(s)
	case failureCode:
		m.ErrorCode = intern(s)
		m.ErrorStatus = statusOf(s)
	case eventType:
		m.kind, m.deltaKind = kindOf(s)
	case responseStatus:
		m.status(s)
	}
}

func (m *Meter) finish(s []byte) {
	m.choiceEnd = true
	m.FinishReason = intern(s)
	if m.FinishReason == "abort" || m.FinishReason == "error" {
		m.Aborted = true
	}
}

// status is the state a Responses object reports.
func (m *Meter) status(s []byte) {
	switch string(s) {
	case "completed":
		m.FinishReason = "stop"
	case "incomplete":
		m.FinishReason = "length"
	case "failed", "cancelled":
		m.FinishReason = "error"
	}
}

func (m *Meter) count(n node, v int64) {
	switch n {
	case choiceIndex:
		m.choiceAt = v
	case promptTokens:
		m.Usage.Prompt = int(v)
	case completionTokens:
		m.Usage.Completion = int(v)
	case cachedTokens:
		m.Usage.Cached = int(v)
	case reasoningTokens:
		m.Usage.Reasoning = int(v)
	case failureCode:
		if v >= 100 && v < 600 {
			m.ErrorStatus = int(v)
		}
	}
}

// kindOf reads the type of an event of the Responses or Messages API.
func kindOf(s []byte) (eventKind, TokenKind) {
	switch string(s) {
	case "error":
		return errorEvent, NoToken
	case "response.completed", "response.incomplete", "message_stop":
		return completedEvent, NoToken
	case "response.failed":
		return failedEvent, NoToken
	}
	if !bytes.HasSuffix(s, []byte(".delta")) {
		return otherEvent, NoToken
	}
	switch {
	case bytes.Contains(s, []byte("reasoning")):
		return deltaEvent, ReasoningToken
	case bytes.Contains(s, []byte("arguments")), bytes.Contains(s, []byte("_call")):
		return deltaEvent, ToolToken
	}
	return deltaEvent, ContentToken
}

func statusOf(code []byte) int {
	switch string(code) {
	case "rate_limit_exceeded", "429":
		return 429
	case "server_error", "internal_error", "500":
		return 500
	case "503":
		return 503
	}
	return 0
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
	case "abort":
		return "abort"
	case "error":
		return "error"
	}
	return string(s)
}

// ReadJSON reads a whole unstreamed answer.
func (m *Meter) ReadJSON(p []byte) {
	m.dataBytes(p)
	m.dataLines = 1
	if m.scan.inNumber {
		m.scan.endNumber()
	}
	if !m.scan.whole() {
		m.Unparsed++
	}
	m.Failed = m.failed
}
