package sla

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Set is some contracts, compiled: it says which of them holds for a request.
// It never changes, so it may be used by many goroutines at once.
type Set struct {
	contracts []*Contract // in order of precedence
	buckets   map[bucket][]int32
	standings []int // that its requests may have, see Rank
	revision  string
}

// bucket holds the contracts of one tenant and model; "" is any.
type bucket struct{ tenant, model string }

// Source is a contract file in memory; Name stands in errors.
type Source struct {
	Name string
	Data []byte
}

// Load reads, checks and compiles contract files. When their content is at
// fault the error is of type Errors and holds everything that is wrong; nothing
// of any file is used then.
func Load(paths ...string) (*Set, error) {
	var sources []Source
	for _, path := range paths {
		data, err := readFile(path)
		if err != nil {
			return nil, fmt.Errorf("load contracts %q: %w", path, err)
		}
		sources = append(sources, Source{path, data})
	}
	return Parse(sources...)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // the file the operator names
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// LoadFS is Load for all .yaml files of a folder.
func LoadFS(files fs.FS) (*Set, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	var sources []Source
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("load contracts: %w", err)
		}
		sources = append(sources, Source{name, data})
	}
	return Parse(sources...)
}

// Parse is Load for files that are in memory already. Their order changes
// nothing, and neither does how contracts are spread over them.
func Parse(sources ...Source) (*Set, error) {
	var errs Errors
	var all []*Contract
	first := map[string]string{}
	for _, s := range sources {
		contracts, places := decodeFile(s.Name, s.Data, &errs)
		for i, c := range contracts {
			name, place := c.Metadata.Name, places[i]
			if before := first[name]; before != "" && name != "" {
				errs = append(errs, Error{s.Name, place.Line, place.Column, "metadata.name",
					fmt.Sprintf("%q names a contract already in %s", name, before), "choose another name"})
			}
			first[name] = fmt.Sprintf("%s:%d:%d", s.Name, place.Line, place.Column)
		}
		if len(contracts) == 0 && len(errs) == 0 {
			errs = append(errs, Error{s.Name, 1, 1, "", "holds no contract", `begin with "apiVersion: ` + Version + `"`})
		}
		all = append(all, contracts...)
	}
	if err := errs.err(); err != nil {
		return nil, err
	}
	return newSet(all)
}

func newSet(contracts []*Contract) (*Set, error) {
	s := &Set{contracts: contracts, buckets: map[bucket][]int32{}}
	slices.SortFunc(s.contracts, precedence)
	for i, c := range s.contracts {
		for _, tenant := range orAny(c.Spec.Match.Tenants) {
			for _, model := range orAny(c.Spec.Match.Models) {
				b := bucket{tenant, model}
				s.buckets[b] = append(s.buckets[b], int32(i))
			}
		}
	}
	s.rankAll()
	text, err := s.Save()
	if err != nil {
		return nil, err
	}
	s.revision = digest(string(text))
	return s, nil
}

func orAny(names []string) []string {
	if len(names) == 0 {
		return []string{""}
	}
	return names
}

// precedence puts the contract that goes before others first.
func precedence(a, b *Contract) int {
	m, n := &a.Spec.Match, &b.Spec.Match
	return cmp.Or(
		cmp.Compare(n.Priority, m.Priority),
		cmp.Compare(n.specificity(), m.specificity()),
		cmp.Compare(len(n.Headers), len(m.Headers)),
		strings.Compare(a.Metadata.Name, b.Metadata.Name),
	)
}

// specificity orders by what a match names: tenant before header before service
// tier before model.
func (m *Match) specificity() int {
	sum := 0
	for _, named := range []int{len(m.Tenants), len(m.Headers), len(m.ServiceTier), len(m.Models)} {
		sum = 2*sum + min(named, 1)
	}
	return sum
}

