package report

import (
	"fmt"
	"strings"
	"time"
)

// ParseObjective reads "ttft=400ms,ttft-per-token=250us,tpot=80ms,e2e=30s";
// any of the parts may be left out.
func ParseObjective(text string) (Objective, error) {
	var o Objective
	parts := map[string]*time.Duration{"ttft": &o.TTFT, "ttft-per-token": &o.TTFTPerToken, "tpot": &o.TPOT, "e2e": &o.E2E}
	if text == "" {
		return o, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		dst := parts[name]
		if dst == nil {
			return o, fmt.Errorf("objective %q: write ttft, ttft-per-token, tpot or e2e, then = and a duration", part)
		}
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return o, fmt.Errorf("objective %q: %q is no duration above 0; write something like %s=320ms", part, value, name)
		}
		*dst = d
	}
	return o, nil
}
