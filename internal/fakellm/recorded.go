package fakellm

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Exchange is one recorded request and its answer.
type Exchange struct {
	File    string // name of the body's file, tells exchanges apart
	Engine  string
	Status  int
	Stream  bool
	Method  string
	Path    string
	Request json.RawMessage // the body sent; nil where it was not recorded
	Header  http.Header     // of the response, as recorded
	Body    []byte          // of the response, de-chunked
	Events  int             // lines that start with "data:"
	HasDone bool            // "data: [DONE]" is there
	Note    string
}

// Recordings loads the shared exchanges, or skips the test where they are not.
// FIRSTTOKEN_DATA names the folder of the data; without it the default fits
// packages two folders below the root.
func Recordings(t testing.TB) []Exchange {
	t.Helper()
	data := cmp.Or(os.Getenv("FIRSTTOKEN_DATA"), filepath.Join("..", "..", "..", "shared", "data"))
	exchanges, err := LoadRecorded(filepath.Join(data, "sse"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no recorded exchanges (set FIRSTTOKEN_DATA): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return exchanges
}

// LoadRecorded reads dir/index.jsonl and the body files that it names.
func LoadRecorded(dir string) ([]Exchange, error) {
	index, err := os.ReadFile(filepath.Join(dir, "index.jsonl")) //nolint:gosec // the folder a test names
	if err != nil {
		return nil, fmt.Errorf("load recorded exchanges: %w", err)
	}
	var exchanges []Exchange
	lines := bufio.NewScanner(bytes.NewReader(index))
	lines.Buffer(nil, len(index)+1)
	for lines.Scan() {
		e, err := loadExchange(dir, lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("load recorded exchange %d: %w", len(exchanges)+1, err)
		}
		exchanges = append(exchanges, e)
	}
	return exchanges, lines.Err()
}

func loadExchange(dir string, line []byte) (Exchange, error) {
	var row struct {
		Exchange
		Headers map[string]any `json:"response_headers"` // a string or a list of them
		HasDone bool           `json:"has_done"`
	}
	if err := json.Unmarshal(line, &row); err != nil {
		return Exchange{}, err
	}
	e := row.Exchange
	e.HasDone = row.HasDone
	if string(e.Request) == "null" {
		e.Request = nil
	}
	e.Header = http.Header{}
	for name, value := range row.Headers {
		values, several := value.([]any)
		if !several {
			values = []any{value}
		}
		for _, v := range values {
			e.Header.Add(name, fmt.Sprint(v))
		}
	}
	var err error
	e.Body, err = os.ReadFile(filepath.Join(dir, filepath.Base(e.File))) //nolint:gosec // a file of the same folder
	return e, err
}

// Recorded plays an exchange: its status, its header without what belongs to
// the recorded connection, and its body, a stream event by event.
func Recorded(e Exchange) Script {
	header := e.Header.Clone()
	for _, name := range []string{"Connection", "Content-Length", "Transfer-Encoding"} {
		header.Del(name)
	}
	if !e.Stream {
		return Status(e.Status, header, string(e.Body))
	}
	return Script{Header(e.Status, header), Send(strings.SplitAfter(string(e.Body), "\n\n")...)}
}
