package backends_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

var nan = math.NaN()

// reading is what one scrape is expected to say; hits as a backend makes them
// of its first scrape.
type reading struct{ running, waiting, kv, hits, start float64 }

func (want reading) check(t *testing.T, kind backends.Kind, text io.Reader) {
	t.Helper()
	s, err := backends.ParseSignals(kind, text)
	if err != nil {
		t.Fatal(err)
	}
	b := testPool(spec("a")).Backends[0]
	s.At = t0
	b.SetSignals(s)
	s = b.Signals()
	got := reading{s.Running, s.Waiting, s.KVUse, s.PrefixHitRatio, s.StartTime}
	for _, v := range []struct {
		name      string
		got, want float64
	}{
		{"running", got.running, want.running}, {"waiting", got.waiting, want.waiting}, {"KV use", got.kv, want.kv},
		{"prefix hits", got.hits, want.hits}, {"start time", got.start, want.start},
	} {
		if v.got != v.want && !(math.IsNaN(v.got) && math.IsNaN(v.want)) {
			t.Errorf("%s %v, want %v", v.name, v.got, v.want)
		}
	}
	if !math.IsNaN(s.CPU) {
		t.Errorf("CPU use %v after one scrape, want unknown", s.CPU)
	}
}

// samples are written for these tests, in the form each engine prints.
var samples = map[string]struct {
	kind backends.Kind
	want reading
}{
	"vllm.txt":               {backends.VLLM, reading{3, 2, .25, .4, 1.9e9}},
	"vllm_two_engines.txt":   {backends.VLLM, reading{8, 4, .375, .25, nan}},
	"vllm_v0.txt":            {backends.VLLM, reading{1, 6, .75, .125, nan}},
	"vllm_both_names.txt":    {backends.VLLM, reading{1, nan, .5, .5, nan}},
	"sglang_ranks.txt":       {backends.SGLang, reading{8, 13, .5, .5, nan}},
	"sglang_priority.txt":    {backends.SGLang, reading{5, 1, nan, .25, nan}},
	"sglang_underscores.txt": {backends.SGLang, reading{4, 1, .5, .25, nan}},
	"tgi.txt":                {backends.TGI, reading{6, 2, nan, nan, nan}},
	"trtllm.txt":             {backends.TRTLLM, reading{7, 1, .5, .75, nan}},
	"trtllm_triton.txt":      {backends.TRTLLM, reading{5, 3, .25, nan, nan}},
	"llamacpp.txt":           {backends.LlamaCpp, reading{2, 1, nan, .25, nan}},
	"llamacpp_old.txt":       {backends.LlamaCpp, reading{1, 0, .5, nan, nan}},
	"llamacpp_json.txt":      {backends.LlamaCpp, reading{3, 0, nan, nan, nan}},
	"generic.txt":            {backends.Generic, reading{nan, nan, nan, nan, 1.9e9}},
}

func TestParseSignals(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) != len(samples) {
		t.Fatalf("%d samples, %d expected: %v", len(files), len(samples), err)
	}
	for name, tt := range samples {
		t.Run(name, func(t *testing.T) {
			text := readFile(t, filepath.Join("testdata", name))
			tt.want.check(t, tt.kind, bytes.NewReader(text))
			tt.want.check(t, tt.kind, iotest.OneByteReader(bytes.NewReader(text)))
			tt.want.check(t, tt.kind, bytes.NewReader(bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))))
		})
	}
}

