package bench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/internal/trace"
)

func TestTimesAreExact(t *testing.T) {
	for _, endpoint := range []string{"chat", "completions"} {
		plan := Plan{Endpoint: endpoint, Concurrency: 1, Requests: 3}
		against(t, reply(fakellm.Tokens(5, 300*tick, 20*tick)), plan, good(func(t *testing.T, run *Run) {
			for i, r := range run.Results {
				if r.Outcome != OK || r.TTFT() != 300*tick || r.TPOT() != 20*tick || r.E2E != 380*tick || r.Output != 5 || !r.Counted {
					t.Errorf("%+v", r)
				}
				if want := time.Duration(i) * 380 * tick; r.At != want || r.Late != 0 || r.Concurrency != 1 {
					t.Errorf("request %d: at %v, want %v; late %v, concurrency %d", i, r.At, want, r.Late, r.Concurrency)
				}
			}
			f := Summarise(run, Environment{}).All
			if f.Served != 3 || f.TTFT.Mean != 300 || f.ITL.Count != 12 || f.ITL.Mean != 20 || f.ITL.StdDev != 0 || f.TPOT.P99 != 20 || f.E2E.P50 != 380 {
				t.Errorf("%+v", f)
			}
			if !near(f.OutputTokensPerSecond, 15/1.14) || !near(f.RequestsPerSecond, 3/1.14) || !near(f.InFlight, 1) {
				t.Errorf("%+v", f)
			}
		}))
	}
}

func TestAnswersThatAreNoStreams(t *testing.T) {
	plan := Plan{Concurrency: 1, Requests: 1, Stream: "no"}
	against(t, reply(fakellm.JSON(7, 500*tick)), plan, good(func(t *testing.T, run *Run) {
		r := &run.Results[0]
		if r.Outcome != OK || r.TTFT() != 0 || r.TPOT() != 0 || r.E2E != 500*tick || r.Output != 7 {
			t.Errorf("%+v", r)
		}
		report := Summarise(run, Environment{})
		if report.Windows[0].OutputTokens != 7 || report.Windows[0].TTFT.Count != 0 || report.All.TTFT.Count != 0 {
			t.Errorf("%+v", report.Windows[0])
		}
		if len(report.Notes) == 0 || !strings.Contains(report.Notes[0], "no streams") {
			t.Errorf("notes %q", report.Notes)
		}
	}))
}

// A stalled answer must neither delay an arrival nor hide behind those it would
// have delayed (coordinated omission).
func TestArrivalsWaitForNoAnswer(t *testing.T) {
	backend := reply(fakellm.Tokens(1, 10*tick, 0), fakellm.Tokens(1, 5*time.Second, 0), fakellm.Tokens(1, 10*tick, 0))
	against(t, backend, Plan{Rate: 10, Law: "constant", Requests: 30}, good(func(t *testing.T, run *Run) {
		for i, r := range run.Results {
			want := 10 * tick
			if i == 1 {
				want = 5 * time.Second
			}
			if at := time.Duration(i+1) * 100 * tick; r.At != at || r.Late != 0 || r.TTFT() != want {
				t.Errorf("request %d: at %v, late %v, TTFT %v", i, r.At, r.Late, r.TTFT())
			}
			received := backend.Requests()[i].Received.Sub(run.Started)
			if received != r.At {
				t.Errorf("request %d was received at %v, due at %v", i, received, r.At)
			}
		}
	}))
}

func TestOverloadInAnOpenLoop(t *testing.T) {
	backend := reply(fakellm.Tokens(1, 10*time.Second, 0))
	against(t, backend, Plan{Rate: 50, Law: "constant", Duration: 2 * time.Second}, good(func(t *testing.T, run *Run) {
		if n := len(run.Results); n != 99 { // at 20 ms to 1.98 s
			t.Errorf("%d requests", n)
		}
		if r := &run.Results[98]; r.Concurrency != 99 || r.At != 1980*tick {
			t.Errorf("%+v", r)
		}
	}))
}

func TestClosedLoopKeepsItsCallersBusy(t *testing.T) {
	backend := reply(fakellm.Tokens(1, 100*tick, 0))
	against(t, backend, Plan{Concurrency: 4, Duration: 950 * tick}, good(func(t *testing.T, run *Run) {
		if len(run.Results) != 40 {
			t.Errorf("%d requests", len(run.Results))
		}
		for i, r := range run.Results {
			if want := time.Duration(i/4) * 100 * tick; r.At != want || r.Concurrency > 4 {
				t.Errorf("request %d at %v, want %v; concurrency %d", i, r.At, want, r.Concurrency)
			}
		}
		if f := Summarise(run, Environment{}).All; !near(f.InFlight, 4) {
			t.Errorf("%v in flight", f.InFlight)
		}
	}))
}

