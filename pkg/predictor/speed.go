package predictor

import "math"

// Speed is the time an engine's steps take, as DESIGN calls it the step model:
//
//	Fixed (once a request) + Step·steps + Token·prompt tokens + Seq·decoding sequences + Context·KV tokens they hold + Square·squared prompt tokens
//
// summed over steps. All in seconds; each at least 0.
type Speed struct {
	Fixed, Step, Token, Seq, Context, Square float64
}

// terms is how often each price of a Speed is paid in a span of steps.
type terms [6]float64

const (
	fixed = iota
	steps
	tokens
	seqs
	context
	square
)

func (s *Speed) vector() terms {
	return terms{s.Fixed, s.Step, s.Token, s.Seq, s.Context, s.Square}
}

func (t *terms) speed() Speed {
	return Speed{t[fixed], t[steps], t[tokens], t[seqs], t[context], t[square]}
}

func dot(a, b *terms) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// squareFrom is the prompt length from which attention shows as a square.
const squareFrom = 4096

// squares is what computing a prompt's tokens from..to adds to the square term.
func squares(from, to int) float64 {
	if to <= squareFrom {
		return 0
	}
	f, t := float64(max(from, squareFrom)), float64(to)
	return t*t - f*f
}

// genericSpeed is the prior of an engine of which nothing is known: about an
// 8B model on a data-centre GPU.
var genericSpeed = Speed{Fixed: 0.004, Step: 0.010, Token: 40e-6, Seq: 60e-6, Context: 60e-9, Square: 1e-9}

const (
	// stepNoise is the relative error of one observed span that the fit assumes.
	stepNoise = 0.10
	// stepMemory is how much of the past a fit keeps at each new observation of a
	// kind: about the last 1,500.
	stepMemory = 1 - 1.0/1500
	// stepCap is the log error of a span beyond which it counts as an outlier.
	stepCap = 0.5
	// firstSpans are those in which the fit moves too much to judge the pace.
	firstSpans = 50
)

// spread is how far, in relation to it, a learned price may lie from the prior
// before the prior resists: a factor of a few is nothing for the prices that
// differ by GPU and model; those that hardly show in a step are held closer.
func (s *speedometer) spread(price int) float64 {
	return [...]float64{fixed: 2, steps: 4, tokens: 4, seqs: 1.5, context: 2, square: 2}[price] * s.prior[price]
}

// speedometer learns a Speed from observed spans of steps: a ridge regression
// in relative error around a prior. Spans with and without prompt tokens are
// remembered apart, so that an hour of decoding doesn't wash out what a prompt
// token costs. A quick factor on top (pace) follows sudden changes.
//
// Method: Bayesian linear regression with exponential forgetting; the split by
// kind stands in for directional forgetting (Parkum et al. 1992).
type speedometer struct {
	prior  terms
	sums   [2]normal // 0: decoding only, 1: with prompt tokens
	fitted terms
	pace   float64 // log of present speed over the fitted one
	factor float64 // exp(pace)
	seen   int
}

// normal are the normal equations of a least-squares fit.
type normal struct {
	a [6][6]float64
	b terms
}

func (n *normal) forget(keep float64) {
	for i := range n.a {
		for j := range n.a[i] {
			n.a[i][j] *= keep
		}
		n.b[i] *= keep
	}
}

func (n *normal) add(x *terms, y, weight float64) {
	for i := range x {
		if x[i] == 0 {
			continue
		}
		w := weight * x[i]
		for j := range x {
			n.a[i][j] += w * x[j]
		}
		n.b[i] += w * y
	}
}

func newSpeedometer(prior Speed) speedometer {
	p, least := prior.vector(), genericSpeed.vector()
	for i := range p { // a price of nothing would say that it is known to be nothing
		if !(p[i] >= least[i]/1000) {
			p[i] = least[i] / 1000
		}
		p[i] = min(p[i], least[i]*1e4)
	}
	return speedometer{prior: p, fitted: p, factor: 1}
}

// expect is the time a span should take at the present pace.
func (s *speedometer) expect(x *terms) float64 {
	return dot(&s.fitted, x) * s.factor
}