func TestCacheSize(t *testing.T) {
	const info = `vllm:cache_config_info{cache_dtype="auto",`
	for name, c := range map[string]struct {
		kind backends.Kind
		text string
		want float64
	}{
		"vllm":               {backends.VLLM, info + `block_size="16",num_gpu_blocks="27000"} 1`, 432_000},
		"two engines":        {backends.VLLM, info + `engine="0",block_size="16",num_gpu_blocks="100"} 1` + "\n" + info + `engine="1",block_size="16",num_gpu_blocks="200"} 1`, 4800},
		"not known yet":      {backends.VLLM, info + `block_size="16",num_gpu_blocks="None"} 1`, nan},
		"no block size":      {backends.VLLM, info + `num_gpu_blocks="10"} 1`, nan},
		"nothing":            {backends.VLLM, info + `block_size="16",num_gpu_blocks="0"} 1`, nan},
		"below nothing":      {backends.VLLM, info + `block_size="-16",num_gpu_blocks="-10"} 1`, nan},
		"no number":          {backends.VLLM, info + `block_size="NaN",num_gpu_blocks="Inf"} 1`, nan},
		"too much":           {backends.VLLM, info + `block_size="1e300",num_gpu_blocks="1e300"} 1`, nan},
		"sglang":             {backends.SGLang, `sglang:max_total_num_tokens{model_name="m"} 256000`, 256_000},
		"sglang, two shards": {backends.SGLang, "sglang_max_total_num_tokens{tp_rank=\"0\",dp_rank=\"0\"} 10\nsglang_max_total_num_tokens{tp_rank=\"1\",dp_rank=\"0\"} 10", 10},
		"llama.cpp":          {backends.LlamaCpp, "llamacpp:requests_processing 1", nan},
	} {
		s, err := backends.ParseSignals(c.kind, strings.NewReader(c.text+"\nvllm:num_requests_running 1\n"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s.CacheTokens != c.want && !(math.IsNaN(s.CacheTokens) && math.IsNaN(c.want)) {
			t.Errorf("%s: %v tokens, want %v", name, s.CacheTokens, c.want)
		}
	}
	for file, want := range map[string]float64{"vllm_0.32_cpu_capture.txt": 524_288, "vllm_v0_kubeai.txt": 4574 * 16} {
		s, err := backends.ParseSignals(backends.VLLM, bytes.NewReader(readFile(t, filepath.Join(captures(t), file))))
		if err != nil || s.CacheTokens != want {
			t.Errorf("%s: %v tokens, want %v (%v)", file, s.CacheTokens, want, err)
		}
	}
}

// TestParseCaptures reads what real engines printed.
func TestParseCaptures(t *testing.T) {
	dir := captures(t)
	want := map[string]struct {
		kind backends.Kind
		want reading
	}{
		"vllm_0.32_cpu_capture.txt":         {backends.VLLM, reading{0, 0, 0, 1792. / 8361, 1.79606581281e9}},
		"vllm_v0_kubeai.txt":                {backends.VLLM, reading{3, 5, 0.0026235242675994863, nan, 1.72365683894e9}},
		"vllm_v1_names_datadog_excerpt.txt": {backends.VLLM, reading{0, 0, 0, 64. / 117, nan}},
		"sglang_saturated_docs.txt":         {backends.SGLang, reading{162, 2826, .28, 0.007507552643049313, nan}},
		"tgi_datadog_excerpt.txt":           {backends.TGI, reading{0, 0, nan, nan, nan}},
		"llamacpp_2026_capture.txt":         {backends.LlamaCpp, reading{0, 0, nan, 6561. / (6561 + 6843), nan}},
		"llamacpp_reconstructed.txt":        {backends.LlamaCpp, reading{1, 0, nan, nan, nan}},
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		t.Run(f.Name(), func(t *testing.T) {
			tt, known := want[f.Name()]
			if !known {
				t.Skip("no expectation is written down for this file")
			}
			tt.want.check(t, tt.kind, bytes.NewReader(readFile(t, filepath.Join(dir, f.Name()))))
		})
	}
}

// captures is the folder of engines' recorded metrics; the test is skipped
// where it is absent.
func captures(t testing.TB) string {
	t.Helper()
	root := os.Getenv("FIRSTTOKEN_DATA")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared", "data") // beside the module
	}
	dir := filepath.Join(root, "metrics")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("recorded metrics are absent (FIRSTTOKEN_DATA): %v", err)
	}
	return dir
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestParseSignalsOddities(t *testing.T) {
	const running, waiting = "vllm:num_requests_running", "vllm:num_requests_waiting"
	for name, tt := range map[string]struct {
		text string
		want reading
	}{
		"no labels, a timestamp":   {running + " 4 1900000000000\n", reading{4, nan, nan, nan, nan}},
		"no last newline":          {running + " 4", reading{4, nan, nan, nan, nan}},
		"not a number":             {running + " NaN\n" + waiting + " 1\n", reading{nan, 1, nan, nan, nan}},
		"nan beside a number":      {running + "{engine=\"0\"} nan\n" + running + "{engine=\"1\"} 2\n", reading{2, nan, nan, nan, nan}},
		"infinite":                 {running + " +Inf\n" + waiting + " 1\n", reading{nan, 1, nan, nan, nan}},
		"negative is switched off": {"vllm:gpu_prefix_cache_hit_rate -1\n" + waiting + " 1\n", reading{nan, 1, nan, nan, nan}},
		"a share above all":        {"vllm:kv_cache_usage_perc 1.0000001\n", reading{nan, nan, 1, nan, nan}},
		"queries without hits":     {"vllm:prefix_cache_queries_total 10\n" + waiting + " 1\n", reading{nan, 1, nan, nan, nan}},
		"no queries yet":           {"vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\n" + waiting + " 1\n", reading{nan, 1, nan, nan, nan}},
		"a type twice":             {"# TYPE " + running + " gauge\n# TYPE " + running + " gauge\n" + running + " 1\n", reading{1, nan, nan, nan, nan}},
		"escaped label":            {running + `{model_name="a\"b,c=\"d\\"} 3` + "\n", reading{3, nan, nan, nan, nan}},
		"both spellings":           {running + " 3\nvllm_num_requests_running 3\n", reading{3, nan, nan, nan, nan}},
		"end of file mark":         {running + " 3\n# EOF\n", reading{3, nan, nan, nan, nan}},
		"other lines are garbage":  {"<<< % {{{ \n" + running + " 3\n}\x00\xff\n", reading{3, nan, nan, nan, nan}},
	} {
		t.Run(name, func(t *testing.T) { tt.want.check(t, backends.VLLM, strings.NewReader(tt.text)) })
	}
}

func TestParseSignalsErrors(t *testing.T) {
	broken := errors.New("broken")
	const good = "vllm:num_requests_running 1\n"
	for name, tt := range map[string]struct {
		text io.Reader
		is   error // nil: any other error than ErrNoSignals
	}{
		"empty":            {strings.NewReader(""), backends.ErrNoSignals},
		"HTML":             {strings.NewReader("<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n"), backends.ErrNoSignals},
		"JSON":             {strings.NewReader(`{"detail":"Not Found"}`), backends.ErrNoSignals},
		"another engine":   {strings.NewReader("sglang:num_running_reqs 1\n"), backends.ErrNoSignals},
		"only not numbers": {strings.NewReader("vllm:num_requests_running nan\n"), backends.ErrNoSignals},
		"broken value":     {strings.NewReader("vllm:num_requests_running x\n"), nil},
		"broken labels":    {strings.NewReader("vllm:num_requests_running{engine= 1\n"), nil},
		"broken JSON":      {strings.NewReader(`"vllm:num_requests_running 1\n`), nil},
		"lost connection":  {io.MultiReader(strings.NewReader(good), iotest.ErrReader(broken)), broken},
		"endless line":     {io.MultiReader(strings.NewReader(good), endless("x")), nil},
		"endless lines":    {io.MultiReader(strings.NewReader(good), endless("# "+strings.Repeat("x", 1000)+"\n")), nil},
		"endless JSON":     {io.MultiReader(strings.NewReader(`"`), endless("vllm:num_requests_running 1\\n")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := backends.ParseSignals(backends.VLLM, tt.text)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) || tt.is == nil && errors.Is(err, backends.ErrNoSignals) {
				t.Errorf("error %v, want %v", err, tt.is)
			}
			if err != nil && !math.IsNaN(s.Running) {
				t.Errorf("running %v beside an error", s.Running)
			}
		})
	}
}

