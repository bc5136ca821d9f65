//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/test/e2e/live"
)

// setting is an environment variable that test/e2e/run sets.
func setting(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: these tests are run by test/e2e/run", name)
	}
	return v
}

// llama is a llama.cpp server in a process of its own.
type llama struct {
	t       *testing.T
	port    int
	threads int
	step    int // prompt tokens it computes at once
	cmd     *exec.Cmd
	stdin   io.Closer // its end ends the engine, however the test ends
}

// wholeStep is a step that prompts of usual length fit in.
const wholeStep = 256

// startLlama returns when the engine serves.
func startLlama(t *testing.T, threads, step int) *llama {
	e := &llama{t: t, port: freePort(t), threads: threads, step: step}
	e.start()
	t.Cleanup(e.kill)
	return e
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (e *llama) url() string { return fmt.Sprintf("http://127.0.0.1:%d", e.port) }

// start returns when the engine serves.
func (e *llama) start() {
	e.t.Helper()
	e.launch()
	live.Await(e.t, time.Minute, func() string {
		resp, err := http.Get(e.url() + "/health")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return "the engine's health is " + resp.Status
		}
		return ""
	})
}

// launch starts the process.
func (e *llama) launch() {
	e.t.Helper()
	e.cmd = exec.Command(setting(e.t, "FIRSTTOKEN_PYTHON"), "engine.py", "serve", setting(e.t, "FIRSTTOKEN_MODEL"),
		fmt.Sprint(e.port), fmt.Sprint(e.threads), fmt.Sprint(e.step))
	stdin, err := e.cmd.StdinPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	e.stdin = stdin
	if err := e.cmd.Start(); err != nil {
		e.t.Fatalf("start an engine: %v", err)
	}
}

// kill is SIGKILL. Killing a dead engine does nothing.
func (e *llama) kill() {
	if e.cmd == nil {
		return
	}
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait() // says that it was killed
	_ = e.stdin.Close()
	e.cmd = nil
}

// busy is the number of requests the engine says it runs or queues.
func (e *llama) busy() float64 {
	e.t.Helper()
	s := live.Scrape(e.t, e.url()+"/metrics")
	return s.Sum("llamacpp:requests_processing") + s.Sum("llamacpp:requests_deferred")
}

// binary is the gateway as users run it.
type binary struct {
	t             *testing.T
	url, operator string
	cmd           *exec.Cmd
	log           log
	stop          sync.Once
}

// startBinary serves the configuration until stop, or the end of the test.
func startBinary(t *testing.T, config string) *binary {
	file := filepath.Join(t.TempDir(), "firsttoken.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &binary{t: t, cmd: exec.Command(setting(t, "FIRSTTOKEN_BIN"), "serve", "--config", file)}
	b.log.serving = make(chan struct{})
	b.cmd.Stdout, b.cmd.Stderr = &b.log, os.Stderr
	if err := b.cmd.Start(); err != nil {
		t.Fatalf("start the gateway: %v", err)
	}
	t.Cleanup(b.end)
	select {
	case <-b.log.serving:
	case <-time.After(time.Minute):
		t.Fatal("the gateway does not say that it serves")
	}
	b.url, b.operator = "http://"+b.log.listen, "http://"+b.log.telemetry
	return b
}

// end has the gateway drain and wants its exit code to be 0.
func (b *binary) end() {
	b.stop.Do(func() {
		_ = b.cmd.Process.Signal(syscall.SIGINT)
		if err := b.cmd.Wait(); err != nil {
			b.t.Errorf("the gateway ended with %v", err)
		}
	})
}

func (b *binary) metrics() live.Samples {
	b.t.Helper()
	return live.Scrape(b.t, b.operator+"/metrics")
}

// requests ends the gateway and gives the lines of requests in its log.
func (b *binary) requests() []live.Line {
	b.t.Helper()
	b.end()
	return live.ReadLog(b.t, b.log.String())
}

// log collects what the gateway writes and finds out where it listens.
type log struct {
	serving           chan struct{} // closed once the next two are known
	listen, telemetry string

	mu      sync.Mutex
	text    bytes.Buffer
	scanned int
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	for l.listen == "" {
		line, rest, whole := bytes.Cut(l.text.Bytes()[l.scanned:], []byte("\n"))
		if !whole {
			break
		}
		l.scanned = l.text.Len() - len(rest)
		var event struct{ Msg, Listen, Telemetry string }
		if json.Unmarshal(line, &event) == nil && event.Msg == "serving" {
			l.listen, l.telemetry = event.Listen, event.Telemetry
			close(l.serving)
		}
	}
	return len(p), nil
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// lines calls each with every line of r until its end.
func lines(r io.Reader, each func([]byte)) error {
	for in := bufio.NewReader(r); ; {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			each(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
