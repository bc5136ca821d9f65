package edge

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// smuggled is the request that an attacker hides behind or inside another one.
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

// attack is raw bytes of one client. With seen nil it must be refused and the
// connection closed, and the backend must see nothing; otherwise the backend
// must see exactly these requests.
type attack struct {
	id     string
	raw    string
	status int // of the first answer; 0 is any error or none
	seen   []string
}

func post(headers, body string) string {
	return "POST /v1/chat HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n" + body
}

func get(headers string) string {
	return "GET /v1/models HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n"
}

const te = "Transfer-Encoding: chunked\r\n"

// chunked is a chunked POST with raw framing, followed by a smuggled request.
func chunked(framing string) string { return post(te, framing) + smuggled }

func attacks() []attack {
	oneEmptyPost := []string{"POST /v1/chat 0"}
	hi := []string{"POST /v1/chat 5"}
	return []attack{
		// Two lengths.
		{id: "CL-TE-BOTH", raw: post("Content-Length: 6\r\n"+te, "0\r\n\r\nG") + smuggled, status: 400},
		{id: "SMUG-CL-TE-BOTH", raw: post("Content-Length: 4\r\n"+te, "5\r\nhello\r\n0\r\n\r\n") + smuggled, status: 400},
		{id: "SMUG-TE-CL-BOTH", raw: post(te+"Content-Length: 4\r\n", "5\r\nhello\r\n0\r\n\r\n") + smuggled, status: 400},
		{id: "SMUG-CL-TE-EMPTY-TE", raw: post("Content-Length: 5\r\nTransfer-Encoding:\r\n", "hello") + smuggled},
		{id: "SMUG-CL-TE-IDENTITY", raw: post("Content-Length: 5\r\nTransfer-Encoding: identity\r\n", "hello") + smuggled},
		{id: "SMUG-CL0-TE", raw: post("Content-Length: 0\r\n"+te, "0\r\n\r\n") + smuggled, status: 400},

		// Content-Length.
		{id: "SMUG-DUPLICATE-CL", raw: post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-DUPLICATE-CL-SAME", raw: post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-DUPLICATE-CL-CASE", raw: post("Content-Length: 5\r\ncontent-LENGTH: 5\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-LIST", raw: post("Content-Length: 5, 5\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-LIST-DIFFERENT", raw: post("Content-Length: 5,6\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-LEADING-ZEROS", raw: post("Content-Length: 005\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-DOUBLE-ZERO", raw: post("Content-Length: 00\r\n", "") + smuggled, status: 400},
		{id: "SMUG-CL-OCTAL", raw: post("Content-Length: 0o5\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-HEX", raw: post("Content-Length: 0x5\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-PLUS", raw: post("Content-Length: +5\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-NEGATIVE", raw: post("Content-Length: -1\r\n", "") + smuggled, status: 400},
		{id: "SMUG-CL-NEGATIVE-ZERO", raw: post("Content-Length: -0\r\n", "") + smuggled, status: 400},
		{id: "SMUG-CL-UNDERSCORE", raw: post("Content-Length: 1_0\r\n", "helloworld") + smuggled, status: 400},
		{id: "SMUG-CL-INTERNAL-SPACE", raw: post("Content-Length: 1 0\r\n", "helloworld") + smuggled, status: 400},
		{id: "SMUG-CL-DECIMAL", raw: post("Content-Length: 5.0\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-EXPONENT", raw: post("Content-Length: 1e1\r\n", "helloworld") + smuggled, status: 400},
		{id: "SMUG-CL-EMPTY", raw: post("Content-Length:\r\n", "") + smuggled, status: 400},
		{id: "SMUG-CL-TRAILING-SPACE", raw: post("Content-Length: 5 \r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-TAB", raw: post("Content-Length:\t5\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-SEMICOLON", raw: post("Content-Length: 5;x\r\n", "hello") + smuggled, status: 400},
		{id: "MAL-CL-OVERFLOW", raw: post("Content-Length: 99999999999999999999\r\n", "") + smuggled, status: 400},
		{id: "MAL-CL-OVERFLOW-64", raw: post("Content-Length: 18446744073709551621\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-SPACE-BEFORE-COLON", raw: post("Content-Length : 5\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-TAB-BEFORE-COLON", raw: post("Content-Length\t: 5\r\n", "hello") + smuggled, status: 400},
		{id: "SMUG-CL-OBS-FOLD", raw: post("Content-Length:\r\n 5\r\n", "hello") + smuggled, status: 400},

		// Transfer-Encoding.
		{id: "SMUG-TE-XCHUNKED", raw: post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-DUPLICATE", raw: post(te+te, "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-DUPLICATE-IDENTITY", raw: post(te+"Transfer-Encoding: identity\r\n", "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-DOUBLE-CHUNKED", raw: post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-GZIP-CHUNKED", raw: post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-NOT-FINAL-CHUNKED", raw: post("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-IDENTITY", raw: post("Transfer-Encoding: identity\r\n", "") + smuggled},
		{id: "SMUG-TE-EMPTY", raw: post("Transfer-Encoding:\r\n", "") + smuggled},
		{id: "SMUG-TE-TRAILING-COMMA", raw: post("Transfer-Encoding: chunked,\r\n", "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-LEADING-COMMA", raw: post("Transfer-Encoding: ,chunked\r\n", "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-QUOTED", raw: post("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-PARAMETER", raw: post("Transfer-Encoding: chunked;q=1\r\n", "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-TRAILING-SPACE", raw: post("Transfer-Encoding: chunked \r\n", "0\r\n\r\n") + smuggled, status: 400},
		{id: "SMUG-TE-LEADING-TAB", raw: post("Transfer-Encoding:\tchunked\r\n", "0\r\n\r\n") + smuggled, status: 400},
		{id: "SMUG-TE-VTAB", raw: post("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n") + smuggled, status: 400},
		{id: "SMUG-TE-NUL", raw: post("Transfer-Encoding: chunked\x00\r\n", "0\r\n\r\n") + smuggled, status: 400},
		{id: "SMUG-TE-NBSP", raw: post("Transfer-Encoding: \xa0chunked\r\n", "0\r\n\r\n") + smuggled},
		{id: "SMUG-TE-OBS-FOLD", raw: post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n") + smuggled, status: 400},
		{id: "SMUG-TE-OBS-FOLD-TAB", raw: post("Transfer-Encoding:\r\n\tchunked\r\n", "0\r\n\r\n") + smuggled, status: 400},
		{id: "SMUG-TE-SPACE-BEFORE-COLON", raw: post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n") + smuggled, status: 400},
		{id: "SMUG-TE-LEADING-SPACE-NAME", raw: post(" Transfer-Encoding: chunked\r\n", "0\r\n\r\n") + smuggled, status: 400},
		{id: "SMUG-TE-HTTP10", raw: "POST /v1/chat HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n" + te + "\r\n0\r\n\r\n" + smuggled, status: 400},
		{id: "SMUG-TE-CASE", raw: post("tRANSFER-eNCODING: ChUnKeD\r\n", "5\r\nhello\r\n0\r\n\r\n"), status: 200, seen: hi},
		{id: "SMUG-TE-UNDERSCORE-NAME", raw: post("Transfer_Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), status: 200, seen: hi},
		{id: "SMUG-CL-UNDERSCORE-NAME", raw: post("Content_Length: 99\r\n", ""), status: 200, seen: oneEmptyPost},

		// Chunk framing.
		{id: "SMUG-CHUNK-BARE-LF", raw: chunked("5\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-BARE-LF-LAST", raw: chunked("5\r\nhello\r\n0\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-BARE-LF-DATA", raw: chunked("5\r\nhello\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-BARE-CR", raw: chunked("5\rhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-HEX-PREFIX", raw: chunked("0x5\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-UNDERSCORE", raw: chunked("1_0\r\nhellohellohello!\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-PLUS", raw: chunked("+5\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-NEGATIVE", raw: chunked("-1\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-LEADING-SPACE", raw: chunked(" 5\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-TRAILING-SPACE", raw: chunked("5 \r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-TRAILING-TAB", raw: chunked("5\t\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-EMPTY-SIZE", raw: chunked("\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-NOT-HEX", raw: chunked("g\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-SPILL", raw: chunked("5\r\nhelloworld\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-MISSING-CRLF", raw: chunked("5\r\nhello0\r\n\r\n"), status: 400},
		{id: "MAL-CHUNK-OVERFLOW", raw: chunked("10000000000000005\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "MAL-CHUNK-MAX", raw: chunked("ffffffffffffffff\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "MAL-CHUNK-ZERO-PADDED", raw: chunked("00000000000000005\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-EXT-LF", raw: chunked("5;a\nb\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-EXT-CR", raw: chunked("5;a\rb\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-EXT-NUL", raw: chunked("5;a\x00\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-EXT-SPACE-BEFORE", raw: chunked("5 ;a\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "MAL-CHUNK-EXT-LONG", raw: chunked("5;" + strings.Repeat("a", maxExtension+1) + "\r\nhello\r\n0\r\n\r\n"), status: 400},
		{id: "SMUG-CHUNK-EXT", raw: post(te, "5;a=b;c=\"d\"\r\nhello\r\n0;last\r\n\r\n"), status: 200, seen: hi},
		{id: "SMUG-CHUNK-UPPER-HEX", raw: post(te, "A\r\nhellohello\r\n0\r\n\r\n"), status: 200, seen: []string{"POST /v1/chat 10"}},
		{id: "SMUG-CHUNK-SMUGGLED-INSIDE", raw: post(te, "23\r\n"+smuggled+"\r\n0\r\n\r\n"), status: 200, seen: []string{"POST /v1/chat 35"}},
		{id: "SMUG-TRAILER-CL", raw: chunked("5\r\nhello\r\n0\r\nContent-Length: 50\r\n\r\n"), status: 400},
		{id: "SMUG-TRAILER-TE", raw: chunked("5\r\nhello\r\n0\r\n" + te + "\r\n"), status: 400},
		{id: "SMUG-TRAILER-HOST", raw: chunked("5\r\nhello\r\n0\r\nHost: b\r\n\r\n"), status: 400},
		{id: "SMUG-TRAILER-BARE-LF", raw: chunked("5\r\nhello\r\n0\r\nA: b\n\r\n"), status: 400},
		{id: "SMUG-TRAILER-OBS-FOLD", raw: chunked("5\r\nhello\r\n0\r\nA: b\r\n c\r\n\r\n"), status: 400},
		{id: "SMUG-TRAILER-SPACE", raw: chunked("5\r\nhello\r\n0\r\nA : b\r\n\r\n"), status: 400},
		{id: "MAL-TRAILER-LONG", raw: chunked("0\r\nA: " + strings.Repeat("b", maxTrailers) + "\r\n\r\n"), status: 400},
		{id: "SMUG-TRAILER", raw: post(te, "5\r\nhello\r\n0\r\nAuthorization: b\r\n\r\n"), status: 200, seen: hi},

		// Bodies where none is expected.
		{id: "SMUG-GET-CL-BODY", raw: get("Content-Length: 35\r\n") + smuggled, status: 200, seen: []string{"GET /v1/models 35"}},
		{id: "SMUG-GET-TE-BODY", raw: get(te) + "23\r\n" + smuggled + "\r\n0\r\n\r\n", status: 200, seen: []string{"GET /v1/models 35"}},
		{id: "SMUG-HEAD-CL-BODY", raw: "HEAD /v1/models HTTP/1.1\r\nHost: a\r\nContent-Length: 35\r\n\r\n" + smuggled, seen: []string{"HEAD /v1/models 35"}},
		{id: "SMUG-DELETE-CL-BODY", raw: "DELETE /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 35\r\n\r\n" + smuggled, status: 200, seen: []string{"DELETE /v1/x 35"}},
		{id: "SMUG-CL-SMUGGLED-INSIDE", raw: post("Content-Length: 35\r\n", smuggled), status: 200, seen: []string{"POST /v1/chat 35"}},

		// Lines and line ends.
		{id: "COMP-BARE-LF-REQUEST-LINE", raw: "GET /v1/models HTTP/1.1\nHost: a\r\n\r\n" + smuggled},
		{id: "COMP-BARE-LF-HEADER", raw: get("A: b\nC: d\r\n") + smuggled, status: 400},
		{id: "COMP-BARE-LF-END", raw: "GET /v1/models HTTP/1.1\r\nHost: a\r\n\n" + smuggled, status: 400},
		{id: "COMP-BARE-LF-ALL", raw: "GET /v1/models HTTP/1.1\nHost: a\n\n" + smuggled},
		{id: "SMUG-BARE-CR-VALUE", raw: get("A: b\rContent-Length: 5\r\n") + smuggled, status: 400},
		{id: "SMUG-BARE-CR-NAME", raw: get("A\r: b\r\n") + smuggled, status: 400},
		{id: "SMUG-BARE-CR-REQUEST-LINE", raw: "GET /v1/models HTTP/1.1\rHost: a\r\n\r\n" + smuggled},
		{id: "SMUG-CR-CR-LF", raw: get("A: b\r\r\n") + smuggled, status: 400},
		{id: "SMUG-OBS-FOLD", raw: get("A: b\r\n c\r\n") + smuggled, status: 400},
		{id: "SMUG-OBS-FOLD-FIRST", raw: "GET /v1/models HTTP/1.1\r\n A: b\r\nHost: a\r\n\r\n" + smuggled, status: 400},
		{id: "SMUG-OBS-FOLD-BLANK", raw: get("A: b\r\n \r\n") + smuggled, status: 400},
		{id: "COMP-LEADING-CRLF", raw: "\r\n" + get("") + smuggled},
		{id: "COMP-LEADING-SPACE", raw: " " + get("") + smuggled},
		{id: "COMP-LEADING-NUL", raw: "\x00" + get("") + smuggled},
		{id: "COMP-STRAY-CRLF-AFTER-POST", raw: post("Content-Length: 5\r\n", "hello") + "\r\n" + get(""), status: 200, seen: []string{"POST /v1/chat 5", "GET /v1/models 0"}},
		{id: "COMP-STRAY-LF-AFTER-POST", raw: post("Content-Length: 5\r\n", "hello") + "\n" + smuggled},
		{id: "COMP-STRAY-CR-AFTER-POST", raw: post("Content-Length: 5\r\n", "hello") + "\r" + smuggled},
		{id: "COMP-MANY-CRLF-AFTER-POST", raw: post("Content-Length: 5\r\n", "hello") + "\r\n\r\n\r\n" + smuggled},

		// Names and values.
		{id: "MAL-NAME-SPACE", raw: get("A B: c\r\n") + smuggled, status: 400},
		{id: "MAL-NAME-EMPTY", raw: get(": c\r\n") + smuggled, status: 400},
		{id: "MAL-NAME-NUL", raw: get("A\x00: c\r\n") + smuggled, status: 400},
		{id: "MAL-NAME-NON-ASCII", raw: get("\xc3\xa9: c\r\n") + smuggled, status: 400},
		{id: "MAL-NAME-NO-COLON", raw: get("NoColon\r\n") + smuggled, status: 400},
		{id: "MAL-NAME-PAREN", raw: get("A(b): c\r\n") + smuggled, status: 400},
		{id: "MAL-VALUE-NUL", raw: get("A: b\x00c\r\n") + smuggled, status: 400},
		{id: "MAL-VALUE-CTL", raw: get("A: b\x01c\r\n") + smuggled, status: 400},
		{id: "MAL-VALUE-DEL", raw: get("A: b\x7fc\r\n") + smuggled, status: 400},

		// Request line.
		{id: "COMP-TWO-SPACES", raw: "GET  /v1/models HTTP/1.1\r\nHost: a\r\n\r\n" + smuggled},
		{id: "COMP-TAB-SEPARATOR", raw: "GET\t/v1/models\tHTTP/1.1\r\nHost: a\r\n\r\n" + smuggled},
		{id: "COMP-SPACE-IN-TARGET", raw: "GET /v1/mo dels HTTP/1.1\r\nHost: a\r\n\r\n" + smuggled},
		{id: "COMP-TRAILING-SPACE-VERSION", raw: "GET /v1/models HTTP/1.1 \r\nHost: a\r\n\r\n" + smuggled},
		{id: "COMP-NO-VERSION", raw: "GET /v1/models\r\nHost: a\r\n\r\n" + smuggled},
		{id: "COMP-VERSION-09", raw: "GET /v1/models HTTP/0.9\r\nHost: a\r\n\r\n" + smuggled},
		{id: "COMP-VERSION-12", raw: "GET /v1/models HTTP/1.2\r\nHost: a\r\n\r\n" + smuggled, status: 505},
		{id: "COMP-VERSION-20", raw: "GET /v1/models HTTP/2.0\r\nHost: a\r\n\r\n" + smuggled, status: 505},
		{id: "COMP-VERSION-LOWER", raw: "GET /v1/models http/1.1\r\nHost: a\r\n\r\n" + smuggled},
		{id: "COMP-TARGET-NON-ASCII", raw: "GET /v1/\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n" + smuggled, status: 400},
		{id: "COMP-TARGET-NUL", raw: "GET /v1/\x00 HTTP/1.1\r\nHost: a\r\n\r\n" + smuggled},
		{id: "COMP-ABSOLUTE-FORM", raw: "GET http://b/smuggled HTTP/1.1\r\nHost: a\r\n\r\n" + smuggled, status: 400},
		{id: "COMP-ASTERISK", raw: "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n" + smuggled, status: 400},
		{id: "COMP-PREFACE", raw: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + smuggled},

		// Host.
		{id: "COMP-HOST-MISSING", raw: "GET /v1/models HTTP/1.1\r\nA: b\r\n\r\n" + smuggled, status: 400},
		{id: "COMP-HOST-EMPTY", raw: "GET /v1/models HTTP/1.1\r\nHost:\r\n\r\n" + smuggled, status: 400},
		{id: "COMP-HOST-DUPLICATE", raw: get("Host: b\r\n") + smuggled, status: 400},
		{id: "COMP-HOST-DUPLICATE-SAME", raw: get("Host: a\r\n") + smuggled, status: 400},
		{id: "COMP-HOST-PATH", raw: "GET /v1/models HTTP/1.1\r\nHost: a/b\r\n\r\n" + smuggled},
		{id: "COMP-HOST-USERINFO", raw: "GET /v1/models HTTP/1.1\r\nHost: u@a\r\n\r\n" + smuggled},
		{id: "COMP-HOST-SPACE-BEFORE-COLON", raw: "GET /v1/models HTTP/1.1\r\nHost : a\r\n\r\n" + smuggled, status: 400},
		{id: "COMP-HTTP10-NO-HOST", raw: "GET /v1/models HTTP/1.0\r\n\r\n", status: 200, seen: []string{"GET /v1/models 0"}},

		// Pipelining. A bad request spoils what was read together with it.
		{id: "SMUG-PIPELINE-GOOD", raw: get("") + post("Content-Length: 5\r\n", "hello") + get(""), status: 200, seen: []string{"GET /v1/models 0", "POST /v1/chat 5", "GET /v1/models 0"}},
		{id: "SMUG-PIPELINE-BAD-SECOND", raw: get("") + post("Content-Length: 5\r\n"+te, "0\r\n\r\n") + smuggled, status: 400},
	}
}

func TestSmuggling(t *testing.T) {
	backend := new(testBackend)
	addr := testServer(t, Options{}, noPanics(t), backend)
	ids := make(map[string]bool)
	for _, a := range attacks() {
		if ids[a.id] {
			t.Errorf("id %s twice", a.id)
		}
		ids[a.id] = true
		t.Run(a.id, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, addr)
			io.WriteString(conn, a.raw)
			if a.seen != nil {
				conn.CloseWrite()
			}
			if strings.HasPrefix(a.raw, "HEAD") {
				io.ReadAll(conn)
			} else {
				checkAnswers(t, readAnswers(t, conn), a)
			}
			if seen := backend.saw(conn); !slices.Equal(seen, a.seen) {
				t.Errorf("the backend saw %q, want %q", seen, a.seen)
			}
		})
	}
	if len(ids) < 80 {
		t.Errorf("only %d cases", len(ids))
	}
}

// checkAnswers wants one refusal at most, or one good answer for each request.
func checkAnswers(t *testing.T, answers []*http.Response, a attack) {
	t.Helper()
	if a.seen != nil && len(answers) != len(a.seen) || a.seen == nil && len(answers) > 1 {
		t.Errorf("%d answers", len(answers))
	}
	for _, answer := range answers {
		if refused := answer.StatusCode >= 400; refused != (a.seen == nil) {
			t.Errorf("answered %d", answer.StatusCode)
		}
		if a.status != 0 && answer.StatusCode != a.status {
			t.Errorf("answered %d, want %d", answer.StatusCode, a.status)
		}
		if id := answer.Header.Get("X-Request-Id"); id == "" {
			t.Error("no x-request-id")
		}
		if answer.StatusCode >= 400 && answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("error of type %q", answer.Header.Get("Content-Type"))
		}
	}
	if a.status != 0 && len(answers) == 0 {
		t.Error("no answer")
	}
}
