package sla

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// named is a contract with a match, in one line.
func named(name, match string) string {
	return fmt.Sprintf("apiVersion: firsttoken.dev/v1\nkind: SLAContract\nmetadata: {name: %s}\nspec: {match: {%s}, objectives: [%s]}\n", name, match, ttft)
}

// goodFiles are accepted by Parse and by the schema.
var goodFiles = []string{
	with(),
	with("match: {priority: -3, tenants: [a, 'b c'], models: [m], headers: {x-workload: [chat, code]}, service_tier: [priority]}"),
	with("visible_limit: 0.8s", "burst: 0.3", "min_kv_reuse: 70%", "jitter_sensitive: true", "priority: -1", "criticality: sheddable"),
	with("at_risk: [warm_up, {lighter_model: small}, wait, serve_late]", "batchable: true"),
	with("description: |", "  Two", "  lines."),
	withObjectives("{metric: ttft, percentile: 50, threshold: 100ms, window: 1h}, {metric: ttft, percentile: 95, threshold: 320ms}, {metric: ttft, percentile: 99.9, threshold: {base: 800ms, per_token: 250us}, window: 2w}"),
	withObjectives("{metric: tpot, target: 0.9, threshold: 80ms}, {metric: availability, target: 99.9%, window: 90d}"),
	withObjectives("{metric: e2e, percentile: 95, target: 95%, threshold: 1m30s}"),
	strings.Replace(with(), "{name: chat}", "{name: a, labels: {team: x}, annotations: {example.com/owner: 'me, you'}}", 1),
}

func TestSaveIsReadBackAsTheSame(t *testing.T) {
	for _, text := range goodFiles {
		set := mustParse(t, text)
		again := mustParse(t, save(t, set))
		if !reflect.DeepEqual(set, again) {
			t.Errorf("read back differently:\n%s\n%s", text, save(t, set))
		}
	}
}

