package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
)

// Plan says what is asked of which target, and when. It is part of a report,
// so that two runs can be compared; it holds no secrets. Its errors name the
// flags of the bench command.
type Plan struct {
	Target   string   `json:"target"`   // base URL, with or without /v1
	Endpoint string   `json:"endpoint"` // chat or completions
	Models   []string `json:"models"`   // NAME or NAME=WEIGHT; none: as the trace says, else the first of the target for a workload and all for others

	Concurrency int     `json:"concurrency,omitempty"` // callers of a closed loop
	Rate        float64 `json:"rate,omitempty"`        // arrivals a second
	Law         string  `json:"law,omitempty"`         // of arrivals: poisson, constant, gamma:CV, weibull:SHAPE
	Trace       string  `json:"trace,omitempty"`       // file
	Workload    string  `json:"workload,omitempty"`    // names of shipped ones, with commas between them
	Multiplier  float64 `json:"rate_multiplier,omitempty"`

	PromptTokens string `json:"prompt_tokens,omitempty"` // N or N-M; empty: as the trace says
	OutputTokens string `json:"output_tokens,omitempty"`
	Stream       string `json:"stream,omitempty"` // yes, no; empty: as the trace says
	IgnoreEOS    bool   `json:"ignore_eos,omitempty"`

	WarmUp   int           `json:"warmup"`
	Requests int           `json:"requests,omitempty"`    // 0: no limit
	Duration time.Duration `json:"duration_ns,omitempty"` // in which requests are sent; 0: no limit
	Timeout  time.Duration `json:"timeout_ns,omitempty"`  // of one request; 0: none
	Seed     uint64        `json:"seed"`

	// Objective is "ttft=320ms,tpot=50ms,e2e=2s" or parts of it; empty: the
	// trace's own objectives.
	Objective string `json:"objective,omitempty"`

	objective      report.Objective
	models         []trace.Weighted
	law            func(rate float64) trace.Law
	prompt, output size
}

// What a plan that says nothing means.
const (
	defaultConcurrency = 8
	defaultRequests    = 200
	defaultDuration    = time.Minute
	defaultPrompt      = "512"
	defaultOutput      = "128"
)

// Open reports whether requests arrive on a schedule.
func (p *Plan) Open() bool { return p.Concurrency == 0 }

// synthetic reports whether no trace says what the requests are.
func (p *Plan) synthetic() bool { return p.Trace == "" && p.Workload == "" }

// checked is the plan with its defaults, or all that is wrong with it.
func (p Plan) checked() (Plan, error) {
	p.Endpoint = cmp.Or(p.Endpoint, "chat")
	err := errors.Join(p.checkTarget(), p.checkLoad(), p.checkLimits())
	p.setDefaults()
	return p, errors.Join(err, p.parse())
}

func (p *Plan) checkTarget() error {
	if p.Target == "" {
		return errors.New("--target is missing: give the base URL, such as --target http://127.0.0.1:8080")
	}
	u, err := url.Parse(p.Target)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return fmt.Errorf("--target %q is no base URL: give one such as http://127.0.0.1:8080", p.Target)
	}
	p.Target = strings.TrimSuffix(strings.TrimRight(p.Target, "/"), "/v1")
	if p.Endpoint != "chat" && p.Endpoint != "completions" {
		return fmt.Errorf("--endpoint %q is unknown: give chat or completions", p.Endpoint)
	}
	return nil
}

func (p *Plan) checkLoad() error {
	positive := func(v float64) bool { return v > 0 && !math.IsInf(v, 0) }
	switch {
	case p.Trace != "" && p.Workload != "":
		return errors.New("--trace and --workload exclude each other: give one")
	case p.Rate != 0 && !positive(p.Rate):
		return fmt.Errorf("--rate %v: give arrivals a second, above 0", p.Rate)
	case p.Concurrency < 0:
		return fmt.Errorf("--concurrency %d: give a number of callers, at least 1", p.Concurrency)
	case p.Concurrency > 0 && (p.Rate != 0 || p.Multiplier != 0):
		return errors.New("--concurrency is a closed loop, --rate and --rate-multiplier are an open one: give one kind")
	case p.Law != "" && p.Rate == 0:
		return errors.New("--law needs --rate, the arrivals a second")
	case p.Multiplier != 0 && !positive(p.Multiplier):
		return fmt.Errorf("--rate-multiplier %v: give a factor above 0", p.Multiplier)
	case p.Multiplier != 0 && (p.synthetic() || p.Rate != 0):
		return errors.New("--rate-multiplier speeds up the arrivals of --trace or --workload, and goes with no --rate")
	}
	return nil
}

func (p *Plan) checkLimits() error {
	var errs []error
	for _, limit := range []struct {
		flag string
		bad  bool
	}{{"--requests", p.Requests < 0}, {"--duration", p.Duration < 0}, {"--warmup", p.WarmUp < 0}, {"--timeout", p.Timeout < 0}} {
		if limit.bad {
			errs = append(errs, fmt.Errorf("%s is negative: give 0 or more", limit.flag))
		}
	}
	return errors.Join(errs...)
}

