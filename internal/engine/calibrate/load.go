package calibrate

import (
	"math/rand/v2"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// ClosedLoop is a number of users who each send a prompt as soon as the last
// one was answered, all of them starting together.
type ClosedLoop struct {
	Users          int
	Prompt, Output int // nominal tokens
	// Shortest is the share of the nominal lengths that the shortest requests
	// have; they spread evenly from there to the nominal ones.
	Shortest float64
	// PerUser is the number of prompts of one user.
	PerUser int
	// Rounds of prompts that are simulated; those after the first, which all
	// start together, stand for the rest. 0 simulates all.
	Rounds int
}

// rounds to simulate.
func (l *ClosedLoop) rounds() int {
	if l.Rounds < 2 || l.Rounds >= l.PerUser {
		return l.PerUser
	}
	return l.Rounds
}

// Figures are what a load measures: the means over its requests.
type Figures struct {
	TTFT, TPOT time.Duration
}

// call is one request of a load under way.
type call struct {
	sent, first time.Duration
	output      int
}

// Run gives the figures of the load on an engine with these parameters.
func (l ClosedLoop) Run(p engine.Params) (Figures, error) {
	sim, err := engine.New(p, 1)
	if err != nil {
		return Figures{}, err
	}
	r := loopRun{load: l, sim: sim, rng: rand.New(rand.NewPCG(7, 7)), counted: l.Users * l.rounds()}
	for u := range l.Users {
		if err := r.send(time.Duration(u) * time.Millisecond); err != nil {
			return Figures{}, err
		}
	}
	return r.finish()
}

// loopRun is a closed loop under way.
type loopRun struct {
	load  ClosedLoop
	sim   *engine.Sim
	rng   *rand.Rand
	calls []call
	ended []time.Duration

	counted     int // requests that count; when not all are simulated, more keep the load up
	first, rest tally
}

// send starts a request, unless there are enough.
func (r *loopRun) send(at time.Duration) error {
	if len(r.calls) == r.load.Users*r.load.PerUser {
		return nil
	}
	prompt, output := r.length(r.load.Prompt), r.length(r.load.Output)
	_, err := r.sim.Submit(at, engine.Request{Ref: len(r.calls), PromptTokens: prompt, OutputTokens: output, Quiet: true})
	r.calls = append(r.calls, call{sent: at, output: output})
	return err
}

func (r *loopRun) length(nominal int) int {
	share := r.load.Shortest + (1-r.load.Shortest)*r.rng.Float64()
	return max(1, int(share*float64(nominal)))
}

func (r *loopRun) finish() (Figures, error) {
	for r.first.requests+r.rest.requests < r.counted {
		at, ok := r.sim.NextEvent()
		if !ok {
			break
		}
		r.ended = r.ended[:0]
		for _, e := range r.sim.Advance(at) {
			r.see(e)
		}
		for _, at := range r.ended {
			if err := r.send(at); err != nil {
				return Figures{}, err
			}
		}
	}
	return r.figures(), nil
}

func (r *loopRun) see(e engine.Event) {
	c := &r.calls[e.Ref]
	switch e.Kind {
	case engine.FirstToken:
		c.first = e.At
	case engine.Finished:
		r.ended = append(r.ended, e.At)
		switch {
		case e.Ref < r.load.Users:
			r.first.add(c, e.At)
		case e.Ref < r.counted:
			r.rest.add(c, e.At)
		}
	}
}

// figures weigh the first round as one of PerUser.
func (r *loopRun) figures() Figures {
	first, rest := r.first.figures(), r.rest.figures()
	n := time.Duration(r.load.PerUser)
	return Figures{TTFT: (first.TTFT + (n-1)*rest.TTFT) / n, TPOT: (first.TPOT + (n-1)*rest.TPOT) / n}
}

// tally sums requests up.
type tally struct {
	requests, decoding int
	ttft, tpot         time.Duration
}

func (t *tally) add(c *call, end time.Duration) {
	t.requests++
	t.ttft += c.first - c.sent
	if c.output > 1 {
		t.decoding++
		t.tpot += (end - c.first) / time.Duration(c.output-1)
	}
}

func (t *tally) figures() Figures {
	f := Figures{}
	if t.requests > 0 {
		f.TTFT = t.ttft / time.Duration(t.requests)
	}
	if t.decoding > 0 {
		f.TPOT = t.tpot / time.Duration(t.decoding)
	}
	return f
}
