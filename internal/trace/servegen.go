package trace

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// rateWindow is the time for which one row of a client's rates holds.
const rateWindow = 600 * time.Second

// readServeGen makes arrivals of the rates of ServeGen's clients, each client a
// tenant, from the earliest window on. Clients without lengths draw from those
// of all others at that time.
func readServeGen(f file, o Options) Source {
	return func(yield func(Request, error) bool) {
		clients, err := readClients(f, o)
		if err != nil {
			yield(Request{}, err)
			return
		}
		sources := make([]Source, 0, len(clients))
		for _, c := range clients {
			sources = append(sources, c.source(o.Seed))
		}
		Merge(sources...)(yield)
	}
}

// client is one of the many behind a model.
type client struct {
	name    string
	windows []window
	lengths []clientLengths // by time
	pooled  bool            // the lengths are everybody's
}

// window is the arrivals of a client for some time.
type window struct {
	start, end time.Duration
	rate       float64
	gaps       gaps
}

// clientLengths are the lengths of a client's requests from a time on.
type clientLengths struct {
	client        string
	start         time.Duration
	input, output quantiles
}

// source walks the windows. A gap is drawn in arrivals and used up at each
// window's rate, so that it may span windows and a change of rate.
func (c *client) source(seed uint64) Source {
	return func(yield func(Request, error) bool) {
		rng := newRand(seed, "client "+c.name)
		left := -1.0
		for _, w := range c.windows {
			for t := w.start; ; {
				if left < 0 {
					left = w.gaps(rng)
				}
				if room := w.rate * (w.end - t).Seconds(); left >= room {
					left -= room
					break
				}
				t += seconds(left / w.rate)
				left = -1
				l := c.lengthsAt(t, rng)
				r := Request{At: t, Tenant: "client-" + c.name, PromptTokens: l.input.draw(rng), OutputTokens: l.output.draw(rng), Stream: true}
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// lengthsAt is the last row that has started, or the first; of a pool any row of
// that start.
func (c *client) lengthsAt(t time.Duration, rng *rand.Rand) *clientLengths {
	end := len(c.lengths)
	for end > 1 && c.lengths[end-1].start > t {
		end--
	}
	if !c.pooled {
		return &c.lengths[end-1]
	}
	first, start := end-1, c.lengths[end-1].start
	for first > 0 && c.lengths[first-1].start == start {
		first--
	}
	for end < len(c.lengths) && c.lengths[end].start == start {
		end++
	}
	return &c.lengths[first+rng.IntN(end-first)]
}

// readClients reads both files. Times count from the earliest window.
func readClients(f file, o Options) ([]*client, error) {
	all, origin, err := readRates(f, o)
	if err != nil {
		return nil, err
	}
	lengths, err := readClientLengths(f.lengthsFile(o), origin)
	if err != nil {
		return nil, err
	}
	own := map[string][]clientLengths{}
	for _, l := range lengths {
		own[l.client] = append(own[l.client], l)
	}
	for _, c := range all {
		if c.lengths = own[c.name]; c.lengths == nil {
			c.lengths, c.pooled = lengths, true
		}
	}
	return all, nil
}

func readRates(f file, o Options) (clients []*client, origin time.Duration, err error) {
	const mostPerSecond = 1e6
	scale := cmp.Or(o.Scale, 1)
	if !(scale > 0 && scale <= mostPerSecond) {
		return nil, 0, fmt.Errorf("rate scale %v: must be above 0 and at most %g", scale, float64(mostPerSecond))
	}
	byName := map[string]*client{}
	origin = Never
	err = f.rows([]string{"client", "t", "rate", "cv", "pattern", "p1"}, func(t *table) bool {
		start := seconds(t.number(1, maxTime.Seconds()))
		w := window{start: start, end: start + rateWindow, rate: scale * t.number(2, mostPerSecond), gaps: clientGaps(t)}
		c := byName[t.text(0)]
		if c == nil {
			c = &client{name: t.text(0)}
			byName[c.name] = c
			clients = append(clients, c)
		}
		if n := len(c.windows); n > 0 {
			if last := &c.windows[n-1]; last.start >= start {
				t.fault(1, "is not after the client's row before", "sort each client's rows by t, one a window")
			} else {
				last.end = min(last.end, start)
			}
		}
		c.windows = append(c.windows, w)
		origin = min(origin, start)
		return true
	})
	for _, c := range clients {
		for i := range c.windows {
			c.windows[i].start -= origin
			c.windows[i].end -= origin
		}
	}
	return clients, origin, err
}

// clientGaps is the fitted law of a row. Its shape counts, while the scale gives
// way to the rate: not every published scale agrees with it.
func clientGaps(t *table) gaps {
	switch t.text(4) {
	case "Gamma":
		return gammaGaps(t.number(5, 1e6))
	case "Weibull":
		return weibullGaps(t.number(5, 1e6))
	case "":
		cv := t.number(3, 1e3)
		return gammaGaps(1 / (cv * cv))
	}
	t.fault(4, "is no law", "write Gamma or Weibull, or leave it empty to use cv")
	return nil
}

func readClientLengths(f file, origin time.Duration) (rows []clientLengths, err error) {
	columns := []string{"client", "t",
		"in_p10", "in_p50", "in_p90", "in_p99",
		"out_p10", "out_p50", "out_p90", "out_p99"}
	err = f.rows(columns, func(t *table) bool {
		rows = append(rows, clientLengths{
			client: t.text(0),
			start:  seconds(t.number(1, maxTime.Seconds())) - origin,
			input:  readQuantiles(t, 2),
			output: readQuantiles(t, 6),
		})
		return true
	})
	if err == nil && len(rows) == 0 {
		err = &Error{File: f.name, Line: 1, Problem: "holds no lengths", Fix: "give a row for at least one client"}
	}
	slices.SortStableFunc(rows, func(a, b clientLengths) int { return cmp.Compare(a.start, b.start) })
	return rows, err
}

// quantiles are a length's logarithms at 0, 10, 50, 90, 99 and 100 %.
type quantiles [6]float64

var quantileAt = quantiles{0, 0.1, 0.5, 0.9, 0.99, 1}

// readQuantiles reads p10, p50, p90 and p99. The ends are not published: they go
// on as the quantiles next to them do, by a factor of two at most.
func readQuantiles(t *table, column int) (q quantiles) {
	for i := range 4 {
		q[i+1] = math.Log(max(t.number(column+i, maxTokens), 1))
		if i > 0 && q[i+1] < q[i] {
			t.fault(column+i, "is below the quantile before it", "give rising quantiles")
		}
	}
	q[0] = max(0, q[1]-min(math.Ln2, q[2]-q[1]))
	q[5] = q[4] + min(math.Ln2, q[4]-q[3])
	return q
}

// draw is a length of at least one token.
func (q *quantiles) draw(rng *rand.Rand) int {
	u, i := rng.Float64(), 1
	for u > quantileAt[i] {
		i++
	}
	part := (u - quantileAt[i-1]) / (quantileAt[i] - quantileAt[i-1])
	return max(1, int(math.Round(math.Exp(q[i-1]+part*(q[i]-q[i-1])))))
}
