package admin

import "time"

// Of all types of this file: times are RFC 3339, durations milliseconds in
// fields that end in _ms, shares lie in 0..1, lists are never null, and what is
// not known is null.

// State is the answer of GET /state: the gateway at one moment.
type State struct {
	At       time.Time `json:"at"`
	Version  string    `json:"version"`
	Revision int64     `json:"revision"` // of the configuration in force, from 1
	UptimeS  float64   `json:"uptime_s"` // seconds since the start
	Ready    bool      `json:"ready"`    // as /readyz says
	Draining bool      `json:"draining"` // it is shutting down

	Models    []Model    `json:"models"`    // in configuration order
	Contracts []Contract `json:"contracts"` // by name
}

// Model is one model with the backends that serve it.
type Model struct {
	Name   string `json:"name"`
	Policy string `json:"policy"` // of routing, as the configuration names it

	// What predicts. All but InFlight and Held are null where nothing does, or
	// nothing was seen yet.
	Estimator   *string  `json:"estimator"`    // whose word counts now: analytic, linear or lightgbm
	ArrivalRate *float64 `json:"arrival_rate"` // requests a second over the last minute
	ArrivalCV   *float64 `json:"arrival_cv"`   // variation of the requests per second over the last 5 minutes: deviation over mean
	P50MAPE     *float64 `json:"p50_mape"`     // mean of |P50 − actual| / actual of that estimator, over its last 500 first tokens of the last 5 minutes
	P95Coverage *float64 `json:"p95_coverage"` // share of these that came within P95; 0.95 is right

	InFlight int `json:"in_flight"` // attempts at its backends whose answer has not ended
	Held     int `json:"held"`      // requests that wait at the gateway

	Backends []Backend `json:"backends"` // in configuration order
}

// Backend is one engine as one model uses it. Load and health are the engine's,
// whatever models it serves; predictions are of this model's requests.
type Backend struct {
	Name      string  `json:"name"`
	Host      string  `json:"host"`      // of its URL, with the port; no path, no credentials
	State     string  `json:"state"`     // up, draining, down, ejected or probation
	Readiness string  `json:"readiness"` // standby, cold, warming, ready or draining
	Breaker   string  `json:"breaker"`   // closed, half-open or open
	InFlight  int     `json:"in_flight"` // this gateway's attempts whose answer has not ended
	Weight    float64 `json:"weight"`    // configured capacity, less while it ramps up
	Penalty   float64 `json:"penalty"`   // recent failures, decayed; each weighs as one more request in flight

	// What the engine's own metrics last said; null when it did not.
	Running     *float64 `json:"running"`       // sequences being computed
	Waiting     *float64 `json:"waiting"`       // requests queued inside the engine
	KVUse       *float64 `json:"kv_use"`        // share of its KV cache in use
	ScrapeAgeMS *float64 `json:"scrape_age_ms"` // how old these are

	// TTFTMS is the recent time to first token, attempt sent to first token: it jumps to a slower one
	// and decays until the next. Null before the first.
	TTFTMS *float64 `json:"ttft_ms"`

	// Predictions against what came of them: means over the last 100 first tokens
	// of this model's requests here in the last 5 minutes, of the estimator whose word counted
	// for each. Null when Requests is 0.
	Requests       int      `json:"requests"` // first tokens behind the means
	PredictedP50MS *float64 `json:"predicted_p50_ms"`
	PredictedP95MS *float64 `json:"predicted_p95_ms"`
	ActualMS       *float64 `json:"actual_ms"`
	P50Error       *float64 `json:"p50_error"`  // mean of |P50 − actual| / actual
	WithinP95      *float64 `json:"within_p95"` // share that came within P95; 0.95 is right
}

// Contract is how one SLA contract stands.
type Contract struct {
	Name        string `json:"name"`
	Criticality string `json:"criticality"` // critical, standard or sheddable
	State       string `json:"state"`       // ok, at_risk, breaching or no_data: the worst of the objectives

	// Requests since the gateway started, or since the contract came into force.
	Met    int64 `json:"met"`    // within all that single requests are judged by
	Missed int64 `json:"missed"` // judged, and not within; those shed are among them where they are judged
	Shed   int64 `json:"shed"`   // refused for load

	Objectives []Objective       `json:"objectives"`
	Backends   []ContractBackend `json:"backends"` // by name
}

// Objective is how one objective of a contract stands.
type Objective struct {
	ID         string             `json:"id"`          // such as ttft-p95
	Text       string             `json:"text"`        // such as P95 TTFT ≤ 320ms
	Target     float64            `json:"target"`      // share of requests that has to be within the threshold
	Share      *float64           `json:"share"`       // that was, over the objective's window; null without requests
	BudgetLeft float64            `json:"budget_left"` // part of the error budget; below 0 it is overspent
	Burn       map[string]float64 `json:"burn"`        // burn rate by window: 5m, 1h, 6h, 3d; 1 spends the budget exactly in the objective's window
	State      string             `json:"state"`       // as the contract's
	Reason     string             `json:"reason"`      // the rule that gave the state
}

// ContractBackend is how one backend serves a contract.
type ContractBackend struct {
	Name            string  `json:"name"`
	Compliance      float64 `json:"compliance"`       // share of the contract's requests met there lately, smoothed towards the fleet's
	Weight          float64 `json:"weight"`           // factor by which violations cut it, above 0 up to 1
	ViolatedWindows int     `json:"violated_windows"` // in a row; 3 cut the weight
}

// Events is the answer of GET /events?since=&limit=.
type Events struct {
	Events []Event `json:"events"` // oldest first
	// Next is what to give as since next time: the number of the last event returned, or since.
	Next uint64 `json:"next"`
}

// Event is one line of the event log, from level info on.
type Event struct {
	Seq     uint64            `json:"seq"` // from 1, without gaps; the oldest are forgotten
	At      time.Time         `json:"at"`
	Level   string            `json:"level"` // info, warn or error
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields"` // such as contract, backend
}