// speed is the present one, pace included.
func (s *speedometer) speed() Speed {
	t := s.fitted
	for i := range t {
		t[i] *= s.factor
	}
	return t.speed()
}

// observe learns that a span took so many seconds.
func (s *speedometer) observe(x *terms, seconds float64) {
	expected := dot(&s.fitted, x)
	if !(seconds > 1e-6) || !(expected > 0) || math.IsInf(seconds, 0) || math.IsInf(expected, 0) {
		return
	}
	off := math.Log(seconds / expected)
	weight := 1.0
	if surprise := math.Abs(off - s.pace); s.seen > firstSpans && surprise > stepCap {
		weight = stepCap * stepCap / (surprise * surprise)
	}
	if s.seen > firstSpans {
		s.movePace(off)
	}
	kind := 0
	if x[tokens] > 0 {
		kind = 1
	}
	s.sums[kind].forget(stepMemory)
	relative, scale := *x, expected*s.factor
	if s.seen <= firstSpans {
		scale = max(seconds, expected)
	}
	seconds = min(max(seconds, scale/20), 20*scale)
	for i := range relative {
		relative[i] /= scale
	}
	s.sums[kind].add(&relative, seconds/scale, weight/(stepNoise*stepNoise))
	s.seen++
	s.fit()
}

// movePace lets the quick factor follow: a fortieth of the surprise at each
// span, never by more than a tenth.
func (s *speedometer) movePace(off float64) {
	rate := 1.0 / 40
	pace := s.pace + min(max(rate*(off-s.pace), -0.1), 0.1)
	s.setPace(min(max(pace, -1.5), 1.5))
}

func (s *speedometer) setPace(pace float64) { s.pace, s.factor = pace, math.Exp(pace) }

// fit solves the normal equations around the prior and keeps every price
// within a factor of 100 of it.
func (s *speedometer) fit() {
	var a [6][6]float64
	var b terms
	for i := range a {
		p := 1 / (s.spread(i) * s.spread(i))
		for j := range a[i] {
			a[i][j] = s.sums[0].a[i][j] + s.sums[1].a[i][j]
		}
		a[i][i] += p
		b[i] = s.sums[0].b[i] + s.sums[1].b[i] + p*s.prior[i]
	}
	s.fitted = solvePositive(&a, &b, &s.prior)
}

// solvePositive solves a·x = b with every x at least a hundredth of the prior:
// prices that come out lower are set there and the others solved again.
func solvePositive(a *[6][6]float64, b, prior *terms) terms {
	var fixedAt [6]bool
	var x terms
	for range len(x) {
		x = solve(*a, *b, prior, &fixedAt)
		low := false
		for i := range x {
			if !fixedAt[i] && !(x[i] >= prior[i]/100) {
				fixedAt[i], low = true, true
			}
		}
		if !low {
			break
		}
	}
	for i := range x {
		x[i] = min(x[i], prior[i]*1000)
	}
	return x
}

// solve is Gauss–Jordan on a symmetric positive definite matrix, in units of
// the prior so that the pivots are of one size. What is fixed stays at its floor.
func solve(a [6][6]float64, b terms, prior *terms, fixedAt *[6]bool) terms {
	for i := range a {
		for j := range a[i] {
			a[i][j] *= prior[i] * prior[j]
		}
		b[i] *= prior[i]
	}
	for i := range a {
		if !fixedAt[i] {
			continue
		}
		const floor = 0.01
		for j := range a {
			b[j] -= a[j][i] * floor
		}
		for j := range a {
			a[i][j], a[j][i] = 0, 0
		}
		a[i][i], b[i] = 1, floor
	}
	for i := range a {
		p := a[i][i]
		for j := i; j < len(a); j++ {
			a[i][j] /= p
		}
		b[i] /= p
		for r := range a {
			if r == i || a[r][i] == 0 {
				continue
			}
			f := a[r][i]
			for j := i; j < len(a); j++ {
				a[r][j] -= f * a[i][j]
			}
			b[r] -= f * b[i]
		}
	}
	for i := range b {
		b[i] *= prior[i]
	}
	return b
}
