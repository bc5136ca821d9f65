package fleet

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// Running is a fleet that serves over HTTP. It is safe for concurrent use.
type Running struct {
	fleet *Fleet
	live  *engine.Fleet
	speed float64

	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	timers sync.WaitGroup

	mu    sync.Mutex
	turns map[turn]int // how often a fault was set
}

// turn names a fault of an engine.
type turn struct {
	engine int
	kind   engine.FaultKind
}

// Specs gives what each engine serves. speed is how many times faster than
// real all of them run; 0 means 1.
func (f *Fleet) Specs(speed float64) []engine.Spec {
	specs := make([]engine.Spec, len(f.Engines))
	for i, e := range f.Engines {
		specs[i] = engine.Spec{Model: e.Model, Params: e.Params, Seed: e.Seed, Speed: speed}
		if e.Port > 0 {
			specs[i].Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(e.Port))
		}
	}
	return specs
}

// Start lets the engines serve and the schedule of faults begin; its times are
// the engines', so speed shortens them as well. It ends with Stop or with ctx.
// A nil listen means net.Listen.
func (f *Fleet) Start(ctx context.Context, speed float64, listen engine.Listen) (*Running, error) {
	if speed == 0 {
		speed = 1
	}
	live, err := engine.StartFleet(ctx, f.Specs(speed), listen)
	if err != nil {
		return nil, err
	}
	r := &Running{fleet: f, live: live, speed: speed, turns: map[turn]int{}}
	r.ctx, r.cancel = context.WithCancel(ctx)
	for _, fault := range f.Faults {
		r.after(fault.At, func() { _ = r.inject(fault.Engine, fault.Fault, fault.For) }) // it was checked; only the end can stop it
	}
	return r, nil
}

// Stop ends all engines and waits for everything that was started.
func (r *Running) Stop() {
	r.mu.Lock()
	r.cancel()
	r.mu.Unlock()
	r.timers.Wait()
	r.live.Stop()
}

// URLs gives the base URL of each engine, without a path.
func (r *Running) URLs() []string { return r.live.URLs() }

// Engines gives the live engines in the order of the fleet.
func (r *Running) Engines() []*engine.Engine { return r.live.Engines() }

// after calls do when so much of the engines' time has passed, unless the
// fleet ends before.
func (r *Running) after(d time.Duration, do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return // Stop may be waiting already
	}
	r.timers.Go(func() {
		timer := time.NewTimer(time.Duration(float64(d) / r.speed))
		defer timer.Stop()
		select {
		case <-timer.C:
			do()
		case <-r.ctx.Done():
		}
	})
}

// inject sets a fault, and clears it after so long; 0 is never. A fault that
// took its place in between stays.
func (r *Running) inject(i int, fault engine.Fault, lasts time.Duration) error {
	mine := r.next(turn{i, fault.Kind})
	if err := r.live.Engines()[i].Inject(fault); err != nil || lasts == 0 {
		return err
	}
	r.after(lasts, func() {
		if r.turn(turn{i, fault.Kind}) == mine {
			_ = r.live.Engines()[i].Clear(fault.Kind) // only the end can stop it
		}
	})
	return nil
}

// clear ends a fault now.
func (r *Running) clear(i int, kind engine.FaultKind) error {
	r.next(turn{i, kind})
	return r.live.Engines()[i].Clear(kind)
}

func (r *Running) next(t turn) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turns[t]++
	return r.turns[t]
}

func (r *Running) turn(t turn) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turns[t]
}

// known is where learning starts for an engine of a built-in profile.
func known(profile string) string {
	if _, ok := engine.LookupProfile(profile); !ok {
		return ""
	}
	return " profile: " + profile + ","
}

// GatewayConfig is the models section of a gateway configuration that serves
// this fleet.
func (r *Running) GatewayConfig() string {
	var b strings.Builder
	b.WriteString("models:\n")
	urls := r.URLs()
	for _, model := range r.fleet.Models() {
		fmt.Fprintf(&b, "  - name: %q\n    backends:\n", model)
		for i, e := range r.fleet.Engines {
			if e.Model == model {
				fmt.Fprintf(&b, "      - {name: %s, url: %q, engine: vllm,%s labels: {gpu: %q, topology: tp%d, profile: %q}}\n",
					e.Name, urls[i], known(e.Profile.Name), e.Profile.GPU, e.Profile.TP, e.Profile.Name)
			}
		}
	}
	return b.String()
}
