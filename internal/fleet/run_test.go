package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/engine"
	"github.com/firsttoken/firsttoken/internal/memnet"
)

const two = `
engines:
  - {name: a, profile: h100-llama-3.1-70b-fp8-tp4, model: chat}
  - {name: b, profile: rtx4090-llama-3.1-8b-bf16, model: code}
`

// inMemory gives every engine without a port one of its own.
func inMemory(network *memnet.Network) engine.Listen {
	free := 20000
	return func(_, addr string) (net.Listener, error) {
		if strings.HasSuffix(addr, ":0") {
			free++
			addr = fmt.Sprintf("127.0.0.1:%d", free)
		}
		return network.Listen(addr)
	}
}

// start runs a fleet on an in-memory network.
func start(t *testing.T, text string, speed float64) *Running {
	t.Helper()
	r, err := parse(t, text).Start(t.Context(), speed, inMemory(memnet.New()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// control sends one request to the control face.
func control(t *testing.T, r *Running, method, path, body string) (int, engineView, string) {
	t.Helper()
	w := httptest.NewRecorder()
	r.Control().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	var v engineView
	_ = json.Unmarshal(w.Body.Bytes(), &v) // an error answer is no engine
	return w.Code, v, w.Body.String()
}

func kinds(e *engine.Engine) (names []engine.FaultKind) {
	for _, f := range e.Faults() {
		names = append(names, f.Kind)
	}
	return names
}

func TestScheduledFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two+`
faults:
  - {at: 10s, engine: a, kind: slow, for: 10s}
  - {at: 14s, engine: a, kind: crash, for: 2s}
  - {at: 30s, engine: a, kind: errors, for: 10s}
  - {at: 35s, engine: a, kind: errors, rate: 0.5, for: 20s}
  - {at: 35s, engine: b, kind: hang}
  - {at: 5h, engine: b, kind: cut}
`, 2)
		began := time.Now()
		for _, c := range []struct {
			at   time.Duration // of the engines
			want []engine.FaultKind
		}{
			{9 * time.Second, nil}, {11 * time.Second, []engine.FaultKind{engine.Slow}},
			{15 * time.Second, []engine.FaultKind{engine.Crash, engine.Slow}}, {17 * time.Second, []engine.FaultKind{engine.Slow}},
			{21 * time.Second, nil}, {31 * time.Second, []engine.FaultKind{engine.Errors}},
			{41 * time.Second, []engine.FaultKind{engine.Errors}}, // the second one goes on
			{56 * time.Second, nil},
		} {
			time.Sleep(c.at/2 - time.Since(began))
			synctest.Wait()
			if got := kinds(r.Engines()[0]); !slices.Equal(got, c.want) {
				t.Errorf("after %v: faults %v, want %v", c.at, got, c.want)
			}
		}
		if got := kinds(r.Engines()[1]); !slices.Equal(got, []engine.FaultKind{engine.Hang}) {
			t.Errorf("the other engine: faults %v", got)
		}
		r.Stop()
	})
}

func TestControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two, 1)
		status, v, _ := control(t, r, "POST", "/engines/b/faults", `{"kind":"slow","factor":3,"for":"30s"}`)
		if status != 200 || v.Name != "b" || v.Model != "code" || v.KVTotal != 2588 || len(v.Faults) != 1 || v.Faults[0].Factor != 3 {
			t.Errorf("status %d, %+v", status, v)
		}
		time.Sleep(29 * time.Second)
		if _, v, _ := control(t, r, "GET", "/engines/b", ""); len(v.Faults) != 1 {
			t.Errorf("before its end: %+v", v)
		}
		control(t, r, "POST", "/engines/b/faults", `{"kind":"slow"}`) // takes its place, for good
		time.Sleep(time.Minute)
		if _, v, _ := control(t, r, "GET", "/engines/b", ""); len(v.Faults) != 1 || v.Faults[0].Factor != 4 {
			t.Errorf("the later fault went with the former: %+v", v)
		}
		control(t, r, "POST", "/engines/b/faults", `{"kind":"crash"}`)
		if _, v, _ := control(t, r, "GET", "/engines/b", ""); v.KVTotal != 0 || len(v.Faults) != 2 {
			t.Errorf("crashed: %+v", v)
		}
		if _, v, _ := control(t, r, "DELETE", "/engines/b/faults/slow", ""); len(v.Faults) != 1 {
			t.Errorf("one cleared: %+v", v)
		}
		if _, v, _ := control(t, r, "DELETE", "/engines/b/faults", ""); len(v.Faults) != 0 || v.KVTotal != 2588 {
			t.Errorf("all cleared: %+v", v)
		}
		_, _, list := control(t, r, "GET", "/engines", "")
		var all []engineView
		if err := json.Unmarshal([]byte(list), &all); err != nil || len(all) != 2 || all[0].Name != "a" || all[0].Faults == nil {
			t.Errorf("%v: %s", err, list)
		}
		r.Stop()
	})
}

func TestControlMistakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two, 1)
		for _, c := range []struct {
			method, path, body string
			status             int
			want               string
		}{
			{"GET", "/engines/c", "", 404, `there is no engine \"c\"`},
			{"POST", "/engines/a/faults", `{"kind":"crahs"}`, 400, `unknown fault kind \"crahs\"`},
			{"POST", "/engines/a/faults", `{"kind":"slow","speed":3}`, 400, `unknown field`},
			{"POST", "/engines/a/faults", `slow`, 400, `write one such as`},
			{"POST", "/engines/a/faults", `{"kind":"slow","for":"5"}`, 400, `want a duration such as 30s`},
			{"POST", "/engines/a/faults", `{"kind":"cut","rate":7}`, 400, `rate is 7`},
			{"DELETE", "/engines/a/faults/crahs", "", 400, `unknown fault kind`},
			{"PUT", "/engines/a", "", 405, ""},
		} {
			status, _, body := control(t, r, c.method, c.path, c.body)
			if status != c.status || !strings.Contains(body, c.want) {
				t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.path, c.body, status, body, c.status, c.want)
			}
		}
		r.Stop()
		if status, _, body := control(t, r, "POST", "/engines/a/faults", `{"kind":"restart"}`); status != 500 {
			t.Errorf("after the end: %d %s", status, body)
		}
	})
}

func TestGatewayConfigIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two, 1)
		text := r.GatewayConfig()
		cfg, err := config.Parse("gateway.yaml", []byte(text), ".", nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if len(cfg.Models) != 2 || cfg.Models[1].Name != "code" {
			t.Fatalf("models %+v", cfg.Models)
		}
		b := cfg.Models[1].Backends[0]
		if b.Name != "b" || b.URL != r.URLs()[1] || b.Engine != "vllm" || b.Labels["gpu"] != "RTX 4090" || b.Labels["topology"] != "tp1" || b.Profile == "" || b.Profile != b.Labels["profile"] {
			t.Errorf("backend %+v", b)
		}
		r.Stop()
	})
}

func TestStartOnFixedPorts(t *testing.T) {
	f := parse(t, "engines: [{name: a, profile: "+h100+", port: 9100, count: 2}]")
	specs := f.Specs(3)
	for i, s := range specs {
		if want := fmt.Sprintf("127.0.0.1:%d", 9100+i); s.Addr != want || s.Speed != 3 {
			t.Errorf("engine %d: %+v, want address %s", i, s, want)
		}
	}
}

func TestFleetEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		network := memnet.New()
		r, err := parse(t, two+"faults: [{at: 1h, engine: a, kind: hang}]").Start(ctx, 1, inMemory(network))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		r.Stop()
		client := &http.Client{Transport: &http.Transport{DialContext: network.DialContext}}
		if _, err := client.Get(r.URLs()[0] + "/health"); err == nil {
			t.Error("a fleet that ended answers")
		}
	})
}
