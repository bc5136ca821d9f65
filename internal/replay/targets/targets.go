package targets

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/firsttoken/firsttoken/pkg/router"
)

// Options say what is measured. Zero fields mean the default named beside them.
type Options struct {
	Data     string   // folder of the recorded traces; cells of one that is not there are left out
	Seeds    int      // of every figure. 1
	Requests int      // of each trace, the first ones. 6000
	Only     []string // parts, see Parts; all
	Fleets   []string // shipped fleets that goodput is measured on. mixed, wide, equal
	Traces   []string // see Traces; all
	Workers  int      // cells at once. 1
	Stop     func() bool
	Progress func(what string) // may be called on several goroutines; may be nil
}

func (o Options) withDefaults() Options {
	if o.Seeds == 0 {
		o.Seeds = 1
	}
	if o.Requests == 0 {
		o.Requests = 6000
	}
	if len(o.Only) == 0 {
		o.Only = Parts()
	}
	if len(o.Fleets) == 0 {
		o.Fleets = []string{"mixed", "wide", "equal"}
	}
	if len(o.Traces) == 0 {
		o.Traces = Traces()
	}
	if o.Workers == 0 {
		o.Workers = 1
	}
	if o.Stop == nil {
		o.Stop = func() bool { return false }
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o
}

// baselines are the rules to beat: the best of them in each cell.
var baselines = []string{router.LMetric, router.PrefixAffinity, router.LeastInFlight, router.TokenLoad, router.P2C, router.PeakEWMA}

// rule is a policy and how it is set up.
type rule struct {
	policy string
	hold   bool // by admission
	known  bool // it begins with the engines' true parameters
}

var (
	ours   = rule{policy: router.Headroom, hold: true}
	direct = rule{policy: router.Headroom}
	known  = rule{policy: router.Headroom, hold: true, known: true}
)

// part is one table.
type part struct {
	name    string
	measure func(*bench) (Table, error)
}

func parts() []part {
	return []part{
		{"goodput", (*bench).goodput}, {"overload", (*bench).overload}, {"turns", (*bench).turns}, {"signals", (*bench).signals},
		{"slow", (*bench).slow}, {"wrong", (*bench).wrong}, {"priority", (*bench).priority}, {"tenants", (*bench).tenants},
	}
}

// Parts names the tables in their order.
func Parts() (names []string) {
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

// Measure makes the tables, giving each to done as soon as it is there.
func Measure(o Options, done func(Table) error) error {
	o = o.withDefaults()
	for _, name := range o.Only {
		if !slices.Contains(Parts(), name) {
			return fmt.Errorf("no part %q; there are %s", name, strings.Join(Parts(), ", "))
		}
	}
	b, err := newBench(o)
	if err != nil {
		return err
	}
	for _, p := range parts() {
		if !slices.Contains(o.Only, p.name) {
			continue
		}
		t, err := p.measure(b)
		if errors.Is(err, errNoCell) {
			t.Notes, err = append(t.Notes, "not measured: a trace is missing; set FIRSTTOKEN_DATA to the folder of the data sets"), nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		t.Name = p.name
		if err := done(t); err != nil {
			return err
		}
	}
	return nil
}

// bench is the cells that are measured.
type bench struct {
	Options
	cells []*cell
}

func newBench(o Options) (*bench, error) {
	b := &bench{Options: o}
	for _, f := range o.Fleets {
		for _, t := range o.Traces {
			c, err := newCell(&b.Options, f, t)
			if errors.Is(err, errNoCell) {
				continue
			}
			if err != nil {
				return nil, err
			}
			b.cells = append(b.cells, c)
		}
	}
	return b, nil
}

// mixed finds the cell of a trace on the fleet mixed, also if the goodput of
// that fleet is not asked for.
func (b *bench) mixed(trace string) (*cell, error) {
	const fleet = "mixed"
	for _, c := range b.cells {
		if c.fleet == fleet && c.trace == trace {
			return c, nil
		}
	}
	return newCell(&b.Options, fleet, trace)
}

// each does something for every cell, several at once.
func (b *bench) each(n int, do func(i int) error) error {
	errs := make([]error, n)
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	var working sync.WaitGroup
	for range b.Workers {
		working.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	working.Wait()
	return errors.Join(errs...)
}

// seeds lists them.
func (o *Options) seeds() (out []uint64) {
	for s := range o.Seeds {
		out = append(out, uint64(s+1))
	}
	return out
}
