package predictor

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// slow is a window that sorts a copy each time.
type slow struct{ values []float64 }

func (s *slow) add(v float64) {
	s.values = append(s.values, v)
	if len(s.values) > windowSize {
		s.values = s.values[1:]
	}
}

func (s *slow) at(q float64) float64 {
	sorted := slices.Sorted(slices.Values(s.values))
	place := q * float64(len(sorted)-1)
	low, high := sorted[int(math.Floor(place))], sorted[int(math.Ceil(place))]
	return low*(1-math.Mod(place, 1)) + high*math.Mod(place, 1)
}

func sameWindow(t *testing.T, w *window, s *slow) {
	t.Helper()
	if w.len() != len(s.values) || !slices.IsSorted(w.sorted) {
		t.Fatalf("%d values, sorted %v; want %d", w.len(), slices.IsSorted(w.sorted), len(s.values))
	}
	if w.len() < 20 {
		return
	}
	for _, q := range []float64{0, 0.05, 0.5, 0.95, 1} {
		want := s.at(q)
		if got := w.quantile(q); !alike(got, want) {
			t.Fatalf("quantile %v of %d values: %v, want %v", q, w.len(), got, want)
		}
		n := float64(w.len())
		if got := w.offset(q); !alike(got, want*n/(n+10)) {
			t.Fatalf("offset %v of %d values: %v, want %v", q, w.len(), got, want*n/(n+10))
		}
	}
}

func alike(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }

func TestWindow(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	draws := map[string]func(k int) float64{
		"noise":      func(int) float64 { return rng.NormFloat64() },
		"few values": func(int) float64 { return float64(rng.IntN(3)) },
		"all alike":  func(int) float64 { return 7 },
		"rising":     func(k int) float64 { return float64(k) },
		"falling":    func(k int) float64 { return float64(-k) },
		"extremes": func(int) float64 {
			return []float64{0, 1e300, -1e300, 1, -1}[rng.IntN(5)]
		},
	}
	for name, draw := range draws {
		t.Run(name, func(t *testing.T) {
			var w window
			var s slow
			for k := range 3 * windowSize {
				v := draw(k)
				w.add(v)
				s.add(v)
				sameWindow(t, &w, &s)
			}
		})
	}
}

// TestWindowOfFew: with few values the quantiles lean to what is usual, and a
// correction to none.
func TestWindowOfFew(t *testing.T) {
	var w window
	if w.offset(0.5) != 0 || w.offset(0.95) != 0 || w.quantile(0.5) != 0 || w.quantile(0.95) <= 0 {
		t.Errorf("empty: offsets %v %v, quantiles %v %v", w.offset(0.5), w.offset(0.95), w.quantile(0.5), w.quantile(0.95))
	}
	last := 0.0
	for n := range 20 {
		w.add(1)
		got := w.offset(0.95)
		if got <= last || got > 1 {
			t.Errorf("offset %v with %d values of 1, before %v", got, n+1, last)
		}
		last = got
	}
	if last < 0.6 {
		t.Errorf("offset %v with 20 values of 1", last)
	}
}

// One odd value among a few dozen does not speak for all.
func TestWindowOfOneOdd(t *testing.T) {
	var w window
	for k := range 40 {
		w.add(0.01 * float64(k%3))
	}
	w.add(4)
	if got := w.offset(0.95); got > 0.1 {
		t.Errorf("offset %v", got)
	}
}

func FuzzWindow(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("sixteen bytes ok sixteen bytes ok"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var w window
		var s slow
		for len(data) >= 8 {
			v := math.Float64frombits(binary.LittleEndian.Uint64(data))
			data = data[8:]
			if math.IsNaN(v) { // its callers let none through
				continue
			}
			for range 1 + w.len()%37 {
				w.add(v)
				s.add(v)
			}
			sameWindow(t, &w, &s)
		}
	})
}
