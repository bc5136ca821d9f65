package evaluate

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// measuredRequest is one request of a measured run; times are seconds on the
// engine's clock.
type measuredRequest struct {
	prompt, output       int
	arrival, first, last float64
}

// MeasuredRun is what a real engine did: its requests, and its metrics once a
// second.
type MeasuredRun struct {
	Name     string
	requests []measuredRequest // in order of arrival
	scrapes  []predictor.Scrape
}

// epoch is the zero of a run's clock.
var epoch = time.Unix(1_700_000_000, 0) //nolint:gochecknoglobals // a constant but for the language

func instant(seconds float64) time.Time {
	return epoch.Add(time.Duration(math.Round(seconds * float64(time.Second))))
}

// MeasuredRuns finds the runs in a folder of measurements: for every
// vllm_requests_NAME.csv also vllm_timeseries_NAME.csv and vllm_meta_NAME.json.
func MeasuredRuns(dir string) ([]MeasuredRun, error) {
	const prefix, suffix = "vllm_requests_", ".csv"
	files, err := filepath.Glob(filepath.Join(dir, prefix+"*"+suffix))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s: there is no %s*%s; name the folder of measurements", dir, prefix, suffix)
	}
	var runs []MeasuredRun
	for _, file := range files {
		run, err := readRun(dir, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), prefix), suffix))
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	return runs, nil
}

func readRun(dir, name string) (MeasuredRun, error) {
	run := MeasuredRun{Name: name}
	err := readTable(filepath.Join(dir, "vllm_requests_"+name+".csv"), []string{"input_toks", "output_toks", "arrival_s", "first_token_s", "last_token_s"},
		func(v []float64) {
			run.requests = append(run.requests, measuredRequest{prompt: int(v[0]), output: int(v[1]), arrival: v[2], first: v[3], last: v[4]})
		})
	if err != nil {
		return run, err
	}
	for i, r := range run.requests {
		if !(r.first > r.arrival && r.last >= r.first && r.prompt > 0 && r.output > 0) {
			return run, fmt.Errorf("vllm_requests_%s.csv: request %d has no prompt, no output, or times out of order", name, i+1)
		}
	}
	slices.SortStableFunc(run.requests, func(a, b measuredRequest) int { return cmp.Compare(a.arrival, b.arrival) })
	room, err := cacheTokens(filepath.Join(dir, "vllm_meta_"+name+".json"))
	if err != nil {
		return run, err
	}
	recorded := false // some versions print a KV use of 0 throughout
	err = readTable(filepath.Join(dir, "vllm_timeseries_"+name+".csv"), []string{"t", "running", "waiting", "kv_cache_pct"}, func(v []float64) {
		recorded = recorded || v[3] > 0
		at := instant(v[0])
		run.scrapes = append(run.scrapes, predictor.Scrape{
			Began: at, At: at, Running: v[1], Waiting: v[2], KVUse: v[3] / 100, Hit: math.NaN(), CPU: math.NaN(), CacheTokens: room,
		})
	})
	for i := range run.scrapes {
		if !recorded {
			run.scrapes[i].KVUse = math.NaN()
		}
	}
	return run, err
}

// readTable gives each row's numbers of some columns.
func readTable(name string, columns []string, row func(values []float64)) error {
	in, err := os.Open(name) //nolint:gosec // the file the user names
	if err != nil {
		return err
	}
	defer in.Close()
	table := csv.NewReader(in)
	head, err := table.Read()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	places := make([]int, len(columns))
	for i, c := range columns {
		if places[i] = slices.Index(head, c); places[i] < 0 {
			return fmt.Errorf("%s: column %s is missing", name, c)
		}
	}
	rest, err := table.ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	values := make([]float64, len(columns))
	for n, fields := range rest {
		for i, p := range places {
			v, err := strconv.ParseFloat(fields[p], 64)
			if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("%s: line %d, column %s: %q is no number", name, n+2, columns[i], fields[p])
			}
			values[i] = v
		}
		row(values)
	}
	return nil
}

