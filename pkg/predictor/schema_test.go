package predictor_test

import (
	"math"
	"regexp"
	"testing"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// TestSchema: models and samples are refused by this hash, so it changes on
// purpose only, together with SchemaVersion.
func TestSchema(t *testing.T) {
	const golden = "792556cb0417c77b"
	if got := predictor.SchemaHash(); got != golden {
		t.Errorf("hash %s, want %s: every model and sample there is becomes void", got, golden)
	}
	valid := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	seen := map[string]bool{}
	for i, f := range predictor.Schema() {
		if !valid.MatchString(f.Name) || seen[f.Name] {
			t.Errorf("feature %d: name %q is taken or not a name", i, f.Name)
		}
		if f.Unit == "" || f.Meaning == "" {
			t.Errorf("%s has no unit or meaning", f.Name)
		}
		if predictor.Names()[i] != f.Name {
			t.Errorf("name %d is %s, want %s", i, predictor.Names()[i], f.Name)
		}
		seen[f.Name] = true
	}
	if len(seen) != len(predictor.Features{}) {
		t.Errorf("%d names for %d features", len(seen), len(predictor.Features{}))
	}
}

// meaning is one row: a history, a request after it, and what a feature must be then.
type meaning struct {
	name   string
	events []event
	at     float64
	ask    predictor.Work
	want   float64
}

func history(events ...event) []event { return events }

// decoding is an answer under way since the given time: a prompt of 100
// tokens, then a token each 100 ms, n of them.
func decoding(at float64, n int) event {
	return func(s *script) {
		send(at, "decoding", prompt(100))(s)
		for k := range n {
			token(at+0.21+0.1*float64(k), "decoding")(s)
		}
	}
}

func saying(f func(*predictor.Scrape)) []event { return history(scrape(0, f)) }

// steadily pairs a CPU use with a response time in every second.
func steadily(n int, pair func(k int) (cores, seconds float64)) event {
	return times(n, func(k int) event {
		cores, seconds := pair(k)
		return func(s *script) {
			whole(float64(10*k), seconds)(s)
			scrape(float64(10*k)+5, func(m *predictor.Scrape) { m.CPU = cores })(s)
		}
	})
}

func alternating(k int) (cores, seconds float64) { return 1 + 2*float64(k%2), 1 + float64(k%2) }

func seconds(n int, count func(k int) int) (out []int) {
	for k := range n {
		out = append(out, count(k))
	}
	return out
}

func full(at float64) event {
	return scrape(at, func(s *predictor.Scrape) { s.Running, s.Waiting, s.KVUse = 4, 1, 0.5 })
}

var meanings = map[int][]meaning{
	predictor.PromptTokens: {
		{name: "as estimated", ask: predictor.Work{Prompt: 700, Uncached: 300}, want: 700},
	},
	predictor.UncachedTokens: {
		{name: "what the cache lacks", ask: predictor.Work{Prompt: 700, Uncached: 300}, want: 300},
		{name: "all cached", ask: predictor.Work{Prompt: 700}, want: 0},
	},
	predictor.MaxTokens: {
		{name: "stated", ask: predictor.Work{Prompt: 1, Max: 64}, want: 64},
		{name: "not stated", ask: predictor.Work{Prompt: 1}, want: nan},
	},
	predictor.Turn: {
		{name: "third", ask: predictor.Work{Prompt: 1, Turn: 3}, want: 3},
		{name: "no conversation", ask: predictor.Work{Prompt: 1}, want: nan},
	},
	predictor.Streaming: {
		{name: "streamed", ask: predictor.Work{Stream: true}, want: 1},
		{name: "in one piece", want: 0},
	},
	predictor.Running: {
		{name: "never scraped", want: nan},
		{name: "scraped", events: saying(load(7, 2)), at: 1, want: 7},
		{name: "the latest scrape counts, in whatever order they come", events: history(scrape(2, load(7, 0)), scrape(1, load(5, 0))), at: 3, want: 7},
		{name: "not told", events: saying(func(s *predictor.Scrape) { s.Waiting = 1 }), at: 1, want: nan},
		{name: "a restart is told by the same scrape", at: 3, want: 1, events: history(
			scrape(1, func(s *predictor.Scrape) { s.Started, s.Running = 1, 9 }),
			scrape(2, func(s *predictor.Scrape) { s.Started, s.Running = 2, 1 }))},
	},
	predictor.Waiting: {
		{name: "never scraped", want: nan},
		{name: "scraped", events: saying(load(7, 2)), at: 1, want: 2},
	},
	predictor.PendingTokens: {
		{name: "idle", want: 0},
		{name: "own without a first token", events: history(send(0, "a", prompt(300)), send(0, "b", prompt(50))), want: 350},
		{name: "of these what is not cached", events: history(send(0, "a", predictor.Work{Prompt: 900, Uncached: 40, Stream: true})), want: 40},
		{name: "a first token takes its prompt away", events: history(send(0, "a", prompt(300)), send(0.2, "b", prompt(50)), token(0.41, "a")), at: 0.5, want: 50},
		{name: "a client that left takes its prompt away", events: history(send(0, "a", prompt(300)), done(0.1, "a", predictor.Left)), at: 0.2, want: 0},
		{name: "a step takes its budget off a long prompt", at: 3, want: 20_000 - (8192 - 1),
			events: history(decoding(0, 1), send(0.22, "long", prompt(20_000)), token(0.31, "decoding"), token(0.31+8.3, "decoding"))},
		{name: "others' by the scrape, each like the first guess", events: saying(load(0, 2)), at: 1, want: 2 * 500},
		{name: "own requests that the scrape saw are no others", events: saying(func(s *predictor.Scrape) { s.Running, s.Waiting, s.OwnInFlight = 0, 2, 2 }), at: 1, want: 0},
	},
	predictor.PendingRequests: {
		{name: "idle", want: 0},
		{name: "own only", events: history(scrape(0, load(3, 3)), send(0, "a", prompt(1)), send(0, "b", prompt(1))), want: 2},
		{name: "not past the first token", events: history(send(0, "a", prompt(100)), token(0.2, "a")), at: 0.3, want: 0},
		{name: "an answer in one piece, until its first token is due", events: history(send(0, "a", predictor.Work{Prompt: 100, Uncached: 100})), at: 0.2, want: 1},
		{name: "and then not", events: history(send(0, "a", predictor.Work{Prompt: 100, Uncached: 100})), at: 0.22, want: 0},
	},
	predictor.DecodeRequests: {
		{name: "idle", want: 0},
		{name: "pending are not decoding", events: history(send(0, "a", prompt(100))), at: 0.1, want: 0},
		{name: "own", events: history(decoding(0, 1)), at: 0.3, want: 1},
		{name: "ended", events: history(decoding(0, 1), done(0.3, "decoding", predictor.Completed)), at: 0.4, want: 0},
		{name: "own and others", events: history(decoding(0, 1), scrape(0.3, func(s *predictor.Scrape) { s.Running, s.Waiting, s.OwnInFlight = 3, 0, 1 })), at: 0.4, want: 3},
		{name: "not after a restart", at: 0.5, want: 0, events: history(
			scrape(0, func(s *predictor.Scrape) { s.Started = 1 }), decoding(0, 1), scrape(0.3, func(s *predictor.Scrape) { s.Started = 2 }),
			done(0.4, "decoding", predictor.Failed))},
	},
	predictor.DecodeContext: {
		{name: "idle", want: 0},
		{name: "prompt and answer so far", events: history(decoding(0, 3)), at: 0.45, want: 103},
		{name: "others hold as much each as own do", events: history(decoding(0, 3), scrape(0.42, func(s *predictor.Scrape) { s.Running, s.Waiting, s.OwnInFlight = 3, 0, 1 })), at: 0.45, want: 3 * 103},
		{name: "ended", events: history(decoding(0, 3), done(0.45, "decoding", predictor.Left)), at: 0.5, want: 0},
	},
	predictor.KVUse: {
		{name: "never scraped", want: nan},
		{name: "scraped", events: saying(func(s *predictor.Scrape) { s.KVUse = 0.4 }), at: 1, want: 0.4},
	},
	predictor.HitShare: {
		{name: "never scraped", want: nan},
		{name: "scraped", events: saying(func(s *predictor.Scrape) { s.Hit = 0.6 }), at: 1, want: 0.6},
	},
	predictor.ScrapeAge: {
		{name: "never scraped", want: nan},
		{name: "scraped", events: history(scrape(1, load(1, 1))), at: 3.5, want: 2.5},
	},
	predictor.SinceFirstToken: {
		{name: "none yet", events: history(send(0, "a", prompt(100))), at: 1, want: nan},
		{name: "the last first token, not the last token", events: history(decoding(0, 5)), at: 1.21, want: 1},
	},
	predictor.TokenGap: {
		{name: "nothing decodes", want: nan},
		{name: "one token makes no gap", events: history(decoding(0, 1)), at: 0.3, want: nan},
		{name: "steps of 100 ms", events: history(decoding(0, 20)), at: 2.2, want: 0.1},
		{name: "unknown once the streams have ended", events: history(decoding(0, 20), done(2.15, "decoding", predictor.Completed)), at: 2.2, want: nan},
	},
	predictor.SinceToken: {
		{name: "nothing decodes", want: nan},
		{name: "since the last token", events: history(decoding(0, 3)), at: 0.45, want: 0.04},
	},
	predictor.Phase: {
		{name: "idle", want: nan},
		{name: "others' steps are not seen", events: saying(load(3, 0)), at: 1, want: nan},
		{name: "0.04 s into a step of 0.1 s", events: history(decoding(0, 3)), at: 0.45, want: 0.4},
		{name: "a prompt makes the present step longer", events: history(decoding(0, 2), send(0.29, "b", prompt(300))), at: 0.41, want: 0.25},
	},
	predictor.BatchContext: {
		{name: "idle", want: 0},
		{name: "requests × tokens", events: history(decoding(0, 3), scrape(0.42, func(s *predictor.Scrape) { s.Running, s.Waiting, s.OwnInFlight = 3, 0, 1 })), at: 0.45, want: 3 * 309},
	},
	predictor.ArrivalRate: {
		{name: "too early to tell", events: history(arrivals(seconds(9, func(int) int { return 2 })...)), at: 9, want: nan},
		{name: "since the first", events: history(arrivals(seconds(20, func(int) int { return 3 })...)), at: 20, want: 3},
		{name: "over the last minute", events: history(arrivals(seconds(120, func(k int) int { return 1 + k/60*4 })...)), at: 120, want: 5},
		{name: "with the quiet seconds", events: history(arrivals(seconds(30, func(int) int { return 2 })...)), at: 60, want: 1},
		{name: "all quiet", events: history(arrivals(1)), at: 1000, want: 0},
	},
	predictor.ArrivalCV: {
		{name: "too early to tell", events: history(arrivals(seconds(9, func(int) int { return 2 })...)), at: 9, want: nan},
		{name: "steady", events: history(arrivals(seconds(100, func(int) int { return 3 })...)), at: 100, want: 0},
		{name: "steady for longer than it looks back", events: history(arrivals(seconds(700, func(int) int { return 3 })...)), at: 700, want: 0},
		{name: "now two, now none", events: history(arrivals(seconds(100, func(k int) int { return k % 2 * 2 })...)), at: 101, want: 1},
		{name: "unsteady more than five minutes ago", events: history(arrivals(seconds(700, func(k int) int { return 1 + max(0, 350-k)%7 })...)), at: 700, want: 0},
		{name: "all quiet", events: history(arrivals(1)), at: 1000, want: nan},
		{name: "quiet for as long as it looks back", events: history(arrivals(seconds(100, func(int) int { return 5 })...)), at: 700, want: nan},
	},
	predictor.ResponseEntropy: {
		{name: "too few", events: history(times(19, func(k int) event { return whole(float64(k), 1) })), at: 20, want: nan},
		{name: "all alike", events: history(times(20, func(k int) event { return whole(float64(k), 1) })), at: 21, want: 0},
		{name: "now 1 s, now 4 s", events: history(times(20, func(k int) event { return whole(float64(5*k), 1+3*float64(k%2)) })), at: 101, want: math.Ln2},
		{name: "four kinds", events: history(times(40, func(k int) event { return whole(float64(5*k), math.Pow(2, float64(k%4)-1)) })), at: 201, want: 2 * math.Ln2},
		{name: "forgotten after five minutes", events: history(times(20, func(k int) event { return whole(float64(k), 1) })), at: 400, want: nan},
		{name: "what did not end well tells nothing", events: history(times(40, func(k int) event { return arrivals(1) })), at: 40, want: nan},
	},
	predictor.CPUCovariance: {
		{name: "too few", events: history(steadily(19, alternating)), at: 190, want: nan},
		{name: "1 core and 1 s, 3 cores and 2 s", events: history(steadily(40, alternating)), at: 400, want: 0.5},
		{name: "the other way round", at: 400, want: -0.5,
			events: history(steadily(40, func(k int) (float64, float64) { c, s := alternating(k); return c, 3 - s }))},
		{name: "no CPU use known", events: history(steadily(40, func(int) (float64, float64) { return nan, 1 })), at: 400, want: nan},
	},
	predictor.Base: {
		{name: "idle: the way, a step, the prompt", ask: prompt(100), want: 0.01 + 0.1 + 0.1},
		{name: "cached tokens cost nothing", ask: predictor.Work{Prompt: 500, Uncached: 100, Stream: true}, want: 0.21},
		{name: "in one step with the prompt ahead", events: history(send(0, "a", prompt(200))), ask: prompt(100), want: 0.01 + 0.1 + 0.3},
		{name: "after the present step", events: history(decoding(0, 3)), at: 0.45, ask: prompt(100), want: 0.06 + 0.2},
		{name: "a long prompt takes several steps", ask: prompt(20_000), want: 0.01 + 3*0.1 + 20 + 1e-12*(4e8-4096*4096)},
	},
	predictor.OwnShare: {
		{name: "idle", ask: prompt(100), want: 0.1 / 0.21},
		{name: "behind another", events: history(send(0, "a", prompt(200))), ask: prompt(100), want: 0.1 / 0.41},
	},
	predictor.QueueShare: {
		{name: "idle", ask: prompt(100), want: 0},
		{name: "behind another", events: history(send(0, "a", prompt(200))), ask: prompt(100), want: 0.2 / 0.41},
	},
	predictor.Steps: {
		{name: "idle", ask: prompt(100), want: 1},
		{name: "the present one and its own", events: history(decoding(0, 3)), at: 0.45, ask: prompt(100), want: 2},
		{name: "a long prompt", ask: prompt(20_000), want: 3},
		{name: "prompts share what a step takes", events: history(send(0, "a", prompt(6000)), send(0, "b", prompt(6000))), ask: prompt(6000), want: 3},
	},
	predictor.RecentError: {
		{name: "too few", events: history(answer(0, 2), answer(10, 2)), at: 20, want: nan},
		{name: "twice the base", events: history(answer(0, 2), answer(10, 2), answer(20, 2)), at: 30, want: math.Ln2},
		{name: "now twice, now right", events: history(answer(0, 2), answer(10, 1), answer(20, 2)), at: 30, want: math.Ln2 * 2 / 3},
	},
	predictor.RecentSpread: {
		{name: "too few", events: history(answer(0, 2), answer(10, 2)), at: 20, want: nan},
		{name: "always twice the base", events: history(answer(0, 2), answer(10, 2), answer(20, 2)), at: 30, want: 0},
		{name: "now twice, now right", events: history(answer(0, 2), answer(10, 1), answer(20, 2)), at: 30, want: math.Ln2 * 5 / 18},
	},
	predictor.CacheTrust: {
		{name: "nothing said yet", want: 1},
		{name: "half of 1000 expected", at: 1, want: 1 - 0.5*1000/(2000*math.Exp(-0.02)+1000),
			events: history(send(0, "a", predictor.Work{Prompt: 1100, Uncached: 100, Stream: true}), cached("a", 500))},
		{name: "as expected", at: 1, want: 1,
			events: history(send(0, "a", predictor.Work{Prompt: 1100, Uncached: 100, Stream: true}), cached("a", 1000))},
		{name: "nothing expected, nothing found", events: history(send(0, "a", prompt(100)), cached("a", 0)), at: 1, want: 1},
	},
	predictor.Blocked: {
		{name: "idle", ask: prompt(100), want: 0},
		{name: "two scrapes do not show a limit", events: history(full(0), full(1)), at: 1, ask: prompt(100), want: 0},
		{name: "three do: one must end", events: history(full(0), full(1), full(2)), at: 2, ask: prompt(100), want: 1},
		{name: "one behind another: two must end", events: history(full(0), full(1), full(2), send(2, "a", prompt(100))), at: 2, ask: prompt(100), want: 2},
		{name: "no room in the cache", at: 0.3, ask: prompt(950), want: 1,
			events: history(decoding(0, 1), scrape(0.25, func(s *predictor.Scrape) { s.Running, s.Waiting, s.OwnInFlight, s.CacheTokens = 1, 0, 1, 1000 }))},
	},
}

// TestFeatures: each feature means what the schema says, on scripted histories.
func TestFeatures(t *testing.T) {
	for i, name := range predictor.Names() {
		if len(meanings[i]) == 0 {
			t.Errorf("%s: no history says what it means", name)
		}
		for _, m := range meanings[i] {
			t.Run(name+"/"+m.name, func(t *testing.T) {
				got := play(plain, m.events...).ask(m.at, m.ask)[i]
				if !near(got, m.want, 0.01) {
					t.Errorf("%v, want %v", got, m.want)
				}
			})
		}
	}
}

func TestRegimes(t *testing.T) {
	crowded := func(s *predictor.Scrape) { s.Running, s.Waiting, s.KVUse = 1, 0, 0.97 }
	tests := map[string]struct {
		events []event
		want   predictor.Regime
	}{
		"nothing known":         {nil, predictor.Idle},
		"own decoding":          {history(decoding(0, 1)), predictor.Busy},
		"others decoding":       {saying(load(3, 0)), predictor.Busy},
		"own pending":           {history(decoding(0, 1), send(0.3, "b", prompt(9))), predictor.Queued},
		"others waiting":        {saying(load(3, 1)), predictor.Queued},
		"cache full":            {saying(crowded), predictor.KVFull},
		"no slot free":          {history(full(0), full(0.1), full(0.2)), predictor.KVFull},
		"all ended":             {history(decoding(0, 1), done(0.3, "decoding", predictor.Completed)), predictor.Idle},
		"others gone since":     {history(scrape(0, load(3, 1)), scrape(0.1, load(0, 0))), predictor.Idle},
		"a client left a queue": {history(send(0, "a", prompt(9)), done(0.1, "a", predictor.Left)), predictor.Idle},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(plain, test.events...)
			if got := s.pool.Predict(after(0.4), s.on, prompt(100)).Regime; got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}
