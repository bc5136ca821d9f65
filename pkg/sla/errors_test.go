package sla

import (
	"errors"
	"strings"
	"testing"
)

// head is a contract without objectives; at ends it in line 8.
const head = `apiVersion: firsttoken.dev/v1
kind: SLAContract
metadata: {name: chat}
spec:
`

// withObjectives is a contract of the given objectives and further keys of its spec.
func withObjectives(objectives string, keys ...string) string {
	text := head + "  objectives: [" + objectives + "]\n"
	for _, key := range keys {
		text += "  " + key + "\n"
	}
	return text
}

const ttft = "{metric: ttft, percentile: 95, threshold: 320ms}"

// with is a contract with further keys of its spec.
func with(keys ...string) string { return withObjectives(ttft, keys...) }

func mustParse(t testing.TB, texts ...string) *Set {
	t.Helper()
	var sources []Source
	for i, text := range texts {
		sources = append(sources, Source{string(rune('a'+i)) + ".yaml", []byte(text)})
	}
	set, err := Parse(sources...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// badFiles are refused, with exactly this message. The schema sees what is
// wrong with them unless they are semantic: YAML's own mistakes, or how values
// fit together.
var badFiles = []struct {
	name, text string
	semantic   bool
	want       string
}{
	{"empty", "", true, `a.yaml:1:1: holds no contract; begin with "apiVersion: firsttoken.dev/v1"`},
	{"separators only", "---\n---\n", true, `a.yaml:1:1: holds no contract; begin with "apiVersion: firsttoken.dev/v1"`},
	{"tab", head + "\tobjectives: []\n", true, "a.yaml:5:1: is not YAML: found character that cannot start any token; a tab stands at the start of this line; indent with spaces"},
	{"list", "- a", false, "a.yaml:1:1: is a list, not a mapping; write keys and values below it"},
	{"all missing", "kind: SLAContract", false, strings.Join([]string{
		`a.yaml:1:1: apiVersion: is missing; add "apiVersion: firsttoken.dev/v1"`,
		`a.yaml:1:1: metadata: is missing; add "metadata: {name: chat}"`,
		`a.yaml:1:1: spec: is missing; add "spec: {objectives: [{metric: ttft, percentile: 95, threshold: 320ms}]}"`}, "\n")},
	{"wrong kind", strings.Replace(with(), "SLAContract", "SLO", 1), false,
		`a.yaml:2:7: kind: "SLO" is not valid here; write one of SLAContract`},
	{"wrong version", strings.Replace(with(), "/v1", "/v2", 1), false,
		`a.yaml:1:13: apiVersion: "firsttoken.dev/v2" is not valid here; did you mean "firsttoken.dev/v1"?`},
	{"name", strings.Replace(with(), "chat", "Chat_1", 1), false,
		`a.yaml:3:18: metadata.name: "Chat_1" is not a name; write up to 48 lower-case letters, digits and dashes, a letter or digit at both ends`},
	{"no objectives", head + "  objectives: []\n", false, "a.yaml:5:15: spec.objectives: is empty; write at least one entry, or remove the key"},
	{"no name", strings.Replace(with(), "name: chat", "", 1), false, `a.yaml:3:11: metadata.name: is missing; add "name: chat"`},
	{"misspelt key", with("visible_limt: 800ms"), false, `a.yaml:6:3: spec: "visible_limt" is not a key here; did you mean "visible_limit"?`},
	{"misspelt metric", withObjectives("{metric: tfft, percentile: 95, threshold: 1s}"), false,
		`a.yaml:5:25: spec.objectives[0].metric: "tfft" is not valid here; did you mean "ttft"?`},
	{"key twice", with("burst: 30%", "burst: 40%"), true, "a.yaml:7:3: spec.burst: is already set in line 6; remove one of the two"},
	{"no unit", withObjectives("{metric: ttft, percentile: 95, threshold: 320}"), false,
		`a.yaml:5:58: spec.objectives[0].threshold: "320" has no unit; write 320ms or 320s`},
	{"no duration", with("visible_limit: soon"), false, `a.yaml:6:18: spec.visible_limit: "soon" is not a duration; write a duration such as 320ms, 1.2s or 30d`},
	{"too long", with("visible_limit: 99999999999999999d"), true, `a.yaml:6:18: spec.visible_limit: "99999999999999999d" is too long; write a duration such as 320ms, 1.2s or 30d`},
	{"too short", withObjectives("{metric: ttft, percentile: 95, threshold: 1us}"), true,
		`a.yaml:5:58: spec.objectives[0].threshold: "1us" is below 1ms; write a value of at least 1ms and of at most 24h`},
	{"percentile", withObjectives("{metric: ttft, percentile: 100, threshold: 1s}"), false,
		`a.yaml:5:43: spec.objectives[0].percentile: "100" is not below 100; write a value of at least 1 and below 100`},
	{"percentile as text", withObjectives("{metric: ttft, percentile: P95, threshold: 1s}"), false,
		`a.yaml:5:43: spec.objectives[0].percentile: "P95" is not a number; write digits such as 95 or 99.9, without quotes`},
	{"share above all", with("min_kv_reuse: 70"), true, `a.yaml:6:17: spec.min_kv_reuse: "70" is above 100%; write a value of at least 0% and of at most 100%`},
	{"share", with("burst: ±30%"), false, `a.yaml:6:10: spec.burst: "±30%" is not a share; write per cent such as 30%, or a number such as 0.3`},
	{"boolean", with("batchable: 'yes'"), false, `a.yaml:6:14: spec.batchable: "yes" is not a boolean; write true or false, without quotes`},
	{"priority", with("priority: high"), false, `a.yaml:6:13: spec.priority: "high" is not a whole number; write digits such as 3, without quotes`},
	{"null", with("match:"), false, "a.yaml:6:9: spec.match: has no value; write one or remove the key"},
	{"one tenant", with("match: {tenants: acme}"), false, "a.yaml:6:20: spec.match.tenants: is text, not a list; write it in brackets: [acme]"},
	{"tenant twice", with("match: {tenants: [acme, acme]}"), true, `a.yaml:6:27: spec.match.tenants[1]: "acme" stands in the list twice; remove one of the two`},
	{"numeric tenant", with("match: {tenants: [7]}"), false, `a.yaml:6:21: spec.match.tenants[0]: "7" is a number, not text; write it in quotes`},
	{"header name", with("match: {headers: {'x y': [a]}}"), false, `a.yaml:6:21: spec.match.headers: "x y" is not a header's name; write a name such as x-workload`},
	{"secret header", with("match: {headers: {authorization: [a]}}"), true, `a.yaml:6:21: spec.match.headers: "authorization" is a header with a secret in it; match by tenant instead`},
	{"header twice", with("match: {headers: {x-a: [a], X-A: [b]}}"), true, `a.yaml:6:31: spec.match.headers.X-A: is already set in line 6; remove one of the two`},
	{"no threshold", withObjectives("{metric: ttft, percentile: 95}"), true, `a.yaml:5:16: spec.objectives[0]: has no threshold; add "threshold: 320ms"`},
	{"no percentile", withObjectives("{metric: ttft, threshold: 1s}"), true, `a.yaml:5:16: spec.objectives[0]: has no percentile; add "percentile: 95"`},
	{"no metric", withObjectives("{percentile: 95, threshold: 1s}"), false, `a.yaml:5:16: spec.objectives[0].metric: is missing; add "metric: ttft"`},
	{"no base", withObjectives("{metric: ttft, percentile: 95, threshold: {per_token: 1ms}}"), false,
		`a.yaml:5:58: spec.objectives[0].threshold.base: is missing; add "base: 400ms"`},
	{"target against percentile", withObjectives("{metric: ttft, percentile: 95, target: 99%, threshold: 1s}"), true,
		"a.yaml:5:55: spec.objectives[0].target: 99% contradicts the percentile, which says 95%; remove one of the two"},
	{"availability", withObjectives("{metric: availability, percentile: 95, threshold: 1s}"), true, strings.Join([]string{
		`a.yaml:5:16: spec.objectives[0]: has no target; add "target: 99.9%"`,
		"a.yaml:5:51: spec.objectives[0].percentile: makes no sense for availability; write target instead",
		"a.yaml:5:66: spec.objectives[0].threshold: makes no sense for availability; remove it"}, "\n")},
	{"tpot by prompt", withObjectives("{metric: tpot, percentile: 95, threshold: {base: 80ms, per_token: 1us}}"), true,
		"a.yaml:5:82: spec.objectives[0].threshold.per_token: makes no sense for the time between tokens; remove it"},
	{"window", withObjectives("{metric: ttft, percentile: 95, threshold: 1s, window: 5m30s}"), true,
		"a.yaml:5:70: spec.objectives[0].window: 5m30s is not whole minutes; write a window such as 30d, 6h or 5m"},
	{"promised twice", withObjectives(ttft + ", " + ttft), true,
		"a.yaml:5:66: spec.objectives[1]: ttft-p95 was promised already in spec.objectives[0]; remove one of the two"},
	{"void", withObjectives(ttft + ", {metric: ttft, percentile: 99, threshold: 300ms}"), true,
		"a.yaml:5:108: spec.objectives[1].threshold: ttft-p99 within 300ms makes ttft-p95 within 320ms void; give the higher percentile the longer threshold"},
	{"e2e before ttft", withObjectives(ttft + ", {metric: e2e, percentile: 95, threshold: 300ms}"), true,
		"a.yaml:5:15: spec.objectives: e2e within 300ms is shorter than ttft within 320ms; give e2e the longer threshold"},
	{"limit before ttft", with("visible_limit: 300ms"), true,
		"a.yaml:6:18: spec.visible_limit: 300ms is shorter than the TTFT objective's 320ms; write at least 320ms"},
	{"batches jitter", with("batchable: true", "jitter_sensitive: true"), true,
		"a.yaml:6:14: spec.batchable: contradicts jitter_sensitive; remove one of the two"},
	{"action", with("at_risk: [warmup, serve-late]"), false, strings.Join([]string{
		`a.yaml:6:13: spec.at_risk[0]: "warmup" is not valid here; did you mean "warm_up"?`,
		`a.yaml:6:21: spec.at_risk[1]: "serve-late" is not valid here; did you mean "serve_late"?`}, "\n")},
	{"no lighter model", with("at_risk: [lighter_model]"), false, `a.yaml:6:13: spec.at_risk[0]: names no model; write "lighter_model: NAME"`},
	{"action after the last", with("at_risk: [shed, wait]"), true, "a.yaml:6:19: spec.at_risk[1]: comes after shed, which is final; put shed last"},
	{"action twice", with("at_risk: [wait, wait]"), true, "a.yaml:6:19: spec.at_risk[1]: wait stands in the list twice; remove one of the two"},
	{"merge", with("match: {<<: {models: [a]}}"), true, "a.yaml:6:11: spec.match: merge keys are not supported; write the values out"},
}

func TestBadFiles(t *testing.T) {
	for _, row := range badFiles {
		t.Run(row.name, func(t *testing.T) {
			set, err := Parse(Source{"a.yaml", []byte(row.text)})
			if err == nil || err.Error() != row.want {
				t.Errorf("got:\n%v\nwant:\n%s\nof:\n%s", err, row.want, row.text)
			}
			if set != nil {
				t.Error("a set comes with an error")
			}
		})
	}
}

// One bad file among good ones: all errors are told, and nothing is used.
func TestErrorsOfAllFilesAreJoined(t *testing.T) {
	set, err := Parse(
		Source{"b.yaml", []byte(with("burst: much"))},
		Source{"a.yaml", []byte(with() + "---\n" + with("priority: high"))},
	)
	want := strings.Join([]string{
		`a.yaml:3:18: metadata.name: "chat" names a contract already in b.yaml:3:18; choose another name`,
		`a.yaml:9:18: metadata.name: "chat" names a contract already in a.yaml:3:18; choose another name`,
		`a.yaml:12:13: spec.priority: "high" is not a whole number; write digits such as 3, without quotes`,
		`b.yaml:6:10: spec.burst: "much" is not a share; write per cent such as 30%, or a number such as 0.3`,
	}, "\n")
	if set != nil || err == nil || err.Error() != want {
		t.Errorf("got %v and:\n%v\nwant:\n%s", set, err, want)
	}
	var one Error
	if !errors.As(err, &one) || one.Line != 3 {
		t.Errorf("got %+v", one)
	}
}

func TestErrorsAreBounded(t *testing.T) {
	text := head + "  objectives:\n" + strings.Repeat("    - {a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7}\n", 16) + "  labels: {}\n"
	_, err := Parse(Source{"a.yaml", []byte(strings.Repeat(text+"---\n", 100))})
	if n := strings.Count(err.Error(), "\n"); n > maxErrors {
		t.Errorf("%d lines of errors", n)
	}
}

func TestAliasesDoNotUnfold(t *testing.T) {
	text := head + "  objectives: &a [*a]\n"
	if _, err := Parse(Source{"a.yaml", []byte(text)}); err == nil {
		t.Error("a list within itself is accepted")
	}
}
