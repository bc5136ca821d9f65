// Package report sums up what became of requests: distributions, shares
// within objectives, goodput, and the same by model, turn, load regime and
// engine. It prints a report as a table, as JSON and as one HTML file. How the
// requests were served is of no concern to it.
package report

import (
	"math"
	"slices"
	"sort"
	"time"
)

// Sample is one request as the report sees it.
type Sample struct {
	At     time.Duration // arrival
	Model  string
	Engine string // "" if none served it
	Turn   int    // of its conversation; 0 unknown
	Regime string // load of the engine when it was sent
	Reason string // ok, or why it was not served
	TTFT   time.Duration
	TPOT   time.Duration // 0: fewer than two tokens
	E2E    time.Duration
	Prompt int // tokens
	Cached int // of these from the prefix cache
	Output int
}

// OK reports whether the request was served.
func (s *Sample) OK() bool { return s.Reason == "ok" }

// Refused reports whether the request was turned away before an engine took it.
func (s *Sample) Refused() bool {
	switch s.Reason {
	case "refused", "too_long", "unknown_model", "invalid":
		return true
	}
	return false
}

// Objective is what a request is meant to meet. A zero part is no objective.
type Objective struct {
	TTFT         time.Duration // base
	TTFTPerToken time.Duration // added for each prompt token
	TPOT         time.Duration
	E2E          time.Duration
}

// Met reports whether a sample met every part of the objective.
func (o Objective) Met(s *Sample) bool {
	if !s.OK() {
		return false
	}
	within := func(v, limit time.Duration) bool { return limit == 0 || v <= limit }
	ttft := o.TTFT
	if ttft > 0 || o.TTFTPerToken > 0 {
		ttft += o.TTFTPerToken * time.Duration(s.Prompt)
	}
	return within(s.TTFT, ttft) && within(s.TPOT, o.TPOT) && within(s.E2E, o.E2E)
}

// EngineUse is what one engine did over a run.
type EngineUse struct {
	Name        string  `json:"name"`
	Share       float64 `json:"share"`       // of the requests served
	Utilisation float64 `json:"utilisation"` // share of the time in which it computed
	CacheHits   float64 `json:"cache_hits"`  // share of prompt tokens found in its prefix cache
	Preemptions int     `json:"preemptions"`
}

// Spread describes a distribution of times, in milliseconds.
type Spread struct {
	Count  int     `json:"count"`
	Mean   float64 `json:"mean_ms"`
	StdDev float64 `json:"stddev_ms"`
	P50    float64 `json:"p50_ms"`
	P90    float64 `json:"p90_ms"`
	P95    float64 `json:"p95_ms"`
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
}

// Group is the figures of some of the requests.
type Group struct {
	Name     string  `json:"name,omitempty"`
	Requests int     `json:"requests"`
	Refused  int     `json:"refused"`
	Failed   int     `json:"failed"`
	TTFT     Spread  `json:"ttft"`
	TPOT     Spread  `json:"tpot"`
	E2E      Spread  `json:"e2e"`
	Met      float64 `json:"met"` // share that met the objective; refused and failed did not
}

// Run is the report of one policy (or one bench run).
type Run struct {
	Name     string         `json:"name"`
	Seconds  float64        `json:"seconds"` // from first arrival to last end
	All      Group          `json:"all"`
	Goodput  float64        `json:"goodput_rps"` // requests/s that met the objective
	ByModel  []Group        `json:"by_model,omitempty"`
	ByTurn   []Group        `json:"by_turn,omitempty"`
	ByRegime []Group        `json:"by_regime,omitempty"`
	Engines  []EngineUse    `json:"engines,omitempty"`
	Reasons  map[string]int `json:"reasons"`

	TTFTs []float64 `json:"-"` // sorted, milliseconds; for plots and intervals
	Load  []Point   `json:"-"` // arrivals a second over time
}

// Point is one point of a curve.
type Point struct{ X, Y float64 }

