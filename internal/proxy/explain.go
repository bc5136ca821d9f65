package proxy

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/firsttoken/firsttoken/pkg/router"
)

const (
	explainHeader  = "X-Firsttoken-Explain"
	decisionHeader = "X-Firsttoken-Decision"
	// shownCandidates and maxDecision bound the header: its candidates, and its bytes.
	shownCandidates = 8
	maxDecision     = 4 << 10
)

// wantsDecision reports whether the client asks for the record of the decision
// and may have it.
func (x *exchange) wantsDecision() bool {
	return x.table.Explain && x.r.Header.Get(explainHeader) == "1"
}

// showDecision puts the record of the last decision into the answer's headers.
func (x *exchange) showDecision() {
	if !x.ask.Explain {
		return
	}
	d := x.refusal
	if d == nil && x.last != nil {
		d = x.last.Decision()
	}
	if d != nil {
		if text := decisionText(*d); text != "" {
			x.w.Header()[decisionHeader] = []string{text}
		}
	}
}

// decisionText is a decision as a header value: JSON of printable ASCII on one
// line, with as many candidates as there is room for; "" if there is no room at all.
func decisionText(d router.Decision) string {
	for n := min(len(d.Candidates), shownCandidates); n >= 0; n-- {
		d.Candidates = d.Candidates[:n]
		text, err := json.Marshal(d)
		if err != nil {
			return ""
		}
		if s := ascii(string(text)); len(s) <= maxDecision {
			return s
		}
	}
	return ""
}

// ascii escapes what is not printable ASCII, which JSON has in strings only.
func ascii(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
