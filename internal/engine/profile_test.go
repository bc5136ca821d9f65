package engine

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestEveryProfileMakesAnEngine(t *testing.T) {
	all := Profiles()
	if len(all) < 18 {
		t.Errorf("%d profiles, want those of 18 calibrations at least", len(all))
	}
	for _, p := range all {
		if err := p.Check(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if p.Model == "" || p.GPU == "" || p.TP < 1 || p.Software == "" || p.Source == "" || p.Measured == "" {
			t.Errorf("%s: not fully described: %+v", p.Name, p)
		}
		if p.PricePerHour <= 0 || p.Estimated["price_per_hour"] == "" {
			t.Errorf("%s: a price must be there, and said to be an estimate", p.Name)
		}
		if got, ok := LookupProfile(strings.ToUpper(p.Name)); !ok || !reflect.DeepEqual(got, p) {
			t.Errorf("LookupProfile(%q) = %q, %v", p.Name, got.Name, ok)
		}
	}
	for _, name := range []string{"abacus", "", "../profiles/h100-llama-3.1-70b-fp8-tp4"} {
		if _, ok := LookupProfile(name); ok {
			t.Errorf("LookupProfile found %q", name)
		}
	}
}

// On an empty engine a prompt costs h, a fixed part for each step it needs and
// its own tokens.
func TestIdleTTFTIsTheCalibratedOne(t *testing.T) {
	for _, p := range Profiles() {
		for _, prompt := range []int{1, 128, 1024, 2048, 8192} {
			if prompt >= p.Params.MaxModelLen {
				continue
			}
			steps := (prompt + p.Params.MaxBatchedTokens - 1) / p.Params.MaxBatchedTokens
			m := p.Params.Step
			want := m.H + time.Duration(steps)*m.T0 + time.Duration(1000*m.Alpha*float64(prompt))
			if prompt > squareFrom {
				want += time.Duration(1000 * m.Alpha2 * float64(prompt*prompt-squareFrom*squareFrom))
			}
			s := newSim(t, p.Params)
			submit(t, s, 0, Request{PromptTokens: prompt, OutputTokens: 1})
			got := ttft(drain(s), 0)
			if d := got - want; d < -time.Microsecond || d > time.Microsecond {
				t.Errorf("%s, %d tokens: TTFT %v, want %v", p.Name, prompt, got, want)
			}
		}
	}
}
