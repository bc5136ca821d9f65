package calibrate

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// RunCheck is a run of measured requests beside the same requests on a
// profile's engine.
type RunCheck struct {
	Profile            string
	Requests           int
	MedianError        float64 // of one request's TTFT
	Measured, Simulate Spread
}

// Spread is a few figures of TTFT over requests.
type Spread struct{ Mean, P50, P90 time.Duration }

// MeasuredRuns are the files of requests that the 8B profiles were fitted to,
// by profile.
func MeasuredRuns() map[string]string {
	return map[string]string{
		"rtx4090-llama-3.1-8b-bf16":    "vllm_requests_rtx4090_llama31-8b_tp1.csv",
		"rtxpro6000-llama-3.1-8b-bf16": "vllm_requests_rtxpro6000_llama31-8b_tp1.csv",
	}
}

// CheckRun replays measured requests on the engine of a built-in profile.
func CheckRun(profile string, requests []Request) (RunCheck, error) {
	p, ok := engine.LookupProfile(profile)
	if !ok {
		return RunCheck{}, fmt.Errorf("no profile %q", profile)
	}
	figures, err := Replay(p.Params, requests)
	if err != nil {
		return RunCheck{}, fmt.Errorf("%s: %w", profile, err)
	}
	var errors, got, want []float64
	for i, f := range figures {
		m := requests[i].Measured
		errors = append(errors, relative(f.TTFT, m.TTFT))
		got, want = append(got, float64(f.TTFT)), append(want, float64(m.TTFT))
	}
	return RunCheck{
		Profile: profile, Requests: len(requests), MedianError: quantile(errors, 0.5), Measured: spread(want), Simulate: spread(got),
	}, nil
}

func spread(v []float64) Spread {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return Spread{Mean: time.Duration(sum / float64(len(v))), P50: time.Duration(quantile(v, 0.5)), P90: time.Duration(quantile(v, 0.9))}
}

// Files of the data folder that Validate reads.
const (
	loopsFile  = "serving_ttft_by_concurrency_dev.csv"
	stagesFile = "h100_llama31-8b_ttft_by_rate_dev.csv"
)

// CheckRuns validates the profiles that were fitted to single requests.
func CheckRuns(dir string) ([]RunCheck, error) {
	var all []RunCheck
	for _, name := range engine.ProfileNames() {
		file, ok := MeasuredRuns()[name]
		if !ok {
			continue
		}
		m, err := Read(filepath.Join(dir, "measured", file))
		if err != nil {
			return nil, err
		}
		check, err := CheckRun(name, m.Requests)
		if err != nil {
			return nil, err
		}
		all = append(all, check)
	}
	return all, nil
}

// CheckKnees validates the rates at which an H100 is full.
func CheckKnees(ctx context.Context, dir string) ([]Knee, error) {
	m, err := Read(filepath.Join(dir, "measured", stagesFile))
	if err != nil {
		return nil, err
	}
	knees := make([]Knee, len(m.Variants))
	err = each(ctx, len(knees), func(i int) (err error) {
		knees[i], err = FindKnee(ctx, m.Variants[i])
		return err
	})
	return knees, err
}

// minPoints is how many points a configuration needs to be judged.
const minPoints = 6

// CheckLoops fits every configuration with enough points to half of them and
// predicts the other half. progress is called after each, from several
// goroutines.
func CheckLoops(ctx context.Context, dir string, progress func(done, of int)) ([]Fit, error) {
	m, err := Read(filepath.Join(dir, "measured", loopsFile))
	if err != nil {
		return nil, err
	}
	var enough []Configuration
	for _, c := range m.Configurations {
		if len(c.Unsaturated()) >= minPoints {
			enough = append(enough, c)
		}
	}
	fits := make([]Fit, len(enough))
	var done atomic.Int64
	err = each(ctx, len(enough), func(i int) (err error) {
		fits[i], err = FitLoops(ctx, enough[i], InferenceX(), false)
		progress(int(done.Add(1)), len(enough))
		return err
	})
	return fits, err
}

// InferenceX is how the published tables were driven: lengths from 0.8 to 1.0
// of nominal, 10 prompts a user.
func InferenceX() Loops { return Loops{Shortest: 0.8, PerUser: 10} }

// each calls do for 0 to n-1, as many at once as there are processors, and
// gives the first error by number.
func each(ctx context.Context, n int, do func(i int) error) error {
	errs := make([]error, n)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[i] = do(i)
			}
		})
	}
	workers.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}
