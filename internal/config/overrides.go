package config

import (
	"reflect"
	"slices"
)

// Overrides are the command line's words against the file; "" leaves the
// file's value.
type Overrides struct {
	Listen          string // --listen: Server.Listen
	TelemetryListen string // --telemetry-listen: Telemetry.Listen
	LogLevel        string // --log-level: Telemetry.LogLevel
}

// With returns a copy of c with the overrides, checked like values of the
// file; c itself stays as it is. An error is of type Errors and names flags.
func (c *Config) With(o Overrides) (*Config, error) {
	changed := *c
	var errs Errors
	override := func(flag, text string, section any, key string) {
		if text == "" {
			return
		}
		v := reflect.ValueOf(section).Elem()
		fields := fieldsOf(v.Type())
		f := fields[slices.IndexFunc(fields, func(f field) bool { return f.name == key })]
		if fault := f.rule.set(v.Field(f.index), text, text); fault != nil {
			errs = append(errs, Error{Field: flag, Problem: fault.about(text), Fix: fault.fix})
		}
	}
	override("--listen", o.Listen, &changed.Server, "listen")
	override("--telemetry-listen", o.TelemetryListen, &changed.Telemetry, "listen")
	override("--log-level", o.LogLevel, &changed.Telemetry, "log_level")
	if errs == nil && clash(changed.Server.Listen, changed.Telemetry.Listen) {
		errs = append(errs, Error{Field: "--listen", Problem: "is the same address as --telemetry-listen", Fix: "give each its own port"})
	}
	if err := errs.err(); err != nil {
		return nil, err
	}
	return &changed, nil
}
