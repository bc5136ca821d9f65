package openai

import "bytes"

// bytesPerToken is the usual rule of thumb for English text and BPE tokenizers.
const bytesPerToken = 4

// mediaTokens is what one inline image or audio clip is taken for.
const mediaTokens = 1000

// mediaSize is from how many bytes on base64 in a prompt is taken for media.
const mediaSize = 1 << 10

// estimateTokens takes four bytes of JSON for a token. Token arrays count
// their elements; inline media counts as mediaTokens each. The value must be
// valid JSON.
func estimateTokens(v []byte) int {
	if n := countNumbers(v); n > 0 {
		return n
	}
	clips, bytesOfMedia := inlineMedia(v)
	size := len(v) - bytesOfMedia - escapeExcess(v)
	return size/bytesPerToken + clips*mediaTokens
}

// countNumbers counts the elements of an array of tokens, or of an array of
// such arrays; 0 of anything else.
func countNumbers(v []byte) int {
	inner := bytes.TrimLeft(v, "[ \t\r\n")
	if v[0] != '[' || len(inner) == 0 || inner[0] < '0' || inner[0] > '9' {
		return 0
	}
	return bytes.Count(v, []byte{','}) + 1
}

// escapeExcess is by how much \uXXXX is longer than what it stands for, three
// bytes for most of what is escaped: the estimate must not hang on the
// client's way to write text.
func escapeExcess(v []byte) int {
	return 3 * bytes.Count(v, []byte(`\u`))
}

// inlineMedia counts the images and audio clips in a prompt, and their bytes.
// They come as data URLs, or as base64 under the key data.
func inlineMedia(v []byte) (clips, size int) {
	const mark = `"data`
	for at := 0; ; {
		i := bytes.Index(v[at:], []byte(mark))
		if i < 0 {
			return clips, size
		}
		start := at + i
		at = start + len(mark)
		if start > 0 && v[start-1] == '\\' { // quoted text, not markup
			continue
		}
		payload := base64Start(v[at:])
		if payload < 0 {
			continue
		}
		end := bytes.IndexByte(v[at+payload:], '"')
		if end < mediaSize {
			continue
		}
		clips, size, at = clips+1, size+end, at+payload+end
	}
}

// base64Start is where base64 starts in what follows "data; -1 if nowhere.
func base64Start(rest []byte) int {
	if bytes.HasPrefix(rest, []byte{':'}) { // "data:image/png;base64,..."
		const mark = ";base64,"
		if i := bytes.Index(rest[:min(len(rest), 256)], []byte(mark)); i >= 0 && isBase64(rest[i+len(mark):]) {
			return i + len(mark)
		}
		return -1
	}
	value := bytes.TrimLeft(bytes.TrimPrefix(rest, []byte{'"'}), " \t\r\n") // "data": "..."
	if !bytes.HasPrefix(rest, []byte{'"'}) || !bytes.HasPrefix(value, []byte{':'}) {
		return -1
	}
	value = bytes.TrimLeft(value[1:], " \t\r\n")
	if !bytes.HasPrefix(value, []byte{'"'}) || !isBase64(value[1:]) {
		return -1
	}
	return len(rest) - len(value) + 1
}

// isBase64 looks at the first bytes only.
func isBase64(p []byte) bool {
	for _, c := range p[:min(len(p), 64)] {
		switch {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case c == '+', c == '/', c == '-', c == '_', c == '=', c == '\\':
		default:
			return false
		}
	}
	return true
}
