package predictor

import "time"

// Kind names an estimator.
type Kind uint8

// The estimators.
const (
	Analytic Kind = iota
	Linear
	LightGBM
	Kinds
)

// String returns the estimator's name as metrics and files spell it.
func (k Kind) String() string {
	return [...]string{"analytic", "linear", "lightgbm", "none"}[min(k, Kinds)]
}

// Prediction is what is expected of the time to first token, attempt sent to
// first token. Both are finite and above 0, and P50 <= P95.
type Prediction struct {
	P50, P95 time.Duration
}

// Sample is one attempt: what was known when it was sent, what every
// estimator said, and what became of it. It holds nothing of the prompt, of
// keys or of users.
type Sample struct {
	At       time.Time // sent
	Model    string    // as clients name it
	Backend  string    // name of the engine
	Revision string    // of the configuration
	Features Features
	Regime   Regime
	Served   Kind              // the estimator whose word counted
	Said     [Kinds]Prediction // zero: the estimator had nothing to say
	TTFT     time.Duration     // attempt sent to first token; if Censored the least it can have been
	Censored bool              // it ended before a first token, and not by the engine's fault
}
