package app_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// watched is a configuration that probes and scrapes its backends.
const watched = "defaults: {health: {interval: 50ms}}"

func TestReloadUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := playing(fakellm.Tokens(5, 20*time.Millisecond, 20*time.Millisecond)...), &fakellm.Backend{}
		g := newGateway(t)
		g.serveBackend("a:8000", a)
		g.serveBackend("b:8000", b)
		configs := []string{
			configFor(watched, "a:8000"), configFor(watched, "a:8000", "b:8000"), configFor(watched, "b:8000"),
			strings.Replace(configFor(watched, "a:8000", "b:8000"), "- name: m\n", "- name: m\n    policy: p2c\n", 1),
			strings.Replace(configFor(watched, "a:8000"), "name: a,", "name: a, limits: {max_idle_conns: 1}, engine: vllm,", 1),
			"models: []",
		}
		g.config = configs[0]
		g.start(g.load)
		var clients sync.WaitGroup
		for i := range 8 {
			clients.Go(func() {
				for n := range 100 {
					got := g.chat(streamBody("m"))
					if got.status != 200 || got.err != nil || !strings.HasSuffix(got.body, doneEvent) {
						t.Errorf("client %d, request %d: %d %v %.100q", i, n, got.status, got.err, got.body)
					}
					time.Sleep(time.Duration(i) * time.Millisecond)
				}
			})
		}
		var good atomic.Int64
		for range 2 { // reloads may meet each other
			clients.Go(func() {
				for i := range 100 {
					if err := g.reload(configs[i%len(configs)]); err == nil {
						good.Add(1)
					}
					time.Sleep(time.Duration(37+i%5) * time.Millisecond)
				}
			})
		}
		clients.Wait()
		if a.Count()+b.Count() != 800 || a.Count() == 0 || b.Count() == 0 {
			t.Errorf("backends got %d and %d requests, want 800 in all", a.Count(), b.Count())
		}
		g.want("firsttoken_config_revision", fmt.Sprint(1+good.Load()))
		revisions := map[any]bool{}
		for _, line := range g.access() {
			revisions[line["revision"]] = true
		}
		if len(revisions) < 20 {
			t.Errorf("requests were served on %d revisions only", len(revisions))
		}
	})
}

func TestReloadOldRevisionFinishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := playing(fakellm.Tokens(10, time.Second, time.Second)...)
		g := newGateway(t)
		g.serveBackend("a:8000", slow)
		b := &fakellm.Backend{}
		g.serveBackend("b:8000", b)
		g.config = configFor(watched, "a:8000")
		g.start(g.load)
		resp := g.stream(t.Context())
		if err := g.reload(configFor(watched, "b:8000")); err != nil {
			t.Fatal(err)
		}
		if got := g.chat(streamBody("m")); got.status != 200 || b.Count() != 1 {
			t.Errorf("%d, new backend got %d", got.status, b.Count())
		}
		probes := len(slow.Probes())
		if got := readAnswer(resp); !strings.HasSuffix(got.body, doneEvent) {
			t.Errorf("the stream ended with %q", got.body)
		}
		if n := len(slow.Probes()); n != probes {
			t.Errorf("a removed backend was probed %d times", n-probes)
		}
		time.Sleep(10 * time.Second)
		if text := g.metrics(); strings.Contains(text, `backend="a"`) {
			t.Errorf("series of a removed backend:\n%s", grep(text, `backend="a"`))
		}
		lines := g.access()
		if len(lines) != 2 || lines[0]["revision"] != 2.0 || lines[1]["revision"] != 1.0 || lines[1]["backend"] != "a" {
			t.Errorf("access lines %v", lines)
		}
	})
}

// grep is the lines of text that hold the part.
func grep(text, part string) string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.Contains(line, part) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// A request on an old revision must not bring back the series of what a reload
// took away, whatever it ends with.
func TestReloadRemovedSeriesVanish(t *testing.T) {
	for name, script := range map[string]fakellm.Script{
		"served": fakellm.Tokens(3, time.Second, time.Second),
		"failed": fakellm.Broken(3, time.Second, time.Second, fakellm.Reset()),
		"500":    {fakellm.Wait(time.Second), fakellm.Status(500, nil, "{}").Play},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGateway(t)
				g.serveBackend("gone:8000", playing(script...))
				g.serveBackend("b:8000", &fakellm.Backend{})
				text := configFor(watched, "b:8000")
				both := text + "  - name: old\n    backends: [{name: gone, url: \"http://gone:8000\", engine: vllm}]\n"
				g.config = both
				g.start(g.load)
				g.chat(streamBody("old"))
				if n := strings.Count(g.metrics(), `backend="gone"`); n < 10 {
					t.Errorf("%d series before the reload", n)
				}
				resp, err := g.post(t.Context(), "/v1/chat/completions", streamBody("old"))
				if err != nil {
					t.Fatal(err)
				}
				if err := g.reload(text); err != nil {
					t.Fatal(err)
				}
				for when, do := range map[string]func(){"at once": func() {}, "later": func() { readAnswer(resp) }} {
					do()
					for _, label := range []string{`backend="gone"`, `model="old"`} {
						if left := grep(g.metrics(), label); left != "" {
							t.Errorf("%s: series of what is gone:\n%s", when, left)
						}
					}
				}
				if got := g.chat(streamBody("old")); got.status != 404 {
					t.Errorf("a removed model answers %d", got.status)
				}
			})
		})
	}
}

func TestReloadKeepsCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := playing(fakellm.Tokens(10, time.Second, time.Second)...)
		g := newGateway(t)
		g.serveBackend("a:8000", slow)
		g.serveBackend("b:8000", slow)
		g.config = configFor(watched, "a:8000")
		g.start(g.load)
		first := g.stream(t.Context())
		second := g.stream(t.Context())
		time.Sleep(1500 * time.Millisecond)
		g.want(`firsttoken_backend_in_flight{backend="a"}`, "2")
		for range 3 {
			if err := g.reload(configFor(watched, "a:8000", "b:8000")); err != nil {
				t.Fatal(err)
			}
		}
		g.want(`firsttoken_backend_in_flight{backend="a"}`, "2")
		g.want(`firsttoken_backend_prefilling{backend="a"}`, "0")
		g.want(`firsttoken_requests_in_flight{model="m"}`, "2")
		third, fourth := g.stream(t.Context()), g.stream(t.Context()) // least in flight knows of the two
		synctest.Wait()
		g.want(`firsttoken_backend_in_flight{backend="b"}`, "2")
		for _, resp := range []answer{readAnswer(first), readAnswer(second), readAnswer(third), readAnswer(fourth)} {
			if !strings.HasSuffix(resp.body, doneEvent) {
				t.Errorf("a stream ended with %q", resp.body)
			}
		}
		g.want(`firsttoken_backend_in_flight{backend="a"}`, "0")
		g.want(`firsttoken_requests_in_flight{model="m"}`, "0")
		g.want(`firsttoken_attempts_total{backend="a",model="m",reason="ok"}`, "2")
	})
}

func TestReloadKeepsHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		bad := down(0)
		g.serveBackend("a:8000", bad)
		g.serveBackend("b:8000", &fakellm.Backend{})
		text := configFor("defaults: {policy: round-robin, health: {interval: off, consecutive: 2, ejection: 1m}}", "a:8000", "b:8000")
		g.config = text
		g.start(g.load)
		for range 20 {
			g.chat(plainBody("m"))
		}
		g.want(`firsttoken_backend_ejected{backend="a"}`, "1")
		if err := g.reload(strings.Replace(text, "name: b,", "name: b, weight: 2,", 1)); err != nil {
			t.Fatal(err)
		}
		g.want(`firsttoken_backend_ejected{backend="a"}`, "1")
		g.want(`firsttoken_ejections_total{backend="a",reason="consecutive"}`, "1")
		before := bad.Count()
		for range 20 {
			g.chat(plainBody("m"))
		}
		if n := bad.Count() - before; n != 0 {
			t.Errorf("an ejected backend got %d requests after a reload", n)
		}
	})
}

func TestReloadBadFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.serveBackend("a:8000", &fakellm.Backend{})
		g.config = configFor(quiet, "a:8000")
		g.start(g.load)
		loaded := g.metric("firsttoken_config_last_reload_success_timestamp_seconds")
		time.Sleep(time.Minute)
		for _, bad := range []string{"{", "models: []", configFor("server: {lisen: x}", "a:8000"), configFor("defaults: {timeouts: {idle: fast}}", "b:8000"), ""} {
			if err := g.reload(bad); err == nil {
				t.Errorf("a bad configuration was accepted: %q", bad)
			}
			if got := g.chat(plainBody("m")); got.status != 200 {
				t.Errorf("status %d", got.status)
			}
		}
		g.want("firsttoken_config_last_reload_successful", "0")
		g.want("firsttoken_config_last_reload_success_timestamp_seconds", loaded)
		g.want(`firsttoken_config_reloads_total{result="failed"}`, "5")
		g.want("firsttoken_config_revision", "1")
		if err := g.reload(configFor(quiet, "a:8000")); err != nil {
			t.Fatal(err)
		}
		g.want("firsttoken_config_last_reload_successful", "1")
		g.want("firsttoken_config_revision", "2")
		failed := 0
		g.shutdown()
		for _, line := range g.log.lines(t) {
			if line["level"] == "error" && strings.Contains(fmt.Sprint(line["error"]), "test.yaml") {
				failed++
			}
		}
		if failed != 5 {
			t.Errorf("%d log lines name the file, want 5", failed)
		}
	})
}

