package predictor

import "sort"

// windowSize is how many values a window holds.
const windowSize = 200

// window is the last values of a series, sorted for their quantiles. The zero
// value is empty.
type window struct {
	ring   [windowSize]float64
	next   int
	sorted []float64
}

func (w *window) len() int { return len(w.sorted) }

// add takes a value in and drops the oldest of a full window.
func (w *window) add(v float64) {
	if len(w.sorted) == windowSize {
		old := sort.SearchFloat64s(w.sorted, w.ring[w.next])
		w.sorted = append(w.sorted[:old], w.sorted[old+1:]...)
	}
	w.ring[w.next] = v
	w.next = (w.next + 1) % windowSize
	at := sort.SearchFloat64s(w.sorted, v)
	w.sorted = append(w.sorted, 0)
	copy(w.sorted[at+1:], w.sorted[at:])
	w.sorted[at] = v
}

// quantile is the value that a share q (0..1) of the window does not exceed.
// With few values it leans to the prior of a 10 % error.
func (w *window) quantile(q float64) float64 {
	const few, z95 = 20, 1.645
	n := len(w.sorted)
	if n < few {
		median := 0.0
		if n >= 5 {
			median = w.sorted[n/2]
		}
		return median + (q-0.5)/0.45*z95*0.15
	}
	return w.at(q)
}

// at interpolates between the values next to the quantile (Hyndman and Fan 1996,
// type 7), so that one odd value among a few dozen does not speak for them all.
func (w *window) at(q float64) float64 {
	place := q * float64(len(w.sorted)-1)
	below := int(place)
	above := min(below+1, len(w.sorted)-1)
	part := place - float64(below)
	return (1-part)*w.sorted[below] + part*w.sorted[above]
}

// offset is the quantile q of errors that a correction adds; with few of them
// it leans to none.
func (w *window) offset(q float64) float64 {
	const few = 10 // weigh as much as none
	n := float64(len(w.sorted))
	if n == 0 {
		return 0
	}
	return w.at(q) * n / (n + few)
}
