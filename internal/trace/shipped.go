package trace

import (
	"fmt"
	"strings"
	"time"
)

// Workloads gives the workloads that ship. Their rates suit a handful of GPUs:
// scale them with Source.Rate or set Rate. Turns, think times, system prompts
// and the tenants' shares are chosen, not measured.
func Workloads() []Workload {
	return []Workload{CustomerService(), CodeCompletion(), LiveSummarisation()}
}

// Shipped is the shipped workload of that name, or short name.
func Shipped(name string) (Workload, error) {
	var names []string
	for _, w := range Workloads() {
		if w.Name == name || w.Short == name {
			return w, nil
		}
		names = append(names, fmt.Sprintf("%s (%s)", w.Name, w.Short))
	}
	return Workload{}, fmt.Errorf("no workload %q: there are %s", name, strings.Join(names, ", "))
}

// CustomerService is chat in support of customers: several turns, a person who
// reads and types, bursts of ±30 %.
//
// Prompts and answers are near Azure's conversation service of 2023 (context
// p50 1,020 and p99 4,142 tokens; generated p50 129, mean 211, at most 1,000).
func CustomerService() Workload {
	return Workload{
		Name:       "customer-service",
		Short:      "chat",
		Rate:       6,
		Burst:      Burst(0.3, 2*time.Minute, 0.5),
		Tenants:    []Weighted{{"shop", 6}, {"bank", 3}, {"travel", 1}},
		System:     Size{Median: 450, Spread: 0.3, Min: 200, Max: 900},
		First:      Size{Median: 150, Spread: 0.7, Max: 2000},
		Next:       Size{Median: 45, Spread: 0.8, Max: 2000},
		Output:     Size{Median: 129, Spread: 0.99, Max: 1000}, // mean = median × exp(spread²/2)
		Turns:      4,
		Think:      Size{Median: 20, Spread: 0.8, Min: 2, Max: 300},
		PerToken:   30 * time.Millisecond,
		MaxContext: 8192,
		Streamed:   1,
		TTFT:       320 * time.Millisecond,
		TPOT:       80 * time.Millisecond,
	}
}

// CodeCompletion is an editor that asks for the next few tokens as its user
// types: the file so far over and over, short answers, jittery arrivals.
//
// Sizes are near Azure's code service of 2023 (context p50 1,469 and p99 7,436
// tokens; generated p50 13, mean 28). Its arrivals are burstier still (CV 13)
// but over half an hour, in which its rate varied by forty.
func CodeCompletion() Workload {
	return Workload{
		Name:       "code-completion",
		Short:      "code",
		Rate:       8,
		CV:         4,
		Tenants:    []Weighted{{"web", 5}, {"mobile", 3}, {"infra", 2}},
		System:     Size{Median: 300, Spread: 0.3, Min: 100, Max: 600},
		First:      Size{Median: 750, Spread: 0.9, Max: 7000},
		Next:       Size{Median: 12, Spread: 0.7, Max: 400},
		Output:     Size{Median: 13, Spread: 1.24, Max: 400},
		Turns:      15,
		Think:      Size{Median: 3, Spread: 1.2, Max: 120},
		PerToken:   20 * time.Millisecond,
		MaxContext: 8192,
		Streamed:   1,
		TTFT:       120 * time.Millisecond,
		E2E:        300 * time.Millisecond,
	}
}

// LiveSummarisation sums up meetings while they go on: every half minute the
// transcript so far with what was said since, and a short answer. Somebody
// watches half of the meetings, whose answers are streamed; those of the others
// are wanted whole and bear being batched.
//
// Prompts are near Mooncake's conversations (p50 6,909 tokens); answers are
// short, as an end to end of 1.2 s demands.
func LiveSummarisation() Workload {
	return Workload{
		Name:       "live-summarisation",
		Short:      "summary",
		Rate:       1,
		Tenants:    []Weighted{{"meetings", 2}, {"newsroom", 1}},
		System:     Size{Median: 250, Spread: 0.2, Min: 100, Max: 500},
		First:      Size{Median: 3000, Spread: 0.9, Max: 24000},
		Next:       Size{Median: 450, Spread: 0.5, Max: 2000},
		Output:     Size{Median: 40, Spread: 0.3, Max: 120},
		Turns:      8,
		Think:      Size{Median: 30, Spread: 0.05},
		PerToken:   15 * time.Millisecond,
		MaxContext: 32768,
		Streamed:   0.5,
		TTFT:       650 * time.Millisecond,
		E2E:        1200 * time.Millisecond,
	}
}
