package trace

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Workload is a synthetic load of sessions of several turns. The prompt of each
// turn holds the turns and answers before it, all after a system prompt that
// its tenant's sessions share.
type Workload struct {
	Name  string
	Short string // another name for it

	// Rate is the requests a second, all tenants together; a little less when
	// MaxContext ends many sessions.
	Rate float64
	// CV of the gaps between requests, at exactly Rate: the requests keep their
	// order but not their think times. 0 leaves the arrivals as the sessions
	// make them, which is near Poisson.
	CV float64
	// Burst swings the rate; nil is level.
	Burst Shape

	Tenants, Models []Weighted // drawn for each session; none means ""

	System Size    // tokens, drawn once a tenant
	First  Size    // tokens a user's first turn adds
	Next   Size    // tokens a further turn adds
	Output Size    // tokens of an answer
	Turns  float64 // mean of a session, at least 1

	// Think is the time from an answer's end to the next turn, in seconds.
	// The answer is taken to last PerToken for each of its tokens.
	Think    Size
	PerToken time.Duration

	// MaxContext ends a session before a prompt and answer larger than that,
	// and cuts a first turn to it. It is above the Max of System and Output
	// together, which must be given.
	MaxContext int

	// Streamed is the share of sessions whose answers are streamed, 0 to 1.
	Streamed float64
	// Objectives. TTFT and TPOT are those of streamed answers: nobody sees the
	// first token of another.
	TTFT, TPOT, E2E time.Duration
}

// Size is a log-normal magnitude kept within bounds.
type Size struct {
	Median   float64
	Spread   float64 // standard deviation of the logarithm
	Min, Max float64 // Max 0 is no bound
}

func (s Size) draw(rng *rand.Rand) float64 {
	x := s.Median * math.Exp(s.Spread*rng.NormFloat64())
	if s.Max > 0 {
		x = min(x, s.Max)
	}
	return max(x, s.Min)
}

func (s Size) tokens(rng *rand.Rand) int {
	return int(min(max(math.Round(s.draw(rng)), 1), maxTokens))
}

// mean is that of the law without its bounds.
func (s Size) mean() float64 { return s.Median * math.Exp(s.Spread*s.Spread/2) }

// Source gives the workload's requests without end. It starts in the midst of
// it: sessions that began before the start are under way.
func (w Workload) Source(seed uint64) Source {
	c, err := w.crowd(seed)
	if err != nil {
		return fail(fmt.Errorf("workload %s: %w", w.Name, err))
	}
	s := Source(c.requests).Window(w.warmUp(), 0)
	if w.CV > 0 {
		s = s.Retimed(Gamma(w.Rate, w.CV), seed)
	}
	if w.Burst != nil {
		s = s.Shaped(w.Burst)
	}
	return s
}

// maxPause is the longest time between two turns, and of warming up.
const maxPause = 24 * time.Hour

// warmUp is long enough for as many sessions to end as begin.
func (w *Workload) warmUp() time.Duration {
	turn := w.Think.mean() + w.Output.mean()*w.PerToken.Seconds()
	return min(seconds(3*w.Turns*turn), maxPause)
}

// crowd is a workload's users under one seed.
type crowd struct {
	Workload
	seed            uint64
	tenants, models *lottery
}

func (w Workload) crowd(seed uint64) (c *crowd, err error) {
	c = &crowd{Workload: w, seed: seed}
	if !(w.Rate > 0 && w.Turns >= 1) {
		return nil, fmt.Errorf("rate %v and %v turns a session: give a rate above 0 and at least 1 turn", w.Rate, w.Turns)
	}
	if room := float64(w.MaxContext) - w.System.Max - w.Output.Max; !(w.System.Max > 0 && w.Output.Max > 0 && room >= 1) {
		return nil, fmt.Errorf("context of %d tokens: give System and Output a Max, and MaxContext more than both", w.MaxContext)
	}
	if !(w.Streamed >= 0 && w.Streamed <= 1) {
		return nil, fmt.Errorf("%v of the sessions streamed: give a share from 0 to 1", w.Streamed)
	}
	if c.tenants, err = newLottery(w.Tenants); err != nil {
		return nil, fmt.Errorf("tenants: %w", err)
	}
	if c.models, err = newLottery(w.Models); err != nil {
		return nil, fmt.Errorf("models: %w", err)
	}
	return c, nil
}

