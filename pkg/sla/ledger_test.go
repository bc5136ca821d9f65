package sla

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

var (
	good = Outcome{End: Served, TTFT: 100 * ms, TPOT: 10 * ms, E2E: time.Second}
	late = Outcome{End: Served, TTFT: 500 * ms, TPOT: 10 * ms, E2E: time.Second}
)

// testLedger is a ledger of one contract.
func testLedger(t testing.TB, text string) (*Ledger, *Contract) {
	t.Helper()
	set := mustParse(t, text)
	return NewLedger(set, Options{}), set.Contracts()[0]
}

const everything = ttft + ", {metric: tpot, percentile: 90, threshold: 80ms}, {metric: e2e, percentile: 95, threshold: 2s}, {metric: availability, target: 99%}"

func TestJudge(t *testing.T) {
	c := mustParse(t, withObjectives(everything)).Contract("chat")
	for _, row := range []struct {
		name string
		out  Outcome
		want [4]Verdict // ttft, tpot, e2e, availability
	}{
		{"good", good, [4]Verdict{Met, Met, Met, Met}},
		{"late", late, [4]Verdict{Missed, Met, Met, Met}},
		{"at the threshold", Outcome{TTFT: 320 * ms, TPOT: 80 * ms, E2E: 2 * time.Second}, [4]Verdict{Met, Met, Met, Met}},
		{"just past it", Outcome{TTFT: 320*ms + 1, TPOT: 80*ms + 1, E2E: 2*time.Second + 1}, [4]Verdict{Missed, Missed, Missed, Met}},
		{"one token", Outcome{TTFT: 100 * ms, E2E: 100 * ms}, [4]Verdict{Met, Neutral, Met, Met}},
		{"not streamed", Outcome{E2E: time.Second}, [4]Verdict{Neutral, Neutral, Met, Met}},
		{"failed before a token", Outcome{End: Failed, E2E: 50 * ms}, [4]Verdict{Missed, Neutral, Missed, Missed}},
		{"failed later", Outcome{End: Failed, TTFT: 100 * ms, TPOT: 10 * ms, E2E: time.Second}, [4]Verdict{Met, Met, Missed, Missed}},
		{"shed", Outcome{End: Refused}, [4]Verdict{Missed, Neutral, Missed, Missed}},
		{"left early", Outcome{End: Left, E2E: 300 * ms}, [4]Verdict{Neutral, Neutral, Neutral, Neutral}},
		{"left when due", Outcome{End: Left, E2E: 320 * ms}, [4]Verdict{Neutral, Neutral, Neutral, Neutral}},
		{"left when overdue", Outcome{End: Left, E2E: 321 * ms}, [4]Verdict{Missed, Neutral, Neutral, Neutral}},
		{"left while reading", Outcome{End: Left, TTFT: 100 * ms, TPOT: 90 * ms, E2E: time.Second}, [4]Verdict{Met, Missed, Neutral, Neutral}},
		{"left a slow answer", Outcome{End: Left, TTFT: 100 * ms, E2E: 3 * time.Second}, [4]Verdict{Met, Neutral, Missed, Neutral}},
	} {
		for i := range c.Spec.Objectives {
			if got, _ := c.Spec.Objectives[i].Judge(&row.out); got != row.want[i] {
				t.Errorf("%s: %s is %d, want %d", row.name, c.Spec.Objectives[i].ID(), got, row.want[i])
			}
		}
	}
}

// By hand: 20 pseudo-samples, target 0.95, half-life 60 s.
func TestCompliance(t *testing.T) {
	l, c := testLedger(t, with())
	record := func(now time.Time, instance string, n int, out Outcome) {
		for range n {
			l.Record(now, instance, c, out)
		}
	}
	expect := func(now time.Time, instance string, want float64) {
		t.Helper()
		if got := l.Compliance(now, instance, "chat"); math.Abs(got-want) > 1e-12 {
			t.Errorf("%s: %v, want %v", instance, got, want)
		}
	}
	expect(t0, "a", 0.95)
	record(t0, "a", 30, good)
	record(t0, "b", 10, late)
	fleet := (30 + 20*0.95) / (40 + 20)
	expect(t0, "new", fleet)
	expect(t0, "a", (30+20*fleet)/(30+20))
	expect(t0, "b", (0+20*fleet)/(10+20))
	later := t0.Add(time.Minute)
	fleet = (15 + 20*0.95) / (20 + 20)
	expect(later, "b", (0+20*fleet)/(5+20))
	record(later, "b", 5, good)
	fleet = (20 + 20*0.95) / (25 + 20)
	expect(later, "b", (5+20*fleet)/(10+20))
	expect(t0.Add(24*time.Hour), "b", 0.95)
	if got := l.Compliance(t0, "a", "unknown"); got != 1 {
		t.Errorf("an unknown contract has %v", got)
	}
}

// A request met its contract when it met all of what governs it.
func TestComplianceOfSeveralObjectives(t *testing.T) {
	l, c := testLedger(t, withObjectives("{metric: ttft, percentile: 50, threshold: 50ms}, "+ttft+", {metric: tpot, percentile: 90, threshold: 80ms}"))
	l.Record(t0, "a", c, good) // misses the median, which governs nothing
	l.Record(t0, "a", c, Outcome{TTFT: 100 * ms, TPOT: 90 * ms, E2E: time.Second})
	fleet := (1 + 20*0.9) / 22
	if got, want := l.Compliance(t0, "a", "chat"), (1+20*fleet)/22; math.Abs(got-want) > 1e-12 {
		t.Errorf("got %v, want %v", got, want)
	}
	s, _ := l.Status(t0, "chat")
	if shares := s.Instances[0].Shares; len(shares) != 3 || shares[0] >= 0.5 || shares[1] <= 0.95 || shares[2] >= 0.9 {
		t.Errorf("shares %v", shares)
	}
}

