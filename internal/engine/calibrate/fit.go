package calibrate

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/gonum/optimize"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// Fit is a step model and how well it reproduces what was measured: the half
// of the points that it was fitted to, and the other half.
type Fit struct {
	Name         string
	Suspect      string // as in Configuration
	Irregular    string // as of Configuration
	Step         engine.StepModel
	Fitted, Held Errors
	LeftOut      int // saturated points
}

// Errors are mean and largest relative errors over a number of points.
type Errors struct {
	Points           int
	TTFT, TPOT       float64
	MaxTTFT, MaxTPOT float64

	decoding int // points with a TPOT
}

// add counts a point; one without a measured TTFT tells nothing.
func (e *Errors) add(got, want Figures) {
	if want.TTFT == 0 {
		return
	}
	e.Points++
	d := relative(got.TTFT, want.TTFT)
	e.TTFT += (d - e.TTFT) / float64(e.Points)
	e.MaxTTFT = max(e.MaxTTFT, d)
	if want.TPOT == 0 {
		return
	}
	e.decoding++
	d = relative(got.TPOT, want.TPOT)
	e.TPOT += (d - e.TPOT) / float64(e.decoding)
	e.MaxTPOT = max(e.MaxTPOT, d)
}

func relative(got, want time.Duration) float64 {
	return math.Abs(float64(got)/float64(want) - 1)
}

// half gives the errors that the i-th point counts for.
func (f *Fit) half(i int) *Errors {
	if i%2 == 0 {
		return &f.Fitted
	}
	return &f.Held
}

// decode moves a step model to a point of the search: T0, Alpha, Beta, Gamma and
// H, and Experts where it has some, on a logarithmic scale, so that none becomes
// negative and each moves by shares of itself. The rest of it stays.
func decode(m engine.StepModel, x []float64) engine.StepModel {
	m.T0, m.Alpha, m.Beta, m.Gamma, m.H = span(x[0]), math.Exp(x[1]), math.Exp(x[2]), math.Exp(x[3]), span(x[4])
	if len(x) > 5 {
		m.Experts = span(x[5])
	}
	return m
}

// encode gives the point of a step model; what is zero starts from little.
func encode(m engine.StepModel) []float64 {
	positive := func(v float64) float64 { return math.Log(max(v, 1e-4)) }
	x := []float64{positive(micro(m.T0)), positive(m.Alpha), positive(m.Beta), positive(m.Gamma), positive(micro(m.H))}
	if m.Active > 0 {
		x = append(x, positive(micro(m.Experts)))
	}
	return x
}

// span is the duration of a logarithm of µs.
func span(x float64) time.Duration {
	const most = 1e9
	return time.Duration(min(math.Exp(x), most) * float64(time.Microsecond))
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// round keeps four digits, more than any fit knows.
func round(m engine.StepModel) engine.StepModel {
	digits := func(v float64) float64 {
		v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64) // what was formatted can be parsed
		return v
	}
	span := func(d time.Duration) time.Duration {
		return time.Duration(digits(micro(d)) * float64(time.Microsecond))
	}
	m.T0, m.H, m.Experts = span(m.T0), span(m.H), span(m.Experts)
	m.Alpha, m.Beta, m.Gamma = digits(m.Alpha), digits(m.Beta), digits(m.Gamma)
	return m
}

// loss of a step model; the lower the better.
type loss func(engine.StepModel) float64

// search refines a step model without derivatives, beginning anew with smaller
// steps where it stopped. It stops early with ctx.
func search(ctx context.Context, f loss, m engine.StepModel, evaluations int) engine.StepModel {
	x := encode(m)
	at := func(x []float64) float64 { return f(decode(m, x)) }
	for _, size := range []float64{0.3, 0.2, 0.1} {
		x = minimise(ctx, at, x, size, evaluations)
	}
	return round(decode(m, x))
}

