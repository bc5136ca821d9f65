package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/fleet"
)

// patience bounds every wait for another process; nothing is measured by it.
const patience = 60 * time.Second

// suite is what all tests share.
var suite struct {
	root    string // of the repository
	gateway string // the binary under test
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	root, err := filepath.Abs("../..")
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "firsttoken-conformance-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	suite.root, suite.gateway = root, filepath.Join(dir, "firsttoken")
	build := exec.Command("go", "build", "-o", suite.gateway, "./cmd/gateway")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		log.Printf("build the gateway: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// dataFile is a path below FIRSTTOKEN_DATA; the test is skipped without it.
func dataFile(t testing.TB, name string) string {
	t.Helper()
	path := dataPath(name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the public data sets are not here (FIRSTTOKEN_DATA): %v", err)
	}
	return path
}

func dataPath(name string) string {
	dir := os.Getenv("FIRSTTOKEN_DATA")
	if dir == "" {
		dir = filepath.Join(suite.root, "..", "shared", "data")
	}
	return filepath.Join(dir, name)
}

// tool is a path below the folder that "run" installs into. Without that
// script the test is skipped; with it everything has to be there.
func tool(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("FIRSTTOKEN_CONFORMANCE")
	if dir == "" {
		t.Skip("not installed: start the tests with test/conformance/run")
	}
	if reason, err := os.ReadFile(filepath.Join(dir, "skip-"+strings.SplitN(name, "/", 2)[0])); err == nil {
		t.Skip(strings.TrimSpace(string(reason)))
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("test/conformance/run did not install it: %v", err)
	}
	return path
}

// pool is one model of a gateway and the backends that serve it.
type pool struct {
	model    string
	urls     []string
	engine   string // generic if empty
	keys     string // a further key of the model: "limits: {...}"
	draining bool   // its backends get no new work
}

// gateway is a running gateway process.
type gateway struct {
	url     string // without a path
	process *process
}

// startGateway runs the gateway until the test ends. server holds further
// keys of the server section, each after a comma.
func startGateway(t testing.TB, server string, pools ...pool) *gateway {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(configText(server, pools)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, os.Interrupt, suite.gateway, "serve", "--config", file)
	g := &gateway{process: p}
	var line struct{ Msg, Listen, Telemetry string }
	p.waitFor(t, "the gateway to serve", func(text string) bool {
		return json.Unmarshal([]byte(text), &line) == nil && line.Msg == "serving"
	})
	g.url = "http://" + line.Listen
	waitUntil(t, "the gateway to be ready", func() bool { return statusOf("http://"+line.Telemetry+"/readyz") == 200 })
	return g
}

func configText(server string, pools []pool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "server: {listen: \"127.0.0.1:0\"%s}\n", server)
	b.WriteString("telemetry: {listen: \"127.0.0.1:0\"}\ndrain: {accept: off, limit: 3s}\nmodels:\n")
	for _, p := range pools {
		fmt.Fprintf(&b, "  - name: %q\n", p.model)
		if p.keys != "" {
			fmt.Fprintf(&b, "    %s\n", p.keys)
		}
		b.WriteString("    backends:\n")
		for _, url := range p.urls {
			kind := p.engine
			if kind == "" {
				kind = "generic"
			}
			fmt.Fprintf(&b, "      - {url: %q, engine: %s, draining: %v}\n", url, kind, p.draining)
		}
	}
	return b.String()
}

// accessLine is what the gateway logs of one request.
type accessLine struct {
	Msg       string
	RequestID string `json:"request_id"`
	Model     string
	Status    int
	Reason    string
}

// access returns the lines of the requests that ended so far for a model.
func (g *gateway) access(model string) []accessLine {
	var lines []accessLine
	for _, text := range g.process.lines() {
		var l accessLine
		if json.Unmarshal([]byte(text), &l) == nil && l.Msg == "request" && l.Model == model {
			lines = append(lines, l)
		}
	}
	return lines
}

// simulatedFleet is the fleet of the quick start, much faster, as pools.
func simulatedFleet(t testing.TB) []pool {
	t.Helper()
	quickstart, err := fleet.Shipped("quickstart")
	if err != nil {
		t.Fatal(err)
	}
	running, err := quickstart.Start(t.Context(), 20, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(running.Stop)
	var pools []pool
	for _, e := range running.Engines() {
		model := e.Spec().Model
		at := slices.IndexFunc(pools, func(p pool) bool { return p.model == model })
		if at < 0 {
			at = len(pools)
			pools = append(pools, pool{model: model, engine: "vllm"})
		}
		pools[at].urls = append(pools[at].urls, e.URL())
	}
	return pools
}

// serveBackend runs a programmable backend until the test ends.
func serveBackend(t testing.TB, b *fakellm.Backend) (url string) {
	t.Helper()
	s := fakellm.Serve(listen(t), b)
	t.Cleanup(s.Close)
	return s.URL
}

// process is a child whose standard output is kept line by line.
type process struct {
	cmd  *exec.Cmd
	name string
	read chan struct{} // closed when its output has ended

	mu     sync.Mutex
	out    []string
	errors bytes.Buffer
}

// startProcess starts a command that the test's end stops with the signal.
func startProcess(t testing.TB, stop os.Signal, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(name, args...), name: filepath.Base(name), read: make(chan struct{})}
	p.cmd.Stderr = &p.errors
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.keep(out)
	t.Cleanup(func() { p.stop(t, stop) })
	return p
}

func (p *process) keep(out io.Reader) {
	defer close(p.read)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			p.mu.Lock()
			p.out = append(p.out, line)
			p.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

func (p *process) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.out)
}

// waitFor waits for a line of output that is as wanted.
func (p *process) waitFor(t testing.TB, what string, wanted func(string) bool) {
	t.Helper()
	waitUntil(t, what, func() bool {
		if slices.ContainsFunc(p.lines(), wanted) {
			return true
		}
		select {
		case <-p.read:
			t.Fatalf("%s ended while waiting for %s\n%s", p.name, what, strings.Join(p.lines(), ""))
		default:
		}
		return false
	})
}

// stop ends the process and requires that it ends well.
func (p *process) stop(t testing.TB, signal os.Signal) {
	_ = p.cmd.Process.Signal(signal)
	kill := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	<-p.read
	if err := p.cmd.Wait(); err != nil && signal == os.Interrupt {
		t.Errorf("%s ended with %v\n%s", p.name, err, p.errors.String())
	}
	if t.Failed() {
		t.Logf("output of %s:\n%s", p.name, tail(p.lines(), 100))
	}
}

func tail(lines []string, n int) string {
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// waitUntil polls until the condition holds.
func waitUntil(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func statusOf(url string) int {
	resp, err := http.Get(url)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}
