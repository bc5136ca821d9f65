package engine

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// metrics are an engine's numbers under vLLM's names. Histograms are fed by the
// driver; counters and gauges are read from the engine at the scrape. All times
// are as seen from outside, so scaled by Speed.
type metrics struct {
	server   *Server
	registry *prometheus.Registry
	stalled  atomic.Pointer[[]*dto.MetricFamily] // shown in place of the registry's
	ends     *prometheus.CounterVec

	ttft, itl, tpot, e2e              prometheus.Histogram
	queue, inference, prefill, decode prometheus.Histogram
	promptTokens, generationTokens    prometheus.Histogram
}

// times of one request, in the engine's time.
type times struct {
	submitted, scheduled, first, last time.Duration
}

// Bucket bounds of vLLM, in seconds and tokens.
var (
	ttftBuckets    = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBuckets     = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	tokenBuckets   = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
)

func newMetrics(s *Server) *metrics {
	m := &metrics{server: s, registry: prometheus.NewRegistry()}
	reg := prometheus.WrapRegistererWith(prometheus.Labels{"engine": "0", "model_name": s.spec.Model}, m.registry)
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	m.ttft = histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", ttftBuckets)
	m.itl = histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", itlBuckets)
	m.tpot = histogram("vllm:request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", itlBuckets)
	m.e2e = histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", requestBuckets)
	m.queue = histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", requestBuckets)
	m.inference = histogram("vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", requestBuckets)
	m.prefill = histogram("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", requestBuckets)
	m.decode = histogram("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", requestBuckets)
	m.promptTokens = histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", tokenBuckets)
	m.generationTokens = histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", tokenBuckets)
	m.ends = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vllm:request_success_total", Help: "Count of successfully processed requests.",
	}, []string{"finished_reason"})
	for _, reason := range []string{"stop", "length", "abort", "error"} {
		m.ends.WithLabelValues(reason)
	}
	reg.MustRegister(m.ends, statsCollector{s})
	m.registry.MustRegister(processCollector{s})
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(prometheus.GathererFunc(m.gather), promhttp.HandlerOpts{})
}

func (m *metrics) gather() ([]*dto.MetricFamily, error) {
	if families := m.stalled.Load(); families != nil {
		return *families, nil
	}
	return m.registry.Gather()
}

// stall goes on showing the numbers of now.
func (m *metrics) stall() {
	families, err := m.gather()
	if err == nil {
		m.stalled.Store(&families)
	}
}

func (m *metrics) resume() { m.stalled.Store(nil) }

// observe takes one event of a request in.
func (m *metrics) observe(c *call, e Event) {
	t := &c.times
	switch e.Kind {
	case FirstToken:
		t.first = e.At
		m.ttft.Observe(m.seconds(e.At - t.submitted))
		t.last = e.At
	case Token:
		m.itl.Observe(m.seconds(e.At - t.last))
		t.last = e.At
	case Finished:
		m.finished(c, e)
	}
}

func (m *metrics) finished(c *call, e Event) {
	t := &c.times
	m.ends.WithLabelValues(c.reason).Inc()
	m.e2e.Observe(m.seconds(e.At - t.submitted))
	m.queue.Observe(m.seconds(t.scheduled - t.submitted))
	m.inference.Observe(m.seconds(e.At - t.scheduled))
	m.promptTokens.Observe(float64(c.request.PromptTokens))
	if e.Tokens == 0 {
		return // an embedding
	}
	m.prefill.Observe(m.seconds(t.first - t.scheduled))
	m.decode.Observe(m.seconds(e.At - t.first))
	m.generationTokens.Observe(float64(e.Tokens))
	if e.Tokens > 1 {
		m.tpot.Observe(m.seconds(e.At-t.first) / float64(e.Tokens-1))
	}
}

func (m *metrics) aborted() { m.ends.WithLabelValues("abort").Inc() }

func (m *metrics) seconds(d time.Duration) float64 { return d.Seconds() / m.server.spec.Speed }

// stat is one family read from Stats.
type stat struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	value  func(*Stats) int
	labels []string
}

func gauge(name, help string, value func(*Stats) int, labels ...string) stat {
	return newStat(prometheus.GaugeValue, name, help, value, labels)
}

