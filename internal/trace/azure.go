package trace

import "time"

// readAzure reads a trace of Azure's LLM inference services, 2023 or 2024. It
// starts with its first request.
func readAzure(f file, _ Options) Source {
	return func(yield func(Request, error) bool) {
		var first time.Time
		last := time.Duration(0)
		err := f.rows([]string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, func(t *table) bool {
			at := azureTime(t)
			r := Request{PromptTokens: t.tokens(1, 1), OutputTokens: t.tokens(2, 0), Stream: true}
			if first.IsZero() {
				first = at
			}
			if r.At = at.Sub(first); r.At < last {
				t.fault(0, "is before the row above", "sort the file by TIMESTAMP")
			}
			if t.err != nil {
				return false
			}
			last = r.At
			return yield(r, nil)
		})
		if err != nil {
			yield(Request{}, err)
		}
	}
}

func azureTime(t *table) time.Time {
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00"} {
		if at, err := time.Parse(layout, t.text(0)); err == nil {
			return at
		}
	}
	t.fault(0, "is not a time", "write it as 2023-11-16 18:17:03.9799600")
	return time.Time{}
}