// requests lets sessions begin by Poisson's law and go on each by itself.
func (c *crowd) requests(yield func(Request, error) bool) {
	law, rng := Poisson(c.Rate/c.Turns), newRand(c.seed, c.Name)
	var open queue[*session]
	begin, begun := law.Gap(0, rng), 0
	for {
		for begin < Never && (len(open) == 0 || begin <= open[0].next.At) {
			open.push(c.begin(begun, begin))
			begin += min(law.Gap(begin, rng), Never-begin)
			begun++
		}
		if len(open) == 0 || !yield(open[0].next, nil) {
			return
		}
		if open[0].goesOn() {
			open.fix()
		} else {
			open.pop()
		}
	}
}

// session is one conversation, with its next request ready.
type session struct {
	crowd *crowd
	n     int
	id    uint64
	rng   *rand.Rand
	said  []Segment // the next prompt and its answer
	next  Request
}

func (s *session) due() (time.Duration, int) { return s.next.At, s.n }

// begin opens session n. All it draws is its own.
func (c *crowd) begin(n int, at time.Duration) *session {
	id := mix(mix(c.seed^digest(c.Name)) + uint64(n))
	s := &session{crowd: c, n: n, id: id, rng: rand.New(rand.NewPCG(id, c.seed))}
	s.next = Request{
		At: at, Session: fmt.Sprintf("%s-%d-%d", c.Name, c.seed, n),
		Tenant: c.tenants.pick(mix(id + 1)), Model: c.models.pick(mix(id + 2)), Workload: c.Name,
		Stream: share(mix(id+3)) < c.Streamed, E2E: c.E2E,
	}
	if s.next.Stream {
		s.next.TTFT, s.next.TPOT = c.TTFT, c.TPOT
	}
	system := c.system(s.next.Tenant)
	user, output := c.First.tokens(s.rng), c.Output.tokens(s.rng)
	s.say(system, min(user, c.MaxContext-system.Tokens-output), output)
	return s
}

// system is the tenant's system prompt.
func (c *crowd) system(tenant string) Segment {
	use := c.Name + "/system/" + tenant
	return Segment{ID: mix(c.seed ^ digest(use)), Tokens: c.System.tokens(newRand(c.seed, use))}
}

// goesOn makes the next turn ready, unless the session is over.
func (s *session) goesOn() bool {
	c := s.crowd
	pause := c.Think.draw(s.rng) + float64(s.next.OutputTokens)*c.PerToken.Seconds()
	user, output := c.Next.tokens(s.rng), c.Output.tokens(s.rng)
	before := Segment{Tokens: s.next.PromptTokens + s.next.OutputTokens}
	if s.rng.Float64()*c.Turns < 1 || before.Tokens+user+output > c.MaxContext {
		return false
	}
	s.next.At += min(seconds(pause), maxPause)
	s.say(before, user, output)
	return true
}

// say adds a user's tokens and the answer's to what came before them.
func (s *session) say(before Segment, user, output int) {
	if s.next.Turn == 0 {
		s.said = append(s.said, before)
	}
	s.next.Turn++
	turn := mix(s.id ^ uint64(s.next.Turn))
	s.said = append(s.said, Segment{turn, user}, Segment{mix(turn), output})
	s.next.PromptTokens, s.next.OutputTokens = before.Tokens+user, output
	s.next.Content = s.said[:len(s.said):len(s.said)]
}
