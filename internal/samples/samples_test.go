package samples

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parquet-go/parquet-go"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// random is a sample with every kind of value in it.
func random(rng *rand.Rand, at time.Time) predictor.Sample {
	s := predictor.Sample{
		At: at, Model: "llama", Backend: fmt.Sprint("gpu", rng.IntN(3)), Revision: "7",
		Regime: predictor.Regime(rng.IntN(int(predictor.Regimes))), Served: predictor.Kind(rng.IntN(int(predictor.Kinds))),
		TTFT: time.Duration(rng.Int64N(int64(time.Hour))), Censored: rng.IntN(4) == 0,
	}
	for i := range s.Features {
		s.Features[i] = rng.NormFloat64() * 1e3
		if rng.IntN(5) == 0 {
			s.Features[i] = math.NaN()
		}
	}
	for k := range s.Said {
		if rng.IntN(3) > 0 {
			p50 := time.Duration(1 + rng.Int64N(int64(time.Minute)))
			s.Said[k] = predictor.Prediction{P50: p50, P95: p50 * 2}
		}
	}
	return s
}

// some are n samples, a second apart.
func some(n int) []predictor.Sample {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	var all []predictor.Sample
	for i := range n {
		all = append(all, random(rng, epoch.Add(time.Duration(i)*time.Second)))
	}
	return all
}

// same compares samples, NaN being equal to NaN.
func same(a, b predictor.Sample) bool {
	for i := range a.Features {
		if math.IsNaN(a.Features[i]) && math.IsNaN(b.Features[i]) {
			a.Features[i], b.Features[i] = 0, 0
		}
	}
	return a.At.Equal(b.At) && reflect.DeepEqual(a, b)
}

