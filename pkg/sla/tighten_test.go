package sla

import (
	"errors"
	"math"
	"testing"
	"time"
)

const ms = time.Millisecond

var scaledFile = withObjectives("{metric: ttft, percentile: 95, threshold: {base: 400ms, per_token: 250us}}, {metric: tpot, percentile: 90, threshold: 80ms}, {metric: e2e, percentile: 95, threshold: 20s}")

func TestBudgets(t *testing.T) {
	c := mustParse(t, scaledFile).Contract("chat")
	accepted := time.Unix(1000, 0)
	for _, row := range []struct {
		tokens int
		ttft   time.Duration
		due    time.Duration
	}{
		{0, 400 * ms, 400 * ms},
		{-1, 400 * ms, 400 * ms},
		{2000, 900 * ms, 900 * ms},
		{100_000, 25400 * ms, 20 * time.Second}, // the whole answer is due earlier
		{math.MaxInt, math.MaxInt64, 20 * time.Second},
	} {
		if got, ok := c.TTFTBudget(row.tokens); got != row.ttft || !ok {
			t.Errorf("%d tokens: %v, %v", row.tokens, got, ok)
		}
		if got, ok := c.Deadline(accepted, row.tokens); !got.Equal(accepted.Add(row.due)) || !ok {
			t.Errorf("%d tokens: due %v, %v", row.tokens, got, ok)
		}
	}
	if got, ok := c.TPOTBudget(); got != 80*ms || !ok {
		t.Errorf("tpot %v, %v", got, ok)
	}
}

func TestGoverning(t *testing.T) {
	const p50, p95, p99 = "{metric: ttft, percentile: 50, threshold: 100ms}", ttft, "{metric: ttft, percentile: 99, threshold: 800ms}"
	for _, row := range []struct {
		objectives string
		want       float64
	}{
		{p50 + "," + p95 + "," + p99, 95}, {p99 + "," + p95, 95}, {p99 + "," + p50, 99}, {p50, 50},
		{"{metric: ttft, percentile: 80, threshold: 1s}," + p50, 80},
	} {
		if got := mustParse(t, withObjectives(row.objectives)).Contract("chat").Governing(TTFT).Percentile; got != row.want {
			t.Errorf("%s: P%v governs", row.objectives, got)
		}
	}
}

// A partial or missing contract promises nothing of the rest.
func TestNothingPromised(t *testing.T) {
	var none *Contract
	for _, c := range []*Contract{none, mustParse(t, withObjectives("{metric: availability, target: 99%}")).Contract("chat")} {
		_, ttft := c.TTFTBudget(1)
		_, tpot := c.TPOTBudget()
		_, e2e := c.E2EBudget(1)
		_, due := c.Deadline(time.Unix(1, 0), 1)
		_, limit := c.Limit(time.Unix(1, 0))
		if ttft || tpot || e2e || due || limit {
			t.Errorf("%q: %v %v %v %v %v", c.Name(), ttft, tpot, e2e, due, limit)
		}
		terms, err := c.Tighten(100*ms, 0)
		if budget, ok := terms.TTFTBudget(1); err != nil || budget != 100*ms || !ok {
			t.Errorf("%q asked for 100ms: %v, %v, %v", c.Name(), budget, ok, err)
		}
	}
	if at, ok := mustParse(t, with("visible_limit: 800ms")).Contract("chat").Limit(time.Unix(1, 0)); !ok || !at.Equal(time.Unix(1, 0).Add(800*ms)) {
		t.Errorf("limit %v, %v", at, ok)
	}
}

