// Package config owns the gateway's configuration file: its shape, its
// defaults, the checks that stand between a file and a running gateway, and
// the JSON Schema that editors use. It knows nothing of how the values are
// used; internal/app turns a Config into live parts.
package config

// Config is a whole, validated configuration: every default is filled in and
// every reference (environment, files) is resolved. It is plain data and must
// not be changed after Load returns it.
//
// The struct tags of this file are the one place that states a key's default,
// range and form; decoding, defaults and the schema all read them, and the
// schema takes its descriptions from the comments.
type Config struct {
	Server     Server     `yaml:"server"`
	Telemetry  Telemetry  `yaml:"telemetry"`
	Drain      Drain      `yaml:"drain"`
	Prediction Prediction `yaml:"prediction"`
	Contracts  Contracts  `yaml:"contracts"`
	WarmUp     WarmUp     `yaml:"warm_up"`
	Defaults   Defaults   `yaml:"defaults"`
	// Models that clients may ask for.
	Models []Model `yaml:"models" required:"yes"`

	files []string
}

// Server is the data plane: where applications connect.
type Server struct {
	// Listen is host:port of the data plane. Default ":8080".
	Listen string `yaml:"listen" default:":8080" format:"listen"`
	// MaxBody caps a request body in bytes. Default 64MiB.
	MaxBody ByteSize `yaml:"max_body" default:"64MiB" min:"1"`
	// MaxHeaderBytes caps the request line and headers together. Default 64KiB.
	MaxHeaderBytes ByteSize `yaml:"max_header_bytes" default:"64KiB" min:"1KiB" max:"16MiB"`
	// MaxHeaders caps the number of header fields. Default 100.
	MaxHeaders int `yaml:"max_headers" default:"100" min:"1"`
	// MaxURL caps the request target in bytes. Default 8KiB.
	MaxURL ByteSize `yaml:"max_url" default:"8KiB" min:"64" max:"16MiB"`
	// ReadHeaderTimeout bounds the time a client may take to send its headers. Default 10s.
	ReadHeaderTimeout Duration `yaml:"read_header_timeout" default:"10s"`
	// ReadBodyTimeout bounds the time a client may take to send its body. Default 60s.
	ReadBodyTimeout Duration `yaml:"read_body_timeout" default:"60s"`
	// KeepAlive is how long an idle client connection is kept. Default 120s.
	KeepAlive Duration `yaml:"keep_alive" default:"120s"`
	// TenantHeader is the request header that names the tenant, which contracts
	// match by; it is not passed on to engines. Whoever sets it is believed. Default X-Tenant.
	TenantHeader string `yaml:"tenant_header" default:"X-Tenant" format:"header"`
	// DebugHeaders adds to answers x-firsttoken-backend, x-firsttoken-attempts, the
	// contract, the time held and what was predicted. Default false.
	DebugHeaders bool `yaml:"debug_headers" default:"false"`
}

// Telemetry is the operator's listener: metrics, health, profiles, logs.
type Telemetry struct {
	// Listen is host:port of the telemetry listener. Default "127.0.0.1:8081".
	Listen string `yaml:"listen" default:"127.0.0.1:8081" format:"listen"`
	// Pprof serves /debug/pprof on the telemetry listener. Default false.
	Pprof bool `yaml:"pprof" default:"false"`
	// LogLevel is debug, info, warn or error. Default info.
	LogLevel string `yaml:"log_level" default:"info" enum:"debug,info,warn,error"`
	// AccessLog writes one line a request. Default true.
	AccessLog bool `yaml:"access_log" default:"true"`
	// Explain answers requests that carry x-firsttoken-explain: 1 with the record of
	// their routing decision in x-firsttoken-decision. It shows the names, load and
	// speed of backends to every client that asks. Default false.
	Explain bool `yaml:"explain" default:"false"`
}

