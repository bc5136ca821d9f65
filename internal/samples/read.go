package samples

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// SchemaError is a file whose features are not those of this program.
type SchemaError struct {
	File       string
	Have, Want string // hashes
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("%s: the features have schema %q, those of this version %q; move the file away, it was written by another version", e.File, e.Have, e.Want)
}

// Sequence is samples in the order of the times at which attempts were sent. An
// error ends it.
type Sequence = iter.Seq2[predictor.Sample, error]

// Read reads files of samples, or all in a directory. It holds the samples of one
// file in memory, and of more where their times overlap.
func Read(paths ...string) Sequence {
	return func(yield func(predictor.Sample, error) bool) {
		files, err := index(paths)
		if err != nil {
			yield(predictor.Sample{}, err)
			return
		}
		var pending []predictor.Sample
		for i, f := range files {
			read, err := load(f.name)
			if err != nil {
				yield(predictor.Sample{}, err)
				return
			}
			pending = append(pending, read...)
			slices.SortStableFunc(pending, func(a, b predictor.Sample) int { return a.At.Compare(b.At) })
			ready := len(pending)
			if i+1 < len(files) {
				ready, _ = slices.BinarySearchFunc(pending, files[i+1].from, func(s predictor.Sample, t time.Time) int { return s.At.Compare(t) })
			}
			for _, s := range pending[:ready] {
				if !yield(s, nil) {
					return
				}
			}
			pending = append(pending[:0], pending[ready:]...)
		}
	}
}

// indexed is a file that has been looked at.
type indexed struct {
	name string
	from time.Time // of its earliest sample; zero if it does not say
}

// index looks at all files, so that what cannot be read is found first.
func index(paths []string) ([]indexed, error) {
	var files []indexed
	for _, path := range paths {
		names, err := list(path)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			from, err := look(name)
			if err != nil {
				return nil, err
			}
			files = append(files, indexed{name, from})
		}
	}
	slices.SortStableFunc(files, func(a, b indexed) int {
		return cmp.Or(a.from.Compare(b.from), cmp.Compare(a.name, b.name))
	})
	return files, nil
}

// list is the files of a directory, in the order of their names; or the file itself.
func list(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("samples: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	return filepath.Glob(filepath.Join(escape(path), "*"+extension))
}

// Newest names the newest file of a log, or nothing if there is none.
func Newest(dir string) (string, error) {
	names, err := list(dir)
	if err != nil || len(names) == 0 {
		return "", err
	}
	return names[len(names)-1], nil
}

// look reads what a file says of itself.
func look(name string) (from time.Time, err error) {
	err = open(name, func(f *parquet.File) error {
		if have, _ := f.Lookup(schemaKey); have != predictor.SchemaHash() {
			return &SchemaError{File: name, Have: have, Want: predictor.SchemaHash()}
		}
		if said, ok := f.Lookup(fromKey); ok {
			from, err = time.Parse(time.RFC3339Nano, said)
			return err
		}
		return nil
	})
	return from, err
}

// load reads all samples of a file.
func load(name string) ([]predictor.Sample, error) {
	var all []predictor.Sample
	err := open(name, func(f *parquet.File) error {
		places, err := layout(f)
		if err != nil {
			return err
		}
		for _, group := range f.RowGroups() {
			if all, err = loadGroup(all, group, places); err != nil {
				return err
			}
			if int64(len(all)) > f.NumRows() {
				return errors.New("there are more rows than the file says; it is damaged, remove it")
			}
		}
		return nil
	})
	return all, err
}

// open hands a file to read. The library panics on some damaged files.
func open(name string, read func(*parquet.File) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: the file is damaged, remove it: %v", name, p)
		}
	}()
	in, err := os.Open(name) //nolint:gosec // the file the caller names
	if err != nil {
		return fmt.Errorf("samples: %w", err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := checkFooter(in, info.Size()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	f, err := parquet.OpenFile(in, info.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return fmt.Errorf("%s: no file of samples, or a damaged one: %w", name, err)
	}
	var other *SchemaError
	if err := read(f); err != nil && !errors.As(err, &other) {
		return fmt.Errorf("%s: %w", name, err)
	} else if err != nil {
		return err
	}
	return nil
}

// checkFooter holds the footer to the file's size: the library allocates what
// the last 8 bytes say, up to 4 GiB.
func checkFooter(in io.ReaderAt, size int64) error {
	var end [8]byte // length, magic
	if _, err := in.ReadAt(end[:], max(size-int64(len(end)), 0)); err != nil || string(end[4:]) != "PAR1" {
		return errors.New("no file of samples, or one that is not complete")
	}
	if n := binary.LittleEndian.Uint32(end[:]); int64(n) > size {
		return fmt.Errorf("the file is damaged, remove it: its footer has %d bytes of %d", n, size)
	}
	return nil
}

// layout finds the columns of a file: by place, what it holds.
func layout(f *parquet.File) (map[int]column, error) {
	places := map[int]column{}
	for _, c := range columns() {
		leaf, ok := f.Schema().Lookup(c.name)
		if !ok {
			return nil, fmt.Errorf("column %s is missing", c.name)
		}
		if have, want := leaf.Node.Type().String(), c.node.Type().String(); have != want || leaf.MaxRepetitionLevel > 0 {
			return nil, fmt.Errorf("column %s is %s instead of %s", c.name, have, want)
		}
		places[leaf.ColumnIndex] = c
	}
	return places, nil
}

func loadGroup(all []predictor.Sample, group parquet.RowGroup, places map[int]column) ([]predictor.Sample, error) {
	rows := group.Rows()
	defer rows.Close()
	var buffer [64]parquet.Row
	for {
		n, err := rows.ReadRows(buffer[:])
		for _, row := range buffer[:n] {
			s, err := sample(row, places)
			if err != nil {
				return nil, fmt.Errorf("row %d: %w", len(all), err)
			}
			all = append(all, s)
		}
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func sample(row parquet.Row, places map[int]column) (s predictor.Sample, err error) {
	for _, v := range row {
		c, ours := places[v.Column()]
		if !ours {
			continue
		}
		if err := c.set(&s, v); err != nil {
			return s, fmt.Errorf("column %s: %w", c.name, err)
		}
	}
	return s, nil
}
