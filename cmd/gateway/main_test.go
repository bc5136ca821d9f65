package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// beMain makes the test binary the gateway.
const beMain = "FIRSTTOKEN_TEST_BE_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// run runs the binary to its end.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), beMain+"=1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// process is the binary serving.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *bufio.Scanner
	errs bytes.Buffer
	url  string
}

// serveFile starts the binary and waits until it serves.
func serveFile(t *testing.T, file string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], "serve", "--config", file)}
	p.cmd.Env = append(os.Environ(), beMain+"=1")
	p.cmd.Stderr = &p.errs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	p.log = bufio.NewScanner(out)
	line := p.until("serving")
	p.url = "http://" + line["listen"].(string)
	return p
}

// until reads the log up to the line with the message.
func (p *process) until(msg string) map[string]any {
	p.t.Helper()
	for p.log.Scan() {
		var line map[string]any
		if err := json.Unmarshal(p.log.Bytes(), &line); err != nil {
			p.t.Fatalf("log line %q: %v", p.log.Text(), err)
		}
		if line["msg"] == msg {
			return line
		}
	}
	p.t.Fatalf("the log ends without %q; stderr: %s", msg, &p.errs)
	return nil
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// exit waits for the end and returns the code; the log has been read up to its end.
func (p *process) exit() int {
	p.t.Helper()
	for p.log.Scan() {
	}
	_ = p.cmd.Wait() // the code says it
	return p.cmd.ProcessState.ExitCode()
}

// stream opens a stream and reads its first token.
func (p *process) stream() *bufio.Reader {
	p.t.Helper()
	resp, err := http.Post(p.url+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = resp.Body.Close() })
	read := bufio.NewReader(resp.Body)
	for {
		line, err := read.ReadString('\n')
		if err != nil {
			p.t.Fatalf("no token: %v", err)
		}
		if strings.Contains(line, "w0 ") {
			return read
		}
	}
}

