package backends

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Signals is what one scrape of an engine's own metrics said, in one form for
// all engine kinds. A value the engine does not report is NaN, never 0: begin
// with UnknownSignals to build one.
type Signals struct {
	Began time.Time // the scrape was sent
	At    time.Time // its answer was read; zero before the first scrape

	Running        float64 // sequences being computed
	Waiting        float64 // requests queued inside the engine
	KVUse          float64 // share of the KV cache in use, 0..1
	PrefixHitRatio float64 // share of prompt tokens found in the prefix cache since the previous scrape, 0..1
	CPU            float64 // CPU cores used since the previous scrape
	CacheTokens    float64 // size of the KV cache in tokens
	StartTime      float64 // Unix seconds at which the engine's process started

	// OwnInFlight is what the gateway itself had in flight there when the
	// scrape was sent.
	OwnInFlight int

	prefixHits, prefixQueries, cpuSeconds float64 // cumulative
	prefixCaching                         float64 // 1: prefixes are reused; 0: they are not
}

// Age is how old the signals are at now; they describe the engine as of At.
// Before the first scrape it is the largest duration.
func (s Signals) Age(now time.Time) time.Duration {
	if s.At.IsZero() {
		return math.MaxInt64
	}
	return now.Sub(s.At)
}

// UnknownSignals is a Signals in which every value is unknown.
func UnknownSignals() Signals {
	nan := math.NaN()
	return Signals{Running: nan, Waiting: nan, KVUse: nan, PrefixHitRatio: nan, CPU: nan, CacheTokens: nan, StartTime: nan,
		prefixHits: nan, prefixQueries: nan, cpuSeconds: nan, prefixCaching: nan}
}

// ErrNoSignals says that a scrape held none of the engine kind's metrics.
var ErrNoSignals = errors.New("no known metric in the scrape")

const (
	maxScrape = 16 << 20 // bytes of one scrape that are read at most
	maxLine   = 1 << 20  // bytes of one line
	maxValue  = 1e18     // more than an engine counts
)

// ParseSignals reads Prometheus text as an engine of the given kind prints
// it. Counts are summed over an engine's data-parallel series and ratios
// averaged; the ranks of one shard repeat its number and count once. Values
// that cannot be (negative, infinite) are unknown. Without any value the
// error wraps ErrNoSignals.
func ParseSignals(kind Kind, r io.Reader) (Signals, error) {
	s := UnknownSignals()
	fields := fieldsOf(kind)
	series, err := readSeries(r, fields)
	if err != nil {
		return s, fmt.Errorf("read metrics: %w", err)
	}
	found := false
	for _, f := range fields {
		v, ok := f.read(series[underscored(f.name)])
		if !ok {
			continue
		}
		dst := f.dst(&s)
		switch {
		case math.IsNaN(*dst):
			*dst = v
		case f.add:
			*dst += v
		}
		found = true
	}
	if !found {
		return s, ErrNoSignals
	}
	return s, nil
}

// field is one metric that feeds one value of Signals. Fields of one value
// are tried in order and the first that exists wins; later ones add to it
// where add is set.
type field struct {
	name  string // as exposed; ':' and '_' after the engine's prefix are the same
	label string // if set, only series with this label value count
	value string
	parts string // label that is empty on a total and set on the parts of it
	ratio bool   // in 0..1, and averaged over series instead of summed
	add   bool
	of    func(*dto.Metric) float64 // what a series says, where that is not its value
	dst   func(*Signals) *float64
}

func running(s *Signals) *float64       { return &s.Running }
func waiting(s *Signals) *float64       { return &s.Waiting }
func kvUse(s *Signals) *float64         { return &s.KVUse }
func hitRatio(s *Signals) *float64      { return &s.PrefixHitRatio }
func prefixHits(s *Signals) *float64    { return &s.prefixHits }
func prefixQueries(s *Signals) *float64 { return &s.prefixQueries }
func cpuSeconds(s *Signals) *float64    { return &s.cpuSeconds }
func startTime(s *Signals) *float64     { return &s.StartTime }
func cacheTokens(s *Signals) *float64   { return &s.CacheTokens }
func prefixCaching(s *Signals) *float64 { return &s.prefixCaching }

