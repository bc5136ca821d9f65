package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/report"
	"github.com/firsttoken/firsttoken/internal/trace"
)

func TestPlansThatAreWrong(t *testing.T) {
	const target = "http://127.0.0.1:8080"
	rows := []struct {
		plan Plan
		want string // the flag and what to do
	}{
		{Plan{}, "--target is missing: give"},
		{Plan{Target: "localhost:8080"}, "--target \"localhost:8080\""},
		{Plan{Target: target, Endpoint: "chats"}, "--endpoint \"chats\" is unknown: give"},
		{Plan{Target: target, Rate: -1}, "--rate -1: give"},
		{Plan{Target: target, Rate: 1, Concurrency: 8}, "--concurrency is a closed loop"},
		{Plan{Target: target, Concurrency: -8}, "--concurrency -8: give"},
		{Plan{Target: target, Law: "poisson"}, "--law needs --rate"},
		{Plan{Target: target, Rate: 1, Law: "gamma"}, "--law \"gamma\" is unknown: give"},
		{Plan{Target: target, Rate: 1, Law: "gamma:0"}, "--law \"gamma:0\""},
		{Plan{Target: target, Trace: "a", Workload: "b"}, "--trace and --workload exclude"},
		{Plan{Target: target, Trace: "/nowhere"}, "/nowhere"},
		{Plan{Target: target, Workload: "b", Requests: 1}, "--workload: no workload \"b\": there are"},
		{Plan{Target: target, Workload: "chat,poetry"}, "--workload: no workload \"poetry\": there are customer-service (chat), code-completion (code), live-summarisation (summary)"},
		{Plan{Target: target, Workload: "chat,chat"}, "is there twice; write it once"},
		{Plan{Target: target, Multiplier: 2}, "--rate-multiplier"},
		{Plan{Target: target, Workload: "code-completion", Multiplier: -2}, "--rate-multiplier -2: give"},
		{Plan{Target: target, Requests: -1}, "--requests is negative: give"},
		{Plan{Target: target, Timeout: -1}, "--timeout is negative: give"},
		{Plan{Target: target, PromptTokens: "many"}, "--prompt-tokens \"many\": give"},
		{Plan{Target: target, OutputTokens: "9-3"}, "--output-tokens \"9-3\": give"},
		{Plan{Target: target, Models: []string{"m=0"}}, "--model \"m=0\": give"},
		{Plan{Target: target, Models: []string{"=2"}}, "--model \"=2\" has no name"},
		{Plan{Target: target, Objective: "ttft=320"}, "--objective \"ttft=320\": \"320\" is no duration"},
		{Plan{Target: target, Objective: "ttft=1s,latency=2s"}, "--objective \"latency=2s\""},
	}
	for _, row := range rows {
		if _, err := New(row.plan, nil, nil); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%+v: error %v, want %q", row.plan, err, row.want)
		}
	}
	_, err := New(Plan{Target: "x", Rate: -1, PromptTokens: "y"}, nil, nil)
	if err == nil || strings.Count(err.Error(), "--") != 3 {
		t.Errorf("not everything that is wrong is said at once: %v", err)
	}
}

func TestDefaults(t *testing.T) {
	const target = "http://127.0.0.1:8080"
	closed, err := Plan{Target: target + "/v1/"}.checked()
	if err != nil || closed.Open() || closed.Concurrency != 8 || closed.Requests != 200 || closed.Duration != 0 || closed.Target != target {
		t.Errorf("%+v, %v", closed, err)
	}
	open, err := Plan{Target: target, Rate: 3}.checked()
	if err != nil || !open.Open() || open.Law != "poisson" || open.Duration != time.Minute || open.Requests != 0 {
		t.Errorf("%+v, %v", open, err)
	}
}

func TestRateOfALaw(t *testing.T) {
	for _, law := range []string{"poisson", "constant", "gamma:2", "weibull:0.7"} {
		p, err := Plan{Target: "http://x", Models: []string{"m"}, Rate: 20, Law: law, Duration: 200 * time.Second, Seed: 3}.checked()
		if err != nil {
			t.Fatal(err)
		}
		s, _, err := p.source()
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.Collect()
		if err != nil || len(all) < 3600 || len(all) > 4400 || all[len(all)-1].At >= 200*time.Second {
			t.Errorf("%s: %d arrivals, %v", law, len(all), err)
		}
	}
}

func TestPrompt(t *testing.T) {
	a := trace.Request{PromptTokens: 40, Content: []trace.Segment{{ID: 1, Tokens: 10}, {ID: 2, Tokens: 20}}}
	b := trace.Request{PromptTokens: 15, Content: []trace.Segment{{ID: 1, Tokens: 10}, {ID: 3, Tokens: 20}}}
	x, y := prompt(&a, 7), prompt(&b, 7)
	if len(x) != 160 || len(y) != 60 {
		t.Fatalf("%d and %d bytes", len(x), len(y))
	}
	if x[:40] != y[:40] || x[40:60] == y[40:60] {
		t.Errorf("shared text %q and %q", x[:60], y)
	}
	if other := prompt(&a, 8); other[:120] != x[:120] || other[120:] == x[120:] {
		t.Error("only the request's own text may depend on it")
	}
	for i := 0; i < len(words); i += bytesPerToken {
		if words[i] != ' ' || strings.Count(words, words[i:i+bytesPerToken]) != 1 {
			t.Errorf("%q is no word of its own", words[i:i+bytesPerToken])
		}
	}
	if wordCount != 128 || len(words) != 512 {
		t.Errorf("%d words", wordCount)
	}
}

// FuzzPlan: what is accepted makes sense, whatever is written.
func FuzzPlan(f *testing.F) {
	f.Add("100-200", "gamma:2", "ttft=320ms,tpot=50ms", "m=2")
	f.Add("1", "weibull:0.5", "e2e=1h", "a/b")
	f.Add("-1", "gamma:-1", "=", "=")
	f.Fuzz(func(t *testing.T, tokens, law, objective, model string) {
		if s, err := parseSize("--prompt-tokens", tokens); err == nil && tokens != "" {
			if n := s.of(1<<63, 5); n < s.low || n > s.high || s.low < 1 {
				t.Errorf("size %q gives %d", tokens, n)
			}
		}
		if l, err := trace.ParseLaw(law); err == nil && l(1) == nil {
			t.Errorf("law %q is none", law)
		}
		if o, err := report.ParseObjective(objective); err == nil && (o.TTFT < 0 || o.TPOT < 0 || o.E2E < 0) {
			t.Errorf("objective %q is %+v", objective, o)
		}
		if m, err := trace.ParseWeighted([]string{model}); err == nil && (m[0].Name == "" || !(m[0].Weight > 0)) {
			t.Errorf("model %q is %+v", model, m)
		}
	})
}
