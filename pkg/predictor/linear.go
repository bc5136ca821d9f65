package predictor

import "math"

// inputs of the linear estimator: the features as it sees them.
const inputs = 20

// linear is an online ridge regression of log(TTFT/base), with the pool's own
// recent residuals on top: their median corrects P50, their upper quantile
// gives P95. Before it has seen anything it says what the base says.
type linear struct {
	weights   [inputs]float64
	inverse   [inputs][inputs]float64 // of the normal matrix
	residuals [Regimes + 1]window     // the last: of all
	seen      int
}

const (
	ridge        = 25.0 // strength of the prior "the base is right", in samples
	linearMemory = 1 - 1.0/2000
	linearClamp  = 1.5 // largest correction, in the logarithm
)

func newLinear() *linear {
	l := &linear{}
	for i := range l.inverse {
		l.inverse[i][i] = 1 / ridge
	}
	return l
}

// input turns features into numbers of about one size, and none far beyond;
// what is not known counts as nothing.
func input(f *Features) (x [inputs]float64) {
	x = [inputs]float64{
		1, math.Log(f[Base]) / 2,
		math.Log1p(f[UncachedTokens])/4 - 1.5, math.Log1p(f[PromptTokens]) / 8, math.Log1p(f[PendingTokens]) / 8,
		math.Log1p(f[PendingRequests]) / 3, math.Log1p(f[DecodeRequests]) / 3, math.Log1p(f[DecodeContext]) / 10,
		f[KVUse], f[HitShare], min(f[ScrapeAge], 5) / 5, min(f[Phase], 3) / 3,
		f[OwnShare], f[QueueShare], math.Log1p(f[Steps]) / 3, f[RecentError], f[RecentSpread],
		math.Log1p(f[Blocked]) / 3, min(f[CacheTrust], 2) - 1, min(f[ArrivalCV], 3) / 3,
	}
	for i, v := range x {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			v = 0
		}
		x[i] = min(max(v, -5), 5)
	}
	return x
}

// predict returns the logarithms of P50 and P95 over the base.
func (l *linear) predict(f *Features, r Regime) (p50, p95 float64) {
	x := input(f)
	raw := l.raw(&x)
	w := l.window(r)
	return raw + w.quantile(0.5), raw + w.quantile(0.95)
}

func (l *linear) raw(x *[inputs]float64) float64 {
	sum := 0.0
	for i, v := range x {
		sum += l.weights[i] * v
	}
	return min(max(sum, -linearClamp), linearClamp)
}

// window of residuals: the regime's own once it has some.
func (l *linear) window(r Regime) *window {
	if l.residuals[r].len() >= 30 {
		return &l.residuals[r]
	}
	return &l.residuals[Regimes]
}

// observe learns that log(TTFT/base) was y. Recursive least squares.
func (l *linear) observe(f *Features, r Regime, y float64) {
	y = min(max(y, -2), 2)
	x := input(f)
	raw := l.raw(&x)
	l.residuals[r].add(y - raw)
	l.residuals[Regimes].add(y - raw)
	l.seen++
	var px [inputs]float64
	for i := range px {
		for j := range px {
			px[i] += l.inverse[i][j] * x[j]
		}
	}
	weight := 1.0
	if e := math.Abs(y - raw); e > 0.3 {
		weight = 0.3 / e
	}
	xpx := 0.0
	for i, v := range x {
		xpx += v * px[i]
	}
	gain := weight / (linearMemory + weight*xpx)
	for i := range px {
		l.weights[i] += gain * px[i] * (y - raw)
		for j := range px {
			l.inverse[i][j] = (l.inverse[i][j] - gain*px[i]*px[j]) / linearMemory
		}
	}
	l.bound()
}

// bound keeps the memory of directions that are not seen any more from
// growing without end: they go back to the prior's.
func (l *linear) bound() {
	for i := range l.inverse {
		if l.inverse[i][i] <= 1/ridge {
			continue
		}
		shrink := math.Sqrt(1 / ridge / l.inverse[i][i])
		for j := range l.inverse {
			l.inverse[i][j] *= shrink
			l.inverse[j][i] *= shrink
		}
	}
}
