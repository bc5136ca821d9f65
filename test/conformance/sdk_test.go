package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// clientKey is the key that the SDKs send; it must not reach a backend.
const clientKey = "sk-client-secret"

// call is what an SDK is asked to do.
type call struct {
	API        string   `json:"api"` // models, model, chat, completions, embeddings, responses
	Model      string   `json:"model"`
	Prompts    []string `json:"prompts"`
	MaxTokens  int      `json:"max_tokens"` // 0: not said
	Stream     bool     `json:"stream"`
	Usage      bool     `json:"usage"`       // asks for the usage chunk
	LeaveAfter int      `json:"leave_after"` // chunks after which the client closes the stream; 0 reads on
	Retries    int      `json:"retries"`     // that the SDK may make
}

// result is what an SDK made of the answer.
type result struct {
	Text        string     `json:"text"`
	Finish      string     `json:"finish"` // finish reason, or status of a response
	Tokens      int        `json:"tokens"` // completion tokens of the usage
	Chunks      int        `json:"chunks"`
	UsageChunks int        `json:"usage_chunks"`
	Tools       []toolCall `json:"tools"`
	Models      []string   `json:"models"`
	Vectors     []int      `json:"vectors"` // dimensions of each
	Events      []string   `json:"events"`  // types of a response's events
	Sequence    []int      `json:"sequence"`
	Ended       bool       `json:"ended"` // it looked whole to the application
	Error       *sdkError  `json:"error"`
}

type toolCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// sdkError is an error as the application sees it.
type sdkError struct {
	Class     string `json:"class"`
	Message   string `json:"message"`
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Param     string `json:"param"`
	Type      string `json:"type"`
	RequestID string `json:"request_id"`
}

// sdk makes calls against a base URL, one after the other.
type sdk func(t *testing.T, base string, calls []call) []result

func TestPythonSDK(t *testing.T) {
	t.Parallel()
	python := tool(t, "python/bin/python")
	testSDK(t, script(python, "sdk.py"))
}

func TestNodeSDK(t *testing.T) {
	t.Parallel()
	tools := tool(t, "node")
	testSDK(t, script("node", "sdk.mjs", "NODE_TOOLS="+tools))
}

func TestGoSDK(t *testing.T) {
	t.Parallel()
	testSDK(t, callGo)
}

// script is an SDK whose calls a script makes in a process of its own.
func script(command, file string, env ...string) sdk {
	return func(t *testing.T, base string, calls []call) []result {
		t.Helper()
		plan, err := json.Marshal(calls)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, command, file)
		cmd.Env = append(os.Environ(), "OPENAI_BASE_URL="+base, "OPENAI_API_KEY="+clientKey, "NO_PROXY=127.0.0.1")
		cmd.Env = append(cmd.Env, env...)
		cmd.Stdin = bytes.NewReader(plan)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var results []result
		for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
			var r result
			if err := dec.Decode(&r); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, out)
			}
			results = append(results, r)
		}
		if err != nil || len(results) != len(calls) {
			t.Fatalf("%s: %v after %d of %d calls\n%s", file, err, len(results), len(calls), stderr.String())
		}
		return results
	}
}

// testSDK makes the calls of all scenarios with one SDK, through a gateway of
// its own, and then judges each.
func testSDK(t *testing.T, call sdk) {
	w := newWorld(t, scenarios(t))
	results := call(t, w.gateway.url+"/v1", w.calls)
	for i, s := range w.scenarios {
		t.Run(s.name, func(t *testing.T) {
			got := seen{result: results[i], model: s.call.Model, backend: w.backends[s.call.Model], gateway: w.gateway}
			s.check(t, got)
			keptSecret(t, got.backend)
		})
	}
}

// world is a gateway with a backend for each scenario that wants its own.
type world struct {
	gateway   *gateway
	scenarios []scenario
	calls     []call
	backends  map[string]*fakellm.Backend // by model
}

func newWorld(t *testing.T, scenarios []scenario) *world {
	t.Helper()
	w := &world{scenarios: scenarios, backends: map[string]*fakellm.Backend{}}
	pools := simulatedFleet(t)
	pools[0].keys = fmt.Sprintf("aliases: [%s]", slashModel)
	for _, s := range scenarios {
		w.calls = append(w.calls, s.call)
		if s.script == nil || w.backends[s.call.Model] != nil {
			continue
		}
		b := &fakellm.Backend{Model: s.call.Model, Script: s.script}
		w.backends[s.call.Model] = b
		pools = append(pools, pool{model: s.call.Model, urls: []string{serveBackend(t, b)}, keys: s.keys})
	}
	pools = append(pools, pool{model: deadModel, urls: []string{"http://127.0.0.1:" + freePort(t)}})
	w.gateway = startGateway(t, "", pools...)
	return w
}

// seen is what there is to judge of a scenario.
type seen struct {
	result
	model   string
	backend *fakellm.Backend // nil if it has none of its own
	gateway *gateway
}

// keptSecret requires that a backend never saw the client's key.
func keptSecret(t *testing.T, b *fakellm.Backend) {
	if b == nil {
		return
	}
	for _, r := range b.Requests() {
		for name, values := range r.Header {
			if strings.Contains(strings.Join(values, " "), clientKey) {
				t.Errorf("the client's key reached the backend in %s", name)
			}
		}
	}
}
