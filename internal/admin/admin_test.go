package admin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/internal/admin"
	"github.com/firsttoken/firsttoken/internal/rollback"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// decider keeps what it was asked.
type decider struct{ asked router.Filter }

func (d *decider) list(f router.Filter) []router.Decision {
	d.asked = f
	return []router.Decision{{Request: "r"}}
}

func handler(d *decider, log *admin.Log) http.Handler {
	return admin.New(admin.Sources{
		State:     func(now time.Time) admin.State { return admin.State{At: now, Version: "v"} },
		Decisions: d.list, Events: log,
		Evaluations: func() []rollback.Record { return []rollback.Record{{Instance: "b"}, {Instance: "a"}} },
	})
}

func get(t *testing.T, h http.Handler, method, path string, into any) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	if w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%s: %q", path, w.Header())
	}
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
		t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
	return w
}

func TestAnswers(t *testing.T) {
	d := &decider{}
	h := handler(d, admin.NewLog(3))
	var s admin.State
	if get(t, h, "GET", "/state", &s); s.Version != "v" || s.At.IsZero() {
		t.Errorf("%+v", s)
	}
	var decisions admin.Decisions
	get(t, h, "GET", "/decisions?model=m&contract=c&backend=b&request=r&limit=7", &decisions)
	if want := (router.Filter{Model: "m", Contract: "c", Backend: "b", Request: "r", Limit: 7}); d.asked != want || len(decisions.Decisions) != 1 {
		t.Errorf("asked %+v, got %+v", d.asked, decisions)
	}
	if get(t, h, "GET", "/decisions", &decisions); d.asked != (router.Filter{Limit: 100}) {
		t.Errorf("asked %+v", d.asked)
	}
	var found admin.Evaluations
	if get(t, h, "GET", "/evaluations?limit=1", &found); len(found.Evaluations) != 1 || found.Evaluations[0].Instance != "b" {
		t.Errorf("%+v", found)
	}
	if get(t, h, "GET", "/evaluations", &found); len(found.Evaluations) != 2 {
		t.Errorf("%+v", found)
	}
}

func TestBadQueries(t *testing.T) {
	h := handler(&decider{}, admin.NewLog(3))
	for path, want := range map[string][]string{ // parameter, and words of the message
		"/state?x=1":                           {"x", `"x"`, "leave it out"},
		"/decisions?limit=0":                   {"limit", `"0"`, "1 to 1000"},
		"/decisions?limit=1001":                {"limit", "1 to 1000"},
		"/decisions?limit=":                    {"limit", "1 to 1000"},
		"/decisions?limt=1":                    {"limt", "use model, contract, backend, request, limit"},
		"/decisions?model=a&model":             {"model", "once"},
		"/events?since=-1":                     {"since", `"-1"`, "number"},
		"/events?since=x&limit=1":              {"since", `"x"`},
		"/events?limit=1e3":                    {"limit", "1 to 1000"},
		"/evaluations?since=1":                 {"since", "use limit"},
		"/events?%zz":                          {"", "percent-encoded"},
		"/events?" + strings.Repeat("y", 5000): {strings.Repeat("y", 100), "use since, limit"},
	} {
		var p admin.Problem
		w := get(t, h, "GET", path, &p)
		if w.Code != 400 || p.Error.Param != want[0] || w.Body.Len() > 600 {
			t.Errorf("%.60s: %d %.300s", path, w.Code, w.Body)
		}
		for _, words := range want[1:] {
			if !strings.Contains(p.Error.Message, words) {
				t.Errorf("%.60s: %q does not say %q", path, p.Error.Message, words)
			}
		}
	}
	var p admin.Problem
	if w := get(t, h, "POST", "/state", &p); w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" || !strings.Contains(p.Error.Message, "use GET") {
		t.Errorf("%d %+v", w.Code, p)
	}
}

// bounded notes the deadline of a connection.
type bounded struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (b *bounded) SetWriteDeadline(t time.Time) error { b.until = t; return nil }

// Who does not read holds an answer in memory, but not for ever.
func TestSlowReaderIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, path := range admin.Paths() {
			w := &bounded{ResponseRecorder: httptest.NewRecorder()}
			handler(&decider{}, admin.NewLog(3)).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if want := time.Now().Add(30 * time.Second); !w.until.Equal(want) {
				t.Errorf("%s may be read until %v, want %v", path, w.until, want)
			}
		}
	})
}