func counter(name, help string, value func(*Stats) int) stat {
	return newStat(prometheus.CounterValue, name, help, value, nil)
}

// newStat takes labels as name, value pairs.
func newStat(kind prometheus.ValueType, name, help string, value func(*Stats) int, labels []string) stat {
	st := stat{kind: kind, value: value}
	var names []string
	for i := 0; i < len(labels); i += 2 {
		names = append(names, labels[i])
		st.labels = append(st.labels, labels[i+1])
	}
	st.desc = prometheus.NewDesc(name, help, names, nil)
	return st
}

// statsCollector reads the engine once a scrape, so that its numbers agree.
type statsCollector struct{ server *Server }

func (c statsCollector) stats() []stat {
	all := []stat{
		gauge("vllm:num_requests_running", "Number of requests in model execution batches.", func(s *Stats) int { return s.Running }),
		gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", func(s *Stats) int { return s.Waiting }),
		gauge("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason.", func(s *Stats) int { return s.Waiting }, "reason", "capacity"),
		gauge("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason.", func(*Stats) int { return 0 }, "reason", "deferred"),
		counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", func(s *Stats) int { return s.PrefixQueries }),
		counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", func(s *Stats) int { return s.PrefixHits }),
		counter("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", func(s *Stats) int { return s.Preemptions }),
		counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.", func(s *Stats) int { return s.PromptTokens }),
		counter("vllm:prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).", func(s *Stats) int { return s.PrefixHits }),
		counter("vllm:generation_tokens_total", "Number of generation tokens processed.", func(s *Stats) int { return s.GeneratedTokens }),
	}
	if c.server.limits.Speculative.DraftTokens == 0 {
		return all
	}
	return append(all,
		counter("vllm:spec_decode_num_drafts_total", "Number of spec decoding drafts.", func(s *Stats) int { return s.Drafts }),
		counter("vllm:spec_decode_num_draft_tokens_total", "Number of draft tokens.", func(s *Stats) int { return s.DraftTokens }),
		counter("vllm:spec_decode_num_accepted_tokens_total", "Number of accepted tokens.", func(s *Stats) int { return s.AcceptedTokens }),
	)
}

func (c statsCollector) usage() *prometheus.Desc {
	return prometheus.NewDesc("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", nil, nil)
}

func (c statsCollector) config() *prometheus.Desc {
	return prometheus.NewDesc("vllm:cache_config_info", "Information of the LLMEngine CacheConfig",
		[]string{"block_size", "num_gpu_blocks", "enable_prefix_caching", "kv_cache_size_tokens"}, nil)
}

func (c statsCollector) Describe(out chan<- *prometheus.Desc) {
	for _, st := range c.stats() {
		out <- st.desc
	}
	out <- c.usage()
	out <- c.config()
}

func (c statsCollector) Collect(out chan<- prometheus.Metric) {
	now := c.server.Stats()
	for _, st := range c.stats() {
		out <- prometheus.MustNewConstMetric(st.desc, st.kind, float64(st.value(&now)), st.labels...)
	}
	out <- prometheus.MustNewConstMetric(c.usage(), prometheus.GaugeValue, float64(now.KVUsed)/float64(now.KVTotal))
	caching := "True"
	if c.server.limits.NoPrefixCache {
		caching = "False"
	}
	out <- prometheus.MustNewConstMetric(c.config(), prometheus.GaugeValue, 1,
		itoa(BlockTokens), itoa(now.KVTotal), caching, itoa(now.KVTotal*BlockTokens))
}

// processCollector shows the engine as a process: it started when the server
// did, and its CPU is busy as long as a step is under way.
type processCollector struct{ server *Server }

func (c processCollector) started() *prometheus.Desc {
	return prometheus.NewDesc("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", nil, nil)
}

func (c processCollector) cpu() *prometheus.Desc {
	return prometheus.NewDesc("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", nil, nil)
}

func (c processCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.started()
	out <- c.cpu()
}

func (c processCollector) Collect(out chan<- prometheus.Metric) {
	start := float64(c.server.start.UnixNano()) / 1e9
	busy := c.server.metrics.seconds(c.server.Stats().Busy)
	out <- prometheus.MustNewConstMetric(c.started(), prometheus.GaugeValue, start)
	out <- prometheus.MustNewConstMetric(c.cpu(), prometheus.CounterValue, busy)
}
