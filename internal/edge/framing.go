package edge

const (
	maxBlankLines  = 2       // before a request line; as many as net/http skips after a POST
	maxLength      = 18      // digits of a Content-Length, so that it fits an int64
	maxChunkDigits = 16      // hex digits of a chunk size
	maxChunkSize   = 1 << 62 // bytes of one chunk
	maxExtension   = 256     // bytes of one chunk's extensions
	maxTrailers    = 4 << 10 // bytes of all trailers; net/http's buffer ends there too
)

// framing follows the bytes a client sends and knows where each request's head
// and body end. It accepts a strict subset of HTTP/1: whatever net/http could
// end elsewhere, or another server read differently, is a fault, and after the
// first fault it follows no further. It stores no more of the stream than the
// start of one header name. Not safe for concurrent use.
type framing struct {
	maxHead int // bytes of one head, inclusive

	step   step
	heads  uint64 // heads that ended without a fault
	fault  fault
	inBody bool // between the end of a head and the end of its body

	size     int  // bytes of this head, of these extensions or of these trailers
	blanks   int  // blank lines before this head
	at       int  // bytes of the current version, value or chunk size
	spaced   bool // a space stood before the current value
	trailers bool
	http10   bool
	host     bool
	length   bool
	chunked  bool
	nameLen  int // may exceed len(name): then it is none of the known names
	name     [len("transfer-encoding")]byte
	remain   uint64 // bytes of the body or chunk still to come
}

// step is the place inside the grammar.
type step uint8

const (
	atStart step = iota
	atBlankLF
	inMethod
	atTarget
	inTarget
	inVersion
	atVersionLF
	atLine
	inName
	inValue
	inHost
	inLength
	inCoding
	atValueLF
	atEndLF
	inLengthBody
	inChunkSize
	inChunkExtension
	atChunkSizeLF
	inChunkData
	atChunkCR
	atChunkLF
)

// feed takes the next bytes of the stream, in any split.
func (f *framing) feed(b []byte) {
	for len(b) > 0 && f.fault == noFault {
		b = b[f.advance(b):]
	}
}

// advance consumes at least one byte and says how many.
func (f *framing) advance(b []byte) int {
	switch f.step {
	case inLengthBody, inChunkData:
		return f.skipBody(b)
	case inChunkSize, atChunkSizeLF, atChunkCR, atChunkLF:
		f.chunkLine(b[0])
		return 1
	case inChunkExtension:
		return f.chunkExtension(b)
	}
	n := f.headPart(b)
	f.size += n
	if f.size > f.headLimit() {
		f.fail(f.sizeFault())
	}
	return n
}

func (f *framing) headLimit() int {
	if f.trailers {
		return maxTrailers
	}
	return f.maxHead
}

func (f *framing) sizeFault() fault {
	if f.trailers {
		return faultTrailer
	}
	return faultHeadSize
}

func (f *framing) fail(why fault) {
	if f.fault == noFault {
		f.fault = why
	}
}

// headPart takes a piece of a head or trailer section: what is there of a
// token, of a target or of a value, or else a single byte.
func (f *framing) headPart(b []byte) int {
	switch f.step {
	case inMethod:
		if n := run(b, tokenByte); n > 0 {
			return n
		}
	case inTarget:
		if n := run(b, targetByte); n > 0 {
			return n
		}
	case inName:
		if n := f.nameRun(b); n > 0 {
			return n
		}
	case inValue:
		if n := f.valueRun(b); n > 0 {
			return n
		}
	}
	f.headByte(b[0])
	return 1
}

// headByte takes one byte of a head or trailer section.
func (f *framing) headByte(c byte) {
	switch f.step {
	case atStart:
		f.start(c)
	case atBlankLF:
		f.expect(c, '\n', atStart, faultLineEnd)
	case inMethod:
		f.expect(c, ' ', atTarget, faultRequestLine)
	case atTarget:
		f.target(c)
	case inTarget:
		f.expect(c, ' ', inVersion, faultRequestLine)
	case inVersion:
		f.version(c)
	case atVersionLF:
		f.expect(c, '\n', atLine, faultLineEnd)
	case atLine:
		f.line(c)
	case inName:
		f.endName(c)
	case inValue:
		f.expect(c, '\r', atValueLF, faultValue)
	case inHost:
		f.hostByte(c)
	case inLength:
		f.lengthByte(c)
	case inCoding:
		f.codingByte(c)
	case atValueLF:
		f.expect(c, '\n', atLine, faultLineEnd)
	case atEndLF:
		f.end(c)
	default:
		f.fail(faultLost)
	}
}

