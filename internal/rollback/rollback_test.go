package rollback_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/firsttoken/firsttoken/internal/models"
	"github.com/firsttoken/firsttoken/internal/rollback"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

func changed(kind rollback.Kind, at float64, subject, from, to string) rollback.Change {
	return rollback.Change{At: after(at), Kind: kind, Subject: subject, From: from, To: to}
}

func TestEvaluateModels(t *testing.T) {
	all := shelf{"good": {0, 0.2}, "bad": {-2, -1.8}, "near": {0.01, 0.21}, "slight": {0.03, 0.2}, "worse": {-3, -2.8}}
	swap := func(from, to string) []rollback.Change {
		return []rollback.Change{changed(rollback.Model, 0, "", from, to)}
	}
	rolled := swap("good", "bad")
	rolled[0].Rollback = true
	bounds := around(t0, 500, 0)
	for i := range bounds {
		bounds[i].Censored = true
	}
	for name, tt := range map[string]struct {
		changes []rollback.Change
		samples []predictor.Sample
		want    rollback.Verdict
		why     string
	}{
		"the former is better":       {swap("good", "bad"), around(after(1), 200, 0), rollback.Recommend, "on the same 200 samples"},
		"the former is worse":        {swap("worse", "bad"), around(after(1), 500, 0), rollback.Keep, "not lower"},
		"the former is hardly other": {swap("near", "good"), around(after(1), 500, 0), rollback.Keep, "not lower"},
		"the former is a bit better": {swap("good", "slight"), around(after(1), 500, 0), rollback.Keep, "not lower by 5 % but by 2"},
		"too few":                    {swap("good", "bad"), around(after(1), 199, 0), rollback.Unknown, "only 199 samples"},
		"too few since":              {swap("good", "bad"), around(after(-30), 500, 0), rollback.Unknown, "only 199 samples"},
		"lower bounds":               {swap("good", "bad"), bounds, rollback.Unknown, "only 0 samples"},
		"no sample":                  {swap("good", "bad"), nil, rollback.Unknown, "only 0 samples"},
		"none before":                {swap("", "bad"), around(after(1), 500, 0), rollback.Unknown, "no model before"},
		"none now":                   {swap("bad", ""), around(after(1), 500, 0), rollback.Unknown, "no model before"},
		"the former is gone":         {swap("gone", "bad"), around(after(1), 500, 0), rollback.Unknown, "former model can't be read: no model gone"},
		"the present is gone":        {swap("good", "gone"), around(after(1), 500, 0), rollback.Unknown, "present model can't be read"},
		"a rollback":                 {rolled, around(after(1), 500, 0), rollback.Keep, "a rollback itself"},
		"nothing":                    {nil, around(after(1), 500, 0), rollback.NoChange, "nothing was changed"},
		"two changes": {append(swap("bad", "good"), changed(rollback.Model, -60, "", "good", "bad")),
			around(after(1), 500, 0), rollback.Keep, "not lower"},
	} {
		t.Run(name, func(t *testing.T) {
			r := rollback.Evaluate(violation(after(60)), rollback.Evidence{Changes: tt.changes, Samples: tt.samples, Load: all.load}, rollback.Rules{})
			if r.Verdict != tt.want || !strings.Contains(r.Why, tt.why) || len(r.Findings) != len(tt.changes) {
				t.Fatalf("%s: %s (%d findings), want %s: …%s…", r.Verdict, r.Why, len(r.Findings), tt.want, tt.why)
			}
			if !r.From.Equal(after(60 - 1800)) {
				t.Errorf("changes from %v on", r.From)
			}
		})
	}
}