// endless repeats s for ever.
type endless string

func (s endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		n += copy(p[n:], s)
	}
	return n, nil
}

// TestRatesAndRatios: cumulative counters are compared with the scrape before.
func TestRatesAndRatios(t *testing.T) {
	b := testPool(spec("a")).Backends[0]
	scrape := func(seconds float64, text string) backends.Signals {
		t.Helper()
		s, err := backends.ParseSignals(backends.VLLM, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		s.At = after(seconds)
		b.SetSignals(s)
		return b.Signals()
	}
	if s := b.Signals(); !s.At.IsZero() || s.Age(t0) != math.MaxInt64 || !math.IsNaN(s.Running) {
		t.Errorf("before the first scrape: %+v, age %v", s, s.Age(t0))
	}
	for i, step := range []struct {
		seconds float64
		text    string
		hits    float64
		cpu     float64
	}{
		{0, "vllm:prefix_cache_hits_total 50\nvllm:prefix_cache_queries_total 100\nprocess_cpu_seconds_total 10\n", .5, nan},
		{2, "vllm:prefix_cache_hits_total 60\nvllm:prefix_cache_queries_total 200\nprocess_cpu_seconds_total 13\n", .1, 1.5},
		{4, "vllm:prefix_cache_hits_total 60\nvllm:prefix_cache_queries_total 200\nprocess_cpu_seconds_total 13\n", .1, 0},
		{5, "vllm:prefix_cache_hits_total 100\nvllm:prefix_cache_queries_total 240\n", 1, nan},
		{8, "vllm:num_requests_running 1\nprocess_cpu_seconds_total 19\n", nan, 1.5},
		// the engine restarted
		{9, "vllm:prefix_cache_hits_total 1\nvllm:prefix_cache_queries_total 4\nprocess_cpu_seconds_total 1\n", .25, nan},
		{10, "vllm:prefix_cache_hits_total 3\nvllm:prefix_cache_queries_total 8\nprocess_cpu_seconds_total 2\n", .5, 1},
		// it restarted and soon had more queries than before
		{11, "vllm:prefix_cache_hits_total 2\nvllm:prefix_cache_queries_total 10\nprocess_cpu_seconds_total 3\n", .2, 1},
		{11, "vllm:num_requests_running 1\nprocess_cpu_seconds_total 4\n", nan, nan}, // no time passed
	} {
		s := scrape(step.seconds, step.text)
		same := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 || math.IsNaN(a) && math.IsNaN(b) }
		if !same(s.PrefixHitRatio, step.hits) || !same(s.CPU, step.cpu) {
			t.Errorf("step %d: hits %v, CPU %v, want %v and %v", i, s.PrefixHitRatio, s.CPU, step.hits, step.cpu)
		}
	}
	if got := b.Signals().Age(after(12)); got != time.Second {
		t.Errorf("age %v, want 1s", got)
	}
}

