package predict

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/models"
	"github.com/firsttoken/firsttoken/internal/samples"
	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// limit is for a step that hangs; no test depends on it otherwise.
const limit = 5 * time.Minute

// interpreter is the Python that has the trainer's packages.
func interpreter(t *testing.T) string {
	t.Helper()
	tools := os.Getenv("FIRSTTOKEN_PREDICT")
	if tools == "" {
		t.Skip("LightGBM is not installed: start these tests with test/predict/run")
	}
	if reason, err := os.ReadFile(filepath.Join(tools, "skip")); err == nil {
		t.Skip(string(reason))
	}
	return filepath.Join(tools, "python", "bin", "python")
}

// TestTrainersOwnTests runs the trainer's tests, which are in Python.
func TestTrainersOwnTests(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter(t), "-B", "-m", "unittest", "discover", "../../deploy/trainer")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// site is a place where a gateway left samples, and models are trained.
type site struct {
	t              *testing.T
	binary, python string
	dir            string
	store          *models.Store
}

func newSite(t *testing.T) *site {
	s := &site{t: t, python: interpreter(t), dir: t.TempDir()}
	s.binary = filepath.Join(s.dir, "firsttoken")
	build := exec.Command("go", "build", "-o", s.binary, "./cmd/gateway")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if err := os.Mkdir(s.path("samples"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.store = models.New(s.path("models"), predictor.Names(), predictor.SchemaHash())
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// command is firsttoken train, on a site.
func (s *site) command(args ...string) *exec.Cmd {
	args = append([]string{"train", "--samples", s.path("samples"), "--models", s.path("models"), "--cache", s.path("cache"), "--python", s.python}, args...)
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	s.t.Cleanup(cancel)
	return exec.CommandContext(ctx, s.binary, args...)
}

func (s *site) train(args ...string) string {
	s.t.Helper()
	out, err := s.command(args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("train: %v\n%s", err, out)
	}
	return string(out)
}

func (s *site) active() string {
	s.t.Helper()
	id, _, err := s.store.Active()
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// law is the median of log(TTFT / base) at a number of running sequences. The
// noise around it has deviation 0.1.
func law(running float64) float64 { return 0.4 * min(max((running-8)/4, 0), 1) }

// sample puts n samples into the log, a fifth of a second apart, shifted
// in the logarithm against the law.
func (s *site) sample(name string, from time.Time, n int, shift float64) {
	s.t.Helper()
	rng := rand.New(rand.NewPCG(7, uint64(n)))
	all := make([]predictor.Sample, n)
	for i := range all {
		all[i] = synthetic(rng, from.Add(time.Duration(i)*200*time.Millisecond), shift)
	}
	if err := samples.WriteFile(s.path("samples/"+name+".parquet"), slices.Values(all)); err != nil {
		s.t.Fatal(err)
	}
}

func synthetic(rng *rand.Rand, at time.Time, shift float64) predictor.Sample {
	x := predictor.Sample{At: at, Model: "llama", Backend: string(rune('a' + rng.IntN(3))), Revision: "1", Served: predictor.Analytic}
	for i := range x.Features {
		x.Features[i] = rng.Float64()
		if rng.IntN(10) == 0 {
			x.Features[i] = math.NaN()
		}
	}
	running := float64(rng.IntN(16))
	x.Features[predictor.Running] = running
	if running > 8 {
		x.Regime = predictor.Queued
	}
	base := 0.05 + rng.Float64()
	x.Features[predictor.Base] = base
	said := time.Duration(base * float64(time.Second))
	x.Said[predictor.Analytic] = predictor.Prediction{P50: said, P95: 2 * said}
	x.TTFT = time.Duration(base * math.Exp(law(running)+shift+0.1*rng.NormFloat64()) * float64(time.Second))
	if rng.IntN(50) == 0 {
		x.Censored, x.TTFT = true, time.Duration(float64(x.TTFT)*rng.Float64())
	}
	return x
}

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// The first model beats the analytic estimate and serves; the same again beats
// nothing; after the engines slowed down a new one does.
func TestTrain(t *testing.T) {
	s := newSite(t)
	s.sample("a", start, 6_000, 0)
	out := s.train("--once")
	first := s.active()
	if !strings.Contains(out, first+" is active") {
		t.Errorf("the output does not say that %s is active:\n%s", first, out)
	}
	s.follows(0)

	out = s.train("--seed", "1", "--window", "23h")
	if s.active() != first || !strings.Contains(out, "is published and not active: the loss is") {
		t.Errorf("%s is active, want %s; output:\n%s", s.active(), first, out)
	}

	s.sample("b", start.Add(30*time.Minute), 6_000, 0.5)
	out = s.train("--window", "20m")
	if s.active() == first {
		t.Fatalf("a model of how it was is still active; output:\n%s", out)
	}
	s.follows(0.5)
	if id, err := s.store.Rollback(); err != nil || id != first {
		t.Errorf("a rollback leads to %q (%v), want %s", id, err, first)
	}
	if left, _ := filepath.Glob(s.path("cache/run-*")); len(left) > 0 {
		t.Errorf("left in the cache: %v", left)
	}
}

// follows holds the active model to the law.
func (s *site) follows(shift float64) {
	s.t.Helper()
	_, bundle, err := s.store.Active()
	if err != nil {
		s.t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(8, 8))
	off, covered, n := 0.0, 0, 0
	for n < 2000 {
		x := synthetic(rng, start, shift)
		if x.Censored {
			continue
		}
		n++
		p50, p95, err := bundle.Predict(x.Features[:])
		if err != nil {
			s.t.Fatal(err)
		}
		off += math.Abs(p50 - law(x.Features[predictor.Running]) - shift)
		if x.TTFT.Seconds() <= x.Features[predictor.Base]*math.Exp(p95) {
			covered++
		}
	}
	if off /= float64(n); off > 0.04 {
		s.t.Errorf("P50 is off by %.3f in the mean, the law is within 0.04's reach", off)
	}
	if c := float64(covered) / float64(n); c < 0.93 || c > 0.97 {
		s.t.Errorf("P95 covers %.3f", c)
	}
}

func TestTrainSaysWhatIsMissing(t *testing.T) {
	s := newSite(t)
	for name, row := range map[string]struct {
		samples int
		args    []string
		want    string
	}{
		"no samples":          {0, nil, "has no files of samples"},
		"too few samples":     {300, nil, "usable samples, 2000 are needed"},
		"no such interpreter": {300, []string{"--python", "no-such-python"}, "no-such-python"},
		"a window of nothing": {300, []string{"--window", "0s"}, "--window"},
	} {
		t.Run(name, func(t *testing.T) {
			if row.samples > 0 {
				s.sample("a", start, row.samples, 0)
			} else {
				_ = os.Remove(s.path("samples/a.parquet")) // it may not be there
			}
			out, err := s.command(row.args...).CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte(row.want)) || bytes.Contains(out, []byte("Traceback")) {
				t.Errorf("%v, output:\n%s\nwant %q", err, out, row.want)
			}
		})
	}
	if _, _, err := s.store.Active(); !errors.Is(err, models.ErrNoActive) {
		t.Errorf("something is active: %v", err)
	}
}

// A kill -9 at any step leaves a directory of whole models, of which the old
// one serves; and the next training goes through.
func TestKillWhileTraining(t *testing.T) {
	s := newSite(t)
	s.sample("a", start, 6_000, 0)
	s.train()
	first := s.active()
	s.sample("b", start.Add(30*time.Minute), 6_000, 0.5)
	for _, line := range []string{"samples, ", "p50: ", "p95: ", "On the test window"} {
		t.Run(line, func(t *testing.T) {
			s.killAt(line)
			s.whole(t)
			if got := s.active(); got != first {
				t.Errorf("%s is active, want %s", got, first)
			}
		})
	}
	for range 2 { // at publication and activation, wherever it hits
		for _, line := range []string{"model 2", "The champion"} {
			s.killAt(line)
			s.whole(t)
			s.active()
		}
	}
	s.train("--window", "20m")
	if s.whole(t); s.active() == first {
		t.Error("the training after the kills activated nothing")
	}
	if left, _ := filepath.Glob(s.path("models/.tmp-*")); len(left) > 0 {
		t.Errorf("left after the next publication: %v", left)
	}
}

// Ctrl-C ends a training, and leaves nothing of it.
func TestInterrupt(t *testing.T) {
	s := newSite(t)
	s.sample("a", start, 6_000, 0)
	cmd := s.command()
	var problems bytes.Buffer
	cmd.Stderr = &problems
	s.at(cmd, "p50: ", os.Interrupt)
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(problems.String(), "stopped before the end") {
		t.Errorf("exit code %d, %s", cmd.ProcessState.ExitCode(), &problems)
	}
	if _, _, err := s.store.Active(); !errors.Is(err, models.ErrNoActive) {
		t.Errorf("something is active: %v", err)
	}
	left, _ := filepath.Glob(s.path("cache/*"))
	if published, _ := filepath.Glob(s.path("models/*")); len(left)+len(published) > 0 {
		t.Errorf("left: %v, %v", left, published)
	}
}

// killAt trains, and kills at a line of the output that holds a text.
func (s *site) killAt(text string) {
	s.t.Helper()
	s.at(s.command("--window", "20m"), text, os.Kill)
}

// at runs a command, and sends it a signal at a line of its output.
func (s *site) at(cmd *exec.Cmd, text string, signal os.Signal) {
	s.t.Helper()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	for lines.Scan() && !strings.Contains(lines.Text(), text) {
	}
	if err := cmd.Process.Signal(signal); err != nil {
		s.t.Errorf("it had ended before %q", text)
	}
	_, _ = io.Copy(io.Discard, pipe) // ends when the trainer has ended too
	_ = cmd.Wait()                   // the exit code says it
}

// whole checks that every model opens.
func (s *site) whole(t *testing.T) {
	t.Helper()
	entries, err := s.store.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Err != nil {
			t.Errorf("half a model: %v", e.Err)
		}
	}
}
