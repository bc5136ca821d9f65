package edge

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

const testMaxHead = 64 << 10

func newFraming() *framing { return &framing{maxHead: testMaxHead} }

// TestFramingSplits holds that the verdict does not depend on how the stream is cut.
func TestFramingSplits(t *testing.T) {
	for _, a := range attacks() {
		raw := []byte(a.raw)
		whole := newFraming()
		whole.feed(raw)
		for cut := range raw {
			parts := newFraming()
			parts.feed(raw[:cut])
			parts.feed(raw[cut:])
			if !agree(*parts, *whole) {
				t.Fatalf("%s cut at %d: %+v, whole: %+v", a.id, cut, *parts, *whole)
			}
		}
		bytewise := newFraming()
		for i := range raw {
			bytewise.feed(raw[i : i+1])
		}
		if !agree(*bytewise, *whole) {
			t.Fatalf("%s byte by byte: %+v, whole: %+v", a.id, *bytewise, *whole)
		}
	}
}

// agree compares verdicts, and the whole state while there is no fault.
func agree(a, b framing) bool {
	if a.fault != noFault {
		return a.fault == b.fault && a.heads == b.heads && a.inBody == b.inBody
	}
	return a == b
}

func TestFramingFaults(t *testing.T) {
	tests := map[string]struct {
		raw   string
		heads uint64
		want  fault
	}{
		"good":             {get(""), 1, noFault},
		"both lengths":     {post("Content-Length: 6\r\n"+te, ""), 0, faultLengthAndCoding},
		"equal lengths":    {post("Content-Length: 6\r\nContent-Length: 6\r\n", ""), 0, faultLengthTwice},
		"leading zero":     {post("Content-Length: 06\r\n", ""), 0, faultLength},
		"zero":             {post("Content-Length: 0\r\n", get("")), 2, noFault},
		"19 digits":        {post("Content-Length: 1000000000000000000\r\n", ""), 0, faultLength},
		"18 digits":        {post("Content-Length: 100000000000000000\r\n", ""), 1, noFault},
		"coding twice":     {post(te+te, ""), 0, faultCodingTwice},
		"coding list":      {post("Transfer-Encoding: gzip, chunked\r\n", ""), 0, faultCoding},
		"coding 1.0":       {"POST / HTTP/1.0\r\n" + te, 0, faultCodingHTTP10},
		"fold":             {get("A: b\r\n c\r\n"), 0, faultFold},
		"bare LF":          {get("A: b\n"), 0, faultLineEnd},
		"bare CR":          {get("A: b\rc\r\n"), 0, faultLineEnd},
		"space colon":      {get("A : b\r\n"), 0, faultSpaceBeforeColon},
		"NUL":              {get("A: \x00\r\n"), 0, faultValue},
		"no host":          {"GET / HTTP/1.1\r\n\r\n", 0, faultHost},
		"two hosts":        {get("Host: a\r\n"), 0, faultHost},
		"version":          {"GET / HTTP/2.0\r\n", 0, faultVersion},
		"asterisk":         {"OPTIONS * HTTP/1.1\r\n", 0, faultTarget},
		"chunk":            {post(te, "5 \r\n"), 1, faultChunk},
		"trailer":          {post(te, "0\r\nContent-Length: 1\r\n"), 1, faultTrailer},
		"second head":      {get("") + "\x16\x03\x01", 1, faultRequestLine},
		"16 digits":        {post(te, "0000000000000001\r\nx\r\n0\r\n\r\n"), 1, noFault},
		"17 digits":        {post(te, "00000000000000001\r\n"), 1, faultChunk},
		"longest ext":      {post(te, "1;"+strings.Repeat("e", maxExtension)+"\r\nx\r\n"), 1, noFault},
		"too long ext":     {post(te, "1;"+strings.Repeat("e", maxExtension+1)), 1, faultChunk},
		"long header name": {get(strings.Repeat("n", 300) + ": b\r\n"), 1, noFault},
		"known prefix":     {get("Content-Length-X: b\r\nTransfer-Encodings: x\r\nHostX: y\r\n"), 1, noFault},
	}
	for name, test := range tests {
		f := newFraming()
		f.feed([]byte(test.raw))
		if f.fault != test.want || f.heads != test.heads {
			t.Errorf("%s: fault %d after %d heads (%s), want %d after %d", name, f.fault, f.heads, f.fault.message(), test.want, test.heads)
		}
	}
}

// TestFramingHeadSize holds that the limit is exact, to the byte.
func TestFramingHeadSize(t *testing.T) {
	head := get("A: " + strings.Repeat("b", 1000) + "\r\n")
	for _, test := range []struct {
		limit int
		want  fault
	}{{len(head), noFault}, {len(head) - 1, faultHeadSize}, {100, faultHeadSize}} {
		f := &framing{maxHead: test.limit}
		f.feed([]byte(head + head))
		if f.fault != test.want {
			t.Errorf("limit %d: fault %d, want %d", test.limit, f.fault, test.want)
		}
		if test.want == noFault && f.heads != 2 {
			t.Errorf("limit %d: %d heads", test.limit, f.heads)
		}
	}
}

