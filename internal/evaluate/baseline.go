package evaluate

import (
	"math"
	"slices"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// The simple baselines, by name, in the order of their guesses.
const (
	Constant = iota // running median of all times so far
	LastFive        // mean of the instance's last five
	Waiting         // requests without a first token there, this one included ÷ its recent rate of first tokens
	PeakEWMA        // the instance's peak-sensitive moving average
	baselines
)

// Baselines names them.
func Baselines() [baselines]string {
	return [...]string{"constant", "last-5", "waiting/rate", "peak-ewma"}
}

// baseline guesses a P50 from the times that are known; 0 where it knows none.
type baseline interface {
	guess(r *Row) float64
	learn(r *Row)
}

// guesses of all baselines for every row. Each knows at a row's time what a
// gateway knows then: the first tokens that have come.
func guesses(rows []Row) [][baselines]Guess {
	simple := [baselines]*widened{}
	for b, of := range [baselines]baseline{
		&constant{}, &lastFive{by: map[string][]float64{}}, &waiting{by: map[string][]time.Time{}}, &peakEWMA{by: map[string]peak{}},
	} {
		simple[b] = &widened{of: of, said: map[int]float64{}}
	}
	out := make([][baselines]Guess, len(rows))
	known, next := byKnowledge(rows), 0
	for i := range rows {
		for ; next < len(known) && !rows[known[next]].known().After(rows[i].At); next++ {
			for _, s := range simple {
				s.learn(known[next], &rows[known[next]])
			}
		}
		for b, s := range simple {
			out[i][b] = s.guess(i, &rows[i])
			if out[i][b].P50 == 0 {
				out[i][b] = out[i][Constant]
			}
		}
	}
	return out
}

// widened gives a baseline a P95: its P50 times the 0.95 quantile of the
// ratios by which it was too low so far.
type widened struct {
	of     baseline
	said   map[int]float64
	ratios sortedValues
}

func (w *widened) guess(place int, r *Row) Guess {
	p50 := w.of.guess(r)
	if p50 == 0 {
		return Guess{}
	}
	w.said[place] = p50
	return Guess{p50, p50 * max(w.ratios.quantile(0.95, 1), 1)}
}

func (w *widened) learn(place int, r *Row) {
	w.of.learn(r)
	if p50 := w.said[place]; p50 > 0 {
		w.ratios.add(r.TTFT.Seconds() / p50)
	}
	delete(w.said, place)
}

// sortedValues are numbers in order.
type sortedValues []float64

func (s *sortedValues) add(v float64) {
	at, _ := slices.BinarySearch(*s, v)
	*s = slices.Insert(*s, at, v)
}

// quantile is the smallest value that a share q of all does not exceed, or
// what to say of none.
func (s sortedValues) quantile(q, none float64) float64 {
	if len(s) == 0 {
		return none
	}
	return s[max(int(math.Ceil(q*float64(len(s))))-1, 0)]
}

type constant struct{ times sortedValues }

func (c *constant) guess(*Row) float64 { return c.times.quantile(0.5, 0) }
func (c *constant) learn(r *Row)       { c.times.add(r.TTFT.Seconds()) }

type lastFive struct{ by map[string][]float64 }

func (l *lastFive) guess(r *Row) float64 { return mean(l.by[r.Backend]) }

func (l *lastFive) learn(r *Row) { l.by[r.Backend] = lastOf(5, l.by[r.Backend], r.TTFT.Seconds()) }

// lastOf appends and keeps the last n.
func lastOf[T any](n int, values []T, v T) []T {
	values = append(values, v)
	return values[max(len(values)-n, 0):]
}

// mean of values; 0 of none.
func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / max(float64(len(values)), 1)
}

// waiting divides the requests ahead by the rate of the last 20 first tokens.
type waiting struct{ by map[string][]time.Time }

func (w *waiting) guess(r *Row) float64 {
	seen := w.by[r.Backend]
	ahead := r.Features[predictor.PendingRequests]
	if len(seen) < 2 || math.IsNaN(ahead) {
		return 0
	}
	each := r.At.Sub(seen[0]).Seconds() / float64(len(seen))
	return max((ahead+1)*each, 1e-3)
}

func (w *waiting) learn(r *Row) { w.by[r.Backend] = lastOf(20, w.by[r.Backend], r.known()) }

// peakEWMA goes up with a higher time at once and comes down with a time
// constant of 10 s (Finagle's and Linkerd's rule).
type peakEWMA struct{ by map[string]peak }

type peak struct {
	value float64
	at    time.Time
}

func (p *peakEWMA) guess(r *Row) float64 { return p.by[r.Backend].value }

func (p *peakEWMA) learn(r *Row) {
	const tau = 10.0 // s
	old, now, ttft := p.by[r.Backend], r.known(), r.TTFT.Seconds()
	if ttft < old.value {
		keep := math.Exp(-now.Sub(old.at).Seconds() / tau)
		ttft = old.value*keep + ttft*(1-keep)
	}
	p.by[r.Backend] = peak{ttft, now}
}
