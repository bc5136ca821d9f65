package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Format is a kind of trace file.
type Format string

// The formats that can be read.
const (
	Azure     Format = "azure"      // CSV: TIMESTAMP, ContextTokens, GeneratedTokens
	Mooncake  Format = "mooncake"   // JSON lines: timestamp, input_length, output_length, hash_ids
	ServeGen  Format = "servegen"   // CSV of clients' rates, and one of their lengths beside it
	Lengths   Format = "lengths"    // CSV: num_prefill_tokens, num_decode_tokens
	AccessLog Format = "access-log" // the gateway's own JSON lines
)

// Options say how a file becomes requests. The zero value is good for every
// format but Lengths.
type Options struct {
	// Seed fixes all that is drawn. Sources of one seed share the content ids
	// of their files; give files that have nothing in common different seeds.
	Seed uint64
	// Law replaces the recorded arrivals. Lengths need one.
	Law Law
	// Scale multiplies the rates of ServeGen's clients; 0 means 1.
	Scale float64
	// ClientLengths is ServeGen's file of lengths. Empty means the name of the
	// file of rates with "rates" replaced by "lengths".
	ClientLengths string
}

// Most a trace may say of one request.
const (
	maxTokens = 1 << 30
	maxTime   = 100 * 365 * 24 * time.Hour
)

// Open makes a Source of a file whose format is known by its content. The file
// is read again for every range over the Source, as it goes along where the
// format allows it. Faults of the content are of type *Error.
func Open(path string, o Options) (Source, error) {
	return open(diskFile(path), o)
}

func open(f file, o Options) (Source, error) {
	format, err := f.format()
	if err != nil {
		return nil, err
	}
	if format == Lengths && o.Law == nil {
		return nil, &Error{File: f.name, Problem: "has lengths but no arrivals", Fix: "give an arrival law, such as Poisson at 10 requests/s"}
	}
	read := map[Format]func(file, Options) Source{
		Azure: readAzure, Mooncake: readMooncake, ServeGen: readServeGen, Lengths: readLengths, AccessLog: readAccessLog,
	}[format]
	s := read(f, o).notEmpty(f.name)
	if o.Law != nil {
		s = s.Retimed(o.Law, o.Seed)
	}
	return s, nil
}

// Detect tells the format by the first bytes of a file; false if it is none.
func Detect(head []byte) (Format, bool) {
	line, _, _ := bytes.Cut(bytes.TrimLeft(bytes.TrimPrefix(head, byteOrderMark), "\r\n\t "), []byte("\n"))
	marks := []struct {
		Format
		words []string
	}{
		{Azure, []string{"timestamp", "contexttokens", "generatedtokens"}},
		{Mooncake, []string{`"timestamp"`, `"input_length"`, `"output_length"`}},
		{ServeGen, []string{"client", "rate", "pattern"}},
		{Lengths, []string{"num_prefill_tokens", "num_decode_tokens"}},
		{AccessLog, []string{`"level"`, `"time"`, `"msg"`}},
	}
	text := strings.ToLower(string(line))
	for _, m := range marks {
		if isJSON := strings.HasPrefix(m.words[0], `"`); isJSON == strings.HasPrefix(text, "{") && containsAll(text, m.words) {
			return m.Format, true
		}
	}
	return "", false
}

func containsAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

var byteOrderMark = []byte("\ufeff")

// file is a trace that can be read more than once.
type file struct {
	name   string
	open   func() (io.ReadCloser, error)
	beside func(name string) file
}

func diskFile(path string) file {
	return file{
		name:   path,
		open:   func() (io.ReadCloser, error) { return os.Open(path) }, //nolint:gosec // the file the user names
		beside: diskFile,
	}
}

// read hands over the content; its error comes back, with the file's name when
// it is none of ours.
func (f file) read(consume func(*bufio.Reader) error) error {
	r, err := f.open()
	if err != nil {
		return fmt.Errorf("trace: %w", err) // names the file already
	}
	defer r.Close()
	br := bufio.NewReaderSize(r, 64<<10)
	if mark, _ := br.Peek(len(byteOrderMark)); bytes.Equal(mark, byteOrderMark) {
		_, _ = br.Discard(len(mark)) // peeked, so it is there
	}
	return consume(br)
}

func (f file) format() (format Format, err error) {
	err = f.read(func(r *bufio.Reader) error {
		head, err := r.Peek(16 << 10)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("trace: %w", err)
		}
		var ok bool
		if format, ok = Detect(head); !ok {
			return &Error{File: f.name, Line: 1, Problem: "is no trace that is known",
				Fix: "give an Azure, ServeGen or lengths CSV with its header, Mooncake JSON lines, or the gateway's access log"}
		}
		return nil
	})
	return format, err
}

// lengthsFile is where the lengths of ServeGen's clients are.
func (f file) lengthsFile(o Options) file {
	name := o.ClientLengths
	if name == "" {
		dir, base := filepath.Split(f.name)
		name = dir + strings.Replace(base, "rates", "lengths", 1)
	}
	return f.beside(name)
}

// notEmpty makes an error of a file without a request.
func (s Source) notEmpty(name string) Source {
	return func(yield func(Request, error) bool) {
		empty := true
		for r, err := range s {
			empty = false
			if !yield(r, err) {
				return
			}
		}
		if empty {
			yield(Request{}, &Error{File: name, Line: 1, Problem: "holds no requests", Fix: "give a trace of at least one"})
		}
	}
}
