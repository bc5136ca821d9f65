package evaluate

import "github.com/firsttoken/firsttoken/pkg/predictor/trees"

// What predictions are held against.
const (
	// EnoughRows is how many rows a regime needs to be held against a target: a
	// coverage of 0.95 over 200 rows is itself only known to 0.015.
	EnoughRows = 200

	nearOracle   = 1.25 // error in relation to the oracle's
	easyOracle   = 0.04 // below this error of the oracle
	easyLimit    = 0.05 // this error will do
	coverageLow  = 0.93
	coverageHigh = 0.97

	measuredCoverageLow  = 0.90
	measuredCoverageHigh = 0.98
	measuredShare        = 0.5 // mean error in relation to the best baseline's
)

// NearTruth reports whether the error of P50 is at most 12 %.
func (s *Score) NearTruth() bool { return s.MAPE <= Limit }

// NearOracle reports whether it is at most 1.25 times the oracle's, or 5 %
// where the oracle's is below 4 %.
func (s *Score) NearOracle() bool {
	return s.MAPE <= nearOracle*s.Oracle || s.Oracle < easyOracle && s.MAPE <= easyLimit
}

// Calibrated reports whether the coverage of P95 is 0.93 to 0.97.
func (s *Score) Calibrated() bool { return s.Coverage >= coverageLow && s.Coverage <= coverageHigh }

// Verdict is how many regimes of runs meet each target.
type Verdict struct {
	Regimes    int `json:"regimes"` // with enough rows
	NearTruth  int `json:"near_truth"`
	NearOracle int `json:"near_oracle"`
	Calibrated int `json:"calibrated"`
	Beats      int `json:"beats_baselines"` // its error is no higher than any baseline's
}

// Sum judges the served estimator of all runs.
func Sum(runs []Run) (v Verdict) {
	for i := range runs {
		for k := range runs[i].Scores {
			s := &runs[i].Scores[k]
			if s.Estimator != Served || s.Regime == All || s.Rows < EnoughRows {
				continue
			}
			v.Regimes++
			v.NearTruth += one(s.NearTruth())
			v.NearOracle += one(s.NearOracle())
			v.Calibrated += one(s.Calibrated())
			v.Beats += one(s.MAPE <= Best(runs[i].Scores, s.Regime, mapeOf).MAPE)
		}
	}
	return v
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func mapeOf(s *Score) trees.Number { return s.MAPE }
