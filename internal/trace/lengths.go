package trace

// readLengths reads pairs of lengths. They have no arrivals: a law must give
// them.
func readLengths(f file, _ Options) Source {
	return func(yield func(Request, error) bool) {
		err := f.rows([]string{"num_prefill_tokens", "num_decode_tokens"}, func(t *table) bool {
			r := Request{PromptTokens: t.tokens(0, 1), OutputTokens: t.tokens(1, 0), Stream: true}
			return t.err == nil && yield(r, nil)
		})
		if err != nil {
			yield(Request{}, err)
		}
	}
}