func collect(t *testing.T, paths ...string) []predictor.Sample {
	t.Helper()
	var all []predictor.Sample
	for s, err := range Read(paths...) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

func write(t *testing.T, name string, all ...predictor.Sample) string {
	t.Helper()
	if err := WriteFile(name, slices.Values(all)); err != nil {
		t.Fatal(err)
	}
	return name
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// Every field of a sample survives, to the nanosecond and the last bit.
func TestReadGivesWhatWasWritten(t *testing.T) {
	want := some(3000)
	got := collect(t, write(t, filepath.Join(t.TempDir(), "a.parquet"), want...))
	if len(got) != len(want) {
		t.Fatalf("%d samples of %d", len(got), len(want))
	}
	for i := range want {
		if !same(got[i], want[i]) {
			t.Fatalf("sample %d: read\n%+v\nwritten\n%+v", i, got[i], want[i])
		}
	}
}

// Whoever adds a field to Sample must say how it is stored.
func TestEveryFieldHasAColumn(t *testing.T) {
	want := map[string]int{"At": 1, "Model": 1, "Backend": 1, "Revision": 1, "Regime": 1, "Served": 1, "TTFT": 1, "Censored": 1,
		"Features": len(predictor.Names()), "Said": 2 * int(predictor.Kinds)}
	columns := 0
	for i := range reflect.TypeFor[predictor.Sample]().NumField() {
		name := reflect.TypeFor[predictor.Sample]().Field(i).Name
		if want[name] == 0 {
			t.Errorf("field %s of predictor.Sample is not stored", name)
		}
		columns += want[name]
	}
	if columns != len(Columns()) {
		t.Errorf("%d columns, the fields of predictor.Sample need %d", len(Columns()), columns)
	}
}

func TestColumnNamesDiffer(t *testing.T) {
	all := Columns()
	slices.Sort(all)
	if len(slices.Compact(all)) != len(Columns()) {
		t.Errorf("two columns have one name: %v", Columns())
	}
}

// Samples come in the order of their times, whatever files they lie in.
func TestReadIsInTimeOrder(t *testing.T) {
	dir := t.TempDir()
	all := some(900)
	rng := rand.New(rand.NewPCG(1, 2))
	shuffled := slices.Clone(all)
	for i := 0; i+50 <= len(shuffled); i += 25 { // labels come late, by up to 50 places
		rng.Shuffle(50, func(a, b int) { shuffled[i+a], shuffled[i+b] = shuffled[i+b], shuffled[i+a] })
	}
	write(t, filepath.Join(dir, "c.parquet"), shuffled[:300]...)
	write(t, filepath.Join(dir, "a.parquet"), shuffled[300:600]...)
	extra := write(t, filepath.Join(t.TempDir(), "b.parquet"), shuffled[600:]...)
	got := collect(t, extra, dir)
	if len(got) != len(all) {
		t.Fatalf("%d samples of %d", len(got), len(all))
	}
	for i := range all {
		if !same(got[i], all[i]) {
			t.Fatalf("place %d has the sample of %v instead of %v", i, got[i].At, all[i].At)
		}
	}
}

func TestReadCanStop(t *testing.T) {
	for range Read(write(t, filepath.Join(t.TempDir(), "a.parquet"), some(10)...)) {
		break
	}
}

// foreign writes a file with other metadata or columns.
func foreign(t *testing.T, hash string, change func(parquet.Group)) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.parquet")
	out, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	group := parquet.Group{}
	for _, c := range columns() {
		group[c.name] = c.node
	}
	change(group)
	w := parquet.NewWriter(out, parquet.NewSchema("sample", group))
	w.SetKeyValueMetadata(schemaKey, hash)
	if err := errors.Join(w.Close(), out.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestReadRefuses(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.parquet")
	if err := os.WriteFile(text, []byte("at,model\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ours := predictor.SchemaHash()
	for name, row := range map[string]struct {
		path string
		want []string
	}{
		"another schema":   {foreign(t, "0123456789abcdef", func(parquet.Group) {}), []string{"x.parquet", "0123456789abcdef", ours, "move the file away"}},
		"a missing column": {foreign(t, ours, func(g parquet.Group) { delete(g, "kv_use") }), []string{"x.parquet", "column kv_use is missing"}},
		"another type":     {foreign(t, ours, func(g parquet.Group) { g["ttft"] = parquet.Int(64) }), []string{"x.parquet", "column ttft is INT"}},
		"another unit":     {foreign(t, ours, func(g parquet.Group) { g["at"] = parquet.Timestamp(parquet.Microsecond) }), []string{"column at", "NANOS"}},
		"a text":           {text, []string{"text.parquet", "no file of samples"}},
		"nothing there":    {filepath.Join(t.TempDir(), "none"), []string{"none", "no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range Read(row.path) {
				if err == nil {
					t.Fatal("was read")
				}
				for _, want := range row.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q does not say %q", err, want)
					}
				}
				return
			}
			t.Fatal("no error")
		})
	}
}

// FuzzRead: a damaged file gives an error or samples, never a panic.
func FuzzRead(f *testing.F) {
	name := filepath.Join(f.TempDir(), "a.parquet")
	if err := WriteFile(name, slices.Values(some(40))); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(name)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(0, byte(1), len(whole))
	f.Add(len(whole)-40, byte(255), len(whole))
	f.Add(len(whole)/2, byte(16), len(whole)-3)
	f.Fuzz(func(t *testing.T, at int, flip byte, size int) {
		text := slices.Clone(whole[:max(0, min(size, len(whole)))])
		if at >= 0 && at < len(text) {
			text[at] ^= flip
		}
		name := filepath.Join(t.TempDir(), "b.parquet")
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		n := 0
		for range Read(name) {
			if n++; n > 41 {
				t.Fatal("more samples than there are")
			}
		}
	})
}

func TestLogRotatesAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l, err := Open(dir, Limits{MaxFileRows: 10, MaxFiles: 3}, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		all := some(57)
		for i := range all {
			l.Write(&all[i])
			synctest.Wait()
			time.Sleep(time.Second)
		}
		l.Close()
		got := collect(t, dir)
		if len(got) != 27 || !same(got[0], all[30]) || !same(got[26], all[56]) {
			t.Errorf("%d samples are left, from %v; want the last 27", len(got), got[0].At)
		}
		if l.Written() != 57 || l.Dropped() != 0 || l.Failures() != 0 {
			t.Errorf("written %d, dropped %d, failures %d", l.Written(), l.Dropped(), l.Failures())
		}
	})
}

func TestLogKeepsWithinBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		one := write(t, filepath.Join(t.TempDir(), "a.parquet"), some(10)...)
		info, err := os.Stat(one)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range []struct {
			bytes int64
			want  int
		}{{1, 1}, {info.Size() * 7 / 2, 3}} {
			l, err := Open(dir, Limits{MaxFileRows: 10, MaxBytes: row.bytes}, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				for _, s := range some(10) {
					l.Write(&s)
				}
				synctest.Wait()
				time.Sleep(time.Second)
			}
			l.Close()
			if got := names(t, dir); len(got) != row.want {
				t.Errorf("MaxBytes %d of files of %d leave %v", row.bytes, info.Size(), got)
			}
		}
	})
}

// A file is completed at its age though nothing more comes.
func TestLogClosesOldFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l, err := Open(dir, Limits{MaxFileAge: time.Hour}, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		time.Sleep(50 * time.Minute)
		l.Write(&some(1)[0])
		time.Sleep(time.Hour - time.Second)
		if got := collect(t, dir); len(got) != 0 {
			t.Errorf("%d samples before the hour", len(got))
		}
		time.Sleep(2 * time.Second)
		if got := collect(t, dir); len(got) != 1 {
			t.Errorf("%d samples after the hour, want 1", len(got))
		}
	})
}

// What a kill leaves behind is no file of samples, and goes at the next start.
func TestOpenRemovesLeftovers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with [odd] name*")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.parquet"), some(5)...)
	f, err := create(filepath.Join(dir, "b.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.write(&some(1)[0]), f.out.Close()); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, dir); len(got) != 5 {
		t.Errorf("%d samples beside an unfinished file, want 5", len(got))
	}
	l, err := Open(dir, Limits{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if got := names(t, dir); !slices.Equal(got, []string{"a.parquet"}) {
		t.Errorf("left: %v", got)
	}
}

func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, Limits{}, zap.NewNop()); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file as directory: %v", err)
	}
	if _, err := Open(t.TempDir(), Limits{MaxFiles: -1}, zap.NewNop()); err == nil {
		t.Error("a limit below 0 is taken")
	}
}

// Write never waits: with the goroutine stuck, what does not fit is counted.
func TestWriteDropsWhenFull(t *testing.T) {
	l := &Log{queue: make(chan predictor.Sample, 3)}
	for _, s := range some(10) {
		l.Write(&s)
	}
	if l.Dropped() != 7 {
		t.Errorf("dropped %d, want 7", l.Dropped())
	}
}

