package report_test

import (
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
)

func TestParseObjective(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]report.Objective{
		"":                     {},
		"ttft=400ms":           {TTFT: 400 * ms},
		"tpot=80ms, e2e=30s":   {TPOT: 80 * ms, E2E: 30 * time.Second},
		"ttft-per-token=250us": {TTFTPerToken: 250 * time.Microsecond},
		"ttft=1s,ttft-per-token=1ms,tpot=2ms,e2e=1h": {time.Second, ms, 2 * ms, time.Hour},
	} {
		if got, err := report.ParseObjective(text); err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"ttft":             `"" is no duration above 0; write something like ttft=320ms`,
		"ttft=":            `"" is no duration`,
		"ttft=400":         `"400" is no duration`,
		"ttft=-1s":         `"-1s" is no duration above 0`,
		"ttft=0s":          `"0s" is no duration above 0`,
		"latency=1s":       `"latency=1s": write ttft, ttft-per-token, tpot or e2e`,
		"ttft=1s,":         `"": write ttft`,
		"ttft=1s,ttft=2s":  "ttft is there twice",
		"ttft=1s;tpot=2ms": `"1s;tpot=2ms" is no duration`,
		"TTFT=1s":          `"TTFT=1s": write ttft`,
	} {
		got, err := report.ParseObjective(text)
		if err == nil || !strings.Contains(err.Error(), want) || got != (report.Objective{}) {
			t.Errorf("%q is %+v, error %v; want %s", text, got, err, want)
		}
	}
}

func FuzzParseObjective(f *testing.F) {
	f.Add("ttft=400ms,ttft-per-token=250us,tpot=80ms,e2e=30s")
	f.Add("ttft=,=1s")
	f.Fuzz(func(t *testing.T, text string) {
		o, err := report.ParseObjective(text)
		if o.TTFT < 0 || o.TTFTPerToken < 0 || o.TPOT < 0 || o.E2E < 0 || err != nil && o != (report.Objective{}) || err == nil && (o == report.Objective{}) != (text == "") {
			t.Errorf("%q is %+v, %v", text, o, err)
		}
	})
}

func TestObjectiveMet(t *testing.T) {
	t.Parallel()
	sample := func(change func(*report.Sample)) *report.Sample {
		s := served(0, 100*ms, 10*ms, time.Second)
		s.Prompt = 1000
		change(&s)
		return &s
	}
	plain := sample(func(*report.Sample) {})
	for _, c := range []struct {
		name string
		o    report.Objective
		s    *report.Sample
		met  bool
	}{
		{"no objective", report.Objective{}, plain, true},
		{"no objective, not served", report.Objective{}, sample(func(s *report.Sample) { s.Reason = report.Lost }), false},
		{"TTFT reached", report.Objective{TTFT: 100 * ms}, plain, true},
		{"TTFT missed", report.Objective{TTFT: 100*ms - 1}, plain, false},
		{"TTFT by length", report.Objective{TTFT: 50 * ms, TTFTPerToken: 50 * time.Microsecond}, plain, true},
		{"TTFT by length missed", report.Objective{TTFTPerToken: 99 * time.Microsecond}, plain, false},
		{"TPOT", report.Objective{TPOT: 9 * ms}, plain, false},
		{"E2E", report.Objective{E2E: time.Second}, plain, true},
		{"all but one", report.Objective{TTFT: time.Second, TPOT: time.Second, E2E: 999 * ms}, plain, false},
		{"no stream has no TTFT", report.Objective{TTFT: ms}, sample(func(s *report.Sample) { s.TTFT, s.TPOT = 0, 0 }), true},
	} {
		if got := c.o.Met(c.s); got != c.met {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
