package fakellm_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

func TestRecordedAgreeWithTheirIndex(t *testing.T) {
	exchanges := fakellm.Recordings(t)
	if len(exchanges) != 38 {
		t.Errorf("%d exchanges, want 38", len(exchanges))
	}
	for _, e := range exchanges {
		events := 0
		for line := range bytes.Lines(e.Body) {
			if bytes.HasPrefix(line, []byte("data:")) {
				events++
			}
		}
		if events != e.Events {
			t.Errorf("%s: %d data lines, the index says %d", e.File, events, e.Events)
		}
		if done := bytes.Contains(e.Body, []byte("data: [DONE]")); done != e.HasDone {
			t.Errorf("%s: [DONE] %v, the index says %v", e.File, done, e.HasDone)
		}
		if e.Engine == "" || e.Status < 200 || e.Method == "" || e.Path == "" {
			t.Errorf("%s: incomplete: %s %d %s %s", e.File, e.Engine, e.Status, e.Method, e.Path)
		}
	}
}

func TestRecordedPlayUnchanged(t *testing.T) {
	for _, e := range fakellm.Recordings(t) {
		inBubble(t, &fakellm.Backend{Script: always(fakellm.Recorded(e))}, func(t *testing.T, c client) {
			got := c.do(t.Context(), e.Method, e.Path, string(e.Request))
			if got.status != e.Status || got.err != nil || got.body() != string(e.Body) {
				t.Errorf("%s: status %d, %d bytes of %d, %v", e.File, got.status, len(got.body()), len(e.Body), got.err)
			}
			if want := e.Header.Get("Content-Type"); want != "" && got.header.Get("Content-Type") != want {
				t.Errorf("%s: type %q, want %q", e.File, got.header.Get("Content-Type"), want)
			}
		})
	}
}

func TestLoadRecordedErrors(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"no index":  {},
		"bad index": {"index.jsonl": "{"},
		"no body":   {"index.jsonl": `{"file":"gone.sse"}`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := fakellm.LoadRecorded(dir); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestLoadRecorded(t *testing.T) {
	dir := t.TempDir()
	index := `{"file":"a.sse","engine":"x","status":200,"stream":true,"method":"POST","path":"/p","request":{"a":1},` +
		`"response_headers":{"server":["u","v"],"connection":"close"},"events":1,"has_done":true,"note":"n"}` + "\n"
	for file, text := range map[string]string{"index.jsonl": index, "a.sse": "data: [DONE]\n\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := fakellm.LoadRecorded(dir)
	if err != nil || len(got) != 1 {
		t.Fatalf("%d exchanges, %v", len(got), err)
	}
	e := got[0]
	if e.File != "a.sse" || e.Status != 200 || !e.Stream || string(e.Request) != `{"a":1}` || len(e.Header.Values("Server")) != 2 ||
		string(e.Body) != "data: [DONE]\n\n" || e.Events != 1 || !e.HasDone || e.Note != "n" {
		t.Errorf("%+v", e)
	}
}
