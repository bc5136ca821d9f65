package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// testMock serves a mock until the test ends and returns its address.
func testMock(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = newMock().accept(t.Context(), ln) }()
	t.Cleanup(func() { <-done })
	return ln.Addr().String()
}

// testRelay serves a relay in front of the engine.
func testRelay(t *testing.T, engine string) string {
	t.Helper()
	transport := &http.Transport{DisableCompression: true}
	server := httptest.NewServer(&relay{to: "http://" + engine, transport: transport})
	t.Cleanup(func() { server.Close(); transport.CloseIdleConnections() })
	return server.Listener.Addr().String()
}

func TestEveryKindArrivesWhole(t *testing.T) {
	engine := testMock(t)
	for name, addr := range map[string]string{"direct": engine, "relay": testRelay(t, engine)} {
		for _, k := range []kind{plain, stream, paced} {
			c := newClient(addr, k)
			for range 3 { // kept alive
				first, total, err := c.do()
				if err != nil {
					t.Fatalf("%s, %s: %v", name, k.name, err)
				}
				if c.conn == nil {
					t.Errorf("%s, %s: the connection was not kept", name, k.name)
				}
				if k.stream && (first <= 0 || first > total) {
					t.Errorf("%s, %s: first token after %v of %v", name, k.name, first, total)
				}
				if k.paced && total < (events-3)*pace {
					t.Errorf("%s: a paced stream took %v", name, total)
				}
			}
			c.close()
		}
	}
}

func TestClientRefusesWhatIsNotWhole(t *testing.T) {
	for name, answer := range map[string]string{
		"status":       "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
		"missing end":  "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\ndata: 1\n\r\n",
		"missing data": "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n0\r\n\r\n",
		"whole":        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
	} {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			_, _ = theirs.Read(make([]byte, 4<<10))
			_, _ = theirs.Write([]byte(answer))
		}()
		c := newClient("", stream)
		c.attach(ours)
		if _, _, err := c.do(); err == nil {
			t.Errorf("%s: taken for a whole stream", name)
		}
	}
}

func TestMockAddsUsageOnlyWhenAsked(t *testing.T) {
	m := newMock()
	if n := len(m.stream); n != events {
		t.Errorf("a stream has %d events", n)
	}
	if n := len(m.withUsage); n != events+1 {
		t.Errorf("a stream with usage has %d events", n)
	}
	if !strings.Contains(string(m.withUsage[events-1]), `"usage"`) {
		t.Error("usage does not stand before [DONE]")
	}
}

func TestOwnProcessIsMeasured(t *testing.T) {
	own := family(os.Getpid())
	if own[0] != os.Getpid() {
		t.Fatalf("family %v", own)
	}
	before := own.cpu()
	for start := time.Now(); time.Since(start) < 30*time.Millisecond; {
	}
	if own.cpu() <= before {
		t.Error("no CPU time was seen")
	}
	if rss, _ := own.memory(); rss < 1024 {
		t.Errorf("%v KiB resident", rss)
	}
}

func TestRoutingIsHeldToItsTarget(t *testing.T) {
	for verdict, trees := range map[string]float64{"250  MISSED": 450, "150  met": 350} {
		r := routing{first: results{
			"p50": {nameDirect: {100, 200}, nameLeast: {300, 400}, nameLinear: {310, 420}, nameTrees: {trees + 100, trees + 200}},
			"p95": {nameDirect: {100, 200}, nameLeast: {300, 400}, nameLinear: {310, 420}, nameTrees: {trees, trees}},
		}}
		var out strings.Builder
		r.print(&out)
		if text := out.String(); !strings.Contains(text, verdict) || !strings.Contains(text, "15.0  met") {
			t.Errorf("want %q in\n%s", verdict, text)
		}
	}
}

func TestRatiosAreOfTheSameRound(t *testing.T) {
	r := results{"m": {nameDirect: {1, 2, 3}, nameGateway: {3, 6, 9}, nameCaddy: {2, 2, 5}}}
	added := r.added("m")
	if got := added[nameGateway]; !slices.Equal(got, []float64{2, 4, 6}) {
		t.Errorf("added %v", got)
	}
	// Caddy added nothing in the second round: there is no ratio to it.
	if got := ratios(added[nameGateway], added[nameCaddy]); !slices.Equal(got, []float64{2, 3}) {
		t.Errorf("ratios %v", got)
	}
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median %v", got)
	}
}
