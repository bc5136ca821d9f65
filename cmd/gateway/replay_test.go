package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
)

var update = flag.Bool("update", false, "rewrite testdata/replay.txt")

// replayFiles writes profiles, fleets and traces; their paths are relative to
// the folder it gives.
func replayFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	profile := "model: p\ngpu: none\nprice_per_hour: %s\nparams: {step: {t0: %s, alpha: 100, beta: 500, gamma: 0.01}, kv_blocks: 4000, max_model_len: 8000}\n"
	var csv strings.Builder
	csv.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	start := time.Date(2023, 11, 16, 18, 0, 0, 0, time.UTC)
	for i := range 120 {
		at := start.Add(time.Duration(i)*250*time.Millisecond + time.Duration(i*i%97)*time.Millisecond)
		fmt.Fprintf(&csv, "%s,%d,%d\n", at.Format("2006-01-02 15:04:05.0000000"), 50+(i*i*37)%900, 1+(i*53)%60)
	}
	for name, text := range map[string]string{
		"fast.yaml":   fmt.Sprintf(profile, "2", "5ms"),
		"slow.yaml":   fmt.Sprintf(profile, "1", "15ms"),
		"two.yaml":    "engines:\n  - {name: fast, profile: ./fast.yaml, model: m}\n  - {name: slow, profile: ./slow.yaml, model: m}\n",
		"broken.yaml": "engines:\n  - {name: fast, profile: ./fast.yaml, model: m}\nfaults:\n  - {at: 1s, engine: fast, kind: hang}\n",
		"crash.yaml":  "engines:\n  - {name: a, profile: ./fast.yaml, model: m, count: 2}\nfaults:\n  - {at: 5s, engine: a-1, kind: crash, for: 10s}\n",
		"models.yaml": "engines:\n  - {name: x, profile: ./fast.yaml, model: x}\n  - {name: y, profile: ./fast.yaml, model: y, max_model_len: 500}\n",
		"wrong.yaml":  "engines:\n  - {name: fast, profile: ./fats.yaml}\n",
		"trace.csv":   csv.String(),
		"bad.csv":     "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0,10,1\n2023-11-16 18:00:01.0,x,1\n",
		"long.csv":    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0,9000,1\n2023-11-16 18:00:01.0,10,1\n",
		"access.log":  strings.Repeat(`{"level":"info","time":"2026-01-02T03:04:05Z","msg":"request","endpoint":"chat_completions","duration_ms":100,"model":"old","status":200,"stream":true,"prompt_tokens":100,"completion_tokens":5}`+"\n", 50),
		"lengths.csv": "num_prefill_tokens,num_decode_tokens\n" + strings.Repeat("100,5\n", 50),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// replayIn runs firsttoken replay in a folder; arguments have no spaces.
func replayIn(t *testing.T, dir, args string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"replay"}, strings.Fields(args)...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), beMain+"=1", "FIRSTTOKEN_DATA=")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the code says it
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// Workloads may be mixed, under either name.
func TestReplayMix(t *testing.T) {
	code, out, errs := run(t, "replay", "--fleet", "mixed", "--trace", "chat,code-completion", "--contracts", "shipped", "--policy", "headroom", "--requests", "200", "--quiet")
	for _, want := range []string{"chat,code-completion on fleet mixed", "\ncode-completion ", "\ncustomer-service "} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("code %d, %s: output\n%s\nlacks %q", code, errs, out, want)
		}
	}
}