func minimise(ctx context.Context, f func([]float64) float64, x []float64, size float64, evaluations int) []float64 {
	problem := optimize.Problem{Func: func(x []float64) float64 {
		if ctx.Err() != nil {
			return math.Inf(1)
		}
		return f(x)
	}}
	settings := &optimize.Settings{FuncEvaluations: evaluations, Converger: &optimize.FunctionConverge{Absolute: 1e-7, Relative: 1e-4, Iterations: 50}}
	result, err := optimize.Minimize(problem, x, settings, &optimize.NelderMead{SimplexSize: size})
	if err != nil || ctx.Err() != nil {
		return x
	}
	return result.X
}

// miss is how far figures are apart: near zero as a square, beyond a few
// percent as the plain share, so that single odd points do not rule the fit.
func miss(got, want Figures) float64 {
	return missed(got.TTFT, want.TTFT) + missed(got.TPOT, want.TPOT)
}

func missed(got, want time.Duration) float64 {
	const knee = 0.02
	if want == 0 {
		return 0 // not measured
	}
	e := math.Log(float64(max(got, 1)) / float64(want))
	return math.Sqrt(e*e+knee*knee) - knee
}

// tokenBudget is assumed for every server of a table that does not say.
const tokenBudget = 8192

// Loops says how the closed loops of a table were driven.
type Loops struct {
	Shortest float64 // as in ClosedLoop
	PerUser  int
}

// FitLoops fits a step model to every other of the unsaturated points of a
// configuration and predicts the rest; all says to fit to all of them.
func FitLoops(ctx context.Context, c Configuration, how Loops, all bool) (Fit, error) {
	points := c.Unsaturated()
	if len(points) < 2 {
		return Fit{}, fmt.Errorf("%s: %d unsaturated points, want at least 2", c.Name, len(points))
	}
	fit := Fit{Name: c.Name, Suspect: c.Suspect, Irregular: c.Irregular(), LeftOut: len(c.Points) - len(points)}
	var fitted []Point
	for i, p := range points {
		if all || i%2 == 0 {
			fitted = append(fitted, p)
		}
	}
	const sparse = 4 // points without which the experts cannot be told from the rest
	if len(fitted) < sparse {
		c.Active = 0
	}
	fit.Step = search(ctx, func(m engine.StepModel) (sum float64) {
		for _, p := range fitted {
			got, err := c.run(m, p, how, p.rounds())
			if err != nil {
				return math.Inf(1)
			}
			sum += miss(got, p.Measured)
		}
		return sum
	}, c.guess(ctx, fitted, how), 80)
	for i, p := range points {
		got, err := c.run(fit.Step, p, how, 0)
		if err != nil {
			return Fit{}, fmt.Errorf("%s: %w", c.Name, err)
		}
		fit.half(i).add(got, p.Measured)
	}
	return fit, ctx.Err()
}

// rounds that are simulated while searching.
func (p Point) rounds() int {
	const long = 2048
	if p.Output > long {
		return 2
	}
	return 3
}

// run simulates one point on an engine that lacks nothing but speed.
func (c *Configuration) run(m engine.StepModel, p Point, how Loops, rounds int) (Figures, error) {
	users := max(1, p.Users/c.Replicas)
	need := p.Prompt + p.Output + engine.BlockTokens
	return ClosedLoop{
		Users: users, Prompt: p.Prompt, Output: p.Output, Shortest: how.Shortest, PerUser: how.PerUser, Rounds: rounds,
	}.Run(engine.Params{
		Step: m, MaxSeqs: max(users, 1), MaxBatchedTokens: tokenBudget, NoPrefixCache: true,
		KVBlocks: users * (need/engine.BlockTokens + 1), MaxModelLen: need,
	})
}

// guess searches on a formula instead of the engine, which costs next to
// nothing. Each turn corrects the formula by what the engine makes of the last
// guess.
func (c *Configuration) guess(ctx context.Context, points []Point, how Loops) engine.StepModel {
	corrected := slices.Clone(points) // what the formula has to give for the engine to give what was measured
	var best engine.StepModel
	lowest := math.Inf(1)
	for range 5 {
		m := c.guessFormula(ctx, corrected, how)
		sum := 0.0
		for i, p := range points {
			got, err := c.run(m, p, how, p.rounds())
			if err != nil {
				return m
			}
			sum += miss(got, p.Measured)
			formula := c.formula(m, p, how)
			corrected[i].Measured = Figures{
				TTFT: scale(p.Measured.TTFT, formula.TTFT, got.TTFT), TPOT: scale(p.Measured.TPOT, formula.TPOT, got.TPOT),
			}
		}
		if sum < lowest {
			best, lowest = m, sum
		}
	}
	return best
}

