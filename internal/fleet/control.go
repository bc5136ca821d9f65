package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// Control is the HTTP face to look at a running fleet and to break it:
//
//	GET    /engines
//	GET    /engines/NAME
//	POST   /engines/NAME/faults         {"kind": "slow", "factor": 3, "for": "30s"}
//	DELETE /engines/NAME/faults         all of them
//	DELETE /engines/NAME/faults/KIND
//
// Each answers with the engine as it is then. It asks for no credentials: keep
// it on loopback.
func (r *Running) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /engines", func(w http.ResponseWriter, _ *http.Request) {
		all := make([]engineView, len(r.fleet.Engines))
		for i := range all {
			all[i] = r.view(i)
		}
		answer(w, http.StatusOK, all)
	})
	mux.HandleFunc("GET /engines/{name}", r.on(func(int, *http.Request) error { return nil }))
	mux.HandleFunc("POST /engines/{name}/faults", r.on(r.postFault))
	mux.HandleFunc("DELETE /engines/{name}/faults", r.on(r.deleteFaults))
	mux.HandleFunc("DELETE /engines/{name}/faults/{kind}", r.on(r.deleteFault))
	return mux
}

// engineView is an engine as the control face shows it.
type engineView struct {
	Name    string         `json:"name"`
	Model   string         `json:"model"`
	URL     string         `json:"url"`
	Profile string         `json:"profile"`
	Faults  []engine.Fault `json:"faults"`
	Running int            `json:"running"`
	Waiting int            `json:"waiting"`
	KVUsed  int            `json:"kv_blocks_used"`
	KVTotal int            `json:"kv_blocks"` // 0 while it is down
	Ended   int            `json:"finished"`
}

func (r *Running) view(i int) engineView {
	e, live := r.fleet.Engines[i], r.live.Engines()[i]
	st := live.Stats()
	v := engineView{
		Name: e.Name, Model: e.Model, URL: live.URL(), Profile: e.Profile.Name, Faults: live.Faults(),
		Running: st.Running, Waiting: st.Waiting, KVUsed: st.KVUsed, KVTotal: st.KVTotal, Ended: st.Finished,
	}
	if v.Faults == nil {
		v.Faults = []engine.Fault{}
	}
	return v
}

// badRequest is a mistake of whoever asked.
type badRequest struct{ error }

// on makes a handler for one engine.
func (r *Running) on(do func(i int, req *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		i, ok := r.find(req.PathValue("name"))
		if !ok {
			answer(w, http.StatusNotFound, failure(fmt.Sprintf("there is no engine %q", req.PathValue("name"))))
			return
		}
		err := do(i, req)
		var mistake badRequest
		switch {
		case errors.As(err, &mistake):
			answer(w, http.StatusBadRequest, failure(err.Error()))
		case err != nil:
			answer(w, http.StatusInternalServerError, failure(err.Error()))
		default:
			answer(w, http.StatusOK, r.view(i))
		}
	}
}

func (r *Running) find(name string) (int, bool) {
	for i := range r.fleet.Engines {
		if r.fleet.Engines[i].Name == name {
			return i, true
		}
	}
	return 0, false
}

func (r *Running) postFault(i int, req *http.Request) error {
	var body struct {
		engine.Fault
		For string `json:"for"`
	}
	dec := json.NewDecoder(http.MaxBytesReader(nil, req.Body, 1<<16))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil {
		return badRequest{fmt.Errorf(`read the fault: %w; write one such as {"kind":"slow","factor":3,"for":"30s"}`, err)}
	}
	fault, err := body.Complete()
	if err != nil {
		return badRequest{err}
	}
	lasts := time.Duration(0)
	if body.For != "" {
		lasts, err = time.ParseDuration(body.For)
		if err != nil || lasts <= 0 {
			return badRequest{fmt.Errorf("for is %q, want a duration such as 30s", body.For)}
		}
	}
	return r.inject(i, fault, lasts)
}

func (r *Running) deleteFaults(i int, _ *http.Request) error {
	var errs []error
	for _, kind := range engine.FaultKinds() {
		errs = append(errs, r.clear(i, kind))
	}
	return errors.Join(errs...)
}

func (r *Running) deleteFault(i int, req *http.Request) error {
	kind := engine.FaultKind(req.PathValue("kind"))
	if _, err := (engine.Fault{Kind: kind}).Complete(); err != nil {
		return badRequest{err}
	}
	return r.clear(i, kind)
}

func failure(message string) any { return map[string]string{"error": message} }

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that left needs no answer
}
