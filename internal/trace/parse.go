package trace

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseLaw reads the law of arrivals a user wrote: poisson, constant, gamma:CV
// or weibull:SHAPE. What it gives makes the law of a rate a second.
func ParseLaw(text string) (func(rate float64) Law, error) {
	name, parameter, has := strings.Cut(text, ":")
	x, ok := positive(parameter)
	ok = ok && has
	switch {
	case text == "poisson":
		return Poisson, nil
	case text == "constant":
		return Constant, nil
	case name == "gamma" && ok:
		return func(rate float64) Law { return Gamma(rate, x) }, nil
	case name == "weibull" && ok:
		return func(rate float64) Law { return Weibull(rate, x) }, nil
	}
	return nil, fmt.Errorf("%q is unknown: give poisson, constant, gamma:CV (such as gamma:2) or weibull:SHAPE", text)
}

// ParseShape reads how a rate swings, as a user wrote it: step:AT:FACTOR,
// sine:DEPTH:PERIOD or burst:DEPTH:PERIOD, which is up for half of its period.
func ParseShape(text string) (Shape, error) {
	parts := strings.Split(text, ":")
	if len(parts) == 3 {
		switch name, a, b := parts[0], parts[1], parts[2]; name {
		case "step":
			at, err := time.ParseDuration(a)
			if factor, ok := positive(b); ok && err == nil && at >= 0 {
				return Step(at, factor), nil
			}
		case "sine", "burst":
			depth, ok := positive(a)
			period, err := time.ParseDuration(b)
			if !ok || depth > 1 || err != nil || period <= 0 {
				break
			}
			if name == "sine" {
				return Sine(depth, period), nil
			}
			return Burst(depth, period, 0.5), nil
		}
	}
	return nil, fmt.Errorf("%q is unknown: give step:AT:FACTOR (such as step:10m:2), sine:DEPTH:PERIOD (such as sine:0.5:1h) or burst:DEPTH:PERIOD (such as burst:0.3:2m), with a depth above 0 and up to 1", text)
}

// ParseWeighted reads names as a user wrote them, NAME or NAME=WEIGHT; a weight
// that is not said is 1.
func ParseWeighted(texts []string) ([]Weighted, error) {
	var all []Weighted
	for _, text := range texts {
		w := Weighted{Name: text, Weight: 1}
		if i := strings.LastIndexByte(text, '='); i >= 0 {
			weight, ok := positive(text[i+1:])
			if !ok {
				return nil, fmt.Errorf("%q: give NAME, or NAME=WEIGHT with a weight above 0", text)
			}
			w = Weighted{Name: text[:i], Weight: weight}
		}
		if w.Name == "" {
			return nil, fmt.Errorf("%q has no name: give NAME or NAME=WEIGHT", text)
		}
		all = append(all, w)
	}
	return all, nil
}

// positive reads a finite number above 0.
func positive(text string) (float64, bool) {
	x, err := strconv.ParseFloat(text, 64)
	return x, err == nil && x > 0 && !math.IsInf(x, 0)
}
