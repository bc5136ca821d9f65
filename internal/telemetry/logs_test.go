package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/internal/telemetry"
)

// sink counts what is written to it.
type sink struct {
	mu     sync.Mutex
	text   bytes.Buffer
	writes int
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	return s.text.Write(p)
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// lines are the JSON lines written so far.
func (s *sink) lines(t *testing.T) []map[string]any {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []map[string]any
	for _, line := range strings.Split(strings.TrimSuffix(s.text.String(), "\n"), "\n") {
		if line == "" {
			continue
		}
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, v)
	}
	return out
}

func TestLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w sink
		logs, err := telemetry.NewLogs(&w, "warn")
		if err != nil {
			t.Fatal(err)
		}
		logs.Events.Info("hidden")
		logs.Events.Warn("backend is down", zap.String("backend", "a\nb"), zap.Error(errors.New("refused")))
		logs.Access.Info("request", zap.Int("status", 200), zap.Float64("ttft_ms", 12.5)) // whatever the level
		synctest.Wait()
		if w.count() != 0 {
			t.Error("lines are not buffered")
		}
		start := time.Now()
		time.Sleep(time.Second / 5)
		synctest.Wait()
		got := w.lines(t)
		if len(got) != 2 || w.count() != 1 {
			t.Fatalf("%d lines in %d writes after a fifth of a second", len(got), w.count())
		}
		if got[0]["level"] != "warn" || got[0]["msg"] != "backend is down" || got[0]["backend"] != "a\nb" || got[0]["error"] != "refused" {
			t.Errorf("event %v", got[0])
		}
		if got[1]["level"] != "info" || got[1]["status"] != 200. || got[1]["ttft_ms"] != 12.5 {
			t.Errorf("access %v", got[1])
		}
		if at, err := time.Parse(time.RFC3339Nano, got[0]["time"].(string)); err != nil || !at.Equal(start) {
			t.Errorf("time %v, want %v: %v", got[0]["time"], start, err)
		}
		logs.Events.Error("last words")
		if err := logs.Sync(); err != nil {
			t.Fatal(err)
		}
		if got := w.lines(t); len(got) != 3 || got[2]["msg"] != "last words" {
			t.Errorf("after Sync: %v", got)
		}
	})
}

func TestLogsConcurrently(t *testing.T) {
	var w sink
	logs, err := telemetry.NewLogs(&w, "debug")
	if err != nil {
		t.Fatal(err)
	}
	const each = 500
	long := strings.Repeat("x", 1000) // many times the buffer in all
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range each {
				logs.Access.Info("request", zap.String("s", long))
				logs.Events.Debug("event")
			}
		})
	}
	wg.Wait()
	if err := logs.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := len(w.lines(t)); got != 4*2*each {
		t.Errorf("%d whole lines, want %d", got, 4*2*each)
	}
}

func TestServerLog(t *testing.T) {
	for level, want := range map[string]int{"debug": 1, "info": 0} {
		var w sink
		logs, err := telemetry.NewLogs(&w, level)
		if err != nil {
			t.Fatal(err)
		}
		logs.ForServer().Print("http: TLS handshake error")
		if err := logs.Sync(); err != nil {
			t.Fatal(err)
		}
		if got := w.lines(t); len(got) != want || want == 1 && got[0]["level"] != "debug" {
			t.Errorf("at level %s: %v", level, got)
		}
	}
}

func TestLogLevel(t *testing.T) {
	if _, err := telemetry.NewLogs(&sink{}, "loud"); err == nil || !strings.Contains(err.Error(), "loud") || !strings.Contains(err.Error(), "warn") {
		t.Errorf("error %v does not name what is wrong and what is right", err)
	}
	logs, err := telemetry.NewLogs(&sink{}, "info")
	if err != nil {
		t.Fatal(err)
	}
	if err := logs.Sync(); err != nil { // nothing was ever written
		t.Error(err)
	}
}
