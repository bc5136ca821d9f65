package sla

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// traffic records one request a second over a span, of which a share is late.
func traffic(l *Ledger, c *Contract, from time.Time, span time.Duration, missShare float64) time.Time {
	owed := 0.0
	for at := from; at.Before(from.Add(span)); at = at.Add(time.Second) {
		out := good
		if owed += missShare; owed >= 1 {
			owed--
			out = late
		}
		l.Record(at, "a", c, out)
	}
	return from.Add(span)
}

func TestStates(t *testing.T) {
	long := with() // 30 d
	for _, row := range []struct {
		name   string
		text   string
		run    func(l *Ledger, c *Contract) time.Time
		want   State
		reason string
	}{
		{"nothing", long, func(l *Ledger, c *Contract) time.Time { return t0 }, NoData, "0 requests judged within the last hour, fewer than 20"},
		{"good", long, func(l *Ledger, c *Contract) time.Time { return traffic(l, c, t0, time.Hour, 0.02) }, OK, "no burn rate is too high"},
		{"few misses of few", long, func(l *Ledger, c *Contract) time.Time { return traffic(l, c, t0, 40*time.Second, 0.1) }, OK, "no burn rate is too high"},
		{"an hour of mostly misses", long, func(l *Ledger, c *Contract) time.Time {
			return traffic(l, c, traffic(l, c, t0, 48*time.Hour, 0), time.Hour, 0.8)
		}, Breaching, "burn rate 16.0 over 1h and 16.0 over 5m, from 14.4 on"},
		{"six hours of many misses", long, func(l *Ledger, c *Contract) time.Time {
			return traffic(l, c, traffic(l, c, t0, 96*time.Hour, 0), 6*time.Hour, 0.4)
		}, Breaching, "burn rate 8.0 over 6h and 8.0 over 30m, from 6 on"},
		{"three days a little over", long, func(l *Ledger, c *Contract) time.Time {
			return traffic(l, c, traffic(l, c, t0, 5*24*time.Hour, 0), 72*time.Hour, 0.06)
		}, AtRisk, "burn rate 1.2 over 3d and 1.2 over 6h, from 1 on"},
		{"it begins", long, func(l *Ledger, c *Contract) time.Time {
			return traffic(l, c, traffic(l, c, t0, 48*time.Hour, 0), 10*time.Minute, 0.5)
		}, AtRisk, "burn rate 1.7 over 1h and 10.0 over 5m, from 1 on"},
		{"it is over", long, func(l *Ledger, c *Contract) time.Time {
			return traffic(l, c, traffic(l, c, traffic(l, c, t0, 48*time.Hour, 0), time.Hour, 0.8), 10*time.Minute, 0)
		}, OK, "no burn rate is too high"},
		{"spent", long, func(l *Ledger, c *Contract) time.Time { return traffic(l, c, t0, time.Hour, 0.06) }, Breaching, "the error budget of 30d is spent"},
		{"spent, and then silence", long, func(l *Ledger, c *Contract) time.Time { return traffic(l, c, t0, time.Hour, 0.06).Add(5 * time.Hour) }, Breaching, "the error budget of 30d is spent"},
		{"silence", long, func(l *Ledger, c *Contract) time.Time { return traffic(l, c, t0, time.Hour, 0).Add(5 * time.Hour) }, NoData, "0 requests judged within the last hour, fewer than 20"},
		{"a short window forgets", withObjectives("{metric: ttft, percentile: 95, threshold: 320ms, window: 10m}"), func(l *Ledger, c *Contract) time.Time {
			return traffic(l, c, traffic(l, c, t0, 30*time.Minute, 0.5), 11*time.Minute, 0)
		}, OK, "no burn rate is too high"},
	} {
		l, c := testLedger(t, row.text)
		s, _ := l.Status(row.run(l, c), "chat")
		if got := s.Objectives[0]; got.State != row.want || s.State != row.want || got.Reason != row.reason {
			t.Errorf("%s: %s (%s), contract %s", row.name, got.State, got.Reason, s.State)
		}
	}
}

func TestStateOfContractIsTheWorst(t *testing.T) {
	all := []State{NoData, OK, AtRisk, Breaching}
	for i, a := range all {
		for j, b := range all {
			if got := worse(a, b); got != all[max(i, j)] {
				t.Errorf("of %s and %s: %s", a, b, got)
			}
		}
	}
}