func TestOutcomes(t *testing.T) {
	event := fakellm.Event
	finish := event(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
	token := event(`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}`)
	rows := []struct {
		name    string
		script  fakellm.Script
		want    Outcome
		message string
	}{
		{"whole", fakellm.Tokens(2, tick, tick), OK, ""},
		{"no [DONE] but a finish reason", fakellm.Script{fakellm.Wait(tick), token, finish, fakellm.CutClean()}, OK, ""},
		{"lost after [DONE]", fakellm.Script{fakellm.Wait(tick), token, finish, fakellm.Done(), fakellm.Reset()}, OK, ""},
		{"lost after the finish reason", fakellm.Script{token, finish, fakellm.CutDirty("data: {")}, Broken, "broke off after 1 chunks"},
		{"429", fakellm.Status(429, nil, `{"error":{"message":"too busy"}}`), Refused429, "too busy"},
		{"503", fakellm.Status(503, nil, "no backend"), Refused503, "no backend"},
		{"400", fakellm.Status(400, nil, `{"error":"bad field"}`), "http_400", "bad field"},
		{"500 without a word", fakellm.Status(500, nil, ""), "http_500", "Internal Server Error"},
		{"redirect", fakellm.Status(307, http.Header{"Location": {"http://other/"}}, ""), "http_307", "Temporary Redirect"},
		{"no stream", fakellm.Status(200, nil, `{"choices":[]}`), BadAnswer, "application/json"},
		{"reset at once", fakellm.Script{fakellm.Reset()}, Unconnected, "reset"},
		{"closed at once", fakellm.Script{fakellm.Close()}, Unconnected, "EOF"},
		{"silent", fakellm.Script{fakellm.Hang()}, TimedOut, "not done after 10s; 0 chunks"},
		{"stalled", fakellm.Broken(2, tick, tick, fakellm.Hang()), TimedOut, "not done after 10s; 2 chunks"},
		{"cut clean", fakellm.Broken(2, tick, tick, fakellm.CutClean()), Broken, "ended after 2 chunks"},
		{"cut dirty", fakellm.Broken(2, tick, tick, fakellm.CutDirty("x")), Broken, "broke off after 2 chunks"},
		{"reset", fakellm.Broken(2, tick, tick, fakellm.Reset()), Broken, "reset"},
		{"error event", fakellm.Broken(2, tick, tick, event(`{"error":{"message":"out of memory","code":500}}`)), ErrorEvent, "out of memory"},
		{"error event before [DONE]", fakellm.Script{event(`{"error":{"message":"no"}}`), fakellm.Done()}, ErrorEvent, "no"},
		{"aborted", fakellm.Script{token, event(`{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`), fakellm.Done()}, Aborted, "abort"},
		{"empty", fakellm.Script{finish, fakellm.Done()}, Empty, "without a token"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			plan := Plan{Concurrency: 1, Requests: 1, Timeout: 10 * time.Second}
			against(t, reply(row.script), plan, good(func(t *testing.T, run *Run) {
				r := &run.Results[0]
				if r.Outcome != row.want || !strings.Contains(r.Error, row.message) {
					t.Errorf("%s, %q; want %s, %q", r.Outcome, r.Error, row.want, row.message)
				}
				report := Summarise(run, Environment{})
				f := &report.All
				if served := row.want == OK; (f.Served == 1) != served || (f.TTFT.Count == 1) != served || f.Served+f.Refused+f.Failed != 1 {
					t.Errorf("%+v", f)
				}
				if row.want != OK && (len(report.Errors) != 1 || report.Errors[0].Kind != row.want || report.Errors[0].Example != r.Error) {
					t.Errorf("%+v", report.Errors)
				}
				if (run.Served() == nil) != (row.want == OK) {
					t.Errorf("served: %v", run.Served())
				}
			}))
		})
	}
}

func TestOutcomesWithoutStream(t *testing.T) {
	rows := map[string]struct {
		script fakellm.Script
		want   Outcome
	}{
		"whole":   {fakellm.JSON(3, tick), OK},
		"error":   {fakellm.Status(200, nil, `{"error":{"message":"no"}}`), ErrorEvent},
		"no JSON": {fakellm.Status(200, nil, "hello"), BadAnswer},
		"partial": {fakellm.Script{fakellm.Header(200, nil), fakellm.Send(`{"choices":`), fakellm.Reset()}, Broken},
		"silent":  {fakellm.Script{fakellm.Header(200, nil), fakellm.Hang()}, TimedOut},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			plan := Plan{Concurrency: 1, Requests: 1, Stream: "no", Timeout: time.Second}
			against(t, reply(row.script), plan, good(func(t *testing.T, run *Run) {
				if r := &run.Results[0]; r.Outcome != row.want {
					t.Errorf("%s, %q; want %s", r.Outcome, r.Error, row.want)
				}
			}))
		})
	}
}

