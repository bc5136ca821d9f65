package engine

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Params describe one engine: what a step costs and what the scheduler may put
// into it. The zero value of a limit means the documented default.
type Params struct {
	Step StepModel `yaml:"step"`

	// MaxSeqs caps the sequences that run at once (vLLM max-num-seqs). Default 256.
	MaxSeqs int `yaml:"max_num_seqs,omitempty" min:"0" max:"100000"`
	// MaxBatchedTokens is the token budget of a step (vLLM
	// max-num-batched-tokens): a decoding sequence takes one, the rest goes to
	// prompt chunks. Default 2048.
	MaxBatchedTokens int `yaml:"max_num_batched_tokens,omitempty" min:"0" max:"10000000"`
	// KVBlocks is the size of the KV cache in blocks of BlockTokens. Required.
	KVBlocks int `yaml:"kv_blocks" min:"0" max:"4000000"`
	// MaxModelLen caps prompt plus output tokens of a request. Default 32768,
	// and never more than the cache holds.
	MaxModelLen int `yaml:"max_model_len,omitempty" min:"0" max:"100000000"`
	// NoPrefixCache switches the reuse of computed blocks off.
	NoPrefixCache bool `yaml:"-"`
	// Noise is the sigma of a log-normal factor of mean one on every step's
	// time. Default 0, no noise.
	Noise float64 `yaml:"-"`
	// Cold is what the first requests cost. Default nothing: warm from the start.
	Cold Cold `yaml:"cold,omitempty"`
	// StartUp passes between the engine's start and its being ready. Default 0.
	StartUp time.Duration `yaml:"start_up,omitempty"`
	// Speculative decoding. Default off.
	Speculative Speculative `yaml:"speculative,omitempty"`
}

// Cold is the price of what an engine builds on first use, apart for each class
// of prompt lengths. It is time of the engine: the whole step takes longer.
// Classes end at 128, 256, 512 tokens and so on.
type Cold struct {
	// Tables is paid by the first request of a class (position tables).
	Tables time.Duration `yaml:"tables"`
	// Cache is paid by each of the first Requests requests of a class (setting
	// up the cache).
	Cache time.Duration `yaml:"cache"`
	// Requests of a class until it is warm.
	Requests int `yaml:"requests" min:"0"`
}

// class of a prompt length.
func class(tokens int) int {
	const shortest = 7 // 128 tokens
	return max(bits.Len(uint(tokens-1)), shortest) - shortest
}

// classes is how many there can be.
const classes = 64

// penalty of a request when so many of its class came before.
func (c *Cold) penalty(before int) (d time.Duration) {
	if before == 0 {
		d += c.Tables
	}
	if before < c.Requests {
		d += c.Cache
	}
	return d
}

// Speculative is decoding with guesses: in each step a sequence checks up to
// DraftTokens guessed tokens and keeps those before the first wrong one.
// Checking a token costs Alpha, as a prompt token does.
type Speculative struct {
	DraftTokens int `yaml:"draft_tokens" min:"0" max:"64"`
	// Acceptance is the chance that a guess is right when all before it were.
	Acceptance float64 `yaml:"acceptance" min:"0" max:"1"`
}

// StepModel is the time of one forward pass:
//
//	T0 + Alpha·(prefill tokens + guessed tokens) + Beta·decoding sequences + Gamma·KV tokens they hold
//
// plus Alpha2·(len² − 4096²) spread over the chunks of a prompt beyond 4096
// tokens, plus Experts·(1 − (1 − Active)^tokens) where a model has experts: the
// share of them that the tokens of the step touch. The numbers of one fit
// belong together and are used whole.
type StepModel struct {
	T0     time.Duration `yaml:"t0"`
	Alpha  float64       `yaml:"alpha" min:"0"`            // µs a prefill token
	Beta   float64       `yaml:"beta,omitempty" min:"0"`   // µs a decoding sequence
	Gamma  float64       `yaml:"gamma,omitempty" min:"0"`  // µs a KV token held by a decoding sequence
	Alpha2 float64       `yaml:"alpha2,omitempty" min:"0"` // µs a squared prompt token
	// Experts is the time of reading the weights of all experts.
	Experts time.Duration `yaml:"experts,omitempty"`
	// Active is the share of the experts that one token goes through.
	Active float64 `yaml:"active,omitempty" min:"0" max:"1"`
	// H is the fixed cost of a request (HTTP, tokenising, first write). It
	// passes before the request reaches the queue and takes no engine time.
	H time.Duration `yaml:"h,omitempty"`
}

