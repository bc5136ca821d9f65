package config

import (
	"fmt"
	"strings"
)

// suggest says what the writer of word may have meant, or lists what is valid.
func suggest(word string, valid []string) string {
	best, distance := "", 1+max(1, min(len(word), 24)/3)
	for _, v := range valid {
		if d := editDistance(plain(word), plain(v)); d < distance {
			best, distance = v, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return "write one of " + strings.Join(valid, ", ")
}

// plain removes the differences that spelling habits make.
func plain(s string) string {
	const longest = 64 // of anything worth a guess
	if len(s) > longest {
		s = s[:longest]
	}
	return strings.ReplaceAll(strings.ToLower(s), "-", "_")
}

// editDistance counts inserted, deleted, replaced and swapped neighbour bytes.
func editDistance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j-1]+1, last[j]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
