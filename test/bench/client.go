package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"time"
)

// kind is one sort of request.
type kind struct {
	name   string
	body   string
	stream bool
	paced  bool
}

const message = `{"model":"bench","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"Say hello."}]`

var (
	plain  = kind{name: "json", body: message + `}`}
	stream = kind{name: "stream", body: message + `,"stream":true}`, stream: true}
	paced  = kind{name: "paced", body: message + `,"stream":true,"user":"pace"}`, stream: true, paced: true}
	held   = kind{name: "held", body: message + `,"stream":true,"user":"hold"}`, stream: true}
)

// request is the kind's request as a client's SDK writes it.
func (k kind) request(addr string) []byte {
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nUser-Agent: OpenAI/Python 2.3.0\r\nAccept: application/json\r\n"+
		"Authorization: Bearer sk-bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", addr, len(k.body), k.body)
}

// client is one keep-alive connection that sends one kind of request. It
// checks that each answer is whole.
type client struct {
	addr string
	kind kind
	req  []byte

	conn net.Conn
	in   *bufio.Reader
	buf  []byte
}

func newClient(addr string, k kind) *client {
	return &client{addr: addr, kind: k, req: k.request(addr), buf: make([]byte, 16<<10)}
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

func (c *client) attach(conn net.Conn) {
	c.conn, c.in = conn, bufio.NewReaderSize(conn, 16<<10)
}

// do sends one request and reads its answer. first is the time to the first
// token of a stream, total the time to the end.
func (c *client) do() (first, total time.Duration, err error) {
	start := time.Now()
	length, again, err := c.send()
	if err == nil {
		first, err = c.read(start, length)
	}
	if err != nil || !again {
		c.close()
	}
	return first, time.Since(start), err
}

// send connects if need be, writes the request, and reads the answer's head.
// length is -1 for a chunked body.
func (c *client) send() (length int, again bool, err error) {
	if c.conn == nil {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			return 0, false, err
		}
		c.attach(conn)
	}
	if err := c.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, false, err
	}
	if _, err := c.conn.Write(c.req); err != nil {
		return 0, false, err
	}
	status, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, false, err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200")) {
		return 0, false, fmt.Errorf("answered %q", bytes.TrimSpace(status))
	}
	length, again = -1, true
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, false, err
		}
		if len(line) <= 2 {
			return length, again, nil
		}
		if value, ok := header(line, "content-length:"); ok {
			if length, err = strconv.Atoi(value); err != nil {
				return 0, false, err
			}
		}
		if value, ok := header(line, "connection:"); ok && value == "close" {
			again = false
		}
	}
}

func (c *client) read(start time.Time, length int) (first time.Duration, err error) {
	if length >= 0 {
		if c.kind.stream {
			return 0, errors.New("a stream was answered whole")
		}
		_, err := c.in.Discard(length)
		return 0, err
	}
	if !c.kind.stream {
		return 0, errors.New("an answer was chunked")
	}
	return c.readStream(start)
}

// readStream counts events by their blank lines. The second event holds the
// first token.
func (c *client) readStream(start time.Time) (first time.Duration, err error) {
	body := httputil.NewChunkedReader(c.in)
	count, last := 0, byte(0)
	for {
		n, err := body.Read(c.buf)
		for _, b := range c.buf[:n] {
			if b == '\n' && last == '\n' {
				count++
			}
			last = b
		}
		if first == 0 && count >= 2 {
			first = time.Since(start)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	if count != events {
		return 0, fmt.Errorf("a stream had %d events, not %d", count, events)
	}
	_, err = c.in.Discard(2) // the blank line after the last chunk
	return first, err
}

// open sends the request and waits for the answer's first event.
func (c *client) open() error {
	length, _, err := c.send()
	if err != nil {
		return err
	}
	if length >= 0 {
		return errors.New("a stream was answered whole")
	}
	_, err = httputil.NewChunkedReader(c.in).Read(c.buf)
	return err
}
