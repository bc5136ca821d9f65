package config

import (
	"net"
	"net/url"
	"reflect"
)

// fill sets the built-in defaults of a section and of all sections in it.
// Lists stay empty: their elements are filled by begin when the file has them.
func fill(v reflect.Value) {
	for _, f := range fieldsOf(v.Type()) {
		switch at := v.Field(f.index); {
		case at.Type() == reflect.TypeFor[Credentials]():
			// A backend without credentials has none of their defaults either.
		case at.Kind() == reflect.Struct:
			fill(at)
		case f.rule.def != "":
			f.rule.mustSet(at)
		}
	}
}

// begin gives a new list element the values it has before the file speaks:
// the built-in ones, then those of the section that holds the list.
func begin(element, holder any) {
	v := reflect.ValueOf(element).Elem()
	if v.Kind() == reflect.Struct {
		fill(v)
	}
	switch e := element.(type) {
	case *Model:
		e.inherit(&holder.(*Config).Defaults)
	case *Backend:
		e.inherit(holder.(*Model))
	}
}

func (m *Model) inherit(d *Defaults) {
	m.Policy, m.Admission, m.Timeouts, m.Retry = d.Policy, d.Admission, d.Timeouts, d.Retry
	m.Health, m.Limits, m.Signals = d.Health, d.Limits, d.Signals
}

func (b *Backend) inherit(m *Model) {
	b.Timeouts, b.Health, b.Limits, b.Signals = m.Timeouts, m.Health, m.Limits, m.Signals
}

// foreseeing are the policies that choose by predictions.
var foreseeing = []string{"headroom", "weighted", "argmin"}

// defaultPolicy is the policy of models where the file names none.
func (p *Prediction) defaultPolicy() string {
	if p.Enabled {
		return "headroom"
	}
	return "least-inflight"
}

// complete sets the defaults that depend on the backend's other values.
func (b *Backend) complete() {
	if b.Name == "" {
		b.Name = hostPort(b.URL)
	}
	if b.Health.Path == "" {
		b.Health.Path = healthPath(b.Engine)
	}
	if b.Signals.Path == "" {
		b.Signals.Path = signalsPath(b.Engine)
	}
	if b.Signals.Path == "" {
		b.Signals.Interval = Off
	}
}

// hostPort returns host:port of a normalised URL, with the port spelled out.
func hostPort(base string) string {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return ""
	}
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), defaultPort(u.Scheme))
}

func healthPath(engine string) string {
	if engine == "generic" {
		return "/v1/models"
	}
	return "/health"
}

func signalsPath(engine string) string {
	switch engine {
	case "generic":
		return ""
	case "trtllm":
		return "/prometheus/metrics"
	default:
		return "/metrics"
	}
}
