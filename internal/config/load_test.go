package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// minimal is the shortest file that is a configuration.
const minimal = "models: [{name: m, backends: [{url: http://a:8000}]}]"

func environment(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

func mustParse(t *testing.T, text string, env ...string) *Config {
	t.Helper()
	c, err := Parse("config.yaml", []byte(text), t.TempDir(), environment(env...))
	if err != nil {
		t.Fatalf("Parse: %v\n%s", err, text)
	}
	return c
}

// backend puts lines into a backend; the first of them is line 5.
func backend(lines ...string) string {
	return "models:\n- name: m\n  backends:\n  - url: http://a:8000\n    " + strings.Join(lines, "\n    ")
}

// section puts lines above the models; the first of them is line 1.
func section(lines ...string) string { return strings.Join(lines, "\n") + "\n" + minimal }

func TestDefaults(t *testing.T) {
	c := mustParse(t, minimal)
	timeouts := Timeouts{
		Dial: Duration(3 * time.Second), ResponseHeader: Duration(10 * time.Minute), FirstToken: Duration(2 * time.Minute),
		Idle: Duration(time.Minute), Total: Off, ClientWrite: Duration(30 * time.Second),
	}
	health := Health{
		Interval: Duration(5 * time.Second), Timeout: Duration(2 * time.Second), Unhealthy: 3, Healthy: 2,
		Consecutive: 5, FailureRate: 0.5, MinRequests: 20, Window: Duration(30 * time.Second),
		Ejection: Duration(10 * time.Second), MaxEjection: Duration(5 * time.Minute), MaxEjected: 0.5, MinHosts: 2,
		SlowStart: Duration(30 * time.Second), BreakerFailures: 10, BreakerOpen: Duration(5 * time.Second),
	}
	probed := health
	probed.Path = "/v1/models"
	limits := Limits{IdleConnTimeout: Duration(4 * time.Second), MaxIdleConns: 256}
	retry := Retry{MaxAttempts: 3, BudgetRatio: 0.2, BudgetMin: 3}
	admission := Admission{Enabled: true, PendingTokens: 1000, MaxHeld: 2000}
	signals := Signals{Interval: Duration(300 * time.Millisecond), Timeout: Duration(time.Second)}
	want := &Config{
		Server: Server{
			Listen: ":8080", MaxBody: 64 << 20, MaxHeaderBytes: 64 << 10, MaxHeaders: 100, MaxURL: 8 << 10,
			ReadHeaderTimeout: Duration(10 * time.Second), ReadBodyTimeout: Duration(time.Minute), KeepAlive: Duration(2 * time.Minute),
			TenantHeader: "X-Tenant",
		},
		Telemetry: Telemetry{Listen: "127.0.0.1:8081", LogLevel: "info", AccessLog: true},
		Drain:     Drain{Accept: Duration(5 * time.Second), Limit: Duration(2 * time.Minute)},
		WarmUp:    WarmUp{Enabled: true, MaxPrompt: 4096, Repeat: 2, Timeout: Duration(30 * time.Second), StandbyAfter: Duration(10 * time.Minute)},
		Prediction: Prediction{
			Enabled: true, LowRate: 50, VolatileCV: 0.8, MaxError: 0.12, MinSamples: 50, Dwell: Duration(30 * time.Second),
			Samples: Samples{MaxFiles: 24, MaxFileRows: 50_000, MaxAge: Duration(time.Hour), MaxBytes: 256 << 20},
		},
		Defaults: Defaults{Policy: "headroom", Admission: admission, Timeouts: timeouts, Retry: retry, Health: health, Limits: limits, Signals: signals},
		Models: []Model{{
			Name: "m", OwnedBy: "firsttoken", Policy: "headroom", Admission: admission, InjectUsage: "auto",
			Timeouts: timeouts, Retry: retry, Health: health, Limits: limits, Signals: signals,
			Backends: []Backend{{
				Name: "a:8000", URL: "http://a:8000", Engine: "generic", Weight: 1,
				Timeouts: timeouts, Health: probed, Limits: limits,
				Signals: Signals{Interval: Off, Timeout: Duration(time.Second)},
			}},
		}},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// Folders are resolved once: what the gateway writes out means the same wherever it lies.
func TestFolders(t *testing.T) {
	for text, want := range map[string]string{"": "", "m": "/etc/ft/m", "../m/": "/etc/m", "/var/m": "/var/m", "${NONE:-x}": "/etc/ft/x"} {
		if text != "" {
			text = "models: '" + text + "', samples: {dir: '" + text + "'}"
		}
		c, err := Parse("config.yaml", []byte(section("prediction: {"+text+"}")), "/etc/ft", nil)
		if err != nil {
			t.Fatal(err)
		}
		if p := c.Prediction; p.Models != want || p.Samples.Dir != want {
			t.Errorf("%s: %q and %q, want %q", text, p.Models, p.Samples.Dir, want)
		}
	}
}

// The default that a comment promises is the one that its tag sets.
func TestCommentsTellDefaults(t *testing.T) {
	docs, err := comments()
	if err != nil {
		t.Fatal(err)
	}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for _, f := range fieldsOf(typ) {
			sf := typ.Field(f.index)
			switch sf.Type.Kind() {
			case reflect.Struct:
				walk(sf.Type)
				continue
			case reflect.Slice:
				if sf.Type.Elem().Kind() == reflect.Struct {
					walk(sf.Type.Elem())
				}
			}
			doc := strings.ReplaceAll(docs[typ.Name()+"."+sf.Name], `"`, "")
			if doc == "" {
				t.Errorf("%s.%s has no comment", typ.Name(), sf.Name)
			}
			if f.rule.def != "" && !strings.Contains(doc, "Default "+f.rule.def) {
				t.Errorf("%s.%s: comment %q does not tell the default %q", typ.Name(), sf.Name, doc, f.rule.def)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
}

// The file's order does not matter: defaults after models still apply.
func TestPrecedence(t *testing.T) {
	c := mustParse(t, `
models:
- name: m
  policy: p2c
  backends:
  - {url: http://a, timeouts: {idle: 3s}, limits: {max_in_flight: 0}, health: {path: /ping}}
  - {url: http://b, engine: vllm}
  timeouts: {idle: 2s, total: 20s}
  limits: {max_in_flight: 7}
- name: n
  backends: [{url: http://c, timeouts: {first_token: off}, signals: {path: /m}}]
defaults:
  policy: random
  timeouts: {idle: 1s, total: 10s}
  retry: {budget_ratio: 0}
  health: {path: /alive}
`)
	m, n := c.Models[0], c.Models[1]
	a, b, other := m.Backends[0], m.Backends[1], n.Backends[0]
	for _, row := range []struct {
		what      string
		got, want any
	}{
		{"defaults.policy reaches n", n.Policy, "random"},
		{"m has its own policy", m.Policy, "p2c"},
		{"a idle", a.Timeouts.Idle.D(), 3 * time.Second},
		{"b idle, of its model", b.Timeouts.Idle.D(), 2 * time.Second},
		{"c idle, of defaults", other.Timeouts.Idle.D(), time.Second},
		{"a total, of its model", a.Timeouts.Total.D(), 20 * time.Second},
		{"c first_token", other.Timeouts.FirstToken, Off},
		{"0s is not set", a.Timeouts.Dial.D(), 3 * time.Second},
		{"a written 0 counts", m.Retry.BudgetRatio, 0.0},
		{"a lifts its model's cap", a.Limits.MaxInFlight, 0},
		{"b keeps it", b.Limits.MaxInFlight, 7},
		{"a health path", a.Health.Path, "/ping"},
		{"b health path, of defaults", b.Health.Path, "/alive"},
		{"b signals path, of its engine", b.Signals.Path, "/metrics"},
		{"c signals: a path switches them on", other.Signals.Interval.D(), 300 * time.Millisecond},
	} {
		if !reflect.DeepEqual(row.got, row.want) {
			t.Errorf("%s: got %v, want %v", row.what, row.got, row.want)
		}
	}
}

func TestEngineDefaults(t *testing.T) {
	for _, row := range []struct{ engine, health, signals string }{
		{"vllm", "/health", "/metrics"},
		{"sglang", "/health", "/metrics"},
		{"tgi", "/health", "/metrics"},
		{"llamacpp", "/health", "/metrics"},
		{"trtllm", "/health", "/prometheus/metrics"},
		{"generic", "/v1/models", ""},
	} {
		b := mustParse(t, backend("engine: "+row.engine)).Models[0].Backends[0]
		if b.Health.Path != row.health || b.Signals.Path != row.signals {
			t.Errorf("%s: health %q, signals %q", row.engine, b.Health.Path, b.Signals.Path)
		}
		if off := b.Signals.Interval == Off; off != (row.signals == "") {
			t.Errorf("%s: signals off = %v", row.engine, off)
		}
	}
}

// Who chooses by predictions is the default where there are some.
func TestDefaultPolicy(t *testing.T) {
	for _, row := range []struct{ text, want string }{
		{minimal, "headroom"},
		{section("defaults: {policy: p2c}"), "p2c"},
		{section("prediction: {enabled: false}"), "least-inflight"},
		{section("prediction: {enabled: false}", "defaults: {policy: p2c}"), "p2c"},
	} {
		if got := mustParse(t, row.text).Models[0].Policy; got != row.want {
			t.Errorf("%s\n%s, want %s", row.text, got, row.want)
		}
	}
}

func TestContractFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	write(t, path, section("contracts: {files: [a.yaml, ../b.yaml], shipped: true}")+"\n")
	c, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	files := []string{filepath.Join(dir, "a.yaml"), filepath.Join(filepath.Dir(dir), "b.yaml")}
	if !reflect.DeepEqual(c.Contracts, Contracts{Files: files, Shipped: true}) || !reflect.DeepEqual(c.Files(), append([]string{path}, files...)) {
		t.Errorf("%+v, watched: %q", c.Contracts, c.Files())
	}
}

func TestURL(t *testing.T) {
	for _, row := range []struct{ in, url, name string }{
		{"http://a:8000", "http://a:8000", "a:8000"},
		{"http://A:8000/v1", "http://a:8000", "a:8000"},
		{"http://a:8000/v1/", "http://a:8000", "a:8000"},
		{"HTTP://a/", "http://a", "a:80"},
		{"http://a:80", "http://a", "a:80"},
		{"https://a:443/x/v1", "https://a/x", "a:443"},
		{"https://a:80", "https://a:80", "a:80"},
		{"http://[::1]:9/v1", "http://[::1]:9", "[::1]:9"},
		{"http://[::1]", "http://[::1]", "[::1]:80"},
		{"http://a/my%2Fpath/", "http://a/my%2Fpath", "a:80"},
		{"http://a/v12", "http://a/v12", "a:80"},
	} {
		b := mustParse(t, "models: [{name: m, backends: [{url: '"+row.in+"'}]}]").Models[0].Backends[0]
		if b.URL != row.url || b.Name != row.name {
			t.Errorf("%s: URL %q, name %q; want %q, %q", row.in, b.URL, b.Name, row.url, row.name)
		}
	}
}

func TestEnvironment(t *testing.T) {
	c := mustParse(t, `
server: {max_headers: "${N}", debug_headers: "${T}", max_body: "${SIZE}"}
models:
- name: a$$b ${NAME:-x} ${EMPTY:-y}
  policy: ${EMPTY:-}
  retry: {budget_ratio: "${R}"}
  timeouts: {idle: "${D}"}
  backends:
  - url: http://${HOST}:80${N:-}
    labels: {yaml: "${YAML}"}
`, "N", "7", "T", "true", "SIZE", "2KiB", "R", "0.5", "D", "7s", "HOST", "h", "EMPTY", "", "YAML", "]: {")
	m := c.Models[0]
	got := []any{c.Server.MaxHeaders, c.Server.DebugHeaders, c.Server.MaxBody, m.Name, m.Policy,
		m.Retry.BudgetRatio, m.Timeouts.Idle.D(), m.Backends[0].URL, m.Backends[0].Labels["yaml"]}
	want := []any{7, true, ByteSize(2048), "a$b x y", "headroom", 0.5, 7 * time.Second, "http://h:807", "]: {"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestSharedEngine(t *testing.T) {
	c := mustParse(t, `
models:
- {name: m, backends: [{name: e, url: http://a/v1}]}
- {name: n, backends: [{name: e, url: http://a}, {name: f, url: http://b}]}
`)
	if a, b := c.Models[0].Backends[0], c.Models[1].Backends[0]; a.URL != b.URL || a.Name != b.Name {
		t.Errorf("%q %q, %q %q", a.Name, a.URL, b.Name, b.URL)
	}
}

func TestAliasesOfYAML(t *testing.T) {
	c := mustParse(t, `
models:
- {name: m, timeouts: &patient {idle: 9m}, backends: [&e {name: e, url: http://a}]}
- {name: n, timeouts: *patient, backends: [*e]}
`)
	if got := c.Models[1].Timeouts.Idle.D(); got != 9*time.Minute {
		t.Errorf("idle = %v", got)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	write(t, path, backend("credentials: {file: key}"))
	write(t, filepath.Join(dir, "key"), " s3cret\n")
	c, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(c.Models[0].Backends[0].Credentials.Secret); got != "s3cret" {
		t.Errorf("secret = %q", got)
	}
	if want := []string{path, filepath.Join(dir, "key")}; !reflect.DeepEqual(c.Files(), want) {
		t.Errorf("Files = %q, want %q", c.Files(), want)
	}
}

func TestLoadUnreadable(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "none.yaml"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := Load(dir, nil); err == nil {
		t.Error("a folder: no error")
	}
	huge := filepath.Join(dir, "huge.yaml")
	write(t, huge, minimal+strings.Repeat("\n#", maxFile/2))
	if _, err := Load(huge, nil); err == nil || !strings.Contains(err.Error(), "is larger than 4 MiB") {
		t.Errorf("huge file: %v", err)
	}
}

func TestExample(t *testing.T) {
	c, err := Load("../../deploy/config.example.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	backends := 0
	for _, m := range c.Models {
		backends += len(m.Backends)
	}
	if len(c.Models) != 2 || backends != 5 {
		t.Errorf("%d models, %d backends", len(c.Models), backends)
	}
}

func TestWith(t *testing.T) {
	c := mustParse(t, minimal)
	got, err := c.With(Overrides{Listen: ":9000", LogLevel: "debug"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Server.Listen != ":9000" || got.Telemetry.LogLevel != "debug" || got.Telemetry.Listen != c.Telemetry.Listen {
		t.Errorf("got %+v %+v", got.Server, got.Telemetry)
	}
	if c.Server.Listen != ":8080" || c.Telemetry.LogLevel != "info" {
		t.Error("With changed its receiver")
	}
}

func TestWithErrors(t *testing.T) {
	c := mustParse(t, minimal)
	for _, row := range []struct {
		o    Overrides
		want string
	}{
		{Overrides{Listen: "9000", LogLevel: "inof"}, `--listen: "9000" is not host:port; write ":8080" or "127.0.0.1:8080"` + "\n" +
			`--log-level: "inof" is not valid here; did you mean "info"?`},
		{Overrides{TelemetryListen: ":8080"}, `--listen: is the same address as --telemetry-listen; give each its own port`},
	} {
		if _, err := c.With(row.o); err == nil || err.Error() != row.want {
			t.Errorf("%+v: got  %v\nwant %v", row.o, err, row.want)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
