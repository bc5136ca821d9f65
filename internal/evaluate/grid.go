package evaluate

import (
	"math"
	"slices"
)

// stepGrid rebuilds when an engine's steps ended, in seconds, in order. The
// files of measured runs only have each request's first and last token, and
// both stand at the end of a step that all decoding requests share. These
// times are kept as they are; between two of them the steps have equal
// lengths, near the mean time per token of the requests that decode there.
func stepGrid(requests []measuredRequest) []float64 {
	var ends []float64
	for i := range requests {
		ends = append(ends, requests[i].first, requests[i].last)
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	var grid []float64
	for k, to := range ends {
		if k > 0 {
			grid = appendSteps(grid, requests, ends[k-1], to)
		}
		grid = append(grid, to)
	}
	return grid
}

// appendSteps adds the ends of the steps that lie between two known ones.
func appendSteps(grid []float64, requests []measuredRequest, from, to float64) []float64 {
	sum, decoding := 0.0, 0.0
	for i := range requests {
		if r := &requests[i]; r.output > 1 && r.first <= from && r.last >= to {
			sum += (r.last - r.first) / float64(r.output-1)
			decoding++
		}
	}
	if decoding == 0 { // nothing shows when steps end
		return grid
	}
	n := math.Round((to - from) / (sum / decoding))
	for k := 1.0; k < n; k++ {
		grid = append(grid, from+(to-from)*k/n)
	}
	return grid
}

// tokensOn spreads the tokens after a request's first evenly over the steps
// from there to its last. If it took part in fewer steps than it has tokens
// some of them bring two; if in more (it was preempted, or the grid is too
// fine), some none. off is by how many steps the grid is wrong for it, as a
// share.
func (r *measuredRequest) tokensOn(grid []float64) (at []float64, off float64) {
	if r.output < 2 {
		return nil, 0
	}
	first, _ := slices.BinarySearch(grid, r.first)
	last, _ := slices.BinarySearch(grid, r.last)
	steps, tokens := last-first, r.output-1
	for j := 1; j <= tokens; j++ {
		at = append(at, grid[first+(j*steps+tokens-1)/tokens])
	}
	return at, math.Abs(float64(steps-tokens)) / float64(tokens)
}
