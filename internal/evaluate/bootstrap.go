package evaluate

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/replay"
	"github.com/firsttoken/firsttoken/internal/trace"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// Bootstrap is what the model that ships with the gateway learns from: samples
// of simulated fleets, each with other engines, lengths, arrivals, load, noise,
// scrape interval and policy. Its Seed decides everything.
type Bootstrap struct {
	Runs     int    // fleets
	Requests int    // of each
	Seed     uint64 // of all draws
	// LeaveOut are profiles that no fleet has, so that they can judge the model.
	LeaveOut map[string]bool
}

// warmUp is how many requests of a run are left out: the engines' speed is
// learned in them.
const warmUp = 200

// Samples plays the runs. They lie an hour apart, so that a split by time is
// one by fleets. It stops at the first error.
func (b Bootstrap) Samples() iter.Seq2[predictor.Sample, error] {
	return func(yield func(predictor.Sample, error) bool) {
		for run := range b.Runs {
			goOn := true
			err := b.play(run, func(s predictor.Sample) { goOn = goOn && yield(s, nil) })
			if err != nil {
				yield(predictor.Sample{}, fmt.Errorf("run %d: %w", run, err))
				return
			}
			if !goOn {
				return
			}
		}
	}
}

func (b Bootstrap) play(run int, give func(predictor.Sample)) error {
	rng := rand.New(rand.NewPCG(b.Seed, uint64(run)))
	c := b.fleet(rng)
	seen := 0
	_, err := replay.Run(c, b.traffic(rng, c.Engines), func(o *replay.Outcome) {
		s := o.Foreseen
		if s == nil || s.TTFT == 0 {
			return
		}
		if seen++; seen > warmUp {
			kept := *s
			kept.At = kept.At.Add(time.Duration(run) * time.Hour)
			kept.Backend, kept.Revision = fmt.Sprintf("run-%d/%s", run, c.Engines[o.Engine].Name), "bootstrap"
			give(kept)
		}
	})
	return err
}

// fleet draws three to eight engines of up to three profiles.
func (b Bootstrap) fleet(rng *rand.Rand) replay.Config {
	var profiles []engine.Profile
	for _, p := range engine.Profiles() {
		if !b.LeaveOut[p.Name] {
			profiles = append(profiles, p)
		}
	}
	kinds := make([]engine.Profile, 1+rng.IntN(3))
	for i := range kinds {
		kinds[i] = profiles[rng.IntN(len(profiles))]
	}
	policies := []string{router.LeastInFlight, router.P2C, router.LMetric, router.Headroom, router.Headroom}
	c := replay.Config{
		Policy:  policies[rng.IntN(len(policies))],
		Scrape:  time.Duration(200+rng.IntN(800)) * time.Millisecond,
		Seed:    rng.Uint64(),
		Predict: &replay.Predict{},
	}
	noise := 0.02 + 0.06*rng.Float64()
	for i := range 3 + rng.IntN(6) {
		p := kinds[i%len(kinds)]
		params := p.Params
		params.Noise = noise
		params.MaxModelLen = max(params.MaxModelLen, 40_000)
		c.Engines = append(c.Engines, replay.Engine{Name: fmt.Sprintf("%s-%d", p.Name, i), Model: "m", Params: params, Seed: rng.Uint64()})
	}
	return c
}

// traffic draws lengths, turns, arrivals and a load between 0.3 and 1.1 of what
// the fleet can do.
func (b Bootstrap) traffic(rng *rand.Rand, engines []replay.Engine) trace.Source {
	between := func(low, high float64) float64 { return low + (high-low)*rng.Float64() }
	size := func(low, high float64, most float64) trace.Size {
		return trace.Size{Median: low * math.Pow(high/low, rng.Float64()), Spread: between(0.3, 1.2), Min: 1, Max: most}
	}
	w := trace.Workload{
		Name: "bootstrap", CV: between(0, 2.5), Tenants: []trace.Weighted{{Name: "t", Weight: 1}},
		System: size(1, 1500, 4000), First: size(50, 6000, 20_000), Next: size(20, 500, 4000), Output: size(8, 300, 1500),
		Turns: 1 + 6*rng.Float64()*rng.Float64(), Think: size(2, 30, 200), PerToken: 20 * time.Millisecond,
		MaxContext: 30_000, Streamed: 1,
	}
	w.Rate = 1
	if rng.IntN(2) == 0 {
		w.Burst = trace.Burst(between(0.1, 0.6), time.Minute, 0.5)
	}
	w.Rate = between(0.3, 1.1) * capacity(engines, w.First.Median*1.5+w.Next.Median, w.Output.Median*1.5)
	seed := rng.Uint64()
	return func(yield func(trace.Request, error) bool) {
		n := 0
		for r, err := range w.Source(seed) {
			if n++; n > b.Requests {
				return
			}
			r.Model = "m"
			if !yield(r, err) {
				return
			}
		}
	}
}

// capacity is roughly how many requests a second engines serve at a batch of
// 32.
func capacity(engines []replay.Engine, prompt, output float64) (rate float64) {
	const batch = 32
	for _, e := range engines {
		s := e.Params.Step
		step := s.T0.Seconds() + 1e-6*batch*(s.Beta+s.Gamma*(prompt+output/2))
		rate += 1 / (1e-6*s.Alpha*prompt + output*step/batch)
	}
	return rate
}
