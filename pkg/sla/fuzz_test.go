package sla

import (
	"errors"
	"io/fs"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/deploy/contracts"
)

// Laws: Parse never panics; an error has a place, a fix and one line; an
// accepted file, saved, is read back as the same Set with the same revision.
func FuzzParse(f *testing.F) {
	for _, text := range goodFiles {
		f.Add([]byte(text))
	}
	for _, row := range badFiles {
		f.Add([]byte(row.text))
	}
	for _, name := range []string{"customer-service.yaml", "code-completion.yaml", "live-summarisation.yaml"} {
		text, err := fs.ReadFile(contracts.Files(), name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := Parse(Source{"a.yaml", data})
		if err != nil {
			checkErrors(t, err)
			return
		}
		again, err := Parse(Source{"a.yaml", []byte(save(t, set))})
		if err != nil {
			t.Fatalf("read back: %v\n%s", err, save(t, set))
		}
		if !reflect.DeepEqual(set, again) {
			t.Fatalf("read back differently:\n%s\n%s", save(t, set), save(t, again))
		}
		if _, err := set.OpenSLO(); err != nil {
			t.Fatalf("export: %v", err)
		}
	})
}

func checkErrors(t *testing.T, err error) {
	t.Helper()
	var all Errors
	if !errors.As(err, &all) || len(all) == 0 || len(all) > maxErrors+2 {
		t.Fatalf("%d Errors: %v", len(all), err)
	}
	for _, one := range all {
		if one.Line < 1 || one.Column < 1 || one.Problem == "" || one.Fix == "" || strings.ContainsAny(one.Error(), "\n\r") {
			t.Errorf("%#v", one)
		}
	}
}

// Laws: a header gives an error that names it, or budgets that are above 0 and
// no longer than the contract's.
func FuzzHeaders(f *testing.F) {
	for _, value := range []string{"", "250", "12.5", "0", "-1", "1e3", "NaN", "Inf", "0x10", "99999999999999999999", "0.0000001", " 1", "1\n"} {
		f.Add(value, value, 100)
	}
	fixed, scaled := mustParse(f, with()).Contract("chat"), mustParse(f, scaledFile).Contract("chat")
	f.Fuzz(func(t *testing.T, ttft, tpot string, tokens int) {
		for _, c := range []*Contract{nil, fixed, scaled} {
			terms, err := c.TightenBy(headers(TTFTHeader, ttft, TPOTHeader, tpot))
			if err != nil {
				if !strings.HasPrefix(err.Error(), "x-slo-t") || strings.ContainsAny(err.Error(), "\n\r") {
					t.Errorf("%q", err)
				}
				continue
			}
			got, ok := terms.TTFTBudget(tokens)
			limit, limited := c.TTFTBudget(tokens)
			if ok && got <= 0 || limited && (!ok || got > limit) || ok != (limited || ttft != "") {
				t.Errorf("%q: %v, %v of %v, %v", ttft, got, ok, limit, limited)
			}
			if due, ok := terms.Deadline(time.Unix(0, 0), tokens); ok && due.Before(time.Unix(0, 0)) && got < math.MaxInt64 {
				t.Errorf("due %v", due)
			}
		}
	})
}