// gated is a backend whose streams stop after one token until open is closed.
func gated(t *testing.T) (addr string, open chan struct{}) {
	t.Helper()
	open = make(chan struct{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	wait := func(w *fakellm.Response) error {
		select {
		case <-open:
			return nil
		case <-w.Context().Done():
			return w.Context().Err()
		}
	}
	script := fakellm.Broken(1, 0, 0, wait)
	script = append(script, fakellm.Event(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`), fakellm.Done())
	server := fakellm.Serve(ln, &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script { return script }})
	t.Cleanup(server.Close)
	return ln.Addr().String(), open
}

// write puts a configuration for the backend into a file.
func write(t *testing.T, file, addr, extra string) {
	t.Helper()
	text := fmt.Sprintf("server: {listen: \"127.0.0.1:0\"}\ntelemetry: {listen: \"127.0.0.1:0\"}\n%s\nmodels:\n  - name: m\n    backends: [{name: a, url: \"http://%s\"}]\n", extra, addr)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDrainProcess(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			addr, open := gated(t)
			file := filepath.Join(t.TempDir(), "gateway.yaml")
			write(t, file, addr, "drain: {accept: 100ms}")
			p := serveFile(t, file)
			read := p.stream()
			p.signal(s)
			p.until("draining")
			close(open)
			rest, err := io.ReadAll(read)
			if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
				t.Errorf("the stream ended with %q, %v", rest, err)
			}
			if line := p.until("request"); line["reason"] != "ok" {
				t.Errorf("access line %v", line)
			}
			p.until("stopped")
			if code := p.exit(); code != 0 || p.errs.Len() > 0 {
				t.Errorf("exit code %d, stderr %q", code, &p.errs)
			}
		})
	}
}

func TestDrainDeadlineProcess(t *testing.T) {
	t.Parallel()
	addr, _ := gated(t)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	write(t, file, addr, "drain: {accept: off, limit: 50ms}")
	p := serveFile(t, file)
	read := p.stream()
	p.signal(syscall.SIGTERM)
	rest, err := io.ReadAll(read)
	if err != nil || !strings.Contains(string(rest), `"code":"gateway_draining"`) || strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d, stderr %q", code, &p.errs)
	}
}

// The demo needs nothing, says what to do, and ends well.
func TestDemo(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "serve", "--demo", "--listen", "127.0.0.1:0", "--telemetry-listen", "127.0.0.1:0", "--control", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), beMain+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	base, metrics, faults, greeting := "", "", "", bufio.NewScanner(out)
	greeted := ""
	for greeting.Scan() && !strings.Contains(greeting.Text(), "Ctrl-C") {
		greeted += greeting.Text() + "\n"
		if _, url, ok := strings.Cut(greeting.Text(), "faults  "); ok {
			faults = strings.TrimSpace(url)
		}
		if _, url, ok := strings.Cut(greeting.Text(), "base URL"); ok {
			base = strings.TrimSpace(url)
		}
		if _, url, ok := strings.Cut(greeting.Text(), "metrics "); ok {
			metrics = strings.TrimSpace(url)
		}
	}
	for _, want := range []string{" bench --target " + strings.TrimSuffix(base, "/v1") + " --workload ", " top --url " + strings.TrimSuffix(metrics, "/metrics") + "\n", "curl " + faults + "/h100-tp4-1/faults -d "} {
		if !strings.Contains(greeted, want) {
			t.Errorf("the greeting lacks %q:\n%s", want, greeted)
		}
	}
	resp, err := http.Post(base+"/chat/completions", "application/json",
		strings.NewReader(`{"model":"llama-3.1-8b","stream":true,"max_tokens":3,"messages":[{"role":"user","content":"Hello!"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.Header.Get("X-Firsttoken-Backend") == "" || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Errorf("%v %v %q", err, resp.Header, body)
	}
	slowed, err := http.Post(faults+"/h100-tp4-1/faults", "application/json", strings.NewReader(`{"kind":"slow","factor":6,"for":"30s"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer slowed.Body.Close()
	if text, err := io.ReadAll(slowed.Body); err != nil || slowed.StatusCode != 200 || !strings.Contains(string(text), `"factor":6`) {
		t.Errorf("slow an engine: %v %d %s", err, slowed.StatusCode, text)
	}
	// What bench --telemetry puts on record.
	code, table, stderr := run(t, "bench", "--target", base, "--telemetry", metrics, "--warmup", "0", "--requests", "1", "--output-tokens", "1")
	if code != 0 || !strings.Contains(table, "rtx4090 (vllm RTX 4090 tp1)") || !strings.Contains(table, "h100-tp4-1 (vllm H100 tp4)") {
		t.Errorf("exit code %d, stderr %q, stdout %s", code, stderr, table)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for greeting.Scan() {
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the demo ended with %v", err)
	}
}

// The control's usual port may be taken, but not one that was asked for.
func TestDemoControl(t *testing.T) {
	t.Parallel()
	none := http.NotFoundHandler()
	var first, second demo
	for _, d := range []*demo{&first, &second} {
		if err := d.startControl("", none); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.control.stop)
	}
	if second.control.addr == first.control.addr || second.control.addr == demoControl || !strings.Contains(second.note, demoControl+" is taken") {
		t.Errorf("the second listens on %s%s", second.control.addr, second.note)
	}
	if err := new(demo).startControl(first.control.addr, none); err == nil || !strings.Contains(err.Error(), "--control") {
		t.Errorf("an address that was asked for and is taken: %v", err)
	}
	var off demo
	if err := off.startControl("off", none); err != nil || off.control.addr != "" {
		t.Errorf("%v, listens on %q", err, off.control.addr)
	}
}

func TestSecondSignal(t *testing.T) {
	t.Parallel()
	for s, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			addr, _ := gated(t)
			file := filepath.Join(t.TempDir(), "gateway.yaml")
			write(t, file, addr, "")
			p := serveFile(t, file)
			p.stream()
			p.signal(syscall.SIGTERM)
			p.until("draining")
			p.signal(s)
			if code := p.exit(); code != want || !strings.Contains(p.errs.String(), "without draining") {
				t.Errorf("exit code %d, want %d; stderr %q", code, want, &p.errs)
			}
		})
	}
}

func TestReloadProcess(t *testing.T) {
	t.Parallel()
	addr, open := gated(t)
	close(open)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	write(t, file, addr, "")
	p := serveFile(t, file)
	p.signal(syscall.SIGHUP)
	if line := p.until("configuration reloaded"); line["revision"] != 2.0 {
		t.Errorf("log line %v", line)
	}
	write(t, file, addr, "polices: x")
	p.signal(syscall.SIGHUP)
	if line := p.until("configuration not reloaded; the old one stays in force"); line["revision"] != 2.0 || !strings.Contains(fmt.Sprint(line["error"]), "polices") {
		t.Errorf("log line %v", line)
	}
	p.stream()
	p.signal(syscall.SIGINT)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("server: {lisen: x}\nmodels: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(t.TempDir(), "good.yaml")
	write(t, good, "127.0.0.1:1", "")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	rows := []struct {
		args   []string
		code   int
		stdout string
		stderr []string
	}{
		{[]string{"--help"}, 0, "serve", nil},
		{nil, 0, "Usage:", nil},
		{[]string{"version"}, 0, version + "\n", nil},
		{[]string{"--version"}, 0, version, nil},
		{[]string{"serve", "--help"}, 0, "--config", nil},
		{[]string{"serve"}, 1, "", []string{"firsttoken: serve needs", "--config", "--demo"}},
		{[]string{"serve", "--config", good, "--control", "127.0.0.1:0"}, 1, "", []string{"--control is for", "leave it out"}},
		{[]string{"serve", "--demo", "--control", taken.Addr().String()}, 1, "", []string{"listen on --control", "address already in use"}},
		{[]string{"serve", "--demo", "--config", good}, 1, "", []string{"firsttoken: serve needs"}},
		{[]string{"serve", "--config", bad}, 1, "", []string{"bad.yaml:1", "lisen", "listen", "models"}},
		{[]string{"serve", "--config", "/nowhere/x.yaml"}, 1, "", []string{"/nowhere/x.yaml"}},
		{[]string{"serve", "--config", good, "--listen", "nonsense"}, 1, "", []string{"--listen"}},
		{[]string{"serve", "--config", good, "--listen", taken.Addr().String()}, 1, "", []string{`server.listen "` + taken.Addr().String() + `": the port is taken`, "by --listen", "address already in use"}},
		{[]string{"serve", "--config", good, "--listen", "127.0.0.1:0", "--telemetry-listen", taken.Addr().String()}, 1, "", []string{"telemetry.listen", "the port is taken", "by --telemetry-listen"}},
		{[]string{"serve", "--demo", "--listen", taken.Addr().String()}, 1, "", []string{"the port is taken", "by --listen"}},
		{[]string{"serve", "--config", good, "--log-level", "loud"}, 1, "", []string{"--log-level"}},
		{[]string{"serve", "--nonsense"}, 1, "", []string{"unknown flag: --nonsense"}},
		{[]string{"serve", "x"}, 1, "", []string{"firsttoken:"}},
		{[]string{"nonsense"}, 1, "", []string{`unknown command "nonsense"`}},
		{[]string{"config", "check", good}, 0, "ok, 1 model, 1 backend\n", nil},
		{[]string{"config", "check", bad}, 1, "", []string{"bad.yaml:1", "lisen"}},
		{[]string{"config", "check"}, 1, "", []string{"firsttoken:"}},
		{[]string{"config", "schema"}, 0, `"$schema"`, nil},
	}
	for _, row := range rows {
		t.Run(strings.Join(row.args, " "), func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := run(t, row.args...)
			if code != row.code || !strings.Contains(stdout, row.stdout) {
				t.Errorf("exit code %d, want %d; stdout %q, stderr %q", code, row.code, stdout, stderr)
			}
			if row.code != 0 && stdout != "" || row.code == 0 && stderr != "" {
				t.Errorf("stdout %q, stderr %q", stdout, stderr)
			}
			for _, want := range row.stderr {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr %q lacks %q", stderr, want)
				}
			}
		})
	}
}