func save(t testing.TB, set *Set) string {
	t.Helper()
	text, err := set.Save()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The three that ship hold what was promised.
func TestShipped(t *testing.T) {
	set := shipped(t)
	for _, row := range []struct {
		tenant, name   string
		ttft, e2e      time.Duration
		limit          Duration
		burst, kvReuse Share
		jitter, batch  bool
	}{
		{tenant: "shop", name: "customer-service", ttft: 320 * time.Millisecond, limit: Duration(800 * time.Millisecond), burst: 0.3},
		{tenant: "infra", name: "code-completion", ttft: 120 * time.Millisecond, limit: Duration(300 * time.Millisecond), kvReuse: 0.7, jitter: true},
		{tenant: "meetings", name: "live-summarisation", ttft: 650 * time.Millisecond, e2e: 1200 * time.Millisecond, batch: true},
	} {
		c := set.Match(Key{Tenant: row.tenant})
		if c.Name() != row.name {
			t.Fatalf("%s has %q, want %q", row.tenant, c.Name(), row.name)
		}
		ttft, _ := c.TTFTBudget(5000)
		e2e, _ := c.E2EBudget(5000)
		s := c.Spec
		if ttft != row.ttft || e2e != row.e2e || c.Governing(TTFT).Percentile != 95 {
			t.Errorf("%s: ttft %v, e2e %v", row.name, ttft, e2e)
		}
		if s.VisibleLimit != row.limit || s.Burst != row.burst || s.MinKVReuse != row.kvReuse || s.JitterSensitive != row.jitter || s.Batchable != row.batch {
			t.Errorf("%s: %+v", row.name, s)
		}
	}
	if len(set.Contracts()) != 3 || set.Match(Key{Tenant: "nobody"}) != nil {
		t.Errorf("%d contracts", len(set.Contracts()))
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(with()), 0o600); err != nil {
		t.Fatal(err)
	}
	if set, err := Load(path); err != nil || set.Contract("chat") == nil || set.Contract("other") != nil {
		t.Errorf("%v, %v", set, err)
	}
	if _, err := Load(path + "x"); err == nil || !strings.Contains(err.Error(), "load contracts") {
		t.Errorf("a missing file gives %v", err)
	}
}

func headers(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// precedenceFiles are contracts in the order in which they hold.
var precedenceFiles = []string{
	named("z-first", "priority: 1"),
	named("b-tenant", "tenants: [t]"),
	named("c-headers", "headers: {x-a: ['1'], x-b: ['1']}"),
	named("c-header", "headers: {x-a: ['1']}"),
	named("d-tier", "service_tier: [priority]"),
	named("e-model", "models: [m]"),
	named("f-any", ""),
	named("g-any", ""),
}

func TestPrecedence(t *testing.T) {
	key := Key{Tenant: "t", Model: "m", ServiceTier: "priority", Header: headers("X-A", "1", "X-B", "1")}
	why := []string{
		"match priority 1 is above 0", "it names a tenant", "it names more headers", "it names a header",
		"it names a service tier", "it names a model", "its name comes first", "the only one left",
	}
	for i := range precedenceFiles {
		set := mustParse(t, precedenceFiles[i:]...)
		first := set.Candidates(key)[0]
		if want := "{name: " + set.Match(key).Name() + "}"; !strings.Contains(precedenceFiles[i], want) {
			t.Errorf("%s holds before\n%s", want, precedenceFiles[i])
		}
		if !strings.HasSuffix(first.Reason, why[i]) {
			t.Errorf("%d: reason %q, want %q", i, first.Reason, why[i])
		}
	}
}

// ServiceTier and every other part of a match.
func TestMatch(t *testing.T) {
	set := mustParse(t,
		named("both", "tenants: [acme, umbrella], models: [large]"),
		named("tier", "service_tier: [priority, flex]"),
		named("header", "headers: {x-workload: [chat]}"),
	)
	for _, row := range []struct {
		key       Key
		name, not string
	}{
		{Key{Tenant: "acme", Model: "large"}, "both", ""},
		{Key{Tenant: "acme", Model: "small"}, "", `model is "small", not large`},
		{Key{Model: "large"}, "", `tenant is "", not acme or umbrella`},
		{Key{ServiceTier: "flex"}, "tier", ""},
		{Key{ServiceTier: "auto"}, "", `service tier is "auto", not priority or flex`},
		{Key{Header: headers("X-Workload", "chat")}, "header", ""},
		{Key{Header: headers("X-Workload", "code")}, "", `header X-Workload is "code", not chat`},
		{Key{}, "", `header X-Workload is "", not chat`},
		{Key{Tenant: "acme", Model: "large", ServiceTier: "priority"}, "both", ""},
	} {
		if got := set.Match(row.key).Name(); got != row.name {
			t.Errorf("%+v: got %q, want %q", row.key, got, row.name)
		}
		explained := ""
		for _, c := range set.Candidates(row.key) {
			explained += c.Reason + "\n"
		}
		if !strings.Contains(explained, row.not) {
			t.Errorf("%+v: %q is not among the reasons:\n%s", row.key, row.not, explained)
		}
	}
}

// randomSet is contracts of few tenants, models, tiers and headers, so that
// many match alike.
func randomSet(rng *rand.Rand) []string {
	texts := make([]string, 1+rng.IntN(8))
	for i := range texts {
		var match []string
		for _, part := range []string{"priority: 1", "tenants: [a]", "tenants: [a, b]", "models: [m]", "models: [m, n]", "service_tier: [flex]", "headers: {x-a: ['1']}"} {
			taken := strings.Contains(strings.Join(match, " "), strings.Split(part, ":")[0])
			if rng.IntN(3) == 0 && !taken {
				match = append(match, part)
			}
		}
		texts[i] = named(fmt.Sprintf("c%d", i), strings.Join(match, ", "))
	}
	return texts
}

func randomKey(rng *rand.Rand) Key {
	pick := func(words ...string) string { return words[rng.IntN(len(words))] }
	return Key{Tenant: pick("", "a", "b", "c"), Model: pick("", "m", "n"), ServiceTier: pick("", "flex"), Header: headers("X-A", pick("", "1"))}
}

// Laws: what matches, the revision and what is saved don't depend on the order
// or number of files; Match is the first matching candidate; a shadowed
// contract never holds.
func TestMatchLaws(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 1))
		texts := randomSet(rng)
		set := mustParse(t, texts...)
		rng.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
		other := mustParse(t, strings.Join(texts, "---\n"))
		if set.Revision() != other.Revision() || save(t, set) != save(t, other) {
			t.Fatalf("seed %d: the order of files changes the set", seed)
		}
		for range 50 {
			key := randomKey(rng)
			got := set.Match(key)
			if got.Name() != other.Match(key).Name() {
				t.Fatalf("seed %d: the order of files changes what matches %+v", seed, key)
			}
			first := ""
			for _, c := range set.Candidates(key) {
				if c.Matches && first == "" {
					first = c.Contract.Name()
				}
			}
			if got.Name() != first {
				t.Fatalf("seed %d: %q matches, the first candidate is %q", seed, got.Name(), first)
			}
			if before, ok := set.Shadowed()[got.Name()]; ok {
				t.Fatalf("seed %d: %q holds though shadowed by %q", seed, got.Name(), before)
			}
		}
	}
}

func TestRevision(t *testing.T) {
	base := mustParse(t, with()).Revision()
	if mustParse(t, "# a comment\n"+with("criticality: standard")).Revision() != base {
		t.Error("a comment or a written default changes the revision")
	}
	if mustParse(t, with("priority: 1")).Revision() == base {
		t.Error("a change leaves the revision")
	}
}

func TestShadowed(t *testing.T) {
	set := mustParse(t, named("a", "tenants: [t]"), named("b", "tenants: [t], priority: -1, models: [m]"), named("c", "tenants: [t, u], priority: -1"))
	if got := set.Shadowed(); len(got) != 1 || got["b"] != "a" {
		t.Errorf("got %v", got)
	}
}
