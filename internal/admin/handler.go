package admin

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/rollback"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// Sources are who knows. All must be set; they are called by many requests at
// once.
type Sources struct {
	State       func(now time.Time) State
	Decisions   func(router.Filter) []router.Decision // the newest first
	Events      *Log
	Evaluations func() []rollback.Record // the newest first
}

// Decisions is the answer of GET /decisions?model=&contract=&backend=&request=&limit=.
type Decisions struct {
	Decisions []router.Decision `json:"decisions"` // the newest first
	// Note says why there is no record of the request that was asked for.
	Note string `json:"note,omitempty"`
}

// Evaluations is the answer of GET /evaluations?limit=.
type Evaluations struct {
	Evaluations []rollback.Record `json:"evaluations"` // the newest first
}

// Problem is the answer to a query that is not understood.
type Problem struct {
	Error struct {
		Message string `json:"message"`         // what is wrong, and what to do
		Param   string `json:"param,omitempty"` // the query's parameter
	} `json:"error"`
}

// limited is the parameter for how much to answer, and what it is if it is not
// given, and at most.
const (
	limited    = "limit"
	usualLimit = 100
	mostLimit  = 1000
)

// Paths are what the handler serves.
func Paths() []string { return []string{"/state", "/decisions", "/events", "/evaluations"} }

// New returns a handler of GET on Paths.
func New(s Sources) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/state", get(nil, func(query) (any, *wrong) { return s.State(time.Now()), nil }))
	mux.Handle("/decisions", get([]string{"model", "contract", "backend", "request", limited}, s.decisions))
	mux.Handle("/events", get([]string{"since", limited}, s.events))
	mux.Handle("/evaluations", get([]string{limited}, s.evaluations))
	return mux
}

func (s Sources) decisions(q query) (any, *wrong) {
	d := Decisions{Decisions: s.Decisions(router.Filter{
		Model: q.given["model"], Contract: q.given["contract"], Backend: q.given["backend"], Request: q.given["request"], Limit: q.limit,
	})}
	if q.given["request"] != "" && len(d.Decisions) == 0 {
		d.Note = "the request was not sampled, or its record is gone: the access log has its line; with telemetry.explain, x-firsttoken-explain: 1 makes sure of a record"
	}
	return d, nil
}

func (s Sources) events(q query) (any, *wrong) {
	given, ok := q.given["since"]
	if !ok {
		return s.Events.after(0, q.limit, true), nil
	}
	since, err := strconv.ParseUint(given, 10, 63)
	if err != nil {
		return nil, &wrong{"since", fmt.Sprintf("since is %q; give the number of an event, such as next of the last answer, or 0 for all", clip(given))}
	}
	return s.Events.after(since, q.limit, false), nil
}

func (s Sources) evaluations(q query) (any, *wrong) {
	all := s.Evaluations()
	return Evaluations{append([]rollback.Record{}, all[:min(q.limit, len(all))]...)}, nil
}

// wrong is what a query has wrong.
type wrong struct{ param, message string }

// query is what is asked for.
type query struct {
	given map[string]string // each parameter once
	limit int               // of how much
}

// get answers GET with JSON. known are the parameters that it takes.
func get(known []string, answer func(query) (any, *wrong)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, &wrong{"", r.Method + " is not allowed; use GET"})
			return
		}
		q, bad := read(r.URL.RawQuery, known)
		if bad != nil {
			refuse(w, http.StatusBadRequest, bad)
			return
		}
		out, bad := answer(q)
		if bad != nil {
			refuse(w, http.StatusBadRequest, bad)
			return
		}
		write(w, http.StatusOK, out)
	})
}

func read(raw string, known []string) (query, *wrong) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return query{}, &wrong{"", "the query can't be read: " + clip(err.Error()) + "; write it as name=value&name=value, percent-encoded"}
	}
	q := query{given: map[string]string{}, limit: usualLimit}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case !slices.Contains(known, name):
			return query{}, &wrong{clip(name), unknown(name, known)}
		case len(values[name]) > 1:
			return query{}, &wrong{name, name + " is given more than once; give it once"}
		}
		q.given[name] = values[name][0]
	}
	bad := q.readLimit()
	return q, bad
}

func (q *query) readLimit() *wrong {
	given, ok := q.given[limited]
	if !ok {
		return nil
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 || n > mostLimit {
		return &wrong{limited, fmt.Sprintf("limit is %q; give a number from 1 to %d", clip(given), mostLimit)}
	}
	q.limit = n
	return nil
}

func unknown(name string, known []string) string {
	if len(known) == 0 {
		return fmt.Sprintf("there is no parameter %q; leave it out", clip(name))
	}
	return fmt.Sprintf("there is no parameter %q; use %s", clip(name), strings.Join(known, ", "))
}

// clip bounds what an answer repeats of a query.
func clip(s string) string {
	const most = 100
	if len(s) > most {
		return s[:most]
	}
	return s
}

func refuse(w http.ResponseWriter, status int, bad *wrong) {
	p := Problem{}
	p.Error.Message, p.Error.Param = bad.message, bad.param
	write(w, status, p)
}

// readWithin is how long an asker may take to read an answer, which is kept in
// memory until then.
const readWithin = 30 * time.Second

func write(w http.ResponseWriter, status int, v any) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readWithin)) // not every writer has deadlines
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // who left has no use for it
}