// The report of a small run, and the same once more.
func TestReplay(t *testing.T) {
	t.Parallel()
	dir := replayFiles(t)
	const args = "--fleet two.yaml --trace trace.csv --policy round-robin,least-inflight,lmetric --seeds 2 --rate-multiplier 2 --json report.json --html report.html"
	code, stdout, stderr := replayIn(t, dir, args)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, stderr %s", code, stderr)
	}
	file := filepath.Join("testdata", "replay.txt")
	if *update {
		if err := os.WriteFile(file, []byte(stdout), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if stdout != string(want) {
		t.Errorf("not as in %s; if it is meant: go test -run TestReplay$ -update\n%s", file, stdout)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil || strings.Count(string(page), `role="img"`) != 4 {
		t.Errorf("HTML: %v, %.200s", err, page)
	}
	first, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	code, again, _ := replayIn(t, dir, strings.ReplaceAll(args, "report.json", "-"))
	if code != 0 || again != string(first) {
		t.Errorf("a second run prints another report: exit code %d, %.300s", code, again)
	}
	var r report.Report
	if err := json.Unmarshal(first, &r); err != nil || len(r.Runs) != 3 || r.Runs[0].All.Requests != 120 || len(r.Differences) != 10 {
		t.Errorf("JSON: %v, %+v", err, r)
	}
}

// replayed is the report of a run that must succeed.
func replayed(t *testing.T, dir, args string) (r report.Report) {
	t.Helper()
	code, stdout, stderr := replayIn(t, dir, args+" --json -")
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 {
		t.Fatalf("%s: exit code %d, %v, stderr %s", args, code, err, stderr)
	}
	return r
}

func TestReplayOneMoreEngine(t *testing.T) {
	t.Parallel()
	dir := replayFiles(t)
	r := replayed(t, dir, "--fleet two.yaml --add fast.yaml --trace trace.csv --policy least-inflight --rate-multiplier 4 --seeds 3")
	if len(r.Runs) != 2 || r.Runs[0].Name != "two" || r.Runs[1].Name != "two + fast.yaml" {
		t.Fatalf("runs %+v", r.Runs)
	}
	if a, b := r.Runs[0].All.TTFT.P95, r.Runs[1].All.TTFT.P95; !(b < a) || len(r.Runs[1].Engines) != 3 {
		t.Errorf("P95 with one more engine is %v, without it %v", b, a)
	}
	notes := strings.Join(r.Notes, "\n")
	if !strings.Contains(notes, "fleet two: 2 engines, 3.00 USD an hour") || !strings.Contains(notes, "3 engines, 5.00 USD an hour") || !strings.Contains(notes, "the same for every seed") {
		t.Errorf("notes %s", notes)
	}
	r = replayed(t, dir, "--trace customer-service --requests 10 --policy random") // the default fleets
	if len(r.Runs) != 2 || r.Runs[0].Name != "equal" || r.Runs[1].Name != "mixed" {
		t.Errorf("default fleets: %+v", r.Runs)
	}
	r = replayed(t, dir, "--fleet two.yaml --fleet crash.yaml --trace trace.csv --policy random,p2c")
	if len(r.Runs) != 4 || r.Runs[3].Name != "crash: p2c" || r.Runs[3].All.Requests != 120 {
		t.Errorf("two fleets: %+v", r.Runs)
	}
}

// Which requests are sent, and for which model.
func TestReplayDemand(t *testing.T) {
	t.Parallel()
	dir := replayFiles(t)
	for _, c := range []struct {
		args     string
		requests int
		seconds  float64 // about
		ends     string
	}{
		{"--fleet two.yaml --trace trace.csv", 120, 30, "map[ok:120]"},
		{"--fleet two.yaml --trace trace.csv --requests 40", 40, 10, "map[ok:40]"},
		{"--fleet two.yaml --trace trace.csv --from 10s --to 20s", 40, 10, "map[ok:40]"},
		{"--fleet two.yaml --trace trace.csv --rate 12 --law constant", 120, 10, "map[ok:120]"},
		{"--fleet two.yaml --trace lengths.csv --rate 5 --law gamma:0.1", 50, 10, "map[ok:50]"},
		{"--fleet two.yaml --trace trace.csv --shape step:5s:100", 120, 6, "map[ok:120]"},
		{"--fleet two.yaml --trace customer-service --requests 60", 60, 14, "map[ok:60]"},
		{"--fleet two.yaml --trace long.csv", 2, 1, "map[ok:1 too_long:1]"},
		{"--fleet models.yaml --trace trace.csv --requests 50 --model x", 50, 12, "map[ok:50]"},
		{"--fleet models.yaml --trace access.log", 50, 0, "map[unknown_model:50]"},
		{"--fleet models.yaml --trace access.log --model-map old=x", 50, 0, "map[ok:50]"},
		{"--fleet two.yaml --trace access.log", 50, 0, "map[ok:50]"},
		{"--fleet two.yaml --trace access.log --model-map older=m", 50, 0, "map[unknown_model:50]"},
		{"--fleet crash.yaml --trace trace.csv --gateways 3 --network 5ms --scrape 1s", 120, 30, ""},
	} {
		r := replayed(t, dir, c.args+" --policy least-inflight")
		got := r.Runs[0]
		if ends := fmt.Sprint(got.Reasons); got.All.Requests != c.requests || c.ends != "" && ends != c.ends {
			t.Errorf("%s: %d requests, %s; want %d, %s", c.args, got.All.Requests, ends, c.requests, c.ends)
		}
		if s := got.Seconds; c.seconds > 0 && (s < 0.7*c.seconds || s > 1.5*c.seconds+1) {
			t.Errorf("%s: took %v s, want about %v", c.args, s, c.seconds)
		}
	}
	r := replayed(t, dir, "--fleet models.yaml --trace trace.csv --policy random")
	if g := r.Runs[0].ByModel; len(g) != 2 || g[0].Requests < 40 || g[1].Requests < 40 {
		t.Errorf("a trace without models is not drawn evenly for those of the fleet: %+v", g)
	}
	r = replayed(t, dir, "--fleet models.yaml --trace trace.csv --policy random --model x=1 --model y=1")
	if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "fit no engine's context or cache") || !strings.Contains(notes, "tokens y") || !strings.Contains(notes, " more") {
		t.Errorf("notes %s", notes)
	}
	for args, want := range map[string]string{
		"--trace trace.csv":                             defaultObjective,
		"--trace customer-service --requests 10":        "each request's own, of the trace",
		"--trace trace.csv --objective ttft=1h,tpot=1h": "ttft=1h,tpot=1h",
	} {
		if r := replayed(t, dir, "--fleet two.yaml --policy random "+args); r.Objective != want {
			t.Errorf("%s: objective %q, want %q", args, r.Objective, want)
		}
	}
}

func TestReplayFindGoodput(t *testing.T) {
	t.Parallel()
	dir := replayFiles(t)
	r := replayed(t, dir, "--fleet two.yaml --trace trace.csv --find-goodput --policy round-robin,lmetric --objective ttft=300ms --target 0.9")
	if len(r.Goodput) != 2 || r.Goodput[0].Name != "round-robin" || len(r.Runs) != 0 {
		t.Fatalf("%+v", r)
	}
	for _, g := range r.Goodput {
		if g.Multiplier < 1 || g.Multiplier > 100 || g.Met < 0.9 || g.Requests < 4 {
			t.Errorf("%+v", g)
		}
	}
	if code, stdout, _ := replayIn(t, dir, "--fleet two.yaml --trace trace.csv --find-goodput --policy random --objective ttft=1ns"); code != 0 || !strings.Contains(stdout, "none") {
		t.Errorf("an objective nothing meets: exit code %d, %s", code, stdout)
	}
}

func TestReplayCommandLine(t *testing.T) {
	t.Parallel()
	dir := replayFiles(t)
	for args, want := range map[string]string{
		"":                                                                `required flag(s) "trace" not set`,
		"--fleet two.yaml":                                                `required flag(s) "trace" not set`,
		"--fleet two.yaml --trace nowhere":                                "--trace nowhere: no such file, and no workload of that name (there are customer-service",
		"--fleet nowhere --trace trace.csv":                               `no shipped fleet "nowhere"`,
		"--fleet wrong.yaml --trace x":                                    "wrong.yaml:2",
		"--fleet two.yaml --trace fast.yaml":                              "fast.yaml:1: is no trace that is known",
		"--fleet two.yaml --trace bad.csv":                                "bad.csv:3:",
		"--fleet two.yaml --trace lengths.csv":                            "has lengths but no arrivals",
		"--fleet broken.yaml --trace trace.csv":                           `a replay knows no fault "hang", only [crash restart`,
		"--fleet two.yaml --fleet models.yaml --trace trace.csv":          "fleets to compare serve the same models",
		"--fleet two.yaml --fleet two.yaml --trace trace.csv":             "would be compared with itself",
		"--fleet two.yaml --trace trace.csv --policy random,random":       "would be compared with itself",
		"--fleet two.yaml --trace trace.csv --policy random,best":         `--policy "best" is unknown: give some of least-inflight`,
		"--fleet two.yaml --trace trace.csv --add h1000":                  "--add h1000: no such profile",
		"--fleet models.yaml --trace trace.csv --add fast.yaml":           "it serves p, the fleet x, y",
		"--fleet two.yaml --trace trace.csv --objective ttft=1":           `--objective "ttft=1": "1" is no duration`,
		"--fleet two.yaml --trace trace.csv --rate-multiplier 0":          "--rate-multiplier 0: give",
		"--fleet two.yaml --trace trace.csv --rate-multiplier +Inf":       "--rate-multiplier +Inf: give",
		"--fleet two.yaml --trace trace.csv --rate -1":                    "--rate -1: give",
		"--fleet two.yaml --trace trace.csv --rate 1 --law normal":        `--law "normal" is unknown`,
		"--fleet two.yaml --trace trace.csv --shape round":                `--shape "round" is unknown`,
		"--fleet two.yaml --trace trace.csv --requests -1":                "--requests -1: give",
		"--fleet two.yaml --trace trace.csv --from 2s --to 1s":            "--from and --to: give",
		"--fleet two.yaml --trace trace.csv --gateways 0":                 "--gateways and --seeds are at least 1",
		"--fleet two.yaml --trace trace.csv --seeds 0":                    "--gateways and --seeds are at least 1",
		"--fleet two.yaml --trace trace.csv --target 1.5":                 "--target 1.5: give",
		"--fleet two.yaml --trace trace.csv --model z":                    "--model z: the fleet serves m",
		"--fleet two.yaml --trace trace.csv --model m=0":                  `--model "m=0": give`,
		"--fleet two.yaml --trace trace.csv --tenant =1":                  `--tenant "=1" has no name`,
		"--fleet two.yaml --trace trace.csv --model-map a=z":              "--model-map a=z: the fleet serves m",
		"--fleet two.yaml --trace trace.csv --model m --model-map a=m":    "give one",
		"--fleet two.yaml --trace trace.csv --policy random --json /no/x": "--json: open /no/x",
		"--fleet two.yaml --trace trace.csv --policy random --html /no/x": "--html: open /no/x",
		"--fleet two.yaml --trace trace.csv extra":                        `unknown command "extra"`,
	} {
		code, stdout, stderr := replayIn(t, dir, args)
		if code != 1 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stdout %.100s, stderr %q, want %q", args, code, stdout, stderr, want)
		}
	}
}