// The first token is due when the first of what bounds it says so.
func TestFirstDue(t *testing.T) {
	growing := "{metric: ttft, percentile: 95, threshold: {base: 400ms, per_token: 1ms}}"
	for _, row := range []struct {
		text   string
		tokens int
		due    time.Duration
	}{
		{withObjectives("{metric: availability, target: 99%}", "visible_limit: 800ms"), 0, 800 * ms},
		{withObjectives("{metric: e2e, percentile: 95, threshold: 20s}", "visible_limit: 800ms"), 0, 800 * ms},
		{withObjectives("{metric: e2e, percentile: 95, threshold: 500ms}", "visible_limit: 800ms"), 0, 500 * ms},
		{withObjectives(growing, "visible_limit: 800ms"), 100, 500 * ms},
		{withObjectives(growing, "visible_limit: 800ms"), 1000, 800 * ms},
		{withObjectives(growing), 1000, 1400 * ms},
	} {
		if due, ok := mustParse(t, row.text).Contract("chat").FirstDue(row.tokens); due != row.due || !ok {
			t.Errorf("%d tokens are due after %v, %v; want %v of\n%s", row.tokens, due, ok, row.due, row.text)
		}
	}
}

func TestTightenBy(t *testing.T) {
	fixed := mustParse(t, withObjectives(ttft+", {metric: tpot, percentile: 90, threshold: 80ms}")).Contract("chat")
	scaled := mustParse(t, scaledFile).Contract("chat")
	for _, row := range []struct {
		name       string
		c          *Contract
		ttft, tpot string
		wantTTFT   time.Duration // of a prompt of 2000 tokens
		wantTPOT   time.Duration
		err        string
	}{
		{name: "nothing", c: fixed, wantTTFT: 320 * ms, wantTPOT: 80 * ms},
		{name: "both", c: fixed, ttft: "250", tpot: "12.5", wantTTFT: 250 * ms, wantTPOT: 12500 * time.Microsecond},
		{name: "equal", c: fixed, ttft: "320", wantTTFT: 320 * ms, wantTPOT: 80 * ms},
		{name: "scaled, tighter here", c: scaled, ttft: "500", wantTTFT: 500 * ms, wantTPOT: 80 * ms},
		{name: "scaled, looser here", c: scaled, ttft: "1000", wantTTFT: 900 * ms, wantTPOT: 80 * ms},
		{name: "looser", c: fixed, ttft: "500", err: `x-slo-ttft-ms: 500 ms is looser than the 320 ms of contract "chat"; send at most 320, or leave the header out`},
		{name: "looser tpot", c: fixed, tpot: "80.5", err: `x-slo-tpot-ms: 80.5 ms is looser than the 80 ms of contract "chat"; send at most 80, or leave the header out`},
		{name: "malformed", c: fixed, ttft: "250ms", err: `x-slo-ttft-ms: "250ms" is not a number of milliseconds; send a number above 0 such as 250, at most 86400000`},
		{name: "malformed tpot", c: fixed, tpot: "-1", err: `x-slo-tpot-ms: "-1" is not a number of milliseconds; send a number above 0 such as 250, at most 86400000`},
		{name: "zero", c: fixed, ttft: "0", err: `x-slo-ttft-ms: "0" ms is out of range; send a number above 0 such as 250, at most 86400000`},
		{name: "infinite", c: fixed, ttft: "99999999999999999999", err: `x-slo-ttft-ms: "99999999999999999999" ms is out of range; send a number above 0 such as 250, at most 86400000`},
		{name: "NaN", ttft: "NaN", err: `x-slo-ttft-ms: "NaN" is not a number of milliseconds; send a number above 0 such as 250, at most 86400000`},
	} {
		terms, err := row.c.TightenBy(headers(TTFTHeader, row.ttft, TPOTHeader, row.tpot))
		if row.err != "" {
			var he *HeaderError
			if !errors.As(err, &he) || err.Error() != row.err {
				t.Errorf("%s: got %v, want %s", row.name, err, row.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		gotTTFT, _ := terms.TTFTBudget(2000)
		gotTPOT, _ := terms.TPOTBudget()
		if gotTTFT != row.wantTTFT || gotTPOT != row.wantTPOT {
			t.Errorf("%s: ttft %v, tpot %v", row.name, gotTTFT, gotTPOT)
		}
		due, _ := terms.Deadline(time.Unix(0, 0), 2000)
		if due.Sub(time.Unix(0, 0)) != row.wantTTFT {
			t.Errorf("%s: due %v", row.name, due)
		}
	}
	if _, err := fixed.Tighten(-1, 0); err == nil {
		t.Error("a negative budget is accepted")
	}
}