func TestBudgetAndBurn(t *testing.T) {
	l, c := testLedger(t, with())
	end := traffic(l, c, t0, 1000*time.Second, 0.02)
	s, _ := l.Status(end, "chat")
	o := s.Objectives[0]
	if o.Samples != 1000 || o.Missed != 20 || math.Abs(o.Budget-0.6) > 1e-9 {
		t.Errorf("%d of %d missed, budget %v", o.Missed, o.Samples, o.Budget)
	}
	lengths := []time.Duration{5 * time.Minute, time.Hour, 6 * time.Hour, 72 * time.Hour}
	for i, w := range o.Windows {
		if w.Length != lengths[i] || math.Abs(w.Burn-0.4) > 0.03 {
			t.Errorf("%+v", w)
		}
	}
	if n := o.Windows[0].Samples; n < 294 || n > 300 {
		t.Errorf("%d samples in five minutes", n)
	}
}

// The estimate of a percentile lies within an eighth of what was measured, and
// agrees with the exact share.
func TestPercentiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, median := range []time.Duration{2 * ms, 80 * ms, 700 * ms, time.Minute} {
		s := spectrum{length: time.Hour}
		var values []time.Duration
		for range 5000 {
			v := time.Duration(float64(median) * math.Exp(0.5*rng.NormFloat64()))
			values = append(values, v)
			s.add(t0.UnixNano(), v)
		}
		slices.Sort(values)
		for _, q := range []float64{0.01, 0.5, 0.95, 0.999} {
			exact := values[int(math.Ceil(q*5000))-1]
			if got := s.quantile(t0.UnixNano(), q); math.Abs(float64(got)/float64(exact)-1) > 0.125 && exact > ms {
				t.Errorf("median %v: P%v is %v, estimated %v", median, 100*q, exact, got)
			}
		}
		if got := s.quantile(t0.Add(2*time.Hour).UnixNano(), 0.5); got != 0 {
			t.Errorf("two hours later: %v", got)
		}
	}
}

func TestWhatNeverCameIsInfinitelyLate(t *testing.T) {
	l, c := testLedger(t, with())
	for i := range 100 {
		out := good
		if i%10 == 0 {
			out = Outcome{End: Failed, E2E: ms}
		}
		l.Record(t0, "a", c, out)
	}
	s, _ := l.Status(t0, "chat")
	if w := s.Objectives[0].Windows[0]; w.Percentile != beyond || w.Missed != 10 {
		t.Errorf("%+v", w)
	}
}

// Every time has a bucket that holds it, and buckets follow each other.
func TestBuckets(t *testing.T) {
	last := time.Duration(0)
	for b := range perOctave*octaves + 1 {
		low, high := bounds(b)
		if low != last || high <= low {
			t.Fatalf("bucket %d is %v to %v, after %v", b, low, high, last)
		}
		last = high
		for _, v := range []time.Duration{low, high - 1} {
			if got := bucketOf(v); got != b {
				t.Fatalf("%v is in bucket %d, not %d", v, got, b)
			}
		}
	}
	if got := bucketOf(beyond); got != perOctave*octaves+1 {
		t.Errorf("beyond is in bucket %d", got)
	}
}

// Law: what a ring counts lies between the requests of its window less one
// slice, and of its window.
func TestRingCounts(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	r := ring{length: time.Minute}
	var times []int64
	at := t0.UnixNano()
	for range 5000 {
		at += rng.Int64N(int64(100 * ms))
		if rng.IntN(100) == 0 {
			at += rng.Int64N(int64(3 * time.Minute))
		}
		times = append(times, at)
		r.add(at, false)
		now := at + rng.Int64N(int64(2*time.Minute)) // some time without requests
		within := func(span time.Duration) (n int64) {
			for i := len(times) - 1; i >= 0 && times[i] > now-int64(span); i-- {
				n++
			}
			return n
		}
		if total, _ := r.sum(now); total < within(59*time.Second) || total > within(time.Minute) {
			t.Fatalf("counts %d, between %d and %d are there", total, within(59*time.Second), within(time.Minute))
		}
	}
}

// A request of a slice that a newer one has taken is dropped; a late one within
// the window counts.
func TestRingTakesLateRequests(t *testing.T) {
	r := ring{length: time.Minute}
	now := t0.UnixNano()
	r.add(now, false)
	r.add(now-int64(30*time.Second), true)
	r.add(now-int64(time.Minute), true)
	if total, bad := r.sum(now); total != 2 || bad != 1 {
		t.Errorf("%d of %d are bad", bad, total)
	}
}