// cacheTokens is the size of the engine's KV cache; NaN if the file does not say.
func cacheTokens(name string) (float64, error) {
	text, err := os.ReadFile(name) //nolint:gosec // as above
	if err != nil {
		return 0, err
	}
	var meta struct {
		KV *struct {
			Tokens float64 `json:"num_kv_tokens"`
		} `json:"kv_cache"`
	}
	if err := json.Unmarshal(text, &meta); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if meta.KV == nil || meta.KV.Tokens <= 0 {
		return math.NaN(), nil
	}
	return meta.KV.Tokens, nil
}

// Measured is what came of predicting a measured run.
type Measured struct {
	Run
	Simple     string       `json:"best_baseline"` // by mean error
	Share      trees.Number `json:"mae_share"`     // mean error of what served / that of the best baseline
	GridError  trees.Number `json:"grid_error"`    // by how many steps the rebuilt grid is wrong for a request, mean share
	FirstThird int          `json:"not_judged"`
}

// Predict lets a predictor that knows nothing follow the run as a gateway
// would that alone sends to the engine: arrivals, tokens, scrapes and ends in
// their order. The last two thirds are judged.
func (m *MeasuredRun) Predict(model predictor.Model, rules predictor.Rules) Measured {
	watch := &switches{}
	p := follower{pool: predictor.NewPool(m.Name, rules, watch), on: predictor.NewFleet(nil).Instance(m.Name, nil)}
	if model != nil {
		p.pool.SetModel(model)
	}
	p.attempts = make([]*predictor.Attempt, len(m.requests))
	off := p.follow(m)
	out := Measured{Run: Run{Trace: m.Name, Requests: len(m.requests), Seconds: p.now, Switches: watch.list}, GridError: trees.Number(off), FirstThird: len(m.requests) / 3}
	for _, a := range p.attempts {
		row := Row{Sample: *a.Sample()}
		row.Backend = m.Name
		out.Rows = append(out.Rows, row)
	}
	out.Scores = Judge(out.Rows, out.FirstThird)
	best := Best(out.Scores, All, func(s *Score) trees.Number { return s.MAE })
	out.Simple, out.Share = best.Estimator, Find(out.Scores, Served, All).MAE/best.MAE
	return out
}

// follower hands a run's events to a predictor.
type follower struct {
	pool     *predictor.Pool
	on       *predictor.Instance
	attempts []*predictor.Attempt
	inFlight int
	now      float64
}

// The kinds of a run's events, in the order in which those of one instant happen.
const (
	tokenCame = iota
	answerEnded
	scraped
	requestCame
)

type measuredEvent struct {
	at      float64
	kind    int
	request int // or scrape
}

// follow returns the mean error of the grid.
func (f *follower) follow(m *MeasuredRun) (off float64) {
	events, off := m.events()
	for _, e := range events {
		f.now = e.at
		now := instant(e.at)
		switch e.kind {
		case requestCame:
			f.attempts[e.request] = f.pool.Begin(now, f.on, m.requests[e.request].work())
			f.inFlight++
		case tokenCame:
			f.attempts[e.request].Token(now)
		case answerEnded:
			f.attempts[e.request].Done(now, predictor.Completed)
			f.inFlight--
		case scraped:
			s := m.scrapes[e.request]
			s.OwnInFlight = f.inFlight
			f.on.Scraped(&s)
		}
	}
	return off
}

// work is the request as a gateway would see it. Lengths were forced by
// max_tokens; the prompts share no prefixes worth speaking of.
func (r *measuredRequest) work() predictor.Work {
	return predictor.Work{Prompt: r.prompt, Uncached: r.prompt, Max: r.output, Stream: true}
}

func (m *MeasuredRun) events() (all []measuredEvent, off float64) {
	grid := stepGrid(m.requests)
	for i := range m.requests {
		r := &m.requests[i]
		all = append(all, measuredEvent{r.arrival, requestCame, i}, measuredEvent{r.first, tokenCame, i}, measuredEvent{r.last, answerEnded, i})
		tokens, wrong := r.tokensOn(grid)
		off += wrong / float64(len(m.requests))
		for _, at := range tokens {
			all = append(all, measuredEvent{at, tokenCame, i})
		}
	}
	for i := range m.scrapes {
		all = append(all, measuredEvent{m.scrapes[i].At.Sub(epoch).Seconds(), scraped, i})
	}
	slices.SortStableFunc(all, func(a, b measuredEvent) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind)) })
	return all, off
}
