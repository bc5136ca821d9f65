package evaluate

import (
	"fmt"
	"math"
	"slices"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// Ablation is what errors rise by when a feature is not known.
type Ablation struct {
	Estimator string       `json:"estimator"`
	Trained   int          `json:"trained_on"`
	Rows      int          `json:"rows"` // judged, all later than those it was trained on
	MAPE      trees.Number `json:"mape"` // with all features
	Pinball   trees.Number `json:"pinball_s"`
	Features  []Worth      `json:"features"`
}

// Worth is one feature's. Below 0 the estimator is better without it.
type Worth struct {
	Feature string       `json:"feature"`
	MAPE    trees.Number `json:"mape_rise"`    // error without it / with all − 1
	Pinball trees.Number `json:"pinball_rise"` // the same of the loss of P95
}

// enoughRows is how many rows an ablation needs.
const enoughRows = 400

// estimator gives P50 and P95 of a row, as logarithms over its base.
type estimator func(r *Row) (p50, p95 float64)

// AblateLinear fits a ridge regression of log(TTFT / base) on every feature to
// the first half of the rows by time and judges it on the second half: with
// all features, and again without each. Without the base it is fitted to
// log(TTFT) itself. It is fitted at once where the linear estimator learns on
// the way, and sees all features where that one sees some: what it tells is
// what there is to be learned from a feature.
func AblateLinear(rows []Row) (Ablation, error) {
	train, test, err := halves(rows)
	if err != nil {
		return Ablation{}, err
	}
	fit := fitAll(train)
	return ablate("linear", len(train), test, func(feature int) estimator { return fit.without(feature) }), nil
}

// AblateModel judges a trained model on the second half of the rows: with all
// features, and again with each unknown. It is not trained again.
func AblateModel(rows []Row, m predictor.Model) (Ablation, error) {
	_, test, err := halves(rows)
	if err != nil {
		return Ablation{}, err
	}
	return ablate("lightgbm", 0, test, func(feature int) estimator {
		return func(r *Row) (float64, float64) {
			x := r.Features
			if feature >= 0 {
				x[feature] = math.NaN()
			}
			p50, p95, err := m.Predict(x[:])
			if err != nil {
				return 0, 0
			}
			return p50, max(p95, p50)
		}
	}), nil
}

// halves splits the rows that have a truth by time.
func halves(rows []Row) (first, second []Row, err error) {
	inOrder(rows)
	var usable []Row
	for i := range rows {
		if rows[i].judged() && rows[i].Features[predictor.Base] > 0 {
			usable = append(usable, rows[i])
		}
	}
	if len(usable) < enoughRows {
		return nil, nil, fmt.Errorf("an ablation needs %d requests with a first token, there are %d; give more samples", enoughRows, len(usable))
	}
	half := len(usable) / 2
	return usable[:half], usable[half:], nil
}

// ablate judges what without gives for each feature, and for none (-1).
func ablate(name string, trained int, test []Row, without func(feature int) estimator) Ablation {
	out := Ablation{Estimator: name, Trained: trained, Rows: len(test)}
	out.MAPE, out.Pinball = losses(test, without(-1))
	for i, feature := range predictor.Names() {
		mape, loss := losses(test, without(i))
		out.Features = append(out.Features, Worth{feature, mape/out.MAPE - 1, loss/out.Pinball - 1})
	}
	return out
}

func losses(rows []Row, of estimator) (mape, loss trees.Number) {
	for i := range rows {
		p50, p95 := of(&rows[i])
		truth, base := rows[i].TTFT.Seconds(), rows[i].Features[predictor.Base]
		mape += trees.Number(math.Abs(base*math.Exp(p50)-truth) / truth)
		loss += trees.Number(pinball(truth, base*math.Exp(p95)))
	}
	n := trees.Number(len(rows))
	return mape / n, loss / n
}

// Each feature makes two inputs, its value and whether it is unknown; the last
// input is 1.
const (
	inputs    = 2*len(predictor.Features{}) + 1
	intercept = inputs - 1
)

// regression is a fit that can be repeated without some inputs.
type regression struct {
	train       []Row
	mean, scale [inputs]float64
	normal      [inputs][inputs]float64
	ratio, time [inputs]float64 // right-hand sides: log(TTFT / base), log(TTFT)
}

func fitAll(train []Row) *regression {
	f := &regression{train: train}
	f.standardise()
	for i := range train {
		x := f.inputs(&train[i].Features)
		y, base := logs(&train[i])
		for a := range x {
			for b := range x {
				f.normal[a][b] += x[a] * x[b]
			}
			f.ratio[a] += x[a] * (y - base)
			f.time[a] += x[a] * y
		}
	}
	return f
}

// logs of a row's time and of its base.
func logs(r *Row) (ttft, base float64) {
	return math.Log(r.TTFT.Seconds()), math.Log(r.Features[predictor.Base])
}

// standardise finds mean and spread of every input.
func (f *regression) standardise() {
	var n, sum, squares [inputs]float64
	for i := range f.train {
		for a, v := range raw(&f.train[i].Features) {
			if !math.IsNaN(v) {
				n[a]++
				sum[a] += v
				squares[a] += v * v
			}
		}
	}
	for a := range intercept {
		f.mean[a] = sum[a] / max(n[a], 1)
		f.scale[a] = math.Sqrt(max(squares[a]/max(n[a], 1)-f.mean[a]*f.mean[a], 0))
	}
}

// raw inputs of a row: logarithms of what has a unit, ratios as they are.
func raw(x *predictor.Features) (out [inputs]float64) {
	for i, feature := range predictor.Schema() {
		switch v := x[i]; {
		case math.IsNaN(v) || math.IsInf(v, 0):
			out[2*i], out[2*i+1] = math.NaN(), 1
		case feature.Unit == "s":
			out[2*i] = math.Log(max(v, 0) + 1e-4)
		case feature.Unit == "1":
			out[2*i] = v
		default:
			out[2*i] = math.Copysign(math.Log1p(math.Abs(v)), v)
		}
	}
	out[intercept] = 1
	return out
}

// inputs of a row, each of mean 0 and spread 1. What is unknown counts as the
// mean; none goes beyond five spreads, so that no outlier decides.
func (f *regression) inputs(x *predictor.Features) [inputs]float64 {
	out := raw(x)
	for a := range intercept {
		v := (out[a] - f.mean[a]) / f.scale[a]
		if math.IsNaN(v) { // unknown, or always the same
			v = 0
		}
		out[a] = min(max(v, -5), 5)
	}
	return out
}

// without fits again with one feature left out; below 0 none is.
func (f *regression) without(feature int) estimator {
	var out [inputs]bool
	right, plain := &f.ratio, feature == predictor.Base
	if feature >= 0 {
		out[2*feature], out[2*feature+1] = true, true
	}
	if plain {
		right = &f.time
	}
	weights := f.solve(right, &out)
	predict := func(r *Row) float64 {
		y := 0.0
		for a, v := range f.inputs(&r.Features) {
			y += weights[a] * v
		}
		if _, base := logs(r); plain {
			y -= base
		}
		return min(max(y, -3), 3)
	}
	residuals := make(sortedValues, len(f.train))
	for i := range f.train {
		y, base := logs(&f.train[i])
		residuals[i] = y - base - predict(&f.train[i])
	}
	slices.Sort(residuals)
	middle, upper := residuals.quantile(0.5, 0), residuals.quantile(0.95, 0)
	return func(r *Row) (float64, float64) {
		y := predict(r)
		return y + middle, y + upper
	}
}

// solve is Gauss–Jordan on the normal equations with a ridge; the weights of
// inputs that are out are 0.
func (f *regression) solve(right *[inputs]float64, out *[inputs]bool) [inputs]float64 {
	const ridge = 10.0 // rows
	a, b := f.normal, *right
	for i := range a {
		a[i][i] += ridge
		if out[i] {
			for j := range a {
				a[i][j], a[j][i] = 0, 0
			}
			a[i][i], b[i] = 1, 0
		}
	}
	for i := range a {
		pivot := a[i][i] // above 0: the matrix is positive definite
		for r := range a {
			if r == i || a[r][i] == 0 {
				continue
			}
			k := a[r][i] / pivot
			for j := i; j < inputs; j++ {
				a[r][j] -= k * a[i][j]
			}
			b[r] -= k * b[i]
		}
	}
	for i := range b {
		b[i] /= a[i][i]
	}
	return b
}
