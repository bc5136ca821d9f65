package sla

import (
	"math"
	"math/bits"
	"time"
)

// ring counts good and missed requests over a window that ends now, in slices
// of a sixtieth of it: bounded memory, and an error of at most one slice.
type ring struct {
	length time.Duration
	slices [60]slice
}

type slice struct {
	number     int64 // time / slice length; a slice of another number is stale
	total, bad int64
}

// add counts one request. A time that lies a whole window back is dropped.
func (r *ring) add(now int64, isBad bool) {
	number := now / (int64(r.length) / int64(len(r.slices)))
	s := &r.slices[uint64(number)%uint64(len(r.slices))]
	if number < s.number {
		return
	}
	if number > s.number {
		*s = slice{number: number}
	}
	s.total++
	if isBad {
		s.bad++
	}
}

// sum counts the window that ends now.
func (r *ring) sum(now int64) (total, bad int64) {
	number := now / (int64(r.length) / int64(len(r.slices)))
	for i := range r.slices {
		if age := number - r.slices[i].number; age >= 0 && age < int64(len(r.slices)) {
			total += r.slices[i].total
			bad += r.slices[i].bad
		}
	}
	return total, bad
}

// spectrum estimates percentiles of a time over a window that ends now, in
// slices of a twelfth of it. Its buckets are an eighth of an octave wide, from
// 1 ms to about 17 minutes, so an estimate is off by an eighth at most.
type spectrum struct {
	length time.Duration
	slices [12]histogram
}

const (
	perOctave = 8
	octaves   = 20
)

type histogram struct {
	number int64
	counts [perOctave*octaves + 2]uint32 // the first is below, the last beyond
}

func (s *spectrum) add(now int64, value time.Duration) {
	number := now / (int64(s.length) / int64(len(s.slices)))
	h := &s.slices[uint64(number)%uint64(len(s.slices))]
	if number < h.number {
		return
	}
	if number > h.number {
		*h = histogram{number: number}
	}
	h.counts[bucketOf(value)]++
}

// bucketOf counts buckets from 1 ms; those of one octave are equally wide.
func bucketOf(value time.Duration) int {
	units := uint64(value) / (uint64(time.Millisecond) / perOctave) // eighths of a millisecond
	if value < time.Millisecond {
		return 0
	}
	octave := bits.Len64(units) - bits.Len64(perOctave)
	if octave >= octaves {
		return perOctave*octaves + 1
	}
	return 1 + perOctave*octave + int(units>>octave) - perOctave
}

// bounds are the times between which a bucket's values lie.
func bounds(bucket int) (low, high time.Duration) {
	switch bucket {
	case 0:
		return 0, time.Millisecond
	case perOctave*octaves + 1:
		return beyond, beyond
	}
	octave, step := (bucket-1)/perOctave, (bucket-1)%perOctave
	width := time.Millisecond / perOctave << octave
	return time.Duration(perOctave+step) * width, time.Duration(perOctave+step+1) * width
}

// quantile estimates the value that a share q of the window's values does not
// exceed; beyond when it lies past the last bucket, 0 without values.
func (s *spectrum) quantile(now int64, q float64) time.Duration {
	var counts [perOctave*octaves + 2]int64
	total := int64(0)
	number := now / (int64(s.length) / int64(len(s.slices)))
	for i := range s.slices {
		h := &s.slices[i]
		if age := number - h.number; age < 0 || age >= int64(len(s.slices)) {
			continue
		}
		for b, n := range h.counts {
			counts[b] += int64(n)
			total += int64(n)
		}
	}
	rank := int64(math.Ceil(q * float64(total)))
	for b, n := range counts {
		if rank <= n && n > 0 {
			low, high := bounds(b)
			return low + time.Duration(float64(high-low)*float64(rank)/float64(n))
		}
		rank -= n
	}
	return 0
}
