package predictor

import "math"

// responses are what an engine's answers took over the last 5 minutes, in
// slices of a minute, for the entropy of their distribution and their
// covariance with the engine's CPU use. The zero value is empty.
type responses struct {
	slices               [5]responseSlice
	sum, count           float64 // of answers since the previous scrape
	n, cpuMean, timeMean float64 // decayed moments over scrapes
	covariance           float64

	known       float64 // the last entropy asked for
	knownMinute int64   // as of which it is
	isKnown     bool    // no answer has come since
}

// responseBins are a factor of √2 wide, from 1 ms.
const responseBins = 40

type responseSlice struct {
	minute int64
	counts [responseBins]uint32
}

// add counts an answer that ended at t after so many seconds.
func (r *responses) add(t, seconds float64) {
	minute := int64(t / 60)
	s := &r.slices[max(minute, 0)%int64(len(r.slices))] // a clock put back may give less than 0
	if s.minute != minute {
		*s = responseSlice{minute: minute}
	}
	bin := int(2 * math.Log2(max(seconds, 0.001)/0.001))
	s.counts[min(bin, responseBins-1)]++
	r.sum += seconds
	r.count++
	r.isKnown = false
}

// entropy is −Σ p·ln p over the bins, in nats; NaN with fewer than 20 answers.
func (r *responses) entropy(t float64) float64 {
	minute := int64(t / 60)
	if !r.isKnown || minute != r.knownMinute {
		r.known, r.knownMinute, r.isKnown = r.entropyAt(minute), minute, true
	}
	return r.known
}

func (r *responses) entropyAt(minute int64) float64 {
	var counts [responseBins]float64
	total := 0.0
	for i := range r.slices {
		s := &r.slices[i]
		if s.minute <= minute-int64(len(r.slices)) {
			continue
		}
		for b, c := range s.counts {
			counts[b] += float64(c)
			total += float64(c)
		}
	}
	if total < 20 {
		return math.NaN()
	}
	h := 0.0
	for _, c := range counts {
		if c > 0 {
			h -= c / total * math.Log(c/total)
		}
	}
	return h
}

// cpu pairs the CPU use between two scrapes with the mean response time of
// the answers that ended in between.
func (r *responses) cpu(cores float64) {
	if r.count == 0 || math.IsNaN(cores) {
		return
	}
	seconds := r.sum / r.count
	r.sum, r.count = 0, 0
	const window = 600 // scrapes: 5 minutes at 500 ms
	r.n = min(r.n+1, window)
	dc, dt := cores-r.cpuMean, seconds-r.timeMean
	r.cpuMean += dc / r.n
	r.timeMean += dt / r.n
	r.covariance += (dc*(seconds-r.timeMean) - r.covariance) / r.n
}

// cpuCovariance is in cores·s; NaN with fewer than 20 pairs.
func (r *responses) cpuCovariance() float64 {
	if r.n < 20 {
		return math.NaN()
	}
	return r.covariance
}

// arrivals counts a pool's requests per second over 5 minutes.
type arrivals struct {
	counts [301]uint32 // the present second and 300 before it
	first  int64       // second of the first request
	last   int64       // second of the latest
	any    bool
}

// add counts a request in the given second.
func (a *arrivals) add(second int64) {
	a.advance(second)
	a.counts[mod(second)]++
}

func mod(second int64) int64 { return ((second % 301) + 301) % 301 }

// advance clears the seconds that have gone by since the latest.
func (a *arrivals) advance(second int64) {
	if !a.any {
		a.first, a.last, a.any = second, second, true
		return
	}
	for s := max(a.last+1, second-300); s <= second; s++ {
		a.counts[mod(s)] = 0
	}
	a.last = max(a.last, second)
}

// rate is requests a second over the last so many full seconds (less in the
// beginning), cv their coefficient of variation; NaN before there are 10 s.
func (a *arrivals) rate(second int64, window int64) (rate, cv float64) {
	a.advance(second)
	n := min(window, second-a.first)
	if n < 10 {
		return math.NaN(), math.NaN()
	}
	sum, squares := 0.0, 0.0
	for s := second - n; s < second; s++ {
		c := float64(a.counts[mod(s)])
		sum += c
		squares += c * c
	}
	m := sum / float64(n)
	if m == 0 {
		return 0, math.NaN()
	}
	return m, math.Sqrt(max(squares/float64(n)-m*m, 0)) / m
}

// gaps is the mean time between an engine's steps over the last few seconds of
// decoding. The zero value is empty.
type gaps struct{ seconds, count float64 }

// gapMemory is the time over which gaps are averaged.
const gapMemory = 3.0 // s

func (g *gaps) add(seconds float64) {
	keep := math.Exp(-seconds / gapMemory)
	g.seconds = g.seconds*keep + seconds
	g.count = g.count*keep + 1
}

// mean is NaN before the first gap.
func (g *gaps) mean() float64 { return g.seconds / g.count }
