package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// goSDK is the package whose own tests run through the gateway.
const goSDK = "github.com/openai/openai-go/v3"

// goSDKTests are the tests of the Go SDK for what the gateway serves, by
// package. Each has to run; none may be skipped.
var goSDKTests = map[string][]string{
	goSDK: {
		"TestChatCompletionNewWithOptionalParams", "TestCompletionNewWithOptionalParams",
		"TestEmbeddingNewWithOptionalParams", "TestModelGet", "TestModelList", "TestUsage",
	},
	goSDK + "/responses": {"TestResponseNewWithOptionalParams"},
}

// goSDKModels are the models that these tests ask for.
var goSDKModels = []string{"gpt-4o", "gpt-6-astra", "gpt-3.5-turbo-instruct", "text-embedding-3-small"}

// TestGoSDKOwnSuite runs the Go SDK's own tests through the gateway to the
// mock server that its authors test against. The mock checks every request
// against the API's description and refuses what does not fit, so a request
// that the gateway damaged fails its test.
func TestGoSDKOwnSuite(t *testing.T) {
	t.Parallel()
	mock := startSteady(t)
	pools := make([]pool, len(goSDKModels))
	for i, m := range goSDKModels {
		pools[i] = pool{model: m, urls: []string{mock.url}}
	}
	g := startGateway(t, "", pools...)

	passed := runGoSDKTests(t, g.url)
	for pkg, names := range goSDKTests {
		for _, name := range names {
			if passed[pkg+" "+name] != "pass" {
				t.Errorf("%s of %s: %q, want pass", name, pkg, passed[pkg+" "+name])
			}
		}
	}
	// Models are answered by the gateway itself; everything else went through.
	want := []string{"/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"}
	if got := mock.forwarded(t); !slices.Equal(got, want) {
		t.Errorf("the mock server got %q, want %q", got, want)
	}
}

// runGoSDKTests returns how each test ended, by package and name.
func runGoSDKTests(t *testing.T, url string) map[string]string {
	t.Helper()
	var packages, names []string
	for pkg, tests := range goSDKTests {
		packages = append(packages, pkg)
		names = append(names, tests...)
	}
	args := []string{"test", "-json", "-count=1", "-vet=off", "-run", "^(" + strings.Join(names, "|") + ")$"}
	cmd := exec.Command("go", append(args, packages...)...)
	cmd.Dir = filepath.Join(suite.root, "test")
	cmd.Env = append(os.Environ(), "TEST_API_BASE_URL="+url+"/v1", "SKIP_MOCK_TESTS=false")
	out, err := cmd.Output()
	ended := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		var e struct{ Action, Package, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		switch e.Action {
		case "pass", "fail", "skip":
			ended[e.Package+" "+e.Test] = e.Action
		case "output":
			if err != nil {
				t.Log(strings.TrimSpace(e.Output))
			}
		}
	}
	if err != nil {
		t.Errorf("go test: %v", err)
	}
	return ended
}

// steady is the mock server; it has no /v1 in its paths, so it serves a copy
// of the description that has.
type steady struct {
	*process
	url string
}

func startSteady(t *testing.T) *steady {
	t.Helper()
	spec := loadSpec(t)
	paths := map[string]any{}
	for path, item := range spec["paths"].(map[string]any) {
		paths["/v1"+path] = item
	}
	spec["paths"] = paths
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "openapi.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	binary := tool(t, "node/node_modules/@stdy/cli-"+nodePlatform()+"/bin/steady")
	port := freePort(t)
	s := &steady{url: "http://127.0.0.1:" + port}
	s.process = startProcess(t, os.Kill, binary, "--host", "127.0.0.1", "--port", port, "--log-format=json", file)
	waitUntil(t, "the mock server", func() bool { return statusOf(s.url+"/v1/models") == 200 })
	return s
}

// nodePlatform is this machine in Node's words.
func nodePlatform() string {
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return runtime.GOOS + "-" + arch
}

// forwarded are the paths of the requests that the mock server got, sorted,
// without the probes. It reports every fault that the mock found in them.
func (s *steady) forwarded(t *testing.T) []string {
	t.Helper()
	var paths []string
	for _, line := range s.lines() {
		var l struct {
			Type        string
			Request     struct{ Method, Path string }
			Response    struct{ Status int }
			Diagnostics json.RawMessage
		}
		if json.Unmarshal([]byte(line), &l) != nil || l.Type != "request" || l.Request.Method != "POST" {
			continue
		}
		paths = append(paths, l.Request.Path)
		if l.Response.Status != 200 || string(l.Diagnostics) != "[]" {
			t.Errorf("the mock server found fault with %s: %d %s", l.Request.Path, l.Response.Status, l.Diagnostics)
		}
	}
	slices.Sort(paths)
	return paths
}