// Save writes all contracts, complete, as one file that Parse reads back as
// the same Set.
func (s *Set) Save() ([]byte, error) {
	byName := slices.Clone(s.contracts)
	slices.SortFunc(byName, func(a, b *Contract) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	for _, c := range byName {
		if err := enc.Encode(c); err != nil {
			return nil, fmt.Errorf("save contract %q: %w", c.Name(), err)
		}
	}
	err := enc.Close()
	return out.Bytes(), err
}

// Revision identifies what the contracts say: equal for equal contracts,
// however they are spread over files, commented or ordered.
func (s *Set) Revision() string { return s.revision }

// Contracts lists the contracts in order of precedence. The slice must not be changed.
func (s *Set) Contracts() []*Contract { return s.contracts }

// Contract returns a contract by name; nil when there is none.
func (s *Set) Contract(name string) *Contract {
	for _, c := range s.contracts {
		if c.Metadata.Name == name {
			return c
		}
	}
	return nil
}

// Key is what contracts match a request by. Empty fields are what the request
// does not say.
type Key struct {
	Tenant, Model, ServiceTier string
	// Header gives a header's first value by its canonical name (X-Workload),
	// "" when there is none; nil is no headers.
	Header func(name string) string
}

// Match returns the contract that holds for a request: of those that match, the
// first in order of precedence. Nil when none does. It allocates nothing, and
// its time does not depend on how many tenants and models have contracts.
func (s *Set) Match(k Key) *Contract {
	best := int32(math.MaxInt32)
	best = s.first(bucket{"", ""}, k, best)
	if k.Tenant != "" {
		best = s.first(bucket{k.Tenant, ""}, k, best)
	}
	if k.Model != "" {
		best = s.first(bucket{"", k.Model}, k, best)
	}
	if k.Tenant != "" && k.Model != "" {
		best = s.first(bucket{k.Tenant, k.Model}, k, best)
	}
	if best == math.MaxInt32 {
		return nil
	}
	return s.contracts[best]
}

// first is the first contract of a bucket that goes before best and matches.
func (s *Set) first(b bucket, k Key, best int32) int32 {
	for _, i := range s.buckets[b] {
		if i >= best {
			break
		}
		if m := &s.contracts[i].Spec.Match; m.tierMatches(k) && m.mismatch(k) == "" {
			return i
		}
	}
	return best
}

func (m *Match) tierMatches(k Key) bool {
	return len(m.ServiceTier) == 0 || slices.Contains(m.ServiceTier, k.ServiceTier)
}

// mismatch names the first header, by name, that does not match; "" when all do.
func (m *Match) mismatch(k Key) string {
	first := ""
	for name, values := range m.Headers {
		matches := k.Header != nil && slices.Contains(values, k.Header(name))
		if !matches && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

// Candidate is a contract and whether it matches a request.
type Candidate struct {
	Contract *Contract
	Matches  bool
	// Reason says what does not match, or by what this contract goes before
	// the next that matches.
	Reason string
}

// Candidates explains Match: every contract in order of precedence. The first
// that matches is the one that holds.
func (s *Set) Candidates(k Key) []Candidate {
	all := make([]Candidate, len(s.contracts))
	next := -1 // the matching candidate after this one
	for i := len(all) - 1; i >= 0; i-- {
		c := s.contracts[i]
		problem := c.Spec.Match.problem(k)
		all[i] = Candidate{c, problem == "", problem}
		if problem != "" {
			continue
		}
		all[i].Reason = "the only one left"
		if next >= 0 {
			all[i].Reason = "goes before " + all[next].Contract.Name() + ": " + whyBefore(c, all[next].Contract)
		}
		next = i
	}
	return all
}

// problem says what does not match; "" when all does.
func (m *Match) problem(k Key) string {
	for _, row := range []struct {
		what, got string
		want      []string
	}{{"tenant", k.Tenant, m.Tenants}, {"model", k.Model, m.Models}, {"service tier", k.ServiceTier, m.ServiceTier}} {
		if len(row.want) > 0 && !slices.Contains(row.want, row.got) {
			return fmt.Sprintf("%s is %q, not %s", row.what, row.got, strings.Join(row.want, " or "))
		}
	}
	if name := m.mismatch(k); name != "" {
		got := ""
		if k.Header != nil {
			got = k.Header(name)
		}
		return fmt.Sprintf("header %s is %q, not %s", name, got, strings.Join(m.Headers[name], " or "))
	}
	return ""
}

// whyBefore says which rule of precedence puts a before b.
func whyBefore(a, b *Contract) string {
	m, n := &a.Spec.Match, &b.Spec.Match
	if m.Priority != n.Priority {
		return fmt.Sprintf("match priority %d is above %d", m.Priority, n.Priority)
	}
	for _, row := range []struct {
		what string
		a, b int
	}{
		{"a tenant", len(m.Tenants), len(n.Tenants)}, {"a header", len(m.Headers), len(n.Headers)},
		{"a service tier", len(m.ServiceTier), len(n.ServiceTier)}, {"a model", len(m.Models), len(n.Models)},
	} {
		if min(row.a, 1) != min(row.b, 1) {
			return "it names " + row.what
		}
	}
	if len(m.Headers) != len(n.Headers) {
		return "it names more headers"
	}
	return "its name comes first"
}

// Shadowed lists the contracts that can never hold, each with one that matches
// whatever it matches and goes before it.
func (s *Set) Shadowed() map[string]string {
	shadowed := map[string]string{}
	for i, c := range s.contracts {
		for _, before := range s.contracts[:i] {
			if before.Spec.Match.covers(&c.Spec.Match) {
				shadowed[c.Name()] = before.Name()
				break
			}
		}
	}
	return shadowed
}

// covers tells whether m matches whatever n matches.
func (m *Match) covers(n *Match) bool {
	wider := func(a, b []string) bool {
		return len(a) == 0 || len(b) > 0 && !slices.ContainsFunc(b, func(s string) bool { return !slices.Contains(a, s) })
	}
	for name, values := range m.Headers {
		if !wider(values, n.Headers[name]) {
			return false
		}
	}
	return wider(m.Tenants, n.Tenants) && wider(m.Models, n.Models) && wider(m.ServiceTier, n.ServiceTier)
}
