package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Environment is what the figures of a run depend on besides its plan.
type Environment struct {
	Gateway  string    `json:"gateway,omitempty"`  // version; empty: not known
	Backends []Backend `json:"backends,omitempty"` // none: not known
	Client   string    `json:"client"`             // version of the bench
	CPUs     int       `json:"client_cpus"`
	Go       string    `json:"client_go"`
	Platform string    `json:"client_platform"` // operating system and architecture
}

// Backend is what the gateway says of one of its backends.
type Backend struct {
	Name         string `json:"backend"`
	Engine       string `json:"engine,omitempty"`
	GPU          string `json:"gpu,omitempty"`
	CUDA         string `json:"cuda,omitempty"`
	Quantization string `json:"quantization,omitempty"`
	Topology     string `json:"topology,omitempty"`
}

// Environment records this machine and, if telemetry is the URL of the
// gateway's telemetry listener, the gateway and its backends.
func (b *Bench) Environment(ctx context.Context, version, telemetry string) (Environment, error) {
	e := Environment{
		Client: version, CPUs: runtime.NumCPU(), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if telemetry == "" {
		return e, nil
	}
	url := strings.TrimSuffix(strings.TrimRight(telemetry, "/"), "/metrics") + "/metrics"
	metrics := client{header: http.Header{}, http: &http.Client{Transport: b.client.http.Transport}} // without the target's key
	text, err := metrics.get(ctx, url)
	if err == nil {
		err = e.read(text)
	}
	if err != nil {
		return e, fmt.Errorf("--telemetry: read %s: %w", url, err)
	}
	return e, nil
}

// read takes what Firsttoken's metrics say.
func (e *Environment) read(metrics []byte) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(metrics))
	if err != nil {
		return err
	}
	build, ok := families["firsttoken_build_info"]
	if !ok {
		return fmt.Errorf("there is no firsttoken_build_info: give the address of the gateway's telemetry listener")
	}
	for _, m := range build.GetMetric() {
		e.Gateway = labels(m)["version"]
	}
	for _, m := range families["firsttoken_backend_info"].GetMetric() {
		l := labels(m)
		e.Backends = append(e.Backends, Backend{l["backend"], l["engine"], l["gpu"], l["cuda"], l["quantization"], l["topology"]})
	}
	slices.SortFunc(e.Backends, func(a, b Backend) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func labels(m *dto.Metric) map[string]string {
	l := map[string]string{}
	for _, pair := range m.GetLabel() {
		l[pair.GetName()] = pair.GetValue()
	}
	return l
}

// differences names each field in which two runs differ, "field: old, now new".
// The seed is none: runs of different seeds are samples of the same load.
func differences(old, now *Report) []string {
	var all []string
	type record struct {
		Plan        Plan        `json:"plan"`
		Environment Environment `json:"environment"`
	}
	a, b := fields(record{old.Plan, old.Environment}), fields(record{now.Plan, now.Environment})
	var names []string
	for name := range a {
		names = append(names, name)
	}
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if x, y := a[name], b[name]; name != "plan.seed" && !reflect.DeepEqual(x, y) {
			all = append(all, fmt.Sprintf("%s: %s, now %s", name, shown(x), shown(y)))
		}
	}
	return all
}

func shown(v any) string {
	if v == nil {
		return "not given"
	}
	text, _ := json.Marshal(v) // it came from JSON
	return string(text)
}

// fields are the leaves of a document by their path. Backends go by name.
func fields(v any) map[string]any {
	text, _ := json.Marshal(v) // plain data
	var tree any
	_ = json.Unmarshal(text, &tree)
	all := map[string]any{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				walk(strings.TrimPrefix(path+"."+k, "."), x)
			}
		case []any:
			for _, x := range v {
				if b, ok := x.(map[string]any); ok {
					walk(fmt.Sprintf("%s[%v]", path, b["backend"]), b)
				}
			}
			if !strings.HasSuffix(path, "backends") {
				all[path] = v
			}
		default:
			all[path] = v
		}
	}
	walk("", tree)
	return all
}
