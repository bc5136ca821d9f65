package sla

import (
	"math"
	"time"
)

// Violation tells that an instance broke a contract in several windows in a
// row and that its weight was cut for it.
type Violation struct {
	At       time.Time // end of the last window
	Since    time.Time // start of the first one
	Instance string
	Contract string
	Windows  int // violated ones in a row

	// Objective was missed most in the last window.
	Objective Objective
	Samples   int     // of it in the last window
	Share     float64 // of them that met it
	Weight    float64 // after the cut
}

// maxStretch is how many windows one may last until it has enough samples.
const maxStretch = 6

// watch judges an instance in windows, and holds the weight that follows. A
// window starts on a multiple of its length and ends one length later. One
// with too few samples goes on for up to six lengths and then counts for
// nothing: too little is known, and the row of violations ends.
type watch struct {
	start, last int64 // of the window's first length; of its last sample
	total, bad  []int32

	row   int   // violated windows
	since int64 // start of the first of them

	// The weight is 1 - missing·2^(-(now-from)/recovery).
	missing float64
	from    int64
}

func newWatch(c *Contract) watch {
	n := len(c.Spec.Objectives)
	both := make([]int32, 2*n)
	return watch{total: both[:n:n], bad: both[n:]}
}

func (w *watch) add(at int64, opts *Options, verdicts *[maxObjectives]Verdict) {
	if w.start == 0 {
		w.start = at - at%int64(opts.Window)
	}
	w.last = max(w.last, at)
	for i := range w.total {
		if verdicts[i] != Neutral {
			w.total[i]++
		}
		if verdicts[i] == Missed {
			w.bad[i]++
		}
	}
}

// close judges the window if it is over.
func (w *watch) close(at int64, opts *Options, c *Contract) *Violation {
	length := int64(opts.Window)
	if w.start == 0 || at < w.start+length {
		return nil
	}
	enough, worst := w.worst(opts, c)
	tooLong := at >= w.start+maxStretch*length
	if !enough && !tooLong {
		return nil
	}
	start, end := w.start, w.last-w.last%length+length
	var v *Violation
	if worst >= 0 {
		v = w.violated(start, end, worst, opts, c)
	}
	if worst < 0 || at >= end+maxStretch*length {
		w.row = 0
	}
	w.start, w.last = 0, 0
	clear(w.total)
	clear(w.bad)
	return v
}

// worst finds the objective that missed its target by most, -1 for none, and
// tells whether any had enough samples to be judged.
func (w *watch) worst(opts *Options, c *Contract) (enough bool, worst int) {
	worst, lowest := -1, 1.0
	for i := range w.total {
		if int(w.total[i]) < opts.MinSamples {
			continue
		}
		enough = true
		if !tellsOfMore(int(w.bad[i]), int(w.total[i]), float64(c.Spec.Objectives[i].Target)) {
			continue
		}
		if ratio := w.share(i) / float64(c.Spec.Objectives[i].Target); ratio < lowest {
			worst, lowest = i, ratio
		}
	}
	return enough, worst
}

// tellsOfMore reports whether so many of n misses are more than chance leaves
// of a share that is just on target: fewer than one window in twenty has as many
// (binomial, by the normal with correction for continuity). In a window of a
// dozen requests, one that is late says nothing.
func tellsOfMore(bad, n int, target float64) bool {
	const z95 = 1.645
	usual := float64(n) * (1 - target)
	return float64(bad)-0.5 > usual+z95*math.Sqrt(usual*target)
}

// share is the part of the window's samples that met objective i.
func (w *watch) share(i int) float64 { return 1 - float64(w.bad[i])/float64(w.total[i]) }

// violated counts a violated window. The weight does not recover while it
// lasts; from the third in a row on each halves it, down to the floor.
func (w *watch) violated(start, end int64, worst int, opts *Options, c *Contract) *Violation {
	if w.row++; w.row == 1 {
		w.since = start
	}
	before := w.weight(start, opts)
	after := before
	if w.row >= opts.Violations {
		after = max(opts.Floor, before*opts.Cut)
	}
	w.missing, w.from = 1-after, end
	if after >= before {
		return nil
	}
	return &Violation{
		At: time.Unix(0, end), Since: time.Unix(0, w.since), Contract: c.Name(), Windows: w.row,
		Objective: c.Spec.Objectives[worst], Samples: int(w.total[worst]), Share: w.share(worst), Weight: after,
	}
}

// violatedInARow is how many windows were, up to now: a row ends when there was
// too little to judge for long.
func (w *watch) violatedInARow(at int64, opts *Options) int {
	if at >= w.from+maxStretch*int64(opts.Window) {
		return 0
	}
	return w.row
}

func (w *watch) weight(at int64, opts *Options) float64 {
	if w.missing == 0 {
		return 1
	}
	elapsed := float64(max(0, at-w.from))
	return 1 - w.missing*math.Exp2(-elapsed/float64(opts.Recovery))
}
