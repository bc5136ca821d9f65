package predictor

import "time"

// Rules decide which estimator's word counts. Zero fields mean the default
// named beside them.
type Rules struct {
	LowRate    float64       // requests/s below which the linear one serves; 50
	VolatileCV float64       // CV of requests per second above which LightGBM serves; 0.8
	MaxMAPE    float64       // error of the incumbent's P50 above which it is replaced; 0.12
	MinSamples int           // fewest requests an error is judged by; 50
	Margin     float64       // how much lower the successor's error must be, as a share; 0.1
	Dwell      time.Duration // shortest time between switches; 30 s
}

func (r Rules) withDefaults() Rules {
	set := func(p *float64, v float64) {
		if *p == 0 {
			*p = v
		}
	}
	set(&r.LowRate, 50)
	set(&r.VolatileCV, 0.8)
	set(&r.MaxMAPE, 0.12)
	set(&r.Margin, 0.1)
	if r.MinSamples == 0 {
		r.MinSamples = 50
	}
	if r.Dwell == 0 {
		r.Dwell = 30 * time.Second
	}
	return r
}

// Standing is what the choice of an estimator depends on.
type Standing struct {
	Incumbent Kind
	Since     time.Duration // since the last switch
	Rate, CV  float64       // of the pool's requests; NaN if not known
	Scores    [Kinds]Score
	Ready     [Kinds]bool // has something to say
	Ousted    [Kinds]bool // was replaced for its error, and has not come back under the limit
}

// Why an estimator was chosen.
const (
	WhyKept     = "incumbent"
	WhyError    = "error" // the incumbent's was above the limit
	WhyLowRate  = "low_rate"
	WhyVolatile = "volatile"
)

// Choose says whose word counts from now on, and why. In order: an incumbent
// whose error passed the limit gives way to the shadow of the lowest error,
// if that is lower by the margin; volatile traffic takes LightGBM; low traffic
// the linear one; otherwise the incumbent stays. An estimator that was ousted
// for its error, or whose error is above the incumbent's by the margin, is not
// taken by the traffic rules. Ties and unknown numbers change nothing. Pure.
func (r Rules) Choose(s Standing) (Kind, string) {
	r = r.withDefaults()
	if s.Since < r.Dwell {
		return s.Incumbent, WhyKept
	}
	if k, ok := r.successor(&s); ok {
		return k, WhyError
	}
	switch {
	case s.CV > r.VolatileCV && r.eligible(&s, LightGBM):
		return LightGBM, WhyVolatile
	case s.Rate < r.LowRate && !(s.CV > r.calm(&s)) && r.eligible(&s, Linear):
		return Linear, WhyLowRate
	}
	return s.Incumbent, WhyKept
}

// calm is the CV below which the linear estimator may take over. From LightGBM
// that is clearly below the one at which it came in, so that a CV near it does
// not switch to and fro.
func (r Rules) calm(s *Standing) float64 {
	const hysteresis = 0.85
	if s.Incumbent == LightGBM {
		return hysteresis * r.VolatileCV
	}
	return r.VolatileCV
}

// successor is the shadow with the lowest error when the incumbent's is too high.
func (r Rules) successor(s *Standing) (Kind, bool) {
	own := s.Scores[s.Incumbent]
	if own.Rows < r.MinSamples || own.MAPE <= r.MaxMAPE {
		return 0, false
	}
	best := s.Incumbent
	for k := range Kinds {
		if s.Ready[k] && s.Scores[k].Rows >= r.MinSamples && s.Scores[k].MAPE < s.Scores[best].MAPE {
			best = k
		}
	}
	return best, best != s.Incumbent && s.Scores[best].MAPE <= own.MAPE*(1-r.Margin)
}

// eligible estimators may be taken by the traffic rules.
func (r Rules) eligible(s *Standing, k Kind) bool {
	return k != s.Incumbent && s.Ready[k] && !s.Ousted[k] && !r.worse(s, k)
}

// worse reports whether an estimator has shown a higher error than the
// incumbent.
func (r Rules) worse(s *Standing, k Kind) bool {
	own, other := s.Scores[s.Incumbent], s.Scores[k]
	return own.Rows >= r.MinSamples && other.Rows >= r.MinSamples && other.MAPE > own.MAPE*(1+r.Margin)
}