// squareFrom is the prompt length from which attention shows as a square.
const squareFrom = 4096

// load is what one step carries.
type load struct {
	prefill  int     // prompt tokens computed
	decoding int     // sequences that decode
	kv       int     // tokens those sequences hold
	draft    int     // guessed tokens checked
	square   float64 // squared prompt tokens beyond squareFrom
}

func (l *load) addPrefill(from, to int) {
	l.prefill += to - from
	if to > squareFrom {
		f, t := float64(max(from, squareFrom)), float64(to)
		l.square += t*t - f*f
	}
}

func (l *load) addDecode(kv int) {
	l.decoding++
	l.kv += kv
}

// time of a step with that load, before noise, in nanoseconds.
func (m *StepModel) time(l *load) float64 {
	us := m.Alpha*float64(l.prefill+l.draft) + m.Beta*float64(l.decoding) + m.Gamma*float64(l.kv) + m.Alpha2*l.square
	return float64(m.T0) + 1000*us + m.experts(l)
}

// experts is what those touched cost, in nanoseconds.
func (m *StepModel) experts(l *load) float64 {
	if m.Experts == 0 {
		return 0
	}
	tokens := l.prefill + l.draft + l.decoding
	return float64(m.Experts) * (1 - math.Pow(1-m.Active, float64(tokens)))
}

// Check reports everything that makes no sense.
func (p Params) Check() error {
	_, err := p.complete()
	return err
}

// complete fills the defaults in and reports everything that makes no sense.
func (p Params) complete() (Params, error) {
	p.MaxSeqs = orDefault(p.MaxSeqs, 256)
	p.MaxBatchedTokens = orDefault(p.MaxBatchedTokens, 2048)
	p.MaxModelLen = min(orDefault(p.MaxModelLen, 32768), p.KVBlocks*BlockTokens)
	return p, p.check()
}

func (p *Params) check() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"step.t0", float64(p.Step.T0)}, {"step.h", float64(p.Step.H)},
		{"step.alpha", p.Step.Alpha}, {"step.beta", p.Step.Beta}, {"step.gamma", p.Step.Gamma}, {"step.alpha2", p.Step.Alpha2},
		{"step.experts", float64(p.Step.Experts)}, {"step.active", p.Step.Active},
		{"noise", p.Noise},
		{"cold.tables", float64(p.Cold.Tables)}, {"cold.cache", float64(p.Cold.Cache)}, {"cold.requests", float64(p.Cold.Requests)},
		{"start_up", float64(p.StartUp)},
		{"speculative.draft_tokens", float64(p.Speculative.DraftTokens)}, {"speculative.acceptance", p.Speculative.Acceptance},
		{"max_num_seqs", float64(p.MaxSeqs)}, {"max_num_batched_tokens", float64(p.MaxBatchedTokens)},
	} {
		if f.value < 0 || math.IsNaN(f.value) || math.IsInf(f.value, 0) {
			errs = append(errs, fmt.Errorf("%s is %v, want a finite number of at least 0", f.name, f.value))
		}
	}
	if p.Step.Active > 1 {
		errs = append(errs, fmt.Errorf("step.active is %v, want at most 1", p.Step.Active))
	}
	if p.Speculative.Acceptance > 1 {
		errs = append(errs, fmt.Errorf("speculative.acceptance is %v, want at most 1", p.Speculative.Acceptance))
	}
	if p.KVBlocks < 1 {
		errs = append(errs, fmt.Errorf("kv_blocks is %d, want at least 1", p.KVBlocks))
	}
	return errors.Join(errs...)
}

func orDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}
