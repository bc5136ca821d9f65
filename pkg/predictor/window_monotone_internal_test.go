package predictor

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
)

// FuzzWindowRises: a larger share is never a smaller value, and none lies outside
// of what is in the window.
func FuzzWindowRises(f *testing.F) {
	f.Add([]byte("one value"), 0.3, 0.7)
	f.Add(slices.Repeat([]byte("12345678abcdefgh"), 20), 0.949, 0.95)
	f.Add(slices.Repeat([]byte{0, 0, 0, 0, 0, 0, 240, 63}, 50), 0.5, 0.95)
	var rising []byte
	for k := range 30 {
		rising = binary.LittleEndian.AppendUint64(rising, math.Float64bits(float64(k*k)))
	}
	f.Add(rising, 0.5, 0.51) // between the same two values
	f.Add(rising, 0.5, 0.52)
	f.Add(rising, 14.99/29, 15.01/29) // around one of them
	f.Fuzz(func(t *testing.T, data []byte, a, b float64) {
		var w window
		for ; len(data) >= 8; data = data[8:] {
			if v := math.Float64frombits(binary.LittleEndian.Uint64(data)); math.Abs(v) <= 1e300 { // its callers let no other through
				w.add(v)
			}
		}
		if !(a >= 0 && a <= 1 && b >= 0 && b <= 1) {
			return
		}
		low, high := min(a, b), max(a, b)
		noLess := func(what string, less, more float64) {
			t.Helper()
			if slack := 1e-12 * max(math.Abs(less), math.Abs(more)); !(less <= more+slack) {
				t.Errorf("%s of %d values: %v at %v, %v at %v", what, w.len(), less, low, more, high)
			}
		}
		noLess("quantile", w.quantile(low), w.quantile(high))
		noLess("offset", w.offset(low), w.offset(high))
		if w.len() == 0 {
			return
		}
		noLess("value", w.at(low), w.at(high))
		noLess("least", w.sorted[0], w.at(low))
		noLess("most", w.at(high), w.sorted[w.len()-1])
	})
}
