package trace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const (
	azureExample = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n"

	mooncakeExample = `{"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 3]}
{"timestamp": 0, "input_length": 512, "output_length": 5, "hash_ids": [4]}
{"timestamp": 1000, "input_length": 100, "output_length": 5, "hash_ids": []}
{"timestamp": 9000, "input_length": 100, "output_length": 5, "hash_ids": [5]}
{"timestamp": 9000, "input_length": 100, "output_length": 5, "hash_ids": [5]}
`
	lengthsExample = "num_prefill_tokens,num_decode_tokens\n74,918\n290,905\n"

	ratesExample = `client,t,rate,cv,pattern,p1,p2
a,1000,2,1,Gamma,0.5,1
b,1000,1,1,Weibull,0.8,1
a,1600,0.5,1,Gamma,0.9,1
c,1600,1,0.5,,,
`
	clientLengthsExample = `client,t,in_mean,in_p10,in_p50,in_p90,in_p99,out_mean,out_p10,out_p50,out_p90,out_p99
a,1000,100,50,100,150,200,10,5,10,15,20
b,1000,1000,900,1000,1100,1200,100,90,100,110,120
`
	accessLogExample = `{"level":"info","time":"2026-03-01T12:00:00Z","msg":"listening","addr":":8080"}
{"level":"info","time":"2026-03-01T12:00:03.5Z","msg":"request","endpoint":"chat_completions","model":"m","status":200,"stream":true,"duration_ms":500,"prompt_tokens_estimate":90,"chunks":12,"prompt_tokens":100,"completion_tokens":20}
{"level":"info","time":"2026-03-01T12:00:04Z","msg":"request","endpoint":"chat_completions","model":"m","status":200,"stream":false,"duration_ms":3000.5,"prompt_tokens_estimate":80,"chunks":30}
{"level":"info","time":"2026-03-01T12:00:05Z","msg":"request","endpoint":"chat_completions","model":"m","status":429,"duration_ms":0,"prompt_tokens_estimate":70}
{"level":"info","time":"2026-03-01T12:00:05Z","msg":"request","endpoint":"chat_completions","model":"m","status":400,"duration_ms":0,"prompt_tokens_estimate":70}
{"level":"info","time":"2026-03-01T12:00:05Z","msg":"request","request_id":"req_1","method":"GET","path":"/v1/models","status":200}
{"level":"info","time":"2026-03-01T12:00:06Z","msg":"request","endpoint":"embeddings","tenant":"x","model":"e","status":200,"duration_ms":10,"prompt_tokens_estimate":60,"prompt_tokens":64}
`
)

