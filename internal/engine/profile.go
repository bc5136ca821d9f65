package engine

import (
	"strings"
	"time"
)

// Profile is a named parameter set: one model on one GPU setup.
type Profile struct {
	Name   string
	Model  string
	GPU    string
	TP     int
	Params Params
	// Source says what the step model was fitted to.
	Source string
	// Estimated names the parameters that no measurement stands behind, with
	// how they were arrived at.
	Estimated map[string]string
}

// Profiles gives all built-in profiles. The step model of each is one fit, to
// be used whole.
func Profiles() []Profile {
	return []Profile{
		{
			Name: "rtx4090-llama-3.1-8b-bf16", Model: "llama-3.1-8b", GPU: "RTX 4090", TP: 1,
			Params: Params{
				Step:             StepModel{T0: ms(22.10), Alpha: 87.7, Beta: 46, Gamma: 0.0356},
				MaxSeqs:          256,
				MaxBatchedTokens: 2048,
				KVBlocks:         2588,
				MaxModelLen:      32768,
			},
			Source: "fit, by this engine's rules of admission and recomputation, to 300 requests of a vLLM 0.19 run, ShareGPT lengths at about 10 requests/s (casys-kaist/LLMServingSim, MIT)",
		},
		{
			Name: "rtxpro6000-llama-3.1-8b-bf16", Model: "llama-3.1-8b", GPU: "RTX PRO 6000", TP: 1,
			Params: Params{
				Step:             StepModel{T0: ms(12.72), Alpha: 37.2, Beta: 96, Gamma: 0.0297},
				MaxSeqs:          128,
				MaxBatchedTokens: 2048,
				KVBlocks:         32500,
				MaxModelLen:      131072,
			},
			Source: "fit to 300 requests of a vLLM 0.19 run, ShareGPT lengths at about 10 requests/s (casys-kaist/LLMServingSim, MIT)",
			Estimated: map[string]string{
				"KVBlocks": "90 % of 96 GB less 16 GB of weights and 2 GB of activations, at 131,072 bytes a token",
			},
		},
		{
			Name: "h200-llama-3.1-70b-fp8-tp1", Model: "llama-3.1-70b", GPU: "H200", TP: 1,
			Params: Params{
				Step:             StepModel{T0: ms(20.35), Alpha: 150.4, Beta: 87, Gamma: 0.069, H: ms(12)},
				MaxSeqs:          256,
				MaxBatchedTokens: 8192,
				KVBlocks:         20000,
				MaxModelLen:      131072,
			},
			Source: "fit to vLLM under closed-loop load, 4 to 64 users, 1,024 and 8,192 prompt tokens, 1,024 output (ai-dynamo/aiconfigurator, Apache-2.0)",
			Estimated: map[string]string{
				"KVBlocks": "90 % of 141 GB less 70 GB of weights and 5 GB of activations, at 163,840 bytes a token (fp8 cache: 32 users with 8,192 tokens were served without a queue)",
				"MaxSeqs":  "vLLM's default; no run had more than 64 users",
			},
		},
		{
			Name: "h100-llama-3.1-70b-fp8-tp4", Model: "llama-3.1-70b", GPU: "H100", TP: 4,
			Params: Params{
				Step:             StepModel{T0: ms(11.48), Alpha: 52.0, Beta: 18, Gamma: 0.033, H: ms(8)},
				MaxSeqs:          256,
				MaxBatchedTokens: 8192,
				KVBlocks:         38000,
				MaxModelLen:      131072,
			},
			Source: "fit to vLLM under closed-loop load, 4 to 64 users, 1,024 and 8,192 prompt tokens, 1,024 output (ai-dynamo/aiconfigurator, Apache-2.0)",
			Estimated: map[string]string{
				"KVBlocks": "90 % of 4 × 80 GB less 70 GB of weights and 20 GB of activations, at 327,680 bytes a token",
				"MaxSeqs":  "vLLM's default; no run had more than 64 users",
			},
		},
	}
}

// LookupProfile finds a built-in profile by name, in any case.
func LookupProfile(name string) (Profile, bool) {
	for _, p := range Profiles() {
		if strings.EqualFold(p.Name, name) {
			return p, true
		}
	}
	return Profile{}, false
}

func ms(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
