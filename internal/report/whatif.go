package report

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"
)

// WhatIf is what other contracts would have done to the same requests.
type WhatIf struct {
	Title   string   `json:"title"`
	Notes   []string `json:"notes,omitempty"`
	Changes []Change `json:"changes"`
}

// Change is one figure under the old and the new contracts.
type Change struct {
	Of   string  `json:"of"`   // a contract, or all
	What string  `json:"what"` // share of requests, or USD
	USD  bool    `json:"usd,omitempty"`
	N    int     `json:"n"` // requests of all seeds; runs if USD
	Old  float64 `json:"old"`
	New  float64 `json:"new"`
	Low  float64 `json:"difference_low"` // 95 % bootstrap interval of new less old
	High float64 `json:"difference_high"`
}

// Sure reports whether the interval leaves no doubt which way it went.
func (c *Change) Sure() bool { return c.Low > 0 || c.High < 0 }

// Fill works the figures out from sums over blocks that are independent of
// each other: the old and the new sum, and the number that both are shares of.
// The interval is a percentile bootstrap over the blocks (Efron and Tibshirani
// 1993, chapter 13).
func (c *Change) Fill(old, new, n []float64) {
	sums := func(pick func(int) int) (o, w float64) {
		all := 0.0
		for i := range n {
			k := pick(i)
			o, w, all = o+old[k], w+new[k], all+n[k]
		}
		return o / max(all, 1), w / max(all, 1)
	}
	c.Old, c.New = sums(func(i int) int { return i })
	rng := rand.New(rand.NewPCG(1, uint64(len(n))))
	draws := make([]float64, resamples)
	for i := range draws {
		o, w := sums(func(int) int { return rng.IntN(len(n)) })
		draws[i] = w - o
	}
	slices.Sort(draws)
	c.Low, c.High = Quantile(draws, .025), Quantile(draws, .975)
}

// WriteTable prints the comparison for a terminal.
func (r *WhatIf) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintln(&b, r.Title)
	for _, n := range r.Notes {
		fmt.Fprintln(&b, n)
	}
	fmt.Fprintln(&b)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "of\tfigure\told\tnew\tdifference\t95 % interval\tn\t\t")
	for i := range r.Changes {
		c := &r.Changes[i]
		verdict := "no difference shown"
		if c.Sure() {
			verdict = "differs"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s to %s\t%d\t%s\t\n", c.Of, c.What, c.figure(c.Old, ""), c.figure(c.New, ""),
			c.figure(c.New-c.Old, "+"), c.figure(c.Low, "+"), c.figure(c.High, "+"), c.N, verdict)
	}
	_ = t.Flush() // into memory
	_, err := io.WriteString(w, b.String())
	return err
}

func (c *Change) figure(v float64, sign string) string {
	if c.USD {
		return fmt.Sprintf("%"+sign+".3f", v)
	}
	return fmt.Sprintf("%"+sign+".1f%%", 100*v)
}
