package calibrate

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/engine"
)

// Configuration is one server setup and what was measured on it.
type Configuration struct {
	// Name tells it from the others of a file.
	Name string
	// GPU, Model, Software and TP describe it.
	GPU, Model, Software string
	TP                   int
	// Replicas share the users of a load evenly (attention data parallelism).
	Replicas int
	// Active is the share of a model's experts that one token goes through; 0: it
	// has none.
	Active float64
	// Suspect says why its numbers are not to be trusted; empty: they are.
	Suspect string
	Points  []Point
}

// Point is the mean over one closed loop.
type Point struct {
	Users          int
	Prompt, Output int // nominal tokens
	Measured       Figures
}

// Unsaturated gives the points that a step model can be fitted to, in order of
// prompt, output and users. A point is left out when requests waited there for
// others to end (a full cache, a cap) rather than for the engine's steps: its
// TTFT is above 5 s, or has grown faster than the users since the next smaller
// one that was not.
func (c *Configuration) Unsaturated() []Point {
	const most = 5 * time.Second
	all := slices.Clone(c.Points)
	slices.SortStableFunc(all, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Prompt, b.Prompt), cmp.Compare(a.Output, b.Output), cmp.Compare(a.Users, b.Users))
	})
	var points []Point
	for _, p := range all {
		if p.Measured.TTFT > most || len(points) > 0 && p.outgrows(points[len(points)-1]) {
			continue
		}
		points = append(points, p)
	}
	return points
}

// outgrows tells whether TTFT grew faster than the users since q, a point of
// the same lengths.
func (p Point) outgrows(q Point) bool {
	if p.Prompt != q.Prompt || p.Output != q.Output {
		return false
	}
	return float64(p.Measured.TTFT)*float64(q.Users) > float64(q.Measured.TTFT)*float64(p.Users)
}

// Irregular says what no engine does whose speed stays the same, where the
// unsaturated points show it; empty: nothing. Such points were measured on
// different versions or in different ways.
func (c *Configuration) Irregular() string {
	const falls, differs = 0.9, 1.5
	points := c.Unsaturated()
	for i, p := range points {
		for _, q := range points[i+1:] {
			share := float64(q.Measured.TTFT) / float64(p.Measured.TTFT)
			switch {
			case p.Prompt != q.Prompt:
			case p.Output == q.Output && share < falls:
				return fmt.Sprintf("TTFT falls from %.0f to %.0f ms between %d and %d users", milli(p.Measured.TTFT), milli(q.Measured.TTFT), p.Users, q.Users)
			case p.Users == q.Users && (share > differs || share < 1/differs):
				return fmt.Sprintf("TTFT of %d users is %.0f ms with %d output tokens and %.0f with %d", p.Users, milli(p.Measured.TTFT), p.Output, milli(q.Measured.TTFT), q.Output)
			}
		}
	}
	return ""
}

func milli(d time.Duration) float64 { return micro(d) / 1000 }

// Profile describes the configuration as a profile without a step model. What
// the table does not say is what its points need.
func (c *Configuration) Profile() engine.Profile {
	p := engine.Profile{
		Model: strings.ToLower(c.Model), GPU: c.GPU, TP: c.TP, Software: c.Software,
		Params: engine.Params{MaxSeqs: 256, MaxBatchedTokens: tokenBudget, MaxModelLen: 131072},
		Estimated: map[string]string{
			"kv_blocks":              "what the largest point that did not wait needs: the cache may be larger",
			"max_num_seqs":           "assumed",
			"max_num_batched_tokens": "assumed in the fit",
			"price_per_hour":         "not known",
		},
	}
	for _, point := range c.Unsaturated() {
		users := max(1, point.Users/c.Replicas)
		p.Params.KVBlocks = max(p.Params.KVBlocks, users*(point.Prompt+point.Output)/engine.BlockTokens+users)
	}
	p.Measured = fmt.Sprintf("%s on %d × %s: %d points of closed loops.", c.Software, c.TP, c.GPU, len(c.Unsaturated()))
	return p
}

// table reads named columns of a CSV file.
type table struct {
	name string
	csv  *csv.Reader
	head []string
	row  []string
	err  error // the first
}

func newTable(name string, r io.Reader) (*table, error) {
	t := &table{name: name, csv: csv.NewReader(r)}
	t.csv.ReuseRecord = true
	head, err := t.csv.Read()
	if err != nil {
		return nil, fmt.Errorf("%s: read the header line: %w", name, err)
	}
	t.head = slices.Clone(head)
	return t, nil
}