func scale(d, by, of time.Duration) time.Duration {
	return time.Duration(float64(d) * float64(by) / float64(max(of, 1)))
}

// guessFormula searches from several starts.
func (c *Configuration) guessFormula(ctx context.Context, points []Point, how Loops) engine.StepModel {
	f := func(m engine.StepModel) (sum float64) {
		for _, p := range points {
			sum += miss(c.formula(m, p, how), p.Measured)
		}
		return sum
	}
	var best engine.StepModel
	lowest := math.Inf(1)
	for _, alpha := range []float64{10, 30, 100} {
		for _, t0 := range []time.Duration{3 * time.Millisecond, 12 * time.Millisecond} {
			start := engine.StepModel{T0: t0, Alpha: alpha, Beta: 50, Gamma: 0.03, H: 10 * time.Millisecond, Active: c.Active}
			if c.Active > 0 {
				start.Experts = t0
			}
			if m := search(ctx, f, start, 1000); f(m) < lowest {
				best, lowest = m, f(m)
			}
		}
	}
	return best
}

// formula is roughly what ClosedLoop.Run gives, without running anything: the
// prompts of the start come one after the other, later ones meet a batch that
// prefill slows by its share of the time.
func (c *Configuration) formula(m engine.StepModel, p Point, how Loops) Figures {
	mean := (1 + how.Shortest) / 2
	users := float64(max(1, p.Users/c.Replicas))
	prompt, output := mean*float64(p.Prompt), mean*float64(p.Output)
	own := m.Alpha * prompt
	all := micro(m.Experts)
	touched := all * (1 - math.Pow(1-m.Active, users))
	step := micro(m.T0) + touched + m.Beta*users + m.Gamma*users*(prompt+output/2)
	ahead := (users + 1) / 2
	start := micro(m.H) + ahead*own + (micro(m.T0)+all)*max(1, ahead*prompt/tokenBudget)
	ttft, tpot := start, step
	for range 20 {
		share := min(own*users/(ttft+output*tpot), 0.95)
		tpot = step / (1 - share)
		later := micro(m.H) + 1.5*step + (all - touched) + own/(1-share)
		ttft = later + (start-later)/float64(how.PerUser)
	}
	return Figures{TTFT: time.Duration(1000 * ttft), TPOT: time.Duration(1000 * tpot)}
}

// FitRequests fits the step model of an engine to every other request of
// measured runs and predicts the rest; all says to fit to all of them. The
// search begins at base, whose limits hold.
func FitRequests(ctx context.Context, name string, base engine.Params, runs [][]Request, all bool) (Fit, error) {
	for _, requests := range runs {
		if len(requests) < 10 {
			return Fit{}, fmt.Errorf("%s: a run of %d requests that were served, want at least 10", name, len(requests))
		}
		if _, err := Replay(base, requests); err != nil {
			return Fit{}, fmt.Errorf("%s: on the engine of the profile: %w", name, err)
		}
	}
	fit := Fit{Name: name}
	fit.Step = search(ctx, func(m engine.StepModel) (sum float64) {
		for _, requests := range runs {
			figures, err := replayWith(base, m, requests)
			if err != nil {
				return math.Inf(1)
			}
			for i, got := range figures {
				if all || i%2 == 0 {
					sum += miss(got, requests[i].Measured) / float64(len(requests))
				}
			}
		}
		return sum
	}, base.Step, 300)
	for _, requests := range runs {
		figures, err := replayWith(base, fit.Step, requests)
		if err != nil {
			return Fit{}, fmt.Errorf("%s: %w", name, err)
		}
		for i, got := range figures {
			fit.half(i).add(got, requests[i].Measured)
		}
	}
	return fit, ctx.Err()
}

func replayWith(p engine.Params, m engine.StepModel, requests []Request) ([]Figures, error) {
	p.Step = m
	return Replay(p, requests)
}

// median of a copy of the values.
func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile by nearest rank, q in 0..1; 0 of nothing.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
