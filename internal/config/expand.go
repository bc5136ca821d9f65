package config

import (
	"fmt"
	"regexp"
	"strings"
)

var variable = regexp.MustCompile(`^\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}`)

// expand replaces ${NAME}, ${NAME:-default} (used when NAME is unset or
// empty) and $$ in text. Each fault stands on its own, without the value.
func expand(text string, getenv func(string) (string, bool)) (string, []fault) {
	var b strings.Builder
	var faults []fault
	for {
		head, tail, found := strings.Cut(text, "$")
		b.WriteString(head)
		if !found {
			return b.String(), faults
		}
		if rest, ok := strings.CutPrefix(tail, "$"); ok {
			b.WriteByte('$')
			text = rest
			continue
		}
		m := variable.FindStringSubmatch(tail)
		if m == nil {
			return "", append(faults, fault{is: "a $ begins no variable", fix: "write ${NAME}, ${NAME:-default}, or $$ for a dollar sign"})
		}
		value, set := getenv(m[1])
		switch hasDefault := m[2] != ""; {
		case hasDefault && value == "":
			value = m[3]
		case !hasDefault && !set:
			faults = append(faults, fault{
				is:  fmt.Sprintf("environment variable %s is not set", clip(m[1])),
				fix: fmt.Sprintf("set it or write ${%s:-default}", clip(m[1])),
			})
		}
		b.WriteString(value)
		text = tail[len(m[0]):]
	}
}
