// Package report sums up what became of requests: distributions, shares
// within objectives, goodput, and the same by model, turn, load regime and
// engine. It prints a report as a table, as JSON and as one HTML file. How the
// requests were served is of no concern to it.
package report

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Sample is one request as the report sees it.
type Sample struct {
	At        time.Duration // arrival
	Model     string
	Engine    string // "" if none served it
	Turn      int    // of its conversation; 0 unknown
	Busy      int    // requests in flight on its engine when it was sent; below 0 unknown
	Reason    string // OK, or why it was not served
	TTFT      time.Duration
	TPOT      time.Duration // 0: fewer than two tokens
	E2E       time.Duration
	Prompt    int // tokens
	Objective Objective
	Held      time.Duration // it waited to be let in
	Foreseen  Foreseen

	Contract string    // that held for it; "": none
	Verdicts []Verdict // on each objective of the contract
}

// Reasons for which a request ends. Any other is a failure as Lost is.
const (
	OK           = "ok"
	Refused      = "refused"
	Shed         = "shed" // for load; "_" and why may follow
	TooLong      = "too_long"
	UnknownModel = "unknown_model"
	Lost         = "lost"
	Unfinished   = "unfinished" // what was under way when the run was stopped; in no figure
)

// OK reports whether the request was served.
func (s *Sample) OK() bool { return s.Reason == OK }

// Refused reports whether the request was turned away, and not for load: by
// the gateway, or by an engine on sight.
func (s *Sample) Refused() bool {
	switch s.Reason {
	case Refused, TooLong, UnknownModel:
		return true
	}
	return false
}

// Shed reports whether the gateway turned the request away for load.
func (s *Sample) Shed() bool { return strings.HasPrefix(s.Reason, Shed) }

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
	Shed     int     `json:"shed"`
	Failed   int     `json:"failed"`
	TTFT     Spread  `json:"ttft"`
	TPOT     Spread  `json:"tpot"`
	E2E      Spread  `json:"e2e"`
	Met      float64 `json:"met"` // share that met the objective; refused, shed and failed did not
}

// Run is the report of one policy.
type Run struct {
	Name       string         `json:"name"`
	Seconds    float64        `json:"seconds"` // from first arrival to last end
	All        Group          `json:"all"`
	Unfinished int            `json:"unfinished,omitempty"` // in no figure but Reasons
	Goodput    float64        `json:"goodput_rps"`          // requests/s that met the objective
	ByModel    []Group        `json:"by_model,omitempty"`
	ByTurn     []Group        `json:"by_turn,omitempty"`
	ByRegime   []Group        `json:"by_regime,omitempty"` // load of the engine when it got the request
	ByContract []Promise      `json:"by_contract,omitempty"`
	Held       Spread         `json:"held"`                 // waits of those that waited to be let in
	Prediction *Prediction    `json:"prediction,omitempty"` // nil: nothing was predicted
	Engines    []EngineUse    `json:"engines,omitempty"`
	Reasons    map[string]int `json:"reasons"`

	TTFTs    []float64 `json:"-"` // sorted, milliseconds; for plots
	Arrivals []Point   `json:"-"` // a second, over time
	InFlight []Point   `json:"-"` // requests, over time
}

// Goodput is the highest rate at which a policy serves enough requests within
// their objectives.
type Goodput struct {
	Name       string  `json:"name"`
	Multiplier float64 `json:"rate_multiplier"` // of the trace's rate; 0: there is none
	Requests   float64 `json:"goodput_rps"`     // requests/s that met their objectives at it
	Met        float64 `json:"met"`             // share that did
}

// Point is one point of a curve.
type Point struct{ X, Y float64 }

// Summarise builds the report of one run. Each sample is judged by its own
// objective.
func Summarise(name string, samples []Sample, engines []EngineUse) Run {
	r := Run{Name: name, Engines: engines, Reasons: map[string]int{}}
	var ended []*Sample
	for i := range samples {
		r.Reasons[samples[i].Reason]++
		if samples[i].Reason == Unfinished {
			r.Unfinished++
		} else {
			ended = append(ended, &samples[i])
		}
	}
	if len(ended) == 0 {
		return r
	}
	first, last := span(ended)
	r.Seconds = (last - first).Seconds()
	r.All = group("", ended)
	if r.Seconds > 0 {
		r.Goodput = r.All.Met * float64(len(ended)) / r.Seconds
	}
	r.ByModel = groups(ended, func(s *Sample) (string, int) { return s.Model, 0 })
	r.ByTurn = groups(ended, turn)
	r.ByRegime = groups(ended, regime)
	r.ByContract = promises(ended)
	r.Held = Describe(waits(ended))
	r.Prediction = judgePredictions(ended)
	r.TTFTs = times(ended, func(s *Sample) time.Duration { return s.TTFT })
	r.Arrivals, r.InFlight = curves(ended, first, last)
	return r
}

