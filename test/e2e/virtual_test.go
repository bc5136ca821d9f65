//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/test/e2e/live"
)

// chats is 200 requests of a minute.
const chats = "../../internal/replay/testdata/chats.jsonl"

// simFleet is engines whose first tokens take far longer than what the network,
// the machine and the processes between add. They cache no prefixes, so that
// two arrivals that swap places on the way change no other request.
const simFleet = `
engines:
  - {name: a, profile: a100-llama-2-70b-fp16-tp4, count: 4, model: m, prefix_caching: false}
network: {delay: 100us}
`

// TestVirtualTimeIsRealTime sends one trace through sim, serve and bench, twice
// as fast as real, and through replay. Both tell the same P50 and P95 of TTFT.
func TestVirtualTimeIsRealTime(t *testing.T) {
	const speed, tolerance = 2, 0.05
	dir := t.TempDir()
	fleet, models, report := filepath.Join(dir, "fleet.yaml"), filepath.Join(dir, "models.yaml"), filepath.Join(dir, "report.json")
	if err := os.WriteFile(fleet, []byte(simFleet), 0o600); err != nil {
		t.Fatal(err)
	}
	startSim(t, fleet, models, speed)
	backends, err := os.ReadFile(models)
	if err != nil {
		t.Fatal(err)
	}
	gateway := startBinary(t, live.Listen+"defaults: {policy: round-robin}\n"+string(backends))

	command(t, "bench", "--target", gateway.url, "--endpoint", "completions", "--model", "m", "--trace", chats,
		"--rate-multiplier", fmt.Sprint(speed), "--ignore-eos", "--warmup", "0", "--json", report)
	var real struct {
		All struct {
			Served int    `json:"served"`
			TTFT   spread `json:"ttft"`
		} `json:"all"`
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	read(t, text, &real)
	var virtual struct {
		Runs []struct {
			All struct {
				TTFT spread `json:"ttft"`
			} `json:"all"`
		} `json:"runs"`
	}
	read(t, command(t, "replay", "--fleet", fleet, "--trace", chats, "--policy", "round-robin", "--json", "-"), &virtual)

	told := virtual.Runs[0].All.TTFT
	if real.All.Served != told.Count {
		t.Errorf("%d requests were served, a replay serves %d", real.All.Served, told.Count)
	}
	for _, q := range []struct {
		name          string
		real, virtual float64
	}{
		{"P50", speed * real.All.TTFT.P50, told.P50}, {"P95", speed * real.All.TTFT.P95, told.P95},
	} {
		off := q.virtual/q.real - 1
		t.Logf("TTFT %s: %.1f ms in real time, %.1f ms in virtual time, %+.1f %%", q.name, q.real, q.virtual, 100*off)
		if off < -tolerance || off > tolerance {
			t.Errorf("TTFT %s: %.1f ms in real time, %.1f ms in virtual time", q.name, q.real, q.virtual)
		}
	}
}

type spread struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_ms"`
	P95   float64 `json:"p95_ms"`
}

func read(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%v in %.300s", err, text)
	}
}

// command runs the binary to its end and gives what it prints.
func command(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(setting(t, "FIRSTTOKEN_BIN"), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("firsttoken %s: %v", args[0], err)
	}
	return out
}

// startSim serves a fleet until the end of the test. It returns when the models
// section for a gateway is in its file.
func startSim(t *testing.T, fleet, models string, speed float64) {
	t.Helper()
	cmd := exec.Command(setting(t, "FIRSTTOKEN_BIN"), "sim", "--config", fleet, "--gateway-config", models, "--control", "off", "--speed", fmt.Sprint(speed))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			t.Errorf("sim ended with %v", err)
		}
	})
	live.Await(t, time.Minute, func() string {
		if text, err := os.ReadFile(models); err != nil || len(text) == 0 {
			return "sim has written no configuration"
		}
		return ""
	})
}
