package predictor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
)

// Features is what is known of one request on one engine at the moment of the
// choice, by the order of Schema. A value that is not known is NaN, never 0.
type Features [numFeatures]float64

// The features, by place. Names, units and meanings are in Schema; none may be
// moved or change its meaning without a new SchemaVersion.
const (
	PromptTokens = iota
	UncachedTokens
	MaxTokens
	Turn
	Streaming
	Running
	Waiting
	PendingTokens
	PendingRequests
	DecodeRequests
	DecodeContext
	KVUse
	HitShare
	ScrapeAge
	SinceFirstToken
	TokenGap
	SinceToken
	Phase
	BatchContext
	ArrivalRate
	ArrivalCV
	ResponseEntropy
	CPUCovariance
	Base
	OwnShare
	QueueShare
	Steps
	RecentError
	RecentSpread
	CacheTrust
	Blocked
	numFeatures
)

// Feature describes one place of the schema.
type Feature struct {
	Name    string // as models and samples spell it
	Unit    string // tokens, requests, s, steps, 1 (a ratio), nats, ...
	Meaning string
}

// SchemaVersion names the meaning of the features. It is part of the hash.
const SchemaVersion = "firsttoken-features/1"

// Schema returns the description of every feature, in order.
func Schema() []Feature {
	return []Feature{
		PromptTokens:    {"prompt_tokens", "tokens", "length of the prompt, estimated before it is sent"},
		UncachedTokens:  {"uncached_tokens", "tokens", "prompt tokens the engine's prefix cache should not hold"},
		MaxTokens:       {"max_tokens", "tokens", "most tokens the client allows; unknown if it did not say"},
		Turn:            {"turn", "turns", "user messages in the conversation; unknown where there is none"},
		Streaming:       {"streaming", "1", "1 if the answer is streamed, else 0"},
		Running:         {"running", "requests", "sequences the engine computes, by its last scrape"},
		Waiting:         {"waiting", "requests", "sequences the engine queues, by its last scrape"},
		PendingTokens:   {"pending_tokens", "tokens", "uncached prompt tokens ahead of this request: own dispatches without a first token, and others' by the last scrape"},
		PendingRequests: {"pending_requests", "requests", "own dispatches without a first token"},
		DecodeRequests:  {"decode_requests", "requests", "sequences decoding, own and others'"},
		DecodeContext:   {"decode_context", "tokens", "prompt and answer tokens that these hold"},
		KVUse:           {"kv_use", "1", "share of the KV cache in use, by the last scrape"},
		HitShare:        {"hit_share", "1", "share of recent prompt tokens found in the prefix cache, by the last scrape"},
		ScrapeAge:       {"scrape_age", "s", "age of the last scrape"},
		SinceFirstToken: {"since_first_token", "s", "time since the last first token of the engine"},
		TokenGap:        {"token_gap", "s", "recent time between the engine's steps, as seen in its streams"},
		SinceToken:      {"since_token", "s", "time since the last token in the engine's streams: since its present step began"},
		Phase:           {"phase", "steps", "the same in units of the expected length of the present step"},
		BatchContext:    {"batch_context", "requests·tokens", "decode_requests × decode_context"},
		ArrivalRate:     {"arrival_rate", "1/s", "requests a second of the model's pool, over the last minute"},
		ArrivalCV:       {"arrival_cv", "1", "coefficient of variation of the pool's requests per second over 5 minutes"},
		ResponseEntropy: {"response_entropy", "nats", "entropy of the engine's response times over 5 minutes, in bins a factor of √2 wide"},
		CPUCovariance:   {"cpu_covariance", "cores·s", "covariance of the engine's CPU use with its response times, over about 5 minutes"},
		Base:            {"base", "s", "the analytic estimate of the time to first token"},
		OwnShare:        {"own_share", "1", "share of the base that is this request's own prompt"},
		QueueShare:      {"queue_share", "1", "share of the base that is prompts ahead"},
		Steps:           {"steps", "steps", "engine steps until the first token, by the analytic estimate"},
		RecentError:     {"recent_error", "1", "decayed mean of log(truth/base) of the engine's recent requests"},
		RecentSpread:    {"recent_spread", "1", "decayed mean deviation from it"},
		CacheTrust:      {"cache_trust", "1", "cached tokens the engine reported over those expected, lately"},
		Blocked:         {"blocked", "requests", "requests that must end before this one finds a slot or KV room"},
	}
}

// Names returns the features' names, in order.
func Names() []string {
	names := make([]string, numFeatures)
	for i, f := range Schema() {
		names[i] = f.Name
	}
	return names
}

// SchemaHash identifies order, units and meaning of the features: models and
// samples of another hash are refused.
func SchemaHash() string {
	h := sha256.New()
	fmt.Fprintln(h, SchemaVersion)
	for _, f := range Schema() {
		fmt.Fprintf(h, "%s\t%s\t%s\n", f.Name, f.Unit, f.Meaning)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// same reports whether every value is the same, to the bit.
func (f *Features) same(other *Features) bool {
	for i := range f {
		if math.Float64bits(f[i]) != math.Float64bits(other[i]) {
			return false
		}
	}
	return true
}

// unknown is the features of which nothing is known.
func unknown() (f Features) {
	for i := range f {
		f[i] = math.NaN()
	}
	return f
}