// expect moves on to next if c is the one byte that may come here.
func (f *framing) expect(c, want byte, next step, otherwise fault) {
	switch c {
	case want:
		f.step = next
	case '\n':
		f.fail(faultLineEnd)
	default:
		f.fail(otherwise)
	}
}

func (f *framing) start(c byte) {
	f.size = 0
	switch {
	case c == '\r' && f.blanks < maxBlankLines:
		f.blanks++
		f.step = atBlankLF
	case classes[c]&tokenByte != 0:
		f.http10, f.host, f.length, f.chunked = false, false, false, false
		f.step = inMethod
	default:
		f.fail(faultRequestLine)
	}
}

// target refuses the asterisk form here, since net/http may answer it without
// any handler; other forms are well framed and left to the handlers.
func (f *framing) target(c byte) {
	switch {
	case c == '*':
		f.fail(faultTarget)
	case classes[c]&targetByte != 0:
		f.step, f.at = inTarget, 0
	default:
		f.fail(faultRequestLine)
	}
}

func (f *framing) version(c byte) {
	const name, prefix = "HTTP/", "HTTP/1."
	switch at := f.at; {
	case at < len(prefix) && c == prefix[at]:
	case at == len(prefix) && (c == '0' || c == '1'):
		f.http10 = c == '0'
	case at > len(prefix) && c == '\r':
		f.step = atVersionLF
	case c == '\n':
		f.fail(faultLineEnd)
	case at >= len(name) && at <= len(prefix):
		f.fail(faultVersion)
	default:
		f.fail(faultRequestLine)
	}
	f.at++
}

// line takes the first byte of a header line.
func (f *framing) line(c byte) {
	switch {
	case c == '\r':
		f.step = atEndLF
	case classes[c]&tokenByte != 0:
		f.step, f.nameLen = inName, 1
		f.name[0] = lower(c)
	case c == ' ' || c == '\t':
		f.fail(faultFold)
	case c == '\n':
		f.fail(faultLineEnd)
	default:
		f.fail(faultName)
	}
}

func (f *framing) nameRun(b []byte) int {
	n := 0
	for n < len(b) && classes[b[n]]&tokenByte != 0 {
		if at := f.nameLen + n; at < len(f.name) {
			f.name[at] = lower(b[n])
		}
		n++
	}
	f.nameLen += n
	return n
}

// valueRun takes the line end too, where it is there.
func (f *framing) valueRun(b []byte) int {
	n := run(b, valueByte)
	if n+1 < len(b) && b[n] == '\r' && b[n+1] == '\n' {
		f.step = atLine
		return n + 2
	}
	return n
}

func (f *framing) endName(c byte) {
	switch c {
	case ':':
		f.at, f.spaced = 0, false
		f.meaning()
	case ' ', '\t':
		f.fail(faultSpaceBeforeColon)
	default:
		f.fail(faultName)
	}
}

// meaning looks at the name just read and chooses how to read its value.
func (f *framing) meaning() {
	f.step = inValue
	if f.nameLen > len(f.name) {
		return
	}
	switch string(f.name[:f.nameLen]) {
	case "host":
		f.once(&f.host, inHost, faultHost)
	case "content-length":
		f.once(&f.length, inLength, faultLengthTwice)
	case "transfer-encoding":
		f.once(&f.chunked, inCoding, faultCodingTwice)
	}
}

// once lets a framing header through once in a head and never in trailers.
func (f *framing) once(seen *bool, read step, again fault) {
	if f.trailers {
		f.fail(faultTrailer)
		return
	}
	if *seen {
		f.fail(again)
		return
	}
	*seen = true
	f.step = read
	if f.length && f.chunked {
		f.fail(faultLengthAndCoding)
	}
	if f.chunked && f.http10 {
		f.fail(faultCodingHTTP10)
	}
}

// hostByte asks that something but whitespace stands there; net/http checks what.
func (f *framing) hostByte(c byte) {
	switch {
	case c == '\r' && f.at == 0:
		f.fail(faultHost)
	case c == '\r':
		f.step = atValueLF
	case c == '\n':
		f.fail(faultLineEnd)
	case c == ' ' || c == '\t':
	case classes[c]&valueByte != 0:
		f.at = 1
	default:
		f.fail(faultValue)
	}
}

// lengthByte takes an optional space and then "0" or digits without a leading
// zero. Other whitespace is refused: honest clients send none.
func (f *framing) lengthByte(c byte) {
	isDigit := c >= '0' && c <= '9'
	switch {
	case c == ' ' && f.at == 0 && !f.spaced:
		f.spaced = true
	case isDigit && f.at == 0:
		f.at = 1
		f.remain = uint64(c - '0')
	case isDigit && f.at < maxLength && f.remain > 0:
		f.at++
		f.remain = f.remain*10 + uint64(c-'0')
	case c == '\r' && f.at > 0:
		f.step = atValueLF
	case c == '\n':
		f.fail(faultLineEnd)
	default:
		f.fail(faultLength)
	}
}