// fieldsOf lists the metric names of an engine kind, new names first.
func fieldsOf(kind Kind) []field {
	process := []field{
		{name: "process_cpu_seconds_total", dst: cpuSeconds},
		{name: "process_start_time_seconds", dst: startTime},
	}
	switch kind {
	case VLLM:
		return append(process,
			field{name: "vllm:num_requests_running", dst: running},
			field{name: "vllm:num_requests_waiting", dst: waiting},
			field{name: "vllm:num_requests_swapped", dst: waiting, add: true},
			field{name: "vllm:kv_cache_usage_perc", ratio: true, dst: kvUse},
			field{name: "vllm:gpu_cache_usage_perc", ratio: true, dst: kvUse},
			field{name: "vllm:prefix_cache_hits_total", dst: prefixHits},
			field{name: "vllm:prefix_cache_queries_total", dst: prefixQueries},
			field{name: "vllm:gpu_prefix_cache_hits_total", dst: prefixHits},
			field{name: "vllm:gpu_prefix_cache_queries_total", dst: prefixQueries},
			field{name: "vllm:gpu_prefix_cache_hit_rate", ratio: true, dst: hitRatio},
			field{name: "vllm:cache_config_info", of: vllmCacheTokens, dst: cacheTokens},
			field{name: "vllm:cache_config_info", of: vllmPrefixCaching, ratio: true, dst: prefixCaching},
		)
	case SGLang:
		return append(process,
			field{name: "sglang:num_running_reqs", parts: "priority", dst: running},
			field{name: "sglang:num_queue_reqs", parts: "priority", dst: waiting},
			field{name: "sglang:num_grammar_queue_reqs", dst: waiting, add: true},
			field{name: "sglang:token_usage", ratio: true, dst: kvUse},
			field{name: "sglang:cached_tokens_total", dst: prefixHits},
			field{name: "sglang:prompt_tokens_total", dst: prefixQueries},
			field{name: "sglang:cache_hit_rate", ratio: true, dst: hitRatio},
			field{name: "sglang:max_total_num_tokens", dst: cacheTokens},
		)
	case TGI:
		return append(process,
			field{name: "tgi_batch_current_size", dst: running},
			field{name: "tgi_queue_size", dst: waiting},
			// tgi_request_skipped_tokens is about speculation, not the cache.
		)
	case TRTLLM:
		return append(process,
			field{name: "trtllm_num_requests_running", dst: running},
			field{name: "trtllm_num_requests_waiting", dst: waiting},
			field{name: "trtllm_kv_cache_utilization", ratio: true, dst: kvUse},
			field{name: "trtllm_kv_cache_hit_rate", ratio: true, dst: hitRatio},
			field{name: "nv_trt_llm_request_metrics", label: "request_type", value: "scheduled", dst: running},
			field{name: "nv_trt_llm_request_metrics", label: "request_type", value: "waiting", dst: waiting},
			field{name: "nv_trt_llm_kv_cache_block_metrics", label: "kv_cache_block_type", value: "fraction", ratio: true, dst: kvUse},
		)
	case LlamaCpp:
		return append(process,
			field{name: "llamacpp:requests_processing", dst: running},
			field{name: "llamacpp:requests_deferred", dst: waiting},
			field{name: "llamacpp:kv_cache_usage_ratio", ratio: true, dst: kvUse},
			// prompt_tokens_total counts computed tokens only, so cached
			// ones are part of the queries as well.
			field{name: "llamacpp:prompt_tokens_cached_total", dst: prefixHits},
			field{name: "llamacpp:prompt_tokens_total", dst: prefixQueries},
			field{name: "llamacpp:prompt_tokens_cached_total", dst: prefixQueries, add: true},
		)
	default:
		return process
	}
}

// readSeries returns the series that fields name, by underscored name. It
// drops every other line before parsing, histograms above all: they are most
// of an engine's text.
func readSeries(r io.Reader, fields []field) (map[string][]*dto.Metric, error) {
	wanted := make(map[string]bool, len(fields))
	for _, f := range fields {
		wanted[underscored(f.name)] = true
	}
	limited := &io.LimitedReader{R: r, N: maxScrape + 1}
	text, err := unquote(bufio.NewReader(limited))
	if err != nil {
		return nil, err
	}
	var kept bytes.Buffer
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if line := lines.Bytes(); isWanted(wanted, line) {
			kept.Write(line)
			kept.WriteByte('\n')
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("longer than %d MiB", maxScrape>>20)
	}
	return parse(&kept)
}

// unquote undoes a llama.cpp build that sent its metrics as one JSON string.
func unquote(r *bufio.Reader) (io.Reader, error) {
	if first, err := r.Peek(1); err != nil || first[0] != '"' {
		return r, nil // an error comes again with the next read
	}
	var text string
	if err := json.NewDecoder(r).Decode(&text); err != nil {
		return nil, err
	}
	return strings.NewReader(text), nil
}

