package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// mock is an engine that costs next to nothing, so that the peers in front of
// it are the bottleneck: answers are rendered once, and requests are read only
// as far as choosing one needs. Every request's body is read before it is
// answered, and every event of a stream is one write, as engines do.
type mock struct {
	json, models, metrics []byte
	stream, withUsage     [][]byte // pieces to write, one an event
}

const (
	events  = 21                    // data events of a stream: role, 18 tokens, finish, [DONE]
	pace    = 10 * time.Millisecond // between two tokens of a paced stream
	created = `"created":1760000000,"model":"bench"`
)

// Markers in a request's body that choose the answer.
var (
	asksStream = []byte(`"stream":true`)
	asksUsage  = []byte(`"include_usage":true`)
	asksPace   = []byte(`"user":"pace"`)
	asksHold   = []byte(`"user":"hold"`) // first event, then silence
)

func mockCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mock", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:9000", "address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	return newMock().accept(ctx, ln)
}

// accept serves until ctx ends.
func (m *mock) accept(ctx context.Context, ln net.Listener) error {
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	for {
		conn, err := ln.Accept()
		if ctx.Err() != nil {
			return nil // the process's end closes what is open
		}
		if err != nil {
			return err
		}
		go m.serve(conn)
	}
}

func newMock() *mock {
	const usage = `"usage":{"prompt_tokens":9,"completion_tokens":18,"total_tokens":27}`
	answer := `{"id":"chatcmpl-0123456789abcdef","object":"chat.completion",` + created +
		`,"choices":[{"index":0,"message":{"role":"assistant","content":"Hello! How can I help you today?"},"finish_reason":"stop"}],` + usage + `}`
	return &mock{
		json:      whole("application/json", answer),
		models:    whole("application/json", `{"object":"list","data":[{"id":"bench","object":"model","created":1760000000,"owned_by":"vllm"}]}`),
		metrics:   whole("text/plain; version=0.0.4", engineMetrics()),
		stream:    streamPieces(""),
		withUsage: streamPieces(event(`"choices":[],` + usage)),
	}
}

func whole(contentType, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\ndate: Thu, 09 Oct 2025 08:53:20 GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: %s\r\n\r\n%s",
		len(body), contentType, body)
}

// streamPieces is a chunked answer; the head goes with the first event and the
// last chunk with the last one. usage stands before [DONE].
func streamPieces(usage string) [][]byte {
	const head = "HTTP/1.1 200 OK\r\ndate: Thu, 09 Oct 2025 08:53:20 GMT\r\nserver: uvicorn\r\n" +
		"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
	all := []string{event(choice(`{"role":"assistant","content":""}`, "null"))}
	for i := range events - 3 {
		all = append(all, event(choice(fmt.Sprintf(`{"content":" token%d"}`, i), "null")))
	}
	all = append(all, event(choice(`{}`, `"stop"`)))
	if usage != "" {
		all = append(all, usage)
	}
	all = append(all, "data: [DONE]\n\n")
	pieces := make([][]byte, len(all))
	for i, e := range all {
		pieces[i] = fmt.Appendf(nil, "%x\r\n%s\r\n", len(e), e)
	}
	pieces[0] = append([]byte(head), pieces[0]...)
	last := len(pieces) - 1
	pieces[last] = append(pieces[last], "0\r\n\r\n"...)
	return pieces
}

func event(rest string) string {
	return `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk",` + created + `,` + rest + "}\n\n"
}

func choice(delta, finish string) string {
	return `"choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":` + finish + `}]`
}

// engineMetrics is a page of the size and shape of vLLM's: about 50 KB, most
// of it buckets of histograms.
func engineMetrics() string {
	var b strings.Builder
	for _, gauge := range []string{"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
		"prefix_cache_queries_total", "prefix_cache_hits_total"} {
		fmt.Fprintf(&b, "# TYPE vllm:%[1]s gauge\nvllm:%[1]s{engine=\"0\",model_name=\"bench\"} 0.0\n", gauge)
	}
	for i := range 22 {
		name := fmt.Sprintf("vllm:request_phase_%d_seconds", i)
		fmt.Fprintf(&b, "# HELP %[1]s Histogram of time spent in one phase of a request.\n# TYPE %[1]s histogram\n", name)
		for bucket := range 24 {
			fmt.Fprintf(&b, "%s_bucket{engine=\"0\",le=\"%d.0\",model_name=\"bench\"} %d.0\n", name, 1<<bucket, bucket)
		}
		fmt.Fprintf(&b, "%[1]s_count{engine=\"0\",model_name=\"bench\"} 24.0\n%[1]s_sum{engine=\"0\",model_name=\"bench\"} 7.0\n", name)
	}
	return b.String()
}

// serve answers the requests of one connection until it ends.
func (m *mock) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 8<<10)
	var body []byte
	for {
		path, length, err := readHead(in)
		if err != nil {
			return
		}
		body = append(body[:0], make([]byte, length)...)
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		if m.answer(conn, path, body) != nil {
			return
		}
	}
}

// readHead reads a request's head: its path and the length of its body.
func readHead(in *bufio.Reader) (path string, length int, err error) {
	first, err := in.ReadSlice('\n')
	if err != nil {
		return "", 0, err
	}
	if f := bytes.Fields(first); len(f) == 3 {
		path = string(f[1])
	}
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return "", 0, err
		}
		if len(line) <= 2 {
			return path, length, nil
		}
		if value, ok := header(line, "content-length:"); ok {
			if length, err = strconv.Atoi(value); err != nil {
				return "", 0, err
			}
		}
	}
}

// header returns the value of a header line if it has the name, given in lower
// case with its colon.
func header(line []byte, name string) (string, bool) {
	if len(line) < len(name) || (line[0]|0x20) != name[0] || !strings.EqualFold(string(line[:len(name)]), name) {
		return "", false
	}
	return string(bytes.TrimSpace(line[len(name):])), true
}

func (m *mock) answer(conn net.Conn, path string, body []byte) error {
	switch {
	case strings.HasPrefix(path, "/metrics"):
		return write(conn, m.metrics)
	case len(body) == 0:
		return write(conn, m.models) // a health probe
	case !bytes.Contains(body, asksStream):
		return write(conn, m.json)
	}
	pieces := m.stream
	if bytes.Contains(body, asksUsage) {
		pieces = m.withUsage
	}
	switch {
	case bytes.Contains(body, asksHold):
		return hold(conn, pieces[0])
	case bytes.Contains(body, asksPace):
		return writePaced(conn, pieces)
	}
	for _, p := range pieces {
		if err := write(conn, p); err != nil {
			return err
		}
	}
	return nil
}

// hold sends the first piece and waits until the client has left.
func hold(conn net.Conn, first []byte) error {
	if err := write(conn, first); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	return err
}

// writePaced sends what engines send together at once (role and first token;
// usage and [DONE]) and the rest on a schedule that late timers do not stretch.
func writePaced(conn net.Conn, pieces [][]byte) error {
	start := time.Now()
	for i, p := range pieces {
		if i > 1 && i < events-1 {
			time.Sleep(time.Until(start.Add(time.Duration(i-1) * pace)))
		}
		if err := write(conn, p); err != nil {
			return err
		}
	}
	return nil
}

func write(conn net.Conn, p []byte) error {
	_, err := conn.Write(p)
	return err
}
