package engine

import (
	"bytes"
	"strings"
)

// bytesPerToken is the length of every token, of prompts and of answers: texts
// are padded and cut to it. So an answer that comes back as part of the next
// turn's prompt counts as many tokens as it was generated in, and hits the
// blocks that hold it.
const bytesPerToken = 4

var lorem = strings.Fields(`lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod
tempor incididunt ut labore et dolore magna aliqua enim ad minim veniam quis nostrud exercitation
ullamco laboris nisi aliquip ex ea commodo consequat duis aute irure in reprehenderit voluptate
velit esse cillum fugiat nulla pariatur excepteur sint occaecat cupidatat non proident sunt culpa
qui officia deserunt mollit anim id est laborum`)

// compose writes so many tokens of readable text, the same for the same seed.
// It holds nothing that JSON would have to escape.
func compose(seed uint64, tokens int) []byte {
	size := tokens * bytesPerToken
	text := make([]byte, 0, size+16)
	for left := 0; len(text) < size; left-- {
		seed = mix(seed)
		word := lorem[seed%uint64(len(lorem))]
		if left == 0 {
			left = 6 + int(seed>>32%9)
			text = endSentence(text)
			text = append(text, word[0]-'a'+'A')
			word = word[1:]
		} else {
			text = append(text, ' ')
		}
		text = append(text, word...)
	}
	return text[:size]
}

func endSentence(text []byte) []byte {
	if len(text) == 0 {
		return text
	}
	return append(text, '.', ' ')
}

// naturalLength is where the model would stop by itself: 32 to 255 tokens,
// depending on the prompt alone.
func naturalLength(seed uint64) int { return 32 + int(mix(seed)%224) }

// cutAtStop ends the text before the first of the stop sequences.
func cutAtStop(text []byte, stops []string) (_ []byte, stopped bool) {
	for _, stop := range stops {
		if i := bytes.Index(text, []byte(stop)); i >= 0 && stop != "" {
			text, stopped = text[:i], true
		}
	}
	return text, stopped
}

// pad fills up to a whole number of tokens.
func pad(text []byte) []byte {
	for len(text)%bytesPerToken != 0 {
		text = append(text, '\n')
	}
	return text
}
