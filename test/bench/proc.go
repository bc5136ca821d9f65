package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// processes are the processes of one peer, by id. All figures are sums.
type processes []int

// family is a process and everything it started.
func family(pid int) processes {
	all := processes{pid}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for i := 0; i < len(all); i++ {
		for _, file := range stats {
			text, err := os.ReadFile(file)
			if err != nil {
				continue // ended meanwhile
			}
			if f := statFields(text); len(f) > 1 && f[1] == strconv.Itoa(all[i]) {
				child, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
				all = append(all, child)
			}
		}
	}
	return all
}

// statFields are the fields of a stat file behind the command's name, which
// may hold anything: state, parent, ...
func statFields(text []byte) []string {
	_, rest, _ := bytes.Cut(text[bytes.LastIndexByte(text, ')'):], []byte(" "))
	var out []string
	for _, f := range bytes.Fields(rest) {
		out = append(out, string(f))
	}
	return out
}

// tick is the unit of the times in a stat file; it is the same on every Linux.
const tick = 10 * time.Millisecond

// cpu is user and system time so far.
func (p processes) cpu() time.Duration {
	var sum time.Duration
	for _, pid := range p {
		if fine, ok := scheduled(pid); ok {
			sum += fine
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		if f := statFields(text); len(f) > 12 {
			user, _ := strconv.Atoi(f[11])
			system, _ := strconv.Atoi(f[12])
			sum += time.Duration(user+system) * tick
		}
	}
	return sum
}

// scheduled is the time on a CPU to the nanosecond, where the kernel keeps it.
// It leaves out threads that have ended; none of the peers ends threads.
func scheduled(pid int) (time.Duration, bool) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	var sum time.Duration
	for _, file := range tasks {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		first, _, _ := bytes.Cut(text, []byte(" "))
		ns, err := strconv.ParseInt(string(first), 10, 64)
		if err != nil {
			return 0, false
		}
		sum += time.Duration(ns)
	}
	return sum, sum > 0
}

// memory is resident and proportional memory in KiB; pss is 0 where the
// kernel does not say.
func (p processes) memory() (rss, pss float64) {
	for _, pid := range p {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue
		}
		rss += kib(text, "\nRss:")
		pss += kib(text, "\nPss:")
	}
	return rss, pss
}

func kib(text []byte, name string) float64 {
	_, rest, found := bytes.Cut(text, []byte(name))
	if f := bytes.Fields(rest); found && len(f) > 0 {
		v, _ := strconv.ParseFloat(string(f[0]), 64)
		return v
	}
	return 0
}
