package predict

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/deploy/models"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// BenchmarkSidecar compares one decision over 10 instances by the shipped model
// in process with the same rows sent to a Python sidecar, in turn in one run.
func BenchmarkSidecar(b *testing.B) {
	tools := os.Getenv("FIRSTTOKEN_PREDICT")
	if tools == "" {
		b.Skip("LightGBM is not installed: start this with test/predict/run bench")
	}
	files, err := models.Bootstrap()
	if err != nil {
		b.Fatal(err)
	}
	bundle, err := trees.OpenWith(files, predictor.Names(), predictor.SchemaHash())
	if err != nil {
		b.Fatal(err)
	}
	url := startSidecar(b, filepath.Join(tools, "python", "bin", "python"))
	rng := rand.New(rand.NewPCG(1, 2))
	rows := make([][]float64, 10)
	for i := range rows {
		for range predictor.Names() {
			rows[i] = append(rows[i], 100*rng.Float64())
		}
	}
	body, err := json.Marshal(rows)
	if err != nil {
		b.Fatal(err)
	}
	var here, there time.Duration
	for b.Loop() {
		began := time.Now()
		for _, row := range rows {
			if _, _, err := bundle.Predict(row); err != nil {
				b.Fatal(err)
			}
		}
		middle := time.Now()
		resp, err := http.Post(url, "application/json", bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(resp.Status, err)
		}
		here += middle.Sub(began)
		there += time.Since(middle)
	}
	n := float64(b.N)
	b.ReportMetric(float64(here.Microseconds())/n, "µs-in-process")
	b.ReportMetric(float64(there.Microseconds())/n, "µs-sidecar")
	b.ReportMetric(float64(there)/float64(here), "times")
}

func startSidecar(b *testing.B, python string) (url string) {
	b.Helper()
	cmd := exec.Command(python, "sidecar.py", filepath.Join("..", "..", "deploy", "models", "bootstrap"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal("the sidecar did not start: ", err)
	}
	return "http://127.0.0.1:" + strings.TrimSpace(port)
}
