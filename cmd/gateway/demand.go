package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/trace"
)

// demand is what the flags say of the requests of a replay.
type demand struct {
	trace            string
	requests         int
	from, to         time.Duration
	multiplier, rate float64
	law, shape       string
	rename           map[string]string
	models, tenants  []string
}

// unbounded is how many requests are taken of a workload, which has no end.
const unbounded = 10_000

func workloadNames() []string {
	var out []string
	for _, w := range trace.Workloads() {
		out = append(out, w.Name)
	}
	return out
}

// source gives the requests of a seed, for the models of a fleet. Recordings
// give the same for all seeds unless something is drawn.
func (d *demand) source(models []string) (func(seed uint64) trace.Source, error) {
	if err := d.check(models); err != nil {
		return nil, err
	}
	open, endless, err := d.open()
	if err != nil {
		return nil, err
	}
	shape, err := d.parseShape()
	if err != nil {
		return nil, err
	}
	mapping, err := d.mapping(models)
	if err != nil {
		return nil, err
	}
	return func(seed uint64) trace.Source {
		src := open(seed)
		if d.from > 0 || d.to > 0 {
			src = src.Window(d.from, d.to)
		}
		if n := d.requests; n > 0 || endless {
			src = src.First(cmp.Or(n, unbounded))
		}
		if d.multiplier != 1 {
			src = src.Rate(d.multiplier)
		}
		if shape != nil {
			src = src.Shaped(shape)
		}
		return mapping(src, seed)
	}, nil
}

// isRecording reports whether the arrivals are those that were recorded.
func (d *demand) isRecording() bool {
	_, err := trace.ParseMix(d.trace)
	return err != nil && d.rate == 0
}

func (d *demand) check(models []string) error {
	positive := func(v float64) bool { return v > 0 && !math.IsInf(v, 0) }
	switch {
	case d.requests < 0:
		return fmt.Errorf("--requests %d: give a number above 0", d.requests)
	case !positive(d.multiplier):
		return fmt.Errorf("--rate-multiplier %g: give a number above 0", d.multiplier)
	case d.rate != 0 && !positive(d.rate):
		return fmt.Errorf("--rate %g: give requests a second, above 0", d.rate)
	case d.from < 0 || d.to != 0 && d.to <= d.from:
		return errors.New("--from and --to: give times from the trace's start, the first below the second")
	case len(d.models) > 0 && len(d.rename) > 0:
		return errors.New("--model draws the models anew, --model-map renames the trace's: give one")
	}
	for from, to := range d.rename {
		if !slices.Contains(models, to) {
			return fmt.Errorf("--model-map %s=%s: the fleet serves %s", from, to, strings.Join(models, ", "))
		}
	}
	return nil
}

func (d *demand) parseShape() (trace.Shape, error) {
	if d.shape == "" {
		return nil, nil
	}
	shape, err := trace.ParseShape(d.shape)
	if err != nil {
		return nil, fmt.Errorf("--shape %w", err)
	}
	return shape, nil
}

// open finds the trace: a workload, a file, or one of the data sets.
func (d *demand) open() (open func(seed uint64) trace.Source, endless bool, err error) {
	law, err := trace.ParseLaw(d.law)
	if err != nil {
		return nil, false, fmt.Errorf("--law %w", err)
	}
	if mix, err := trace.ParseMix(d.trace); err == nil {
		return func(seed uint64) trace.Source {
			src := mix.Source(seed)
			if d.rate > 0 {
				src = src.Retimed(law(d.rate), seed)
			}
			return src
		}, true, nil
	}
	path, err := d.file()
	if err != nil {
		return nil, false, err
	}
	options := trace.Options{Seed: 1}
	if d.rate > 0 {
		options.Law = law(d.rate)
	}
	if _, err := trace.Open(path, options); err != nil {
		return nil, false, fmt.Errorf("--trace %w", err)
	}
	return func(seed uint64) trace.Source {
		if d.rate > 0 {
			options.Seed = seed // of the arrivals
		}
		src, err := trace.Open(path, options)
		if err != nil { // it was well a moment ago
			return func(yield func(trace.Request, error) bool) { yield(trace.Request{}, err) }
		}
		return src
	}, false, nil
}

func (d *demand) file() (string, error) {
	if _, err := os.Stat(d.trace); err == nil {
		return d.trace, nil
	}
	where, found := "set FIRSTTOKEN_DATA to find data sets by name", []string(nil)
	if data := os.Getenv("FIRSTTOKEN_DATA"); data != "" {
		found, _ = filepath.Glob(filepath.Join(data, "traces", "*")) // the pattern is well formed
		found = slices.DeleteFunc(found, func(path string) bool { return !strings.HasPrefix(filepath.Base(path), d.trace) })
		where = "no data set's name begins so"
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("--trace %s: no such file, and no workload of that name (there are %s); %s", d.trace, strings.Join(workloadNames(), ", "), where)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("--trace %s: may be any of %s: write more of the name", d.trace, strings.Join(found, ", "))
}

// mapping brings the trace's models and tenants to the fleet's.
func (d *demand) mapping(models []string) (func(src trace.Source, seed uint64) trace.Source, error) {
	among, err := trace.ParseWeighted(d.models)
	if err != nil {
		return nil, fmt.Errorf("--model %w", err)
	}
	for _, m := range among {
		if !slices.Contains(models, m.Name) {
			return nil, fmt.Errorf("--model %s: the fleet serves %s", m.Name, strings.Join(models, ", "))
		}
	}
	tenants, err := trace.ParseWeighted(d.tenants)
	if err != nil {
		return nil, fmt.Errorf("--tenant %w", err)
	}
	return func(src trace.Source, seed uint64) trace.Source {
		if len(tenants) > 0 {
			src = src.Tenants(tenants, seed)
		}
		switch {
		case len(among) > 0:
			return src.Models(among, seed)
		case len(models) == 1 && len(d.rename) == 0:
			return src.Each(func(r *trace.Request) { r.Model = models[0] })
		case namesNoModel(src):
			return src.Models(evenly(models), seed)
		}
		return src.Each(func(r *trace.Request) { r.Model = cmp.Or(d.rename[r.Model], r.Model) })
	}, nil
}

func namesNoModel(src trace.Source) bool {
	for r, err := range src.First(1) {
		return err == nil && r.Model == ""
	}
	return false
}

func evenly(names []string) (out []trace.Weighted) {
	for _, name := range names {
		out = append(out, trace.Weighted{Name: name, Weight: 1})
	}
	return out
}
