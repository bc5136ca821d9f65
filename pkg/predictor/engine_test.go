package predictor_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// engine is an exact model of one: first come, first served, prompts in chunks
// that share a step's tokens with the sequences that decode.
type engine struct {
	speed  predictor.Speed
	budget int
	noise  func() float64 // factor on each step

	waiting, running []*job
	began, ends      float64 // of the present step
	busy             bool
	completes        []*job // whose first token comes with the present step
}

type job struct {
	at      float64 // when it may enter a step
	w       predictor.Work
	left    int // of the prompt
	output  int // tokens to come
	made    int
	attempt *predictor.Attempt
	base    float64
	alone   float64 // seconds to the first token if nobody else arrives
}

// start begins a step at t, if there is anything to do.
func (e *engine) start(t float64) {
	e.busy = false
	if len(e.running) == 0 && len(e.waiting) > 0 {
		t = max(t, e.waiting[0].at)
	}
	room, cost := e.budget-len(e.running), 0.0
	e.completes = nil
	for _, j := range e.waiting {
		if room <= 0 || j.at > t {
			break
		}
		take := min(j.left, room)
		from, to := float64(j.w.Prompt-j.left), float64(j.w.Prompt-j.left+take)
		cost += e.speed.Token*float64(take) + e.speed.Square*(over(to)-over(from))
		j.left -= take
		room -= take
		if j.left == 0 {
			e.completes = append(e.completes, j)
		}
	}
	if len(e.running) == 0 && cost == 0 {
		return
	}
	held := 0
	for _, j := range e.running {
		held += j.w.Prompt + j.made
	}
	cost += e.speed.Step + e.speed.Seq*float64(len(e.running)) + e.speed.Context*float64(held)
	e.busy, e.began, e.ends = true, t, t+cost*e.noise()
}

// over is the square of a position in a prompt, from where attention shows.
func over(at float64) float64 { return math.Pow(max(at, 4096), 2) }

// end is the end of the present step: everybody gets a token.
func (e *engine) end() {
	t := e.ends
	for _, j := range e.completes {
		e.waiting = slices.DeleteFunc(e.waiting, func(o *job) bool { return o == j })
		e.running = append(e.running, j)
	}
	still := e.running[:0]
	for _, j := range e.running {
		j.made++
		if j.attempt != nil {
			j.attempt.Token(after(t))
		}
		if j.made < j.output {
			still = append(still, j)
			continue
		}
		if j.attempt != nil {
			j.attempt.Done(after(t), predictor.Completed)
		}
	}
	e.running = still
	e.start(t)
}

// arrive sends a job at t.
func (e *engine) arrive(t float64, pool *predictor.Pool, on *predictor.Instance, w predictor.Work, output int) *job {
	j := &job{at: t + e.speed.Fixed, w: w, left: max(w.Uncached, 1), output: output}
	j.attempt = pool.Begin(after(t), on, w)
	j.base = j.attempt.Sample().Features[predictor.Base]
	e.waiting = append(e.waiting, j)
	if !e.busy {
		e.start(t)
	}
	j.alone = e.alone(j) - t
	return j
}

// alone is when j's first token comes if nobody else arrives: a later request
// in the same step delays it, and nobody can know of that.
func (e *engine) alone(j *job) float64 {
	twin := &engine{speed: e.speed, budget: e.budget, noise: func() float64 { return 1 }, began: e.began, ends: e.ends, busy: e.busy}
	copies := map[*job]*job{}
	clone := func(jobs []*job) (out []*job) {
		for _, j := range jobs {
			if copies[j] == nil {
				c := *j
				c.attempt = nil
				copies[j] = &c
			}
			out = append(out, copies[j])
		}
		return out
	}
	twin.waiting, twin.running, twin.completes = clone(e.waiting), clone(e.running), clone(e.completes)
	for copies[j].made == 0 {
		at := twin.ends
		twin.end()
		if copies[j].made > 0 {
			return at
		}
	}
	return 0
}