// Drain is what happens between SIGTERM and exit.
type Drain struct {
	// Accept is how long new requests are still accepted after readiness turned red; "off" stops at once. Default 5s.
	Accept Duration `yaml:"accept" default:"5s" off:"yes"`
	// Limit is how long streams may run on after accepting stopped; "off" waits for all of them. Default 120s.
	Limit Duration `yaml:"limit" default:"120s" off:"yes"`
}

// Prediction is how the time to first token is predicted, and by which
// estimator: analytic, linear or lightgbm.
type Prediction struct {
	// Enabled predicts for every attempt. Default true.
	Enabled bool `yaml:"enabled" default:"true"`
	// LowRate is the requests a second of a model below which linear serves; 0: never for that reason. Default 50.
	LowRate float64 `yaml:"low_rate" default:"50" min:"0"`
	// VolatileCV is the coefficient of variation of a model's requests per second
	// over 5 minutes above which lightgbm serves. Default 0.8.
	VolatileCV float64 `yaml:"volatile_cv" default:"0.8" above:"0"`
	// MaxError is the mean relative error of P50 above which an estimator is replaced; 0.12 is 12 %. Default 0.12.
	MaxError float64 `yaml:"max_error" default:"0.12" above:"0"`
	// MinSamples is the fewest requests an error is judged by, of at most the last 500. Default 50.
	MinSamples int `yaml:"min_samples" default:"50" min:"1" max:"500"`
	// Dwell is the shortest time between two changes of the estimator. Default 30s.
	Dwell Duration `yaml:"dwell" default:"30s"`
	// Models is the folder of trained models, whose active one lightgbm uses; a
	// relative path starts at the folder of the configuration file. Default none.
	Models  string  `yaml:"models,omitempty"`
	Samples Samples `yaml:"samples"`
}

// Samples are what is kept of predictions and of what became of them, to train
// on. It holds nothing of prompts, keys or users.
type Samples struct {
	// Dir is the folder of the sample files, for this gateway alone; a relative
	// path starts at the folder of the configuration file. Default none: nothing is kept.
	Dir string `yaml:"dir,omitempty"`
	// MaxFiles is how many complete files are kept. Default 24.
	MaxFiles int `yaml:"max_files" default:"24" min:"1"`
	// MaxFileRows is how many samples a file holds at most. Default 50000.
	MaxFileRows int `yaml:"max_file_rows" default:"50000" min:"1" max:"10000000"`
	// MaxAge is how long a file is written to before the next begins. Default 1h.
	MaxAge Duration `yaml:"max_age" default:"1h" min:"1s"`
	// MaxBytes is what the complete files may take together. Default 256MiB.
	MaxBytes ByteSize `yaml:"max_bytes" default:"256MiB" min:"1"`
}

// Contracts are the promises in force. Default none.
type Contracts struct {
	// Files hold contracts; relative paths start at the folder of the configuration
	// file. They are watched like it.
	Files []string `yaml:"files,omitempty"`
	// Shipped puts the three contracts into force that come with the gateway. Default false.
	Shipped bool `yaml:"shipped" default:"false"`
}

// WarmUp is what engines are sent that are new or were restarted, before they
// get requests. Engines that were up for a minute when the gateway started are
// left alone.
type WarmUp struct {
	// Enabled warms engines up. Default true.
	Enabled bool `yaml:"enabled" default:"true"`
	// MaxPrompt is about how many tokens the longest prompt has; the first ones have 64, the next twice as many, and so on. Default 4096.
	MaxPrompt int `yaml:"max_prompt" default:"4096" min:"64" max:"1000000"`
	// Repeat is how many prompts of each length are sent. Default 2.
	Repeat int `yaml:"repeat" default:"2" min:"1" max:"100"`
	// Timeout of one prompt. Default 30s.
	Timeout Duration `yaml:"timeout" default:"30s"`
	// StandbyAfter is how long a standby backend that a contract's warm_up called in
	// stays after the last request that was at risk. Default 10m.
	StandbyAfter Duration `yaml:"standby_after" default:"10m" min:"1s"`
	// Prefixes are texts that many requests begin with, such as system prompts;
	// they are sent last, so that the engine's prefix cache holds them. Default none.
	Prefixes []string `yaml:"prefixes,omitempty" format:"text"`
}

