package fakellm

import (
	"math"
	"math/rand/v2"
	"time"
)

// Chaos answers with random latencies and faults. What the n-th request gets
// depends on Seed and n alone. Its Script method is made for Backend.Script.
type Chaos struct {
	Seed   uint64
	Tokens int     // per answer
	TTFT   Latency // to the first token
	Gap    Latency // between tokens
	Faults []Fault // their shares add up to 1 at most
}

// Fault is a script that a share of the requests, 0 to 1, gets.
type Fault struct {
	Share  float64
	Script Script
}

// Latency is a log-normal distribution given by two of its quantiles, the
// shape that measured latencies have. Without a P99 above P50 it is constant.
type Latency struct{ P50, P99 time.Duration }

// Script is a fault, or Reply with latencies of its own for each token.
func (c Chaos) Script(r *Request) Script {
	rng := rand.New(rand.NewPCG(c.Seed, uint64(r.Seq)))
	if fault := c.fault(rng.Float64()); fault != nil {
		return fault
	}
	return reply(c.Tokens, func(i int) time.Duration {
		if i == 0 {
			return c.TTFT.Draw(rng)
		}
		return c.Gap.Draw(rng)
	})
}

// fault is the one that owns point u of 0..1, nil if none does.
func (c Chaos) fault(u float64) Script {
	for _, f := range c.Faults {
		if u < f.Share {
			return f.Script
		}
		u -= f.Share
	}
	return nil
}

// Draw takes one value, in whole nanoseconds.
func (l Latency) Draw(rng *rand.Rand) time.Duration {
	if l.P50 <= 0 || l.P99 <= l.P50 {
		return l.P50
	}
	const z99 = 2.3263478740408408 // the standard normal's 0.99 quantile
	sigma := math.Log(float64(l.P99)/float64(l.P50)) / z99
	return time.Duration(float64(l.P50) * math.Exp(sigma*rng.NormFloat64()))
}
