package trace

import (
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// memory is files by name.
type memory map[string]string

func (m memory) file(name string) file {
	return file{name: name, beside: m.file, open: func() (io.ReadCloser, error) {
		content, ok := m[name]
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		return io.NopCloser(strings.NewReader(content)), nil
	}}
}

// read opens content as a trace called "t".
func read(t *testing.T, content string, o Options) Source {
	t.Helper()
	s, err := open(memory{"t": content}.file("t"), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func collect(t testing.TB, s Source) []Request {
	t.Helper()
	all, err := s.Collect()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// data is a trace of the public data sets, which are no part of the repository.
func data(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("FIRSTTOKEN_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	path := filepath.Join(dir, "traces", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not there; set FIRSTTOKEN_DATA to the folder of the data sets", name)
	}
	return path
}

func sorted(all []Request) bool {
	return slices.IsSortedFunc(all, func(a, b Request) int { return int(a.At - b.At) })
}

func gapsOf(all []Request) []float64 {
	var gaps []float64
	for i := 1; i < len(all); i++ {
		gaps = append(gaps, (all[i].At - all[i-1].At).Seconds())
	}
	return gaps
}

// meanAndCV gives the mean and the standard deviation over the mean.
func meanAndCV(xs []float64) (mean, cv float64) {
	for _, x := range xs {
		mean += x / float64(len(xs))
	}
	for _, x := range xs {
		cv += (x - mean) * (x - mean) / float64(len(xs))
	}
	return mean, math.Sqrt(cv) / mean
}

// quantile is the nearest rank.
func quantile(xs []int, q float64) int {
	s := slices.Sorted(slices.Values(xs))
	return s[max(0, int(math.Ceil(q*float64(len(s))))-1)]
}

func prompts(all []Request) (n []int) {
	for _, r := range all {
		n = append(n, r.PromptTokens)
	}
	return n
}

func outputs(all []Request) (n []int) {
	for _, r := range all {
		n = append(n, r.OutputTokens)
	}
	return n
}

func mean(xs []int) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += float64(x)
	}
	return sum / float64(len(xs))
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance*math.Abs(want)) {
		t.Errorf("%s = %.5g, want %.5g within %g %%", what, got, want, 100*tolerance)
	}
}

// every is n requests, one each interval.
func every(interval time.Duration, n int) Source {
	return func(yield func(Request, error) bool) {
		for i := range n {
			if !yield(Request{At: time.Duration(i) * interval, PromptTokens: i + 1, OutputTokens: 1}, nil) {
				return
			}
		}
	}
}