// Admission is how requests are let in: as many as an engine can take without
// harm to those it runs already, the others wait at the gateway. It works with
// the policies that predict.
type Admission struct {
	// Enabled holds requests back. Default true.
	Enabled bool `yaml:"enabled" default:"true"`
	// PendingTokens closes an engine while so many prompt tokens wait there. Default 1000.
	PendingTokens int `yaml:"pending_tokens" default:"1000" min:"1"`
	// MaxHeld is how many requests wait at most for a model; one more is answered 429. Default 2000.
	MaxHeld int `yaml:"max_held" default:"2000" min:"1"`
}

// Defaults apply to every model and backend that does not set its own.
type Defaults struct {
	// Policy of every model that does not set its own: headroom, least-inflight,
	// round-robin, random, p2c, peak-ewma, token-load, lmetric, prefix-affinity,
	// weighted, argmin. Default headroom, or least-inflight where nothing is predicted.
	Policy    string    `yaml:"policy,omitempty" enum:"headroom,least-inflight,round-robin,random,p2c,peak-ewma,token-load,lmetric,prefix-affinity,weighted,argmin"`
	Admission Admission `yaml:"admission"`
	Timeouts  Timeouts  `yaml:"timeouts"`
	Retry     Retry     `yaml:"retry"`
	Health    Health    `yaml:"health"`
	Limits    Limits    `yaml:"limits"`
	Signals   Signals   `yaml:"signals"`
}

// Model is one name that clients may ask for, and the pool that serves it.
type Model struct {
	// Name that clients send as "model".
	Name string `yaml:"name" required:"yes"`
	// Aliases are further names for the same model.
	Aliases []string `yaml:"aliases,omitempty"`
	// OwnedBy is what GET /v1/models reports. Default "firsttoken".
	OwnedBy string `yaml:"owned_by" default:"firsttoken"`
	// Policy picks a backend: headroom, least-inflight, round-robin, random, p2c,
	// peak-ewma, token-load, lmetric, prefix-affinity, weighted, argmin. headroom,
	// weighted and argmin need predictions. Default that of defaults.
	Policy    string    `yaml:"policy,omitempty" enum:"headroom,least-inflight,round-robin,random,p2c,peak-ewma,token-load,lmetric,prefix-affinity,weighted,argmin"`
	Admission Admission `yaml:"admission"`
	// InjectUsage asks engines for a usage chunk the client did not ask for,
	// and hides it from the client: auto (all engines but generic), always, never. Default auto.
	InjectUsage string   `yaml:"inject_usage" default:"auto" enum:"auto,always,never"`
	Timeouts    Timeouts `yaml:"timeouts"`
	Retry       Retry    `yaml:"retry"`
	Health      Health   `yaml:"health"`
	Limits      Limits   `yaml:"limits"`
	Signals     Signals  `yaml:"signals"`
	// Backends that serve the model.
	Backends []Backend `yaml:"backends" required:"yes"`
}

