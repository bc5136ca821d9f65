package predictor

import "math"

// inputs of the linear estimator: the features as it sees them.
const inputs = 20

// linear is an online ridge regression of log(TTFT/base), with the pool's own
// recent residuals on top: their median corrects P50, their upper quantile
// gives P95. Before it has seen anything it says what the base says.
type linear struct {
	weights   [inputs]float64
	normal    [inputs][inputs]float64 // matrix: its lower half
	factor    [inputs][inputs]float64
	right     [inputs]float64
	residuals [Regimes + 1]window // the last: of all
	seen      int
}

const (
	ridge        = 25.0 // strength of the prior "the base is right", in samples
	linearMemory = 1 - 1.0/2000
	linearClamp  = 1.5 // largest correction, in the logarithm
)

func newLinear() *linear {
	l := &linear{}
	for i := range l.normal {
		l.normal[i][i] = ridge
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

// observe learns that log(TTFT/base) was y: weighted ridge regression that forgets.
func (l *linear) observe(f *Features, r Regime, y float64) {
	y = min(max(y, -2), 2)
	x := input(f)
	raw := l.raw(&x)
	l.residuals[r].add(y - raw)
	l.residuals[Regimes].add(y - raw)
	l.seen++
	weight := 1.0
	if e := math.Abs(y - raw); e > 0.3 {
		weight = 0.3 / e
	}
	for i := range x {
		for j := range i + 1 {
			l.normal[i][j] = l.normal[i][j]*linearMemory + weight*x[i]*x[j]
		}
		l.normal[i][i] += (1 - linearMemory) * ridge
		l.right[i] = l.right[i]*linearMemory + weight*x[i]*y
	}
	l.solve()
}

// solve finds the weights by Cholesky's factorisation.
func (l *linear) solve() {
	a, b := &l.factor, l.right
	*a = l.normal
	for i := range a {
		for j := range i + 1 {
			sum := a[i][j]
			for k := range j {
				sum -= a[i][k] * a[j][k]
			}
			if i == j {
				a[i][i] = math.Sqrt(sum)
			} else {
				a[i][j] = sum / a[j][j]
			}
		}
		for k := range i {
			b[i] -= a[i][k] * b[k]
		}
		b[i] /= a[i][i]
	}
	for i := len(b) - 1; i >= 0; i-- {
		b[i] /= a[i][i]
		for k := range i {
			b[k] -= a[i][k] * b[i]
		}
	}
	l.weights = b
}
