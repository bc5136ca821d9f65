package conformance

import "strings"

// event is one event of a stream: its name, empty for none, and its data.
type event struct{ name, text string }

// events reads a whole stream of one-line data fields, without comments and
// empty events.
func events(body string) []event {
	var list []event
	for block := range strings.SplitSeq(strings.ReplaceAll(body, "\r\n", "\n"), "\n\n") {
		var e event
		for line := range strings.SplitSeq(block, "\n") {
			if v, ok := strings.CutPrefix(line, "data:"); ok {
				e.text = strings.TrimSpace(v)
			}
			if v, ok := strings.CutPrefix(line, "event:"); ok {
				e.name = strings.TrimSpace(v)
			}
		}
		if e.text != "" {
			list = append(list, e)
		}
	}
	return list
}