// codingByte takes an optional space and then "chunked" in any case.
func (f *framing) codingByte(c byte) {
	const want = "chunked"
	switch {
	case c == ' ' && f.at == 0 && !f.spaced:
		f.spaced = true
	case f.at < len(want) && lower(c) == want[f.at]:
		f.at++
	case c == '\r' && f.at == len(want):
		f.step = atValueLF
	case c == '\n':
		f.fail(faultLineEnd)
	default:
		f.fail(faultCoding)
	}
}

// end takes the LF of the blank line after a head or after trailers.
func (f *framing) end(c byte) {
	if c != '\n' {
		f.fail(faultLineEnd)
		return
	}
	if f.trailers {
		f.endBody()
		return
	}
	f.endHead()
}

func (f *framing) endHead() {
	if !f.host && !f.http10 {
		f.fail(faultHost)
		return
	}
	if f.size+1 > f.maxHead { // advance counts this last LF only afterwards
		f.fail(faultHeadSize)
		return
	}
	f.heads++
	switch {
	case f.chunked:
		f.inBody = true
		f.startChunk()
	case f.length && f.remain > 0:
		f.inBody = true
		f.step = inLengthBody
	default:
		f.endBody()
	}
}

// endBody makes ready for the next request.
func (f *framing) endBody() {
	f.inBody, f.trailers = false, false
	f.size, f.blanks = 0, 0
	f.step = atStart
}

func (f *framing) skipBody(b []byte) int {
	n := min(uint64(len(b)), f.remain)
	f.remain -= n
	if f.remain > 0 {
		return int(n)
	}
	if f.step == inChunkData {
		f.step = atChunkCR
		return int(n)
	}
	f.endBody()
	return int(n)
}

func (f *framing) startChunk() {
	f.step, f.at, f.remain = inChunkSize, 0, 0
}

// chunkLine takes one byte of what stands between the data of two chunks.
func (f *framing) chunkLine(c byte) {
	switch f.step {
	case inChunkSize:
		f.chunkSizeByte(c)
	case atChunkSizeLF:
		f.expect(c, '\n', inChunkData, faultChunk)
		if f.fault == noFault {
			f.startData()
		}
	case atChunkCR:
		f.expect(c, '\r', atChunkLF, faultChunk)
	case atChunkLF:
		f.expect(c, '\n', inChunkSize, faultChunk)
		f.startChunk()
	}
}

func (f *framing) chunkSizeByte(c byte) {
	digit, isDigit := hexDigit(c)
	switch {
	case isDigit && f.at < maxChunkDigits:
		f.at++
		f.remain = f.remain<<4 | uint64(digit)
	case c == ';' && f.at > 0:
		f.step, f.size = inChunkExtension, 0
	case c == '\r' && f.at > 0:
		f.step = atChunkSizeLF
	default:
		f.fail(faultChunk)
	}
}

func (f *framing) chunkExtension(b []byte) int {
	n := run(b, extensionByte)
	f.size += n
	if f.size > maxExtension {
		f.fail(faultChunk)
	}
	if n > 0 {
		return n
	}
	f.expect(b[0], '\r', atChunkSizeLF, faultChunk)
	return 1
}

// startData goes on to a chunk's data, or to the trailers after the last chunk.
func (f *framing) startData() {
	switch {
	case f.remain > maxChunkSize:
		f.fail(faultChunk)
	case f.remain == 0:
		f.trailers = true
		f.step, f.size = atLine, 0
	default:
		f.step = inChunkData
	}
}

// Classes of bytes, by where they may stand.
const (
	tokenByte     = 1 << iota // method, header name
	targetByte                // request target: visible ASCII
	valueByte                 // header value: visible, space, tab, above ASCII
	extensionByte             // chunk extension: printable ASCII and tab
)

// classes is never written after it is made.
var classes = classify()

func classify() (of [256]uint8) {
	for c := range of {
		if c > ' ' && c < 0x7f {
			of[c] |= targetByte | valueByte | extensionByte
		}
		if c == ' ' || c == '\t' {
			of[c] |= valueByte | extensionByte
		}
		if c >= 0x80 {
			of[c] |= valueByte
		}
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			of[c] |= tokenByte
		}
	}
	for _, c := range []byte("!#$%&'*+-.^_`|~") {
		of[c] |= tokenByte
	}
	return of
}

// run is the number of leading bytes of b in the class.
func run(b []byte, class uint8) int {
	for i, c := range b {
		if classes[c]&class == 0 {
			return i
		}
	}
	return len(b)
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
