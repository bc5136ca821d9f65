package openai

import "bytes"

// scanner follows one JSON value byte by byte, whatever the splits, and
// reports the few fields the meter wants. It keeps no input beyond a short
// capture and allocates nothing. Text that is not JSON does no harm: it just
// reports nothing.
type scanner struct {
	sink *Meter

	open    [maxOpen]node // containers of interest, outermost first
	objects uint8         // bit i: open[i] is an object
	depth   int           // how many of open are in use
	skipped int           // containers below one that is of no interest

	at        node // what the next value is
	expectKey bool // inside an object, before a colon

	inString, escaped, isKey bool
	length                   int // bytes of the current string
	capture                  [captureLen]byte
	captured                 int

	inNumber, fraction bool
	number             int64

	started bool // a value has begun
}

const (
	maxOpen    = 8
	captureLen = 48
)

// node is a place in the few JSON shapes that engines answer with.
type node uint8

const (
	nowhere node = iota
	root
	choices
	choice
	choiceIndex
	delta      // an object in chat chunks and Messages, a string in Responses
	tokenText  // a string that is a token when not empty
	reasonText // the same, of reasoning
	toolParts  // an array or object that is a token when it holds anything
	toolPart
	contentText // a string or an array of parts
	contentPart
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
		switch string(key) {
		case "choices":
			return choices
		case "usage":
			return usage
		case "error":
			return failure
		case "type":
			return eventType
		case "delta":
			return delta
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
	case choice:
		switch string(key) {
		case "delta", "message":
			return delta
		case "text":
			return tokenText
		case "finish_reason":
			return finish
		case "index":
			return choiceIndex
		}
	case delta:
		switch string(key) {
		case "content":
			return contentText
		case "text", "refusal":
			return tokenText
		case "reasoning", "reasoning_content", "thinking":
			return reasonText
		case "tool_calls", "function_call", "partial_json", "audio":
			return toolParts
		case "stop_reason":
			return finish
		}
	case usage:
		switch string(key) {
		case "prompt_tokens", "input_tokens":
			return promptTokens
		case "completion_tokens", "output_tokens":
			return completionTokens
		case "prompt_tokens_details", "input_tokens_details":
			return inputDetails
		case "completion_tokens_details", "output_tokens_details":
			return outputDetails
		case "cache_read_input_tokens", "prompt_cache_hit_tokens":
			return cachedTokens
		}
	case inputDetails:
		if string(key) == "cached_tokens" {
			return cachedTokens
		}
	case outputDetails:
		if string(key) == "reasoning_tokens" {
			return reasoningTokens
		}
	case failure:
		switch string(key) {
		case "code", "status":
			return failureCode
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
	case timings:
		if string(key) == "cache_n" {
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
	case toolParts:
		return toolPart
	case contentText:
		return contentPart
	}
	return nowhere
}

func (s *scanner) reset() {
	s.depth, s.skipped, s.at = 0, 0, root
	s.expectKey, s.inString, s.escaped = false, false, false
	s.inNumber, s.started = false, false
}

// whole reports whether exactly one complete value was seen.
func (s *scanner) whole() bool {
	return s.started && s.depth == 0 && s.skipped == 0 && !s.inString
}

func (s *scanner) feed(p []byte) {
	for i := 0; i < len(p); {
		if s.inString {
			i += s.text(p[i:])
			continue
		}
		c := p[i]
		i++
		if s.inNumber {
			if s.digit(c) {
				continue
			}
			s.endNumber()
		}
		switch c {
		case '"':
			s.begin()
			s.inString, s.isKey = true, s.expectKey
			s.length, s.captured = 0, 0
		case '{', '[':
			s.begin()
			s.push(c == '{')
		case '}', ']':
			s.pop()
		case ',':
			s.next()
		case ':':
			s.expectKey = false
		case '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			s.begin()
			s.inNumber, s.fraction, s.number = true, false, int64(c-'0')
		case '-', 't', 'f':
			s.begin()
		}
	}
}

// begin notes that a value (or key) starts at the current place.
func (s *scanner) begin() {
	s.started = true
	if s.skipped == 0 && !s.expectKey && (s.at == toolPart || s.at == contentPart) {
		s.sink.token(s.at)
	}
}

// text consumes string bytes up to and including the closing quote.
func (s *scanner) text(p []byte) int {
	i := 0
	for i < len(p) {
		if s.escaped {
			s.escaped = false
			s.keep(p[i : i+1])
			i++
			continue
		}
		end := bytes.IndexByte(p[i:], '"')
		stop := end
		if stop < 0 {
			stop = len(p) - i
		}
		if esc := bytes.IndexByte(p[i:i+stop], '\\'); esc >= 0 {
			s.keep(p[i : i+esc])
			s.escaped = true
			i += esc + 1
			continue
		}
		s.keep(p[i : i+stop])
		i += stop
		if end >= 0 {
			s.inString = false
			s.endString()
			return i + 1
		}
	}
	return i
}

func (s *scanner) keep(p []byte) {
	s.length += len(p)
	if s.skipped == 0 && s.captured < captureLen {
		s.captured += copy(s.capture[s.captured:], p)
	}
}

func (s *scanner) endString() {
	if s.skipped > 0 {
		return
	}
	text := s.capture[:s.captured]
	if s.isKey {
		in := s.open[s.depth-1]
		s.at = child(in, text)
		if in == toolParts {
			s.sink.token(toolPart)
		}
		return
	}
	if s.at != nowhere {
		s.sink.text(s.at, text, s.length)
	}
}

func (s *scanner) digit(c byte) bool {
	switch {
	case c >= '0' && c <= '9':
		if !s.fraction && s.number < 1<<53 {
			s.number = s.number*10 + int64(c-'0')
		}
		return true
	case c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-':
		s.fraction = true
		return true
	}
	return false
}

func (s *scanner) endNumber() {
	s.inNumber = false
	if s.skipped == 0 && s.at != nowhere {
		s.sink.count(s.at, s.number)
	}
}

func (s *scanner) push(object bool) {
	if s.skipped > 0 || s.at == nowhere || s.depth == maxOpen {
		s.skipped++
		s.expectKey = false
		return
	}
	n := s.at
	s.sink.enter(n)
	s.open[s.depth] = n
	s.objects &^= 1 << s.depth
	if object {
		s.objects |= 1 << s.depth
	}
	s.depth++
	s.next()
}

func (s *scanner) pop() {
	s.expectKey = false
	switch {
	case s.skipped > 0:
		s.skipped--
	case s.depth > 0:
		s.depth--
		s.sink.leave(s.open[s.depth])
	}
	s.at = nowhere
}

// next stands after an opening bracket or a comma: a key in an object, an
// element in an array.
func (s *scanner) next() {
	if s.skipped > 0 || s.depth == 0 {
		return
	}
	if s.objects&(1<<(s.depth-1)) != 0 {
		s.at, s.expectKey = nowhere, true
		return
	}
	s.at, s.expectKey = element(s.open[s.depth-1]), false
}
