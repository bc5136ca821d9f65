package proxy

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/router"
)

// A decision in a header is printable ASCII on one line, bounded, and the same
// decision.
func TestDecisionText(t *testing.T) {
	candidates := make([]router.Considered, 20)
	for i := range candidates {
		candidates[i] = router.Considered{Backend: "b", State: "up", P50: 1234.567, P95: 2345.678, Score: 0.9876}
	}
	long := make([]router.Considered, 8)
	for i := range long {
		long[i].Backend = strings.Repeat("b", 1000)
	}
	for name, row := range map[string]struct {
		in         router.Decision
		candidates int
	}{
		"plain":             {router.Decision{Pick: "a"}, 0},
		"odd names":         {router.Decision{Pick: "ü\n\r\x00\x7f\"\\😀\xff", Tenant: "<script>"}, 0},
		"many candidates":   {router.Decision{Pick: "a", Candidates: candidates}, 8},
		"long names":        {router.Decision{Pick: "a", Candidates: long}, 3},
		"other than others": {router.Decision{Reason: "shed_deadline", Outcome: "refused", Candidates: candidates[:3]}, 3},
	} {
		text := decisionText(row.in)
		if len(text) > 4096 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%s: %d bytes: %q", name, len(text), text)
		}
		var back router.Decision
		if err := json.Unmarshal([]byte(text), &back); err != nil {
			t.Fatalf("%s: %v: %s", name, err, text)
		}
		if len(back.Candidates) != row.candidates || back.Pick != strings.ToValidUTF8(row.in.Pick, "\ufffd") || back.Tenant != row.in.Tenant || back.Reason != row.in.Reason {
			t.Errorf("%s: came back as %+v", name, back)
		}
	}
	if text := decisionText(router.Decision{Request: strings.Repeat("x", 5000)}); text != "" {
		t.Errorf("too long for a header: %d bytes", len(text))
	}
}
