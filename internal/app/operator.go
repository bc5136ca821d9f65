package app

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/firsttoken/firsttoken/internal/admin"
	"github.com/firsttoken/firsttoken/pkg/backends"
)

// operatorHandler serves metrics, health, what the gateway is doing and, if
// switched on, profiles.
func (a *App) operatorHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.gather, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", a.readyz)
	asked := admin.New(admin.Sources{State: a.State, Decisions: a.compile.decisions.List, Events: a.events, Evaluations: a.Evaluations})
	for _, path := range admin.Paths() {
		mux.Handle(path, asked)
	}
	if a.cfg.Telemetry.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// readiness is the answer of /readyz.
type readiness struct {
	Ready    bool                         `json:"ready"`
	Reason   string                       `json:"reason,omitempty"`
	Revision int64                        `json:"revision"`
	Models   map[string]map[string]string `json:"models"` // model → backend → state
}

func (a *App) readyz(w http.ResponseWriter, _ *http.Request) {
	r := a.readiness(time.Now())
	w.Header().Set("Content-Type", "application/json")
	if !r.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(r) // a prober that left has no use for it
}

// readiness is red while draining and when no model has a backend in rotation.
func (a *App) readiness(now time.Time) readiness {
	table := a.plane.Table()
	r := readiness{Revision: table.Revision, Models: map[string]map[string]string{}}
	serving := false
	for _, m := range table.Models() {
		states := map[string]string{}
		for _, b := range m.Router.Pool().Backends {
			s := b.Status(now)
			states[b.Name] = string(s.State)
			serving = serving || s.State == backends.Up
		}
		r.Models[m.Name] = states
	}
	switch {
	case a.draining.Load():
		r.Reason = "draining"
	case !serving:
		r.Reason = "no backend of any model is in rotation"
	default:
		r.Ready = true
	}
	return r
}
