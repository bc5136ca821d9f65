package edge

import "net/http"

// fault is what is wrong with the framing of a connection; zero is nothing.
type fault uint8

const (
	noFault fault = iota
	faultRequestLine
	faultTarget
	faultVersion
	faultLineEnd
	faultFold
	faultName
	faultSpaceBeforeColon
	faultValue
	faultHost
	faultLength
	faultLengthTwice
	faultCoding
	faultCodingTwice
	faultCodingHTTP10
	faultLengthAndCoding
	faultHeadSize
	faultChunk
	faultTrailer
	faultLost
)

// status is the HTTP status to refuse with.
func (f fault) status() int {
	switch f {
	case faultVersion:
		return http.StatusHTTPVersionNotSupported
	case faultHeadSize:
		return http.StatusRequestHeaderFieldsTooLarge
	}
	return http.StatusBadRequest
}

// code is the machine-readable word of the refusal.
func (f fault) code() string {
	switch f {
	case faultVersion:
		return "unsupported_http_version"
	case faultHeadSize:
		return "headers_too_large"
	}
	return "malformed_request"
}

// message is one sentence for the client.
func (f fault) message() string {
	switch f {
	case faultRequestLine:
		return "The request line is malformed."
	case faultTarget:
		return "The request target must be a path."
	case faultVersion:
		return "Only HTTP/1.1 and HTTP/1.0 are served here."
	case faultLineEnd:
		return "A line of the request does not end in CRLF."
	case faultFold:
		return "Folded header lines are not accepted."
	case faultName:
		return "A header name is malformed."
	case faultSpaceBeforeColon:
		return "A header name is followed by whitespace."
	case faultValue:
		return "A header value holds a control character."
	case faultHost:
		return "The request must carry exactly one Host header."
	case faultLength:
		return "Content-Length must be a plain decimal number."
	case faultLengthTwice:
		return "Content-Length must not be repeated."
	case faultCoding:
		return "Transfer-Encoding must be exactly chunked."
	case faultCodingTwice:
		return "Transfer-Encoding must not be repeated."
	case faultCodingHTTP10:
		return "Transfer-Encoding is not part of HTTP/1.0."
	case faultLengthAndCoding:
		return "Content-Length and Transfer-Encoding must not be used together."
	case faultHeadSize:
		return "The request line and headers are too large."
	case faultChunk:
		return "The chunked request body is malformed."
	case faultTrailer:
		return "The trailers of the request body are malformed."
	}
	return "The request could not be understood."
}