// span is from the first arrival to the last end.
func span(samples []*Sample) (first, last time.Duration) {
	first = samples[0].At
	for _, s := range samples {
		first, last = min(first, s.At), max(last, s.At+s.E2E)
	}
	return first, last
}

// turn names the turn of a conversation.
func turn(s *Sample) (name string, order int) {
	switch {
	case s.Turn <= 0:
		return "", 0
	case s.Turn >= 10:
		return "turn 10+", 10
	}
	return "turn " + strconv.Itoa(s.Turn), s.Turn
}

// regime names the load of the engine when the request was sent to it.
func regime(s *Sample) (name string, order int) {
	switch {
	case s.Busy < 0:
		return "", 0
	case s.Busy == 0:
		return "in flight 0", 0
	case s.Busy < 8:
		return "in flight 1-7", 1
	case s.Busy < 32:
		return "in flight 8-31", 2
	}
	return "in flight 32+", 3
}

// groups splits samples by a name; samples without one are in no group, and a
// single group says nothing new. They come by their order, then by name.
func groups(samples []*Sample, of func(*Sample) (name string, order int)) []Group {
	by, orders := map[string][]*Sample{}, map[string]int{}
	for _, s := range samples {
		if n, order := of(s); n != "" {
			by[n], orders[n] = append(by[n], s), order
		}
	}
	if len(by) < 2 {
		return nil
	}
	names := slices.SortedFunc(maps.Keys(by), func(a, b string) int {
		return cmp.Or(cmp.Compare(orders[a], orders[b]), cmp.Compare(a, b))
	})
	out := make([]Group, len(names))
	for i, n := range names {
		out[i] = group(n, by[n])
	}
	return out
}

func group(name string, samples []*Sample) Group {
	g := Group{Name: name, Requests: len(samples)}
	met := 0
	for _, s := range samples {
		switch {
		case s.Shed():
			g.Shed++
		case s.Refused():
			g.Refused++
		case !s.OK():
			g.Failed++
		}
		if s.Objective.Met(s) {
			met++
		}
	}
	g.Met = float64(met) / float64(len(samples))
	g.TTFT = Describe(times(samples, func(s *Sample) time.Duration { return s.TTFT }))
	g.TPOT = Describe(times(samples, func(s *Sample) time.Duration { return s.TPOT }))
	g.E2E = Describe(times(samples, func(s *Sample) time.Duration { return s.E2E }))
	return g
}

// times are the positive values of served samples, sorted, in milliseconds.
func times(samples []*Sample, of func(*Sample) time.Duration) []float64 {
	var out []float64
	for _, s := range samples {
		if v := of(s); s.OK() && v > 0 {
			out = append(out, v.Seconds()*1e3)
		}
	}
	slices.Sort(out)
	return out
}

// Describe sums up times in milliseconds, which are sorted.
func Describe(sorted []float64) Spread {
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

// curves are the arrivals a second and the mean number of requests in flight,
// over at most 300 slices of a second or more.
func curves(samples []*Sample, first, last time.Duration) (arrivals, inFlight []Point) {
	width := max(time.Second, (last-first)/300+1)
	n := int((last-first)/width) + 1
	count, busy := make([]float64, n), make([]time.Duration, n)
	for _, s := range samples {
		from, to := s.At-first, s.At+s.E2E-first
		count[from/width]++
		for k := from / width; k <= to/width; k++ {
			busy[k] += min(to, (k+1)*width) - max(from, k*width)
		}
	}
	for k := range n {
		x := (time.Duration(k) * width).Seconds()
		arrivals = append(arrivals, Point{X: x, Y: count[k] / width.Seconds()})
		inFlight = append(inFlight, Point{X: x, Y: busy[k].Seconds() / width.Seconds()})
	}
	inFlight = append(inFlight, Point{X: (last - first).Seconds()}) // then all have ended
	return arrivals, inFlight
}
