package report

import (
	"fmt"
	"strings"
	"time"
)

// Objective is what a request is meant to meet. A zero part is no objective.
type Objective struct {
	TTFT         time.Duration // base
	TTFTPerToken time.Duration // added for each prompt token
	TPOT         time.Duration
	E2E          time.Duration
}

// Met reports whether a sample met every part of the objective.
func (o Objective) Met(s *Sample) bool {
	if !s.OK() {
		return false
	}
	within := func(v, limit time.Duration) bool { return limit == 0 || v <= limit }
	return within(s.TTFT, o.Within(s.Prompt)) && within(s.TPOT, o.TPOT) && within(s.E2E, o.E2E)
}

// Within is the time to first token allowed for a prompt of that length; 0 if
// there is no objective.
func (o Objective) Within(prompt int) time.Duration {
	return o.TTFT + o.TTFTPerToken*time.Duration(prompt)
}

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
			return Objective{}, fmt.Errorf("%q: write ttft, ttft-per-token, tpot or e2e, then = and a duration", part)
		}
		if *dst > 0 {
			return Objective{}, fmt.Errorf("%q: %s is there twice; write it once", text, name)
		}
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return Objective{}, fmt.Errorf("%q: %q is no duration above 0; write something like %s=320ms", part, value, name)
		}
		*dst = d
	}
	return o, nil
}