func (p *Plan) setDefaults() {
	if p.synthetic() {
		p.Stream = cmp.Or(p.Stream, "yes")
		p.PromptTokens, p.OutputTokens = cmp.Or(p.PromptTokens, defaultPrompt), cmp.Or(p.OutputTokens, defaultOutput)
	}
	if p.synthetic() && p.Rate == 0 && p.Concurrency == 0 {
		p.Concurrency = defaultConcurrency
	}
	if p.Workload == "" && p.Rate > 0 {
		p.Law = cmp.Or(p.Law, "poisson")
	}
	if p.Requests > 0 || p.Duration > 0 || p.Trace != "" {
		return
	}
	if p.Open() {
		p.Duration = defaultDuration
	} else {
		p.Requests = defaultRequests
	}
}

func (p *Plan) parse() error {
	var errs [6]error
	p.objective, errs[0] = flag("--objective", report.ParseObjective, p.Objective)
	p.models, errs[1] = flag("--model", trace.ParseWeighted, p.Models)
	if p.Law != "" {
		p.law, errs[2] = flag("--law", trace.ParseLaw, p.Law)
	}
	p.prompt, errs[3] = parseSize("--prompt-tokens", p.PromptTokens)
	p.output, errs[4] = parseSize("--output-tokens", p.OutputTokens)
	if !p.synthetic() {
		_, errs[5] = p.recorded()
	}
	return errors.Join(errs[:]...)
}

// flag parses the value of a flag and names it in the error.
func flag[From, To any](name string, parse func(From) (To, error), from From) (To, error) {
	to, err := parse(from)
	if err != nil {
		err = fmt.Errorf("%s %w", name, err)
	}
	return to, err
}

// needsModels reports whether neither the plan nor its trace names any.
func (p *Plan) needsModels() bool {
	if len(p.Models) > 0 {
		return false
	}
	if p.synthetic() {
		return true
	}
	s, err := p.recorded()
	if err != nil {
		return false
	}
	for r, err := range s.First(1) {
		return err == nil && r.Model == ""
	}
	return true
}

// recorded is the trace or workload as it is, with the plan's arrivals.
func (p *Plan) recorded() (trace.Source, error) {
	options := trace.Options{Seed: p.Seed}
	if p.Rate > 0 && p.law != nil {
		options.Law = p.law(p.Rate)
	}
	if p.Trace != "" {
		return trace.Open(p.Trace, options)
	}
	mix, err := trace.ParseMix(p.Workload)
	if err != nil {
		return nil, fmt.Errorf("--workload: %w", err)
	}
	if p.Rate > 0 {
		mix = mix.AtRate(p.Rate)
	}
	s := mix.Source(p.Seed)
	if options.Law != nil {
		s = s.Retimed(options.Law, p.Seed)
	}
	return s, nil
}

// source is all requests of the plan, and how many they are if that is known.
func (p *Plan) source() (s trace.Source, total int, err error) {
	if p.synthetic() {
		s = synthetic.Retimed(p.arrivals(), p.Seed)
	} else if s, err = p.recorded(); err != nil {
		return nil, 0, err
	}
	if p.Multiplier > 0 {
		s = s.Rate(p.Multiplier)
	}
	if p.models, err = trace.ParseWeighted(p.Models); err != nil {
		return nil, 0, err
	}
	if len(p.models) > 0 {
		s = s.Models(p.models, p.Seed)
	}
	if p.Requests > 0 {
		s, total = s.First(p.Requests), p.Requests
	}
	if p.Open() && p.Duration > 0 {
		s, total = s.Window(0, p.Duration), 0
	}
	if p.Trace != "" {
		total, err = length(s)
	}
	return s, total, err
}

// length reads a trace to its end, so that what is wrong with it is known
// before the first request.
func length(s trace.Source) (n int, err error) {
	for _, err := range s {
		if err != nil {
			return n, err
		}
		n++
	}
	if n == 0 {
		return 0, errors.New("--trace holds no request in the time of --duration")
	}
	return n, nil
}

// synthetic is requests without end.
var synthetic trace.Source = func(yield func(trace.Request, error) bool) {
	for yield(trace.Request{PromptTokens: 1, OutputTokens: 1, Stream: true}, nil) {
	}
}

func (p *Plan) arrivals() trace.Law {
	if p.Open() {
		return p.law(p.Rate)
	}
	return trace.Constant(1) // not used
}

// size is a number of tokens, drawn evenly from a range. The zero size leaves
// it as it is.
type size struct{ low, high int }

func parseSize(flag, text string) (size, error) {
	if text == "" {
		return size{}, nil
	}
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	a, errA := strconv.Atoi(strings.TrimSpace(low))
	b, errB := strconv.Atoi(strings.TrimSpace(high))
	if errA != nil || errB != nil || a < 1 || b < a || b > 1<<24 {
		return size{}, fmt.Errorf("%s %q: give a number of tokens such as 512, or a range such as 100-900", flag, text)
	}
	return size{a, b}, nil
}

// of is the size for a random number, or what it was.
func (s size) of(random uint64, was int) int {
	if s.low == 0 {
		return was
	}
	return s.low + int(random%uint64(s.high-s.low+1))
}