func TestEvents(t *testing.T) {
	log := admin.NewLog(5)
	h := handler(&decider{}, log)
	list := func(query string) (seqs []uint64, next uint64) {
		var e admin.Events
		get(t, h, "GET", "/events"+query, &e)
		if e.Events == nil {
			t.Errorf("%s: no list", query)
		}
		for _, x := range e.Events {
			if x.Message != fmt.Sprint("line ", x.Seq) {
				t.Errorf("%s: %+v", query, x)
			}
			seqs = append(seqs, x.Seq)
		}
		return seqs, e.Next
	}
	write := zap.New(log)
	if got, next := list(""); len(got) != 0 || next != 0 {
		t.Errorf("of nothing: %v, %d", got, next)
	}
	for i := range 8 {
		write.Debug("not kept")
		write.Info(fmt.Sprint("line ", i+1))
	}
	for query, want := range map[string]struct {
		seqs []uint64
		next uint64
	}{
		"":                   {[]uint64{4, 5, 6, 7, 8}, 8},
		"?limit=2":           {[]uint64{7, 8}, 8},
		"?since=0":           {[]uint64{4, 5, 6, 7, 8}, 8},
		"?since=0&limit=2":   {[]uint64{4, 5}, 5},
		"?since=5&limit=2":   {[]uint64{6, 7}, 7},
		"?since=7":           {[]uint64{8}, 8},
		"?since=8":           {nil, 8},
		"?since=99&limit=10": {nil, 99},
	} {
		if got, next := list(query); !slices.Equal(got, want.seqs) || next != want.next {
			t.Errorf("%s: %v and next %d, want %v and %d", query, got, next, want.seqs, want.next)
		}
	}
}

func TestEventFields(t *testing.T) {
	log := admin.NewLog(5)
	at := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	zap.New(log).With(zap.String("backend", "a")).Warn("m", zap.Int("windows", 3), zap.Float64("share", 0.5), zap.Time("since", at),
		zap.Duration("for", 1500*time.Millisecond), zap.Error(errors.New("broken")), zap.ByteString("stack", []byte("main.go")),
		zap.Bool("ok", true), zap.String("long", strings.Repeat("é", 5000)))
	zap.New(log).Error("e")
	var e admin.Events
	get(t, handler(&decider{}, log), "GET", "/events", &e)
	if len(e.Events) != 2 || e.Events[0].Level != "warn" || e.Events[1].Level != "error" || e.Events[0].At.IsZero() || len(e.Events[1].Fields) != 0 {
		t.Fatalf("%+v", e.Events)
	}
	f := e.Events[0].Fields
	for name, want := range map[string]string{"backend": "a", "windows": "3", "share": "0.5", "since": "2030-01-02T03:04:05.000000006Z",
		"for": "1.5s", "error": "broken", "stack": "main.go", "ok": "true", "long": strings.Repeat("é", 512) + "…"} {
		if f[name] != want {
			t.Errorf("%s is %q, want %q", name, f[name], want)
		}
	}
}

// What is made of parts is JSON, and numbers have no more digits than people read.
func TestEventFieldsOfParts(t *testing.T) {
	log := admin.NewLog(5)
	type part struct {
		Share float64 `json:"share"`
		Rows  int64   `json:"rows"`
		Why   string  `json:"why"`
	}
	shared := &part{Share: 1.0 / 3, Rows: 1<<53 + 1, Why: "a < b"}
	zap.New(log).Info("m", zap.Any("record", []part{*shared}), zap.Any("pointer", shared), zap.Float64s("requests", []float64{50.123456789, 1e-9}),
		zap.Float64("coverage", 0.673999999999), zap.Float64("tokens", 12345678.9), zap.Float64("none", math.NaN()), zap.Any("odd", []float64{math.Inf(1)}),
		zap.Dict("dict", zap.Float64("a", 2.0/3)), zap.Strings("names", []string{"a", "b"}), zap.Any("nothing", nil))
	var e admin.Events
	get(t, handler(&decider{}, log), "GET", "/events", &e)
	const one = `{"rows":9007199254740993,"share":0.333333,"why":"a < b"}`
	for name, want := range map[string]string{"record": "[" + one + "]", "pointer": one, "requests": "[50.1235,1e-09]", "coverage": "0.674", "tokens": "12345679",
		"none": "NaN", "odd": "[+Inf]", "dict": `{"a":0.666667}`, "names": `["a","b"]`, "nothing": "<nil>"} {
		if got := e.Events[0].Fields[name]; got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

func TestEventsConcurrently(t *testing.T) {
	log := admin.NewLog(50)
	h := handler(&decider{}, log)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				zap.New(log).With(zap.Int("a", 1)).Info("x", zap.Int("b", 2))
			}
		})
		all.Go(func() {
			for range 20 {
				var e admin.Events
				get(t, h, "GET", "/events?since=0", &e)
				for i := range e.Events {
					if i > 0 && e.Events[i].Seq != e.Events[i-1].Seq+1 || len(e.Events[i].Fields) != 2 {
						t.Errorf("%+v", e.Events[i])
					}
				}
			}
		})
	}
	all.Wait()
}

// A request without a record is told why, and how to be sure of one.
func TestNoRecord(t *testing.T) {
	h := admin.New(admin.Sources{Decisions: func(router.Filter) []router.Decision { return nil }})
	for path, want := range map[string]bool{"/decisions?request=r": true, "/decisions": false} {
		var d admin.Decisions
		if get(t, h, "GET", path, &d); strings.Contains(d.Note, "x-firsttoken-explain") != want {
			t.Errorf("%s: %+v", path, d)
		}
	}
}
