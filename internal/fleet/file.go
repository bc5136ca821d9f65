package fleet

import (
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// File is a fleet file. The struct tags are the one place that states a key's
// default and range.
type File struct {
	// Engines of the fleet, by groups of equal ones.
	Engines []Group `yaml:"engines" required:"yes"`
	// Faults that happen by themselves.
	Faults []FaultEntry `yaml:"faults"`
	// Network between gateway and engines, in a replay.
	Network Network `yaml:"network"`
}

// Network is what lies between a gateway and the engines.
type Network struct {
	// Delay one way. Default 200us.
	Delay time.Duration `yaml:"delay" default:"200us" max:"10s"`
}

// Group is a number of equal engines. Keys that are not set keep the value of
// the profile.
type Group struct {
	// Name of the engine, or its start when there are several: name-1, name-2
	// and so on. Default: the profile's name.
	Name string `yaml:"name" format:"backend"`
	// Profile is a built-in profile, or a profile file relative to this one.
	Profile string `yaml:"profile" required:"yes"`
	// Count of engines. Default 1.
	Count int `yaml:"count" default:"1" min:"1" max:"1000"`
	// Model is the name it is served under. Default: the profile's.
	Model string `yaml:"model"`
	// Port of the first engine on loopback, the others follow. Default: free ones.
	Port int `yaml:"port" min:"0" max:"65535"`
	// PricePerHour in USD of one engine. Default: the profile's.
	PricePerHour float64 `yaml:"price_per_hour" min:"0"`
	// Noise is the sigma of a log-normal factor on every step's time. Default 0.
	Noise float64 `yaml:"noise" min:"0" max:"2"`
	// Seed of the noise; each engine of the group counts on from it. Default: its place in the fleet.
	Seed int `yaml:"seed" min:"0"`
	// FP8KV stores the KV cache in 8 bits: twice the tokens. Default false.
	FP8KV bool `yaml:"fp8_kv"`
	// PrefixCaching reuses computed blocks. Default true.
	PrefixCaching bool `yaml:"prefix_caching" default:"true"`
	// MaxNumSeqs caps the sequences that run at once.
	MaxNumSeqs int `yaml:"max_num_seqs" min:"1" max:"100000"`
	// MaxNumBatchedTokens is the token budget of a step.
	MaxNumBatchedTokens int `yaml:"max_num_batched_tokens" min:"1" max:"10000000"`
	// KVBlocks is the size of the KV cache in blocks of 16 tokens.
	KVBlocks int `yaml:"kv_blocks" min:"1" max:"4000000"`
	// MaxModelLen caps prompt plus output tokens of a request.
	MaxModelLen int `yaml:"max_model_len" min:"1" max:"100000000"`
	// Cold makes the first requests pay; without this section the engine is warm from the start.
	Cold Cold `yaml:"cold"`
	// StartUp is how long the engine takes to get ready. Default: the profile's, 0s.
	StartUp time.Duration `yaml:"start_up" max:"24h"`
	// Speculative decoding. Without this section there is none.
	Speculative engine.Speculative `yaml:"speculative"`
	// Step overrides single numbers of the profile's step model.
	Step engine.StepModel `yaml:"step"`
}

// Cold is what the first requests of each class of prompt lengths cost.
type Cold struct {
	// Tables is paid by the first request of a class. Default 42ms.
	Tables time.Duration `yaml:"tables" default:"42ms" max:"1h"`
	// Cache is paid by each of the first requests of a class. Default 3.5ms.
	Cache time.Duration `yaml:"cache" default:"3500us" max:"1h"`
	// Requests of a class until it is warm. Default 3.
	Requests int `yaml:"requests" default:"3" min:"0"`
}

// FaultEntry is one fault of the file.
type FaultEntry struct {
	// At is when it happens, from the start.
	At time.Duration `yaml:"at" max:"24h"`
	// Engine is its name, or its place in the fleet from 0.
	Engine string `yaml:"engine" required:"yes" number:"yes"`
	// Kind: crash, restart, hang, slow, cut, errors, reject, stall-metrics.
	Kind string `yaml:"kind" required:"yes" enum:"crash,restart,hang,slow,cut,errors,reject,stall-metrics"`
	// Factor of slow. Default 4.
	Factor float64 `yaml:"factor" min:"0" max:"1000000"`
	// Rate is the share of requests struck by cut, errors and reject. Default 1.
	Rate float64 `yaml:"rate" min:"0" max:"1"`
	// For is how long it lasts. Default: to the end.
	For time.Duration `yaml:"for" max:"24h"`
}