func TestFramingAllocatesNothing(t *testing.T) {
	raw := []byte(post("Content-Length: 5\r\n", "hello") + post(te, "5;a\r\nhello\r\n0\r\nA: b\r\n\r\n"))
	g := &guard{framing: *newFraming()}
	if n := testing.AllocsPerRun(100, func() { g.observe(raw) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if g.framing.fault != noFault {
		t.Error(g.framing.fault.message())
	}
}

// TestGuardLost holds that a request the guard did not see is not served.
func TestGuardLost(t *testing.T) {
	g := &guard{framing: *newFraming()}
	g.observe([]byte(get("") + "GET /"))
	if why := g.admit(); why != noFault {
		t.Errorf("first request: %s", why.message())
	}
	if why := g.admit(); why != faultLost {
		t.Errorf("second request: fault %d", why)
	}
}

// request is where the head and the body of a request end in a stream; a body
// that does not end is at -1.
type request struct{ head, body int }

// guardRequests returns the requests as the guard sees them.
func guardRequests(raw []byte) (requests []request, final framing) {
	f := newFraming()
	for i := range raw {
		heads, inBody := f.heads, f.inBody
		f.feed(raw[i : i+1])
		if f.heads > heads {
			requests = append(requests, request{i + 1, -1})
		}
		started := f.heads > heads || inBody
		if f.fault == noFault && started && !f.inBody {
			requests[len(requests)-1].body = i + 1
		}
	}
	return requests, *f
}

// netRequests returns the requests as net/http sees them, up to its first error.
// Like its server it skips blank lines after a POST.
func netRequests(raw []byte) (requests []request, failed bool) {
	source := bytes.NewReader(raw)
	r := bufio.NewReader(source)
	offset := func() int { return len(raw) - source.Len() - r.Buffered() }
	last := ""
	for {
		if last == http.MethodPost {
			skipBlankLines(r)
		}
		if _, err := r.Peek(1); err != nil {
			return requests, false
		}
		req, err := http.ReadRequest(r)
		if err != nil {
			return requests, true
		}
		last = req.Method
		requests = append(requests, request{offset(), -1})
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return requests, true
		}
		requests[len(requests)-1].body = offset()
		if req.Close {
			return requests, true
		}
	}
}

func skipBlankLines(r *bufio.Reader) {
	peek, _ := r.Peek(4)
	n := 0
	for n < len(peek) && (peek[n] == '\r' || peek[n] == '\n') {
		n++
	}
	r.Discard(n)
}

// FuzzGuard holds that wherever the guard has no objection, net/http sees the
// same requests end at the same bytes, however the stream is cut.
func FuzzGuard(f *testing.F) {
	for _, a := range attacks() {
		f.Add([]byte(a.raw), uint64(len(a.raw)))
	}
	f.Add([]byte(get("Connection: close\r\n")+smuggled), uint64(1))
	f.Fuzz(func(t *testing.T, raw []byte, seed uint64) {
		ours, final := guardRequests(raw)
		checkSplit(t, raw, seed, final)
		theirs, failed := netRequests(raw)
		for i := range min(len(ours), len(theirs)) {
			o, n := ours[i], theirs[i]
			if o.head != n.head {
				t.Fatalf("head %d ends at %d for the guard, at %d for net/http", i, o.head, n.head)
			}
			if o.body >= 0 && n.body >= 0 && o.body != n.body {
				t.Fatalf("body %d ends at %d for the guard, at %d for net/http", i, o.body, n.body)
			}
			if o.body < 0 && n.body >= 0 && final.fault == noFault {
				t.Fatalf("body %d ends at %d for net/http only", i, n.body)
			}
			if o.body >= 0 && n.body < 0 && !failed {
				t.Fatalf("body %d ends at %d for the guard only", i, o.body)
			}
		}
		if final.fault == noFault && len(theirs) > len(ours) {
			t.Fatalf("net/http sees %d requests, the guard %d", len(theirs), len(ours))
		}
		if final.fault == noFault && !failed && len(theirs) != len(ours) {
			t.Fatalf("net/http sees %d requests, the guard %d", len(theirs), len(ours))
		}
	})
}

func checkSplit(t *testing.T, raw []byte, seed uint64, want framing) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	f := newFraming()
	for rest := raw; len(rest) > 0; {
		n := 1 + random.IntN(len(rest))
		f.feed(rest[:n])
		rest = rest[n:]
	}
	if !agree(*f, want) {
		t.Fatalf("split: %+v, byte by byte: %+v", *f, want)
	}
}
