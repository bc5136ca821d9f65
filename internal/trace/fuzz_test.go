package trace

import (
	"errors"
	"testing"
	"time"
)

// FuzzOpen reads anything, as a trace and as the lengths beside it: requests are
// sound and in order, and a fault names its line.
func FuzzOpen(f *testing.F) {
	for _, content := range []string{azureExample, mooncakeExample, lengthsExample, ratesExample, accessLogExample} {
		f.Add(content, clientLengthsExample, uint64(1))
		f.Add(content[:len(content)*2/3], clientLengthsExample[:160], uint64(2))
	}
	f.Add("client,t,rate,cv,pattern,p1\na,0,1000000,0,Gamma,0\nb,3000000000,1,0,Weibull,1e-9\n", clientLengthsExample, uint64(0))
	f.Add(`{"timestamp":0,"input_length":1073741824,"output_length":0,"hash_ids":[1,1,1]}`, "", uint64(0))
	f.Fuzz(func(t *testing.T, content, lengths string, seed uint64) {
		s, err := open(memory{"rates": content, "lengths": lengths}.file("rates"), Options{Seed: seed})
		if err != nil {
			checkFault(t, err)
			if s, err = open(memory{"rates": content}.file("rates"), Options{Seed: seed, Law: Gamma(5, 3)}); err != nil {
				return
			}
		}
		last := time.Duration(0)
		var blocks []uint64
		for r, err := range s.First(500) {
			if err != nil {
				checkFault(t, err)
				return
			}
			if r.At < last || r.PromptTokens < 1 || r.PromptTokens > maxTokens || r.OutputTokens < 0 || r.OutputTokens > maxTokens {
				t.Fatalf("after %v: %+v", last, r)
			}
			last = r.At
			if blocks = r.AppendBlocks(blocks[:0]); len(blocks) > (r.PromptTokens+r.OutputTokens)/BlockTokens {
				t.Fatalf("%d blocks of %d tokens", len(blocks), r.PromptTokens)
			}
		}
	})
}

func checkFault(t *testing.T, err error) {
	t.Helper()
	var fault *Error
	if !errors.As(err, &fault) {
		t.Fatalf("%v is no fault of a file", err)
	}
	if fault.File == "" || fault.Problem == "" || fault.Fix == "" || fault.Line < 1 && fault.Problem != "has lengths but no arrivals" {
		t.Fatalf("%#v", fault)
	}
}
