package openai

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// scanner follows one JSON value, whatever the splits of its text, and
// reports the few fields the meter wants. It keeps no input beyond a short
// capture and allocates nothing. It checks no more than the outline: text
// that is not JSON does no harm, it just reports little.
type scanner struct {
	sink *Meter

	open    [maxOpen]node // containers of interest, outermost first
	objects uint8         // bit i: open[i] is an object
	depth   int           // how many of open are in use
	skipped int           // containers below one that is of no interest

	at        node // what the next value is
	expectKey bool // inside an object, before a colon

	inString, inScalar bool
	isKey, wanted      bool // of the current string
	escape             uint8
	code               rune // of a \u escape
	length             int  // bytes of the current string
	capture            [captureLen]byte
	captured           int

	values int  // values begun outside every container
	odd    bool // something that JSON doesn't have
}

const (
	maxOpen    = 8
	captureLen = 48
)

// Where in an escape a string stands: nowhere, after its backslash, or before
// the last n hexadecimal digits of \u (n being 1 to 4).
const (
	noEscape       = 0
	afterBackslash = 5
)

// node is a place in the few JSON shapes that engines answer with.
type node uint8

const (
	nowhere node = iota
	root
	choices
	choice
	choiceIndex
	delta         // of a choice
	eventDelta    // of an event: an object in Messages, a string in Responses
	contentText   // a token when not empty: a string or an array of parts
	contentPart   //
	contentMedia  // a token whatever its shape
	reasoningText // like contentText, of reasoning
	reasoningPart //
	toolCalls     // an array of calls
	toolCall      // a call, or the function in it
	toolText      // a token when not empty, or when it is an object
	audio         //
	finish
	usage
	promptTokens
	completionTokens
	inputDetails
	outputDetails
	cachedTokens
	reasoningTokens
	failure
	failureCode
	failureStatus
	failureType
	eventType
	response
	responseStatus
	message
	timings
)

// child is the place of a key's value inside the container n.
func child(n node, key []byte) node {
	switch n {
	case root:
		return rootChild(key)
	case choice:
		switch string(key) {
		case "delta":
			return delta
		case "text":
			return contentText
		case "finish_reason":
			return finish
		case "index":
			return choiceIndex
		}
	case delta, eventDelta:
		return deltaChild(key)
	case contentPart:
		switch string(key) {
		case "text", "refusal":
			return contentText
		case "thinking":
			return reasoningText
		case "image_url":
			return contentMedia
		}
	case reasoningPart:
		if string(key) == "text" {
			return reasoningText
		}
	case toolCall:
		switch string(key) {
		case "function", "custom":
			return toolCall
		case "name", "arguments", "input":
			return toolText
		}
	case audio:
		switch string(key) {
		case "data", "transcript":
			return contentText
		}
	case usage, inputDetails, outputDetails, timings:
		return usageChild(n, key)
	case failure:
		switch string(key) {
		case "code":
			return failureCode
		case "status", "status_code", "http_status_code":
			return failureStatus
		case "type":
			return failureType
		}
	case response, message:
		switch string(key) {
		case "usage":
			return usage
		case "error":
			return failure
		case "status":
			return responseStatus
		}
	}
	return nowhere
}

func rootChild(key []byte) node {
	switch string(key) {
	case "choices":
		return choices
	case "usage":
		return usage
	case "error":
		return failure
	case "code": // of a flat error
		return failureCode
	case "error_type":
		return failureType
	case "type":
		return eventType
	case "delta":
		return eventDelta
	case "response":
		return response
	case "message":
		return message
	case "timings":
		return timings
	case "status": // an unstreamed Responses answer
		return responseStatus
	case "stop_reason": // an unstreamed Messages answer
		return finish
	}
	return nowhere
}

func deltaChild(key []byte) node {
	switch string(key) {
	case "content", "text", "refusal":
		return contentText
	case "reasoning", "reasoning_content", "thinking":
		return reasoningText
	case "tool_calls":
		return toolCalls
	case "function_call":
		return toolCall
	case "partial_json":
		return toolText
	case "audio":
		return audio
	case "stop_reason":
		return finish
	}
	return nowhere
}

