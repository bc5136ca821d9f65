package edge

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// ownAnswer recognises an answer that net/http writes by itself to a request it
// could not read, and returns its status. net/http writes each of these whole,
// in one Write, with exactly these headers; anything else is left alone.
func ownAnswer(p []byte) (status int, ok bool) {
	const version, plain = "HTTP/1.1 ", "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
	const unmet, empty = "HTTP/1.1 417 Expectation Failed\r\nConnection: close\r\nDate: ", "GMT\r\nContent-Length: 0\r\n\r\n"
	if len(p) < len(version)+3 || (p[len(version)] != '4' && p[len(version)] != '5') {
		return 0, false
	}
	line, text, found := bytes.Cut(p, []byte("\r\n"))
	if !found || !bytes.HasPrefix(line, []byte(version)) {
		return 0, false
	}
	if bytes.HasPrefix(p, []byte(unmet)) && len(p) == len(unmet)+len("Mon, 02 Jan 2006 15:04:05 ")+len(empty) && bytes.HasSuffix(p, []byte(empty)) {
		return http.StatusExpectationFailed, true
	}
	if !bytes.HasPrefix(text, []byte(plain[len("\r\n"):])) {
		return 0, false
	}
	status, err := strconv.Atoi(string(line[len(version) : len(version)+3]))
	return status, err == nil
}

// errorAnswer is the whole answer that stands in for net/http's own.
func (c *guardConn) errorAnswer(status int) []byte {
	code, message := "malformed_request", "The request could not be understood."
	if status == http.StatusExpectationFailed {
		code, message = expectationCode, expectationMessage
	}
	switch why := fault(c.guard.state.Load() & stateFault); {
	case why != noFault:
		status, code, message = why.status(), why.code(), why.message()
	case c.guard.late.Load():
		status, code, message = http.StatusRequestTimeout, "header_timeout", "The request's headers did not arrive in time."
	}
	answer := &answer{header: make(http.Header), status: http.StatusOK}
	write := func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, c.listener.errw, status, code, message)
	}
	giveID(http.HandlerFunc(write), c.listener.opts.NewID).ServeHTTP(answer, c.unreadRequest())
	return answer.bytes()
}

// unreadRequest stands for the request that net/http could not read.
func (c *guardConn) unreadRequest() *http.Request {
	return &http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: "/"}, RequestURI: "/",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header), Body: http.NoBody, RemoteAddr: c.RemoteAddr().String(),
	}
}

// answer is a ResponseWriter in memory, of one goroutine.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

func (a *answer) bytes() []byte {
	a.header.Set("Content-Length", strconv.Itoa(a.body.Len()))
	var out bytes.Buffer
	fmt.Fprintf(&out, "HTTP/1.1 %d %s\r\n", a.status, http.StatusText(a.status))
	_ = a.header.Write(&out) // a buffer takes everything
	out.WriteString("\r\n")
	out.Write(a.body.Bytes())
	return out.Bytes()
}
