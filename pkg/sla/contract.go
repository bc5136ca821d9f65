package sla

// Version is the apiVersion of contract files, and Kind their kind.
const (
	Version = "firsttoken.dev/v1"
	Kind    = "SLAContract"
)

// Contract is one promise: for whom it holds, what was promised, and what to do
// when it can't be kept. A contract of a Set is complete and checked; it must
// not be changed.
//
// The struct tags of this file are the one place that states a key's default,
// range and form; decoding and the schema read them, and the schema takes its
// descriptions from the comments. The conventions (apiVersion, kind, metadata,
// spec; names and labels) are OpenSLO's.
type Contract struct {
	// APIVersion is firsttoken.dev/v1.
	APIVersion string `yaml:"apiVersion" required:"firsttoken.dev/v1" enum:"firsttoken.dev/v1"`
	// Kind is SLAContract.
	Kind string `yaml:"kind" required:"SLAContract" enum:"SLAContract"`
	// Metadata names the contract.
	Metadata Metadata `yaml:"metadata" required:"{name: chat}"`
	// Spec is what was promised, and to whom.
	Spec Spec `yaml:"spec" required:"{objectives: [{metric: ttft, percentile: 95, threshold: 320ms}]}"`

	governs [len(metrics)]*Objective // by metric, see governing
	digest  string                   // of the objectives
}

// Metadata names a contract and carries notes about it.
type Metadata struct {
	// Name is the contract's, once in all files: up to 48 lower-case letters,
	// digits and dashes.
	Name string `yaml:"name" required:"chat" format:"name"`
	// Labels are free, such as team or owner.
	Labels map[string]string `yaml:"labels,omitempty" keys:"label" max:"64"`
	// Annotations are notes for other tools; a key may have a DNS prefix.
	Annotations map[string]string `yaml:"annotations,omitempty" keys:"annotation" max:"64"`
}

// Spec is what a contract promises, and to whom.
type Spec struct {
	// Description is for people.
	Description string `yaml:"description,omitempty" format:"description"`
	// Match says for which requests the contract holds; empty is all of them.
	Match Match `yaml:"match,omitempty"`
	// Objectives are what was promised. Several for one metric are fine, and so are some metrics only.
	Objectives []Objective `yaml:"objectives" required:"[{metric: ttft, percentile: 95, threshold: 320ms}]" max:"16"`
	// VisibleLimit is the longest wait for the first token that one request may
	// bear; past it an answer is of no use, and a request that waits is shed.
	VisibleLimit Duration `yaml:"visible_limit,omitempty" min:"1ms" max:"24h"`
	// Burst is by how much the rate may exceed its usual and still be covered, such
	// as 30%; what is more is let in after the others of its criticality.
	Burst Share `yaml:"burst,omitempty" min:"0%" max:"1000%"`
	// MinKVReuse is the share of a prompt's tokens that should be found in the
	// chosen instance's cache; routing keeps sessions and prefixes together for it.
	MinKVReuse Share `yaml:"min_kv_reuse,omitempty" min:"0%" max:"100%"`
	// JitterSensitive says that an even delay is worth more than a short mean. Default false.
	JitterSensitive bool `yaml:"jitter_sensitive,omitempty"`
	// Batchable says that requests may wait to be batched as long as they keep their deadline. Default false.
	Batchable bool `yaml:"batchable,omitempty"`
	// Priority orders contracts of one criticality, higher first. Default 0.
	Priority int `yaml:"priority,omitempty" min:"-1000" max:"1000"`
	// Criticality says who gives way when there is too little for all: critical,
	// standard or sheddable. Default standard.
	Criticality Criticality `yaml:"criticality" default:"standard" enum:"critical,standard,sheddable"`
	// AtRisk is what to do, in this order, with a request that can't meet its
	// deadline anywhere: warm_up, lighter_model (with a name), wait, serve_late, shed.
	AtRisk []Action `yaml:"at_risk,omitempty" max:"5"`
}

// Match says for which requests a contract holds. A list matches when one of
// its entries does, and an empty one always; all lists must match.
type Match struct {
	// Priority decides between contracts that match the same request, higher
	// first. Equal ones: who names a tenant, then a header, a service tier, a
	// model, more headers, and at last the name. Default 0.
	Priority int `yaml:"priority,omitempty" min:"-1000" max:"1000"`
	// Tenants that the contract was made with.
	Tenants []string `yaml:"tenants,omitempty" max:"100"`
	// Models as clients name them.
	Models []string `yaml:"models,omitempty" max:"100"`
	// Headers by name, each with the values that match, such as {x-workload: [chat]}.
	Headers map[string][]string `yaml:"headers,omitempty" keys:"header" max:"16"`
	// ServiceTier holds values of the request's service_tier.
	ServiceTier []string `yaml:"service_tier,omitempty" max:"100"`
}

// Objective is one promise about one metric. "P95 of TTFT ≤ 320 ms" and "at
// least 95 % of requests have a TTFT ≤ 320 ms" say the same, so a percentile is
// a target.
type Objective struct {
	// Metric is ttft (accepted to first token), tpot (mean time between tokens
	// of one answer), e2e (accepted to last token) or availability (answered at all).
	Metric Metric `yaml:"metric" required:"ttft" enum:"ttft,tpot,e2e,availability"`
	// Percentile of the metric that must lie within the threshold, such as 95.
	Percentile float64 `yaml:"percentile,omitempty" min:"1" below:"100"`
	// Threshold is the most that the metric may be: 320ms, or {base: 400ms, per_token: 250us} to
	// grow with the prompt.
	Threshold Threshold `yaml:"threshold,omitempty"`
	// Target is the share of requests that must be good, such as 99.9%. Write
	// it for availability; elsewhere it follows from the percentile.
	Target Share `yaml:"target,omitempty" min:"1%" below:"100%"`
	// Window is the time over which the promise holds and its error budget is counted, in whole minutes. Default 30d.
	Window Duration `yaml:"window" default:"30d" min:"5m" max:"90d"`
}

// Metric is what an objective is about.
type Metric string

// The metrics. All times count from the moment the request was accepted,
// waiting and retries included.
const (
	TTFT         Metric = "ttft"
	TPOT         Metric = "tpot"
	E2E          Metric = "e2e"
	Availability Metric = "availability"
)

// metrics lists them; a metric's place in it is its index.
var metrics = [...]Metric{TTFT, TPOT, E2E, Availability}

// Criticality says who gives way when there is too little for all.
type Criticality string

// The criticalities, the most critical first.
const (
	Critical  Criticality = "critical"
	Standard  Criticality = "standard"
	Sheddable Criticality = "sheddable"
)

// Threshold is the most that a metric may be, for a prompt of n tokens
// base + n × per_token.
type Threshold struct {
	// Base is the part that every request has.
	Base Duration `yaml:"base" required:"400ms" min:"1ms" max:"24h"`
	// PerToken is added for each token of the prompt. Default 0.
	PerToken Duration `yaml:"per_token,omitempty" min:"1ns" max:"1s"`
}

// Action is something to do with a request that can't meet its deadline.
type Action struct {
	Do    Remedy
	Model string // of LighterModel
}

// Remedy is a kind of Action.
type Remedy string

// The remedies.
const (
	WarmUp       Remedy = "warm_up"       // prepare a further instance
	LighterModel Remedy = "lighter_model" // serve by another model, and say so
	Wait         Remedy = "wait"          // hold at the gateway for an instance that may get free
	ServeLate    Remedy = "serve_late"    // serve although too late
	Shed         Remedy = "shed"          // refuse with 429 and Retry-After
)
