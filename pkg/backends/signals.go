package backends

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Signals is what one scrape of an engine's own metrics said, in one form for
// all engine kinds. A value the engine does not report is NaN, never 0.
type Signals struct {
	Began time.Time // the scrape was sent
	At    time.Time // its answer was read; zero before the first scrape

	Running        float64 // sequences being computed
	Waiting        float64 // requests queued inside the engine
	KVUse          float64 // share of the KV cache in use, 0..1
	PrefixHitRatio float64 // share of prompt tokens found in the prefix cache since the previous scrape, 0..1
	CPU            float64 // CPU cores used since the previous scrape
	StartTime      float64 // Unix seconds at which the engine's process started

	// OwnInFlight is what the gateway itself had in flight there when the
	// scrape was sent.
	OwnInFlight int

	prefixHits, prefixQueries, cpuSeconds float64 // cumulative
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
	return Signals{Running: nan, Waiting: nan, KVUse: nan, PrefixHitRatio: nan, CPU: nan, StartTime: nan,
		prefixHits: nan, prefixQueries: nan, cpuSeconds: nan}
}

// ErrNoSignals says that a scrape held none of the engine kind's metrics.
var ErrNoSignals = errors.New("no known metric in the scrape")

const maxScrape = 16 << 20 // bytes of one scrape that are read at most

// ParseSignals reads Prometheus text as an engine of the given kind prints
// it. Counts are summed over an engine's data-parallel series and ratios
// averaged; tensor- and pipeline-parallel ranks repeat one number and count
// once.
func ParseSignals(kind Kind, r io.Reader) (Signals, error) {
	s := UnknownSignals()
	text, err := io.ReadAll(io.LimitReader(r, maxScrape))
	if err != nil {
		return s, fmt.Errorf("read metrics: %w", err)
	}
	fields := fieldsOf(kind)
	families, err := parseOnly(unquote(text), fields)
	if err != nil {
		return s, fmt.Errorf("parse metrics: %w", err)
	}
	found := false
	for _, f := range fields {
		v, ok := f.read(families)
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

// unquote undoes a llama.cpp build that sent its metrics as one JSON string.
func unquote(text []byte) []byte {
	var inner string
	if len(text) > 0 && text[0] == '"' && json.Unmarshal(text, &inner) == nil {
		return []byte(inner)
	}
	return text
}

// field is one metric that feeds one value of Signals. Fields of one value
// are tried in order and the first that exists wins; later ones add to it
// where add is set.
type field struct {
	name  string // as exposed; ':' and '_' after the engine's prefix are the same
	label string // if set, only series with this label value count
	value string
	ratio bool // averaged over series instead of summed
	add   bool
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
		)
	case SGLang:
		return append(process,
			field{name: "sglang:num_running_reqs", dst: running},
			field{name: "sglang:num_queue_reqs", dst: waiting},
			field{name: "sglang:num_grammar_queue_reqs", dst: waiting, add: true},
			field{name: "sglang:token_usage", ratio: true, dst: kvUse},
			field{name: "sglang:cached_tokens_total", dst: prefixHits},
			field{name: "sglang:prompt_tokens_total", dst: prefixQueries},
			field{name: "sglang:cache_hit_rate", ratio: true, dst: hitRatio},
		)
	case TGI:
		return append(process,
			field{name: "tgi_batch_current_size", dst: running},
			field{name: "tgi_queue_size", dst: waiting},
			field{name: "tgi_request_skipped_tokens", dst: prefixHits},
			field{name: "tgi_request_input_length", dst: prefixQueries},
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

// parseOnly parses the families that fields name and skips every other line,
// histograms' buckets above all: they are most of an engine's text.
func parseOnly(text []byte, fields []field) (map[string]*dto.MetricFamily, error) {
	wanted := map[string]bool{}
	for _, f := range fields {
		wanted[normal(f.name)] = true
	}
	var kept bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxScrape)
	for lines.Scan() {
		if line := lines.Bytes(); wants(wanted, line) {
			kept.Write(line)
			kept.WriteByte('\n')
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := parser.TextToMetricFamilies(&kept)
	if err != nil {
		return nil, err
	}
	families := make(map[string]*dto.MetricFamily, len(parsed))
	for name, f := range parsed {
		families[normal(name)] = f
	}
	return families, nil
}

// wants keeps samples of the wanted families, their _sum and _count, and
// their TYPE lines.
func wants(wanted map[string]bool, line []byte) bool {
	if rest, ok := bytes.CutPrefix(line, []byte("# TYPE ")); ok {
		line = rest
	}
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 || line[0] == '#' {
		return false
	}
	name := normal(string(line[:end]))
	if wanted[name] {
		return true
	}
	for _, suffix := range []string{"_sum", "_count"} {
		if n, ok := bytes.CutSuffix([]byte(name), []byte(suffix)); ok && wanted[string(n)] {
			return true
		}
	}
	return false
}

// normal maps an exporter's "sglang_x" and "sglang:x" to one spelling.
func normal(name string) string {
	b := []byte(name)
	if i := bytes.IndexByte(b, ':'); i >= 0 {
		b[i] = '_'
	}
	return string(b)
}

func (f field) read(families map[string]*dto.MetricFamily) (float64, bool) {
	family := families[normal(f.name)]
	if family == nil {
		return 0, false
	}
	shards := map[string]float64{}
	for _, m := range family.GetMetric() {
		v, ok := sample(m)
		if !ok || math.IsNaN(v) || !f.matches(m) {
			continue
		}
		id := shard(m)
		if old, seen := shards[id]; !seen || v > old {
			shards[id] = v
		}
	}
	if len(shards) == 0 {
		return 0, false
	}
	sum := 0.0
	for _, v := range shards {
		sum += v
	}
	if f.ratio {
		sum /= float64(len(shards))
	}
	return sum, true
}

func (f field) matches(m *dto.Metric) bool {
	if f.label == "" {
		return true
	}
	for _, l := range m.GetLabel() {
		if l.GetName() == f.label {
			return l.GetValue() == f.value
		}
	}
	return false
}

// shard names the independent part of the engine a series belongs to: all its
// labels but the ranks of one shard, which repeat the shard's number.
func shard(m *dto.Metric) string {
	var id []byte
	labels := slices.Clone(m.GetLabel())
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return bytes.Compare([]byte(a.GetName()), []byte(b.GetName())) })
	for _, l := range labels {
		switch l.GetName() {
		case "tp_rank", "pp_rank", "pid":
		default:
			id = append(id, l.GetName()...)
			id = append(id, '=')
			id = append(id, l.GetValue()...)
			id = append(id, 0)
		}
	}
	return string(id)
}

// sample is the number of a series; of a histogram or summary, its sum.
func sample(m *dto.Metric) (float64, bool) {
	switch {
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue(), true
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue(), true
	case m.GetUntyped() != nil:
		return m.GetUntyped().GetValue(), true
	case m.GetSummary() != nil:
		return m.GetSummary().GetSampleSum(), true
	case m.GetHistogram() != nil:
		return m.GetHistogram().GetSampleSum(), true
	}
	return 0, false
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
	case !r.primed || queries < r.queries: // first scrape, or the engine restarted
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