// until lets the engine run up to t.
func (e *engine) until(t float64) {
	for e.busy && e.ends <= t {
		e.end()
	}
}

// run sends n requests and returns how far the base was from the time to each
// first token if nobody else had arrived, as log errors, in order.
func (e *engine) run(n int, rate float64, longest int, rng *rand.Rand) []float64 {
	w := &watcher{}
	pool, on := predictor.NewPool("m", predictor.Rules{}, w), predictor.NewInstance(generic)
	var jobs []*job
	t := 0.0
	for range n {
		t += rng.ExpFloat64() / rate
		e.until(t)
		tokens := int(math.Exp(4 + rng.Float64()*math.Log(float64(longest)/math.Exp(4))))
		work := prompt(tokens)
		if rng.IntN(3) == 0 {
			work.Uncached = tokens / 4
		}
		jobs = append(jobs, e.arrive(t, pool, on, work, 20+rng.IntN(150)))
	}
	e.until(math.Inf(1))
	var errors []float64
	for _, j := range jobs {
		errors = append(errors, math.Abs(math.Log(j.alone/j.base)))
	}
	return errors
}

// generic is what an engine of which nothing is known is taken for.
var generic = predictor.Speed{Fixed: 0.004, Step: 0.010, Token: 40e-6, Seq: 60e-6, Context: 60e-9, Square: 1e-9}

// TestMirror: knowing nothing of an engine at first, after 200 requests its
// first tokens are known within 2 % if there is no noise.
func TestMirror(t *testing.T) {
	tests := map[string]struct {
		speed   predictor.Speed
		rate    float64
		longest int
	}{
		"as taken for":          {generic, 5, 4000},
		"three times as slow":   {predictor.Speed{Fixed: 0.012, Step: 0.03, Token: 120e-6, Seq: 180e-6, Context: 180e-9, Square: 3e-9}, 0.7, 4000},
		"slow steps":            {predictor.Speed{Fixed: 0.002, Step: 0.04, Token: 30e-6, Seq: 20e-6, Context: 20e-9, Square: 1e-9}, 2, 4000},
		"slow prompts":          {predictor.Speed{Fixed: 0.003, Step: 0.008, Token: 200e-6, Seq: 60e-6, Context: 60e-9, Square: 1e-9}, 1.5, 4000},
		"a fast one":            {predictor.Speed{Fixed: 0.003, Step: 0.005, Token: 15e-6, Seq: 30e-6, Context: 30e-9, Square: 5e-10}, 12, 4000},
		"prompts over the step": {generic, 1, 40_000},
		"at the edge":           {generic, 12, 4000},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := &engine{speed: test.speed, budget: 8192, noise: func() float64 { return 1 }}
			errors := e.run(800, test.rate, test.longest, rand.New(rand.NewPCG(1, 2)))[200:]
			sum := 0.0
			for _, off := range errors {
				sum += off
			}
			slices.Sort(errors)
			t.Logf("mean %.4f, median %.4f, p95 %.4f", sum/600, errors[300], errors[570])
			if mean := sum / float64(len(errors)); mean > 0.02 {
				t.Errorf("first tokens are off by %.1f %% in the mean, want 2 %%", 100*mean)
			}
		})
	}
}

// TestMirrorWithNoise: with 5 % of noise in every step the mirror is off by
// little more than the noise.
func TestMirrorWithNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	e := &engine{speed: generic, budget: 8192, noise: func() float64 { return max(1+0.05*rng.NormFloat64(), 0.5) }}
	errors := e.run(800, 6, 4000, rng)[200:]
	slices.Sort(errors)
	t.Logf("median %.4f, p95 %.4f", errors[300], errors[570])
	if errors[300] > 0.05 {
		t.Errorf("median error %.1f %%, want 5 %%", 100*errors[300])
	}
}