// Laws over random traffic: a share lies in [0, 1]; one more miss never raises
// compliance, one more hit never lowers it, anywhere in the fleet; without data
// it is what a new instance has.
func TestComplianceLaws(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		ledgers := [3]*Ledger{} // as it is, with one more miss, with one more hit
		var c *Contract
		for i := range ledgers {
			ledgers[i], c = testLedger(t, with())
		}
		at := t0
		n := rng.IntN(60)
		extra := rng.IntN(n + 1)
		for i := range n + 1 {
			at = at.Add(time.Duration(rng.IntN(20_000)) * ms)
			instance, out := fmt.Sprint(rng.IntN(3)), good
			if rng.IntN(4) == 0 {
				out = late
			}
			if i == extra {
				ledgers[1].Record(at, instance, c, late)
				ledgers[2].Record(at, instance, c, good)
			}
			for _, l := range ledgers {
				l.Record(at, instance, c, out)
			}
		}
		at = at.Add(time.Duration(rng.IntN(100_000)) * ms)
		for _, instance := range []string{"0", "1", "2", "new"} {
			got := ledgers[0].Compliance(at, instance, "chat")
			more, less := ledgers[2].Compliance(at, instance, "chat"), ledgers[1].Compliance(at, instance, "chat")
			const tiny = 1e-12
			if !(less <= got+tiny && got <= more+tiny && less >= 0 && more <= 1) {
				t.Fatalf("seed %d: %v with a miss, %v, %v with a hit", seed, less, got, more)
			}
			if ledgers[0].Compliance(at, "newer", "chat") != ledgers[0].Compliance(at, "new", "chat") {
				t.Fatalf("seed %d: instances without data differ", seed)
			}
		}
	}
}

// A shed request is no instance's fault, and the contract's all the same.
func TestRecordWithoutInstance(t *testing.T) {
	l, c := testLedger(t, with())
	for range 50 {
		l.Record(t0, "", c, Outcome{End: Refused})
	}
	s, _ := l.Status(t0, "chat")
	if got := l.Compliance(t0, "a", "chat"); got != 0.95 || len(s.Instances) != 0 || s.Objectives[0].Missed != 50 {
		t.Errorf("compliance %v, %+v", got, s)
	}
}

func TestAdopt(t *testing.T) {
	l, c := testLedger(t, with())
	for range 50 {
		l.Record(t0, "a", c, late)
	}
	before := l.Compliance(t0, "a", "chat")
	same := mustParse(t, with("priority: 5"))
	l.Adopt(same)
	if got := l.Compliance(t0, "a", "chat"); got != before {
		t.Errorf("equal objectives: %v became %v", before, got)
	}
	l.Record(t0, "a", same.Contracts()[0], late)
	if got := l.Compliance(t0, "a", "chat"); got >= before {
		t.Errorf("the adopted contract records nothing: %v", got)
	}
	l.Adopt(mustParse(t, withObjectives("{metric: ttft, percentile: 95, threshold: 1s}")))
	l.Record(t0, "a", c, late) // of the old revision
	if got := l.Compliance(t0, "a", "chat"); got != 0.95 {
		t.Errorf("other objectives: %v", got)
	}
	l.Adopt(mustParse(t, named("other", "")))
	if _, ok := l.Status(t0, "chat"); ok {
		t.Error("a removed contract is in force")
	}
	if l.Record(t0, "a", nil, late) != nil {
		t.Error("no contract is violated")
	}
}

// A week of traffic with instances that come and go.
func TestMemoryIsBounded(t *testing.T) {
	l, c := testLedger(t, withObjectives(everything))
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var afterADay uint64
	for i := range 7 * 1440 {
		at := t0.Add(time.Duration(i) * time.Minute)
		for j := range 3 {
			l.Record(at, fmt.Sprintf("pod-%d-%d", i/30, j), c, good) // replaced every half hour
		}
		if i == 1440 {
			afterADay = heap()
		}
	}
	if n := len(l.account("chat").cells); n > 12 {
		t.Errorf("%d instances are kept", n)
	}
	if grown := int64(heap()) - int64(afterADay); grown > 100_000 {
		t.Errorf("grew by %d bytes in six days", grown)
	}
	runtime.KeepAlive(l)
}

func TestConcurrentUse(t *testing.T) {
	l, c := testLedger(t, withObjectives(everything))
	set := mustParse(t, withObjectives(everything))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				at := t0.Add(time.Duration(j) * 100 * ms)
				l.Record(at, fmt.Sprint(i%3), c, late)
				l.Compliance(at, fmt.Sprint(j%3), "chat")
				l.Weight(at, fmt.Sprint(j%3), "chat")
				if j%100 == 0 {
					l.Status(at, "chat")
					l.Adopt(set)
				}
			}
		})
	}
	wg.Wait()
	s, _ := l.Status(t0.Add(50*time.Second), "chat")
	if s.Objectives[0].Samples != 8*500 {
		t.Errorf("%d of 4000 were counted", s.Objectives[0].Samples)
	}
}