func FuzzParseSignals(f *testing.F) {
	for name, s := range samples {
		f.Add(string(s.kind), readFile(f, filepath.Join("testdata", name)))
	}
	f.Add("vllm", []byte("vllm:num_requests_running 1e308\nvllm:num_requests_running{a=\"\"} 1e308\n"))
	f.Add("vllm", []byte("vllm:num_requests_waiting 1e18\nvllm:num_requests_swapped 1e18\nvllm:kv_cache_usage_perc -0\n"))
	f.Fuzz(func(t *testing.T, kind string, text []byte) {
		before := bytes.Clone(text)
		s, err := backends.ParseSignals(backends.Kind(kind), bytes.NewReader(text))
		if !bytes.Equal(before, text) {
			t.Fatal("the input was changed")
		}
		b := testPool(spec("a")).Backends[0]
		for i := range 2 {
			s.At = after(float64(i))
			b.SetSignals(s)
		}
		got, known := b.Signals(), 0
		for name, v := range map[string]struct{ value, most float64 }{
			"running": {got.Running, math.MaxFloat64}, "waiting": {got.Waiting, math.MaxFloat64}, "KV use": {got.KVUse, 1},
			"prefix hits": {got.PrefixHitRatio, 1}, "CPU": {got.CPU, math.MaxFloat64}, "start": {got.StartTime, math.MaxFloat64},
		} {
			if math.IsNaN(v.value) {
				continue
			}
			known++
			if v.value < 0 || v.value > v.most {
				t.Errorf("%s is %v", name, v.value)
			}
		}
		if err != nil && known > 0 {
			t.Errorf("%d values beside the error %v", known, err)
		}
		again, errAgain := backends.ParseSignals(backends.Kind(kind), iotest.HalfReader(bytes.NewReader(text)))
		if (err == nil) != (errAgain == nil) || math.Float64bits(again.Running) != math.Float64bits(s.Running) {
			t.Errorf("read in other pieces: %v, %v, want %v, %v", again.Running, errAgain, s.Running, err)
		}
	})
}

func BenchmarkParseSignals(b *testing.B) {
	for name, file := range map[string]func(testing.TB) []byte{
		"sample": func(t testing.TB) []byte { return readFile(t, "testdata/vllm.txt") },
		"capture": func(t testing.TB) []byte {
			return readFile(t, filepath.Join(captures(t), "vllm_0.32_cpu_capture.txt"))
		},
	} {
		b.Run(name, func(b *testing.B) {
			text := file(b)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := backends.ParseSignals(backends.VLLM, bytes.NewReader(text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
