package predictor

import "math"

// calibration corrects one estimator's P50 and P95 on one pool, by regime: by
// the quantiles of its own recent errors (conformalised quantile regression:
// Romano, Patterson, Candès 2019, over a sliding window, in the logarithm), and
// on top by a factor of each instance that moves after every observation.
type calibration struct {
	median, upper [Regimes]window // log(truth) − the estimator's P50, P95
	own           map[*Instance]*[Regimes]factor
	margin        float64 // added to the logarithm of P95 after an alarm, fading
}

// factor is an instance's own correction, as logarithms, on top of its pool's.
type factor struct {
	p50, p95 float64
	n        int
	spread   float64 // decayed mean of |log(truth/P50)|
}

const (
	maxFactor = 1.4 // largest correction of an instance, about 4 ×, either way
	// shrinkage is how many observations an instance's own factor needs to
	// weigh as much as its pool's.
	shrinkage = 20
	// marginKept is what is left of the margin after each observation.
	marginKept = 1 - 1.0/500
)

func newCalibration() *calibration {
	return &calibration{own: map[*Instance]*[Regimes]factor{}}
}

// apply corrects the logarithms of P50 and P95.
func (c *calibration) apply(i *Instance, r Regime, p50, p95 float64) (float64, float64) {
	m, u := c.pool(r)
	if own := c.own[i]; own != nil {
		f := &own[r]
		weight := float64(f.n) / float64(f.n+shrinkage)
		m += weight * f.p50
		u += weight * f.p95
	}
	p50 += m
	return p50, max(p95+u+c.margin, p50)
}

// pool is the correction all instances share in a regime.
func (c *calibration) pool(r Regime) (p50, p95 float64) {
	return c.median[r].offset(0.5), c.upper[r].offset(0.95)
}

// observe moves the corrections. p50 and p95 are the estimator's own
// logarithms, truth that of the time.
func (c *calibration) observe(i *Instance, r Regime, p50, p95, truth float64) {
	own := c.own[i]
	if own == nil {
		own = &[Regimes]factor{}
		c.own[i] = own
	}
	m, u := c.pool(r)
	own[r].move(truth-p50-m, truth-p95-u)
	c.median[r].add(truth - p50)
	c.upper[r].add(truth - p95)
	c.margin *= marginKept
}

// move is the online quantile step (adaptive conformal inference: Gibbs and
// Candès 2021, in the logarithm): up by rate·q when the truth exceeded the
// corrected quantile, down by rate·(1−q) when not. The rate follows the spread
// of the errors, so that good predictions keep a steady margin.
func (f *factor) move(overP50, overP95 float64) {
	f.n++
	rate := max(1/float64(f.n), 0.05)
	f.spread += (min(math.Abs(overP50-f.p50), 1) - f.spread) * rate
	step := min(max(f.spread*0.3, 0.002), 0.05)
	f.p50 = quantileStep(f.p50, overP50, step, 0.5)
	f.p95 = quantileStep(f.p95, overP95, step, 0.95)
}

func quantileStep(now, truth, step, q float64) float64 {
	if truth > now {
		now += step * q
	} else {
		now -= step * (1 - q)
	}
	return min(max(now, -maxFactor), maxFactor)
}

// widen gives P95 more room for a while.
func (c *calibration) widen() { c.margin = min(c.margin+0.1, 0.5) }

// narrow takes that room away.
func (c *calibration) narrow() { c.margin = 0 }

// keep forgets the instances that are gone.
func (c *calibration) keep(alive map[*Instance]bool) {
	for i := range c.own {
		if !alive[i] {
			delete(c.own, i)
		}
	}
}