// Names of data sets may be cut short as far as they are clear.
func TestReplayFindsDataSets(t *testing.T) {
	dir := replayFiles(t)
	traces := filepath.Join(dir, "data", "traces")
	if err := os.MkdirAll(traces, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"azure_one.csv", "azure_two.csv"} {
		if err := os.Link(filepath.Join(dir, "trace.csv"), filepath.Join(traces, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("FIRSTTOKEN_DATA", filepath.Join(dir, "data"))
	fleet := filepath.Join(dir, "two.yaml")
	if code, stdout, stderr := run(t, "replay", "--fleet", fleet, "--trace", "azure_o", "--policy", "random"); code != 0 || !strings.Contains(stdout, "120") {
		t.Errorf("exit code %d, stderr %s", code, stderr)
	}
	for name, want := range map[string]string{"azure": "write more of the name", "mooncake": "no data set's name begins so"} {
		if code, _, stderr := run(t, "replay", "--fleet", fleet, "--trace", name); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stderr %s", name, code, stderr)
		}
	}
}

// Ctrl-C gives what there is.
func TestReplayStopped(t *testing.T) {
	t.Parallel()
	dir := replayFiles(t)
	for _, args := range []string{"--policy random,p2c", "--policy random --find-goodput"} {
		code, stdout := -1, ""
		for wait := 500 * time.Millisecond; code == -1 && wait < time.Minute; wait *= 2 { // it may not have got to its work yet
			code, stdout = interrupted(t, dir, "--fleet two.yaml --trace customer-service --requests 100000000 "+args, wait)
		}
		if code != 130 || !strings.Contains(stdout, "stopped before its end") {
			t.Errorf("%s: exit code %d, stdout %s", args, code, stdout)
		}
	}
}

// interrupted is a replay that gets Ctrl-C after so long. A code of -1 is that
// of the signal itself.
func interrupted(t *testing.T, dir, args string, after time.Duration) (code int, stdout string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"replay"}, strings.Fields(args)...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), beMain+"=1")
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the code says it
	return cmd.ProcessState.ExitCode(), out.String()
}