// Summarise builds the report of one run over the time from its first arrival
// to its last end.
func Summarise(name string, samples []Sample, o Objective, engines []EngineUse) Run {
	r := Run{Name: name, Engines: engines, Reasons: map[string]int{}}
	if len(samples) == 0 {
		return r
	}
	first, last := samples[0].At, time.Duration(0)
	for i := range samples {
		s := &samples[i]
		r.Reasons[s.Reason]++
		first, last = min(first, s.At), max(last, s.At+s.E2E)
	}
	r.Seconds = (last - first).Seconds()
	r.All = group("", samples, o)
	if r.Seconds > 0 {
		r.Goodput = r.All.Met * float64(len(samples)) / r.Seconds
	}
	r.ByModel = groups(samples, o, func(s *Sample) string { return s.Model })
	r.ByTurn = groups(samples, o, turnName)
	r.ByRegime = groups(samples, o, func(s *Sample) string { return s.Regime })
	r.TTFTs = times(samples, func(s *Sample) time.Duration { return s.TTFT })
	r.Load = arrivals(samples, first)
	return r
}

func turnName(s *Sample) string {
	switch {
	case s.Turn <= 0:
		return ""
	case s.Turn >= 10:
		return "turn 10+"
	}
	return "turn " + string(rune('0'+s.Turn))
}

// groups splits samples by a name; samples without one are in no group, and a
// single group says nothing new.
func groups(samples []Sample, o Objective, name func(*Sample) string) []Group {
	by := map[string][]Sample{}
	for i := range samples {
		if n := name(&samples[i]); n != "" {
			by[n] = append(by[n], samples[i])
		}
	}
	if len(by) < 2 {
		return nil
	}
	var out []Group
	for n, s := range by {
		out = append(out, group(n, s, o))
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func group(name string, samples []Sample, o Objective) Group {
	g := Group{Name: name, Requests: len(samples)}
	met := 0
	for i := range samples {
		s := &samples[i]
		switch {
		case s.Refused():
			g.Refused++
		case !s.OK():
			g.Failed++
		}
		if o.Met(s) {
			met++
		}
	}
	g.Met = float64(met) / float64(len(samples))
	g.TTFT = spread(times(samples, func(s *Sample) time.Duration { return s.TTFT }))
	g.TPOT = spread(times(samples, func(s *Sample) time.Duration { return s.TPOT }))
	g.E2E = spread(times(samples, func(s *Sample) time.Duration { return s.E2E }))
	return g
}

// times are the positive values of served samples, sorted, in milliseconds.
func times(samples []Sample, of func(*Sample) time.Duration) []float64 {
	var out []float64
	for i := range samples {
		if v := of(&samples[i]); samples[i].OK() && v > 0 {
			out = append(out, v.Seconds()*1e3)
		}
	}
	slices.Sort(out)
	return out
}

func spread(sorted []float64) Spread {
	s := Spread{Count: len(sorted)}
	if s.Count == 0 {
		return s
	}
	sum := 0.0
	for _, v := range sorted {
		sum += v
	}
	s.Mean = sum / float64(s.Count)
	square := 0.0
	for _, v := range sorted {
		square += (v - s.Mean) * (v - s.Mean)
	}
	if s.Count > 1 {
		s.StdDev = math.Sqrt(square / float64(s.Count-1))
	}
	s.P50, s.P90, s.P95, s.P99 = Quantile(sorted, .5), Quantile(sorted, .9), Quantile(sorted, .95), Quantile(sorted, .99)
	s.Max = sorted[s.Count-1]
	return s
}

// Quantile is the q-quantile (0..1) of sorted values, interpolated between
// neighbours (type 7 of Hyndman and Fan, as NumPy's default).
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// arrivals is the number of arrivals a second, over at most 300 slices.
func arrivals(samples []Sample, first time.Duration) []Point {
	last := first
	for i := range samples {
		last = max(last, samples[i].At)
	}
	width := max(time.Second, (last-first)/300+1)
	counts := make([]int, (last-first)/width+1)
	for i := range samples {
		counts[(samples[i].At-first)/width]++
	}
	out := make([]Point, len(counts))
	for i, n := range counts {
		out[i] = Point{X: (time.Duration(i) * width).Seconds(), Y: float64(n) / width.Seconds()}
	}
	return out
}
