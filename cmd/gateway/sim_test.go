package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/firsttoken/firsttoken/internal/config"
)

const simFleet = `engines:
  - {name: a, profile: h100-llama-3.1-70b-fp8-tp4, model: chat, count: 2}
`

func TestSimServesUntilInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fleetFile, gatewayFile := filepath.Join(dir, "fleet.yaml"), filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(fleetFile, []byte(simFleet), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "sim", "--config", fleetFile, "--gateway-config", gatewayFile, "--speed", "50")
	cmd.Env = append(os.Environ(), beMain+"=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var printed strings.Builder
	lines := bufio.NewScanner(out)
	for strings.Count(printed.String(), "url:") < 2 && lines.Scan() {
		printed.WriteString(lines.Text() + "\n")
	}

	written, err := os.ReadFile(gatewayFile)
	if err != nil {
		t.Fatalf("%v; stdout %s; stderr %s", err, &printed, &errs)
	}
	for name, text := range map[string]string{"printed": printed.String(), "written": string(written)} {
		cfg, err := config.Parse(name, []byte(text), dir, nil)
		if err != nil || len(cfg.Models) != 1 || len(cfg.Models[0].Backends) != 2 {
			t.Fatalf("%s: %v in\n%s", name, err, text)
		}
	}
	cfg, _ := config.Parse("written", written, dir, nil)
	ask := func() int {
		resp, err := http.Post(cfg.Models[0].Backends[0].URL+"/v1/completions", "application/json",
			strings.NewReader(`{"model":"chat","prompt":"hi","max_tokens":2}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	if got := ask(); got != 200 {
		t.Errorf("status %d", got)
	}
	control := regexp.MustCompile(`# control: (http://\S+)/engines`).FindStringSubmatch(printed.String())
	if control == nil {
		t.Fatalf("no control address in\n%s", &printed)
	}
	resp, err := http.Post(control[1]+"/engines/a-1/faults", "application/json", strings.NewReader(`{"kind":"errors"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := ask(); got != 500 {
		t.Errorf("after the fault: status %d", got)
	}

	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v: %s", err, &errs)
	}
}

func TestSimMistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad := write("fleet.yaml", "engines:\n  - {profil: x}\n")
	odd := write("odd.csv", "a,b\n1,2\n")
	runs := write("runs.csv", "arrival_s,input_toks,output_toks,ttft_ms,tpot_ms\n0,10,10,100,10\n")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sim"}, "sim needs --config FLEET: a file, or one of equal, mixed, quickstart, wide"},
		{[]string{"sim", "--config", bad}, bad + `:2:6: engines[0].profil: unknown key; did you mean "profile"?`},
		{[]string{"sim", "--config", "mixd"}, `did you mean "mixed"?`},
		{[]string{"sim", "--config", "equal", "--speed", "0"}, "--speed is 0"},
		{[]string{"sim", "--config", "equal", "--control", "nowhere:x"}, "listen on --control"},
		{[]string{"sim", "validate"}, "FIRSTTOKEN_DATA is not set"},
		{[]string{"sim", "fit"}, "sim fit needs --measured FILE"},
		{[]string{"sim", "fit", "--measured", odd}, odd + ":1: the columns fit no kind of measurement"},
		{[]string{"sim", "fit", "--measured", runs}, "need --profile"},
		{[]string{"sim", "fit", "--measured", runs, "--profile", "rtx4090-llama-3.1-8b-bf1"}, `did you mean "rtx4090-llama-3.1-8b-bf16"`},
		{[]string{"sim", "fit", "--measured", runs, "--profile", "rtx4090-llama-3.1-8b-bf16"}, "want at least 10"},
	} {
		cmd := exec.Command(os.Args[0], c.args...)
		cmd.Env = append(os.Environ(), beMain+"=1", dataFolder+"=")
		text, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(text), c.want) {
			t.Errorf("%v: %v, %s\nwant %s", c.args, err, text, c.want)
		}
	}
}

func TestSimProfiles(t *testing.T) {
	t.Parallel()
	code, out, errs := run(t, "sim", "profiles")
	if code != 0 || !strings.Contains(out, "h100-llama-3.1-70b-fp8-tp4") || !strings.Contains(out, "price_per_hour") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}

// A table that the engine itself made is fitted, and the profile written is one.
func TestSimFitWritesAProfile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	table := filepath.Join(dir, "table.csv")
	text := `system,model_path,backend,isl,osl,concurrency,tp_size,silicon_ttft_ms,silicon_tpot_ms
h100,meta/M,vllm,512,32,1,1,43,10
h100,meta/M,vllm,512,32,2,1,47,10.6
h100,meta/M,vllm,512,32,4,1,55,11.9
h100,meta/M,vllm,2048,32,1,1,118,10.1
`
	if err := os.WriteFile(table, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	profile, fleetFile := filepath.Join(dir, "mine.yaml"), filepath.Join(dir, "fleet.yaml")
	code, out, errs := run(t, "sim", "fit", "--measured", table, "--out", profile)
	if code != 0 || !strings.Contains(out, "h100 M vllm tp1") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if err := os.WriteFile(fleetFile, []byte("engines: [{profile: mine.yaml}]\nfaults: [{engine: nobody, kind: hang}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The profile is read before the fault is found wanting.
	if _, _, errs := run(t, "sim", "--config", fleetFile); !strings.Contains(errs, `there is no engine "nobody"; did you mean "mine"?`) &&
		!strings.Contains(errs, `there is no engine "nobody"; write one of mine`) {
		t.Errorf("the profile does not pass: %s", errs)
	}
}
