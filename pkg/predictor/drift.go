package predictor

// Bounds of the coverage of P95 over the last scoreRows requests, outside of
// which an estimator has drifted.
const (
	DriftLow  = 0.90
	DriftHigh = 0.985
)

// shift watches for an error that has moved for good: a two-sided CUSUM
// (Page 1954) on log(truth/P50), in units of its own spread.
type shift struct {
	mean, spread float64
	n            int
	up, down     float64
	quiet        int // observations until the next alarm may come
}

const (
	cusumSlack = 0.5  // spreads that are noise
	cusumLimit = 25.0 // spreads summed up beyond which it is an alarm
	alarmPause = scoreRows
)

// add takes one error in and says why there is an alarm, if there is.
func (s *shift) add(bias float64, over Score) (why string) {
	s.n++
	rate := max(1/float64(s.n), 1.0/1000)
	s.mean += (bias - s.mean) * rate
	dev := bias - s.mean
	s.spread += (max(dev, -dev) - s.spread) * rate
	if s.quiet > 0 {
		s.quiet--
		return ""
	}
	if s.n < 100 || s.spread == 0 {
		return ""
	}
	z := min(max(dev/s.spread, -4), 4)
	s.up = max(s.up+z-cusumSlack, 0)
	s.down = max(s.down-z-cusumSlack, 0)
	switch {
	case over.Rows >= scoreRows && (over.Coverage < DriftLow || over.Coverage > DriftHigh):
		why = "coverage"
	case s.up > cusumLimit || s.down > cusumLimit:
		why = "shift"
	default:
		return ""
	}
	*s = shift{quiet: alarmPause}
	return why
}
