package trace

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseMix(t *testing.T) {
	for _, row := range []struct {
		names string
		want  []string
	}{
		{"chat", []string{"customer-service"}},
		{"customer-service", []string{"customer-service"}},
		{"chat,code,summary", []string{"customer-service", "code-completion", "live-summarisation"}},
		{"summary, code-completion", []string{"live-summarisation", "code-completion"}},
	} {
		m, err := ParseMix(row.names)
		var got []string
		for _, w := range m {
			got = append(got, w.Name)
		}
		if err != nil || !slices.Equal(got, row.want) {
			t.Errorf("%q: %q, %v", row.names, got, err)
		}
	}
	for names, want := range map[string]string{
		"poetry":                 `no workload "poetry": there are customer-service (chat), code-completion (code), live-summarisation (summary)`,
		"chat,poetry":            `no workload "poetry"`,
		"chat,":                  `no workload ""`,
		"":                       `no workload ""`,
		"chat,customer-service":  "customer-service is there twice; write it once",
		"code,summary,code,chat": "code-completion is there twice",
	} {
		if _, err := ParseMix(names); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", names, err, want)
		}
	}
}

// Mixed, each workload's requests are what they are alone, in order of arrival.
func TestMixChangesNoWorkload(t *testing.T) {
	const long = 2 * time.Minute
	m, err := ParseMix("chat,code,summary")
	if err != nil {
		t.Fatal(err)
	}
	all := collect(t, m.Source(5).Window(0, long))
	if !slices.IsSortedFunc(all, func(a, b Request) int { return int(a.At - b.At) }) {
		t.Error("out of order")
	}
	for _, w := range m {
		var mine []Request
		for _, r := range all {
			if r.Workload == w.Name {
				mine = append(mine, r)
			}
		}
		alone := collect(t, w.Source(5).Window(0, long))
		if len(alone) < 50 || !slices.EqualFunc(mine, alone, sameRequest) {
			t.Errorf("%s: %d requests mixed, %d alone, or others", w.Name, len(mine), len(alone))
		}
	}
}

func sameRequest(a, b Request) bool {
	same := slices.Equal(a.Content, b.Content)
	a.Content, b.Content = nil, nil
	return same && a.At == b.At && a.Tenant == b.Tenant && a.Session == b.Session && a.Turn == b.Turn && a.PromptTokens == b.PromptTokens &&
		a.OutputTokens == b.OutputTokens && a.TTFT == b.TTFT && a.E2E == b.E2E
}

func TestMixAtRate(t *testing.T) {
	m := Mix{CustomerService(), CodeCompletion(), LiveSummarisation()}
	scaled := m.AtRate(30)
	for i, want := range []float64{12, 16, 2} {
		if scaled[i].Rate != want {
			t.Errorf("%s: rate %v, want %v", scaled[i].Name, scaled[i].Rate, want)
		}
	}
	if m[0].Rate != 6 {
		t.Error("the mix it was made from has changed")
	}
}
