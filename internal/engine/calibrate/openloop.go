package calibrate

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// OpenLoop is requests that arrive at a rate, whatever becomes of them, from a
// client that has at most so many in flight and holds the others back.
type OpenLoop struct {
	Rate           float64 // requests/s, Poisson
	Requests       int
	InFlight       int
	Prompt, Output int
	// Shared is how many tokens all prompts begin with.
	Shared int
}

// Run gives the figures of the load and the rate at which it was served.
func (l OpenLoop) Run(p engine.Params) (f Figures, served float64, err error) {
	sim, err := engine.New(p, 1)
	if err != nil {
		return f, 0, err
	}
	r := openRun{load: l, sim: sim, rng: rand.New(rand.NewPCG(11, 11))}
	r.due = r.gap()
	for r.sum.requests < l.Requests {
		if err := r.step(); err != nil {
			return f, 0, err
		}
	}
	return r.sum.figures(), float64(l.Requests) / r.last.Seconds(), nil
}

// openRun is an open loop under way.
type openRun struct {
	load   OpenLoop
	sim    *engine.Sim
	rng    *rand.Rand
	due    time.Duration // of the next request
	last   time.Duration // end of the latest
	calls  []call
	flying int
	sum    tally
}

func (r *openRun) gap() time.Duration {
	return time.Duration(r.rng.ExpFloat64() / r.load.Rate * float64(time.Second))
}

// step sends the next request or lets the engine go on, whichever is first.
func (r *openRun) step() error {
	at, busy := r.sim.NextEvent()
	if len(r.calls) < r.load.Requests && r.flying < r.load.InFlight && (!busy || r.due <= at) {
		return r.send(max(r.due, r.last))
	}
	for _, e := range r.sim.Advance(at) {
		c := &r.calls[e.Ref]
		switch e.Kind {
		case engine.FirstToken:
			c.first = e.At
		case engine.Finished:
			r.sum.add(c, e.At)
			r.flying--
			r.last = e.At
		}
	}
	return nil
}

func (r *openRun) send(at time.Duration) error {
	i := len(r.calls)
	hashes := own(i, r.load.Prompt+r.load.Output)
	copy(hashes, own(-1, min(r.load.Shared, r.load.Prompt)))
	r.calls = append(r.calls, call{sent: at, output: r.load.Output})
	r.flying++
	r.due += r.gap()
	_, err := r.sim.Submit(at, engine.Request{Ref: i, PromptTokens: r.load.Prompt, OutputTokens: r.load.Output, Quiet: true, Hashes: hashes})
	return err
}

// Variant is one engine setting under rising rates.
type Variant struct {
	Name   string
	Params engine.Params // but for the step model
	Shared int
	Stages []Stage // in order of rate
}

// Stage is what one rate measured.
type Stage struct {
	Load     OpenLoop
	Served   float64 // requests/s
	Measured Figures
}

// Knee is the rate at which a setting is full, measured and predicted from the
// stages below it.
type Knee struct {
	Name                string
	Step                engine.StepModel
	Fitted              Errors // over the stages below the knee
	Measured, Predicted float64
}

// stageColumns are those that make a file of stages.
var stageColumns = []string{"variant", "requested_rate_rps", "completed", "completed_rps", "prompt_len_mean", "output_len_mean", "ttft_ms_mean", "e2e_ms_mean"}

// readStages reads a run of inference-perf: Llama-3.1-8B on an H100, at most
// 440 requests in flight, settings told by the variant's name. TPOT comes from
// the end-to-end time: the file's own is half of what that, TTFT and the
// output length make it.
func readStages(t *table) ([]Variant, error) {
	var all []Variant
	for t.next() {
		name := t.text("variant")
		i := slices.IndexFunc(all, func(v Variant) bool { return v.Name == name })
		if i < 0 {
			i = len(all)
			all = append(all, newVariant(name))
		}
		v := &all[i]
		ttft, output := t.ms("ttft_ms_mean", 0.001), t.number("output_len_mean", 2)
		v.Stages = append(v.Stages, Stage{
			Load: OpenLoop{
				Rate: t.number("requested_rate_rps", 0.001), Requests: int(t.number("completed", 1)), InFlight: 440,
				Prompt: int(math.Round(t.number("prompt_len_mean", 1))), Output: int(math.Round(output)), Shared: v.Shared,
			},
			Served: t.number("completed_rps", 0.001), Measured: Figures{TTFT: ttft, TPOT: time.Duration(float64(t.ms("e2e_ms_mean", 0.001)-ttft) / (output - 1))},
		})
	}
	for _, v := range all {
		slices.SortStableFunc(v.Stages, func(a, b Stage) int { return cmp.Compare(a.Load.Rate, b.Load.Rate) })
	}
	return all, t.err
}

func newVariant(name string) Variant {
	v := Variant{Name: name, Params: engine.Params{MaxSeqs: 128, MaxBatchedTokens: tokenBudget, KVBlocks: 20000, NoPrefixCache: true}}
	if strings.Contains(name, "batch_size") {
		v.Params.MaxSeqs = 192
	}
	if strings.Contains(name, "prefix_caching") {
		v.Params.NoPrefixCache = false
		v.Shared = 128
	}
	return v
}

// FindKnee fits a step model to the stages that were served as fast as they
// were asked for, and predicts how much the setting serves when it is full.
func FindKnee(ctx context.Context, v Variant) (Knee, error) {
	k := Knee{Name: v.Name}
	const full = 0.95 // of the rate
	var below []Stage
	for _, s := range v.Stages {
		if s.Served >= full*s.Load.Rate {
			below = append(below, s)
		}
		k.Measured = max(k.Measured, s.Served)
	}
	k.Step = search(ctx, func(m engine.StepModel) (sum float64) {
		for _, s := range below {
			got, _, err := v.run(m, s.Load)
			if err != nil {
				return math.Inf(1)
			}
			sum += miss(got, s.Measured)
		}
		return sum
	}, engine.StepModel{T0: 7 * time.Millisecond, Alpha: 20, Beta: 30, Gamma: 0.02, H: 20 * time.Millisecond}, 80)
	for _, s := range below {
		got, _, err := v.run(k.Step, s.Load)
		if err != nil {
			return k, err
		}
		k.Fitted.add(got, s.Measured)
	}
	var err error
	_, k.Predicted, err = v.run(k.Step, v.Stages[len(v.Stages)-1].Load)
	return k, cmp.Or(err, ctx.Err())
}

func (v *Variant) run(m engine.StepModel, l OpenLoop) (Figures, float64, error) {
	p := v.Params
	p.Step = m
	return l.Run(p)
}