func TestUnreachable(t *testing.T) {
	for _, warmUp := range []int{0, 3} {
		synctest.Test(t, func(t *testing.T) {
			refuse := transportFunc(func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") })
			b, err := New(Plan{Target: "http://nobody", Models: []string{"m"}, Requests: 2, WarmUp: warmUp}, nil, refuse)
			if err != nil {
				t.Fatal(err)
			}
			run, err := b.Run(t.Context())
			if warmUp > 0 {
				if err == nil || !strings.Contains(err.Error(), "served none of 2 warm-up requests: connection: connection refused") {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil || len(run.Results) != 2 || run.Results[0].Outcome != Unconnected || run.Served() == nil {
				t.Errorf("%+v, %v", run, err)
			}
		})
	}
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWarmUpIsNotCounted(t *testing.T) {
	backend := reply(fakellm.Tokens(1, 100*tick, 0))
	against(t, backend, Plan{Concurrency: 2, Requests: 4, WarmUp: 6}, good(func(t *testing.T, run *Run) {
		if len(run.Results) != 4 || backend.Count() != 4+4 { // no more than the plan has
			t.Errorf("%d results of %d requests", len(run.Results), backend.Count())
		}
		bodies := map[string]bool{}
		for _, r := range backend.Requests() {
			bodies[string(r.Body)] = true
		}
		if len(bodies) != 8 {
			t.Errorf("%d different prompts: the warm-up must not fill the cache for what is measured", len(bodies))
		}
	}))
}

func TestModelsAreDiscovered(t *testing.T) {
	backend := reply(fakellm.Tokens(1, tick, 0))
	backend.Models = func(*fakellm.Request) fakellm.Script {
		return fakellm.Status(200, nil, `{"data":[{"id":"a"},{"id":"b"}]}`)
	}
	against(t, backend, Plan{Models: []string{}, Requests: 40}, good(func(t *testing.T, run *Run) {
		report := Summarise(run, Environment{})
		if len(report.ByModel) != 2 || report.ByModel[0].Model != "a" || report.ByModel[0].Served+report.ByModel[1].Served != 40 || report.ByModel[1].Served < 5 {
			t.Errorf("%+v", report.ByModel)
		}
	}))
	backend.Models = func(*fakellm.Request) fakellm.Script {
		return fakellm.Status(401, nil, `{"error":{"message":"who are you"}}`)
	}
	against(t, backend, Plan{Models: []string{}, Requests: 4}, func(t *testing.T, _ *Run, err error) {
		if err == nil || !strings.Contains(err.Error(), "--model") || !strings.Contains(err.Error(), "who are you") {
			t.Errorf("error %v", err)
		}
	})
}

func TestStopGivesWhatHasEnded(t *testing.T) {
	inBubble(t, reply(fakellm.Tokens(1, 300*tick, 0)), func(t *testing.T, transport *http.Transport) {
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		b, err := New(Plan{Target: "http://target", Models: []string{"m"}, Concurrency: 2}, nil, transport)
		if err != nil {
			t.Fatal(err)
		}
		run, err := b.Run(ctx)
		if err != nil {
			t.Fatal(err)
		}
		report := Summarise(run, Environment{})
		if !report.Partial || len(run.Results) != 6 || run.Unfinished != 2 || report.All.Failed != 0 {
			t.Errorf("partial %v, %d results, %d unfinished", report.Partial, len(run.Results), run.Unfinished)
		}
		var table bytes.Buffer
		if err := report.WriteTable(&table); err != nil || !strings.Contains(table.String(), "stopped before its end") {
			t.Errorf("%v %s", err, &table)
		}
	})
}

func TestProgress(t *testing.T) {
	inBubble(t, reply(fakellm.Status(500, nil, ""), fakellm.Tokens(3, time.Second, 0)), func(t *testing.T, transport *http.Transport) {
		b, err := New(Plan{Target: "http://target", Models: []string{"m"}, Concurrency: 1, Requests: 4}, nil, transport)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = b.Run(t.Context())
		}()
		time.Sleep(2500 * tick)
		want := Progress{Elapsed: 2500 * tick, Total: 4, Ended: 3, Failed: 1, InFlight: 1, OutputTokens: 6}
		if got := b.Progress(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		<-ended
	})
}

func TestSeedDecidesTheRequests(t *testing.T) {
	bodies := func(seed uint64) (all string) {
		backend := reply(fakellm.Tokens(1, tick, 0))
		plan := Plan{Rate: 100, Requests: 20, Seed: seed, PromptTokens: "10-90", OutputTokens: "1-50", Models: []string{"a", "b=3"}}
		against(t, backend, plan, good(func(t *testing.T, run *Run) {
			for i, r := range backend.Requests() {
				all += run.Results[i].At.String() + " " + string(r.Body) + "\n"
			}
		}))
		return all
	}
	first := bodies(1)
	if bodies(1) != first {
		t.Error("the same seed gave other requests")
	}
	if bodies(2) == first {
		t.Error("another seed gave the same requests")
	}
}

func TestRequestsOnTheWire(t *testing.T) {
	inBubble(t, reply(fakellm.Tokens(1, tick, 0)), func(t *testing.T, transport *http.Transport) {
		var got *http.Request
		var body []byte
		spy := transportFunc(func(r *http.Request) (*http.Response, error) {
			got = r
			body, _ = io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			return transport.RoundTrip(r)
		})
		plan := Plan{Target: "http://target/v1/", Models: []string{"m"}, Concurrency: 1, Requests: 1, PromptTokens: "2", OutputTokens: "9", IgnoreEOS: true}
		b, err := New(plan, http.Header{"Authorization": {"Bearer key"}}, spy)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got.URL.Path != "/v1/chat/completions" || got.Header.Get("Authorization") != "Bearer key" {
			t.Errorf("%v %v", got.URL, got.Header)
		}
		want := `{"model":"m","messages":[{"role":"user","content":" WWW WWW"}],"max_tokens":9,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true}`
		before, after, _ := strings.Cut(want, " WWW WWW")
		if len(body) != len(want) || !strings.HasPrefix(string(body), before) || !strings.HasSuffix(string(body), after) {
			t.Errorf("body %s", body)
		}
	})
}

func TestTraceFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.csv")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0000000,20,3\n2023-11-16 18:15:48.0000000,40,5\n")
	backend := reply(fakellm.Tokens(1, tick, 0))
	against(t, backend, Plan{Trace: file, Multiplier: 2}, good(func(t *testing.T, run *Run) {
		if len(run.Results) != 2 || run.Results[1].At-run.Results[0].At != time.Second {
			t.Fatalf("%+v", run.Results)
		}
		if body := string(backend.Requests()[1].Body); !strings.Contains(body, `"max_tokens":5`) || len(body) < 160 {
			t.Errorf("body %s", body)
		}
	}))
	against(t, backend, Plan{Trace: file, Concurrency: 1}, good(func(t *testing.T, run *Run) {
		if len(run.Results) != 2 || run.Results[1].At != tick {
			t.Errorf("a closed loop of a trace: %+v", run.Results)
		}
	}))
	write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0000000,20,3\n2023-11-16 18:15:48.0000000,many,5\n")
	against(t, backend, Plan{Trace: file}, func(t *testing.T, _ *Run, err error) {
		if err == nil || !strings.Contains(err.Error(), "trace.csv:3") {
			t.Errorf("error %v", err)
		}
	})
}

func TestWorkloadSharesPrefixes(t *testing.T) {
	s, err := trace.Shipped("customer-service")
	if err != nil {
		t.Fatal(err)
	}
	prompts := map[string]string{}
	turns := 0
	for r, err := range s.Source(1).First(300) {
		if err != nil {
			t.Fatal(err)
		}
		text := prompt(&r, uint64(r.At))
		if len(text) != r.PromptTokens*bytesPerToken {
			t.Fatalf("%d bytes for %d tokens", len(text), r.PromptTokens)
		}
		if before, ok := prompts[r.Session]; ok {
			turns++
			if !strings.HasPrefix(text, before) {
				t.Fatalf("turn %d of %s does not go on from the turn before", r.Turn, r.Session)
			}
		}
		prompts[r.Session] = text
	}
	if turns < 20 {
		t.Errorf("only %d turns to look at", turns)
	}
	against(t, reply(fakellm.Tokens(2, tick, tick)), Plan{Workload: "customer-service", Requests: 20}, good(func(t *testing.T, run *Run) {
		report := Summarise(run, Environment{})
		if report.All.Met != 1 || !strings.Contains(report.Objective, "own") {
			t.Errorf("met %v, objective %q", report.All.Met, report.Objective)
		}
	}))
}

func TestReadingAllocatesNothing(t *testing.T) {
	var m openai.Meter
	m.Reset()
	r := Result{Tokens: make([]time.Duration, 0, 1<<12)}
	event := []byte("data: " + `{"id":"x","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}` + "\n\n")
	if n := testing.AllocsPerRun(1000, func() { r.events(&m, event, time.Second) }); n != 0 {
		t.Errorf("%v allocations an event", n)
	}
	if len(r.Tokens) < 1000 {
		t.Errorf("%d tokens", len(r.Tokens))
	}
}
