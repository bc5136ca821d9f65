package trace

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseLaw(t *testing.T) {
	for _, text := range []string{"poisson", "constant", "gamma:2", "weibull:0.7"} {
		law, err := ParseLaw(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		sum, at, rng := 0.0, time.Duration(0), newRand(1, text)
		for range 20_000 {
			gap := law(50).Gap(at, rng)
			sum, at = sum+gap.Seconds(), at+gap
		}
		near(t, text+": mean gap", sum/20_000, 0.02, 0.05)
	}
	for _, text := range []string{"", "normal", "gamma", "gamma:", "gamma:0", "gamma:-1", "gamma:NaN", "gamma:Inf", "weibull:x", "poisson:2"} {
		if law, err := ParseLaw(text); err == nil || law != nil || !strings.Contains(err.Error(), "give poisson") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

func TestParseShape(t *testing.T) {
	for _, c := range []struct {
		text string
		same Shape
	}{
		{"step:10m:2", Step(10*time.Minute, 2)},
		{"sine:0.5:1h", Sine(0.5, time.Hour)},
		{"burst:0.3:2m", Burst(0.3, 2*time.Minute, 0.5)},
	} {
		s, err := ParseShape(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		for at := time.Duration(0); at < 2*time.Hour; at += 7 * time.Second {
			if math.Abs(s(at)-c.same(at)) > 1e-9 {
				t.Fatalf("%s: %v at %v, want %v", c.text, s(at), at, c.same(at))
			}
		}
	}
	for _, text := range []string{"", "step", "step:2:10m", "step:10m:0", "step:-1s:2", "sine:1.5:1h", "sine:0.5:0s", "burst:0:1m", "burst:0.3:2m:1", "square:1:1m"} {
		if s, err := ParseShape(text); err == nil || s != nil || !strings.Contains(err.Error(), "give step:AT:FACTOR") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

func TestParseWeighted(t *testing.T) {
	got, err := ParseWeighted([]string{"a", "org/b=3", "c=d=0.5"})
	if want := []Weighted{{"a", 1}, {"org/b", 3}, {"c=d", 0.5}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, text := range []string{"", "=2", "a=", "a=0", "a=-1", "a=NaN", "a=Inf"} {
		if w, err := ParseWeighted([]string{"a", text}); err == nil || w != nil {
			t.Errorf("%q: %v", text, w)
		}
	}
}
