package predictor_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	lightgbm "github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// BenchmarkPredict is one decision: what is foreseen of a request on every
// instance, features included. Each instance decodes eight answers and has two
// prompts pending.
func BenchmarkPredict(b *testing.B) {
	for _, kind := range []predictor.Kind{predictor.Linear, predictor.LightGBM} {
		for _, n := range []int{10, 100} {
			b.Run(fmt.Sprintf("%v/%d", kind, n), func(b *testing.B) {
				f := newBusyFleet(b, kind, n)
				tokens := 800
				b.ReportAllocs()
				for b.Loop() {
					tokens ^= 1 // nobody asks the same twice
					for _, i := range f.instances {
						f.pool.Predict(f.now, i, prompt(tokens))
					}
				}
			})
		}
	}
}

// BenchmarkObserve is what a first token costs: the mirror moves on, and every
// estimator, calibration and judge learns.
func BenchmarkObserve(b *testing.B) {
	f := newBusyFleet(b, predictor.LightGBM, 100)
	attempts := make([]*predictor.Attempt, len(f.instances))
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		k := i % len(attempts)
		if k == 0 {
			b.StopTimer()
			f.end(attempts)
			f.send(attempts)
			b.StartTimer()
		}
		attempts[k].Token(f.now)
	}
}

// busyFleet is a pool that has found out that it is to be served by a kind.
type busyFleet struct {
	pool      *predictor.Pool
	instances []*predictor.Instance
	now       time.Time
}

func newBusyFleet(b *testing.B, kind predictor.Kind, n int) *busyFleet {
	b.Helper()
	rules := predictor.Rules{LowRate: 1e9, VolatileCV: 1e9, MaxMAPE: 1e9}
	if kind == predictor.LightGBM {
		rules = predictor.Rules{VolatileCV: 1e-9, MinSamples: math.MaxInt}
	}
	f := &busyFleet{pool: predictor.NewPool("m", rules, nil), now: t0}
	f.pool.SetModel(grown(b, 200, 31))
	for range n {
		f.instances = append(f.instances, predictor.NewInstance(plain))
	}
	attempts := make([]*predictor.Attempt, n)
	for second := range 90 {
		f.now = t0.Add(time.Duration(second) * time.Second)
		f.send(attempts[:1+second%n])
		for _, a := range attempts[:1+second%n] {
			a.Token(f.now.Add(500 * time.Millisecond))
			a.Done(f.now.Add(600*time.Millisecond), predictor.Completed)
		}
	}
	if serving := f.pool.Report(f.now).Serving; serving != kind {
		b.Fatalf("%v serves instead of %v", serving, kind)
	}
	for range 8 {
		f.send(attempts)
		f.now = f.now.Add(50 * time.Millisecond)
		for _, a := range attempts {
			a.Token(f.now)
		}
	}
	f.send(attempts)
	f.send(attempts)
	f.now = f.now.Add(20 * time.Millisecond)
	return f
}

// send sends one more request to as many instances.
func (f *busyFleet) send(attempts []*predictor.Attempt) {
	f.now = f.now.Add(200 * time.Millisecond)
	for k := range attempts {
		attempts[k] = f.pool.Begin(f.now, f.instances[k], prompt(300+k))
	}
	f.now = f.now.Add(200 * time.Millisecond)
}

func (f *busyFleet) end(attempts []*predictor.Attempt) {
	for _, a := range attempts {
		if a != nil {
			a.Done(f.now, predictor.Completed)
		}
	}
}

// twoHeads is a trained model of two heads of one size.
type twoHeads struct{ p50, p95 *lightgbm.Model }

func (m twoHeads) Predict(row []float64) (p50, p95 float64, err error) {
	if p50, err = m.p50.Predict(row); err != nil {
		return 0, 0, err
	}
	p95, err = m.p95.Predict(row)
	return p50, p95, err
}

// grown is a model of random trees of an odd number of leaves, as LightGBM
// writes them.
func grown(b *testing.B, nTrees, leaves int) predictor.Model {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	read := func() *lightgbm.Model {
		m, err := lightgbm.Read(strings.NewReader(modelText(rng, nTrees, leaves)), predictor.Names())
		if err != nil {
			b.Fatal(err)
		}
		return m
	}
	return twoHeads{read(), read()}
}

func modelText(rng *rand.Rand, nTrees, leaves int) string {
	var t strings.Builder
	names := predictor.Names()
	fmt.Fprintf(&t, "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx=%d\nobjective=quantile\nfeature_names=%s\ntree_sizes=%s\n\n",
		len(names)-1, strings.Join(names, " "), strings.TrimSuffix(strings.Repeat("100 ", nTrees), " "))
	line := func(key string, n int, value func(i int) float64) {
		t.WriteString(key + "=")
		for i := range n {
			t.WriteString(strings.Repeat(" ", min(i, 1)) + strconv.FormatFloat(value(i), 'g', 17, 64))
		}
		t.WriteByte('\n')
	}
	child := func(k int) float64 { // nodes come first, then leaves, which count down from -1
		if k < leaves-1 {
			return float64(k)
		}
		return float64(leaves - 2 - k)
	}
	one := func(int) float64 { return 1 }
	for i := range nTrees {
		fmt.Fprintf(&t, "Tree=%d\nnum_leaves=%d\nnum_cat=0\n", i, leaves)
		line("split_feature", leaves-1, func(int) float64 { return float64(rng.IntN(len(names))) })
		line("split_gain", leaves-1, one)
		line("threshold", leaves-1, func(int) float64 { return rng.ExpFloat64() })
		line("decision_type", leaves-1, func(int) float64 { return 10 })
		line("left_child", leaves-1, func(i int) float64 { return child(2*i + 1) })
		line("right_child", leaves-1, func(i int) float64 { return child(2*i + 2) })
		line("leaf_value", leaves, func(int) float64 { return rng.NormFloat64() / 1000 })
		line("leaf_weight", leaves, one)
		line("leaf_count", leaves, one)
		line("internal_value", leaves-1, one)
		line("internal_weight", leaves-1, one)
		line("internal_count", leaves-1, one)
		t.WriteString("is_linear=0\nshrinkage=0.1\n\n\n")
	}
	t.WriteString("end of trees\n\nparameters:\n[objective: quantile]\n[alpha: 0.95]\n\nend of parameters\n")
	return t.String()
}
