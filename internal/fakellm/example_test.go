package fakellm_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// A backend that is overloaded once, then streams, and then breaks.
func ExampleBackend() {
	backend := &fakellm.Backend{Script: fakellm.Sequence(
		fakellm.Status(429, http.Header{"Retry-After": {"1"}}, `{"error":{"message":"busy"}}`),
		fakellm.Tokens(3, 5*time.Millisecond, time.Millisecond),
		fakellm.Broken(2, 0, 0, fakellm.Reset()),
	)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := fakellm.Serve(l, backend)
	defer server.Close()

	for range 3 {
		resp, err := http.Post(server.URL+"/v1/chat/completions", "application/json", strings.NewReader(stream))
		if err != nil {
			panic(err)
		}
		fmt.Println(resp.StatusCode, resp.Header.Get("Content-Type"))
		resp.Body.Close()
	}
	fmt.Println(backend.Count(), "requests for", backend.Requests()[0].Model)
	// Output:
	// 429 application/json
	// 200 text/event-stream
	// 200 text/event-stream
	// 3 requests for m
}