func servegen(t *testing.T, o Options) Source {
	t.Helper()
	s, err := open(memory{"x_rates.csv": ratesExample, "x_lengths.csv": clientLengthsExample}.file("x_rates.csv"), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDetect(t *testing.T) {
	for content, want := range map[string]Format{
		azureExample: Azure, mooncakeExample: Mooncake, ratesExample: ServeGen, lengthsExample: Lengths, accessLogExample: AccessLog,
		"\ufeff" + azureExample: Azure, "\n\n" + mooncakeExample: Mooncake,
		clientLengthsExample: "", "": "", "{}": "", "a,b\n1,2\n": "", "{\"timestamp\n": "",
	} {
		if got, ok := Detect([]byte(content)); got != want || ok != (want != "") {
			t.Errorf("%.30q is %q, want %q", content, got, want)
		}
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(path, []byte(azureExample), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(collect(t, s)) + len(collect(t, s)); n != 4 {
		t.Errorf("two ranges over two requests give %d", n)
	}
	if _, err := Open(path+".gone", Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Open(t.TempDir(), Options{}); err == nil {
		t.Error("a folder passes")
	}
}

func TestAzure(t *testing.T) {
	want := []Request{
		{PromptTokens: 4808, OutputTokens: 10, Stream: true},
		{At: 52 * time.Millisecond, PromptTokens: 3180, OutputTokens: 8, Stream: true},
	}
	for name, content := range map[string]string{
		"2023":    azureExample,
		"marked":  "\ufeff" + azureExample,
		"2024":    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,4808,10\n2024-05-10 00:00:00.061930+00:00,3180,8",
		"columns": "GeneratedTokens,x,TIMESTAMP,ContextTokens\n10,y,2023-11-16 18:17:03,4808\n8,\"y,\",2023-11-16 18:17:03.052,3180\n",
	} {
		if got := collect(t, read(t, content, Options{})); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestMooncakeBunchesAreSpread(t *testing.T) {
	got := collect(t, read(t, mooncakeExample, Options{Seed: 1}))
	if len(got) != 6 || !sorted(got) {
		t.Fatalf("%d requests, sorted %v", len(got), sorted(got))
	}
	for i, limit := range [][2]time.Duration{{0, 1000}, {0, 1000}, {0, 1000}, {1000, 1001}, {9000, 12000}, {9000, 12000}} {
		if at := got[i].At / time.Millisecond; at < limit[0] || at >= limit[1] {
			t.Errorf("request %d arrives at %v", i, got[i].At)
		}
	}
	if got[0].At == got[1].At || got[0].At == 0 {
		t.Error("the bunch is not spread")
	}
	if got[0].PromptTokens != 1100 || got[1].PromptTokens != 1030 || got[2].PromptTokens != 512 {
		t.Error("the order within the bunch changed")
	}
}

func TestMooncakePrefixes(t *testing.T) {
	got := collect(t, read(t, mooncakeExample, Options{}))
	blocks := func(i int) []uint64 { return got[i].AppendBlocks(nil) }
	a, b := blocks(0), blocks(1)
	if len(a) != 1100/16 || len(b) != 1030/16 || len(blocks(3)) != 0 {
		t.Fatalf("%d, %d and %d blocks", len(a), len(b), len(blocks(3)))
	}
	if a[63] != b[63] {
		t.Error("two common ids are not 64 common blocks")
	}
	if blocks(4)[5] != blocks(5)[5] {
		t.Error("a last part of one id is not shared")
	}
}

func TestServeGen(t *testing.T) {
	all := collect(t, servegen(t, Options{Scale: 50}))
	n, small := map[string]int{}, 0
	for _, r := range all {
		n[r.Tenant]++
		if r.At >= 600*time.Second {
			n[r.Tenant+" later"]++
		}
		if r.Tenant == "client-a" && (r.PromptTokens > 400 || r.OutputTokens > 40) {
			t.Fatalf("client a asks for %d and %d tokens", r.PromptTokens, r.OutputTokens)
		}
		if r.Tenant == "client-c" && r.PromptTokens < 400 {
			small++
		}
	}
	if !sorted(all) || all[len(all)-1].At >= 1200*time.Second {
		t.Errorf("arrivals sorted %v, up to %v", sorted(all), all[len(all)-1].At)
	}
	near(t, "a", float64(n["client-a"]), 50*(600*2+600*0.5), 0.03)
	near(t, "a later", float64(n["client-a later"]), 50*600*0.5, 0.03)
	near(t, "b", float64(n["client-b"]), 50*600, 0.03)
	near(t, "c", float64(n["client-c"]), 50*600, 0.03)
	near(t, "c's draws from a", float64(small), 50*600/2, 0.03)
	if n["client-b later"] != 0 || n["client-c"] != n["client-c later"] {
		t.Error("arrivals outside of a client's windows")
	}
}

func TestLengthsArriveByTheLaw(t *testing.T) {
	got := collect(t, read(t, lengthsExample, Options{Law: Constant(4)}))
	want := []Request{
		{At: 250 * time.Millisecond, PromptTokens: 74, OutputTokens: 918, Stream: true},
		{At: 500 * time.Millisecond, PromptTokens: 290, OutputTokens: 905, Stream: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got := collect(t, read(t, azureExample, Options{Law: Constant(4)})); got[1].At != 500*time.Millisecond {
		t.Error("a law does not replace recorded arrivals")
	}
}

func TestAccessLog(t *testing.T) {
	got := collect(t, read(t, accessLogExample, Options{}))
	want := []Request{ // the longest arrived first
		{At: 0, Model: "m", PromptTokens: 80, OutputTokens: 30},
		{At: 2000500 * time.Microsecond, Model: "m", PromptTokens: 100, OutputTokens: 20, Stream: true},
		{At: 4000500 * time.Microsecond, Model: "m", PromptTokens: 70, OutputTokens: 30}, // refused: the median's
		{At: 4990500 * time.Microsecond, Tenant: "x", Model: "e", PromptTokens: 64},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestFaultsNameTheirPlaceAndFix has one row for each thing a file can get wrong.
func TestFaultsNameTheirPlaceAndFix(t *testing.T) {
	const azureHead, moon = "TIMESTAMP,ContextTokens,GeneratedTokens\n", `{"timestamp": 5, "input_length": 10, "output_length": 1, "hash_ids": [1]}` + "\n"
	long := strings.Repeat("9", 100)
	logLine := `{"level":"info","time":"2026-03-01T12:00:00Z","msg":"request","endpoint":"chat_completions",`
	for _, c := range []struct{ name, content, want string }{
		{"unknown", "a,b\n", "t:1: is no trace that is known; give an Azure"},
		{"empty", "", "t:1: is no trace"},
		{"no rows", azureHead, "t:1: holds no requests; give a trace of at least one"},
		{"no column", "TIMESTAMP,XContextTokens,GeneratedTokens\n", "t:1: ContextTokens: no such column; the header needs TIMESTAMP, ContextTokens"},
		{"no time", azureHead + "2023-11-16 18:17:03.9,1,1\nyesterday,1,1\n", `t:3:1: TIMESTAMP: "yesterday" is not a time; write it as`},
		{"no number", azureHead + "2023-11-16 18:17:03.9,12x,1\n", `t:2:23: ContextTokens: "12x" is not a whole number; give a count of tokens`},
		{"no prompt", azureHead + "2023-11-16 18:17:03.9,0,1\n", `t:2:23: ContextTokens: "0" is out of range; give 1 to 1073741824 tokens`},
		{"negative", azureHead + "2023-11-16 18:17:03.9,1,-1\n", `t:2:25: GeneratedTokens: "-1" is out of range`},
		{"huge", azureHead + "2023-11-16 18:17:03.9,1," + long + "\n", `t:2:25: GeneratedTokens: "` + long[:60] + `..." is not a whole number`},
		{"unsorted", azureHead + "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02,1,1\n", `t:3:1: TIMESTAMP: "2023-11-16 18:17:02" is before the row above; sort`},
		{"short row", azureHead + "2023-11-16 18:17:03,1\n", "t:2:1: wrong number of fields; give as many fields as the header has"},
		{"quotes", azureHead + "2023-11-16 18:17:03,1,\"1\n", "t:2:26: extraneous or missing"},

		{"cut", moon + moon[:40], "t:2:41: is not valid JSON; correct or delete the line"},
		{"wrong type", moon + `{"timestamp": 5, "input_length": "10", "output_length": 1}`, "t:2:34: input_length: is a string that does not fit; give a value of type int"},
		{"wrong id", moon + `{"timestamp": 5, "input_length": 10, "output_length": 1, "hash_ids": [1, -2]}`, "t:2:74: hash_ids.1: is a number that does not fit; give a value of type uint64"},
		{"no timestamp", moon + `{"input_length": 10, "output_length": 1}`, "t:2:1: timestamp: is missing; give milliseconds"},
		{"late timestamp", moon + `{"timestamp": 1e200, "input_length": 10, "output_length": 1}`, "t:2:2: timestamp: 1e+200 is out of range"},
		{"back in time", moon + `{"timestamp": 4, "input_length": 10, "output_length": 1}`, "t:2:2: timestamp: is before the line above; sort"},
		{"no input", moon + "\n" + `{"timestamp": 5, "output_length": 1}`, "t:3:1: input_length: 0 is out of range; give 1 to"},

		{"no duration", logLine + `"status":200}`, "t:1:1: duration_ms: is missing; give the gateway's access log"},
		{"bad time", strings.Replace(accessLogExample, "12:00:05Z", "noon", 1), "t:4:24: time: is a string that does not fit; give a value of type time.Time"},
		{"negative duration", logLine + `"status":200,"duration_ms":-3}`, "t:1:106: duration_ms: -3 is out of range"},
		{"only events", strings.Split(accessLogExample, "\n")[0], "t:1: holds no requests"},

		{"no law", lengthsExample, "t: has lengths but no arrivals; give an arrival law"},
	} {
		s, err := open(memory{"t": c.content}.file("t"), Options{})
		if err == nil {
			_, err = s.Collect()
		}
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s:\n got %v\nwant %s", c.name, err, c.want)
		}
		if fault := (*Error)(nil); !errors.As(err, &fault) || fault.File != "t" || fault.Fix == "" {
			t.Errorf("%s: %#v lacks the file or the fix", c.name, err)
		}
	}
}

func TestServeGenFaults(t *testing.T) {
	for _, c := range []struct{ name, rates, lengths, want string }{
		{"no law", strings.Replace(ratesExample, "Weibull", "Pareto", 1), clientLengthsExample, `x_rates.csv:3:12: pattern: "Pareto" is no law; write Gamma`},
		{"no rate", strings.Replace(ratesExample, "a,1600,0.5", "a,1600,fast", 1), clientLengthsExample, `x_rates.csv:4:8: rate: "fast" is not a number`},
		{"unsorted", strings.Replace(ratesExample, "a,1600", "a,1000", 1), clientLengthsExample, `x_rates.csv:4:3: t: "1000" is not after the client's row before; sort`},
		{"no lengths", ratesExample, strings.Split(clientLengthsExample, "\n")[0], "x_lengths.csv:1: holds no lengths; give a row"},
		{"falling", ratesExample, strings.Replace(clientLengthsExample, "50,100,150,200", "50,100,90,200", 1), `x_lengths.csv:2:19: in_p90: "90" is below the quantile before it`},
	} {
		s, err := open(memory{"x_rates.csv": c.rates, "x_lengths.csv": c.lengths}.file("x_rates.csv"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Collect(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s:\n got %v\nwant %s", c.name, err, c.want)
		}
	}
	s, err := open(memory{"x_rates.csv": ratesExample}.file("x_rates.csv"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.Collect(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "x_lengths.csv") {
		t.Errorf("without lengths: %v", err)
	}
	if _, err = servegen(t, Options{Scale: -1}).Collect(); err == nil {
		t.Error("a negative scale passes")
	}
}
