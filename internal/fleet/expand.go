package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/engine"
)

// maxEngines bounds a fleet, so that a typing error does not fill the memory.
const maxEngines = 2000

// expander turns a file into a fleet and reports what does not fit together.
type expander struct {
	file  *File
	doc   *config.Document
	dir   string
	fleet Fleet
	where map[string]string // engine name → path of its group
}

func (e *expander) expand() *Fleet {
	e.fleet.Network = e.file.Network.Delay
	e.where = map[string]string{}
	for i := range e.file.Engines {
		at, g := fmt.Sprintf("engines[%d]", i), &e.file.Engines[i]
		if len(e.fleet.Engines)+g.Count > maxEngines {
			e.doc.Fail(at, "makes the fleet too large", fmt.Sprintf("write at most %d engines in all", maxEngines))
			break
		}
		e.group(at, g)
	}
	if e.doc.Err() == nil { // else an engine may be missing
		e.faults()
	}
	return &e.fleet
}

func (e *expander) group(at string, g *Group) {
	p, err := profile(g.Profile, e.dir)
	if err != nil {
		e.doc.Fail(at+".profile", oneLine(err), fixOf(err))
		return
	}
	params := e.params(at, g, p.Params)
	if err := params.Check(); err != nil {
		e.doc.Fail(at, oneLine(err), "")
		return
	}
	if g.Port > 0 && g.Port+g.Count-1 > 65535 {
		e.doc.Fail(at+".port", fmt.Sprintf("leaves no room for %d engines", g.Count), "write a lower one")
	}
	one := Engine{Model: cmp.Or(g.Model, p.Model), Profile: p, Params: params, PricePerHour: p.PricePerHour}
	if e.doc.Has(at + ".price_per_hour") {
		one.PricePerHour = g.PricePerHour
	}
	for i := range g.Count {
		one.Name = e.name(at, g, p.Name, i)
		one.Seed = uint64(len(e.fleet.Engines))
		if e.doc.Has(at + ".seed") {
			one.Seed = uint64(g.Seed + i)
		}
		if g.Port > 0 {
			one.Port = g.Port + i
		}
		e.fleet.Engines = append(e.fleet.Engines, one)
	}
}

// name of the i-th engine of a group; each stands for one engine.
func (e *expander) name(at string, g *Group, profile string, i int) string {
	name := cmp.Or(g.Name, profile)
	if g.Count > 1 {
		name += "-" + strconv.Itoa(i+1)
	}
	if first, taken := e.where[name]; taken {
		path := at + ".name"
		if g.Name == "" {
			path = at
		}
		e.doc.Fail(path, fmt.Sprintf("makes another engine %q, as %s does", name, first), "give each group its own name")
	}
	e.where[name] = at
	return name
}

// params are the profile's, with what the file says of them.
func (e *expander) params(at string, g *Group, p engine.Params) engine.Params {
	override(&p.MaxSeqs, g.MaxNumSeqs)
	override(&p.MaxBatchedTokens, g.MaxNumBatchedTokens)
	override(&p.KVBlocks, g.KVBlocks)
	override(&p.MaxModelLen, g.MaxModelLen)
	if g.FP8KV {
		p.KVBlocks *= 2
	}
	p.NoPrefixCache = !g.PrefixCaching
	p.Noise = g.Noise
	if e.doc.Has(at + ".start_up") {
		p.StartUp = g.StartUp
	}
	if e.doc.Has(at + ".cold") {
		p.Cold = engine.Cold(g.Cold)
	}
	if e.doc.Has(at + ".speculative") {
		p.Speculative = g.Speculative
	}
	for _, s := range []struct {
		key string
		set func()
	}{
		{"t0", func() { p.Step.T0 = g.Step.T0 }},
		{"alpha", func() { p.Step.Alpha = g.Step.Alpha }},
		{"beta", func() { p.Step.Beta = g.Step.Beta }},
		{"gamma", func() { p.Step.Gamma = g.Step.Gamma }},
		{"alpha2", func() { p.Step.Alpha2 = g.Step.Alpha2 }},
		{"experts", func() { p.Step.Experts = g.Step.Experts }},
		{"active", func() { p.Step.Active = g.Step.Active }},
		{"h", func() { p.Step.H = g.Step.H }},
	} {
		if e.doc.Has(at + ".step." + s.key) {
			s.set()
		}
	}
	return p
}

// override keeps what is there when the file says nothing.
func override(to *int, from int) {
	if from != 0 {
		*to = from
	}
}

func (e *expander) faults() {
	for i := range e.file.Faults {
		at, f := fmt.Sprintf("faults[%d]", i), &e.file.Faults[i]
		index, ok := e.engine(at+".engine", f.Engine)
		if !ok {
			continue
		}
		fault, err := engine.Fault{Kind: engine.FaultKind(f.Kind), Factor: f.Factor, Rate: f.Rate}.Complete()
		if err != nil {
			e.doc.Fail(at, err.Error(), "")
			continue
		}
		if f.Kind == string(engine.Restart) && f.For > 0 {
			e.doc.Fail(at+".for", "has no meaning for a restart", "remove it; start_up is how long it takes")
			continue
		}
		e.fleet.Faults = append(e.fleet.Faults, Fault{At: f.At, Engine: index, Fault: fault, For: f.For})
	}
	slices.SortStableFunc(e.fleet.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
}

// engine finds an engine by name, or by its place in the fleet.
func (e *expander) engine(at, ref string) (int, bool) {
	for i := range e.fleet.Engines {
		if e.fleet.Engines[i].Name == ref {
			return i, true
		}
	}
	if n, err := strconv.Atoi(ref); err == nil {
		if n >= 0 && n < len(e.fleet.Engines) {
			return n, true
		}
		e.doc.Fail(at, fmt.Sprintf("there is no engine %d", n), fmt.Sprintf("write a number from 0 to %d, or a name", len(e.fleet.Engines)-1))
		return 0, false
	}
	e.doc.Fail(at, fmt.Sprintf("there is no engine %q", ref), e.suggestEngine(ref))
	return 0, false
}

func (e *expander) suggestEngine(ref string) string {
	const most = 8 // names worth listing
	var names []string
	for _, one := range e.fleet.Engines {
		if strings.HasPrefix(one.Name, ref+"-") {
			return fmt.Sprintf("it is a group: write one of its engines, such as %q", one.Name)
		}
		names = append(names, one.Name)
	}
	fix := config.Suggest(ref, names)
	if len(names) > most && strings.HasPrefix(fix, "write one of") {
		return fmt.Sprintf("names go from %s to %s", names[0], names[len(names)-1])
	}
	return fix
}