// TestModelNumbers holds the record to numbers reckoned by hand: every truth is
// the base, so a P50 that says e^-2 of it has a loss of 0.5·2 and one that is
// right none.
func TestModelNumbers(t *testing.T) {
	var samples []predictor.Sample
	for i := range 300 {
		s := sample(after(1+float64(i)/10), 0)
		s.Regime = predictor.Regime(i % 2)
		samples = append(samples, s)
	}
	r := rollback.Evaluate(violation(after(60)), rollback.Evidence{
		Changes: []rollback.Change{changed(rollback.Model, 0, "", "good", "bad")}, Samples: samples,
		Load: shelf{"good": {0, 0.2}, "bad": {-2, -1}}.load,
	}, rollback.Rules{})
	m := r.Findings[0].Models
	if m == nil || m.Rows != 300 || len(m.Regimes) != 3 || m.Regimes[2].Regime != "all" || m.Regimes[0].Current.Rows != 150 {
		t.Fatalf("%+v", m)
	}
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 1e-6 {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	now, before := m.Regimes[2].Current, m.Regimes[2].Previous
	near("P50 pinball now", float64(now.PinballP50), 0.5*2)
	near("P95 pinball now", float64(now.PinballP95), 0.95*1)
	near("MAPE now", float64(now.MAPE), 1-math.Exp(-2))
	near("coverage now", float64(now.Coverage), 0)
	near("P50 pinball before", float64(before.PinballP50), 0)
	near("P95 pinball before", float64(before.PinballP95), 0.05*0.2)
	near("coverage before", float64(before.Coverage), 1)
	near("better", float64(m.Better), 1-0.01/1.95)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"kind":"model"`, `"from":"good"`, `"rows":300`, `"verdict":"recommend"`, `"regime":"all"`, `"pinball_p50":1`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
}

func TestEvaluateOtherChanges(t *testing.T) {
	both := func(n int, before, then float64) []rollback.Outcome {
		return append(served("a", after(-float64(n)/10), n, before), served("a", t0, n, then)...)
	}
	mixed := append(both(500, 0.99, 0.5), append(served("b", after(-50), 500, 0.5), served("b", t0, 500, 0.99)...)...)
	for name, tt := range map[string]struct {
		change   rollback.Change
		outcomes []rollback.Outcome
		want     rollback.Verdict
		numbers  [4]float64 // before, requests, after, requests
	}{
		"a contract":       {changed(rollback.Contract, 0, "", "r1", "r2"), both(500, 0.98, 0.7), rollback.Recommend, [4]float64{0.98, 500, 0.7, 500}},
		"a configuration":  {changed(rollback.Config, 0, "", "4", "5"), both(500, 0.98, 0.7), rollback.Recommend, [4]float64{0.98, 500, 0.7, 500}},
		"no worse":         {changed(rollback.Config, 0, "", "4", "5"), both(500, 0.7, 0.7), rollback.Keep, [4]float64{0.7, 500, 0.7, 500}},
		"better":           {changed(rollback.Config, 0, "", "4", "5"), both(500, 0.7, 0.9), rollback.Keep, [4]float64{0.7, 500, 0.9, 500}},
		"chance":           {changed(rollback.Config, 0, "", "4", "5"), both(50, 0.9, 0.86), rollback.Keep, [4]float64{0.9, 50, 0.86, 50}},
		"too few":          {changed(rollback.Config, 0, "", "4", "5"), both(49, 1, 0), rollback.Unknown, [4]float64{1, 49, 0, 49}},
		"nothing":          {changed(rollback.Config, 0, "", "4", "5"), nil, rollback.Unknown, [4]float64{math.NaN(), 0, math.NaN(), 0}},
		"that instance":    {changed(rollback.Instance, 0, "a", "1.0", "1.1"), mixed, rollback.Recommend, [4]float64{0.99, 500, 0.5, 500}},
		"another instance": {changed(rollback.Instance, 0, "b", "1.0", "1.1"), mixed, rollback.Keep, [4]float64{0.5, 500, 0.99, 500}},
		"of all instances": {changed(rollback.Contract, 0, "", "1", "2"), mixed, rollback.Keep, [4]float64{0.745, 1000, 0.745, 1000}},
		"another contract": {changed(rollback.Config, 0, "", "4", "5"), renamed(both(500, 1, 0)), rollback.Unknown, [4]float64{math.NaN(), 0, math.NaN(), 0}},
		"after the violation": {changed(rollback.Config, 0, "", "4", "5"), append(both(500, 0.9, 0.9), served("a", after(61), 500, 0)...),
			rollback.Keep, [4]float64{0.9, 500, 0.9, 500}},
	} {
		t.Run(name, func(t *testing.T) {
			r := rollback.Evaluate(violation(after(60)), rollback.Evidence{Changes: []rollback.Change{tt.change}, Outcomes: tt.outcomes}, rollback.Rules{})
			if r.Verdict != tt.want {
				t.Errorf("%s: %s, want %s", r.Verdict, r.Why, tt.want)
			}
			a := r.Findings[0].Attainment
			for i, got := range []float64{float64(a.Before), float64(a.RequestsBefore), float64(a.After), float64(a.RequestsAfter)} {
				if want := tt.numbers[i]; math.Abs(got-want) > 1e-9 || math.IsNaN(got) != math.IsNaN(want) {
					t.Errorf("number %d is %v, want %v", i, got, want)
				}
			}
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
		})
	}
}

func renamed(all []rollback.Outcome) []rollback.Outcome {
	for i := range all {
		all[i].Contract = "code"
	}
	return all
}

func TestHistory(t *testing.T) {
	var h rollback.History
	for i := range 300 {
		h.Add(changed(rollback.Config, float64(i), "", fmt.Sprint(i), fmt.Sprint(i+1)))
	}
	if got := h.Between(after(-1), after(1000)); len(got) != 256 || got[0].From != "299" || got[255].From != "44" {
		t.Errorf("%d changes, want the last 256, the newest first", len(got))
	}
	if got := h.Between(after(100), after(102)); len(got) != 2 || !got[0].At.Equal(after(102)) || !got[1].At.Equal(after(101)) {
		t.Errorf("%v", got)
	}
	h.Add(changed(rollback.Model, 400, "", "b", "a"))
	told := changed(rollback.Model, 401, "", "b", "a")
	told.Rollback = true
	h.Add(told)
	if got := h.Between(after(399), after(500)); len(got) != 1 || !got[0].Rollback {
		t.Errorf("%v, want the change told twice once", got)
	}
	h.Add(changed(rollback.Model, 402, "", "a", "b"))
	h.Add(changed(rollback.Model, 403, "", "b", "a"))
	if got := h.Between(after(399), after(500)); len(got) != 3 || got[0].Rollback {
		t.Errorf("%v, want the same change of later as well", got)
	}
}

func TestWatchPassesOn(t *testing.T) {
	next := &counter{}
	w := rollback.NewWatch(next)
	s := sample(t0, 0)
	w.Observed(&s)
	w.Switched(predictor.Switch{})
	w.Drifted(predictor.Alarm{})
	if *next != (counter{1, 1, 1}) {
		t.Errorf("%+v", *next)
	}
	alone := rollback.NewWatch(nil)
	alone.Observed(&s)
	alone.Switched(predictor.Switch{})
	alone.Drifted(predictor.Alarm{})
}

type counter struct{ observed, switched, drifted int }

func (c *counter) Observed(*predictor.Sample) { c.observed++ }
func (c *counter) Switched(predictor.Switch)  { c.switched++ }
func (c *counter) Drifted(predictor.Alarm)    { c.drifted++ }

// store counts rollbacks and tells what they lead to.
type store struct {
	mu    sync.Mutex
	count int
	to    string
	err   error
}

func (s *store) Rollback() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	return s.to, s.err
}

// bench is an evaluator under test, in a bubble.
type bench struct {
	*rollback.Evaluator
	history *rollback.History
	watch   *rollback.Watch
	store   *store
	logs    *observer.ObservedLogs
}

func inBubble(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		b := &bench{history: &rollback.History{}, watch: rollback.NewWatch(nil), store: &store{to: "good"}, logs: logs}
		b.Evaluator = rollback.New(rollback.Options{
			History: b.history, Watch: b.watch, Store: b.store, Log: zap.New(core),
			Load: shelf{"good": {0, 0.2}, "bad": {-2, -1.8}, "worse": {-3, -2.8}}.load,
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go b.Run(ctx)
		test(t, b)
	})
}

// violate lets one be evaluated.
func (b *bench) violate(at float64) rollback.Record {
	b.Violated(violation(after(at)))
	synctest.Wait()
	return b.Records()[0]
}

func (b *bench) see(all []predictor.Sample) {
	for i := range all {
		b.watch.Observed(&all[i])
	}
}

func TestRollsBackOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.history.Add(changed(rollback.Model, 0, "", "good", "bad"))
		b.see(around(after(1), 300, 0))
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				v := violation(after(31))
				v.Instance = string(rune('a' + i))
				b.Violated(v)
			})
		}
		wg.Wait()
		synctest.Wait()
		r := b.Records()
		if len(r) != 1 || r[0].Verdict != rollback.RolledBack || r[0].Also != 19 || b.store.count != 1 {
			t.Fatalf("%d records, %+v, %d rollbacks", len(r), r, b.store.count)
		}
		if got := b.logs.FilterMessage("rollback evaluated").All(); len(got) != 1 || got[0].ContextMap()["verdict"] != "rolled_back" {
			t.Errorf("logged %v", got)
		}
		if c := b.history.Between(after(30), after(40)); len(c) != 1 || !c[0].Rollback || c[0].From != "bad" || c[0].To != "good" {
			t.Errorf("history %v", c)
		}
		b.Violated(violation(after(60)))
		synctest.Wait()
		if r := b.Records(); len(r) != 1 || r[0].Also != 20 {
			t.Errorf("a violation half a minute later is evaluated: %+v", r)
		}
		if r := b.violate(70); r.Verdict != rollback.Keep || !strings.Contains(r.Why, "a rollback itself") || b.store.count != 1 {
			t.Errorf("%s: %s, %d rollbacks", r.Verdict, r.Why, b.store.count)
		}
	})
}

// TestOneAtATime: what comes while an evaluation is under way is counted to it,
// however long it takes.
func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		history := &rollback.History{}
		e := rollback.New(rollback.Options{History: history, Watch: rollback.NewWatch(nil), Load: func(string) (predictor.Model, error) {
			<-goOn
			return constant{}, nil
		}})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go e.Run(ctx)
		history.Add(changed(rollback.Model, 0, "", "good", "bad"))
		for i := range 5 {
			e.Violated(violation(after(60 * float64(i+1))))
			synctest.Wait()
		}
		close(goOn)
		synctest.Wait()
		if got := e.Records(); len(got) != 1 || got[0].Also != 4 {
			t.Errorf("%+v", got)
		}
	})
}

// TestLimits: what keeps a model from being taken back, or forth.
func TestLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		want := func(r rollback.Record, verdict rollback.Verdict, why string, count int) {
			t.Helper()
			if r.Verdict != verdict || !strings.Contains(r.Why, why) || b.store.count != count {
				t.Errorf("%s: %s, %d rollbacks; want %s: …%s…, %d", r.Verdict, r.Why, b.store.count, verdict, why, count)
			}
		}
		b.history.Add(changed(rollback.Model, 0, "", "good", "bad"))
		want(b.violate(20), rollback.Unknown, "only 0 samples", 0)
		b.see(around(after(1), 300, 0))
		want(b.violate(60), rollback.RolledBack, "good serves again", 1)

		b.history.Add(changed(rollback.Model, 100, "", "good", "worse")) // by hand
		b.see(around(after(101), 300, 0))
		want(b.violate(200), rollback.Recommend, "less than 10m0s ago", 1)
		want(b.violate(700), rollback.RolledBack, "good serves again", 2)

		b.history.Add(changed(rollback.Model, 750, "", "good", "worse"))
		b.history.Add(changed(rollback.Model, 800, "", "worse", "good")) // from one that was rolled back from
		b.see(around(after(801), 300, -3))
		want(b.violate(1400), rollback.Recommend, "was rolled back itself", 2)

		b.history.Add(changed(rollback.Model, 2000, "", "good", "bad"))
		b.see(around(after(2001), 300, 0))
		b.store.err = errors.New("no space left")
		want(b.violate(2100), rollback.Recommend, "the rollback failed: no space left", 3)
		b.store.err = nil
		want(b.violate(2200), rollback.RolledBack, "good serves again", 4)
		want(b.violate(9000), rollback.NoChange, "nothing was changed", 4)
		if got := b.Records(); len(got) != 8 || !got[0].At.Equal(after(9000)) {
			t.Errorf("%d records", len(got))
		}
	})
}

// TestRecordsAreBounded, as are samples.
func TestRecordsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.history.Add(changed(rollback.Model, 0, "", "bad", "good"))
		for range 3 {
			b.see(around(after(1), 4000, 0))
		}
		for i := range 110 {
			b.violate(60 + float64(i)*31)
		}
		got := b.Records()
		if len(got) != 100 || !got[0].At.Equal(after(60+109*31)) {
			t.Errorf("%d records", len(got))
		}
		if rows := b.Records()[99].Findings[0].Models.Rows; rows != 5000 {
			t.Errorf("%d samples are kept, want 5000", rows)
		}
	})
}

// TestBadModelIsRolledBack goes the whole way: a model that says too little is
// made active, requests come late three windows in a row, the instance's weight
// is cut, the evaluation takes the model back, and the next prediction is the
// former model's.
func TestBadModelIsRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		registry := models.New(dir, predictor.Names(), predictor.SchemaHash())
		publish(t, registry, goodID, 0, 0.2)
		publish(t, registry, badID, -2, -1.8)

		history, watch := &rollback.History{}, rollback.NewWatch(nil)
		pool := predictor.NewPool("m", predictor.Rules{}, watch)
		apply := func(id string) {
			m, err := registry.Load(id)
			if err != nil {
				t.Error(err)
				return
			}
			pool.SetModel(m)
		}
		evaluator := rollback.New(rollback.Options{
			History: history, Watch: watch, Store: registry, Applied: apply,
			Load: func(id string) (predictor.Model, error) { return registry.Load(id) },
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go evaluator.Run(ctx)

		set := contract(t)
		ledger, promised := sla.NewLedger(set, sla.Options{}), set.Contracts()[0]
		on := predictor.NewInstance(predictor.Speed{Fixed: 0.05, Step: 0.05, Token: 1e-6, Seq: 1e-9, Context: 1e-9, Square: 1e-12})
		said := func(at time.Time) time.Duration {
			a := pool.Begin(at, on, predictor.Work{Prompt: 100, Uncached: 100, Stream: true})
			a.Done(at, predictor.Failed)
			return a.Sample().Said[predictor.LightGBM].P50
		}
		violations := 0
		// serve is one request a tenth of a second; late is what it waits at the gateway.
		serve := func(from float64, seconds int, late time.Duration) {
			for i := range 10 * seconds {
				at := after(from + float64(i)/10)
				a := pool.Begin(at, on, predictor.Work{Prompt: 100, Uncached: 100, Stream: true})
				base := a.Sample().Features[predictor.Base]
				end := at.Add(time.Duration(base * 1e9))
				a.Token(end)
				a.Done(end, predictor.Completed)
				ttft := end.Sub(at) + late
				evaluator.Served(rollback.Outcome{At: at, Instance: "a", Contract: "chat", Met: ttft <= 320*time.Millisecond})
				if v := ledger.Record(at, "a", promised, sla.Outcome{End: sla.Served, TTFT: ttft, E2E: ttft + time.Second}); v != nil {
					violations++
					evaluator.Violated(*v)
				}
			}
		}
		apply(goodID)
		serve(0, 60, 0)
		synctest.Wait()
		if violations != 0 || len(evaluator.Records()) != 0 {
			t.Fatalf("%d violations with the good model", violations)
		}
		apply(badID)
		history.Add(rollback.Change{At: after(60), Kind: rollback.Model, From: goodID, To: badID})
		serve(60, 31, time.Second)
		wrong := said(after(91.1)) // whatever the calibration has made of it by now
		synctest.Wait()

		if violations != 1 || ledger.Weight(after(91), "a", "chat") > 0.52 {
			t.Errorf("%d violations, weight %v; want one after three windows, and a half", violations, ledger.Weight(after(91), "a", "chat"))
		}
		records := evaluator.Records()
		if len(records) != 1 || records[0].Verdict != rollback.RolledBack || records[0].Windows != 3 || records[0].Weight != 0.5 {
			t.Fatalf("%+v", records)
		}
		if m := records[0].Findings[0].Models; m.Rows < 300 || !(m.Better > 0.5) {
			t.Errorf("%+v", m)
		}
		if id, _, err := registry.Active(); id != goodID || err != nil {
			t.Errorf("%s is active, %v", id, err)
		}
		if right := said(after(91.1)); right == wrong || right < 99*time.Millisecond || right > 102*time.Millisecond {
			t.Errorf("the next prediction is %v, that of the bad model was %v; want the good one's, without the bad one's corrections", right, wrong)
		}
		if again, err := registry.Rollback(); !errors.Is(err, models.ErrNoPrevious) {
			t.Errorf("a way forth to %s, %v", again, err)
		}
	})
}