func TestWriteAfterClose(t *testing.T) {
	l, err := Open(t.TempDir(), Limits{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	l.Close()
	l.Write(&some(1)[0])
	if l.Dropped() != 1 {
		t.Errorf("dropped %d, want 1", l.Dropped())
	}
}

func TestWriteAllocatesNothing(t *testing.T) {
	l := &Log{queue: make(chan predictor.Sample, 10_000)}
	s := some(1)[0]
	if n := testing.AllocsPerRun(1000, func() { l.Write(&s) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// A disk that fails costs samples and a log line a minute, and is used again.
func TestLogSurvivesTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, lines := observer.New(zap.ErrorLevel)
		dir := filepath.Join(t.TempDir(), "samples")
		l, err := Open(dir, Limits{}, zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		all := some(4)
		for i := range 3 { // 0 s and 61 s try the disk, 30 s does not
			l.Write(&all[i])
			synctest.Wait()
			time.Sleep(30*time.Second + 500*time.Millisecond)
		}
		if l.Failures() != 2 || l.Dropped() != 3 || lines.Len() != 2 {
			t.Errorf("failures %d, dropped %d, lines %d; want 2, 3, 2", l.Failures(), l.Dropped(), lines.Len())
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		l.Write(&all[3])
		l.Close()
		if got := collect(t, dir); len(got) != 1 || l.Written() != 1 {
			t.Errorf("%d samples after the disk came back, %d written", len(got), l.Written())
		}
	})
}

// Only the names of what predictions need are stored, nothing that a client wrote.
func TestRecord(t *testing.T) {
	s := some(1)[0]
	s.Features[predictor.KVUse] = math.NaN()
	s.Said[predictor.Linear] = predictor.Prediction{}
	row := map[string]string{}
	for i, name := range Columns() {
		row[name] = Record(&s)[i]
	}
	for name, want := range map[string]string{"at": "2026-11-30T12:00:00Z", "model": "llama", "kv_use": "", "linear_p50": "", "regime": s.Regime.String()} {
		if row[name] != want {
			t.Errorf("%s is %q, want %q", name, row[name], want)
		}
	}
}

// sequence is samples as Read gives them.
func sequence(all ...predictor.Sample) Sequence {
	return func(yield func(predictor.Sample, error) bool) {
		for _, s := range all {
			if !yield(s, nil) {
				return
			}
		}
	}
}

// said is a sample that took ttft, after the analytic estimator had said p50 and p95.
func said(p50, p95, ttft time.Duration, censored bool) predictor.Sample {
	s := predictor.Sample{At: epoch, Model: "m", Backend: "b", Regime: predictor.Busy, TTFT: ttft, Censored: censored}
	s.Said[predictor.Analytic] = predictor.Prediction{P50: p50, P95: p95}
	return s
}

func TestSummarise(t *testing.T) {
	const ms = time.Millisecond
	st, err := Summarise(sequence(
		said(100*ms, 200*ms, 100*ms, false), // exact
		said(100*ms, 200*ms, 200*ms, false), // 50 % off, just covered
		said(100*ms, 200*ms, 400*ms, false), // 75 % off, exceeded
		said(100*ms, 200*ms, 150*ms, true),  // above P50; whether above P95 is not known
		said(100*ms, 200*ms, 400*ms, true),  // above both
	))
	if err != nil {
		t.Fatal(err)
	}
	if st.Rows != 5 || st.Censored != 0.4 || st.Regimes["busy"] != 5 || st.Backends["b"] != 5 || st.TTFT.P50 != 0.2 || st.TTFT.Max != 0.4 {
		t.Errorf("%+v", st)
	}
	want := trees.Metrics{Rows: 5, MAPE: (0 + 0.5 + 0.75) / 3, MedianError: 0.5, Coverage: 2.0 / 4,
		Pinball: trees.Number((0.05*math.Ln2 + 0 + 2*0.95*math.Ln2) / 5)}
	for _, of := range []struct{ estimator, regime string }{{"analytic", "busy"}, {"analytic", "all"}, {"served", "all"}} {
		i := slices.IndexFunc(st.Estimators, func(j Judged) bool { return j.Estimator == of.estimator && j.Regime == of.regime })
		if i < 0 {
			t.Fatalf("%v is not judged", of)
		}
		got := st.Estimators[i].Metrics
		if got.Rows != want.Rows || !near(got.MAPE, want.MAPE) || !near(got.MedianError, want.MedianError) || !near(got.Coverage, want.Coverage) || !near(got.Pinball, want.Pinball) {
			t.Errorf("%v: %+v, want %+v", of, got, want)
		}
	}
	if _, err := Summarise(sequence()); !errors.Is(err, ErrNone) {
		t.Errorf("no samples: %v", err)
	}
}

func near(a, b trees.Number) bool { return math.Abs(float64(a-b)) < 1e-12 }

func TestDrift(t *testing.T) {
	const ms = time.Millisecond
	series := func(n, exceeded int) (all []predictor.Sample) {
		for i := range n {
			ttft := 100 * ms
			if i*exceeded/n != (i+1)*exceeded/n {
				ttft = 300 * ms
			}
			all = append(all, said(100*ms, 200*ms, ttft, false))
		}
		return all
	}
	for name, row := range map[string]struct {
		samples []predictor.Sample
		want    bool
	}{
		"healthy":                  {series(500, 25), false},
		"too few exceed":           {series(500, 2), true},
		"too many exceed":          {series(500, 60), true},
		"few samples":              {series(100, 100), false},
		"bad long ago":             {append(series(2000, 2000), series(500, 25)...), false},
		"healthy before, then bad": {append(series(2000, 100), series(500, 100)...), true},
	} {
		got, err := FindDrift(sequence(row.samples...), epoch.Add(-time.Second))
		if err != nil || got.Drifted != row.want {
			t.Errorf("%s: drifted is %v (%v)", name, got, err)
		}
	}
	if got, err := FindDrift(sequence(series(500, 60)...), epoch); err != nil || got.Drifted {
		t.Errorf("samples that had told already told again: %+v, %v", got, err)
	}
}