// Backend is one engine that serves a model.
type Backend struct {
	// Name appears in metrics and logs. Default: host:port of the URL.
	// One name stands for one URL in the whole file.
	Name string `yaml:"name" format:"backend"`
	// URL is the engine's base, http or https; a trailing /v1 is accepted and dropped.
	URL string `yaml:"url" required:"yes" format:"url"`
	// Model is the name the engine knows the model by. Default: the model's name.
	Model string `yaml:"model,omitempty"`
	// Engine is vllm, sglang, tgi, trtllm, llamacpp or generic. Default generic.
	Engine string `yaml:"engine" default:"generic" enum:"vllm,sglang,tgi,trtllm,llamacpp,generic"`
	// Profile is a built-in engine profile to predict by until the engine itself
	// was measured; "firsttoken sim profiles" lists them. Default none.
	Profile string `yaml:"profile,omitempty" format:"profile"`
	// Weight is the backend's relative capacity, > 0. Default 1.
	Weight float64 `yaml:"weight" default:"1" above:"0" max:"1000000"`
	// Draining takes the backend out of new work; running streams finish. Default false.
	Draining bool `yaml:"draining" default:"false"`
	// Standby keeps the backend back until a contract's warm_up calls it in: it is
	// warmed up then, and takes requests until none was at risk for
	// warm_up.standby_after. Default false.
	Standby bool `yaml:"standby" default:"false"`
	// Labels describe the hardware: gpu, cuda, quantization, topology and any other.
	Labels      map[string]string `yaml:"labels,omitempty" keys:"label" max:"64"`
	Credentials Credentials       `yaml:"credentials,omitempty"`
	Timeouts    Timeouts          `yaml:"timeouts"`
	Health      Health            `yaml:"health"`
	Limits      Limits            `yaml:"limits"`
	Signals     Signals           `yaml:"signals"`
}

// Credentials is how the gateway authenticates to a backend. The secret comes
// from exactly one of Env or File and never from the file itself.
type Credentials struct {
	// Env is the environment variable that holds the secret.
	Env string `yaml:"env,omitempty" format:"env" quote:"no"`
	// File holds the secret; a relative path starts at the folder of the configuration file.
	File string `yaml:"file,omitempty" quote:"no"`
	// Header is the header that carries the secret. Default Authorization.
	Header string `yaml:"header" default:"Authorization" format:"header" quote:"no"`
	// Scheme stands before the secret; "" is none. Default "Bearer" for Authorization, none otherwise.
	Scheme string `yaml:"scheme" format:"scheme" quote:"no" empty:"yes"`
	// Secret is the resolved value (whitespace trimmed). Never read from YAML, never printed.
	Secret Secret `yaml:"-" json:"-"`
}

// Timeouts are separate: each has its own metric label and error code. "off"
// disables one where that is allowed.
type Timeouts struct {
	// Dial bounds connecting to the backend. Default 3s.
	Dial Duration `yaml:"dial" default:"3s"`
	// ResponseHeader bounds attempt sent to response headers. Default 10m
	// (an engine answers an unstreamed request when it is done).
	ResponseHeader Duration `yaml:"response_header" default:"10m" off:"yes"`
	// FirstToken bounds attempt sent to the first token of a stream. Default 2m.
	FirstToken Duration `yaml:"first_token" default:"2m" off:"yes"`
	// Idle bounds the gap between two events of a stream. Default 60s.
	Idle Duration `yaml:"idle" default:"60s" off:"yes"`
	// Total bounds the whole request. Default off.
	Total Duration `yaml:"total" default:"off" off:"yes"`
	// ClientWrite bounds one write to a client that reads slowly. Default 30s.
	ClientWrite Duration `yaml:"client_write" default:"30s" off:"yes"`
}

// Retry is how attempts that failed before the first data event are tried again.
type Retry struct {
	// MaxAttempts counts the first try too; 1 switches retries off; 1..3. Default 3.
	MaxAttempts int `yaml:"max_attempts" default:"3" min:"1" max:"3"`
	// BudgetRatio is the share of requests that may be retries, 0..1. Default 0.2.
	BudgetRatio float64 `yaml:"budget_ratio" default:"0.2" min:"0" max:"1"`
	// BudgetMin is the number of retries always allowed at once, >= 1. Default 3.
	BudgetMin int `yaml:"budget_min" default:"3" min:"1"`
}

