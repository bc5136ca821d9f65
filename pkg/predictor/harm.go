package predictor

import "math"

// harm is what a request would do to the time between tokens.
type harm struct {
	tpot   float64 // its own, in seconds
	own    float64 // of computing its own prompt, in seconds: so much later everybody's next token is
	missed int     // requests decoding there that would newly miss their objective
}

const (
	// fewToCome is the least number of tokens that a running answer is taken to
	// go on for: how long it will be nobody knows.
	fewToCome = 30
	// maxStretch bounds how much longer than a plain step the gaps are taken to
	// be for the prompts computed in between.
	maxStretch = 8.0
)

// harm follows every running answer to its expected end, with and without the
// request: time since its first token, the stall of the prompts pending, and
// the tokens to come at the gap then. Called with mu held.
func (i *Instance) harm(t float64, w Work) harm {
	n, held := float64(i.decoding)+i.others.decoding, i.context+i.others.context
	stall := i.others.tokens * i.speed.fitted[tokens]
	for _, p := range i.pending {
		n++
		held += float64(p.Prompt)
		stall += i.prefill(p.Prompt, int(p.left))
	}
	stretch := i.stretch()
	before := stretch * i.stepAt(n, held)
	after := stretch * i.stepAt(n+1, held+float64(w.Prompt)+i.output.mean()/2)
	own := i.prefill(w.Prompt, w.Uncached)
	h := harm{tpot: after, own: own}
	for _, flights := range [...][]*Flight{i.running, i.pending} {
		for _, f := range flights {
			if i.keeps(f, t, stall, before, f.Class) && !i.keeps(f, t, stall+own, after, w.Class) {
				h.missed++
			}
		}
	}
	return h
}

// keeps reports whether an answer keeps what it was promised if its tokens to
// come begin after the stall and have that gap. How many there will be nobody
// knows; towards somebody less critical the next may be its last.
func (i *Instance) keeps(f *Flight, now, stall, gap float64, class int) bool {
	usual, t := i.output.mean(), now+stall
	if f.limit > 0 && f.Stream && f.state == decodingFlight {
		toCome := max(usual-float64(f.tokens), fewToCome)
		if class > f.Class {
			toCome = 1
		}
		if t-f.first+toCome*gap > f.limit*(float64(f.tokens)+toCome) {
			return false
		}
	}
	if f.end == 0 {
		return true
	}
	seen := float64(f.tokens)
	if f.state == decodingFlight && !f.Stream {
		seen = (now - f.first) / gap
	}
	return t+max(usual-seen, usual/4)*gap <= f.end
}

// stepAt is the time of a step that decodes only.
func (i *Instance) stepAt(n, held float64) float64 {
	x := terms{steps: 1, seqs: n, context: held}
	return i.speed.expect(&x)
}

// prefill is what the last tokens of a prompt cost on top of the steps they are in.
func (i *Instance) prefill(prompt, left int) float64 {
	x := terms{tokens: float64(left), square: squares(prompt-left, prompt)}
	return i.speed.expect(&x)
}

// stretch is how much longer the gaps between tokens lately were than plain
// steps, for the prompts that were computed in between; 1 where nothing decodes.
func (i *Instance) stretch() float64 {
	if i.streams == 0 || i.gaps.count == 0 {
		return 1
	}
	plain := i.stepAt(float64(i.decoding)+i.others.decoding, i.context+i.others.context)
	ratio := i.gaps.mean() / plain
	if math.IsNaN(ratio) {
		return 1
	}
	return min(max(ratio, 1), maxStretch)
}