func usageChild(n node, key []byte) node {
	switch string(key) {
	case "prompt_tokens", "input_tokens":
		if n == usage {
			return promptTokens
		}
	case "completion_tokens", "output_tokens":
		if n == usage {
			return completionTokens
		}
	case "prompt_tokens_details", "input_tokens_details":
		if n == usage {
			return inputDetails
		}
	case "completion_tokens_details", "output_tokens_details":
		if n == usage {
			return outputDetails
		}
	case "cache_read_input_tokens", "prompt_cache_hit_tokens":
		if n == usage {
			return cachedTokens
		}
	case "cached_tokens":
		if n == usage || n == inputDetails {
			return cachedTokens
		}
	case "reasoning_tokens":
		if n == outputDetails {
			return reasoningTokens
		}
	case "cache_n":
		if n == timings {
			return cachedTokens
		}
	}
	return nowhere
}

// element is the place of the values inside the array n.
func element(n node) node {
	switch n {
	case choices:
		return choice
	case toolCalls:
		return toolCall
	case contentText:
		return contentPart
	case reasoningText:
		return reasoningPart
	}
	return nowhere
}

// fits reports whether an object or an array is what n can be.
func fits(n node, object bool) bool {
	switch n {
	case choices, toolCalls, contentText, reasoningText:
		return !object
	case contentMedia, toolText, failure:
		return true
	case root, choice, delta, eventDelta, contentPart, reasoningPart, toolCall, audio,
		usage, inputDetails, outputDetails, response, message, timings:
		return object
	}
	return false
}

// reset makes the scanner ready for a new value.
func (s *scanner) reset() {
	s.objects, s.depth, s.skipped, s.at = 0, 0, 0, root
	s.expectKey, s.inString, s.inScalar = false, false, false
	s.escape, s.values, s.odd = noEscape, 0, false
}

// finish ends a number or word that nothing follows, and reports whether
// exactly one whole value was seen.
func (s *scanner) finish() bool {
	if s.inScalar {
		s.endScalar(s.capture[:s.captured])
	}
	return s.values == 1 && s.depth == 0 && s.skipped == 0 && !s.inString && !s.odd
}

func (s *scanner) feed(p []byte) {
	for i := 0; i < len(p); {
		switch {
		case s.inString:
			i += s.text(p[i:])
			continue
		case s.skipped > 0:
			i += s.skip(p[i:])
			continue
		case s.inScalar:
			i += s.scalar(p[i:])
			continue
		}
		switch p[i] {
		case '"':
			s.beginString()
			i += 1 + s.wholeString(p[i+1:])
		case '{', '[':
			s.push(p[i] == '{')
			i++
		case '}', ']':
			s.pop()
			i++
		case ',':
			s.next()
			i++
		case ':':
			s.expectKey = false
			i++
		case ' ', '\t', '\n', '\r':
			i++
		default:
			s.begin()
			s.inScalar, s.captured = true, 0
		}
	}
}

// begin notes that a value or key starts.
func (s *scanner) begin() {
	if s.depth == 0 && s.skipped == 0 {
		s.values++
	}
}

func (s *scanner) beginString() {
	s.begin()
	s.inString, s.escape = true, noEscape
	s.isKey = s.expectKey
	s.wanted = s.skipped == 0 && (s.isKey || s.at != nowhere)
	s.length, s.captured = 0, 0
}

// wholeString reads a string without escapes that ends in p, as most do,
// without copying it; of any other it reads nothing.
func (s *scanner) wholeString(p []byte) int {
	end := plainText(p)
	if end == len(p) || p[end] != '"' {
		return 0
	}
	s.length = end
	s.endString(p[:min(end, captureLen)])
	return end + 1
}

// text reads string bytes up to and including the closing quote.
func (s *scanner) text(p []byte) int {
	for i := 0; i < len(p); i++ {
		if s.escape != noEscape {
			s.unescape(p[i])
			continue
		}
		plain := plainText(p[i:])
		s.keep(p[i : i+plain])
		i += plain
		switch {
		case i == len(p):
		case p[i] == '"':
			s.endString(s.capture[:s.captured])
			return i + 1
		default:
			s.escape = afterBackslash
		}
	}
	return len(p)
}

