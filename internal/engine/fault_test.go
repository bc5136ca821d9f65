package engine

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

const ask5 = `{` + hello + `,"max_tokens":5,"ignore_eos":true,"stream":true}`

func inject(t *testing.T, s *Server, f Fault) {
	t.Helper()
	if err := s.Inject(f); err != nil {
		t.Fatal(err)
	}
}

// get gives the status of a GET.
func get(t *testing.T, s *Server, path string) int {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
	return w.Code
}

func TestHangStandsStillAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		done := make(chan *recorder)
		go func() {
			r, _ := post(t.Context(), s, "/v1/chat/completions", ask5)
			done <- r
		}()
		first := ms(5 + 10 + helloTokens)
		time.Sleep(first + ms(13)) // two tokens are out
		inject(t, s, Fault{Kind: Hang})
		inject(t, s, Fault{Kind: Hang})

		impatient, leave := context.WithTimeout(t.Context(), time.Minute)
		defer leave()
		began := time.Now()
		if r, _ := post(impatient, s, "/v1/chat/completions", ask5); r.status != 0 || time.Since(began) != time.Minute {
			t.Errorf("a hung engine answered %d after %v", r.status, time.Since(began))
		}
		health := make(chan int)
		go func() { health <- get(t, s, "/health") }()
		time.Sleep(time.Hour)
		s.Clear(Hang)
		s.Clear(Hang)
		if got := <-health; got != 200 {
			t.Errorf("health after the hang: %d", got)
		}

		stood := time.Minute + time.Hour
		var at []time.Duration
		for _, p := range (<-done).pieces()[1:] {
			at = append(at, p.at)
		}
		want := []time.Duration{first, first + ms(12), stood + first + ms(24), stood + first + ms(36), stood + first + ms(48), stood + first + ms(48)}
		if !reflect.DeepEqual(at, want) {
			t.Errorf("pieces at %v, want %v", at, want)
		}
		s.Close()
	})
}

func TestCloseEndsAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		inject(t, s, Fault{Kind: Hang})
		aborted := make(chan bool)
		go func() {
			_, was := post(t.Context(), s, "/v1/chat/completions", ask5)
			aborted <- was
		}()
		synctest.Wait()
		go s.Close()
		if !<-aborted {
			t.Error("the answer was not cut off")
		}
	})
}

func TestSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		inject(t, s, Fault{Kind: Slow, Factor: 3})
		last := func() time.Duration {
			r, _ := post(t.Context(), s, "/v1/chat/completions", ask5)
			pieces := r.pieces()
			return pieces[len(pieces)-1].at
		}
		own := ms(10 + helloTokens + 4*12)
		if got := last(); got != ms(5)+3*own {
			t.Errorf("slow: ended after %v, want %v", got, ms(5)+3*own)
		}
		s.Clear(Slow)
		if got := last(); got != ms(5)+own {
			t.Errorf("cleared: ended after %v, want %v", got, ms(5)+own)
		}
		s.Close()
	})
}

func TestCutBreaksOffHalfWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		inject(t, s, Fault{Kind: Cut})
		r, aborted := post(t.Context(), s, "/v1/chat/completions", ask5)
		if text := pieceText(r); !aborted || strings.Count(text, "data: ") != 1+2 || strings.Contains(text, "[DONE]") {
			t.Errorf("aborted %v, want the role and 2 tokens of 5: %s", aborted, text)
		}
		if r, aborted := post(t.Context(), s, "/v1/chat/completions", `{`+hello+`}`); !aborted || r.status != 0 {
			t.Errorf("a whole answer: status %d, aborted %v", r.status, aborted)
		}
		s.Clear(Cut)
		if r, aborted := post(t.Context(), s, "/v1/chat/completions", ask5); aborted || !strings.Contains(pieceText(r), "[DONE]") {
			t.Errorf("cleared, but aborted: %v", aborted)
		}
		if st := s.Stats(); st.Cancelled != 2 || st.Running != 0 {
			t.Errorf("stats %+v", st)
		}
		s.Close()
	})
}

func pieceText(r *recorder) string {
	var all strings.Builder
	for _, p := range r.pieces() {
		all.WriteString(p.text)
	}
	return all.String()
}

func TestErrorAndRejectRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		defer s.Close()
		for _, c := range []struct {
			fault  Fault
			status int
		}{{Fault{Kind: Errors, Rate: 0.3}, 500}, {Fault{Kind: Reject, Rate: 0.3}, 429}, {Fault{Kind: Reject}, 429}} {
			inject(t, s, c.fault)
			hit, began := 0, time.Now()
			const n = 400
			for range n {
				r, _ := post(t.Context(), s, "/v1/embeddings", `{"model":"m","input":""}`)
				if r.status == c.status {
					hit++
					if c.status == 429 && r.header.Get("Retry-After") == "" {
						t.Fatal("429 without Retry-After")
					}
				}
			}
			want := c.fault.Rate
			if want == 0 {
				want = 1
			}
			if got := float64(hit) / n; got < want-0.07 || got > want+0.07 {
				t.Errorf("%s: %v of requests, want about %v", c.fault.Kind, got, want)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("%s: took %v, want no time", c.fault.Kind, took)
			}
			if got := get(t, s, "/health"); got != 200 {
				t.Errorf("%s: health %d, want 200", c.fault.Kind, got)
			}
			s.Clear(c.fault.Kind)
		}
		if r, _ := post(t.Context(), s, "/v1/chat/completions", ask5); r.status != 200 {
			t.Errorf("all cleared: status %d", r.status)
		}
	})
}

func TestStalledMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, testSpec())
		defer s.Close()
		done := func() float64 {
			return scrape(t, s)["vllm:generation_tokens_total"].Metric[0].Counter.GetValue()
		}
		inject(t, s, Fault{Kind: StallMetrics})
		post(t.Context(), s, "/v1/chat/completions", ask5)
		if got := done(); got != 0 {
			t.Errorf("stalled, and shows %v tokens", got)
		}
		s.Clear(StallMetrics)
		if got := done(); got != 5 {
			t.Errorf("cleared, and shows %v tokens", got)
		}
	})
}

func TestServerIsNotReadyBeforeItsStartUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := testSpec()
		spec.Params.StartUp, spec.Speed = time.Minute, 2
		s := testServer(t, spec)
		defer s.Close()
		time.Sleep(30*time.Second - time.Nanosecond)
		for _, path := range []string{"/health", "/metrics", "/v1/models"} {
			if got := get(t, s, path); got != 503 {
				t.Errorf("%s while starting: %d, want 503", path, got)
			}
		}
		if r, _ := post(t.Context(), s, "/v1/chat/completions", ask5); r.status != 503 {
			t.Errorf("a request while starting: %d, want 503", r.status)
		}
		time.Sleep(time.Nanosecond)
		if got := get(t, s, "/health"); got != 200 {
			t.Errorf("health after the start-up: %d", got)
		}
	})
}

func TestSpeculativeMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := testSpec()
		spec.Params.Speculative = Speculative{DraftTokens: 3, Acceptance: 1}
		s := testServer(t, spec)
		defer s.Close()
		r, _ := post(t.Context(), s, "/v1/chat/completions", ask5)
		if got := strings.Count(pieceText(r), "data: "); got != 1+5+2 {
			t.Errorf("%d events, want role, 5 tokens, end, [DONE]: %s", got, pieceText(r))
		}
		families := scrape(t, s)
		for name, want := range map[string]float64{
			"vllm:spec_decode_num_drafts_total": 1, "vllm:spec_decode_num_draft_tokens_total": 3,
			"vllm:spec_decode_num_accepted_tokens_total": 3, "vllm:generation_tokens_total": 5,
		} {
			if f := families[name]; f == nil || f.Metric[0].Counter.GetValue() != want {
				t.Errorf("%s: %v, want %v", name, f, want)
			}
		}
	})
}

func TestFaultsThatMakeNoSense(t *testing.T) {
	s := testServer(t, testSpec())
	for _, f := range []Fault{
		{}, {Kind: "explode"}, {Kind: Slow, Factor: -1}, {Kind: Cut, Rate: 2}, {Kind: Cut, Factor: 2}, {Kind: Hang, Rate: 0.5},
		{Kind: Crash}, {Kind: Restart},
	} {
		if err := s.Inject(f); err == nil {
			t.Errorf("%+v: accepted", f)
		}
	}
}

func TestEngineFaultsLastOverRestarts(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	f := startFleet(t, fastSpec())
	e, url, c := f.Engines()[0], f.URLs()[0], testClient(t)
	status := func() int {
		t.Helper()
		res, err := send(t, c, url, false)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(e.Inject(Fault{Kind: Errors}))
	if got := status(); got != 500 {
		t.Errorf("errors: status %d", got)
	}
	must(e.Inject(Fault{Kind: Restart}))
	if got := status(); got != 500 {
		t.Errorf("after a restart: status %d, want the fault to last", got)
	}
	must(e.Inject(Fault{Kind: Crash}))
	if _, err := send(t, c, url, false); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("crashed: %v, want refused", err)
	}
	if got := e.Faults(); len(got) != 2 || got[0].Kind != Crash || got[1] != (Fault{Kind: Errors, Rate: 1}) {
		t.Errorf("faults %v", got)
	}
	must(e.Clear(Errors)) // while it is down
	must(e.Clear(Crash))
	must(e.Clear(Crash))
	if got := status(); got != http.StatusOK || len(e.Faults()) != 0 {
		t.Errorf("all cleared: status %d, %v", got, e.Faults())
	}
	if err := e.Inject(Fault{Kind: "explode"}); err == nil {
		t.Error("an unknown fault was accepted")
	}
	f.Stop()
	if err := e.Inject(Fault{Kind: Errors}); !errors.Is(err, ErrStopped) {
		t.Errorf("after the stop: %v", err)
	}
	c.CloseIdleConnections()
}