// files is a gateway whose configuration is a real file.
func files(t *testing.T, dir string) *gateway {
	g := newGateway(t)
	g.serveBackend("a:8000", &fakellm.Backend{})
	g.serveBackend("b:8000", &fakellm.Backend{})
	return g.start(func() (*config.Config, error) {
		return config.Load(filepath.Join(dir, "gateway.yaml"), nil)
	})
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReloadWatchesFiles(t *testing.T) {
	dir := t.TempDir()
	file, key := filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "key")
	plain := configFor(quiet, "a:8000")
	withKey := strings.Replace(plain, "name: a,", "name: a, credentials: {file: key},", 1)
	synctest.Test(t, func(t *testing.T) {
		write(t, file, plain)
		g := files(t, dir)
		revision := func(want string) {
			t.Helper()
			time.Sleep(3 * time.Second)
			g.want("firsttoken_config_revision", want)
		}
		revision("1")

		write(t, file, configFor(quiet, "a:8000", "b:8000"))
		revision("2")

		write(t, file+".new", plain)
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		revision("3")

		// A key that is not there yet: nothing changes.
		write(t, file, withKey)
		revision("3")
		g.want(`firsttoken_config_reloads_total{result="failed"}`, "1")
		write(t, key, "secret-1")
		write(t, file, withKey+"# again\n")
		revision("4")

		write(t, key, "secret-2")
		revision("5")
		write(t, key+".new", "secret-3")
		if err := os.Rename(key+".new", key); err != nil {
			t.Fatal(err)
		}
		revision("6")
		if got := g.chat(plainBody("m")); got.status != 200 {
			t.Errorf("status %d", got.status)
		}

		// What is touched without a change, or is gone for a moment, is nothing new.
		write(t, file, withKey+"# again\n")
		revision("6")
		g.want("firsttoken_config_last_reload_successful", "1")

		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		revision("6")
		g.want("firsttoken_config_last_reload_successful", "0")
		g.want(`firsttoken_config_reloads_total{result="failed"}`, "2")
		write(t, file, withKey+"# again\n")
		revision("7")

		// A reload by signal has seen the change: it isn't done twice.
		write(t, file, plain)
		if err := g.app.Reload(); err != nil {
			t.Fatal(err)
		}
		revision("8")
	})
}

func TestReloadCredentials(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "key"), "secret-1\n")
	synctest.Test(t, func(t *testing.T) {
		write(t, filepath.Join(dir, "gateway.yaml"), strings.Replace(configFor(quiet, "a:8000"), "name: a,", "name: a, credentials: {file: key},", 1))
		backend := &fakellm.Backend{}
		g := newGateway(t)
		g.serveBackend("a:8000", backend)
		g.start(func() (*config.Config, error) { return config.Load(filepath.Join(dir, "gateway.yaml"), nil) })
		g.chat(plainBody("m"))
		write(t, filepath.Join(dir, "key"), "secret-2\n")
		time.Sleep(3 * time.Second)
		g.chat(plainBody("m"))
		for i, want := range []string{"Bearer secret-1", "Bearer secret-2"} {
			if got := backend.Requests()[i].Header.Get("Authorization"); got != want {
				t.Errorf("request %d had %q", i, got)
			}
		}
	})
}

// Settings that need a restart are named in the log and otherwise left alone.
func TestReloadWarnsOfRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.config = configFor(quiet, "a:8000")
		g.serveBackend("a:8000", &fakellm.Backend{})
		g.start(g.load)
		if err := g.reload(configFor(quiet+"\ndrain: {limit: 1s}", "a:8000")); err != nil {
			t.Fatal(err)
		}
		if err := g.reload(strings.Replace(configFor(quiet, "a:8000"), "server: {", "server: {max_body: 10, ", 1)); err != nil {
			t.Fatal(err)
		}
		if got := g.chat(plainBody("m")); got.status != 413 {
			t.Errorf("max_body was not reloaded: %d", got.status)
		}
		if err := g.reload(configFor(quiet+"\nprediction: {dwell: 1s, samples: {max_files: 1}}", "a:8000")); err != nil {
			t.Fatal(err)
		}
		g.shutdown()
		warned := 0
		for _, line := range g.log.lines(t) {
			if line["level"] == "warn" {
				warned++
			}
		}
		if warned != 2 {
			t.Errorf("%d warnings, want 2", warned)
		}
	})
}
