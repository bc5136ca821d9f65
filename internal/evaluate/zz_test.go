package evaluate

import (
	"fmt"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"os"
	"testing"
)

func TestZZ(t *testing.T) {
	runs, err := MeasuredRuns(os.Getenv("FIRSTTOKEN_DATA") + "/measured")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range runs {
		r := m.Predict(nil, predictor.Rules{})
		fmt.Println(r.Trace, r.Simple, r.Share, "grid", r.GridError)
		for _, s := range r.Scores {
			fmt.Printf("%-12s %-8s %4d mape %.3f med %.3f mae %.3f bias %+.3f cov %.3f\n", s.Estimator, s.Regime, s.Rows, s.MAPE, s.MedianError, s.MAE, s.Bias, s.Coverage)
		}
	}
}
