package app_test

import (
	"errors"
	"math"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/models"
	"github.com/firsttoken/firsttoken/internal/rollback"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// A backend that a reload adds is sent prompts before it gets requests. The
// prompts count nowhere.
func TestNewBackendIsWarmedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const warm = "defaults: {policy: round-robin}\nwarm_up: {max_prompt: 128, repeat: 1, prefixes: [You are helpful.]}"
		a, b := playing(fakellm.Reply(1, 0, 0)...), playing(fakellm.Reply(1, time.Second, 0)...)
		g := startGateway(t, configFor(warm, "a:8000"), map[string]http.Handler{"a:8000": a, "b:8000": b})
		synctest.Wait()
		g.want(`firsttoken_backend_readiness{backend="a",state="ready"}`, "1")
		if err := g.reload(configFor(warm, "a:8000", "b:8000")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		g.want(`firsttoken_backend_readiness{backend="b",state="warming"}`, "1")
		g.want(`firsttoken_backend_in_flight{backend="b"}`, "0")
		for range 4 {
			g.chat(streamBody("m"))
		}
		if a.Count() != 4 || b.Count() != 1 {
			t.Errorf("a got %d requests and b %d, want 4 and the first prompt", a.Count(), b.Count())
		}
		time.Sleep(4 * time.Second)
		g.want(`firsttoken_backend_readiness{backend="b",state="ready"}`, "1")
		g.want(`firsttoken_backend_readiness{backend="b",state="warming"}`, "0")
		for range 4 {
			g.chat(streamBody("m"))
		}
		if a.Count() != 6 || b.Count() != 5 {
			t.Errorf("a got %d requests and b %d, want 6 and, with the prompts, 5", a.Count(), b.Count())
		}
		g.want(`firsttoken_attempts_total{backend="b",model="m",reason="ok"}`, "2")
		if got := len(g.access()); got != 8 {
			t.Errorf("%d requests in the log, want 8", got)
		}
		if got := g.events("warm-up is over"); len(got) != 1 || got[0]["backend"] != "b" || got[0]["prompts"] != 3.0 || got[0]["readiness"] != "ready" {
			t.Errorf("logged %v", got)
		}
	})
}

// A model that says too little is made active, requests come late, the contract
// is violated: the model is taken back, and its predictions are at once the
// former one's, be that a trained one or the one that ships.
func TestBadModelIsTakenBack(t *testing.T) {
	for name, ships := range map[string]bool{"to a trained one": false, "to the one that ships": true} {
		t.Run(name, func(t *testing.T) { takesBadModelBack(t, ships) })
	}
}

func takesBadModelBack(t *testing.T, ships bool) {
	dir := t.TempDir() + "/models"
	store := models.New(dir, predictor.Names(), predictor.SchemaHash())
	former := writeConstant(t, oldModel, 0, 0.5)
	var shipped *trees.Bundle
	if ships {
		b, err := trees.OpenWith(os.DirFS(former), predictor.Names(), predictor.SchemaHash())
		if err != nil {
			t.Fatal(err)
		}
		shipped = b
	}
	publish := func(id, folder string) {
		t.Helper()
		if got, err := store.Publish(folder); err != nil || got != id {
			t.Fatal(got, err)
		}
	}
	activate := func(id string) {
		t.Helper()
		if err := store.Activate(id); err != nil {
			t.Fatal(err)
		}
	}
	publish(newModel, writeConstant(t, newModel, -3, -2.5))
	if !ships {
		publish(oldModel, former)
		activate(oldModel)
	}
	synctest.Test(t, func(t *testing.T) {
		var late atomic.Bool
		engine := &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script {
			if late.Load() {
				return fakellm.Reply(1, 90*time.Millisecond, 0)
			}
			return fakellm.Reply(1, 60*time.Millisecond, 0)
		}}
		_, extra := contractFile(t, contract("80ms", ""))
		text := configFor(quiet+extra+"prediction: {models: "+dir+"}", "a:8000")
		text = strings.Replace(strings.Replace(text, "server: {", "server: {tenant_header: X-Tenant, ", 1), "{health:", "{admission: {enabled: false}, health:", 1)
		g := newGateway(t)
		g.config, g.shipped = text, shipped
		g.serveBackend("a:8000", engine)
		g.start(g.load)
		ask := func(n int) {
			for range n {
				g.chat(streamBody("m"), "X-Tenant", "shop")
				time.Sleep(10 * time.Millisecond)
			}
		}
		ask(300)
		if got := g.app.Evaluations(); len(got) != 0 {
			t.Fatalf("%+v", got)
		}
		activate(newModel)
		time.Sleep(3 * time.Second)
		late.Store(true)
		ask(400) // 40 s
		synctest.Wait()
		got := g.app.Evaluations()
		if len(got) == 0 {
			t.Fatal("no evaluation")
		}
		first := got[len(got)-1]
		if first.Verdict != rollback.RolledBack || first.Contract != "chat" || first.Instance != "a" || first.Weight != 0.5 {
			t.Errorf("%+v", first)
		}
		if m := first.Findings[0].Models; m == nil || m.Rows < 200 || !(m.Better > 0.05) || math.IsNaN(float64(m.Better)) {
			t.Errorf("%+v", m)
		}
		id, _, err := store.Active()
		if ships != errors.Is(err, models.ErrNoActive) || !ships && id != oldModel {
			t.Errorf("%s is active, %v", id, err)
		}
		if info := grep(g.metrics(), "prediction_model_info"); !strings.Contains(info, oldModel) || strings.Contains(info, newModel) {
			t.Errorf("in force is %s", info)
		}
		if logged := g.events("rollback evaluated"); len(logged) == 0 || logged[0]["verdict"] != "rolled_back" {
			t.Errorf("logged %v", logged)
		}
	})
}

// What a reload changes is a cause to be looked at, with the numbers before and
// after.
func TestReloadIsACause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late atomic.Bool
		engine := &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script {
			if late.Load() {
				return fakellm.Reply(1, 90*time.Millisecond, 0)
			}
			return fakellm.Reply(1, 60*time.Millisecond, 0)
		}}
		path, extra := contractFile(t, contract("80ms", ""))
		text := strings.Replace(configFor(quiet+extra, "a:8000"), "{health:", "{admission: {enabled: false}, health:", 1)
		g := startGateway(t, text, map[string]http.Handler{"a:8000": engine})
		ask := func(n int) {
			for range n {
				g.chat(streamBody("m"), "X-Tenant", "shop")
				time.Sleep(10 * time.Millisecond)
			}
		}
		ask(200)
		writeFile(t, path, contract("80ms", "shed"))
		if err := g.reload(text); err != nil {
			t.Fatal(err)
		}
		late.Store(true)
		ask(400)
		synctest.Wait()
		got := g.app.Evaluations()
		if len(got) == 0 {
			t.Fatal("no evaluation")
		}
		r := got[len(got)-1]
		kinds := ""
		for _, f := range r.Findings {
			kinds += string(f.Kind) + " "
			if a := f.Attainment; a.Before != 1 || a.After > 0.1 || a.RequestsBefore != 200 || a.RequestsAfter < 200 {
				t.Errorf("%s: %+v", f.Kind, a)
			}
		}
		if kinds != "contract config " || r.Verdict != rollback.Recommend {
			t.Errorf("%s: %s of %s", r.Verdict, r.Why, kinds)
		}
	})
}
