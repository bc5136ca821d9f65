package calibrate

import (
	"fmt"
	"os"
	"strings"
)

// Measured is what one file holds; exactly one of the lists is not empty.
type Measured struct {
	Configurations []Configuration // means by users
	Requests       []Request       // one line a request
	Variants       []Variant       // stages of rising rates
}

// Read reads a file of measurements (CSV). Its columns tell which kind it is;
// see docs/simulate.md.
func Read(path string) (m Measured, err error) {
	f, err := os.Open(path) //nolint:gosec // the file the user names
	if err != nil {
		return m, err
	}
	defer f.Close()
	t, err := newTable(path, f)
	if err != nil {
		return m, err
	}
	switch {
	case t.has(servingColumns...):
		m.Configurations, err = readServing(t)
	case t.has(stageColumns...):
		m.Variants, err = readStages(t)
	case t.has(benchColumns...):
		m.Requests, err = readRequests(t, "prompt_tokens", "output_tokens")
	case t.has(vllmColumns...):
		m.Requests, err = readRequests(t, "input_toks", "output_toks")
	default:
		return m, fmt.Errorf("%s:1: the columns fit no kind of measurement; want a file of firsttoken bench --csv, or the columns %s", path, strings.Join(servingColumns, ", "))
	}
	if err == nil && len(m.Configurations)+len(m.Requests)+len(m.Variants) == 0 {
		err = fmt.Errorf("%s: holds no measurement", path)
	}
	return m, err
}