// has tells whether all the columns are there.
func (t *table) has(columns ...string) bool {
	return !slices.ContainsFunc(columns, func(c string) bool { return !slices.Contains(t.head, c) })
}

// next moves to the next row.
func (t *table) next() bool {
	if t.err != nil {
		return false
	}
	row, err := t.csv.Read()
	if err == io.EOF {
		return false
	}
	t.row, t.err = row, err
	if err != nil {
		t.err = fmt.Errorf("%s: %w", t.name, err)
	}
	return t.err == nil
}

// text of a column; empty when there is no such column.
func (t *table) text(column string) string {
	i := slices.Index(t.head, column)
	if i < 0 {
		return ""
	}
	return strings.TrimSpace(t.row[i])
}

// number of a column, at least least; empty is 0.
func (t *table) number(column string, least float64) float64 {
	text := t.text(column)
	if text == "" && least <= 0 {
		return 0
	}
	v, err := strconv.ParseFloat(text, 64)
	if (err != nil || !(v >= least) || v > 1e12) && t.err == nil {
		line, col := t.csv.FieldPos(max(0, slices.Index(t.head, column)))
		t.err = fmt.Errorf("%s:%d:%d: %s is %q, want a number of at least %v", t.name, line, col, column, text, least)
	}
	return v
}

func (t *table) ms(column string, least float64) time.Duration {
	return time.Duration(t.number(column, least) * float64(time.Millisecond))
}

// servingColumns are those that make a table of closed loops.
var servingColumns = []string{"system", "model_path", "backend", "isl", "osl", "concurrency", "tp_size", "silicon_ttft_ms", "silicon_tpot_ms"}

// readServing reads means by concurrency, as aiconfigurator publishes them,
// grouped by configuration in the order of the file.
func readServing(t *table) ([]Configuration, error) {
	var all []Configuration
	index := map[string]int{}
	for t.next() {
		c := servingConfiguration(t)
		i, ok := index[c.Name]
		if !ok {
			i = len(all)
			index[c.Name] = i
			all = append(all, c)
		}
		all[i].Points = append(all[i].Points, Point{
			Users: int(t.number("concurrency", 1)), Prompt: int(t.number("isl", 1)), Output: int(t.number("osl", 1)),
			Measured: Figures{TTFT: t.ms("silicon_ttft_ms", 0.001), TPOT: t.ms("silicon_tpot_ms", 0.001)},
		})
	}
	return all, t.err
}

func servingConfiguration(t *table) Configuration {
	c := Configuration{
		GPU: t.text("system"), Model: path.Base(t.text("model_path")), Software: strings.TrimSpace(t.text("backend") + " " + t.text("backend_version")),
		TP: int(t.number("tp_size", 1)), Replicas: max(1, int(t.number("attention_dp_size", 0))), Suspect: suspect(t), Active: active(t.text("model_path")),
	}
	c.Name = fmt.Sprintf("%s %s %s tp%d", c.GPU, c.Model, c.Software, c.TP)
	for _, more := range []struct{ column, short string }{{"pp_size", "pp"}, {"attention_dp_size", "dp"}, {"moe_ep_size", "ep"}} {
		if n := t.text(more.column); n != "" && n != "1" {
			c.Name += " " + more.short + n
		}
	}
	for _, column := range []string{"precision", "gemm_quant_mode"} {
		if v := t.text(column); v != "" {
			c.Name += " " + v
			break
		}
	}
	if c.Suspect != "" {
		c.Name += " (suspect)"
	}
	return c
}

// active knows the models with experts: 4 of 128 and 8 of 256.
func active(model string) float64 {
	if strings.Contains(model, "gpt-oss-120b") || strings.Contains(model, "DeepSeek-R1") || strings.Contains(model, "DeepSeek-V3") {
		return 1.0 / 32
	}
	return 0
}

// suspect says what the data's own description warns of.
func suspect(t *table) string {
	model, software := t.text("model_path"), t.text("backend")+" "+t.text("backend_version")
	users := t.text("concurrency")
	switch {
	case strings.Contains(model, "DeepSeek"):
		return "the step cost of many experts is not linear in the batch"
	case software == "trtllm 1.0.0rc3" && strings.Contains(model, "Llama-3.1-8B") && (users == "8" || users == "16"):
		return "TTFT falls as load grows: warm-up is in the mean"
	case software == "sglang 0.5.1.post1" && strings.Contains(model, "Qwen3-32B"):
		return "TTFT is 4 to 5 times that of others on the same GPU: another way of measuring"
	}
	return ""
}