// plainText counts the bytes before the first quote or backslash. It looks at
// eight bytes at a time: strings are too short and too many for two searches.
func plainText(p []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; len(p)-i >= 8; i += 8 {
		word := binary.LittleEndian.Uint64(p[i:])
		quote, slash := word^ones*'"', word^ones*'\\'
		found := ((quote-ones)&^quote | (slash-ones)&^slash) & highs
		if found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for ; i < len(p); i++ {
		if p[i] == '"' || p[i] == '\\' {
			return i
		}
	}
	return i
}

func (s *scanner) unescape(c byte) {
	if s.escape == afterBackslash {
		s.escape = noEscape
		switch c {
		case 'u':
			s.escape, s.code = 4, 0
		case 'b':
			s.keep([]byte{'\b'})
		case 'f':
			s.keep([]byte{'\f'})
		case 'n':
			s.keep([]byte{'\n'})
		case 'r':
			s.keep([]byte{'\r'})
		case 't':
			s.keep([]byte{'\t'})
		default:
			s.keep([]byte{c})
		}
		return
	}
	s.code = s.code<<4 | hexDigit(c)
	if s.escape--; s.escape == noEscape {
		var buf [utf8.UTFMax]byte
		s.keep(buf[:utf8.EncodeRune(buf[:], s.code)])
	}
}

func hexDigit(c byte) rune {
	switch {
	case c <= '9':
		return rune(c-'0') & 15
	default:
		return rune(c|0x20-'a'+10) & 15
	}
}

func (s *scanner) keep(p []byte) {
	s.length += len(p)
	if s.wanted && s.captured < captureLen {
		s.captured += copy(s.capture[s.captured:], p)
	}
}

// endString takes the string's first bytes.
func (s *scanner) endString(text []byte) {
	s.inString = false
	switch {
	case !s.wanted:
	case s.isKey:
		s.at = child(s.open[s.depth-1], text)
	default:
		s.sink.text(s.at, text, s.length)
	}
}

// skip passes over containers of no interest, up to a string in them or
// their end.
func (s *scanner) skip(p []byte) int {
	for i, c := range p {
		switch c {
		case '"':
			s.beginString()
			return i + 1
		case '{', '[':
			s.skipped++
		case '}', ']':
			if s.skipped--; s.skipped == 0 {
				return i + 1
			}
		}
	}
	return len(p)
}

// scalar reads a number or a word up to what follows it.
func (s *scanner) scalar(p []byte) int {
	end := 0
	for end < len(p) && !endsScalar(p[end]) {
		end++
	}
	s.captured += copy(s.capture[s.captured:], p[:end])
	if end < len(p) {
		s.endScalar(s.capture[:s.captured])
	}
	return end
}

func endsScalar(c byte) bool {
	switch c {
	case ',', '}', ']', ':', ' ', '\t', '\n', '\r', '"', '{', '[':
		return true
	}
	return false
}

func (s *scanner) endScalar(text []byte) {
	s.inScalar = false
	switch c := text[0]; {
	case c >= '0' && c <= '9':
		if s.at != nowhere {
			s.sink.count(s.at, readCount(text))
		}
	case c == '-': // no count is negative
	case string(text) == "true", string(text) == "false", string(text) == "null":
		if s.at != nowhere {
			s.sink.word(s.at, c)
		}
	default:
		s.odd = true
	}
}

// maxCount bounds what is taken for a number of tokens.
const maxCount = 1 << 53

// readCount reads a number that isn't negative; a fraction is cut off.
func readCount(text []byte) int64 {
	var n int64
	for _, c := range text {
		if c < '0' || c > '9' {
			return readFloat(text)
		}
		n = min(n*10+int64(c-'0'), maxCount)
	}
	return n
}

func readFloat(text []byte) int64 {
	f, _ := strconv.ParseFloat(string(text), 64) // out of range is infinite, no number is 0
	return int64(min(f, maxCount))
}

func (s *scanner) push(object bool) {
	s.begin()
	s.expectKey = false
	if !fits(s.at, object) || s.depth == maxOpen {
		s.skipped, s.at = 1, nowhere
		return
	}
	s.sink.enter(s.at)
	s.open[s.depth] = s.at
	s.objects &^= 1 << s.depth
	if object {
		s.objects |= 1 << s.depth
	}
	s.depth++
	s.next()
}

func (s *scanner) pop() {
	s.expectKey, s.at = false, nowhere
	if s.depth == 0 {
		s.odd = true
		return
	}
	s.depth--
	s.sink.leave(s.open[s.depth])
}

// next stands after an opening bracket or a comma: a key in an object, an
// element in an array.
func (s *scanner) next() {
	switch {
	case s.depth == 0:
		s.odd = true
	case s.objects&(1<<(s.depth-1)) != 0:
		s.at, s.expectKey = nowhere, true
	default:
		s.at, s.expectKey = element(s.open[s.depth-1]), false
	}
}
