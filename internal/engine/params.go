package engine

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Params describe one engine: what a step costs and what the scheduler may put
// into it. The zero value of a limit means the documented default.
type Params struct {
	Step StepModel

	// MaxSeqs caps the sequences that run at once (vLLM max-num-seqs). Default 256.
	MaxSeqs int
	// MaxBatchedTokens is the token budget of a step (vLLM
	// max-num-batched-tokens): a decoding sequence takes one, the rest goes to
	// prompt chunks. Default 2048.
	MaxBatchedTokens int
	// KVBlocks is the size of the KV cache in blocks of BlockTokens. Required.
	KVBlocks int
	// MaxModelLen caps prompt plus output tokens of a request. Default 32768,
	// and never more than the cache holds.
	MaxModelLen int
	// NoPrefixCache switches the reuse of computed blocks off.
	NoPrefixCache bool
	// Noise is the sigma of a log-normal factor of mean one on every step's
	// time. Default 0, no noise.
	Noise float64
}

// StepModel is the time of one forward pass:
//
//	T0 + Alpha·prefill tokens + Beta·decoding sequences + Gamma·KV tokens they hold
//
// plus Alpha2·(len² − 4096²) spread over the chunks of a prompt beyond 4096
// tokens. The numbers of one fit belong together and are used whole.
type StepModel struct {
	T0     time.Duration
	Alpha  float64 // µs a prefill token
	Beta   float64 // µs a decoding sequence
	Gamma  float64 // µs a KV token held by a decoding sequence
	Alpha2 float64 // µs a squared prompt token
	// H is the fixed cost of a request (HTTP, tokenising, first write). It
	// passes before the request reaches the queue and takes no engine time.
	H time.Duration
}

// squareFrom is the prompt length from which attention shows as a square.
const squareFrom = 4096

// load is what one step carries.
type load struct {
	prefill  int     // prompt tokens computed
	decoding int     // sequences that decode
	kv       int     // tokens those sequences hold
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
	us := m.Alpha*float64(l.prefill) + m.Beta*float64(l.decoding) + m.Gamma*float64(l.kv) + m.Alpha2*l.square
	return float64(m.T0) + 1000*us
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
		{"T0", float64(p.Step.T0)}, {"H", float64(p.Step.H)},
		{"Alpha", p.Step.Alpha}, {"Beta", p.Step.Beta}, {"Gamma", p.Step.Gamma}, {"Alpha2", p.Step.Alpha2},
		{"Noise", p.Noise},
		{"MaxSeqs", float64(p.MaxSeqs)}, {"MaxBatchedTokens", float64(p.MaxBatchedTokens)},
	} {
		if f.value < 0 || math.IsNaN(f.value) || math.IsInf(f.value, 0) {
			errs = append(errs, fmt.Errorf("%s is %v, want a finite number of at least 0", f.name, f.value))
		}
	}
	if p.KVBlocks < 1 {
		errs = append(errs, fmt.Errorf("KVBlocks is %d, want at least 1", p.KVBlocks))
	}
	return errors.Join(errs...)
}

func orDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}
