package top

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/admin"
)

// server answers as a gateway with so many events does.
type server struct {
	begun  int // when it was started, in seconds
	uptime float64
	events int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any = admin.State{Version: "v1", UptimeS: s.uptime, At: time.Unix(int64(s.begun)+int64(s.uptime), 0)}
	if r.URL.Path == "/events" {
		limit, _ := strconv.Atoi(r.FormValue("limit"))
		since, err := strconv.Atoi(r.FormValue("since"))
		if err != nil {
			since = max(s.events-limit, 0)
		}
		page := admin.Events{Next: uint64(since)}
		for seq := since + 1; seq <= s.events && len(page.Events) < limit; seq++ {
			page.Events, page.Next = append(page.Events, admin.Event{Seq: uint64(seq)}), uint64(seq)
		}
		answer = page
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func testClient(t *testing.T, h http.Handler) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := NewClient(srv.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEvents follows the events of a gateway that is started again.
func TestEvents(t *testing.T) {
	s := &server{}
	c := testClient(t, s)
	for _, step := range []struct {
		begun       int
		uptime      float64
		events      int
		first, last uint64
		n           int
	}{
		{0, 1, 0, 0, 0, 0},
		{0, 2, 3, 1, 3, 3},
		{0, 3, 3, 1, 3, 3},
		{0, 4, 150, 4, 103, 100}, // more than one answer holds: the rest comes with the next
		{0, 5, 151, 52, 151, 100},
		{10, 1, 2, 1, 2, 2}, // again from 1
		{10, 2, 3, 1, 3, 3},
		{20, 1, 300, 201, 300, 100}, // and again: the newest
		{30, 60, 2, 1, 2, 2},        // it was out of reach, and runs for longer by now than the former did
	} {
		s.begun, s.uptime, s.events = step.begun, step.uptime, step.events
		got, err := c.Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Events) != step.n || (step.n > 0 && (got.Events[0].Seq != step.first || got.Events[step.n-1].Seq != step.last)) {
			t.Errorf("%+v: got %d events: %v", step, len(got.Events), got.Events)
		}
	}
}

// TestSnapshotsStay: a snapshot is not changed by the next fetch.
func TestSnapshotsStay(t *testing.T) {
	s := &server{uptime: 1, events: 120}
	c := testClient(t, s)
	first, err := c.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		s.events++
		if _, err := c.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i, e := range first.Events {
		if e.Seq != uint64(21+i) {
			t.Fatalf("event %d of an old snapshot is now %d", 21+i, e.Seq)
		}
	}
}

func TestErrorsNameURLAndFix(t *testing.T) {
	answer := func(status int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		})
	}
	for name, c := range map[string]struct {
		handler http.Handler
		want    string
	}{
		"another server": {answer(404, "no"), "answers 404 Not Found"},
		"not JSON":       {answer(200, "<html>"), "invalid character '<'"},
		"half an answer": {answer(200, `{"version":"v1"`), "unexpected EOF"},
	} {
		_, err := testClient(t, c.handler).Fetch(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "http://127.0.0.1:") || !strings.Contains(err.Error(), "--url") {
			t.Errorf("%s: %v", name, err)
		}
	}
	gone := httptest.NewServer(answer(200, "{}"))
	c, _ := NewClient(strings.Replace(gone.URL, "http://", "http://user:secret@", 1))
	gone.Close()
	_, err := c.Fetch(t.Context())
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "start it") || strings.Contains(err.Error(), "secret") {
		t.Errorf("nobody listens: %v", err)
	}
	for _, bad := range []string{"", "127.0.0.1:8081", "ftp://x", "http://", ":"} {
		if _, err := NewClient(bad); err == nil || !strings.Contains(err.Error(), "http://HOST:PORT") {
			t.Errorf("--url %q: %v", bad, err)
		}
	}
}
