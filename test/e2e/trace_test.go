//go:build e2e

package e2e

import (
	"encoding/csv"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// arrival is one request of a recorded trace.
type arrival struct {
	at             time.Duration // since the first
	prompt, output int           // tokens
}

// readTrace reads the first n arrivals of a trace of Azure's LLM service. The
// test is skipped when the data is not there.
func readTrace(t *testing.T, name string, n int) []arrival {
	t.Helper()
	dir := os.Getenv("FIRSTTOKEN_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	f, err := os.Open(filepath.Join(dir, "traces", name))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("the trace is not there: %v; FIRSTTOKEN_DATA says where the data is", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if rows = rows[1:]; len(rows) < n {
		t.Fatalf("the trace has %d requests, want %d", len(rows), n)
	}
	trace := make([]arrival, n)
	for i, row := range rows[:n] {
		if trace[i], err = parseArrival(row, rows[0][0]); err != nil {
			t.Fatalf("row %d of %s: %v", i+2, name, err)
		}
	}
	return trace
}

func parseArrival(row []string, first string) (a arrival, err error) {
	const layout = "2006-01-02 15:04:05.9999999"
	began, err1 := time.Parse(layout, first)
	at, err2 := time.Parse(layout, row[0])
	prompt, err3 := strconv.Atoi(row[1])
	output, err4 := strconv.Atoi(row[2])
	return arrival{at: at.Sub(began), prompt: prompt, output: output}, errors.Join(err1, err2, err3, err4)
}

// The engine counts a token for each four bytes, and its chat template adds
// six to a conversation of one message.
const (
	bytesPerToken  = 4
	templateTokens = 6
)

// tokensOfPrompt is what the engine counts for a prompt of so many tokens;
// the shortest are all template.
func tokensOfPrompt(n int) int { return max(n, templateTokens) }

// promptOf is a text of so many tokens that no other prompt begins with.
func promptOf(rng *rand.Rand, n int) []byte {
	text := make([]byte, (tokensOfPrompt(n)-templateTokens)*bytesPerToken)
	for i := 0; i < len(text); i += bytesPerToken {
		bits := rng.Uint32()
		for j := range bytesPerToken {
			text[i+j] = 'a' + byte(bits>>(8*j))%26
		}
	}
	return text
}