// Health is how a backend is watched, taken out and taken back.
type Health struct {
	// Path is probed by GET. Default by engine kind: /health, or /v1/models
	// for generic; where there is no engine (defaults, models) it stays empty.
	Path string `yaml:"path,omitempty" format:"path"`
	// Interval between probes; "off" disables active probes. Default 5s.
	Interval Duration `yaml:"interval" default:"5s" min:"10ms" off:"yes"`
	// Timeout of one probe. Default 2s.
	Timeout Duration `yaml:"timeout" default:"2s"`
	// Unhealthy probes in a row take a backend out. Default 3.
	Unhealthy int `yaml:"unhealthy" default:"3" min:"1"`
	// Healthy probes in a row take it back. Default 2.
	Healthy int `yaml:"healthy" default:"2" min:"1"`
	// Consecutive failures eject a backend. Default 5.
	Consecutive int `yaml:"consecutive" default:"5" min:"1"`
	// FailureRate ejects when reached over Window with at least MinRequests, above 0 and up to 1. Default 0.5.
	FailureRate float64 `yaml:"failure_rate" default:"0.5" above:"0" max:"1"`
	// MinRequests is the fewest requests in Window that FailureRate judges. Default 20.
	MinRequests int `yaml:"min_requests" default:"20" min:"1"`
	// Window of FailureRate. Default 30s.
	Window Duration `yaml:"window" default:"30s" min:"10ms"`
	// Ejection is the first ejection's length; each further one adds as much. Default 10s.
	Ejection Duration `yaml:"ejection" default:"10s"`
	// MaxEjection caps an ejection's length. Default 5m.
	MaxEjection Duration `yaml:"max_ejection" default:"5m"`
	// MaxEjected is the largest share of a pool that may be ejected, 0..1; 0 disables ejection. Default 0.5.
	MaxEjected float64 `yaml:"max_ejected" default:"0.5" min:"0" max:"1"`
	// MinHosts is the smallest pool in which ejection works. Default 2.
	MinHosts int `yaml:"min_hosts" default:"2" min:"1"`
	// SlowStart is how long a returning backend ramps up from 10 % of its weight; "off" disables. Default 30s.
	SlowStart Duration `yaml:"slow_start" default:"30s" off:"yes"`
	// BreakerFailures in a row open a backend's circuit breaker. Default 10.
	BreakerFailures int `yaml:"breaker_failures" default:"10" min:"1"`
	// BreakerOpen is how long it stays open before one request probes. Default 5s.
	BreakerOpen Duration `yaml:"breaker_open" default:"5s"`
}

// Limits bound what one backend is given.
type Limits struct {
	// MaxInFlight caps the requests in flight on one backend; 0 is no cap. Default 0.
	MaxInFlight int `yaml:"max_in_flight" default:"0" min:"0"`
	// IdleConnTimeout drops idle connections to the backend; keep it below
	// the engine's own keep-alive (uvicorn: 5s). Default 4s.
	IdleConnTimeout Duration `yaml:"idle_conn_timeout" default:"4s"`
	// MaxIdleConns kept per backend. Default 256.
	MaxIdleConns int `yaml:"max_idle_conns" default:"256" min:"1"`
}

// Signals is how an engine's own metrics are read.
type Signals struct {
	// Path of the engine's Prometheus metrics. Default by engine kind:
	// /metrics, or /prometheus/metrics for trtllm; none for generic, which
	// switches Interval off.
	Path string `yaml:"path,omitempty" format:"path"`
	// Interval between scrapes, jittered; "off" disables. Default 300ms.
	Interval Duration `yaml:"interval" default:"300ms" min:"10ms" off:"yes"`
	// Timeout of one scrape. Default 1s.
	Timeout Duration `yaml:"timeout" default:"1s"`
}

// Files returns the files whose change calls for a reload: the configuration
// file when Load read it, then the files of contracts and credentials, each once.
func (c *Config) Files() []string { return append([]string(nil), c.files...) }