// isWanted reports whether line is a sample of a wanted series. It brings the
// name into the form of underscored on the way.
func isWanted(wanted map[string]bool, line []byte) bool {
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return false
	}
	name := line[:end]
	if i := bytes.IndexByte(name, ':'); i >= 0 {
		name[i] = '_'
	}
	return wanted[string(name)]
}

// underscored maps an exporter's "sglang:x" and "sglang_x" to one spelling.
func underscored(name string) string { return strings.Replace(name, ":", "_", 1) }

// parse reads samples without TYPE lines.
func parse(text io.Reader) (map[string][]*dto.Metric, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return nil, err
	}
	series := make(map[string][]*dto.Metric, len(families))
	for name, f := range families {
		series[name] = f.GetMetric()
	}
	return series, nil
}

// read makes one value of a field's series; ok is false if there is none.
func (f field) read(series []*dto.Metric) (v float64, ok bool) {
	shards := map[string]float64{}
	for _, m := range series {
		x := m.GetUntyped().GetValue()
		if f.of != nil {
			x = f.of(m)
		}
		if possible := x >= 0 && x <= maxValue; !possible || !f.counts(m, series) {
			continue
		}
		id := shard(m)
		shards[id] = max(shards[id], x)
	}
	if len(shards) == 0 {
		return 0, false
	}
	for _, id := range slices.Sorted(maps.Keys(shards)) {
		v += shards[id]
	}
	if f.ratio {
		v = min(v/float64(len(shards)), 1)
	}
	return v, true
}

// counts reports whether the series m is one of the field's.
func (f field) counts(m *dto.Metric, series []*dto.Metric) bool {
	if f.label != "" && label(m, f.label) != f.value {
		return false
	}
	if f.parts == "" || label(m, f.parts) == "" {
		return true
	}
	isTotal := func(m *dto.Metric) bool { return label(m, f.parts) == "" }
	return !slices.ContainsFunc(series, isTotal)
}

// label is the value of m's label, empty if it has none.
func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// vllmCacheTokens is the size that vLLM states in the labels of its cache's
// configuration; NaN where it is not known yet.
func vllmCacheTokens(m *dto.Metric) float64 {
	blocks, err := strconv.ParseFloat(label(m, "num_gpu_blocks"), 64)
	size, err2 := strconv.ParseFloat(label(m, "block_size"), 64)
	if err != nil || err2 != nil || blocks <= 0 || size <= 0 {
		return math.NaN()
	}
	return blocks * size
}

// vllmPrefixCaching is 0 or 1; NaN where vLLM does not say.
func vllmPrefixCaching(m *dto.Metric) float64 {
	switch label(m, "enable_prefix_caching") {
	case "True":
		return 1
	case "False":
		return 0
	}
	return math.NaN()
}

// shard names the independent part of the engine a series belongs to: all its
// labels but the ranks within one shard, which repeat the shard's number.
func shard(m *dto.Metric) string {
	var id []string
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "tp_rank", "pp_rank", "moe_ep_rank", "pid":
		default:
			id = append(id, strconv.Quote(l.GetName())+"="+strconv.Quote(l.GetValue()))
		}
	}
	slices.Sort(id)
	return strings.Join(id, ",")
}

// ratioOf turns two cumulative counters into their ratio since the previous
// scrape. Between scrapes without new queries the last ratio stands.
type ratioOf struct {
	hits, queries, last float64
	primed              bool
}

func (r *ratioOf) update(reported, hits, queries float64) float64 {
	if math.IsNaN(hits) || math.IsNaN(queries) {
		return reported
	}
	switch {
	case !r.primed || queries < r.queries || hits < r.hits: // first scrape, or the engine restarted
		r.last = math.NaN()
		if queries > 0 {
			r.last = clamp01(hits / queries)
		}
	case queries > r.queries:
		r.last = clamp01((hits - r.hits) / (queries - r.queries))
	}
	r.hits, r.queries, r.primed = hits, queries, true
	return r.last
}

// rateOf turns a cumulative counter of seconds into a rate since the previous scrape.
type rateOf struct {
	at     time.Time
	value  float64
	primed bool
}

func (r *rateOf) update(at time.Time, value float64) float64 {
	if math.IsNaN(value) {
		return value
	}
	rate := math.NaN()
	if dt := at.Sub(r.at).Seconds(); r.primed && value >= r.value && dt > 0 {
		rate = (value - r.value) / dt
	}
	r.at, r.value, r.primed = at, value, true
	return rate
}

func clamp01(v float64) float64 { return min(max(v, 0), 1) }
