package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// target is a backend that streams, and says when a request comes.
func target(t *testing.T, script fakellm.Script) (url string, asked chan struct{}) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked = make(chan struct{}, 1000)
	server := fakellm.Serve(ln, &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script {
		select {
		case asked <- struct{}{}:
		default: // nobody counts that far
		}
		return script
	}})
	t.Cleanup(server.Close)
	return server.URL, asked
}

func TestBench(t *testing.T) {
	t.Parallel()
	url, _ := target(t, fakellm.Tokens(3, time.Millisecond, time.Millisecond))
	dir := t.TempDir()
	report := filepath.Join(dir, "report.json")
	args := []string{"bench", "--target", url, "--requests", "20", "--warmup", "2", "--json", report,
		"--html", filepath.Join(dir, "report.html"), "--csv", filepath.Join(dir, "requests.csv"), "--windows", filepath.Join(dir, "windows.csv")}
	code, stdout, stderr := run(t, args...)
	if code != 0 || stderr != "" || !strings.Contains(stdout, "20 served, 0 refused, 0 failed") || !strings.Contains(stdout, "fake") {
		t.Fatalf("exit code %d, stderr %q, stdout %s", code, stderr, stdout)
	}
	for name, want := range map[string]string{"report.json": `"format":"firsttoken-bench/1"`, "report.html": "</svg>", "requests.csv": "ttft_ms", "windows.csv": "in_flight"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q: %v", name, want, err)
		}
	}
	code, stdout, stderr = run(t, append(args, "--compare", report, "--concurrency", "2")...)
	if code != 0 || !strings.Contains(stdout, "compared with "+report) || !strings.Contains(stdout, "warning: plan.concurrency: 8, now 2") {
		t.Errorf("exit code %d, stderr %q, stdout %s", code, stderr, stdout)
	}
}

func TestBenchCommandLine(t *testing.T) {
	t.Parallel()
	busy, _ := target(t, fakellm.Status(429, nil, `{"error":{"message":"too busy"}}`))
	rows := []struct{ args, want string }{
		{"", "--target is missing"},
		{"--target " + busy + " --stream --no-stream", "--stream and --no-stream exclude"},
		{"--target " + busy + " --header x", `--header "x": give "Name: value"`},
		{"--target " + busy + " --header a=b --json /nowhere/x.json", "--json: open /nowhere/x.json"},
		{"--target " + busy + " --api-key-env FIRSTTOKEN_NO_SUCH_KEY", "--api-key-env FIRSTTOKEN_NO_SUCH_KEY"},
		{"--target " + busy + " --compare /nowhere.json", "--compare: open /nowhere.json"},
		{"--target " + busy + " --json /nowhere/x.json", "--json: open /nowhere/x.json"},
		{"--target " + busy + " --telemetry " + busy, "--telemetry: read " + busy + "/metrics: there is no firsttoken_build_info"},
		{"--target " + busy + " --workload chat,poetry", `--workload: no workload "poetry": there are customer-service (chat), code-completion (code), live-summarisation (summary)`},
		{"--target " + busy + " --requests many", `"--requests"`},
		{"--target " + busy, "refused_429: too busy"},
		{"--target " + busy + " --warmup 0 --requests 3", "none of 3 requests was served: refused_429: too busy"},
	}
	for _, row := range rows {
		code, _, stderr := run(t, append([]string{"bench"}, strings.Fields(row.args)...)...)
		if code != 1 || !strings.Contains(stderr, row.want) {
			t.Errorf("%s: exit code %d, stderr %q, want %q", row.args, code, stderr, row.want)
		}
	}
}

func TestBenchStopped(t *testing.T) {
	t.Parallel()
	url, asked := target(t, fakellm.Tokens(3, time.Millisecond, time.Millisecond))
	cmd := exec.Command(os.Args[0], "bench", "--target", url, "--duration", "1h", "--warmup", "0")
	cmd.Env = append(os.Environ(), beMain+"=1")
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		<-asked
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the code says it
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(out.String(), "stopped before its end") || !strings.Contains(out.String(), "TTFT") {
		t.Errorf("exit code %d, stdout %s", code, &out)
	}
}
