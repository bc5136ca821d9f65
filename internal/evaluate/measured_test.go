package evaluate

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

func TestStepGridByHand(t *testing.T) {
	t.Parallel()
	requests := []measuredRequest{
		{output: 11, first: 1, last: 2},     // 0.1 s a token
		{output: 11, first: 1.5, last: 2.5}, // the same
		{output: 1, first: 4, last: 4},
	}
	grid := stepGrid(requests)
	var want []float64
	for k := range 16 {
		want = append(want, 1+float64(k)/10)
	}
	want = append(want, 4)
	if len(grid) != len(want) {
		t.Fatalf("grid %v", grid)
	}
	for i := range want {
		near(t, "step", grid[i], want[i])
	}
	tokens, off := requests[1].tokensOn(grid)
	if len(tokens) != 10 || off != 0 {
		t.Fatalf("tokens %v, off by %v", tokens, off)
	}
	near(t, "second token", tokens[0], 1.6)
	near(t, "last token", tokens[9], 2.5)
}

// Where steps and tokens don't match the tokens are spread: each comes with the
// step by which it is due.
func TestTokensOnByHand(t *testing.T) {
	t.Parallel()
	grid := []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, c := range []struct {
		output int
		want   []float64
		off    float64
	}{
		{4, []float64{4, 7, 10}, 7.0 / 3},
		{16, []float64{1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 9, 10, 10}, 5.0 / 15},
		{1, nil, 0},
	} {
		r := measuredRequest{output: c.output, first: 0, last: 10}
		if got, off := r.tokensOn(grid); !slices.Equal(got, c.want) || off != c.off {
			t.Errorf("%d tokens: got %v, off by %v", c.output, got, off)
		}
	}
}

// Whatever the requests: steps in order, known times on the grid, every token
// between first and last.
func TestStepGridLaws(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var requests []measuredRequest
		for range 1 + rng.IntN(10) {
			first := rng.Float64() * 5
			r := measuredRequest{output: 1 + rng.IntN(100), first: first, last: first}
			if r.output > 1 {
				r.last += rng.Float64() * 5
			}
			requests = append(requests, r)
		}
		grid := stepGrid(requests)
		if !slices.IsSorted(grid) || len(slices.Compact(slices.Clone(grid))) != len(grid) {
			t.Fatalf("steps out of order: %v", grid)
		}
		for _, r := range requests {
			tokens, _ := r.tokensOn(grid)
			if len(tokens) != r.output-1 || !slices.Contains(grid, r.first) || !slices.Contains(grid, r.last) {
				t.Fatalf("%d tokens of %+v", len(tokens), r)
			}
			if !slices.IsSorted(tokens) || len(tokens) > 0 && (tokens[0] < r.first || tokens[len(tokens)-1] != r.last) {
				t.Fatalf("tokens %v of %+v", tokens, r)
			}
		}
	}
}

func TestMeasuredRuns(t *testing.T) {
	t.Parallel()
	runs, err := MeasuredRuns(measuredFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	for i := range runs {
		m := runs[i].Predict(nil, predictor.Rules{})
		served := Find(m.Scores, Served, All)
		if m.Requests != 300 || served.Rows != 200 || m.GridError > .2 {
			t.Errorf("%s: %d requests, %d judged, grid off by %.3f", m.Trace, m.Requests, served.Rows, m.GridError)
		}
		for k, r := range m.Rows {
			q := runs[i].requests[k]
			if math.Abs(r.TTFT.Seconds()-(q.first-q.arrival)) > 1e-6 {
				t.Fatalf("%s: request %d took %v instead of %v s", m.Trace, k, r.TTFT, q.first-q.arrival)
			}
		}
	}
}

func TestMeasuredRunsErrors(t *testing.T) {
	t.Parallel()
	const head = "input_toks,output_toks,arrival_s,first_token_s,last_token_s\n"
	for name, c := range map[string]struct{ requests, series, meta, want string }{
		"no column":    {"input_toks\n1\n", "", "{}", "column output_toks is missing"},
		"no number":    {head + "1,2,0,x,3\n", "", "{}", `line 2, column first_token_s: "x" is no number`},
		"out of order": {head + "1,2,5,4,6\n", "", "{}", "request 1"},
		"bad meta":     {head + "1,2,0,1,2\n", "t,running,waiting,kv_cache_pct\n", "{", "vllm_meta_x.json"},
		"bad series":   {head + "1,2,0,1,2\n", "t,running\n", "{}", "column waiting is missing"},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"vllm_requests_x.csv": c.requests, "vllm_timeseries_x.csv": c.series, "vllm_meta_x.json": c.meta} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := MeasuredRuns(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if _, err := MeasuredRuns(t.TempDir()); err == nil {
		t.Error("an empty folder is taken")
	}
}
