package conformance

import (
	"net"
	"testing"
)

// listen opens a free port of the loopback.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// freePort is a port that nobody listened at a moment ago.
func freePort(t testing.TB) string {
	t.Helper()
	l := listen(t)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}
